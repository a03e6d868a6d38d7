"""README says what the code does: its lines for slurm.conf, its commands, its settings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from slurm_recovery.cli.common import DEFAULT_CONF
from slurm_recovery.cli.declarations import declared, every_key
from slurm_recovery.cli.main import COMMANDS, app
from slurm_recovery.config.load import load
from slurm_recovery.config.settings import Policy, Settings
from slurm_recovery.hooks.install import DEFAULT_HOOK_DIR, HOOKS, node_conf_lines, slurm_conf_lines, trigger_arguments

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
PAGES = sorted({*REPOSITORY.glob("*.md"), *REPOSITORY.glob("*/README.md")})

# Words of Slurm that look like our keys.
SLURMS = frozenset(
    "SlurmUser EpilogSlurmctld PrologSlurmctld TaskProlog JobFileAppend JobRequeue AdminComment ExcNodeList StartTime "
    "SpecialExit BadConstraints DependencyNeverSatisfied PartitionName SlurmdTimeout MinJobAge Reason JobId "
    "State Epilog ReturnToService HealthCheckProgram HealthCheckInterval HealthCheckNodeState NodeName TIME "
    "PrologFlags".split()
)
# Words of others.
THEIRS = frozenset(["PrivateCluster"])
KEYS = frozenset(one.key for one in every_key())


FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def blocks(kind: str, text: str = README) -> list[str]:
    """The fenced blocks of that kind."""
    return re.findall(rf"^```{re.escape(kind)}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def inline(text: str) -> list[str]:
    """What stands between backquotes."""
    return re.findall(r"`([^`\n]+)`", FENCED.sub("", text))


def commands(text: str) -> Iterator[list[str]]:
    """Every `srecover ...` in a fenced block or between backquotes, as words."""
    fenced = [line for block in FENCED.findall(text) for line in block.splitlines()]
    for line in (*fenced, *inline(text)):
        words = line.partition("#")[0].removeprefix("$ ").strip()
        if words.startswith("srecover "):
            yield shlex.split(words)[1:]


def test_the_lines_for_slurm_conf_are_those_that_setup_prints() -> None:
    controllers, nodes = blocks("slurm.conf")
    assert tuple(controllers.splitlines()) == slurm_conf_lines(DEFAULT_HOOK_DIR)
    assert tuple(nodes.splitlines()) == node_conf_lines(DEFAULT_HOOK_DIR)


def test_the_trigger_is_the_one_that_setup_registers() -> None:
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("strigger ")]
    assert [tuple(shlex.split(line)[1:]) for line in lines] == [trigger_arguments(DEFAULT_HOOK_DIR)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_command_that_is_named_exists_with_its_options(page: Path) -> None:
    group: Any = typer.main.get_command(app)
    for name, *words in commands(page.read_text(encoding="utf-8")):
        assert name in COMMANDS
        command = group.get_command(None, name)
        options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert {word.partition("=")[0] for word in words if word.startswith("-")} <= options


def test_every_command_but_the_hidden_is_named() -> None:
    assert {words[0] for words in commands(README)} >= COMMANDS.keys() - {"manual", "replay"}


@pytest.mark.parametrize("block", blocks("recovery.conf"))
def test_the_examples_of_recovery_conf_are_right(block: str, tmp_path: Path) -> None:
    path = tmp_path / "recovery.conf"
    path.write_text(block)
    assert load(path).origins


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_key_that_is_named_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    code = " ".join(inline(text))
    words = set(re.findall(r"(?<![\w.])(?:[A-Z][a-z]+){2,}(?![\w(.])", code))
    words |= {key for key, value in re.findall(r"`([A-Z][a-z]+)(=[^`]*)`", text)}
    assert words - KEYS - SLURMS - THEIRS == set()


def test_the_defaults_that_are_named_are_the_defaults() -> None:
    defaults = {one.key: one.default for one in declared(Settings)}
    named = re.findall(r"`([A-Z]\w+)` \((\d+) s\)", README)
    assert named
    assert all(defaults[key] == value for key, value in named)
    assert f"`Mode={Policy().mode.value}`" in README


def test_the_places_that_are_named_are_the_places() -> None:
    assert all(f"`{hook}`" in README for hook in HOOKS)
    for path in (DEFAULT_CONF, DEFAULT_HOOK_DIR, Settings().state_dir):
        assert str(path) in README


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines = [line for block in re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S) for line in block.splitlines()]
        ours = [line for line in lines if re.match("make (?!-C )", line)]
        named = re.findall(r"`make ([a-z-]+)", text) + [line.split()[1] for line in ours]
        assert set(named) <= targets, page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("folder", ["epilog", "prolog", "spank_hooks", "conf", "tests"])
def test_each_folder_for_a_sysadmin_has_a_readme(folder: str) -> None:
    assert (REPOSITORY / folder / "README.md").is_file()


def test_the_licence_is_the_one_that_the_package_names() -> None:
    assert "Apache License" in (REPOSITORY / "LICENSE").read_text()
