"""recovery.conf as a commented sample, made from the declarations of the settings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from slurm_recovery.config.settings import Settings

_HEAD = """\
# recovery.conf: settings of slurm_recovery, in the tongue of slurm.conf. See recovery.conf(5).
# Every key is shown with its default; take the # away to change it. After a change: srecover setup
"""
_TAIL = """\
# One partition, or a list of them, may differ:
#PartitionName=train Mode=act MaxRequeues=10

# What to do for one reason (srecover explain --rules lists them):
#Reason=nccl_timeout Action=requeue MaxRequeues=2

# A kind of checkpoint of your own; {step} stands for its step:
#CheckpointFormat=mine Pattern=ckpt-{step} Marker=DONE
"""


def defaults() -> dict[str, str]:
    """{key: its default as recovery.conf writes it}, in the order of declaration."""
    values = Settings().model_dump(mode="json", by_alias=True)
    return {key: "" if value is None else str(value) for key, value in values.items()}


def sample() -> str:
    """The whole file."""
    return "\n".join([_HEAD, *_entries(), _TAIL])


def _entries() -> Iterator[str]:
    values = defaults()
    for name, field in Settings.model_fields.items():
        key = field.alias or name
        yield textwrap.fill(field.description or "", 100, initial_indent="# ", subsequent_indent="# ")
        yield f"#{key}={values[key]}\n"
