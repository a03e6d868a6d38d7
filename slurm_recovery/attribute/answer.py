"""Reads what a site's own attributor answered: bytes to evidence, or one line that says why not.

Owns the answer's form: that of `srecover replay --json`, of which only `reason` must be there. The answer is a
stranger's, so all of it is checked: reasons are ours, nodes are the job's, numbers and texts are bounded. Asks
nobody; what the answer is worth against our own rows is written in attributed.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.records import Attempt, Category, Evidence, Role, Source, Trust, Verdict

SAYS = "attributor"  # the signature of what it said
QUOTES = "attributor_quote"  # of a line that it gave as its proof
MOST_LINES = 8
LONGEST = 500

_Text = Annotated[str, Field(max_length=1 << 16)]
_Node = Annotated[str, Field(min_length=1, max_length=255)]


class AnswerRefused(ValueError):
    """The answer is none, or says what nobody may say. One line."""


class _Quote(BaseModel):
    """A line that the attributor goes by. Whatever else it tells of the line is left aside."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    line: _Text
    place: _Text = ""


class Answer(BaseModel):
    """The answer's form. Keys that are not named here are left aside."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    reason: Annotated[str, Field(max_length=64)]
    category: Category | None = None  # the reason's own holds
    action: Verdict | None = None
    suspect_nodes: Annotated[tuple[_Node, ...], Field(max_length=4096)] = ()
    root_rank: Annotated[int | None, Field(ge=0, lt=1 << 24)] = None
    because: _Text = ""
    evidence: Annotated[tuple[_Quote | _Text, ...], Field(max_length=4096)] = ()
    weight: Annotated[float, Field(ge=0, le=1)] = 1.0


def read_answer(
    data: bytes, attempt: Attempt, *, name: str, weight: float, trust: Trust, place: str = ""
) -> tuple[Evidence, ...]:
    """The answer as evidence; () where it is empty. Raises AnswerRefused.

    `weight` is the site's for this attributor; the answer may say that it is less sure, never more.
    """
    if not data.strip() or data.strip() in (b"null", b"{}"):
        return ()
    answer = _parsed(data)
    reason = answer.reason.lower()
    if reason not in REASONS:
        raise AnswerRefused(f"reason {_shown(answer.reason)[:64]!r} is not known (see srecover explain --rules)")
    nodes = tuple(dict.fromkeys(_of_job(node, attempt) for node in answer.suspect_nodes))
    worth = round(weight * answer.weight, 3)

    def piece(signature: str, line: str, **known: object) -> Evidence:
        # NOISE: no row but its own takes it up. A rank and a node never stand together: their pairing would be
        # taken for knowledge of where ranks ran.
        return Evidence.model_validate(
            {"source": Source.ATTRIBUTOR, "trust": trust, "signature": signature, "role": Role.NOISE, "weight": worth}
            | {"reason": "", "line": f"{name} (weight {worth:g}): {_shown(line)}"[:LONGEST], "place": place}
            | known
        )

    action = f", action {answer.action}" if answer.action else ""
    said = f"{reason}{action}. {answer.because}".strip()
    first = piece(SAYS, said, reason=reason, rank=answer.root_rank)
    named = [piece(SAYS, f"{reason}{action} on {node}. {answer.because}", reason=reason, node=node) for node in nodes]
    quotes = [piece(QUOTES, line, place=_shown(where) or place) for line, where in _quotes(answer.evidence)]
    return (first, *named, *quotes)


def _parsed(data: bytes) -> Answer:
    try:
        return Answer.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"][:3]))
        raise AnswerRefused(_shown(f"{where}: {first['msg']}" if where else first["msg"])[:200]) from None


def _of_job(node: str, attempt: Attempt) -> str:
    """The node as Slurm writes it. A node outside the job tells that the answer is about something else."""
    short = node.partition(".")[0]
    known = next((own for own in attempt.nodes if own == node or own.partition(".")[0] == short), None)
    if known is None:
        raise AnswerRefused(f"suspect node {_shown(node)[:64]!r} is not of the job")
    return known


def _quotes(evidence: Iterable[_Quote | str]) -> list[tuple[str, str]]:
    pairs = [(one, "") if isinstance(one, str) else (one.line, one.place) for one in evidence]
    return [pair for pair in pairs if pair[0].strip()][:MOST_LINES]


def _shown(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text[: 2 * LONGEST]).strip()
