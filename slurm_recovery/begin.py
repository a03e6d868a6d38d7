"""Tells the nodes what a restarted job begins from, just before it is released.

Owns how long that may take: EvidenceDir is a shared file system, and one that hangs must not keep the job. What the
file says, and its form, is resume.py's.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from slurm_recovery.evidence.as_user import Child, TooLate, Write
from slurm_recovery.resume import Resume, write_resume


def tell_nodes(evidence_dir: Path, resume: Resume, timeout: float) -> str:
    """"" when it is written, else why not. At most `timeout` seconds."""

    def work(write: Write) -> None:
        write_resume(evidence_dir, resume)
        write(b"+")

    try:
        with Child(work, os.geteuid(), time.monotonic() + timeout) as child:
            answer = child.read(1000)
    except TooLate:
        return f"no answer within {timeout:g} s"
    except OSError as error:
        return str(error)
    return "" if answer == b"+" else answer[1:].decode(errors="replace") or "the writer died"


def said(resume: Resume) -> str:
    """One line for the record; "" where there is nothing to begin from, and nothing not to."""
    step = "" if resume.step is None else f" (step {resume.step})"
    begin = f"from {resume.checkpoint}{step}" if resume.checkpoint else "from what the job's start finds"
    refused = f", not from {', '.join(resume.refused)}" if resume.refused else ""
    return f"attempt {resume.attempt} begins {begin}{refused}" if resume.checkpoint or refused else ""
