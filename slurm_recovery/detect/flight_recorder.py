"""One rank's dump of PyTorch's flight recorder, read into records.

Owns the dump's format: pickle or JSON, versions 1.x to 2.x as FlightRecorder.hpp writes them (2.10: PyTorch
2.13). Versions differ in the keys that they have, not in what a key means, so every key may be missing. The
file is the job's owner's: what does not fit is left out, and every list is bounded. What the dumps of several
ranks say together is compared in flight_compare.py.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

from pydantic import TypeAdapter, ValidationError

from slurm_recovery.detect.plain_pickle import MOST_STEPS, loads

MOST_RANKS = 1 << 17
MOST_GROUPS = 4096
MOST_NAME = 60
KEPT_CALLS = 48  # of one rank in one process group: the last, and those that are not done
KEPT_OPEN = 64
# The recorder is given no events by these backends, so their entries stay `scheduled` for ever.
WITHOUT_STATES = ("gloo",)

_ENTRIES = b"X\x07\x00\x00\x00entries"
_VERSION = re.compile(r"([12])\.(\d{1,4})")
_OPERATION = re.compile(r"([A-Za-z0-9_]{1,20}):([A-Za-z0-9_]{1,60})(?: (\d{1,7})(->|<-)(\d{1,7}))?")
_RANKS = re.compile(r"\d{1,7}")
_JSON: TypeAdapter[Any] = TypeAdapter(Any)


class NotDump(ValueError):
    """The bytes are no dump of a flight recorder, or one of a version that is not known."""


@dataclass(frozen=True)
class Group:
    """A process group. `ranks` are global ranks, in the group's own order; () where the dump does not tell them."""

    name: str
    desc: str = ""
    ranks: tuple[int, ...] = field(default=(), hash=False)  # thousands, in a key that is looked up as often

    def __str__(self) -> str:
        told = self.desc and self.desc != "undefined"
        return f"process group {self.name} ({self.desc})" if told else f"process group {self.name}"


@dataclass(frozen=True)
class Call:
    """One entry: an operation that the rank asked for. `source` and `target` are ranks within the group."""

    number: int  # collective_seq_id, or p2p_seq_id of a send or receive
    backend: str
    operation: str
    done: bool
    started: bool
    created: int  # nanoseconds since the epoch
    sizes: tuple[int, ...] = ()  # elements of each input
    dtypes: tuple[str, ...] = ()
    source: int | None = None
    target: int | None = None

    @property
    def tells_state(self) -> bool:
        return self.backend not in WITHOUT_STATES

    def __str__(self) -> str:
        """As the watchdog's OpType writes it: `ALLREDUCE #123`."""
        return f"{self.operation.upper().replace('ALL_TO_ALL', 'ALLTOALL').replace('ALL_', 'ALL')} #{self.number}"


@dataclass
class Track:
    """What one rank did in one process group."""

    collectives: deque[Call] = field(default_factory=lambda: deque(maxlen=KEPT_CALLS))
    open: list[Call] = field(default_factory=list)  # collectives that are not done
    exchanges: list[Call] = field(default_factory=list)  # sends and receives that are not done
    exchanged: bool = False  # whether there was any send or receive
    last: int | None = None  # the highest number of a collective that was asked for, by the entries
    finished: int | None = None  # the highest number of one that is done, by the entries
    first: int | None = None  # the lowest number in the buffer: its call may be there only in part
    status: tuple[int, int] | None = None  # last enqueued and last completed, by pg_status

    def take(self, call: Call) -> None:
        if call.source is not None:
            self.exchanged = True
            if not call.done and len(self.exchanges) < KEPT_OPEN:
                self.exchanges.append(call)
            return
        self.collectives.append(call)
        self.first = call.number if self.first is None else min(self.first, call.number)
        self.last = call.number if self.last is None else max(self.last, call.number)
        if call.done:
            self.finished = call.number if self.finished is None else max(self.finished, call.number)
        elif call.tells_state and len(self.open) < KEPT_OPEN:
            self.open.append(call)


