"""What a signature is and how a file of them is read.

Owns the record `Signature` and the checks that keep a bad row out: an unknown field, a pattern that may run away
(pattern.py), an example that its own pattern misses. Reads text, never a file; finding the files is
config/signature_files.py.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

from pydantic import ValidationError

from slurm_recovery.detect.pattern import GROUPS, problem_of
from slurm_recovery.records import Record, Role, Source


class SignatureError(ValueError):
    """A signature file that cannot be used. One line: origin, entry, what, hint."""

    def __init__(self, origin: str, entry: str, what: str, hint: str) -> None:
        super().__init__(f"{origin}: {entry}: {what} ({hint})")


class Signature(Record):
    """One line that a known piece of software prints, and what it means.

    `pattern` is a regular expression over one decoded line without its prefix of rank and host; the groups
    rank, node and local_rank place the evidence, and there are no others. `literals` are texts one of which is in
    every line that the pattern can match: the scanner looks for them first, so the rarer the better. `log`
    narrows the signature to one kind of log, and with it says how far the line is trusted: a kernel log is
    root's word, a job's log its owner's. Of several that match a line the highest `priority` counts, then the
    role: noise before secondary before root before conditional. `source` names the software that prints the
    line, the file, and the versions in which it was seen there.
    """

    id: str
    reason: str
    role: Role
    pattern: str
    literals: tuple[str, ...]
    source: str
    example: str
    counterexample: str
    log: Source | None = None
    priority: int = 0

    @property
    def captures(self) -> tuple[str, ...]:
        """What the line itself says of its place: some of rank, node, local_rank."""
        return tuple(name for name in GROUPS if f"(?P<{name}>" in self.pattern)


_ROLE_ORDER = {Role.NOISE: 0, Role.SECONDARY: 1, Role.ROOT: 2, Role.CONDITIONAL: 3}
SHORTEST_LITERAL = 4
MOST_TEXT = 4000  # characters of one pattern or literal


def order(signature: Signature) -> tuple[int, int, str]:
    """The key by which signatures are tried on a line: the first that matches counts."""
    return (-signature.priority, _ROLE_ORDER[signature.role], signature.id)


def parse_signatures(text: str, origin: str, *, proven: bool = False) -> tuple[Signature, ...]:
    """The signatures of one TOML file (`[[signature]]` tables).

    `origin` is the file's name, for messages only. Raises SignatureError at the first bad entry. `proven`: the
    file is one of the package's, whose tests have made the checks; making them again costs every command 0.1 s.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SignatureError(origin, "file", f"not TOML: {_one_line(error)}", "quote patterns as '''...'''") from None
    unknown = sorted(set(tables) - {"signature"})
    if unknown:
        raise SignatureError(origin, unknown[0], "unknown table", "only [[signature]] tables belong here")
    entries = tables.get("signature", [])
    if not isinstance(entries, list):
        raise SignatureError(origin, "signature", "not a list of tables", "write [[signature]], in double brackets")
    return tuple(_signature(entry, origin, number, proven=proven) for number, entry in enumerate(entries, start=1))


def _signature(entry: Any, origin: str, number: int, *, proven: bool) -> Signature:
    name = str(entry.get("id", f"entry {number}")) if isinstance(entry, dict) else f"entry {number}"
    try:
        signature = Signature.model_validate(entry)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise SignatureError(origin, name, f"{field}: {first['msg']}", _hint(field)) from None
    if not proven:
        _check(signature, origin)
    return signature


def _hint(field: str) -> str:
    return f"fields: {', '.join(Signature.model_fields)}" if field else "a table of fields"


def _check(signature: Signature, origin: str) -> None:
    problem = next((found for check in _CHECKS if (found := check(signature))), None)
    if problem:
        raise SignatureError(origin, signature.id, *problem)


_Problem = tuple[str, str] | None


def _pattern_is_bounded(signature: Signature) -> _Problem:
    if max(map(len, (signature.pattern, *signature.literals))) > MOST_TEXT:
        return f"pattern: longer than {MOST_TEXT} characters", "write several signatures"
    return problem_of(signature.pattern, signature.literals)


def _literals_are_long(signature: Signature) -> _Problem:
    if not signature.literals or any(len(literal) < SHORTEST_LITERAL for literal in signature.literals):
        return "literals: too short or none", f"texts of {SHORTEST_LITERAL} characters or more, one in every match"
    return None


def _example_matches(signature: Signature) -> _Problem:
    if not _matches(signature, signature.example):
        return "example: not matched by its own pattern and literals", "correct the pattern or the example"
    return None


def _counterexample_differs(signature: Signature) -> _Problem:
    if _matches(signature, signature.counterexample):
        return "counterexample: matched all the same", "make the pattern stricter"
    return None


_CHECKS = (_literals_are_long, _pattern_is_bounded, _example_matches, _counterexample_differs)


def _matches(signature: Signature, line: str) -> bool:
    return any(text in line for text in signature.literals) and re.search(signature.pattern, line) is not None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
