"""Finds and reads the dumps of PyTorch's flight recorder that a job left beside its log, as the job's user.

Owns which files are looked at, and the bounds: names, bytes, memory, time. All is done in a child that has given
root up for good: it lists the folders, opens regular files of the job's user without following links, reads and
compares them, and answers with evidence. That answer is a user's word, whatever it says of itself. What a dump
holds is known in detect/flight_recorder.py.
"""

from __future__ import annotations

import os
import re
import resource
import stat
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import ValidationError

from slurm_recovery.detect.flight_compare import compare
from slurm_recovery.detect.flight_recorder import Dump, NotDump, looks_like_dump, read_dump
from slurm_recovery.evidence.as_user import Child, TooLate, Write
from slurm_recovery.records import Attempt, Evidence, Gap, Record, Source, Trust

MOST_LISTED = 200_000  # names of one folder
MOST_FILES = 4096
MOST_FOLDERS = 16
MOST_DUMP = 32 << 20  # bytes of one dump; of a longer one only the counters are read
HEAD = 1 << 20  # where the counters stand
MEMORY = 1 << 30  # bytes that the child may take on top of what it was born with
MOST_ANSWER = 1 << 20
MOST_GAPS = 8
WRITTEN_AFTER = 120.0  # seconds that a dump may be written after the end that Slurm tells
CLOCKS = 2.0  # seconds by which a file server's clock may be off

# TORCH_FR_DUMP_TEMP_FILE and TORCH_NCCL_DEBUG_INFO_TEMP_FILE are prefixes, and the rank follows.
_NAME = re.compile(r"(.{0,200}?)(\d{1,7})(\.json|\.pkl|\.pickle)?")
_LIKELY = re.compile(r"trace|dump|flight|rank|nccl", re.IGNORECASE)
_FOLDER = re.compile(r"trace|dump|flight|nccl", re.IGNORECASE)


class Traces(Record):
    """What the dumps of an attempt prove, and what of them could not be read."""

    evidence: tuple[Evidence, ...] = ()
    gaps: tuple[Gap, ...] = ()


class _File(NamedTuple):
    rank: int
    folder: str
    name: str


def read_traces(attempt: Attempt, logs: Iterable[str], *, most: int, timeout: float) -> Traces:
    """Looks beside the logs for at most `timeout` seconds, and reads at most `most` bytes."""
    folders = tuple(dict.fromkeys(os.path.dirname(path) for path in logs))[:MOST_FOLDERS]
    if not folders or timeout <= 0:
        return Traces()
    deadline = time.monotonic() + timeout

    def work(write: Write) -> None:
        _bound_memory()
        read = _Reader(attempt, most, time.monotonic() + 0.8 * timeout).read(folders)
        write(b"+" + read.model_dump_json().encode())

    with Child(work, attempt.user_id, deadline) as child:
        try:
            answer = child.read(MOST_ANSWER)
        except TooLate:
            return Traces(gaps=(_gap(folders[0], f"no answer within {timeout:g} s (TraceTimeout)"),))
    return _checked(answer, folders[0])


def _checked(answer: bytes, folder: str) -> Traces:
    """The child's answer, as what it is: the word of the job's user."""
    if not answer.startswith(b"+"):
        return Traces(gaps=(_gap(folder, answer[1:500].decode(errors="replace") or "the reader died"),))
    try:
        read = Traces.model_validate_json(answer[1:])
    except ValidationError:
        return Traces(gaps=(_gap(folder, "the reader's answer is damaged"),))
    mine = {"source": Source.FLIGHT_RECORDER, "trust": Trust.USER}
    return Traces(
        evidence=tuple(one.model_copy(update=mine) for one in read.evidence),
        gaps=tuple(_gap(one.what, one.why) for one in read.gaps[: MOST_GAPS + 1]),
    )


def _gap(what: str, why: str) -> Gap:
    return Gap(source=Source.FLIGHT_RECORDER, what=_shown(what), why=_shown(why))


def _shown(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:500])