@dataclass(frozen=True)
class Dump:
    """One rank's dump. `from_start`: the buffer holds everything since the process began."""

    rank: int
    path: str
    version: str
    tracks: dict[Group, Track]
    tells_starts: bool = False  # TORCH_NCCL_ENABLE_TIMING was set
    from_start: bool = False
    every_status: bool = False  # each of the pg_status belongs to a group by now


def looks_like_dump(head: bytes) -> bool:
    """Whether a file that begins so may be a dump: a dict of plain pickle, or a JSON object, with a version."""
    if head.startswith(b"\x80"):
        return b"}" in head[:16] and b"version" in head
    return head.lstrip().startswith(b"{") and (b'"version"' in head or b'"comm_lib_version"' in head)


def read_dump(data: bytes, rank: int, path: str, *, entries: bool = True) -> Dump:
    """The dump of a rank. Without `entries` only counters are read, in a hundredth of the time. Raises NotDump."""
    content = _content(data, entries)
    if not isinstance(content, Mapping) or not ("entries" in content or "pg_status" in content):
        raise NotDump("not a dump of a flight recorder")
    version = str(content.get("version"))[:20]
    if not _VERSION.fullmatch(version):
        raise NotDump(f"version {_name(version)} of the flight recorder is not known")
    return _dump(content, rank, path, version)


def _content(data: bytes, entries: bool) -> object:
    try:
        if data.startswith(b"\x80"):
            if not entries and (at := data.find(_ENTRIES)) > 0:
                data = data[:at] + b"u."  # the dict ends before its last and longest key
            return loads(data)
        if data.count(b"[") + data.count(b"{") + data.count(b",") > MOST_STEPS:
            raise NotDump("too many values")
        return _JSON.validate_json(data)
    except ValidationError:
        raise NotDump("not JSON") from None
    except ValueError as error:
        raise NotDump(str(error)) from error


def _dump(content: Mapping[str, object], rank: int, path: str, version: str) -> Dump:
    groups = _groups(content.get("pg_config"))
    tracks = {group: Track() for group in groups.values() if group.ranks}
    by_id: dict[str, Group] = {}
    starts, first_record = False, None
    for entry in _dicts(content.get("entries")):
        name, desc = _pair(entry.get("process_group"))
        call = _call(entry)
        if call is None or not name:
            continue
        configured = groups.get(name)
        group = configured if configured and configured.desc == desc else Group(name, desc)
        if len(tracks) < MOST_GROUPS or group in tracks:
            tracks.setdefault(group, Track()).take(call)
        by_id.setdefault(_name(entry.get("pg_id")), group)
        starts = starts or bool(_int(entry.get("time_discovered_started_ns")))
        first_record = _int(entry.get("record_id")) if first_record is None else first_record
    every = _statuses(content.get("pg_status"), groups, by_id, tracks)
    return Dump(rank, path, version, tracks, tells_starts=starts, from_start=first_record == 0, every_status=every)


def _groups(config: object) -> dict[str, Group]:
    found: dict[str, Group] = {}
    for name, told in list(_items(config))[:MOST_GROUPS]:
        if isinstance(told, Mapping):
            found[_name(name)] = Group(_name(name), _name(told.get("desc")), _ranks(told.get("ranks")))
    return found


def _ranks(told: object) -> tuple[int, ...]:
    """Written as a text, `[0, 1, 2]`: ranks_str() in TraceUtils.h."""
    if isinstance(told, str):
        return _ranks_of(told[: 8 * MOST_RANKS])
    return tuple(rank for rank in map(_int, told[:MOST_RANKS]) if rank is not None) if isinstance(told, list) else ()


@lru_cache(maxsize=256)
def _ranks_of(text: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in _RANKS.findall(text)[:MOST_RANKS])


