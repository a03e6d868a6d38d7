"""`srecover show`: one incident in full, from the evidence to what Slurm showed afterwards."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurm_recovery.cli import tables
from slurm_recovery.cli.common import CommandError, Json, common_of
from slurm_recovery.cli.list_ import folded
from slurm_recovery.cli.tables import Column
from slurm_recovery.cli.times import duration, shown

if TYPE_CHECKING:
    from slurm_recovery.cli.timeline import Moment
    from slurm_recovery.records import Attempt, Attribution, Beaten, Decision, Evidence, Incident, Observation
    from slurm_recovery.store.step import Step
    from slurm_recovery.store.store import Store

_JOB_ID = re.compile(r"(\d+)(_\d+)?|(\d+)\+\d+", re.ASCII)
NEWEST = 100  # incidents among which the clusters of a store are looked for
INDENT = "   "

EVIDENCE = (
    Column("TRUST", 0),
    Column("SOURCE", 0),
    Column("COUNT", 0, right=True),
    Column("NODE", 0),
    Column("RANK", 0, right=True),
    Column("PLACE", 0),
    Column("LINE", 0),
)
TIMELINE = (
    Column("SECONDS", 0, right=True),
    Column("AFTER", 0, right=True),
    Column("STEP", 0),
    Column("WHAT", 0),
)
DEEDS = (Column("ACTION", 0), Column("RESULT", 0), Column("DETAIL", 0), Column("SLURM SHOWED", 0))
GAPS = (Column("SOURCE", 0), Column("WHAT", 0), Column("WHY", 0))


def show(
    ctx: typer.Context,
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="JOBID", help="Job id; 120_3 for a task of a job array, 120+1 for a component of a het job."
        ),
    ] = None,
    number: Annotated[
        int | None, typer.Option("--incident", "-i", metavar="NUMBER", help="The incident of that number instead.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", "-a", help="Every attempt of the job, newest first.")] = False,
    cluster: Annotated[
        str | None, typer.Option("--cluster", "-M", metavar="NAME", help="Only a job of this cluster.")
    ] = None,
    log: Annotated[
        bool, typer.Option("--log", help="Print the end of the attempt's log instead, as it was kept on record.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show why a job failed, and all that was done about it.

    Prints the cause with its evidence, the decision and its rule, a timeline, what was done and what Slurm showed
    afterwards, and what could not be read. Of a job with several failed attempts the last one, unless --all is
    given. Exit status 1 where nothing is on record.

    In the timeline, SECONDS counts from the end of the job and AFTER from the step before; times that Slurm
    tells are whole seconds.
    """
    if (job is None) == (number is None):
        raise typer.BadParameter("give either a job id or --incident")
    if log and (every or as_json):
        raise typer.BadParameter("it prints the log of one attempt, as text", param_hint="--log")
    label = _label(job) if job is not None else ""
    with common_of(ctx).store() as store:
        found = _by_number(store, number) if number is not None else _by_job(store, label, cluster, every=every)
        both = [(incident, store.steps(incident.id)) for incident in found]
        earlier = {incident.id: store.history(incident.attempt) for incident in found}
    if as_json:
        data = [document(*one, earlier[one[0].id]) for one in both]
        tables.say_json(data if every else data[0])
        return
    if log:
        for line in _log(found[0]):
            tables.say(line)
        return
    plain = bool(label) and cluster is None and not every
    for position, (incident, steps) in enumerate(both):
        if position:
            tables.say()
        asked = label if plain else f"--incident {incident.id}"
        for line in described(incident, steps, f"srecover show {asked} --log", earlier[incident.id]):
            tables.say(line)


def _label(job: str) -> str:
    """The job as Attempt.label has it; a het job's is its leader's id, whichever component is meant."""
    match = _JOB_ID.fullmatch(job)
    if match is None:
        raise typer.BadParameter(
            f"{tables.harmless(job)} is not a job id; write 4711, 120_3 for a task of a job array, "
            "or 120+1 for a component of a het job",
            param_hint="JOBID",
        )
    return match[3] or match[1] + (match[2] or "")


