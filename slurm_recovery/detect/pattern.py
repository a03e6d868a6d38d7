"""What a signature's pattern may be, judged on the pattern as Python's `re` itself parses it.

Owns two proofs. A pattern is bounded: however hostile a line of LONGEST_LINE characters is, no match takes more
than MOST_STEPS steps. And its literals are implied: every text that it can match holds one of them. Knows no reason,
and does not look at examples.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

LONGEST_LINE = 8192  # what the scanner hands over of one line, at most (detect/lines.py)
MOST_STEPS = 5_000_000  # about 50 ms of `re` on one core; ordinary signatures take a thousandth of it
MOST_SPELLINGS = 1024  # alternatives written out, for the proof of the literals
MOST_ITEMS = 4000  # elements of one parsed pattern
GROUPS = ("rank", "node", "local_rank")

Problem = tuple[str, str]  # what is wrong, and a hint
_Seq = Sequence[tuple[Any, Any]]


class _Unfit(Exception):
    """A construct that cannot be proven bounded."""


def problem_of(pattern: str, literals: Sequence[str]) -> Problem | None:
    """Why this pattern with these literals cannot be used; None if it can."""
    try:
        parsed = _parser.parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return f"pattern: {' '.join(str(error).split())}", "Python's re syntax"
    names = sorted(set(parsed.state.groupdict) - set(GROUPS))
    if names:
        return f"pattern: a group named {names[0]}", f"only {', '.join(GROUPS)} are read; use (?:...) otherwise"
    try:
        if parsed.state.flags & ~re.UNICODE.value:
            raise _Unfit("a flag such as (?i)", "spell it out: [Ee]rror")
        steps = _steps(list(parsed))
        bare = next((text for text in _spellings(list(parsed)) if not any(part in text for part in literals)), None)
    except _Unfit as unfit:
        return f"pattern: {unfit.args[0]}", unfit.args[1]
    except RecursionError:
        return "pattern: nested too deeply", "write several signatures"
    if steps > MOST_STEPS:
        return f"pattern: up to {steps} steps on one line", "bound its repeats, for example {1,40}, or use fewer"
    if bare is not None:
        shown = bare.replace(_ANYTHING, "...")[:80]
        return f"literals: a match need not hold one: {shown!r}", "add the text that every such match holds"
    return None


# -- characters: 0 to 127, and one for all others ------------------------------------------------------------

_OTHERS = 128
_ALL = frozenset(range(_OTHERS + 1))
_NEWLINE = frozenset({10})
_CATEGORIES = {
    op.CATEGORY_DIGIT: r"\d",
    op.CATEGORY_SPACE: r"\s",
    op.CATEGORY_WORD: r"\w",
    op.CATEGORY_NOT_DIGIT: r"\D",
    op.CATEGORY_NOT_SPACE: r"\S",
    op.CATEGORY_NOT_WORD: r"\W",
}
# Beyond ASCII there are digits, spaces and letters too, so all others belong to every category.
_MEMBERS = {
    category: frozenset({code for code in range(_OTHERS) if re.match(text, chr(code))} | {_OTHERS})
    for category, text in _CATEGORIES.items()
}


def _code(code: int) -> int:
    return min(code, _OTHERS)


def _members(items: Iterable[tuple[Any, Any]]) -> frozenset[int]:
    found: set[int] = set()
    negated = False
    for kind, value in items:
        if kind is op.NEGATE:
            negated = True
        elif kind is op.LITERAL:
            found.add(_code(value))
        elif kind is op.RANGE:
            found.update(range(_code(value[0]), _code(value[1]) + 1))
        elif kind is op.CATEGORY:
            found |= _MEMBERS[value]
        else:
            raise _Unfit(f"the class element {kind}", "use plain characters, ranges, \\w, \\d, \\s")
    return (_ALL - found) | {_OTHERS} if negated else frozenset(found)


def _characters(kind: Any, value: Any) -> frozenset[int] | None:
    """The characters that a single-character element takes; None for any other element."""
    if kind is op.LITERAL:
        return frozenset({_code(value)})
    if kind is op.NOT_LITERAL:
        return (_ALL - {_code(value)}) | {_OTHERS}
    if kind is op.ANY:
        return _ALL - _NEWLINE
    if kind is op.IN:
        return _members(value)
    return None


def _first(sequence: _Seq) -> tuple[frozenset[int], bool]:
    """The characters that a match of the sequence can begin with, and whether it can be empty."""
    found: frozenset[int] = frozenset()
    for kind, value in sequence:
        here, empty = _first_of(kind, value)
        found |= here
        if not empty:
            return found, False
    return found, True


def _first_of(kind: Any, value: Any) -> tuple[frozenset[int], bool]:
    characters = _characters(kind, value)
    if characters is not None:
        return characters, False
    if kind is op.AT:
        at_end = value in (op.AT_END, op.AT_END_STRING)
        return (_NEWLINE, False) if at_end else (frozenset(), True)
    if kind is op.SUBPATTERN:
        return _first(value[3])
    if kind is op.BRANCH:
        parts = [_first(part) for part in value[1]]
        return frozenset().union(*(part[0] for part in parts)), any(part[1] for part in parts)
    if kind in _REPEATS:
        here, empty = _first(value[2])
        return here, empty or value[0] == 0
    raise _Unfit(*_refused(kind))


# -- time ----------------------------------------------------------------------------------------------------

_REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT)
_NAMES = {
    op.ASSERT: "a look-ahead or look-behind",
    op.ASSERT_NOT: "a look-ahead or look-behind",
    op.GROUPREF: "a backreference",
    op.GROUPREF_EXISTS: "a conditional group",
}


def _refused(kind: Any) -> Problem:
    return _NAMES.get(kind, f"the construct {kind}"), "only characters, classes, groups, | and bounded repeats"


@dataclass(frozen=True)
class _After:
    """What stands behind an element."""

    first: frozenset[int]  # what it can begin with
    may_end: bool  # or the match may be complete here already
    is_end: bool  # nothing stands there: what was matched is never taken back
    run: str = ""  # the text that it begins with, where that is fixed


@dataclass(frozen=True)
class _Cost:
    """Of trying an element at one place: steps, and the number of ways in which it can succeed."""

    steps: int
    ways: int


_END = _After(frozenset(), may_end=True, is_end=True)


def _steps(parsed: _Seq) -> int:
    """An upper bound of the steps of one search, over all the places where a match could begin."""
    anchored = bool(parsed) and parsed[0] == (op.AT, op.AT_BEGINNING)
    if anchored:
        return LONGEST_LINE + _cost(parsed, _END).steps
    skipped = next((place for place, part in enumerate(parsed) if not _is_one_character(*part)), len(parsed))
    head = _run(parsed[skipped:])
    rest = parsed[skipped + len(head) :]
    if rest and rest[0][0] is op.BRANCH:
        before = parsed[: skipped + len(head)]
        return sum(_steps([*before, *part, *rest[1:]]) for part in rest[0][1][1])
    return LONGEST_LINE + (LONGEST_LINE // _period(head) + 1) * _cost(parsed, _END).steps


def _is_one_character(kind: Any, value: Any) -> bool:
    """Whether the element is a word boundary or a class: it moves the fixed text behind it, and no more."""
    return kind is op.AT or (kind is not op.LITERAL and _characters(kind, value) is not None)


def _run(sequence: _Seq) -> str:
    """The fixed text that every match of the sequence begins with, as far as it stands there plainly."""
    text = ""
    for kind, value in sequence:
        if kind is not op.LITERAL:
            break
        text += chr(value)
    return text


def _period(text: str) -> int:
    """The least distance at which the text can occur twice: its own length, or less where it overlaps itself."""
    return next((size for size in range(1, len(text)) if text.startswith(text[size:])), max(1, len(text)))


def _cost(sequence: _Seq, after: _After) -> _Cost:
    steps, ways = 1, 1
    place = 0
    while place < len(sequence):
        kind, value = sequence[place]
        run = _run(sequence[place:])
        place += len(run) or 1
        here = _cost_of_run(run) if run else _cost_of(kind, value, _behind(sequence[place:], after))
        steps, ways = steps + ways * here.steps, ways * here.ways
        if steps > MOST_STEPS:
            break
    return _Cost(steps, ways)


def _behind(rest: _Seq, after: _After) -> _After:
    if not rest:
        return after
    first, empty = _first(rest)
    if empty:
        return _After(first | after.first, after.may_end, is_end=False)
    return _After(first, may_end=False, is_end=False, run=_run(rest))


def _cost_of_run(text: str) -> _Cost:
    """Of comparing a fixed text at place after place: its first k characters are met once in period(k) places."""
    return _Cost(ceil(sum(1 / _period(text[:size]) for size in range(1, len(text) + 1))), 1)


def _cost_of(kind: Any, value: Any, after: _After) -> _Cost:
    if _characters(kind, value) is not None or kind is op.AT:
        return _Cost(1, 1)
    if kind is op.SUBPATTERN:
        if value[1] or value[2]:
            raise _Unfit("a flag such as (?i:...)", "spell it out: [Ee]rror")
        return _cost(value[3], after)
    if kind is op.BRANCH:
        return _cost_of_branch(value[1], after)
    if kind in _REPEATS:
        return _cost_of_repeat(value, after)
    raise _Unfit(*_refused(kind))


def _cost_of_branch(parts: Sequence[_Seq], after: _After) -> _Cost:
    costs = [_cost(part, after) for part in parts]
    firsts = [_first(part) for part in parts]
    apart = sum(len(first) for first, _ in firsts) == len(frozenset().union(*(first for first, _ in firsts)))
    ways = [cost.ways for cost in costs]
    only_one = apart and not any(empty for _, empty in firsts)
    return _Cost(sum(cost.steps for cost in costs), max(ways) if only_one else sum(ways))


def _cost_of_repeat(value: Any, after: _After) -> _Cost:
    least, most, item = value[0], min(int(value[1]), LONGEST_LINE), value[2]
    first, empty = _first(item)
    if most > 1 and not (len(item) == 1 and _characters(*item[0]) is not None):
        _only_one_way(item, first, empty)
    width = most - least + 1
    inner = _cost(item, _After(first | after.first, after.may_end, is_end=False))
    if most <= 1:
        return _Cost(inner.steps + 1, inner.ways + (least == 0))
    if least == most or after.is_end:
        return _Cost(most * inner.steps, 1)
    # Where what follows cannot begin as another turn does, only one number of turns can be right.
    apart = not (first & after.first) and not after.may_end
    return _Cost(most * inner.steps, 1 if apart else width // _period(after.run) + 1)


def _only_one_way(item: _Seq, first: frozenset[int], empty: bool) -> None:
    """Refuses a repeated group that could match one text in two ways: then ways multiply with each turn."""
    hint = "bound one of them, or let a character stand between them that neither can match"
    if empty or _cost(item, _After(first, may_end=False, is_end=False)).ways > 1:
        raise _Unfit("a repeat inside a repeat, or alternatives inside one, that can match the same text", hint)


# -- literals ------------------------------------------------------------------------------------------------

_ANYTHING = "\0"  # text that is not known; no literal holds it
_FEW = 4  # characters of a class that are written out


def _spellings(sequence: _Seq) -> list[str]:
    """Every text that the sequence can match, with _ANYTHING for what can vary widely."""
    texts = [""]
    for kind, value in sequence:
        parts = _spellings_of(kind, value)
        if len(texts) * len(parts) > MOST_SPELLINGS:
            raise _Unfit("too many alternatives", "write several signatures")
        texts = [text + part for text in texts for part in parts]
    return list(dict.fromkeys(texts))


def _spellings_of(kind: Any, value: Any) -> list[str]:
    if kind is op.AT:
        return [""]
    if kind is op.LITERAL:
        return [chr(value)]
    if kind is op.IN and len(value) <= _FEW and all(item[0] is op.LITERAL for item in value):
        return [chr(item[1]) for item in value]
    if _characters(kind, value) is not None:
        return [_ANYTHING]
    if kind is op.SUBPATTERN:
        return _spellings(value[3])
    if kind is op.BRANCH:
        return list(dict.fromkeys(text for part in value[1] for text in _spellings(part)))
    if kind in _REPEATS:
        return _spellings_of_repeat(*value)
    raise _Unfit(*_refused(kind))


def _spellings_of_repeat(least: int, most: Any, item: _Seq) -> list[str]:
    if (least, most) == (0, 1):
        return ["", *_spellings(item)]
    if least == most and least <= _FEW:
        return _spellings(list(islice((part for _ in range(least) for part in item), MOST_ITEMS)))
    if least == 0:
        return [_ANYTHING]
    return [_ANYTHING + text + _ANYTHING for text in _spellings(item)]
