"""`srecover drill`: a rehearsal of recovery, with a job of our own that fails on purpose.

Owns the command line and the table. The drills and their steps are drill/'s.
"""

from __future__ import annotations

import os
import pwd
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurm_recovery.cli.common import CommandError, Context, Json, NoHeader, common_of, is_ours, say_error
from slurm_recovery.cli.tables import Column, lines, say, say_json

if TYPE_CHECKING:
    from slurm_recovery.cli.owner import Account
    from slurm_recovery.drill.drills import Drill
    from slurm_recovery.drill.rehearsal import Rehearsal, Row
    from slurm_recovery.records import Verdict

CANNOT = 2  # exit status, as of a wrong command line
COLUMNS = (
    Column("DRILL", 8),
    Column("STEP", 11),
    Column("RESULT", 6),
    Column("SECONDS", 7, right=True),
    Column("DETAIL", 0),
)


def drill(
    ctx: typer.Context,
    partition: Annotated[
        str, typer.Option("--partition", "-p", metavar="NAME", help="The partition in which to rehearse.")
    ],
    scenario: Annotated[
        str,
        typer.Option(
            "--scenario",
            "-s",
            metavar="NAME[,NAME...]",
            help="Only these drills. Without it: all that the site is set up for; the others are skipped.",
        ),
    ] = "",
    nodes: Annotated[int, typer.Option("--nodes", "-N", min=2, metavar="NUMBER", help="Nodes of the job.")] = 2,
    expect: Annotated[
        str,
        typer.Option(
            metavar="NAME=VERDICT[,...]",
            help="What must be done after that drill's failure, whatever recovery.conf says: requeue_exclude, requeue, "
            "stop or none. Advice alone (Mode=observe) does not pass then.",
        ),
    ] = "",
    timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="The longest that the job may wait in the queue, each time.")
    ] = 300.0,
    within: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="The longest that each step of a recovery may take.")
    ] = 30.0,
    sweep_within: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="The longest until the next sweep has been.")
    ] = 150.0,
    uid: Annotated[
        str,
        typer.Option(
            "--uid",
            metavar="USER",
            help="Submit as this user; only root may. Without it: the user who called sudo, else yourself.",
        ),
    ] = "",
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            metavar="FOLDER",
            help="Where the job's log lies, in a folder of its own; the nodes must see it. Without it: the home folder "
            "of the job's user.",
        ),
    ] = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="A further option of sbatch, such as --account=ops; may be repeated."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the job's folder there. It stays anyway where something failed.")
    ] = False,
    noheader: NoHeader = False,
    as_json: Json = False,
) -> None:
    """Rehearse recovery: let a harmless job of our own fail on purpose, and check each step of what becomes of it.

    The job runs a small sh script, by sbatch, on two nodes of the named partition. In its first run it fails as the
    drill says; restarted, it ends well. What must happen is what recovery.conf says of that partition: under
    Mode=observe the advice must be on record, and the job must stay as it ended; Action of a Reason line, MaxRequeues
    and the other settings count as for any job. One line a step is printed: pass, fail or skip, the seconds since the
    job was submitted, what was seen, and where to look. A drill ends with its first failure.

    The drills: ecc (a rank prints CUDA's line of an uncorrectable ECC error; its node must be named, and excluded),
    killed (a rank is killed by SIGKILL), hang (a rank hangs, the others print NCCL's watchdog lines and abort), stop (a
    Python error that no restart would help), evidence (the reports of all nodes must be in the record; needs
    EvidenceDir), corrupt (the newest of two checkpoints cannot be loaded: the restart must be told the one before;
    needs EvidenceDir and TaskProlog), sweep (the job ends well: its event starts no worker, so the sweep must take it
    up).

    No node is drained for what a job's log says, and failures of jobs of this name (srecover-drill) are not held
    against the nodes they ran on; a fault that the node's own kernel or NVML tells of counts as ever. Each restart does
    count in MaxRequeuesPerHour and MaxRequeuesPerUserHour (a whole rehearsal: up to 4), and where these are used up the
    drill fails and says so. For ecc the partition should have a node more than the job, or there is nothing to go to.
    A restart without a node to exclude waits for Backoff.

    Run it on the controller as root or SlurmUser. Our jobs are cancelled and their folder removed at the end, also
    after Ctrl-C. Exit status 0: all passed (or skipped); 1: something failed; 2: the drill could not be held.
    """
    chosen = _chosen(scenario)
    wanted = _wanted(expect)
    common = common_of(ctx)
    rows: list[Row] = []
    try:
        with _ended_by_signals(), _rehearsal(
            common, partition, nodes, uid, folder, (timeout, within, sweep_within), sbatch or (), wanted
        ) as rehearsal:
            if scenario:
                _refuse_impossible(chosen, rehearsal)
            if not (noheader or as_json):
                say(next(lines(COLUMNS, ())))
            rows += _held(rehearsal, chosen, keep=keep, quiet=as_json)
    except KeyboardInterrupt:
        say_error("interrupted; the drill's jobs are cancelled")
        raise typer.Exit(1) from None
    except Exception as error:
        if not is_ours(error):
            raise
        say_error(str(error))
        raise typer.Exit(CANNOT) from error
    if as_json:
        say_json([row._asdict() | {"seconds": round(row.seconds, 2)} for row in rows])
    if any(row.result == "fail" for row in rows):
        raise typer.Exit(1)


