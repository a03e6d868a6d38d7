"""`srecover replay`: recorded failures against the rules as they are now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slurm_recovery.cli import tables
from slurm_recovery.cli.common import CommandError, Context, Json, NoHeader, common_of, say_error, signatures_of
from slurm_recovery.cli.list_ import folded
from slurm_recovery.cli.tables import Column

if TYPE_CHECKING:
    from slurm_recovery.cli.judge import Judgement


def replay(
    ctx: typer.Context,
    cases: Annotated[
        list[Path] | None, typer.Argument(metavar="CASE", help="Case folders: case.json, job.log, dmesg.NODE.log.")
    ] = None,
    number: Annotated[
        int | None,
        typer.Option("--incident", "-i", metavar="NUMBER", help="Replay what was observed of this incident instead."),
    ] = None,
    noheader: NoHeader = False,
    as_json: Json = False,
) -> None:
    """Say what today's rules make of recorded failures. Nothing is touched.

    A CASE is a folder: case.json, whose table "job" holds the job's state, exit_code, nodes and so on; job.log;
    and the nodes' kernel logs as dmesg.NODE.log. Other files among the arguments are passed over. Cases are
    judged under Mode=act by the default settings, or by those of --conf where it is given; a case's
    restart_count counts as so many earlier restarts for the same reason. With --json: one object a line, with
    case, category, reason, action, suspect_nodes, root_rank, because, evidence. Exit status 1 where a case
    cannot be read; the others are answered all the same.
    """
    if bool(cases) == (number is not None):
        raise typer.BadParameter("give either case folders or --incident")
    common = common_of(ctx)
    failed: list[str] = []
    found = _of_incident(common, number) if number is not None else _of_cases(common, cases or [], failed)
    _say(found, as_json=as_json, header=not noheader)
    if failed:
        raise typer.Exit(1)


def _say(found: Iterator[tuple[str, Judgement]], *, as_json: bool, header: bool) -> None:
    """Each answer as soon as it is there."""
    from slurm_recovery.cli.judge import answer

    if as_json:
        for name, judgement in found:
            tables.say_json(answer(name, judgement))
    else:
        for position, line in enumerate(tables.lines(_columns(), (_row(*one) for one in found), header=False)):
            if header and not position:
                tables.say(next(tables.lines(_columns(), ())))
            tables.say(line)


def _of_cases(common: Context, cases: list[Path], failed: list[str]) -> Iterator[tuple[str, Judgement]]:
    from slurm_recovery.cli.judge import judge
    from slurm_recovery.config.settings import Config
    from slurm_recovery.evidence.case import CaseError, read_case

    config = common.config() if common.given else Config()
    signatures = signatures_of(config)
    for folder in cases:
        if folder.is_file():
            continue
        try:
            observation = read_case(folder, signatures)
        except CaseError as error:
            say_error(str(error))
            failed.append(folder.name)
            continue
        yield folder.resolve().name, judge(observation, config)


def _of_incident(common: Context, number: int) -> Iterator[tuple[str, Judgement]]:
    """The stored observation, with the ledger that the loop would count for it now."""
    from slurm_recovery.cli.judge import judge
    from slurm_recovery.decide.history import ledger

    config = common.config()
    with common.store() as store:
        incident = store.get(number)
        if incident is None or incident.observation is None:
            raise CommandError(f"no incident {number} with an observation (srecover list --json shows the numbers)")
        attempt = incident.observation.attempt
        fast_failure = config.policy(attempt.partition).fast_failure
        earlier = store.history(attempt)
        counted = ledger(attempt, earlier, fast_failure=fast_failure, cluster_hour=0)
    yield f"incident-{number}", judge(incident.observation, config, counted, earlier)


def _columns() -> tuple[Column, ...]:
    from slurm_recovery.attribute.reasons import REASONS
    from slurm_recovery.records import Category, Verdict

    return (
        Column("CASE", 40),
        Column("CATEGORY", max(len(category.value) for category in Category)),
        Column("REASON", max(map(len, REASONS))),
        Column("ACTION", max(len(verdict.value) for verdict in Verdict)),
        Column("RANK", 5, right=True),
        Column("NODES", 0),
    )


def _row(name: str, judgement: Judgement) -> tuple[object, ...]:
    attribution = judgement.attribution
    return (
        name,
        attribution.category.value,
        attribution.reason,
        judgement.decision.verdict.value,
        "" if attribution.root_rank is None else attribution.root_rank,
        folded(attribution.suspect_nodes),
    )
