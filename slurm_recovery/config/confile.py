"""The file format of slurm.conf: `Key=Value` pairs, `#`, continuation by `\\`, `Include`.

Knows no setting. Yields every pair with its file and line, so that whoever refuses it can say where.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_BYTES = 1 << 20
MAX_DEPTH = 8
MAX_FILES = 256  # read in all, one that is included twice counted twice
_PAIR = re.compile(r"""\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*("[^"]*"|\S*)""")


class ConfigError(Exception):
    """A recovery.conf that cannot be used: one line with file, line, what, and a hint."""

    def __init__(self, origin: str, what: str, hint: str = "") -> None:
        super().__init__(f"{origin}: {what}" + (f"; hint: {hint}" if hint else ""))


@dataclass(frozen=True)
class Pair:
    """One `Key=Value` and where it stands."""

    key: str
    value: str
    origin: str


def read_lines(path: Path) -> Iterator[tuple[Pair, ...]]:
    """Each logical line as its pairs, includes followed (paths relative to the including file)."""
    yield from _read_lines(path, 0, iter(range(MAX_FILES)))


def _read_lines(path: Path, depth: int, room: Iterator[int]) -> Iterator[tuple[Pair, ...]]:
    if depth > MAX_DEPTH:
        raise ConfigError(str(path), f"more than {MAX_DEPTH} nested Include", "does the file include itself?")
    if next(room, None) is None:
        raise ConfigError(str(path), f"more than {MAX_FILES} files", "does a file include itself?")
    for number, line in _logical_lines(_read(path)):
        origin = f"{path}:{number}"
        words = line.split(None, 1)
        if words[0].lower() == "include":
            if len(words) != 2:
                raise ConfigError(origin, "Include without a file", "Include /etc/slurm/recovery.local.conf")
            yield from _read_lines(path.parent / words[1].strip(), depth + 1, room)
        else:
            yield _pairs(line, origin)


def _read(path: Path) -> str:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(str(path), "not a regular file", "Include takes a file of settings")
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        hint = "`srecover setup` writes a sample" if isinstance(error, FileNotFoundError) else ""
        raise ConfigError(str(path), error.strerror or "cannot be read", hint) from error
    if len(data) > MAX_BYTES:
        raise ConfigError(str(path), f"larger than {MAX_BYTES} bytes", "is this the right file?")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}", "not UTF-8 text", "save the file as UTF-8") from error


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """(number of the first physical line, text) with comments cut and continuations joined."""
    start, held = 0, ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = re.sub(r"(?<!\\)#.*", "", raw).rstrip()
        start = start or number
        if line.endswith("\\"):
            held += line[:-1] + " "
            continue
        if (held + line).strip():
            yield start, (held + line).strip()
        start, held = 0, ""
    if held.strip():
        yield start, held.strip()


def _pairs(line: str, origin: str) -> tuple[Pair, ...]:
    pairs, at = [], 0
    while at < len(line):
        match = _PAIR.match(line, at)
        if not match:
            what = f"not Key=Value: {line[at:].split()[0][:40]!r}"  # no more of it: a password may follow
            raise ConfigError(origin, what, "values with blanks go in double quotes")
        pairs.append(Pair(match[1], match[2].strip('"'), origin))
        at = match.end()
    return tuple(pairs)
