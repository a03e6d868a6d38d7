"""The proof that a pattern cannot run away, and that its literals are in every match."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_recovery.detect.pattern import LONGEST_LINE, problem_of

RUNAWAY = [
    r"(a+)+b",
    r"(a*)*b",
    r"(a|a)*b",
    r"(a|ab)*c",
    r"(?:a{1,3}b?)*c",
    r"(?:x.*)+y",
    r"(?:\w+\s?)*:",
    r"(?:a?){40}b",
    r".*x.*y.*z",
    r"x*x*y",
    r"\s*\S*\s*\S*\s*=",
    r"[a-z]{0,200}.{0,200}[a-z]{0,200}.{0,200}!",
    r"(?:a.{0,80}){1,9}b",
]
REFUSED = [
    (r"(a)\1", "a backreference"),
    (r"(?<!a)b", "a look-ahead or look-behind"),
    (r"a(?=b)", "a look-ahead or look-behind"),
    (r"(a)?(?(1)b|c)", "a conditional group"),
    (r"(?>a+)b", "the construct"),
    (r"a++b", "the construct"),
    (r"(?i)error", "a flag such as (?i)"),
    (r"(?i:error)", "a flag such as (?i:...)"),
    (r"(?x) a", "a flag such as (?i)"),
    (r"(?P<gpu>a)", "a group named gpu"),
    (r"a(", "missing )"),
    (r"a{99999999999}", "the repetition number is too large"),
    ("(" * 600 + "a" + ")" * 600, ""),
    ("|".join(f"a{number}[bc][de][fg][hi][jk][lm][no]" for number in range(40)), "too many alternatives"),
]
ALLOWED = [
    (r"NVRM: Xid \([^)]{1,60}\): (?:48|64),", ["NVRM: Xid"]),
    (r"^(?:[a-z_]\w{0,60}\.){0,8}[A-Z]\w{0,80}(?:Error|Exit): \S", ["Error: ", "Exit: "]),
    (r"Ranks? \d{1,7}(?:, \d{1,7}){0,9} failed to pass", ["failed to pass"]),
    (r"(?:Exceeded|exceeded) (?:job|step) memory limit", ["memory limit"]),
    (r"[Oo]ut of memory: Kill(?:ed)? process", ["ut of memory: Kill"]),
    (r"n(?:'|\u2019)t connect", ["n't connect", "n\u2019t connect"]),
    (r"^usage: .*$", ["usage: "]),
    (r"(?:a|b)c{2}d", ["accd", "bccd"]),
]
NOT_IMPLIED = [
    (r"GPU .{1,20} lost", ["GPU is lost"]),
    (r"GPU(?: is)? lost", ["GPU is lost"]),
    (r"Error|Fault", ["Error"]),
    (r"[Ee]rror: \S", ["Error: "]),
    (r"(?:code ){0,3}5", ["code "]),
    (r"\d\d\d\d", ["1234"]),
]


@pytest.mark.parametrize("pattern", RUNAWAY)
def test_what_may_run_away_is_refused(pattern: str) -> None:
    problem = problem_of(pattern, ["a", "b", "c", "x", "y", "z", ":", "=", "!"])
    assert problem is not None
    what, hint = problem
    assert what.startswith("pattern: ")
    assert hint


@pytest.mark.parametrize(("pattern", "what"), REFUSED, ids=[what or "deep" for _, what in REFUSED])
def test_what_cannot_be_proven_is_refused(pattern: str, what: str) -> None:
    problem = problem_of(pattern, ["a", "b", "e"])
    assert problem is not None
    assert problem[0].startswith(f"pattern: {what}")
    assert problem[1]


@pytest.mark.parametrize(("pattern", "literals"), ALLOWED, ids=[pattern for pattern, _ in ALLOWED])
def test_ordinary_patterns_pass(pattern: str, literals: list[str]) -> None:
    assert problem_of(pattern, literals) is None


@pytest.mark.parametrize(("pattern", "literals"), NOT_IMPLIED, ids=[pattern for pattern, _ in NOT_IMPLIED])
def test_a_literal_that_is_not_in_every_match_is_refused(pattern: str, literals: list[str]) -> None:
    problem = problem_of(pattern, literals)
    assert problem is not None
    assert problem[0].startswith("literals: a match need not hold one: ")


_ATOMS = st.sampled_from(["a", "b", ".", r"\w", r"\d", "[ab]", "[^b]", "ab", "ba "])
_REPEATS = st.sampled_from(["", "?", "*", "+", "{0,3}", "{1,40}", "{2}", "{0,400}"])


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    repeated = st.builds("{}{}".format, st.one_of(_ATOMS, inner.map("(?:{})".format)), _REPEATS)
    return st.one_of(
        repeated, st.lists(inner, min_size=1, max_size=3).map("".join), st.builds("(?:{}|{})".format, inner, inner)
    )


PATTERNS = st.recursive(_ATOMS, _grown, max_leaves=8)


@given(PATTERNS, st.sampled_from(["a", "b", "ab", "aab", "a1 ", "ba "]), st.sampled_from(["", "!", "b"]))
@settings(max_examples=400, deadline=None)
def test_whatever_passes_is_fast_on_hostile_lines(pattern: str, unit: str, end: str) -> None:
    """The proof against `re` itself: what is allowed takes a bounded time on lines of its own characters."""
    whole = f"{pattern}!!"
    if problem_of(whole, ["!!"]) is not None:
        return
    line = (unit * LONGEST_LINE)[: LONGEST_LINE - 1] + end
    begin = time.process_time()
    re.compile(whole).search(line)
    assert time.process_time() - begin < 1.0


@given(PATTERNS, st.text("ab1 !", max_size=30))
@settings(max_examples=300, deadline=None)
def test_what_matches_holds_a_literal(pattern: str, line: str) -> None:
    literals = ["ab", "ba", "!"]
    if problem_of(pattern, literals) is None and (match := re.search(pattern, line)):
        assert any(literal in match[0] for literal in literals)


@given(st.text(max_size=60))
@settings(max_examples=300, deadline=None)
def test_no_text_makes_the_check_itself_fail(pattern: str) -> None:
    assert problem_of(pattern, ["abcd"]) is None or all(problem_of(pattern, ["abcd"]) or ("",))
