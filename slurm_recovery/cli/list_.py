"""`srecover list`: incidents as a table, newest first."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurm_recovery.cli import tables
from slurm_recovery.cli.common import Cluster, Json, NoHeader, Partition, User, common_of
from slurm_recovery.cli.tables import Column
from slurm_recovery.cli.times import FORMS, moment, short, shown

if TYPE_CHECKING:
    from slurm_recovery.records import Incident, Stage

# JOBID and the words of our own vocabulary are never cut.
COLUMNS = (
    Column("JOBID", 0, right=True),
    Column("A", 0, right=True),
    Column("PART", 9),
    Column("USER", 8),
    Column("STAGE", 0),
    Column("REASON", 0),
    Column("VERDICT", 0),
    Column("ENDED", 0),
    Column("EXCLUDED", 0),
)
LONG_COLUMNS = (
    Column("INCIDENT", 0, right=True),
    Column("JOBID", 0, right=True),
    Column("ATTEMPT", 0, right=True),
    Column("PARTITION", 0),
    Column("USER", 0),
    Column("STAGE", 0),
    Column("REASON", 0),
    Column("VERDICT", 0),
    Column("MODE", 0),
    Column("ENDED", 0),
    Column("EXCLUDED", 0),
)


def list_incidents(
    ctx: typer.Context,
    user: User = None,
    partition: Partition = None,
    cluster: Cluster = None,
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
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="NUMBER", help="At most so many, the newest.")] = 100,
    long: Annotated[bool, typer.Option("--long", "-l", help="All columns, and all of each.")] = False,
    noheader: NoHeader = False,
    as_json: Json = False,
) -> None:
    """List failed jobs, why they failed, and what became of them.

    One line an attempt, newest first. A is the attempt: how often the job had been restarted before. STAGE says
    where the failure stands now; restarted: the job ran again, whatever it does since. VERDICT is what was decided:
    requeue, stop or none. EXCLUDED are the nodes that the restarted job is really kept off, or would be, where the
    decision is advice only. Columns are as wide as their text; for scripts there is --json.

    With --long, INCIDENT is the number for show --incident, requeue_exclude is told from requeue, and MODE is act,
    observe (nothing was done, the verdict is advice only) or off.
    """
    import time

    if limit < 1:
        raise typer.BadParameter(
            f"{limit} incidents cannot be listed; give 1 or more, or leave the option out", param_hint="--limit"
        )
    reason = _known(reason) if reason is not None else None
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
        return
    rows = [_long_row(incident) if long else _row(incident) for incident in found]
    tables.say_table(tables.fitted(LONG_COLUMNS if long else COLUMNS, rows), rows, header=not noheader)


def _known(reason: str) -> str:
    from difflib import get_close_matches

    from slurm_recovery.attribute.reasons import REASONS

    code = reason.strip().lower()
    if code not in REASONS:
        close = get_close_matches(code, list(REASONS), n=1)
        hint = f"did you mean {close[0]}?" if close else "srecover explain --rules lists all"
        raise typer.BadParameter(f"no reason is called {tables.harmless(reason)}; {hint}", param_hint="--reason")
    return code


def _stages(text: str | None, is_open: bool) -> Collection[Stage] | None:
    """The stages that both options leave; None: all."""
    from slurm_recovery.cli.standing import STAGES, stage_word
    from slurm_recovery.records import Stage

    chosen = set(Stage)
    if text is not None:
        words = [word.strip().lower() for word in text.split(",") if word.strip()]
        if unknown := [word for word in words if word not in STAGES]:
            known = ", ".join(stage_word(one) for one in Stage)
            raise typer.BadParameter(
                f"no stage is called {tables.harmless(unknown[0])}; the stages are {known}", param_hint="--stage"
            )
        chosen &= {STAGES[word] for word in words}
    if is_open:
        chosen &= {one for one in Stage if one.open}
    return chosen if text is not None or is_open else None


def _row(incident: Incident) -> tuple[object, ...]:
    from slurm_recovery.cli.standing import excluded, reason, stage_word
    from slurm_recovery.records import Verdict

    attempt, decision = incident.attempt, incident.decision
    verdict = decision.verdict if decision else ""
    return (
        attempt.label,
        attempt.restart_count,
        attempt.partition,
        attempt.user,
        stage_word(incident.stage),
        reason(incident),
        Verdict.REQUEUE if verdict is Verdict.REQUEUE_EXCLUDE else verdict,  # EXCLUDED tells the two apart
        short(attempt.end_time),
        folded(excluded(incident)),
    )


def _long_row(incident: Incident) -> tuple[object, ...]:
    from slurm_recovery.cli.standing import mode

    *head, _, _, nodes = _row(incident)
    verdict = incident.decision.verdict if incident.decision else ""
    return incident.id, *head, verdict, mode(incident), shown(incident.attempt.end_time), nodes


def folded(nodes: Collection[str]) -> str:
    """The nodes as one host list; as they are where a name is none."""
    from slurm_recovery.hostlist import HostlistError, fold

    try:
        return fold(nodes)
    except HostlistError:
        return ",".join(nodes)


def summary(incident: Incident) -> dict[str, Any]:
    """An incident without its observation, as data."""
    from slurm_recovery.cli.standing import excluded, mode

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
        "mode": mode(incident) or None,
        "excluded": list(excluded(incident)),
        "times": incident.times,
        "note": incident.note,
    }
