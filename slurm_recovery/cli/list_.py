"""`srecover list`: incidents as a table, newest first."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurm_recovery.cli import tables
from slurm_recovery.cli.common import Json, NoHeader, common_of
from slurm_recovery.cli.tables import Column
from slurm_recovery.cli.times import FORMS, moment, shown

if TYPE_CHECKING:
    from slurm_recovery.records import Incident, Stage


def list_incidents(
    ctx: typer.Context,
    user: Annotated[str | None, typer.Option("--user", "-u", metavar="NAME", help="Only this user's jobs.")] = None,
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", metavar="NAME", help="Only jobs of this partition.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", "-M", metavar="NAME", help="Only jobs of this cluster.")
    ] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", "-r", metavar="CODE", help="Only failures for this reason.")
    ] = None,
    stage: Annotated[
        str | None,
        typer.Option("--stage", "-s", metavar="STAGE[,STAGE...]", help="Only incidents that stand at these stages."),
    ] = None,
    is_open: Annotated[bool, typer.Option("--open", help="Only incidents that are not closed yet.")] = False,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help=f"Only incidents recorded since then; {FORMS}."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, metavar="NUMBER", help="At most so many, the newest.")
    ] = 100,
    noheader: NoHeader = False,
    as_json: Json = False,
) -> None:
    """List failed jobs, why they failed, and what became of them.

    One line an attempt, newest first. STAGE says where it stands; MODE is act, or observe where nothing was
    done and the verdict is advice only; EXCLUDED are the nodes that the restarted job is kept off.
    """
    import time

    stages = _stages(stage, is_open)
    try:
        begin = moment(since, time.time()) if since else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--since") from None
    with common_of(ctx).store() as store:
        found = store.list(
            cluster, limit=limit, user=user, partition=partition, since=begin, stages=stages, reason=reason
        )
    if as_json:
        tables.say_json([summary(incident) for incident in found])
    else:
        tables.say_table(_columns(), map(_row, found), header=not noheader)


def _stages(text: str | None, is_open: bool) -> Collection[Stage] | None:
    """The stages that both options leave; None: all."""
    from slurm_recovery.records import Stage

    chosen = set(Stage)
    if text is not None:
        try:
            chosen &= {Stage(word.strip().lower()) for word in text.split(",") if word.strip()}
        except ValueError as error:
            known = ", ".join(one.value for one in Stage)
            raise typer.BadParameter(f"{error}; the stages are {known}", param_hint="--stage") from None
    if is_open:
        chosen &= {one for one in Stage if one.open}
    return chosen if text is not None or is_open else None


def _columns() -> tuple[Column, ...]:
    """JOBID and the words of our own vocabulary are never cut."""
    from slurm_recovery.attribute.reasons import REASONS
    from slurm_recovery.records import Stage, Verdict

    return (
        Column("JOBID", 12, right=True),
        Column("ATTEMPT", 7, right=True),
        Column("PARTITION", 9),
        Column("USER", 8),
        Column("STAGE", max(len(stage.value) for stage in Stage)),
        Column("REASON", max(map(len, REASONS))),
        Column("VERDICT", max(len(verdict.value) for verdict in Verdict)),
        Column("MODE", 7),
        Column("ENDED", 19),
        Column("EXCLUDED", 0),
    )


def _row(incident: Incident) -> tuple[object, ...]:
    attempt, decision = incident.attempt, incident.decision
    return (
        attempt.label,
        attempt.restart_count,
        attempt.partition,
        attempt.user,
        incident.stage.value,
        incident.attribution.reason if incident.attribution else "",
        decision.verdict.value if decision else "",
        mode_of(incident),
        shown(attempt.end_time),
        folded(decision.exclude if decision else ()),
    )


def mode_of(incident: Incident) -> str:
    """The mode that the decision was made in."""
    if incident.decision is None:
        return ""
    if incident.decision.basis == "mode_off":
        return "off"
    return "act" if incident.decision.act else "observe"


def folded(nodes: Collection[str]) -> str:
    """The nodes as one host list; as they are where a name is none."""
    from slurm_recovery.slurm.hostlist import HostlistError, fold

    try:
        return fold(nodes)
    except HostlistError:
        return ",".join(nodes)


def summary(incident: Incident) -> dict[str, Any]:
    """An incident without its observation, as data."""
    attempt, attribution, decision = incident.attempt, incident.attribution, incident.decision
    return {
        "incident": incident.id,
        "job": attempt.label,
        "job_id": attempt.job_id,
        "cluster": attempt.cluster,
        "attempt": attempt.restart_count,
        "partition": attempt.partition,
        "user": attempt.user,
        "state": attempt.state,
        "exit_code": f"{attempt.exit_code}:{attempt.signal}",
        "nodes": list(attempt.nodes),
        "start_time": attempt.start_time,
        "end_time": attempt.end_time,
        "stage": incident.stage.value,
        "category": attribution.category.value if attribution else None,
        "reason": attribution.reason if attribution else None,
        "suspect_nodes": list(attribution.suspect_nodes) if attribution else [],
        "root_rank": attribution.root_rank if attribution else None,
        "verdict": decision.verdict.value if decision else None,
        "basis": decision.basis if decision else None,
        "because": decision.because if decision else None,
        "mode": mode_of(incident) or None,
        "excluded": list(decision.exclude) if decision else [],
        "times": incident.times,
        "note": incident.note,
    }