def _log(incident: Incident) -> Iterator[str]:
    from slurm_recovery.cli.snapshot import log_lines

    observation = incident.observation
    if observation is None or not observation.log_tail:
        gaps = "; ".join(f"{gap.what}: {gap.why}" for gap in observation.gaps) if observation else ""
        raise CommandError(f"no log of job {incident.attempt.label} is on record" + (f" ({gaps})" if gaps else ""))
    return log_lines(incident, observation)


def _by_number(store: Store, number: int) -> list[Incident]:
    incident = store.get(number)
    if incident is None:
        raise CommandError(f"no incident {number} (srecover list --json shows the numbers)")
    return [incident]


def _by_job(store: Store, label: str, cluster: str | None, *, every: bool) -> list[Incident]:
    found = [incident for name in _clusters(store, cluster) for incident in store.of_job(name, label)]
    if not found:
        raise CommandError(f"no incident of job {label} (see srecover list)")
    return found if every else found[:1]


def _clusters(store: Store, cluster: str | None) -> list[str]:
    """The cluster named, or those of the newest incidents, the newest first."""
    if cluster is not None:
        return [cluster]
    return list(dict.fromkeys(incident.attempt.cluster for incident in store.list(limit=NEWEST)))


def document(incident: Incident, steps: Sequence[Step], earlier: Sequence[Incident] = ()) -> dict[str, Any]:
    """The whole record, its audit, and what it gained over the earlier attempts, as data."""
    from slurm_recovery.decide.progress import gains

    gain = gains([incident, *earlier])[0]
    return {
        **incident.model_dump(mode="json"),
        "steps": [step.model_dump(mode="json") for step in steps],
        "gained": {"progress": gain.gained.value, "steps": gain.steps},
    }


def described(
    incident: Incident, steps: Sequence[Step], log_command: str, earlier: Sequence[Incident] = ()
) -> Iterator[str]:
    """The lines of one incident, for people. `log_command` prints its log; `earlier` are its job's former ones."""
    from slurm_recovery.cli.progress import progress_lines

    yield from _head(incident)
    if incident.attribution:
        yield from _cause(incident, incident.attribution)
    if incident.observation:
        yield from _log_line(incident.observation, log_command)
    yield from progress_lines([incident, *earlier], INDENT)
    if incident.decision:
        yield from _decision(incident, incident.decision, steps)
    yield from _timeline(incident, steps)
    yield from _section("Done", DEEDS, [(o.action, o.result.value, o.detail, o.seen) for o in incident.outcomes])
    gaps = incident.observation.gaps if incident.observation else ()
    yield from _section("Not to be had", GAPS, [(gap.source.value, gap.what, gap.why) for gap in gaps])


def _head(incident: Incident) -> Iterator[str]:
    """As `scontrol show job` begins. What the user chose to write stands last on its line."""
    from slurm_recovery.cli.standing import stage_word

    attempt = incident.attempt
    yield f"JobId={attempt.label} Attempt={attempt.restart_count} Incident={incident.id} Cluster={attempt.cluster}"
    note = f" ({incident.note})" if incident.note else ""
    yield f"{INDENT}Stage={stage_word(incident.stage)}{note}"
    yield f"{INDENT}UserId={attempt.user}({attempt.user_id}) Partition={attempt.partition} JobName={attempt.name}"
    reason = f" Reason={attempt.reason}" if attempt.reason not in ("", "None") else ""
    exits = f"ExitCode={attempt.exit_code}:{attempt.signal}"
    yield f"{INDENT}JobState={attempt.state or 'not certain'}{reason} {exits} NodeList={folded(attempt.nodes)}"
    yield f"{INDENT}StartTime={shown(attempt.start_time)} EndTime={shown(attempt.end_time)}{_run_time(attempt)}"


def _run_time(attempt: Attempt) -> str:
    if attempt.start_time is None or attempt.end_time is None:
        return ""
    return f" RunTime={duration(attempt.end_time - attempt.start_time)}"


