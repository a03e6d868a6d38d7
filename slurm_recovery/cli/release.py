"""`srecover release`: what was known of nodes counts no longer; with --resume, our drain of them ends, too.

Owns the word of a person, written into the ledger as NodeAction.RELEASE. Whoever judges reads it there
(`ledger.latest(cluster, [NodeAction.RELEASE])`): what is older counts no longer, neither runs and faults nor our
exclusions. Never touches a node that somebody else has drained.
"""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from slurm_recovery.cli.common import CommandError, Context, common_of
from slurm_recovery.cli.list_ import folded
from slurm_recovery.cli.nodes import named, on_record
from slurm_recovery.cli.owner import become_owner
from slurm_recovery.cli.tables import say

if TYPE_CHECKING:
    from slurm_recovery.config.settings import Settings
    from slurm_recovery.records import NodeEvent, Result
    from slurm_recovery.slurm.port import Node, Slurm
    from slurm_recovery.store.ledger import Ledger


def release(
    ctx: typer.Context,
    names: Annotated[
        list[str], typer.Argument(metavar="NODE", help="The nodes; host lists such as n1,n2 or n[1-4] will do.")
    ],
    resume: Annotated[
        bool, typer.Option("--resume", help="Also resume those that we have drained, and nobody else has since.")
    ] = False,
    cluster: Annotated[
        str | None, typer.Option("--cluster", "-M", metavar="NAME", help="Only nodes of this cluster.")
    ] = None,
) -> None:
    """Forget what speaks against nodes: after a repair, or where the suspicion was wrong.

    Their faults and failed attempts until now count no longer, and restarts do not avoid them any more; jobs that wait
    already keep their ExcNodeList. The history stays (srecover nodes --history), and says who released them. Run it as
    SlurmUser or root. Exit status 1 where a node is not known, and then no node is released, or where one could not be
    resumed.
    """
    wanted = named(names)
    if not wanted:
        raise typer.BadParameter("no node is named; write n1,n2 or n[1-4]", param_hint="NODE")
    common = common_of(ctx)
    who = user_name()
    settings = _as_owner(common)
    with common.store() as store:
        ledger = store.ledger
        slurm, where = _checked(ledger, settings, cluster, wanted, resume=resume)
        drained = _still_drained(ledger, where, wanted)
        ledger.add_all(_release(where, node, who) for node in wanted)
        say(f"{folded(wanted)} released: what was known until now counts no longer")
        if slurm is None:
            if drained:
                say(f"{folded(drained)} drained by us; hint: srecover release --resume {folded(drained)}")
            return
        outcomes = resume_drained(slurm, ledger, where, wanted, user=who, now=time.time)
    _say_outcomes(outcomes)


def user_name() -> str:
    """Who gives the word: the user who called sudo, or whose process this is."""
    try:
        return os.environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _as_owner(common: Context) -> Settings:
    settings = common.config().settings
    become_owner(settings.state_dir)
    if not os.access(settings.state_dir, os.W_OK):
        raise CommandError(f"{settings.state_dir}: only SlurmUser and root can release; hint: sudo srecover release")
    return settings


def _checked(
    ledger: Ledger, settings: Settings, given: str | None, wanted: Sequence[str], *, resume: bool
) -> tuple[Slurm | None, str]:
    """Slurm, where nodes shall be resumed, and the cluster whose nodes these are. Slurm is asked only where needed."""
    from slurm_recovery.slurm.errors import SlurmUnavailable
    from slurm_recovery.slurm.select import open_slurm

    where = given or _only(ledger.clusters())
    unknown = sorted(set(wanted) - on_record(ledger, where, settings, time.time())) if where else list(wanted)
    if where and not unknown and not resume:
        return None, where
    try:
        slurm = open_slurm(settings)
        local = slurm.config()["clustername"]
        if given and given != local:
            raise CommandError(_elsewhere(given, local, unknown, resume=resume))
        known = slurm.nodes().keys()
    except SlurmUnavailable as error:
        why = f"nothing is on record of {folded(unknown)}, and " if unknown and where else ""
        hint = "" if where else "; hint: --cluster NAME"
        raise CommandError(f"nothing was released: {why}Slurm does not answer: {error}{hint}") from error
    if missing := [node for node in wanted if node not in known]:
        raise CommandError(f"nothing was released: cluster {local} has no node {folded(missing)}; hint: sinfo -N")
    return slurm if resume else None, local


def _only(clusters: Sequence[str]) -> str | None:
    return clusters[0] if len(clusters) == 1 else None


