"""Nobody's job waits for us: releases jobs that we have held for too long, by their marks alone.

For where the record of a hold cannot be read, is gone, or does not get on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import structlog

from slurm_recovery.hooks.spool import Hold, Spool
from slurm_recovery.slurm.port import Slurm

log = structlog.get_logger(__name__)


def overdue(spool: Spool, now: float, patience: float, known: Collection[str] = ()) -> dict[str, Hold]:
    """Holds older than `patience` seconds; twice that for those in `known`, which an open incident looks after.

    One from the future is overdue too: the clock was set back.
    """
    return {
        label: hold
        for label, hold in spool.holds().items()
        if not 0 <= now - hold.since <= (2 * patience if label in known else patience)
    }


def release_holds(slurm: Slurm, spool: Spool, holds: Mapping[str, Hold]) -> None:
    """Release those that are still held; one that is COMPLETING will be held once that is over, so it stays marked."""
    for label, hold in holds.items():
        job = slurm.jobs([hold.job_id]).get(hold.job_id)
        if job is not None and job.completing:
            continue
        if job is not None and job.held and job.label == label:
            log.warning("released by its mark alone", job=label)
            slurm.release(job)
        spool.clear_hold(label)