def _chosen(names: str) -> list[Drill]:
    from slurm_recovery.drill.drills import DRILLS

    wanted = [name for name in names.split(",") if name]
    for name in wanted:
        _known(name, "--scenario")
    return [DRILLS[name] for name in dict.fromkeys(wanted)] or list(DRILLS.values())


def _known(name: str, option: str) -> None:
    from slurm_recovery.drill.drills import DRILLS

    if name not in DRILLS:
        raise typer.BadParameter(f"no drill {name!r}; there are {', '.join(DRILLS)}", param_hint=option)


def _wanted(text: str) -> dict[str, Verdict]:
    from slurm_recovery.records import Verdict

    found = {}
    for pair in filter(None, text.split(",")):
        name, _, verdict = pair.partition("=")
        _known(name, "--expect")
        try:
            found[name] = Verdict(verdict)
        except ValueError:
            known = ", ".join(one.value for one in Verdict)
            why = f"{name}={verdict}: the verdict is one of {known}"
            raise typer.BadParameter(why, param_hint="--expect") from None
    return found


@contextmanager
def _rehearsal(
    common: Context,
    partition: str,
    nodes: int,
    uid: str,
    folder: Path | None,
    limits: tuple[float, float, float],
    options: Sequence[str],
    wanted: Mapping[str, Verdict],
) -> Iterator[Rehearsal]:
    """Everything that a drill needs, opened. Raises DrillError, ConfigError, StoreError, SlurmError."""
    from slurm_recovery.cli.cluster import Cluster
    from slurm_recovery.drill.place import Place
    from slurm_recovery.drill.rehearsal import Limits, Rehearsal

    config = common.config()
    user = _account(uid)
    cluster = Cluster(config.settings)
    if cluster.unreachable:
        raise CommandError(f"slurmctld: {cluster.unreachable}")
    _refuse_small(cluster, partition, nodes)
    with common.store() as store:
        yield Rehearsal(
            config=config,
            cluster=cluster.config["clustername"],
            partition=partition,
            slurm_conf=cluster.config,
            slurm=cluster.commands,
            store=store,
            place=Place.make(user.uid, folder or Path(pwd.getpwuid(user.uid).pw_dir)),
            user=user,
            nodes=nodes,
            limits=Limits(*limits),
            options=options,
            wanted=wanted,
        )


def _account(name: str) -> Account:
    """Whose job it shall be. Raises CommandError."""
    from slurm_recovery.cli.owner import account

    own = pwd.getpwuid(os.geteuid()).pw_name
    wanted = name or (os.environ.get("SUDO_USER", "") if os.geteuid() == 0 else "") or own
    if wanted != own and os.geteuid() != 0:
        raise CommandError("only root can submit as another user; hint: sudo srecover drill --uid USER")
    try:
        return account(wanted)
    except KeyError:
        raise CommandError(f"--uid {wanted}: no such user here") from None


def _refuse_small(cluster: Any, partition: str, nodes: int) -> None:
    """A partition that is not there, or whose nodes are away, says nothing of recovery."""
    there = [node for node in cluster.commands.nodes().values() if partition in node.partitions]
    if not there:
        raise CommandError(f"--partition {partition}: Slurm has no such partition, or it has no nodes; hint: sinfo")
    serving = [node for node in there if not node.away]
    if len(serving) < nodes:
        raise CommandError(f"partition {partition} has {len(serving)} nodes in service, the drill needs {nodes}")


def _refuse_impossible(chosen: Sequence[Drill], rehearsal: Rehearsal) -> None:
    """A drill that was asked for by name is not skipped in silence."""
    for one in chosen:
        if lacking := one.missing(rehearsal.config, rehearsal.slurm_conf, rehearsal.partition):
            rehearsal.place.remove()
            raise CommandError(f"drill {one.name}: {lacking}")


def _held(rehearsal: Rehearsal, chosen: Sequence[Drill], *, keep: bool, quiet: bool) -> list[Row]:
    rows: list[Row] = []
    try:
        for one in chosen:
            for row in rehearsal.hold(one):
                rows.append(row)
                if not quiet:
                    say(next(lines(COLUMNS, [_cells(row)], header=False)))
    finally:
        rehearsal.clean()
        failed = any(row.result == "fail" for row in rows)
        if not keep and not failed:
            rehearsal.place.remove()
        elif not quiet:
            say(f"the logs stay in {rehearsal.place.folder}")
    return rows


def _cells(row: Row) -> tuple[object, ...]:
    hint = f"; hint: {row.hint}" if row.hint else ""
    return row.drill, row.step, row.result, f"{row.seconds:.1f}", row.detail + hint


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end a drill as Ctrl-C does: its jobs are cancelled."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    former = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
