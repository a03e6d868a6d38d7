"""TaskProlog as slurmstepd starts it: what it prints, what it costs, and that nothing keeps a task from its start.

Real processes, as another user; the file system that hangs is FUSE without its daemon. As root.
"""

from __future__ import annotations

import os
import pwd
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slurm_recovery.hooks.install import install_node_hooks, install_task_prolog, system_python
from slurm_recovery.node.told import write_told
from slurm_recovery.resume import Resume
from tests.unit.test_node_reports import hanging

pytestmark = pytest.mark.timing  # deadlines: alone on the machine

NOBODY = pwd.getpwnam("nobody").pw_uid
TIMEOUT = 1.5
RULES = '[["ours","ckpt-{step}","DONE"]]'
NAMES = ("JOB_ID", "ATTEMPT", "REASON", "EXCLUDED", "CHECKPOINT", "STEP")
RESTART = Resume(7, 2, "node_fail", ("n1", "n3"))


@dataclass
class Node:
    """An installed TaskProlog and what the Prolog left for job 7."""

    folder: Path
    python: str = sys.executable
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        look = [self.python, "-I", "-m", "slurm_recovery.node.look", "--timeout", str(TIMEOUT)]
        self.settings = {
            "look": [*look, "--checkpoint-formats", RULES],
            "environment": {},
            "timeout": TIMEOUT,
            "run_dir": f"{self.folder}/run dir/%n",
        }
        install_node_hooks(self.folder / "hooks", {**self.settings, "collector": []})
        install_task_prolog(self.folder / "hooks", self.settings)
        self.checkpoints.mkdir()
        os.chown(self.checkpoints, NOBODY, NOBODY)

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def command(self) -> str:
        return str(self.folder / "hooks/task_prolog")

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "7", "SLURM_PROCID": "0"} | self.env

    def tell(self, resume: Resume) -> None:
        write_told(f"{self.folder}/run dir/n1", resume, NOBODY)

    def save(self, name: str, complete: bool = True) -> Path:
        path = self.checkpoints / name
        path.mkdir()
        (path / "weights").write_bytes(b"x" * 1000)
        if complete:
            (path / "DONE").touch()
        return path

    def lines(self, **env: str) -> list[str]:
        """What slurmstepd reads, which takes standard error's lines for commands, too."""
        done = subprocess.run(
            [self.command],
            env=self.environment | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            timeout=30,
            check=False,
        )
        assert done.returncode == 0
        return done.stdout.decode(errors="surrogateescape").splitlines()

    def exports(self, **env: str) -> dict[str, str]:
        lines = self.lines(**env)
        assert all(line.startswith("export SLURM_RECOVERY_") for line in lines), lines
        return dict(line.removeprefix("export SLURM_RECOVERY_").split("=", 1) for line in lines)


@pytest.fixture
def node(open_folder: Path) -> Node:
    return Node(open_folder)


def test_a_job_that_is_told_nothing_gets_nothing(node: Node) -> None:
    assert node.lines() == []
    node.tell(RESTART)
    assert node.lines(SLURM_JOB_ID="8") == []


def test_a_restart_is_told_all_that_is_known(node: Node) -> None:
    node.save("ckpt-100")
    told = node.save("ckpt-200")
    node.tell(RESTART._replace(folder=str(node.checkpoints), checkpoint=str(told), step=200))
    assert node.exports() == {
        "JOB_ID": "7",
        "ATTEMPT": "2",
        "REASON": "node_fail",
        "EXCLUDED": "n1,n3",
        "CHECKPOINT": str(told),
        "STEP": "200",
    }
    node.tell(Resume(7, 2))
    assert node.exports() == {"JOB_ID": "7", "ATTEMPT": "2"}


def test_a_first_attempt_is_told_the_checkpoint_in_the_folder_that_it_named(node: Node) -> None:
    node.tell(Resume(7, 1, folder=str(node.checkpoints)))
    assert node.exports() == {"JOB_ID": "7"}
    newest = node.save("ckpt-300")
    node.save("ckpt-400", complete=False)
    assert node.exports() == {"JOB_ID": "7", "CHECKPOINT": str(newest), "STEP": "300"}


def test_a_checkpoint_that_is_complete_no_longer_is_given_up_for_the_one_before(node: Node) -> None:
    before = node.save("ckpt-100")
    told = node.save("ckpt-200")
    node.tell(RESTART._replace(folder=str(node.checkpoints), checkpoint=str(told), step=200))
    (told / "DONE").unlink()
    assert node.exports()["CHECKPOINT"] == str(before)
    (before / "DONE").unlink()
    assert not {"CHECKPOINT", "STEP"} & set(node.exports())


def test_a_checkpoint_that_did_not_load_is_not_found_again(node: Node) -> None:
    before = node.save("ckpt-100")
    corrupt = node.save("ckpt-200")
    node.tell(RESTART._replace(folder=str(node.checkpoints), refused=(str(corrupt),)))
    assert node.exports()["CHECKPOINT"] == str(before)


