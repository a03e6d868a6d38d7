"""What TaskProlog starts as the job's user: which checkpoint does this attempt start from?

Owns the order: the one that the job was told, if it is complete still; else the newest complete one in its folder, but
for those that did not load. Prints NAME=VALUE lines, then a line `.`; without that nothing was seen that counts, and
what the job was told holds: a job that starts anew by mistake loses more than one that fails to load.
TaskProlog ends it when its time is over. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence

from slurm_recovery.checkpoint.found import Rule, Saved
from slurm_recovery.node.checkpoints import rules_of
from slurm_recovery.node.told import starting_point
from slurm_recovery.resume import MOST_BYTES, Resume, decode

END = b".\n"
SHARE = 0.8  # of the time given, for looking: then what was found so far is said


def main(arguments: Sequence[str]) -> int:
    began = time.monotonic()
    parser = argparse.ArgumentParser(prog="slurm_recovery.node.look", description=__doc__, allow_abbrev=False)
    parser.add_argument("--timeout", type=float, default=5.0)
    parser.add_argument("--checkpoint-formats", default="[]")
    parser.add_argument("file")
    asked = parser.parse_args(arguments)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, asked.timeout + 1)
    with open(asked.file, "rb") as file:
        resume = decode(file.readline(MOST_BYTES + 1))
    if resume is None:
        return 1
    try:
        saved = choose(resume, rules_of(asked.checkpoint_formats), began + asked.timeout * SHARE)
    except NotSeen:
        return 1
    lines = starting_point(saved.path, saved.step) if saved else []
    os.write(1, b"".join(line + b"\n" for line in lines) + END)
    return 0


class NotSeen(Exception):
    """Too little of the folder was seen to say that there is none."""


def choose(resume: Resume, rules: Sequence[Rule], deadline: float) -> Saved | None:
    """None: there is no complete one. `deadline` is a time of time.monotonic(). Raises NotSeen."""
    from slurm_recovery.checkpoint.search import find, judge

    refused = resume.refused
    if resume.checkpoint:
        half = (time.monotonic() + deadline) / 2
        told = judge(resume.checkpoint, rules, deadline=half)
        if isinstance(told, Saved):
            return told if told.step is not None else told._replace(step=resume.step)
        if time.monotonic() >= half:
            raise NotSeen
        refused = (*refused, resume.checkpoint)
    if not resume.folder:
        return None
    found = find(resume.folder, rules, refused=refused, deadline=deadline)
    if found.newest is None and found.gaps:
        if not resume.checkpoint and not os.path.lexists(resume.folder):
            return None  # the job makes it
        raise NotSeen
    return found.newest


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
