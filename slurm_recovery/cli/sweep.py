"""`srecover sweep`: take up every event and every unfinished incident that no live worker owns."""

from __future__ import annotations

import os
import time
from typing import Annotated

import typer

from slurm_recovery.cli.common import CommandError, Context
from slurm_recovery.cli.owner import become_owner
from slurm_recovery.hooks.spool import Spool

LAST_SWEEP = "last_sweep"  # in StateDir; `srecover check` looks at its age


def sweep(
    ctx: typer.Context,
    timeout: Annotated[float, typer.Option(help="Seconds after which the rest is left to the next sweep.")] = 50.0,
) -> None:
    """Finish what is unfinished: events of dead workers, holds that are overdue, restarts under way.

    Where EvidenceDir is set it also reads the nodes' new health checks, and resumes nodes that we drained and that are
    found well again.

    Run it every minute (conf/slurm-recovery-sweep.timer), as SlurmUser or root. While a worker lives it waits
    for it.
    """
    from slurm_recovery.worker import configure_log, work

    common: Context = ctx.obj
    config = common.config()
    configure_log()
    spool = Spool(config.settings.state_dir)
    deadline = time.monotonic() + timeout
    become_owner(config.settings.state_dir)
    if not os.access(config.settings.state_dir, os.W_OK):
        raise CommandError(f"{config.settings.state_dir}: only SlurmUser and root can sweep; hint: sudo srecover sweep")
    os.umask(0o077)
    with spool.lock(wait=timeout) as got:
        if not got:
            typer.echo(f"a worker has been busy for {timeout:g} s; it will do the rest", err=True)
            return
        work(config, spool, deadline, watch=True)
        (config.settings.state_dir / LAST_SWEEP).touch()