def test_a_folder_that_cannot_be_read_leaves_what_was_told(node: Node) -> None:
    """A job that starts anew by mistake loses more than one that fails to load."""
    path = node.save("ckpt-100")
    node.checkpoints.chmod(0)
    node.tell(RESTART._replace(folder=str(node.checkpoints), checkpoint=str(path), step=100))
    *exports, trouble = node.lines()
    assert exports[-2:] == [f"export SLURM_RECOVERY_CHECKPOINT={path}", "export SLURM_RECOVERY_STEP=100"]
    assert trouble.startswith("print slurm_recovery: ")


def test_a_name_forges_no_line(node: Node) -> None:
    evil = "ckpt-1\nexport LD_PRELOAD="
    rules = '[["evil","*{step}*","DONE"]]'
    node.settings["look"] = [*node.settings["look"][:-1], rules]
    install_task_prolog(node.folder / "hooks", node.settings)
    folder = node.checkpoints / "new\nexport PATH=\nline"
    folder.mkdir()
    (folder / evil).mkdir()
    (folder / evil / "DONE").touch()
    first = Resume(7, 1, folder=str(folder))
    for resume in (first, first._replace(attempt=2, checkpoint=f"{folder}/{evil}")):
        node.tell(resume)
        lines = [line for line in node.lines() if not line.startswith("print slurm_recovery: ")]
        assert [line.partition("=")[0] for line in lines] == [
            f"export SLURM_RECOVERY_{name}" for name in ("JOB_ID", "ATTEMPT")[: resume.attempt]
        ]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (r"SLURM_RECOVERY_CHECKPOINT=/a\n.\n", {"CHECKPOINT": "/a"}),
        (r"SLURM_RECOVERY_CHECKPOINT=/a\rexport A=b\nexport A=b\nA=b\n.\n", {}),
        (r"SLURM_RECOVERY_CHECKPOINT=/a\n.\n.\nSLURM_RECOVERY_STEP=1\n.\n", {"CHECKPOINT": "/a", "STEP": "1"}),
    ],
)
def test_no_answer_of_the_look_forges_a_line(node: Node, answer: str, told: dict[str, str]) -> None:
    node.settings["look"] = ["/bin/sh", "-c", f"printf '{answer}'; echo 'export A=b' >&2"]
    install_task_prolog(node.folder / "hooks", node.settings)
    node.tell(Resume(7, 1, folder="/ckpt"))
    assert node.exports() == {"JOB_ID": "7"} | told


def test_half_an_answer_is_none(node: Node) -> None:
    node.settings["look"] = ["/bin/sh", "-c", "echo SLURM_RECOVERY_CHECKPOINT=/a"]
    install_task_prolog(node.folder / "hooks", node.settings)
    node.tell(RESTART._replace(checkpoint="/told", step=3))
    assert "export SLURM_RECOVERY_CHECKPOINT=/told" in node.lines()


def test_a_file_that_the_user_changed_changes_no_other_variable(node: Node) -> None:
    node.tell(RESTART)
    path = node.folder / "run dir/n1/7"
    text = path.read_bytes() + b"LD_PRELOAD=/x\nSLURM_RECOVERY_STEP=1\rexport A=b\nexport A=b\nSLURM_RECOVERY_STEPS=3\n"
    path.write_bytes(text)
    assert node.exports() == {"JOB_ID": "7", "ATTEMPT": "2", "REASON": "node_fail", "EXCLUDED": "n1,n3"}
    path.write_bytes(b"")
    assert node.lines() == []


def test_a_restart_without_a_prolog_is_told_its_number(node: Node) -> None:
    """slurmd 22.05: _clear_expired_job_states() in slurm_cred.c forgets a job at most every other second."""
    assert node.exports(SLURM_RESTART_COUNT="2") == {"JOB_ID": "7", "ATTEMPT": "3"}
    for count in ("0", "", "x", "1;reboot", "99999", "-1"):
        assert node.lines(SLURM_RESTART_COUNT=count) == []
    inherited = node.lines(SLURM_RESTART_COUNT="2", SLURM_RECOVERY_JOB_ID="6")
    assert {line.split()[0] for line in inherited} == {"unset"}


# --- which task looks


def test_a_task_that_inherited_the_variables_gets_nothing_more(node: Node) -> None:
    node.tell(RESTART._replace(folder=str(node.checkpoints)))
    assert node.lines(SLURM_STEP_ID="0", SLURM_RECOVERY_JOB_ID="7") == []
    assert node.lines(SLURM_STEP_ID="0", SLURM_RECOVERY_JOB_ID="6", SLURM_HET_JOB_ID="6") == []