def _elsewhere(given: str, local: str, unknown: Sequence[str], *, resume: bool) -> str:
    if resume:
        return f"nothing was released: cluster {given} does not answer here, {local} does; hint: leave out --resume"
    return (
        f"nothing was released: nothing is on record of {folded(unknown)} in cluster {given}; hint: srecover nodes -a"
    )


def _release(cluster: str, node: str, who: str) -> NodeEvent:
    from slurm_recovery.records import NodeAction, NodeEvent

    return NodeEvent(cluster=cluster, node=node, time=time.time(), action=NodeAction.RELEASE, user=who)


def resume_drained(
    slurm: Slurm, ledger: Ledger, cluster: str, nodes: Sequence[str], *, user: str, now: Callable[[], float]
) -> list[NodeEvent]:
    """Resume each node that is drained with a reason of ours: read, intent, deed, read again, outcome. Returns those.

    A node that somebody else has drained, or given another reason, is refused. Raises SlurmUnavailable, with an intent
    on record and no outcome: what became of it is then not known.
    """
    from slurm_recovery.records import NodeAction, NodeEvent, Result

    drains = ledger.latest(cluster, [NodeAction.DRAIN])
    shown: Mapping[str, Node] = slurm.nodes()

    def resume(node: str, result: str, detail: str) -> NodeEvent:
        drain = drains.get(node)
        known = {name: getattr(drain, name) for name in ("reason", "incident_id", "boot_id")} if drain else {}
        event = {"node": node, "result": result, "detail": detail, "user": user, "time": now(), **known}
        return NodeEvent.model_validate({"cluster": cluster, "action": NodeAction.RESUME, **event})

    outcomes = []
    for node in nodes:
        end = _refusal(shown.get(node))
        if end is None:
            ledger.add(resume(node, "intent", shown_node(shown.get(node))))
            result, said = _resume(slurm, node)
            shown = slurm.nodes()
            seen = shown.get(node)
            if result is Result.DONE and (seen is None or seen.drained):
                result, said = Result.FAILED, "still drained: "
            end = result, said + shown_node(seen)
        elif node not in drains:  # nothing of ours, and nothing done: no line of its history
            outcomes.append(resume(node, *end))
            continue
        outcomes.append(ledger.add(resume(node, *end)))
    return outcomes


def _refusal(node: Node | None) -> tuple[Result, str] | None:
    """Why there is nothing for us to resume; None where there is."""
    from slurm_recovery.decide.node_history import is_ours
    from slurm_recovery.records import Result

    if node is None:
        return Result.REFUSED, "slurmctld does not know it"
    if not node.drained:
        return Result.ALREADY, shown_node(node)
    if not is_ours(node.reason):
        return Result.REFUSED, f"drained by others: {shown_node(node)}"
    return None


def _resume(slurm: Slurm, node: str) -> tuple[Result, str]:
    from slurm_recovery.records import Result
    from slurm_recovery.slurm.errors import SlurmError, SlurmUnavailable

    try:
        slurm.resume(node)
    except SlurmUnavailable:
        raise
    except SlurmError as error:
        return Result.REFUSED, f"{error}; "
    return Result.DONE, ""


def shown_node(node: Node | None) -> str:
    """A node's state in Slurm's words, for the record."""
    if node is None:
        return "not known to slurmctld"
    return "+".join(sorted(node.state)) + (f" Reason={node.reason}" if node.reason else "")


def _say_outcomes(outcomes: Sequence[NodeEvent]) -> None:
    from slurm_recovery.records import Result

    words = {Result.DONE: "resumed", Result.ALREADY: "not drained"}
    failed = [event for event in outcomes if event.result not in words]
    for event in outcomes:
        if event.result in words:
            say(f"{event.node} {words[Result(event.result)]}: {event.detail}")
    if failed:
        first, *others = failed
        more = f" (and {folded([event.node for event in others])})" if others else ""
        hint = f"scontrol update NodeName={first.node} State=RESUME"
        raise CommandError(f"{first.node}{more} not resumed: {first.detail}; hint: {hint}")


def _still_drained(ledger: Ledger, cluster: str, nodes: Sequence[str]) -> list[str]:
    """Those of them that we have drained, as far as is on record."""
    from slurm_recovery.cli.node_standing import State, standing
    from slurm_recovery.cli.nodes import latest_of

    events = latest_of(ledger, cluster)
    return [node for node in nodes if node in events and standing(events[node]).state is State.DRAINED]
