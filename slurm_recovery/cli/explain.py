"""`srecover explain`: what a log says of the failure, for people; and the rules by which it is said."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurm_recovery.cli import tables
from slurm_recovery.cli.common import Json, common_of, signatures_of
from slurm_recovery.cli.list_ import folded
from slurm_recovery.cli.show import INDENT, cause, evidence_row, lost, suspects
from slurm_recovery.cli.tables import Column

if TYPE_CHECKING:
    from slurm_recovery.cli.judge import Judgement
    from slurm_recovery.config.settings import Config
    from slurm_recovery.detect.signature import Signature
    from slurm_recovery.records import Attempt, Attribution, Evidence

MOST_LINES = 10
WIDTH = 160  # characters of a line for people
LEAST_LINE = 60
# c10d's and absl's head of a line: severity, date, time, source
_C10D = re.compile(r"^\[?[EWIF]\d{0,5} [\d:.]{8,20} {1,4}(?:\d{1,9} )?\S{1,80}\] ?")
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
    state: Annotated[
        str,
        typer.Option(metavar="STATE", help="The job's state as sacct prints it; if not given, the log alone speaks."),
    ] = "",
    exit_code: Annotated[
        str, typer.Option(metavar="CODE[:SIGNAL]", help="The job's exit code as sacct prints it.")
    ] = "1:0",
    rules: Annotated[
        bool, typer.Option("--rules", help="Print all reasons and signatures instead, and read no log.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say why a job failed, from its log files and what lies beside them. Nothing is touched, and no Slurm is needed.

    Prints the cause, what would be done, the lines that matter, and what else it could have been. A line's place
    is its number; beyond the first 32 MiB of a log it is a byte, such as +81788928 (less +81788928P shows it).
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
    """The judgement, and a line for each thing that was not read whole."""
    from slurm_recovery.attribute.dump_rows import may_speak
    from slurm_recovery.cli.barelog import dumps_beside, scan_log
    from slurm_recovery.cli.judge import judge
    from slurm_recovery.records import Observation

    signatures, settings = signatures_of(config), config.settings
    read = [scan_log(path, signatures, settings.log_bytes) for path in logs]
    evidence = tuple(one for log in read for one in log.evidence)
    unread = [log.trouble for log in read if log.trouble]
    if may_speak(evidence, ()):
        traces = dumps_beside(logs, attempt, settings)
        evidence += traces.evidence
        unread += [f"{gap.what}: {gap.why}" for gap in traces.gaps]
    return judge(Observation(attempt=attempt, evidence=evidence), config), unread


def described(judgement: Judgement) -> Iterator[str]:
    """The answer, for people: what and where, what would be done, the lines, and what else it could have been."""
    _, attribution, decision = judgement
    lines = that_matter(judgement)
    short = _shortened(lines)
    yield short(f"Cause: {_cause(attribution)}")
    nodes = f" {folded(decision.exclude)}" if decision.exclude else ""
    yield f"Would do: {decision.verdict.value}{nodes} ({_without_sentence(decision.because, attribution)})"
    yield from map(short, suspects(_told_once(attribution)))
    if attribution.since:
        yield short(f"{INDENT}all before {attribution.since} is of an earlier attempt in the same file")
    if lines:
        yield "Lines:"
        rows = [_line_row(evidence, short) for evidence in lines]
        columns = tables.fitted(LINES, rows)
        yield from (INDENT + line for line in tables.lines(columns, [_cut(row, columns) for row in rows]))
    if attribution.beaten:
        yield "Not the cause:"
        yield from (short(f"{INDENT}{lost(one)}") for one in attribution.beaten)


def _cause(attribution: Attribution) -> str:
    """The reason, who owns it, where it began, and one sentence; the line itself is shown below."""
    return cause(attribution.model_copy(update={"because": _without_quote(attribution)}))


def _without_quote(attribution: Attribution) -> str:
    because, evidence = attribution.because, attribution.evidence
    if not evidence or not evidence[0].place:
        return because
    _, quoted, rest = because.partition(f"({evidence[0].place})")
    return f"{_sentence(attribution)}{rest}" if quoted else because


def _sentence(attribution: Attribution) -> str:
    from slurm_recovery.attribute.reasons import REASONS

    return REASONS[attribution.reason].sentence


def _without_sentence(because: str, attribution: Attribution) -> str:
    return because.removesuffix(_sentence(attribution)).rstrip(": ") or because


def _told_once(attribution: Attribution) -> Attribution:
    """Suspects whose reason is the cause's own line need not repeat it."""
    line = attribution.evidence[0].place if attribution.evidence else ""
    same = [
        one.model_copy(update={"because": attribution.because}) if line and f"({line})" in one.because else one
        for one in attribution.suspects
    ]
    return attribution.model_copy(update={"suspects": tuple(same)})


def _shortened(lines: Sequence[Evidence]) -> Callable[[str], str]:
    """Makes paths in a text their last part, where that tells the logs apart."""
    paths = {one.place.rpartition(":")[0] for one in lines}
    folders = sorted({path.rpartition("/")[0] + "/" for path in paths if "/" in path}, key=len, reverse=True)
    if len({path.rpartition("/")[2] for path in paths}) < len(paths):
        return lambda text: text
    return lambda text: reduce(lambda shorter, folder: shorter.replace(folder, ""), folders, text)


def that_matter(judgement: Judgement) -> tuple[Evidence, ...]:
    """At most MOST_LINES: the root's line, those that convict, and what followed."""
    from slurm_recovery.attribute.matter import lines_that_matter

    return lines_that_matter(judgement.attribution, judgement.observation, MOST_LINES)


def _line_row(evidence: Evidence, short: Callable[[str], str]) -> tuple[object, ...]:
    from slurm_recovery.detect.frame import frame

    _, _, count, node, rank, place, line = evidence_row(evidence)
    text = _C10D.sub("", frame(str(line)).text.strip()) or line
    return short(str(place)), f"{count}x" if evidence.count > 1 else "", node, rank, text


def _cut(row: Sequence[object], columns: Sequence[Column]) -> tuple[object, ...]:
    """The row with its line cut where a wide terminal ends."""
    before = sum(column.width + 1 for column in columns[:-1]) + len(INDENT)
    room = max(LEAST_LINE, WIDTH - before)
    line = str(row[-1])
    head = room * 2 // 3
    return (*row[:-1], line if len(line) <= room else f"{line[:head]} ... {line[head + 5 - room :]}")


def _document(judgement: Judgement) -> dict[str, Any]:
    from slurm_recovery.cli.judge import answer

    return {
        **answer("", judgement),
        "beaten": [one.model_dump() for one in judgement.attribution.beaten],
        "since": judgement.attribution.since,
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
