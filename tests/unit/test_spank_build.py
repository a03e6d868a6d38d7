"""The SPANK plugin as it is built: what it exports, that a piece of it is no danger, and that its grammar is ours."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_recovery.job_options import MODE, NAMES, SPANK, read_options
from tests.spank_build import SOURCES, build_plugin

EXPORTED = {
    "plugin_name",
    "plugin_type",
    "plugin_version",
    "spank_plugin_version",
    "slurm_spank_init",
    "slurm_spank_init_post_opt",
}
OPEN_PIECES = """
import ctypes, os, sys
whole = open(sys.argv[1], "rb").read()
for number, length in enumerate([*range(0, len(whole), 509), len(whole) - 1]):
    piece = f"{sys.argv[2]}/{number}.so"
    with open(piece, "wb") as file:
        file.write(whole[:length])
    try:
        ctypes.CDLL(piece, os.RTLD_LAZY)
    except OSError as error:
        print(str(error).rpartition(": ")[2])
    os.unlink(piece)
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_plugin(tmp_path_factory.mktemp("build"))


def test_it_exports_what_slurm_looks_for_and_nothing_else(plugin: Path) -> None:
    symbols = subprocess.run(["nm", "-D", "--defined-only", plugin], capture_output=True, text=True, check=True).stdout
    assert {line.split()[2] for line in symbols.splitlines()} == EXPORTED


def test_a_piece_of_it_does_not_open_and_harms_nobody(plugin: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", OPEN_PIECES, str(plugin), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    assert set(done.stdout.splitlines()) == {"file too short", "cannot read file data"}


def test_install_and_uninstall(plugin: Path, tmp_path: Path) -> None:
    where = (f"DESTDIR={tmp_path}", "PLUGINDIR=/opt/slurm/lib", f"BUILD={plugin.parent}")
    for _ in range(2):
        subprocess.run(["make", "-s", "-C", SOURCES, "install", *where], check=True)
        (installed,) = (tmp_path / "opt/slurm/lib").iterdir()
        assert installed.name == "slurm_recovery.so"
        assert installed.read_bytes() == plugin.read_bytes()
        assert installed.stat().st_mode & 0o7777 == 0o644
    subprocess.run(["make", "-s", "-C", SOURCES, "uninstall", *where], check=True)
    assert list((tmp_path / "opt/slurm/lib").iterdir()) == []


def test_headers_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    command = ["make", "-s", "-C", SOURCES, f"BUILD={tmp_path}", "SLURM_CPPFLAGS=-nostdinc"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert not (tmp_path / "slurm_recovery.so").exists()


@pytest.fixture(scope="module")
def grammar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plugin's grammar as a program, that ends at the first wrong access."""
    program = tmp_path_factory.mktemp("grammar") / "grammar"
    sources = [SOURCES / "options.c", SOURCES / "site.c", Path(__file__).with_name("spank_grammar.c")]
    flags = ["-std=c11", "-D_DEFAULT_SOURCE", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run(["cc", *flags, "-I", SOURCES, "-o", program, *sources], check=True)
    return program


def ask(grammar: Path, records: list[tuple[str, str]]) -> list[str]:
    """One answer for each record, its lines joined."""
    text = "".join(f"{what}\0{value}\0" for what, value in records)
    done = subprocess.run([grammar], input=text.encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode(errors="replace").removesuffix("\n").split("\n")


PIECES = st.sampled_from(
    ["act", "Off", "observe", "0", "1", "7", "999", "1000", "1001", "1000000", "9999999", ":", "/", "a", " ", "-", "+",
     "é", "٣", ",", "=", "\n", "\x1b", "/" * 4094]
)  # fmt: skip
VALUES = st.one_of(
    st.lists(PIECES, min_size=1, max_size=5).map("".join),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1),
)


def python_takes(name: str, value: str) -> bool:
    if name == MODE and value.lower() not in ("act", "observe", "off"):
        return False  # a comment may say it in other words
    return not read_options("", {SPANK[name]: value}).refused


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(NAMES), VALUES), min_size=1, max_size=40))
def test_it_takes_what_job_options_takes(grammar: Path, said: list[tuple[str, str]]) -> None:
    answers = ask(grammar, [(str(NAMES.index(name)), value) for name, value in said])
    assert answers == ["yes" if python_takes(name, value) else "no" for name, value in said]


def test_its_names_are_those_of_job_options() -> None:
    rows = re.findall(r'"([a-z-]+)", "(recovery[a-z-]*)", "(RECOVERY[A-Z_]*)"', (SOURCES / "options.c").read_text())
    assert {word: f"SPANK_{variable}" for word, _, variable in rows} == SPANK
    assert [flag for _, flag, _ in rows] == ["recovery", *(f"recovery-{name}" for name in NAMES[1:])]


ALL_BITS = 31


@pytest.mark.parametrize(
    ("argument", "answer"),
    [
        ("max_mode=off", f"0 1000 {ALL_BITS}"),
        ("max_mode=OBSERVE", f"1 1000 {ALL_BITS}"),
        ("max_requeues=0", f"2 0 {ALL_BITS}"),
        ("job_options=all", f"2 1000 {ALL_BITS}"),
        ("job_options=none", "2 1000 0"),
        ("job_options=checkpoint,Log", "2 1000 10"),
        ("job_options=mode", "2 1000 1"),
    ],
)
def test_what_the_site_allows(grammar: Path, argument: str, answer: str) -> None:
    assert ask(grammar, [("site", argument)]) == [answer]


@settings(max_examples=60, deadline=None)
@given(st.tuples(st.sampled_from(["max_mode=", "max_requeues=", "job_options=", "max_mode", ""]), VALUES))
def test_any_other_argument_is_told_in_one_line_and_changes_nothing(grammar: Path, parts: tuple[str, str]) -> None:
    lines = ask(grammar, [("site", "".join(parts))])
    if len(lines) > 1:
        assert lines[0].startswith("slurm_recovery: plugstack.conf: ")
        assert lines[0].endswith(", ignored")
        assert lines[1:] == [f"2 1000 {ALL_BITS}"]
