"""Slurm's texts become one of our errors, on one line."""

from __future__ import annotations

import pytest

from slurm_recovery.slurm.errors import (
    AlreadyPending,
    NotPermitted,
    Refused,
    RequeueDisabled,
    SlurmError,
    SlurmUnavailable,
    UnknownJob,
    UnknownNode,
    from_text,
)

# As printed by scontrol, squeue and scancel of Slurm 22.05 and 26.05, or given by slurm_strerror.
SAID = [
    ("Invalid job id specified for job 9999", UnknownJob),
    ("slurm_load_jobs error: Invalid job id specified", UnknownJob),
    ("Invalid job id specified for job 9999\nslurm_suspend error: Invalid job id specified", UnknownJob),
    ("Job is pending execution for job 18", AlreadyPending),
    ("21_3: Job is pending execution", AlreadyPending),
    ("20_[3]: Job is pending execution", AlreadyPending),
    ("Requested operation is presently disabled for job 20", RequeueDisabled),
    ("Only batch jobs are accepted or processed for job 25", RequeueDisabled),
    ("Invalid node name specified for job 18", UnknownNode),
    ("21_3: Invalid node name specified", UnknownNode),
    ("Access/permission denied for job 7", NotPermitted),
    ("Invalid user id", NotPermitted),
    ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", SlurmUnavailable),
    ("Socket timed out on send/recv operation", SlurmUnavailable),
    ("Protocol authentication error", SlurmUnavailable),
    ("Job not heterogeneous job leader for job 12", Refused),
    ("Job has already finished for job 12", Refused),
    ("", Refused),
]


@pytest.mark.parametrize(("text", "kind"), SAID)
def test_what_slurm_says(text: str, kind: type[SlurmError]) -> None:
    error = from_text("scontrol requeuehold 7", text)
    assert type(error) is kind
    assert str(error).startswith("scontrol requeuehold 7: ")


def test_the_message_is_one_short_line() -> None:
    assert str(from_text("x", "a\n b\t c ")) == "x: a b c"
    assert len(str(from_text("x", "long " * 1000))) < 310
    assert str(from_text("x", "")) == "x: no message"