def _cause(incident: Incident, attribution: Attribution) -> Iterator[str]:
    from slurm_recovery.cli.standing import unread

    yield f"Cause: {cause(attribution)}"
    yield from (INDENT + line for line in unread(incident))
    yield from suspects(attribution)
    yield from _section("Evidence", EVIDENCE, [evidence_row(one) for one in attribution.evidence])
    if attribution.beaten:
        yield "Not the cause:"
        yield from (INDENT + lost(beaten) for beaten in attribution.beaten)


def lost(beaten: Beaten) -> str:
    """An explanation that lost, where it stood, and why it did not win."""
    where = f" ({beaten.place})" if beaten.place else ""
    return f"{beaten.reason}{where}: {beaten.why or f'beaten by {beaten.by}'}"


def suspects(attribution: Attribution) -> Iterator[str]:
    """Each suspect node, its trust, and why, where that is not the cause's own sentence."""
    for suspect in attribution.suspects:
        why = f": {suspect.because}" if suspect.because != attribution.because else ""
        yield f"{INDENT}suspect {suspect.node} (trust {suspect.trust.value}){why}"


def cause(attribution: Attribution) -> str:
    """One sentence: the reason, who owns it, where it began, and why."""
    from slurm_recovery.attribute.reasons import REASONS

    where = f", rank {attribution.root_rank}" if attribution.root_rank is not None else ""
    where += f", on {folded(attribution.suspect_nodes)}" if attribution.suspects else ""
    known = REASONS.get(attribution.reason)
    because = attribution.because or (known.sentence if known else "")
    return f"{attribution.reason} ({attribution.category.value}{where}): {because}"


def evidence_row(evidence: Evidence) -> tuple[object, ...]:
    return (
        evidence.trust.value,
        evidence.source.value,
        evidence.count,
        evidence.node or "",
        "" if evidence.rank is None else evidence.rank,
        evidence.place,
        evidence.line,
    )


def _log_line(observation: Observation, command: str) -> Iterator[str]:
    from slurm_recovery.cli.snapshot import log_line

    if line := log_line(observation, command):
        yield line


def _decision(incident: Incident, decision: Decision, steps: Sequence[Step]) -> Iterator[str]:
    from slurm_recovery.cli.progress import untaken_lines
    from slurm_recovery.cli.standing import done, excluded, not_excluded, started

    wanted = (*decision.exclude, *decision.avoid)
    named = excluded(incident) if started(incident) else wanted
    nodes = f" {folded(named)}" if named and wanted else ""
    yield f"Decision: {decision.verdict.value}{nodes} ({done(incident)})"
    yield from (INDENT + line for line in not_excluded(incident, steps))
    yield f"{INDENT}because: {decision.because}"
    yield from untaken_lines(incident, INDENT)
    delay = f" Backoff={duration(decision.delay)}" if decision.delay else ""
    stop = f" StopAction={decision.stop_action}" if decision.verdict.value == "stop" else ""
    yield f"{INDENT}Rule={decision.basis} Policy={decision.policy}{delay}{stop}"


def _timeline(incident: Incident, steps: Sequence[Step]) -> Iterator[str]:
    from slurm_recovery.cli.timeline import timeline

    moments = timeline(incident, steps)
    end = incident.times.get("ended", moments[0].when if moments else 0.0)
    rows, before = [], 0.0
    for moment in moments:
        seconds = moment.when - end
        after = max(0.0, seconds - before)
        before = max(before, seconds)
        said = ": ".join(part for part in (moment.result, moment.detail) if part)
        kind = "" if moment.kind in ("time", "note") else f" {moment.kind}"
        rows.append((_seconds(moment, seconds), f"+{after:.2f}", f"{moment.what}{kind}", said))
    yield from _section("Timeline", TIMELINE, rows)


def _seconds(moment: Moment, seconds: float) -> str:
    return f"{seconds:.0f}   " if moment.whole and seconds.is_integer() else f"{seconds:.2f}"


def _section(title: str, columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """A titled table, as wide as it must be; nothing where there are no rows."""
    if rows:
        yield f"{title}:"
        yield from (INDENT + line for line in tables.lines(tables.fitted(columns, rows), rows))
