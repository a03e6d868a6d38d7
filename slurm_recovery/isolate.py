"""Nodes: their faults into the ledger, drains and resumes into Slurm, each recorded before it is done and read back.

Owns when decide/isolation.py is asked and how its verdicts are carried out. Which verdict is its rows'; what a report
means, detect/readings.py's. A node is never touched but by a verdict, and only as Slurm shows it a moment before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import structlog

from slurm_recovery.act import Clock
from slurm_recovery.attribute.node_faults import NodeFault, node_faults, xids
from slurm_recovery.config.settings import Config
from slurm_recovery.decide.isolation import (
    XID_TIME,
    Fault,
    FaultSource,
    Suspicion,
    Verdict,
    What,
    World,
    fault_event,
    isolate,
    verdict_event,
)
from slurm_recovery.decide.node_history import DAY, HOUR
from slurm_recovery.decide.way_back import Back, Health, Way, back_event, ways_back
from slurm_recovery.detect.readings import evidence_of
from slurm_recovery.evidence.node_reports import read_health
from slurm_recovery.node_report import NodeReport
from slurm_recovery.observe import Observer
from slurm_recovery.records import Attempt, Incident, NodeAction, NodeEvent, Observation, Result, Source
from slurm_recovery.slurm.errors import SlurmError, SlurmUnavailable
from slurm_recovery.slurm.port import Node, Slurm, drain_reason
from slurm_recovery.slurm.topology import leaf_switch
from slurm_recovery.store.store import Store
from slurm_recovery.suspects import Suspects

log = structlog.get_logger(__name__)

HEALTH_BYTES = 1 << 30  # of all health reports of one sweep
MOST_EVENTS = 20_000  # of the last days that a verdict looks at
SEEN = "health_seen.json"  # in StateDir: when each node's health report was last written
SOURCES = {Source.KERNEL_LOG: FaultSource.KERNEL, Source.NVML: FaultSource.NVML}


@dataclass
class Isolation:
    """The nodes of one cluster."""

    config: Config
    cluster: str
    slurm: Slurm
    store: Store
    observer: Observer
    suspects: Suspects
    now: Clock

    def consider(self, incident: Incident) -> None:
        """A failed attempt, judged: what its nodes told, and what the ledger makes of it."""
        observation = incident.observation
        if observation is None or incident.decision is None or incident.decision.basis == "mode_off":
            return
        for node, boot_id in observation.boots.items():
            self._note_boot(node, boot_id, incident.attempt.end_time or self.now())
        faults = [*_faults(incident, observation), *self._suspected(incident)]
        if faults:
            self._settle(faults)
        if incident.decision.basis == "common_cause":
            self._alert(incident.attribution.reason if incident.attribution else "", incident.decision.because)

    def watch(self) -> None:
        """The sweep's part: new health reports, and the ways back of nodes that we drained."""
        folder = self.config.settings.evidence_dir
        if folder is None:
            return
        seen, timeout = self._seen(), self.config.settings.evidence_timeout
        health = read_health(folder, None, seen, most=HEALTH_BYTES, timeout=timeout)
        for gap in health.gaps:
            log.warning("health report not read", what=gap.what, why=gap.why)
        faults = [fault for report in health.reports for fault in self._checked(report)]
        if faults:
            self._settle(faults)
        self._remember(health.seen)
        if drained := self._drained_by_us():
            checks = read_health(folder, sorted(drained), {}, most=HEALTH_BYTES, timeout=timeout)
            self._bring_back({report.node: self._health(report) for report in checks.reports})

    # -- what is told ----------------------------------------------------------------------------

    def _suspected(self, incident: Incident) -> list[Fault]:
        """Nodes that the runs of several users speak against, whatever this attempt ended of."""
        least = self.config.settings.suspicion_drain
        found = [one for one in self.suspects.suspicions(self.suspects.runs()) if one.posterior >= least]
        reason = incident.attribution.reason if incident.attribution else "unknown"
        return [
            Fault(
                one.node,
                reason,
                FaultSource.SUSPICION,
                one.last,
                one.because,
                job=incident.attempt.label,
                user=incident.attempt.user,
                partition=incident.attempt.partition,
                incident_id=incident.id,
                boot_id=self._boots.get(one.node, ""),
                suspicion=Suspicion(one.posterior, one.jobs, one.users),
            )
            for one in found
            if one.node in incident.attempt.nodes
        ]

    def _checked(self, report: NodeReport) -> list[Fault]:
        """The faults of a health report; what changed since the last one goes into the node's history."""
        self._note_boot(report.node, report.boot_id, report.boot_time or report.time, report.instance_id)
        faults = [_fault(found, report.time, report.boot_id) for found in self._faults_of(report)]
        if not faults and self._at_fault(report.node) and self._health(report).clean:
            self._add(NodeAction.CLEAN, report.node, report.time, boot_id=report.boot_id)
        return faults

    def _faults_of(self, report: NodeReport) -> tuple[NodeFault, ...]:
        attempt = Attempt(
            cluster=self.cluster,
            job_id=0,
            nodes=(report.node,),
            start_time=report.kernel_since,
            end_time=report.time,
            state="FAILED",
        )
        return node_faults(Observation(attempt=attempt, evidence=evidence_of(report, self.observer.signatures)))

    def _health(self, report: NodeReport) -> Health:
        """A check is clean where nothing was found, and where everything that matters could be looked at."""
        reasons = tuple(sorted({fault.reason for fault in self._faults_of(report)}))
        unread = [gap for gap in report.gaps if gap.source == Source.KERNEL_LOG or report.gpus_configured]
        return Health(report.time, report.boot_id, not reasons and not unread, reasons)

    @cached_property
    def _boots(self) -> dict[str, str]:
        """The boot_id that each node last reported."""
        return {node: one.boot_id for node, one in self.store.ledger.latest(self.cluster, [NodeAction.BOOT]).items()}

    @cached_property
    def _instances(self) -> dict[str, str]:
        return {node: one.detail for node, one in self.store.ledger.latest(self.cluster, [NodeAction.BOOT]).items()}

    def _note_boot(self, node: str, boot_id: str, when: float, instance: str = "") -> None:
        """Another boot weakens what was held against the node; another instance of the cloud is another node."""
        if not boot_id or self._boots.get(node) == boot_id:
            return
        before = self._instances.get(node, "")
        if instance and before and before != instance:
            detail = f"another instance, {instance}; it was {before}"
            self._add(NodeAction.RELEASE, node, when, user="slurm_recovery", boot_id=boot_id, detail=detail)
        self._add(NodeAction.BOOT, node, when, boot_id=boot_id, detail=instance or before)
        self._boots[node], self._instances[node] = boot_id, instance or before

    def _at_fault(self, node: str) -> bool:
        told = self.store.ledger.events(self.cluster, node=node, actions=[NodeAction.FAULT, NodeAction.CLEAN], limit=1)
        return bool(told) and told[0].action is NodeAction.FAULT

    # -- drains ----------------------------------------------------------------------------------

    def _settle(self, faults: Iterable[Fault]) -> None:
        """Into the ledger, then to the rows; and what they say is done."""
        found = list(faults)
        self._hear()
        events = self._events()
        for fault in found:
            event = fault_event(fault, self.cluster)
            if fault.source is not FaultSource.SUSPICION and not _told(events, event):
                self.store.ledger.add(event)
        for verdict in isolate(found, self._world()):
            log.info("node", node=verdict.node, verdict=verdict.what.value, because=verdict.because)
            if verdict.what is What.DRAIN:
                self._drain(verdict)
            elif verdict.what is What.ALERT:
                self._alert(verdict.reason, verdict.because)
            elif (said := verdict_event(verdict, self.cluster, self.now())) and not _told(events, said):
                self.store.ledger.add(said)

    def _drain(self, verdict: Verdict) -> None:
        text = drain_reason(verdict.text)

        def holds(node: Node | None) -> bool:
            return node is not None and node.drained and node.reason == text

        verdict = verdict._replace(text=text)
        self._do(
            lambda result: verdict_event(verdict, self.cluster, self.now(), result),
            lambda: self.slurm.drain(verdict.node, text),
            verdict.node,
            holds,
        )

    def _do(
        self,
        event: Callable[[str], NodeEvent | None],
        deed: Callable[[], None],
        name: str,
        holds: Callable[[Node | None], bool],
    ) -> None:
        """Intent, deed, a fresh read, outcome. An intent without an outcome counts as done, and is never repeated."""
        self._record(event("intent"))
        try:
            deed()
            result = Result.DONE if holds(self.slurm.nodes().get(name)) else Result.FAILED
        except SlurmUnavailable:
            raise
        except SlurmError as error:
            log.warning("refused", node=name, error=str(error))
            result = Result.REFUSED
        self._record(event(result.value))

    def _record(self, event: NodeEvent | None) -> None:
        if event is not None:
            self.store.ledger.add(event)

    def _alert(self, reason: str, because: str) -> None:
        """Once an hour for one reason."""
        since = self.now() - HOUR
        told = self.store.ledger.events(self.cluster, actions=[NodeAction.ALERT], since=since)
        if not any(event.reason == reason for event in told):
            log.error("alert", reason=reason, because=because)
            self._add(NodeAction.ALERT, "", self.now(), reason=reason, detail=because)

    # -- the way back ----------------------------------------------------------------------------

    def _drained_by_us(self) -> set[str]:
        """Nodes whose last word of ours is a drain."""
        last = (NodeAction.DRAIN, NodeAction.RESUME, NodeAction.OVERRULED)
        return {
            node
            for node, event in self.store.ledger.latest(self.cluster, last).items()
            if event.action is NodeAction.DRAIN
            or (event.action is NodeAction.RESUME and event.result not in (Result.DONE, Result.ALREADY))
        }

    def _hear(self) -> None:
        """What administrators did to nodes that we drained, before anything else is done there."""
        if self._drained_by_us():
            self._bring_back({})

    def _bring_back(self, health: Mapping[str, Health]) -> None:
        world = self._world()
        for back in ways_back(world, health):
            if back.way is Way.RESUME:
                log.info("resume", node=back.node, because=back.because)
                self._resume(back)
            elif back.way is Way.OVERRULED:
                log.info("overruled", node=back.node, because=back.because)
                self._record(back_event(back, self.cluster, self.now(), user=world.nodes[back.node].reason_user))

    def _resume(self, back: Back) -> None:
        self._do(
            lambda result: back_event(back, self.cluster, self.now(), result),
            lambda: self.slurm.resume(back.node),
            back.node,
            lambda node: node is not None and not node.drained,
        )

    # -- what is known ---------------------------------------------------------------------------

    def _world(self) -> World:
        return World(self.slurm.nodes(), self._events(), self.config, self.now(), self._switches)

    @cached_property
    def _switches(self) -> Mapping[str, str]:
        conf = self.config.settings.slurm_conf or self.slurm.config().get("slurm_conf")
        return leaf_switch(Path(conf)) if conf else {}

    def _events(self) -> list[NodeEvent]:
        """Those of the last days, and each node's last drain."""
        ledger = self.store.ledger
        recent = ledger.events(self.cluster, since=self.now() - XID_TIME - DAY, limit=MOST_EVENTS)
        known = {event.id for event in recent}
        drains = ledger.latest(self.cluster, [NodeAction.DRAIN]).values()
        return [*recent, *(event for event in drains if event.id not in known)]

    def _add(self, action: NodeAction, node: str, when: float, **known: str) -> None:
        event = {"cluster": self.cluster, "node": node, "time": when, "action": action, **known}
        self.store.ledger.add(NodeEvent.model_validate(event))

    def _seen(self) -> dict[str, float]:
        try:
            seen = json.loads((self.config.settings.state_dir / SEEN).read_text())
            return {str(node): float(when) for node, when in seen.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}  # then all reports are new: doing it again is nothing

    def _remember(self, seen: Mapping[str, float]) -> None:
        path = self.config.settings.state_dir / SEEN
        fresh = path.with_name(f".{SEEN}.{os.getpid()}")
        fresh.write_text(json.dumps(dict(seen)))
        fresh.replace(path)


