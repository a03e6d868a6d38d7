"""Which lines to show of an attribution: the root's, those that convict, and what followed, one of each kind.

Owns the choice and the order, for people who read ten lines at night, and says of each line where it was printed
as far as that is known. Judges nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_recovery.attribute.view import View, view
from slurm_recovery.detect.frame import frame
from slurm_recovery.records import Attribution, Evidence, Observation, Role

MOST = 10
MOST_OF_ONE_KIND = 3  # lines that convict by what differs in them, such as counters
_FOLLOWS = (Role.ROOT, Role.CONDITIONAL, Role.SECONDARY)


def lines_that_matter(attribution: Attribution, observation: Observation, most: int = MOST) -> tuple[Evidence, ...]:
    """At most `most` lines, the root's first. A line's count is that of all lines of its kind that are not shown."""
    looked_at = view(observation)
    convicts = [_placed(looked_at, found) for found in attribution.evidence]
    known = {(one.place, one.signature) for one in convicts}
    others = [found for found in looked_at.evidence if (found.place, found.signature) not in known]
    ordered = sorted(
        (found for found in others if found.role in _FOLLOWS), key=lambda found: _FOLLOWS.index(found.role)
    )
    kinds: dict[tuple[str, str], list[Evidence]] = {}
    for found in (*convicts, *ordered):
        kinds.setdefault((found.signature, found.reason), []).append(found)
    chosen = [row for kind in kinds.values() for row in _of_kind(kind, convicts)]
    return tuple(_placed(looked_at, found) for found in chosen[:most])


def _of_kind(kind: Sequence[Evidence], convicts: Sequence[Evidence]) -> list[Evidence]:
    """The first line of a kind, and those of the proof that say something else; the last stands for all the rest."""
    proof = {id(found) for found in convicts}
    different: dict[str, Evidence] = {}
    for found in kind:
        if not different or id(found) in proof:
            different.setdefault(frame(found.line).text, found)
    shown = list(different.values())[:MOST_OF_ONE_KIND]
    rest = sum(found.count for found in kind) - sum(found.count for found in shown)
    return [*shown[:-1], shown[-1].model_copy(update={"count": shown[-1].count + rest})]


def _placed(looked_at: View, found: Evidence) -> Evidence:
    """The evidence with its rank and node, where others than its own line tell them."""
    return found.model_copy(
        update={"rank": looked_at.places.rank(found), "node": looked_at.places.node(found) or found.node}
    )
