"""Where a job's log is: Slurm's file name patterns, expanded. sbatch(1), "filename pattern". Pure."""

from __future__ import annotations

import os.path
import re

from slurm_recovery.records import Attempt

_SYMBOL = re.compile(r"%(\d{0,2})([%AaJjNnstux])")


def expand_pattern(pattern: str, attempt: Attempt) -> str:
    """The path of the batch step's file for this attempt; relative ones lie in the job's working folder."""
    if not pattern or pattern.endswith(f"/slurm-{attempt.job_id}.out"):  # 22.05 shows the default so, even of arrays
        pattern = "slurm-%A_%a.out" if attempt.array_task_id is not None else "slurm-%j.out"
    values = {
        "%": "%",
        "A": str(attempt.array_job_id or attempt.job_id),
        "a": str(attempt.array_task_id if attempt.array_task_id is not None else 4294967294),  # slurm.h NO_VAL
        "J": str(attempt.job_id),
        "j": str(attempt.job_id),
        "N": (attempt.nodes[0] if attempt.nodes else "").partition(".")[0],
        "n": "0",
        "s": "batch",
        "t": "0",
        "u": attempt.user,
        "x": attempt.name,
    }

    def value(match: re.Match[str]) -> str:
        text = values[match[2]]
        return text.zfill(min(int(match[1]), 10)) if match[1] and text.isdigit() else text

    # A backslash switches the symbols off and is itself removed.
    path = pattern.replace("\\", "") if "\\" in pattern else _SYMBOL.sub(value, pattern)
    return os.path.join(attempt.work_dir or "/", path)


def log_paths(attempt: Attempt, further: str = "") -> tuple[str, ...]:
    """Standard output, standard error where it goes elsewhere, and the pattern of a further log."""
    paths = [expand_pattern(attempt.stdout, attempt)]
    paths += [expand_pattern(pattern, attempt) for pattern in (attempt.stderr, further) if pattern]
    return tuple(dict.fromkeys(paths))
