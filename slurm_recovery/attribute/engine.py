"""Evidence to attribution: the first row that answers wins, and says of the others why they did not.

Owns the order of the rows: who outranks whom, and why. Each row is a function of its own in slurm_rows.py,
kernel_rows.py, shared_rows.py, cause_rows.py, lagging.py, absent.py, blamed.py, ends.py or behind.py. Pure: no
file, no clock, no Slurm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from slurm_recovery.attribute import (
    absent,
    attributed,
    behind,
    blamed,
    cause_rows,
    dump_rows,
    ends,
    kernel_rows,
    lagging,
    shared_rows,
    slurm_rows,
)
from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.attribute.view import Finding, Rival, Row, View, quote, view
from slurm_recovery.records import Attribution, Beaten, Category, Evidence, Observation

MOST_EVIDENCE = 12
MOST_BEATEN = 4


class Ranked(NamedTuple):
    """A row, and why its answer outranks those of all rows below it."""

    name: str
    row: Row
    why: str


# Strongest first.
ROWS: tuple[Ranked, ...] = (
    Ranked("final_state", slurm_rows.final_state, "Slurm's word about the whole job outranks every line in a log"),
    Ranked("node_down", slurm_rows.node_down, "Slurm shows the node down, and what the job printed came of that"),
    Ranked("prolog_failed", slurm_rows.prolog_failed, "slurmctld's word about a node outranks what the job printed"),
    Ranked(
        "node_failed", slurm_rows.node_failed, "Slurm says that a node failed, and what the job printed came of that"
    ),
    Ranked("out_of_memory", slurm_rows.out_of_memory, "Slurm counted the kills itself; the rest came of them"),
    Ranked("cancelled", slurm_rows.cancelled, "who is cancelled prints errors as it dies"),
    Ranked("time_limit", slurm_rows.time_limit, "who is ended by the time limit prints errors as it dies"),
    Ranked("slurm_words", slurm_rows.slurm_words, "slurmstepd and srun speak of the job, the others of their own end"),
    Ranked(
        "kernel_hardware",
        kernel_rows.kernel_hardware,
        "a node's own kernel, or NVML, saw it; what programs print came of that",
    ),
    Ranked("shared_fault", shared_rows.shared_fault, "the kernel saw the fault that the program only felt"),
    Ranked("device_error", cause_rows.device_error, "a device that fails explains what its rank and the others print"),
    Ranked(
        "local_error", cause_rows.local_error, "one rank's own error explains lost peers and timeouts of the others"
    ),
    Ranked("doubted_hardware", kernel_rows.doubted_hardware, "a fault of hardware explains lost peers and timeouts"),
    Ranked("link_or_storage", shared_rows.link_or_storage, "its owner reported it itself; the others only felt it"),
    Ranked("contradicted_words", slurm_rows.contradicted_words, "srun's word, though the state says otherwise"),
    Ranked("ended_first", ends.ended_first, "who ended first did not end because of the others"),
    Ranked("teardown", behind.teardown, "the work was done before"),
    Ranked("dump_behind", dump_rows.dump_behind, "each rank counted for itself what it asked for"),
    Ranked("lagging", lagging.lagging, "the others waited for it"),
    Ranked("mismatched", lagging.mismatched, "ranks in different collectives can only wait for each other"),
    Ranked("silent", lagging.silent, "the others waited for it"),
    Ranked("absent", absent.absent, "the others waited for it"),
    Ranked("blamed_peer", blamed.blamed_peer, "all complaints name one peer"),
    Ranked("dump_absent", dump_rows.dump_absent, "the others left dumps, and waited with it"),
    Ranked("attributed", attributed.attributed, "the site gives more on it than on a cause of last resort"),
    Ranked("conditional", behind.conditional, "it explains the lines that only tell of lost peers"),
    Ranked("attributed_lightly", attributed.attributed_lightly, "nothing else is known"),
    Ranked("killed", ends.killed, "srun's word is all there is"),
    Ranked("exit_code", ends.exit_code, "the exit code says more than lines that follow from something else"),
    Ranked("consequences", behind.consequences, "it is weak, but it is something"),
    Ranked("nothing", ends.nothing, ""),
)


def attribute(observation: Observation) -> Attribution:
    """Why the attempt ended and where that began, with the explanations that were beaten."""
    looked_at = view(observation)
    answers = [(ranked, finding) for ranked in ROWS if (finding := ranked.row(looked_at)) is not None]
    _, best = answers[0]
    return Attribution(
        category=best.category or REASONS[best.reason].category,
        reason=best.reason,
        root_rank=best.rank,
        suspects=() if _blameless(best) else best.suspects,
        because=best.because,
        evidence=best.evidence[:MOST_EVIDENCE],
        beaten=_beaten(looked_at, answers),
        since=looked_at.earlier[-1].place if looked_at.earlier else "",
    )


def _blameless(finding: Finding) -> bool:
    """Never a node for what the program or its owner did."""
    owner = finding.category or REASONS[finding.reason].category
    return owner in (Category.APPLICATION, Category.USER_OR_SCHEDULER, Category.HEALTHY)


def _beaten(view: View, answers: Sequence[tuple[Ranked, Finding]]) -> tuple[Beaten, ...]:
    """Each other reason once, by the first that had spoken for it."""
    winner, best = answers[0]
    found: dict[str, Beaten] = {}
    for rival in _rivals(view, winner, answers):
        if rival.reason not in (best.reason, "unknown", *found):
            found[rival.reason] = _lost(view, winner.name, rival)
    return tuple(list(found.values())[:MOST_BEATEN])


class _Lost(NamedTuple):
    reason: str
    why: str
    evidence: Evidence | None


def _rivals(view: View, winner: Ranked, answers: Sequence[tuple[Ranked, Finding]]) -> Iterator[Rival | _Lost]:
    """What else it could have been: what the winner weighed, then what the rows below it say."""
    best = answers[0][1]
    yield from best.rivals
    where = f" ({best.evidence[0].place})" if best.evidence and best.evidence[0].place else ""
    for _, finding in answers[1:]:
        yield _Lost(finding.reason, f"{winner.why}{where}", finding.evidence[0] if finding.evidence else None)
        yield from finding.rivals
    yield from cause_rows.handled(view)


def _lost(view: View, by: str, rival: Rival | _Lost) -> Beaten:
    evidence = rival.evidence
    if evidence is None:
        return Beaten(reason=rival.reason, by=by, why=rival.why)
    return Beaten(reason=rival.reason, by=by, why=rival.why, line=quote(evidence, view.places), place=evidence.place)
