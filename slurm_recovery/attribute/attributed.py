"""The rows in which a site's own attributor has the word.

Owns what an attributor's word is worth against ours, and that by its weight alone. Whatever is proven by Slurm,
a kernel, a device, a rank's own error, a link or a lag stands above any weight. A weight of HALF or more goes
before a cause that is one only because nothing better was found (`conditional`); any weight goes before an end
of which nothing is known but that the job was killed, before mere consequences, and before `unknown`. Where it
agrees with us it changes nothing; where a row of ours wins, it is one of the beaten.
"""

from __future__ import annotations

from slurm_recovery.attribute.answer import SAYS
from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.attribute.view import Finding, View, suspects
from slurm_recovery.records import Evidence, Source

HALF = 0.5

# Exit codes that tell their reason by themselves: ends.py, EXITS.
_TELLING = ((126, 0), (127, 0), (130, 0), (129, 0), (139, 0), (0, 1), (0, 2), (0, 11))


def attributed(view: View) -> Finding | None:
    """An attributor that the site gives at least HALF: before what is only conditional."""
    return _said(view, HALF)


def attributed_lightly(view: View) -> Finding | None:
    """Any attributor, before nothing is known at all."""
    if (view.attempt.exit_code, view.attempt.signal) in _TELLING:
        return None
    return _said(view, 0.0)


def _said(view: View, least: float) -> Finding | None:
    said = [one for one in view.observation.evidence if one.source is Source.ATTRIBUTOR]
    told = [one for one in said if one.signature == SAYS and one.reason in REASONS and _weighs(one, least)]
    if not told:
        return None
    best = max(told, key=lambda one: one.weight or 0.0)
    same = [one for one in told if one.reason == best.reason and one.weight == best.weight]
    rank = next((one.rank for one in same if one.rank is not None), None)
    nodes = suspects(view, [one for one in same if one.node is not None], best.reason)
    because = f"{REASONS[best.reason].sentence} Attributor {best.line}"
    return Finding(best.reason, because, tuple(said), rank=rank, suspects=nodes)


def _weighs(evidence: Evidence, least: float) -> bool:
    """Whether it counts at all: `unknown` tells a person something, and no row."""
    return evidence.reason != "unknown" and evidence.weight is not None and 0 < evidence.weight >= least