def _bound_memory() -> None:
    with open("/proc/self/statm", "rb") as statm:
        born = int(statm.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = born + MEMORY if hard == resource.RLIM_INFINITY else min(hard, born + MEMORY)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


@dataclass
class _Reader:
    """The child's work. `until`: a time of time.monotonic() at which it is content with what it has."""

    attempt: Attempt
    most: int
    until: float
    gaps: list[Gap] = field(default_factory=list)

    def read(self, folders: Sequence[str]) -> Traces:
        dumps: list[Dump] = []
        unread: set[int] = set()
        files = self._chosen(folders)
        half = time.monotonic() + max(0.0, self.until - time.monotonic()) / 2
        brief = 0
        for count, file in enumerate(files):
            if time.monotonic() >= self.until or self.most <= 0:
                unread.update(one.rank for one in files[count:])
                bound = "TraceBytes" if self.most <= 0 else "TraceTimeout"
                self._missed(files[0].folder, f"{len(files) - count} of {len(files)} dumps were not read ({bound})")
                break
            entries = time.monotonic() < half
            brief += not entries
            try:
                dumps.append(self._dump(file, entries=entries))
            except (NotDump, OSError, MemoryError) as error:
                unread.add(file.rank)
                self._missed(os.path.join(file.folder, file.name), str(error) or type(error).__name__)
        if brief:
            told = f"of {brief} of {len(files)} dumps only the counters were read (TraceTimeout)"
            self._missed(files[0].folder, told)
        return Traces(evidence=compare(dumps, unread=unread, world=_world(self.attempt)), gaps=tuple(self.gaps))

    def _dump(self, file: _File, *, entries: bool) -> Dump:
        handle, status = _open(file, self.attempt.user_id)
        try:
            whole = entries and status.st_size <= min(MOST_DUMP, self.most)
            data = _bytes(handle, status.st_size if whole else min(HEAD, self.most))
        finally:
            os.close(handle)
        self.most -= len(data)
        return read_dump(data, file.rank, os.path.join(file.folder, file.name), entries=whole)

    def _missed(self, what: str, why: str) -> None:
        if len(self.gaps) < MOST_GAPS:
            self.gaps.append(_gap(what, why))
        elif len(self.gaps) == MOST_GAPS:
            self.gaps.append(_gap(what, f"{why}; and more like this"))

    def _chosen(self, folders: Sequence[str]) -> list[_File]:
        """The dumps of this attempt, by rank: all of one prefix, for two jobs may have written into one folder."""
        sets: dict[tuple[str, str, str], dict[int, _File]] = {}
        for key, files in self._named(folders):
            found = {file.rank: file for file in files[:MOST_FILES] if self._is_ours(file)}
            if found:
                sets[key] = found
        if not sets:
            return []
        best = max(sets, key=lambda key: (*self._likely(key), len(sets[key]), key))
        for folder, prefix, suffix in sets:
            if (folder, prefix, suffix) != best:
                other = os.path.join(folder, f"{prefix}*{suffix}")
                self._missed(other, f"another prefix than {os.path.join(best[0], best[1])}*: not read")
        return [sets[best][rank] for rank in sorted(sets[best])]

    def _likely(self, key: tuple[str, str, str]) -> tuple[bool, bool]:
        folder, prefix, _ = key
        return str(self.attempt.job_id) in f"{folder}/{prefix}", _LIKELY.search(prefix) is not None

    def _named(self, folders: Sequence[str]) -> list[tuple[tuple[str, str, str], list[_File]]]:
        """What is named as a dump may be, the likeliest names first."""
        named: dict[tuple[str, str, str], list[_File]] = defaultdict(list)
        for folder in self._with_inner(folders):
            try:
                for name in _listed(folder):
                    if match := _NAME.fullmatch(name):
                        named[folder, match[1], match[3] or ""].append(_File(int(match[2]), folder, name))
            except OSError as error:
                self._missed(folder, error.strerror or type(error).__name__)
        return sorted(named.items(), key=lambda item: (not _LIKELY.search(item[0][1]), item[0]))[:MOST_FILES]

    def _with_inner(self, folders: Sequence[str]) -> list[str]:
        """The folders, and those in them that are named after the dumps or the job."""
        found = list(folders)
        for folder in folders:
            inner: list[str] = []
            try:
                with os.scandir(folder) as entries:
                    for _, entry in zip(range(MOST_LISTED), entries, strict=False):
                        ours = _FOLDER.search(entry.name) or str(self.attempt.job_id) in entry.name
                        if ours and entry.is_dir(follow_symlinks=False):
                            inner.append(entry.path)
            except OSError:
                continue  # said where its files are listed
            found += sorted(inner)
        return list(dict.fromkeys(found))[:MOST_FOLDERS]

    def _is_ours(self, file: _File) -> bool:
        """Whether it is a dump by its first bytes, and written during this attempt."""
        if time.monotonic() >= self.until:
            return False
        try:
            handle, status = _open(file, self.attempt.user_id)
        except (OSError, NotDump):
            return False
        try:
            return self._during(status.st_mtime) and looks_like_dump(_bytes(handle, 4096))
        except OSError:
            return False
        finally:
            os.close(handle)

    def _during(self, written: float) -> bool:
        start, end = self.attempt.start_time, self.attempt.end_time
        return (start is None or written >= start - CLOCKS) and (end is None or written <= end + WRITTEN_AFTER)


def _listed(folder: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for _, entry in zip(range(MOST_LISTED), entries, strict=False):
            yield entry.name


def _open(file: _File, user_id: int) -> tuple[int, os.stat_result]:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    handle = os.open(os.path.join(file.folder, file.name), flags)
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != user_id:
        os.close(handle)
        raise NotDump("not a regular file of the job's user")
    return handle, status


def _bytes(handle: int, most: int) -> bytes:
    data = bytearray()
    while len(data) < most and (block := os.pread(handle, min(1 << 20, most - len(data)), len(data))):
        data += block
    return bytes(data)


def _world(attempt: Attempt) -> int | None:
    """How many ranks there are, where each is a task of its own."""
    per_node = attempt.ntasks_per_node
    return len(attempt.nodes) * per_node if per_node and per_node > 1 and attempt.nodes else None
