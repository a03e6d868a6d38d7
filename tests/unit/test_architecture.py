"""The lines that ARCHITECTURE.md draws: who may import what, read from the source itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from slurm_recovery.records import Stage

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "slurm_recovery"
FILES = sorted(PACKAGE.rglob("*.py"))
NAMES = {str(path.relative_to(PACKAGE)): path for path in FILES}

PURE = ("detect", "attribute", "decide")
# Whatever a pure module may import that is not ours. Nothing in it reads a file, a clock or a process by itself:
# datetime and tomllib are looked at more closely below.
PURE_MAY = frozenset(
    "__future__ re math enum typing collections collections.abc dataclasses functools itertools bisect datetime "
    "tomllib pydantic hyperscan".split()
)
# What pure code must not reach through the modules of ours that it imports either.
IMPURE = frozenset(
    "time socket select selectors subprocess multiprocessing threading asyncio signal fcntl io shutil tempfile glob "
    "logging random secrets uuid sqlite3 http urllib ssl platform pwd importlib "
    "structlog sqlalchemy alembic pymysql tenacity typer rich pyslurm pynvml requests httpx".split()
)
IMPURE_CALLS = frozenset("open print input exec eval compile __import__ breakpoint".split())
READS_THE_CLOCK = frozenset("now utcnow today".split())
READS_A_FILE = frozenset("read_text read_bytes write_text write_bytes load iterdir glob rglob exists stat".split())

# Ours that each part may import. Parts that are not named here may import anything.
OURS_MAY = {
    "records.py": (),
    "hostlist.py": (),
    "node_report.py": (),
    "job_options.py": (),
    "resume.py": (),
    "checkpoint": ("checkpoint",),
    "detect": ("records", "detect", "hostlist", "node_report"),
    "attribute": ("records", "detect", "attribute"),
    "decide": ("records", "attribute", "decide", "config.settings", "slurm.port", "slurm.dependency", "job_options"),
    "slurm": ("records", "slurm", "config.settings", "config.confile", "hostlist"),
    "evidence": ("records", "detect", "evidence", "config.signature_files", "node_report"),
    "node": ("node", "config.confile", "hostlist", "evidence.as_user", "checkpoint", "job_options", "resume"),
    "store": ("records", "store"),
    "config": ("records", "config", "attribute.reasons", "detect.signature", "hostlist", "job_options"),
    "hooks/__init__.py": (),
    "hooks/slurm_recovery_hook.py": (),
    "hooks/slurm_recovery_node_hook.py": (),
    "hooks/slurm_recovery_task_prolog.py": (),
    "hooks/spool.py": (),
    "hooks/install.py": ("config.settings", "job_options"),
    "hooks/spank.py": ("config.settings", "job_options"),
}
ADAPTERS = ("slurm.commands", "slurm.pyslurm_adapter", "slurm.select", "store.database", "config.load", "evidence")

HOOKS = (
    PACKAGE / "hooks/slurm_recovery_hook.py",
    REPOSITORY / "epilog/epilog_slurmctld",
    REPOSITORY / "epilog/node_down",
    PACKAGE / "hooks/slurm_recovery_node_hook.py",
    REPOSITORY / "epilog/50-slurm-recovery",
    REPOSITORY / "prolog/50-slurm-recovery",
    REPOSITORY / "prolog/health_check",
    PACKAGE / "hooks/slurm_recovery_task_prolog.py",
    REPOSITORY / "prolog/task_prolog",
)
HOOKS_MAY = frozenset(
    "sys os time fcntl select slurm_recovery_hook slurm_recovery_node_hook slurm_recovery_task_prolog".split()
)


class Import(NamedTuple):
    """One imported module, and whether it is imported when the file is."""

    module: str
    at_once: bool


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(path: Path) -> Iterator[Import]:
    inside = {child for node in ast.walk(tree(path)) if _is_function(node) for child in _lines(node)}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield Import(name.name, node.lineno not in inside)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            yield Import(module, node.lineno not in inside)
            for name in node.names:  # `from slurm_recovery.attribute import behind` names a module
                if _file_of(f"{module}.{name.name}"):
                    yield Import(f"{module}.{name.name}", node.lineno not in inside)


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def _lines(node: ast.AST) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)  # type: ignore[attr-defined]


def _file_of(module: str) -> Path | None:
    """The file of one of our modules."""
    words = module.split(".")
    if words[0] != "slurm_recovery":
        return None
    bare = PACKAGE.joinpath(*words[1:])
    return next((path for path in (bare.with_suffix(".py"), bare / "__init__.py") if path.is_file()), None)


def ours(path: Path) -> set[str]:
    """Our modules that a file imports, without the package's name; a package that only leads to one is left out."""
    found = {one.module.removeprefix("slurm_recovery.") for one in imports(path) if _file_of(one.module)}
    return {name for name in found if not any(other.startswith(f"{name}.") for other in found)}


def others(path: Path) -> set[str]:
    return {one.module for one in imports(path) if one.module.partition(".")[0] != "slurm_recovery"}