def test_of_many_tasks_that_inherited_nothing_none_looks(node: Node) -> None:
    path = node.save("ckpt-100")
    many = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "16"}
    node.tell(Resume(7, 1, folder=str(node.checkpoints)))
    assert node.lines(**many) == []
    for step in ("", "-5", "4294967291", "4294967290"):
        assert node.exports(**many | {"SLURM_STEP_ID": step})["CHECKPOINT"] == str(path)
    assert node.exports(SLURM_STEP_ID="0", SLURM_STEP_NUM_TASKS="1")["CHECKPOINT"] == str(path)
    node.tell(RESTART._replace(checkpoint=str(path), step=100))
    assert set(node.exports(**many)) == {"JOB_ID", "ATTEMPT", "REASON", "EXCLUDED"}


def test_what_another_job_was_told_is_taken_away(node: Node) -> None:
    others = {f"SLURM_RECOVERY_{name}": "6" for name in NAMES}
    assert node.lines(**others) == [f"unset SLURM_RECOVERY_{name}" for name in NAMES]
    node.tell(Resume(7, 2))
    assert node.lines(**others) == [
        "export SLURM_RECOVERY_JOB_ID=7",
        "export SLURM_RECOVERY_ATTEMPT=2",
        *(f"unset SLURM_RECOVERY_{name}" for name in NAMES[2:]),
    ]


# --- trouble


@pytest.fixture
def hung(node: Node) -> Iterator[Path]:
    with hanging(node.checkpoints):
        yield node.checkpoints


def test_a_folder_that_hangs_costs_no_more_than_the_timeout(node: Node, hung: Path) -> None:
    node.tell(RESTART._replace(folder=str(hung), checkpoint=f"{hung}/ckpt-200", step=200))
    began = time.monotonic()
    lines = node.lines()
    taken = time.monotonic() - began
    print(f"{taken:.2f} s of {TIMEOUT:g}")
    assert taken < TIMEOUT + 1
    assert f"export SLURM_RECOVERY_CHECKPOINT={hung}/ckpt-200" in lines, "what the controller knew"
    assert lines[-1].startswith("print slurm_recovery: ")
    node.tell(Resume(7, 1, folder=str(hung)))
    assert node.lines()[0] == "export SLURM_RECOVERY_JOB_ID=7"


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/false", "/bin/cat"])
def test_a_look_that_cannot_be_started_keeps_no_task(open_folder: Path, python: str) -> None:
    node = Node(open_folder, python)
    node.tell(RESTART._replace(folder=str(node.checkpoints)))
    assert node.lines()[:2] == ["export SLURM_RECOVERY_JOB_ID=7", "export SLURM_RECOVERY_ATTEMPT=2"]


def test_without_its_module_or_interpreter_it_exits_0(node: Node) -> None:
    node.tell(RESTART)
    (node.folder / "hooks/slurm_recovery_task_prolog.py").unlink()
    for cached in (node.folder / "hooks/__pycache__").glob("*task_prolog*"):
        cached.unlink()
    assert node.lines() == []
    hook = Path(node.command)
    hook.write_text(hook.read_text().replace(f"python={system_python()}", "python=/nowhere"))
    assert node.lines() == []


def test_nothing_in_the_users_environment_breaks_it(node: Node) -> None:
    node.tell(RESTART)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "os.py").write_text("raise SystemExit(3)")
        (folder / "sitecustomize.py").write_text("print('export A=b')")
        env = dict.fromkeys(("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH"), name)
        env |= {"PATH": "", "ENV": f"{name}/os.py"}
        assert node.exports(**env)["ATTEMPT"] == "2"


# --- what it costs


def test_a_first_attempt_costs_no_more_than_an_interpreters_start(node: Node) -> None:
    bare, ours = [], []
    environment = node.environment | {"SLURM_RECOVERY_LOG": "x" * 1000}
    for _ in range(30):
        for command, times in (([system_python(), "-I", "-S", "-c", "pass"], bare), ([node.command], ours)):
            began = time.perf_counter()
            assert os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn(command[0], command, environment), 0)[1]) == 0
            times.append(time.perf_counter() - began)
    quickest, median = min(ours) / min(bare), statistics.median(ours) / statistics.median(bare)
    print(f"quickest {min(ours) * 1e3:.1f} ms, {quickest:.2f} bare interpreters; by medians {median:.2f}")
    assert quickest <= 1.0


def test_a_restart_costs_less_than_half_a_second(node: Node) -> None:
    path = node.save("ckpt-100")
    node.tell(RESTART._replace(folder=str(node.checkpoints), checkpoint=str(path)))
    times = []
    for _ in range(5):
        began = time.perf_counter()
        assert node.exports()["CHECKPOINT"] == str(path)
        times.append(time.perf_counter() - began)
    print(f"quickest {min(times) * 1e3:.0f} ms")
    assert min(times) < 0.5
