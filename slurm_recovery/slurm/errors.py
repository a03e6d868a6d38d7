"""What Slurm can answer instead of doing it. An adapter turns its own errors into these, in one place.

SlurmError
├── SlurmUnavailable   no answer in time, no controller, no command: ask again later, it proves nothing
├── UnknownJob         slurmctld has forgotten the job (slurm.conf(5) MinJobAge), or never knew it
├── AlreadyPending     a requeue of a job that is pending already
├── RequeueDisabled    submitted with --no-requeue, or JobRequeue=0, or not a batch job
├── UnknownNode        slurm.conf has no such node, or it is not the name of one
├── NotPermitted       we are not SlurmUser or root
└── Refused            any other word of Slurm, kept as it was said
"""

from __future__ import annotations


class SlurmError(Exception):
    """Slurm did not do what was asked; the text is Slurm's own, on one line."""


class SlurmUnavailable(SlurmError):
    """No answer. Never to be read as "no such job"."""


class UnknownJob(SlurmError):
    """slurmctld does not know the job (any more)."""


class AlreadyPending(SlurmError):
    """The job is in the queue already."""


class RequeueDisabled(SlurmError):
    """The job may not be requeued."""


class UnknownNode(SlurmError):
    """A host list names a node that does not exist; nothing was changed."""


class NotPermitted(SlurmError):
    """The caller lacks the right."""


class Refused(SlurmError):
    """Slurm said no, in words that have no class of their own."""


# Slurm's texts (slurm_errno.c), which both the commands and the library print.
_TEXTS: tuple[tuple[str, type[SlurmError]], ...] = (
    ("Invalid job id", UnknownJob),
    ("Job is pending execution", AlreadyPending),
    ("Requested operation is presently disabled", RequeueDisabled),
    ("Only batch jobs are accepted", RequeueDisabled),
    ("Invalid node name", UnknownNode),
    ("Invalid user id", NotPermitted),
    ("Access/permission denied", NotPermitted),
    ("Operation not permitted", NotPermitted),
    ("Unable to contact slurm controller", SlurmUnavailable),
    ("Unable to establish configuration source", SlurmUnavailable),
    ("Unable to process configuration file", SlurmUnavailable),
    ("Transport endpoint is not connected", SlurmUnavailable),
    ("Connection refused", SlurmUnavailable),
    ("Socket timed out", SlurmUnavailable),
    ("Unexpected message received", SlurmUnavailable),  # what scontrol says where no slurmctld answers
    ("Zero Bytes were transmitted", SlurmUnavailable),
    ("Slurm controller is in standby mode", SlurmUnavailable),
    ("Slurm backup controller in standby mode", SlurmUnavailable),
    ("Slurm temporarily unable to accept job", SlurmUnavailable),
    ("Protocol authentication error", SlurmUnavailable),
)


def from_text(what: str, text: str) -> SlurmError:
    """The error that Slurm's text stands for, e.g. `scontrol requeuehold 12: Job is pending execution`."""
    said = " ".join(text.split())[:300] or "no message"
    kind = next((kind for words, kind in _TEXTS if words in text), Refused)
    return kind(f"{what}: {said}")
