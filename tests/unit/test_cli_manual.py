"""The manual pages say what the code does, and the committed ones are the ones that it makes."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.cli.declarations import declared, every_key
from slurm_recovery.cli.main import app
from slurm_recovery.cli.manual import EXAMPLES, commands, pages
from slurm_recovery.cli.roff import Item, Page, escaped
from slurm_recovery.config.settings import Settings
from tests.unit.cli_site import run

COMMITTED = Path(__file__).parents[2] / "conf/man"
GROUP: Any = typer.main.get_command(app)
COMMANDS = dict(commands(GROUP))


def plain(page: str) -> str:
    """What a reader sees, roughly."""
    text = re.sub(r"\\f[BR]|\\&", "", page).replace("\\(aq", "'").replace("\\(dq", '"').replace("\\(ga", "`")
    return text.replace("\\-", "-").replace("\\e", "\\")


@pytest.mark.parametrize("name", ["srecover.1", "recovery.conf.5", "slurm_recovery.signatures.7"])
def test_the_committed_page_is_the_one_that_the_code_makes(name: str) -> None:
    assert (COMMITTED / name).read_text() == pages()[name], "run: srecover manual --output conf/man"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_and_option_has_help_and_is_in_the_manual(name: str) -> None:
    command, page = COMMANDS[name], plain(pages()["srecover.1"])
    assert command.help
    assert f'.SS "srecover {name} ' in page
    for param in command.params:
        assert param.help, f"{name} {param.name}"
        assert all(word in page for word in param.opts if word.startswith("-"))


def test_the_commands_are_those_that_the_design_promises() -> None:
    promised = {"list", "show", "explain", "replay", "sweep", "config", "check", "setup", "nodes", "release"}
    promised |= {"report", "drill"}
    assert set(COMMANDS) == promised


@pytest.mark.parametrize("line", [line for line, _ in EXAMPLES])
def test_the_examples_are_commands_that_there_are(line: str) -> None:
    words = shlex.split(line.partition(">")[0], comments=False)[1:]
    if words[0] == "--conf":
        words = words[2:]
    known = {word for param in COMMANDS[words[0]].params for word in param.opts}
    assert {word for word in words[1:] if word.startswith("-")} <= known


def test_every_key_is_in_the_manual_with_its_default_and_sentence() -> None:
    page = plain(pages()["recovery.conf.5"])
    for key in every_key():
        assert f".TP\n{key.key} = {key.kind}\n{key.sentence}" in page
        assert key.sentence
        assert not key.default or f"Default: {key.default}." in page


def test_declarations_are_read_with_kind_and_range() -> None:
    rows = {row.key: row for row in declared(Settings)}
    assert rows["Mode"][1:4] == ("off|observe|act", "", "observe")
    assert rows["LogBytes"][1:4] == ("size", "4K to 1024G", "2G")
    assert rows["WatchdogTimeout"][1:4] == ("time", "1 to 600", "20")
    assert rows["StopExit"][1:4] == ("number[,number...]", "", "")
    assert rows["SlurmConf"][1:4] == ("path", "", "")


def test_every_reason_is_in_the_manual() -> None:
    page = plain(pages()["recovery.conf.5"])
    for reason in REASONS.values():
        assert f".TP\n{reason.code} ({reason.action.value}" in page
        assert reason.sentence in page


def test_text_cannot_become_a_request() -> None:
    page = Page("x", 1, "r", "t")
    page.text(".ab\n\n'ab\n\n\\fBbold")
    page.items([Item(".term", ".text")])
    page.verbatim([".ab", "", "'ab", "~^`"])
    requests = {line.split()[0] for line in str(page).splitlines() if line.startswith((".", "'"))}
    assert requests <= {".TH", ".PP", ".TP", ".RS", ".nf", ".fi", ".RE", '.\\"'}


def test_a_backslash_and_a_hyphen_stay_what_they_are() -> None:
    assert escaped("a\\b -x 'y'") == "a\\eb \\-x \\(aqy\\(aq"


def test_the_command_writes_the_pages_and_is_not_listed(tmp_path: Path) -> None:
    assert run("manual", "--output", str(tmp_path / "man")).status == 0
    assert {path.name for path in (tmp_path / "man").iterdir()} == set(pages())
    assert run("manual").out == "".join(pages().values())
    assert "manual" not in run("--help").out


def test_groff_has_nothing_to_complain_of() -> None:
    for page in pages().values():
        done = subprocess.run(
            ["groff", "-man", "-ww", "-Tutf8", "-Kutf8"], input=page, capture_output=True, text=True, check=False
        )
        assert done.stderr == ""
