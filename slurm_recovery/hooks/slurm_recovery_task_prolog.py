"""What TaskProlog does for a task whose job is told something: prints it as `export` and `unset` lines for slurmstepd.

Standard library only; `srecover setup` copies this file beside the hooks. It runs as the job's user, before each task
of such a job that has not inherited the variables from its batch script. slurmstepd ends a task whose TaskProlog fails,
and takes every line of standard output and of standard error for a command: so it exits 0, and a value that could pass
for more than one line is not printed. The user's file system is touched by a child only, which is given up when
`timeout` is over.
"""

import os
import time

import slurm_recovery_node_hook as watchdog  # type: ignore[import-not-found]

PREFIX = b"SLURM_RECOVERY_"
NAMES = tuple(PREFIX + name for name in (b"JOB_ID", b"ATTEMPT", b"REASON", b"EXCLUDED", b"CHECKPOINT", b"STEP"))
ATTEMPT, FOUND = NAMES[1], NAMES[4:]
# What sbatch left in the job's environment, and srun takes for its own: a restart on fewer nodes has fewer tasks.
TASKS = (b"SLURM_NTASKS", b"SLURM_NPROCS")
NO_ANSWER = b"slurm_recovery: the job's folder of checkpoints could not be looked at in time (TaskPrologTimeout)"
MOST_BYTES = 2 << 20
MOST_ANSWER = 64 << 10  # what a pipe holds: the child never waits for us
# Steps of one shell. 22.05 numbers the interactive one 2**32-6; 26.05 counts the batch step, too, from 0 downwards
BATCH, INTERACTIVE = b"batch", b"interactive"


def run(settings: dict[str, object], parent: str) -> None:
    """Ends the process. `parent` is the process that started TaskProlog.

    `run_dir`: RunDir, `%n` for the node's name. `look`: the command line that looks for a checkpoint, to which the file
    is added, `environment` what it gets besides Slurm's variables. `timeout` is in seconds.
    """
    try:
        lines = told(settings, parent)
        while lines:
            lines = lines[os.write(1, lines) :]
    except BaseException:  # noqa: BLE001  # whatever it is, the task must start
        pass
    os._exit(0)


def told(settings: dict[str, object], parent: str) -> bytes:
    """All lines for slurmstepd."""
    timeout = settings["timeout"]
    assert isinstance(timeout, (int, float))
    deadline = time.monotonic() + timeout
    path = str(settings["run_dir"]).replace("%n", os.environ.get("SLURMD_NODENAME", ""))
    path = f"{path}/{os.environ['SLURM_JOB_ID']}"
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    written = os.read(handle, MOST_BYTES).split(b"\n")[1:]
    values = assigned(written)
    trouble = b""
    if looks_alone(parent):
        answer = look(settings, path, deadline) if b"LOOK" in written else {}
        if answer is None:
            trouble = b"print " + NO_ANSWER + b"\n"
        else:
            values = {name: value for name, value in values.items() if name not in FOUND} | answer
    elif ATTEMPT in values:
        values = {name: value for name, value in values.items() if name not in FOUND}
    else:
        return b""
    lines = [b"export %s=%s\n" % (name, values[name]) for name in NAMES if name in values]
    if in_shell(parent):
        tasks = assigned(written, TASKS)
        lines += [b"export %s=%s\n" % (name, tasks[name]) for name in tasks if name in os.environb]
    # Left of another job, from which this one was submitted.
    lines += [b"unset %s\n" % name for name in NAMES if name not in values and name in os.environb]
    return b"".join(lines) + trouble


def assigned(lines: list[bytes], names: tuple[bytes, ...] = NAMES) -> dict[bytes, bytes]:
    """Of NAME=VALUE lines those that are ours and can be one line of slurmstepd's."""
    pairs = (line.partition(b"=")[::2] for line in lines)
    return {name: value for name, value in pairs if name in names and value and is_one_line(value)}


def is_one_line(value: bytes) -> bool:
    return not any(code < 32 or code == 127 for code in value)


def looks_alone(parent: str) -> bool:
    """Whether this is the batch step, an interactive one, or a step of one task. Of many tasks none looks, for they
    might see different checkpoints; they have the variables from their batch script, or, by srun alone, not at all.
    """
    return in_shell(parent) or os.environ.get("SLURM_STEP_NUM_TASKS") == "1"


def in_shell(parent: str) -> bool:
    """Whether this is the batch step, or an interactive one.

    slurmstepd's title says which step it is, as `slurmstepd: [7.batch]`. On 22.05 SLURM_STEP_ID may be another job's.
    """
    try:
        handle = os.open(f"/proc/{int(parent)}/cmdline", os.O_RDONLY | os.O_CLOEXEC)
        title = os.read(handle, 256)
    except (OSError, ValueError):
        title = b""
    name = title.partition(b"[")[2].partition(b"]")[0].rpartition(b".")[2]
    if title.startswith(b"slurmstepd:") and name:
        return name in (BATCH, INTERACTIVE)
    step = os.environ.get("SLURM_STEP_ID", "")  # a script of the site's calls us
    return not step or step.startswith("-") or step in ("4294967291", "4294967290")


def look(settings: dict[str, object], path: str, deadline: float) -> dict[bytes, bytes] | None:
    """What the child found; None where it gave no answer in time."""
    command, environment = settings["look"], settings["environment"]
    assert isinstance(command, list)
    assert isinstance(environment, dict)
    watchdog.open_standard_files()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        watchdog.become([*command, path], environment, writing, answers=True)
    os.close(writing)
    os.set_blocking(reading, False)
    if watchdog.wait(child, reading, deadline) != 0:
        return None
    try:
        lines = os.read(reading, MOST_ANSWER).split(b"\n")
    except BlockingIOError:
        return None
    return assigned(lines) if lines[-2:] == [b".", b""] else None
