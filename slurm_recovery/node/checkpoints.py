"""A job's folder of checkpoints, as its batch node sees it: which it is, and what is in it in the form of a report.

Owns how a node finds the folder, and the form of node_report.Checkpoints. Looks as the job's user, in a process that is
given up when its time is over; what is a checkpoint, and which is complete, is checkpoint/search.py's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from slurm_recovery.checkpoint.found import Passed, Rule, Saved
from slurm_recovery.job_options import CHECKPOINT, allowed, read_options

SOURCE = "checkpoint"  # records.Source.CHECKPOINT
MOST_PATH = 4096
MOST_LISTED = 32
MOST_STEP = 1 << 63


def folder_of(environment: Mapping[str, str], permitted: bool) -> str:
    """The folder that the job's owner named, by the variables of a node hook; "" for none. `permitted`: JobOptions."""
    spank = {name: value for name, value in environment.items() if name.startswith("SPANK_RECOVERY")}
    options = read_options(environment.get("SLURM_JOB_COMMENT", ""), spank)
    return allowed(options, (CHECKPOINT,) if permitted else ()).checkpoint


def rules_of(text: str) -> list[Rule]:
    """The site's own formats, as setup writes them on a command line: JSON, a list of [name, pattern, marker]."""
    return [Rule(*map(str, one)) for one in json.loads(text)]


def look(folder: str, rules: list[Rule], deadline: float) -> dict[str, Any]:
    """`checkpoints`, and `gaps`. As the job's user."""
    from slurm_recovery.checkpoint.search import find

    try:
        os.stat(folder)
    except FileNotFoundError:
        if os.path.lexists(folder):
            return {"gaps": [gap(folder, "a link that leads nowhere")]}
        return {"checkpoints": _form(folder, None, (), ())}  # nothing was ever saved
    found = find(folder, rules, deadline=deadline)
    return {
        "checkpoints": _form(folder, found.newest, found.earlier, found.passed),
        "gaps": [gap(folder, why) for why in found.gaps[:MOST_LISTED]],
    }


def gap(folder: str, why: str) -> dict[str, str]:
    return {"source": SOURCE, "what": printable(folder)[:MOST_PATH], "why": printable(why)[:500]}


def printable(text: str) -> str:
    """A user's text that every reader of JSON takes."""
    return text.encode(errors="backslashreplace").decode()


def _form(folder: str, newest: Saved | None, earlier: tuple[Saved, ...], passed: tuple[Passed, ...]) -> dict[str, Any]:
    return {
        "folder": printable(folder)[:MOST_PATH],
        "newest": _saved(newest) if newest else None,
        "earlier": [_saved(one) for one in earlier[:MOST_LISTED]],
        "passed": [
            {"path": printable(one.path)[:MOST_PATH], "why": printable(one.why)[:500]} for one in passed[:MOST_LISTED]
        ],
    }


def _saved(saved: Saved) -> dict[str, Any]:
    step = saved.step if saved.step is not None and 0 <= saved.step < MOST_STEP else None
    return {
        "path": printable(saved.path)[:MOST_PATH],
        "format": printable(saved.format)[:64],
        "step": step,
        "began": saved.began,
        "time": saved.time,
    }
