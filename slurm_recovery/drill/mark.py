"""How a drill's job is known: by its name, which anyone may choose.

So it gives nothing but what its owner may have anyway: that its failures do not count against the nodes it ran on.
"""

from __future__ import annotations

from slurm_recovery.records import Attempt

JOB_NAME = "srecover-drill"


def is_drill(attempt: Attempt) -> bool:
    return attempt.name == JOB_NAME
