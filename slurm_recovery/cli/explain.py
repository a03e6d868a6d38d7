"""`srecover explain`: what a log says of the failure, for people; and the rules by which it is said."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurm_recovery.cli import tables
from slurm_recovery.cli.common import Json, common_of, signatures_of
from slurm_recovery.cli.list_ import folded
from slurm_recovery.cli.show import INDENT, cause, evidence_row, suspects
from slurm_recovery.cli.tables import Column

if TYPE_CHECKING:
    from slurm_recovery.cli.barelog import BareLog
    from slurm_recovery.cli.judge import Judgement
    from slurm_recovery.config.settings import Config
    from slurm_recovery.detect.signature import Signature
    from slurm_recovery.records import Attempt, Evidence

MOST_LINES = 10
_EXIT_CODE = re.compile(r"(\d{1,3})(?::(\d{1,3}))?")

LINES = (
    Column("PLACE", 0),
    Column("COUNT", 0, right=True),
    Column("NODE", 0),
    Column("RANK", 0, right=True),
    Column("LINE", 0),
)
REASON_TABLE = (
    Column("REASON", 0),
    Column("CATEGORY", 0),
    Column("ACTION", 0),
    Column("TRIES", 0, right=True),
    Column("ON ONE NODE", 0),
    Column("MEANING", 0),
)
SIGNATURE_TABLE = (
    Column("SIGNATURE", 0),
    Column("REASON", 0),
    Column("ROLE", 0),
    Column("LOG", 0),
    Column("SOURCE", 0),
)


def explain(
    ctx: typer.Context,
    logs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LOG", help="Files of one failed job; - is standard input; dmesg.NODE.log a kernel log."
        ),
    ] = None,
    nodes: Annotated[
        str, typer.Option(metavar="HOSTLIST", help="The job's nodes in Slurm's order, to find the node of a rank.")
    ] = "",
    ntasks_per_node: Annotated[
        int | None, typer.Option(min=1, metavar="NUMBER", help="The job's tasks (ranks) on each node.")
    ] = None,
    state: Annotated[str, typer.Option(metavar="STATE", help="The job's state as sacct prints it.")] = "FAILED",
    exit_code: Annotated[
        str, typer.Option(metavar="CODE[:SIGNAL]", help="The job's exit code as sacct prints it.")
    ] = "1:0",
    rules: Annotated[
        bool, typer.Option("--rules", help="Print all reasons and signatures instead, and read no log.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say why a job failed, from its log files alone. Nothing is touched, and no Slurm is needed.

    Prints the cause, what would be done, the lines that matter, and what else it could have been. Of each
    file the last LogBytes are read (recovery.conf, where there is one); line numbers count from there.
    """
    config = common_of(ctx).config_or_defaults()
    if rules:
        _say_rules(signatures_of(config), as_json=as_json)
        return
    if not logs:
        raise typer.BadParameter("give at least one log, or --rules", param_hint="LOG")
    attempt = _attempt(nodes, ntasks_per_node, state, exit_code)
    judgement, skipped = _judged(logs, attempt, config)
    if as_json:
        tables.say_json(_document(judgement))
        return
    for line in (*described(judgement), *skipped):
        tables.say(line)


def _attempt(nodes: str, ntasks_per_node: int | None, state: str, exit_code: str) -> Attempt:
    from slurm_recovery.hostlist import HostlistError, expand
    from slurm_recovery.records import Attempt

    match = _EXIT_CODE.fullmatch(exit_code)
    if match is None:
        raise typer.BadParameter(
            f"{exit_code!r} is not CODE or CODE:SIGNAL, such as 137 or 0:9", param_hint="--exit-code"
        )
    try:
        names = expand(nodes)
    except HostlistError as error:
        raise typer.BadParameter(str(error), param_hint="--nodes") from None
    return Attempt(
        cluster="",
        job_id=0,
        nodes=names,
        ntasks_per_node=ntasks_per_node,
        state=state.strip().upper(),
        exit_code=int(match[1]),
        signal=int(match[2] or 0),
    )


def _judged(logs: list[str], attempt: Attempt, config: Config) -> tuple[Judgement, list[str]]:
    """The judgement, and a line for each log of which only the end was read."""
    from slurm_recovery.cli.barelog import read_log
    from slurm_recovery.cli.judge import judge
    from slurm_recovery.config.values import slurm_size
    from slurm_recovery.records import Observation

    limit = config.settings.log_bytes
    read = [read_log(path, limit) for path in logs]
    signatures = signatures_of(config)
    evidence = tuple(one for log in read for one in _scanned(log, signatures))
    skipped = [
        f"Only the last {slurm_size(limit)} of {log.path} were read (LogBytes); its lines are counted from there."
        for log in read
        if log.skipped
    ]
    return judge(Observation(attempt=attempt, evidence=evidence), config), skipped


def _scanned(log: BareLog, signatures: tuple[Signature, ...]) -> tuple[Evidence, ...]:
    from slurm_recovery.detect.scan import scan

    return scan(log.data, signatures=signatures, source=log.source, path=log.path, node=log.node)


def described(judgement: Judgement) -> Iterator[str]:
    """The answer, for people."""
    _, attribution, decision = judgement
    yield f"Cause: {cause(attribution)}"
    nodes = f" {folded(decision.exclude)}" if decision.exclude else ""
    yield f"Would do: {decision.verdict.value}{nodes} ({decision.because})"
    yield from suspects(attribution)
    lines = that_matter(judgement)
    if lines:
        yield "Lines:"
        rows = [_line_row(evidence) for evidence in lines]
        yield from (INDENT + line for line in tables.lines(tables.fitted(LINES, rows), rows))
    if attribution.beaten:
        yield "Could have been: " + "; ".join(f"{one.reason} (beaten by {one.by})" for one in attribution.beaten)


def that_matter(judgement: Judgement) -> tuple[Evidence, ...]:
    """At most MOST_LINES: what the cause rests on, else whatever is more than noise."""
    from slurm_recovery.records import Role

    found = judgement.attribution.evidence or tuple(
        evidence for evidence in judgement.observation.evidence if evidence.role is not Role.NOISE
    )
    return found[:MOST_LINES]


def _line_row(evidence: Evidence) -> tuple[object, ...]:
    _, _, count, node, rank, place, line = evidence_row(evidence)
    return place, count, node, rank, line


def _document(judgement: Judgement) -> dict[str, Any]:
    from slurm_recovery.cli.judge import answer

    return {
        **answer("", judgement),
        "beaten": [one.model_dump() for one in judgement.attribution.beaten],
        "lines": [one.model_dump(mode="json") for one in that_matter(judgement)],
    }


def _say_rules(signatures: tuple[Signature, ...], *, as_json: bool) -> None:
    from slurm_recovery.attribute.reasons import REASONS

    if as_json:
        reasons = [reason.model_dump(mode="json") for reason in REASONS.values()]
        known = [signature.model_dump(mode="json") for signature in signatures]
        tables.say_json({"reasons": reasons, "signatures": known})
        return
    rows = [
        (r.code, r.category.value, r.action.value, r.max_requeues, r.one_node, r.sentence) for r in REASONS.values()
    ]
    tables.say_table(tables.fitted(REASON_TABLE, rows), rows)
    tables.say()
    matches = [(s.id, s.reason, s.role.value, s.log.value if s.log else "any", s.source) for s in signatures]
    tables.say_table(tables.fitted(SIGNATURE_TABLE, matches), matches)