def within(module: str, roots: frozenset[str] | tuple[str, ...]) -> bool:
    return any(module == root or module.startswith(f"{root}.") for root in roots)


def part_of(name: str) -> str:
    """The row of OURS_MAY that a file belongs to."""
    return name if name in OURS_MAY else name.partition("/")[0]


def pure_files() -> list[str]:
    return [name for name in NAMES if name.startswith(tuple(f"{part}/" for part in PURE))]


def reached(start: Path) -> set[Path]:
    """A file, and all of ours that it imports, directly or not."""
    found, waiting = {start}, [start]
    while waiting:
        for one in imports(waiting.pop()):
            path = _file_of(one.module)
            if path and path not in found:
                found.add(path)
                waiting.append(path)
    return found


@pytest.mark.parametrize("name", pure_files())
def test_pure_code_imports_only_what_is_pure(name: str) -> None:
    assert others(NAMES[name]) <= PURE_MAY


@pytest.mark.parametrize("name", pure_files())
def test_pure_code_does_no_io_and_reads_no_clock(name: str) -> None:
    calls = [node.func for node in ast.walk(tree(NAMES[name])) if isinstance(node, ast.Call)]
    plain = {call.id for call in calls if isinstance(call, ast.Name)}
    methods = {call.attr for call in calls if isinstance(call, ast.Attribute)}
    assert not plain & IMPURE_CALLS
    assert not methods & (READS_THE_CLOCK | READS_A_FILE)


@pytest.mark.parametrize("name", pure_files())
def test_pure_code_reaches_nothing_impure_through_others(name: str) -> None:
    for path in reached(NAMES[name]):
        impure = {module for module in others(path) if within(module, IMPURE)}
        assert not impure, f"{path.relative_to(PACKAGE)} imports {', '.join(sorted(impure))}"
        # os.path and pathlib are words for paths there: settings.py declares them, port.py joins them.
        assert "os" not in others(path), f"{path.relative_to(PACKAGE)} imports os"


@pytest.mark.parametrize("name", [name for name in NAMES if part_of(name) in OURS_MAY])
def test_a_part_imports_only_the_parts_that_it_may(name: str) -> None:
    allowed = OURS_MAY[part_of(name)]
    strangers = {module for module in ours(NAMES[name]) if not within(module, allowed)}
    assert not strangers


def test_every_row_of_the_table_is_a_part() -> None:
    assert set(OURS_MAY) <= {part_of(name) for name in NAMES}


def test_pyslurm_is_imported_in_one_file_and_pynvml_in_one_at_most() -> None:
    def importers(module: str) -> list[str]:
        return [name for name, path in NAMES.items() if any(within(one, (module,)) for one in others(path))]

    assert importers("pyslurm") == ["slurm/pyslurm_adapter.py"]
    assert len(importers("pynvml")) <= 1


def test_pyslurm_is_not_imported_before_it_is_asked_for() -> None:
    """Importing it can end the process."""
    modules = [one for one in imports(NAMES["slurm/pyslurm_adapter.py"]) if one.module == "pyslurm"]
    assert not any(one.at_once for one in modules)


@pytest.mark.parametrize("name", ["recover.py", "act.py"])
def test_the_loop_knows_no_adapter(name: str) -> None:
    assert not {module for module in ours(NAMES[name]) if within(module, ADAPTERS)}


def test_the_loop_asks_no_clock_and_no_system_itself() -> None:
    for name in ("recover.py", "act.py"):
        assert not {module for module in others(NAMES[name]) if module in ("os", "time", "datetime", "subprocess")}


@pytest.mark.parametrize("path", HOOKS, ids=lambda path: path.name)
def test_a_hook_imports_only_what_is_quick(path: Path) -> None:
    assert {one.module for one in imports(path)} <= HOOKS_MAY


def test_a_hook_loads_nothing_slow() -> None:
    """What the interpreter really loads for it, besides what it loads for an empty program."""
    code = (
        "import sys; before = set(sys.modules); sys.path.insert(0, sys.argv[1]); import slurm_recovery_hook; "
        "print(*sorted(set(sys.modules) - before))"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(PACKAGE / "hooks")]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.split()
    of_os = {"abc", "stat", "_stat", "posixpath", "genericpath", "os.path", "_collections_abc"}
    assert set(loaded) <= HOOKS_MAY | of_os


def test_the_spool_is_of_the_standard_library() -> None:
    assert {one.partition(".")[0] for one in others(NAMES["hooks/spool.py"])} <= sys.stdlib_module_names


def test_the_package_costs_nothing_to_import() -> None:
    assert not list(imports(NAMES["__init__.py"]))


@pytest.mark.parametrize("stage", Stage)
def test_every_stage_is_in_the_picture(stage: Stage) -> None:
    rows = [line for line in (REPOSITORY / "ARCHITECTURE.md").read_text().splitlines() if line.startswith("| ")]
    row = next((line for line in rows if line.startswith(f"| {stage.value} |")), "")
    assert row
    assert stage.open != ("Closed" in row)