def _faults(incident: Incident, observation: Observation) -> list[Fault]:
    """What the attempt's nodes told, by their kernels and NVML."""
    attempt = incident.attempt
    when = attempt.end_time or 0.0
    found = [_fault(one, when, observation.boots.get(one.node, "")) for one in node_faults(observation)]
    again = [
        Fault(
            one.node,
            "illegal_memory_access",
            FaultSource.KERNEL,
            one.time or when,
            boot_id=observation.boots.get(one.node, ""),
            xid=one.xid,
            pci=one.pci,
        )
        for one in xids(observation)
    ]
    return [
        fault._replace(job=attempt.label, user=attempt.user, partition=attempt.partition, incident_id=incident.id)
        for fault in (*found, *again)
    ]


def _fault(found: NodeFault, when: float, boot_id: str) -> Fault:
    return Fault(
        found.node, found.reason, SOURCES[found.source], found.time or when, found.line, boot_id=boot_id
    )


def _told(events: Collection[NodeEvent], event: NodeEvent) -> bool:
    """Whether the history has it already: of the same incident, or, for a health check, of the same boot and day."""
    alike = [one for one in events if (one.node, one.action, one.reason) == (event.node, event.action, event.reason)]
    if event.incident_id:
        return any(one.incident_id == event.incident_id and one.detail == event.detail for one in alike)
    return any(one.boot_id == event.boot_id and event.time - one.time < DAY for one in alike)