def _statuses(told: object, groups: Mapping[str, Group], by_id: dict[str, Group], tracks: dict[Group, Track]) -> bool:
    """Gives every pg_status to its group. It is written by pg_id, which only entries tie to a name."""
    statuses = {_name(key): value for key, value in list(_items(told))[:MOST_GROUPS] if isinstance(value, Mapping)}
    known = _by_order(statuses, groups) or {}
    if any(known.get(number, group) != group for number, group in by_id.items()):
        known = {}
    known |= by_id
    for number, status in statuses.items():
        enqueued = _int(status.get("last_enqueued_collective"))
        completed = _int(status.get("last_completed_collective"))
        if number in known and enqueued is not None and completed is not None:
            tracks.setdefault(known[number], Track()).status = enqueued, completed
    return bool(statuses) and all(number in known for number in statuses)


def _by_order(statuses: Iterable[str], groups: Mapping[str, Group]) -> dict[str, Group] | None:
    """Ids and names are both counted up as groups are made (distributed_c10d.py, _process_group_name)."""
    ids, names = list(statuses), list(groups)
    if len(ids) != len(names) or not all(text.isdecimal() for text in (*ids, *names)):
        return None
    return {number: groups[name] for number, name in zip(sorted(ids, key=int), sorted(names, key=int), strict=True)}


def _call(entry: Mapping[str, object]) -> Call | None:
    match = _OPERATION.fullmatch(_text(entry.get("profiling_name")))
    if match is None:
        return None
    backend, operation, one, arrow, other = match.groups()
    source, target = (one, other) if arrow == "->" else (other, one)
    exchange = source is not None or entry.get("is_p2p") is True
    # Version 1 had one seq_id for all.
    key = "p2p_seq_id" if exchange else "collective_seq_id"
    number = _int(entry.get(key, entry.get("seq_id")))
    if number is None or (exchange and source is None and operation != "coalesced"):
        return None
    state = entry.get("state")
    return Call(
        number,
        backend,
        operation,
        done=state == "completed",
        started=state in ("started", "completed"),
        created=_int(entry.get("time_created_ns")) or 0,
        sizes=_sizes(entry.get("input_sizes")),
        dtypes=_texts(entry.get("input_dtypes")),
        source=int(source) if exchange and source is not None else (-1 if exchange else None),
        target=int(target) if exchange and target is not None else None,
    )


def _sizes(told: object) -> tuple[int, ...]:
    """Elements of each tensor."""
    if not isinstance(told, list | tuple):
        return ()
    return tuple(prod(_int(size) or 0 for size in sizes[:8]) for sizes in told[:8] if isinstance(sizes, list | tuple))


def _texts(told: object) -> tuple[str, ...]:
    return tuple(_name(text) for text in told[:8]) if isinstance(told, list | tuple) else ()


def _pair(told: object) -> tuple[str, str]:
    """(group_name, group_desc); version 1 had the name alone."""
    if isinstance(told, list | tuple):
        return (_name(told[0]) if told else ""), (_name(told[1]) if len(told) > 1 else "")
    return _text(told)[:MOST_NAME], ""


def _dicts(told: object) -> list[Mapping[str, object]]:
    return [one for one in told if isinstance(one, Mapping)] if isinstance(told, list) else []


def _items(told: object) -> Iterable[tuple[object, object]]:
    return told.items() if isinstance(told, Mapping) else ()


def _name(value: object) -> str:
    """A name, short and printable."""
    if isinstance(value, int):
        return str(value) if -(1 << 63) <= value < 1 << 64 else ""
    return "".join(char if char.isprintable() else " " for char in _text(value)[:MOST_NAME])


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _int(value: object) -> int | None:
    """A number of 64 bits; the JSON form writes some as texts."""
    if isinstance(value, str) and len(value) < 20 and value.removeprefix("-").isdecimal():
        value = int(value)
    return value if type(value) is int and -(1 << 63) <= value < 1 << 64 else None
