"""The dumps of several ranks, compared: which rank did not come to an operation that others wait in.

Owns the comparison, and the sentences that it answers with. Of the ranks that others wait for, one that waits
for nobody itself is where it began: in a job of many process groups, the others' waiting is a chain that ends
there. Pure; what to make of the answer is decided in attribute/dump_rows.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from slurm_recovery.detect.flight_recorder import Call, Dump, Group, Track
from slurm_recovery.records import Evidence, Role, Source, Trust

MISMATCH = "flight_recorder_mismatch"  # ranks called different operations under one number
UNFINISHED = "flight_recorder_unfinished"  # a rank's GPU did not end what its peers' ended
BEHIND = "flight_recorder_behind"  # a rank did not ask for what others wait in
NOT_STARTED = "flight_recorder_not_started"  # a rank's GPU did not begin what its peers' began
ABSENT = "flight_recorder_no_dump"  # a rank left no dump, and others wait with it
STUCK = "flight_recorder_stuck"  # all came, and it did not end

MOST_NAMED = 16
LONGEST = 500

# No rank gets through these before every rank has come.
_TOGETHER = (
    "all_reduce",
    "allreduce",
    "barrier",
    "all_gather",
    "_all_gather",
    "reduce_scatter",
    "_reduce_scatter",
    "all_to_all",
)
# Every rank must give as many elements, of one type. Others may differ: all_to_all, gather, scatter, *_v.
_ALIKE = ("all_reduce", "reduce", "broadcast", "_all_gather_base", "_reduce_scatter_base", "allreduce_coalesced")


@dataclass(frozen=True)
class _Wait:
    """`waiter` is in `call`, to which `missed` has not come."""

    waiter: int
    missed: int
    group: Group
    call: Call


@dataclass(frozen=True)
class _Accused:
    """A rank that others wait for: in this call of this group, so many of them."""

    signature: str
    rank: int
    group: Group
    call: Call
    others: int


def compare(dumps: Iterable[Dump], *, unread: Collection[int] = (), world: int | None = None) -> tuple[Evidence, ...]:
    """What the dumps prove. `unread`: ranks whose dump is there and was not read; `world`: the ranks, if known."""
    look = _Comparison({dump.rank: dump for dump in dumps}, frozenset(unread), world)
    if len(look.dumps) < 2:
        return ()
    return look.mismatch() or look.accused() or look.absent() or look.stuck()


class _Comparison:
    def __init__(self, dumps: dict[int, Dump], unread: frozenset[int], world: int | None) -> None:
        self.dumps = {rank: dumps[rank] for rank in sorted(dumps)}
        self.unread, self.world = unread, world
        self.groups: dict[Group, dict[int, Track]] = {}
        for rank, dump in self.dumps.items():
            for group, track in dump.tracks.items():
                if not group.ranks or rank in _members(group.ranks):
                    self.groups.setdefault(group, {})[rank] = track
        for group, tracks in self.groups.items():
            if group.desc == "default_pg" and not group.ranks:  # gloo: every rank is in it
                for rank in self.dumps:
                    tracks.setdefault(rank, Track())

    # What one rank has done in one group; None where the dump does not tell.

    def enqueued(self, group: Group, rank: int) -> int | None:
        track = self.groups[group][rank]
        if track.last is not None:
            return track.last
        if track.status is not None:
            return track.status[0] if self._counts(group) else None
        # A group has a status since its first operation.
        return 0 if self.dumps[rank].every_status else None

    def finished(self, group: Group, rank: int) -> int | None:
        track = self.groups[group][rank]
        if track.open:
            return min(call.number for call in track.open) - 1
        if track.finished is not None:
            return track.finished
        return track.status[1] if track.status is not None and self._counts(group) else None

    def _counts(self, group: Group) -> bool:
        """Whether pg_status counts collectives here: sends and receives are counted into the same number."""
        if group not in self._counted:
            tracks = self.groups[group].values()
            agree = all(t.last == t.status[0] for t in tracks if t.last is not None and t.status is not None)
            self._counted[group] = agree and not any(track.exchanged for track in tracks)
        return self._counted[group]

    @cached_property
    def _counted(self) -> dict[Group, bool]:
        return {}

    # Who waits for whom.

    @cached_property
    def waits(self) -> tuple[_Wait, ...]:
        """Ranks in a collective to which another has not come."""
        return tuple(wait for group in self.groups for wait in self._waits(group))

    def _waits(self, group: Group) -> Iterator[_Wait]:
        tracks = self.groups[group]
        open_calls = {rank: _open(track) for rank, track in tracks.items()}
        highest = max((calls[-1].number for calls in open_calls.values() if calls), default=0)
        reached = {rank: self.enqueued(group, rank) for rank in tracks}
        behind = {rank: number for rank, number in reached.items() if number is not None and number < highest}
        for waiter, calls in open_calls.items():
            for missed, number in behind.items():
                call = next((call for call in calls if call.number > number), None)
                if call is not None and waiter != missed:
                    yield _Wait(waiter, missed, group, call)

    @cached_property
    def exchanges(self) -> tuple[_Wait, ...]:
        """Ranks in a send or receive to which the other side has not come."""
        return tuple(wait for group in self.groups if group.ranks for wait in self._exchanges(group))

    def _exchanges(self, group: Group) -> Iterator[_Wait]:
        sides = {(rank, *pair): calls for rank, track in self.groups[group].items() for pair, calls in _sides(track)}
        for (rank, source, target), calls in sides.items():
            if not max(source, target) < len(group.ranks) or rank not in (group.ranks[source], group.ranks[target]):
                continue
            other = group.ranks[target] if rank == group.ranks[source] else group.ranks[source]
            if other in self.groups[group] and len(sides.get((other, source, target), ())) < len(calls):
                yield _Wait(rank, other, group, calls[0])

    @cached_property
    def unstarted(self) -> tuple[_Wait, ...]:
        """Ranks whose GPU is in a collective that another's has in its queue and has not begun."""
        return tuple(wait for group in self.groups for wait in self._unstarted(group))

    def _unstarted(self, group: Group) -> Iterator[_Wait]:
        tracks = self.groups[group]
        began: dict[int, list[tuple[int, Call]]] = defaultdict(list)
        for rank, track in tracks.items():
            if track.open and track.open[0].started:
                began[track.open[0].number].append((rank, track.open[0]))
        for missed, track in tracks.items():
            if track.open and not track.open[0].started and self.dumps[missed].tells_starts:
                yield from (_Wait(rank, missed, group, call) for rank, call in began[track.open[0].number])

    # What follows from it, the strongest first.

    def mismatch(self) -> tuple[Evidence, ...]:
        found = [different for group in self.groups for different in self._mismatch(group)]
        return tuple(evidence for _, evidence in sorted(found, key=lambda pair: pair[0])[:MOST_NAMED])

    def _mismatch(self, group: Group) -> Iterator[tuple[int, Evidence]]:
        """The first number under which the ranks of a group called different operations, one of them not done."""
        by_number: dict[int, dict[int, list[Call]]] = defaultdict(dict)
        for rank, track in self.groups[group].items():
            for call in track.collectives:
                if call.number != track.first or self.dumps[rank].from_start:
                    by_number[call.number].setdefault(rank, []).append(call)
        for number in sorted(by_number):
            ranks = by_number[number]
            if len({len(calls) for calls in ranks.values()}) > 1:
                continue  # one of them tells only part of what was coalesced
            told = {rank: tuple(map(_shape, calls)) for rank, calls in ranks.items()}
            if len(set(told.values())) > 1 and self._anyone_in(group, ranks):
                yield min(calls[0].created for calls in ranks.values()), self._different(group, ranks, told)
                return

    def _anyone_in(self, group: Group, ranks: dict[int, list[Call]]) -> bool:
        """Whether a rank may be in one of the calls. Without states, that can only be what it did last."""
        tracks = self.groups[group]
        return any(
            not call.done and (call.tells_state or call.number == tracks[rank].last)
            for rank, calls in ranks.items()
            for call in calls
        )

    def _different(self, group: Group, ranks: dict[int, list[Call]], told: dict[int, tuple[str, ...]]) -> Evidence:
        usual, votes = Counter(told[rank] for rank in sorted(told)).most_common(1)[0]
        odd = [rank for rank in sorted(told) if told[rank] != usual]
        rank = odd[0] if len(odd) == 1 and votes > 1 else None
        first = odd[0]
        sentence = (
            f"{_ranks(odd)} of {group} called {' and '.join(told[first])} as #{ranks[first][0].number} "
            f"where {votes} {'others' if votes > 1 else 'other'} called {' and '.join(usual)}"
        )
        return self._evidence(MISMATCH, "collective_mismatch", Role.ROOT, sentence, rank, first, ranks[first][0])

    def accused(self) -> tuple[Evidence, ...]:
        for kind in (self._unfinished, self._behind, self._not_started, self._not_exchanged):
            found = sorted(kind(), key=lambda one: one.rank)
            if found and len({one.rank for one in found}) <= self._waiters(found):
                return tuple(self._told(one) for one in found[:MOST_NAMED])
        return ()

    def _waiters(self, found: Sequence[_Accused]) -> int:
        """How many wait for them; where fewer wait than are waited for, it is they who are ahead."""
        if found[0].signature == UNFINISHED:
            return max(one.others for one in found)
        ranks = {one.rank for one in found}
        return len({w.waiter for w in (*self.waits, *self.exchanges, *self.unstarted)} - ranks)

    def _unfinished(self) -> Iterator[_Accused]:
        """Ranks in a collective that most others of the group have behind them."""
        best: dict[int, _Accused] = {}
        for group, tracks in self.groups.items():
            finished = sorted(number for rank in tracks if (number := self.finished(group, rank)) is not None)
            for rank, track in tracks.items():
                call = track.open[0] if track.open else None
                if call is None or not call.operation.startswith(_TOGETHER):
                    continue
                ended = len(finished) - bisect_left(finished, call.number)
                if ended and 2 * ended >= len(tracks) and (rank not in best or ended > best[rank].others):
                    best[rank] = _Accused(UNFINISHED, rank, group, call, ended)
        yield from best.values()

    def _behind(self) -> Iterator[_Accused]:
        """Ranks that others wait for and that are in no operation themselves."""
        waiting = {wait.waiter for wait in (*self.waits, *self.exchanges)}
        idle = {rank for rank in self.dumps if rank not in waiting and not self._in_any(rank)}
        yield from _most_missed(BEHIND, [wait for wait in self.waits if wait.missed in idle])

    def _not_started(self) -> Iterator[_Accused]:
        if any(set(group.ranks) - set(self.dumps) for group in self.groups):
            return  # it may wait for one of those that left no dump
        waiting = {wait.waiter for wait in (*self.waits, *self.exchanges, *self.unstarted)}
        yield from _most_missed(NOT_STARTED, [wait for wait in self.unstarted if wait.missed not in waiting])

    def _not_exchanged(self) -> Iterator[_Accused]:
        waiting = {wait.waiter for wait in (*self.waits, *self.exchanges)}
        idle = {rank for rank in self.dumps if rank not in waiting and not self._in_any(rank)}
        yield from _most_missed(BEHIND, [wait for wait in self.exchanges if wait.missed in idle])

    def _in_any(self, rank: int) -> bool:
        return any(track.open or track.exchanges for track in self.dumps[rank].tracks.values())

    def absent(self) -> tuple[Evidence, ...]:
        """Ranks without a dump, with whom others wait: dead, or too stuck to write one."""
        known = set(self.dumps) | self.unread
        best: dict[int, _Accused] = {}
        for group, tracks in self.groups.items():
            members = group.ranks or (range(self.world or 0) if group.desc == "default_pg" else ())
            missing = [rank for rank in members if rank not in known][: 4 * MOST_NAMED]
            calls = [calls[0] for track in tracks.values() if (calls := _open(track))] if missing else []
            for rank in missing:
                if calls and (rank not in best or len(calls) > best[rank].others):
                    best[rank] = _Accused(ABSENT, rank, group, min(calls, key=_when), len(calls))
        if not best or len(best) > max(one.others for one in best.values()):
            return ()
        return tuple(self._told(best[rank]) for rank in sorted(best)[:MOST_NAMED])

    def stuck(self) -> tuple[Evidence, ...]:
        """The oldest collective to which all came and which did not end."""
        found: list[tuple[int, Group, Call, int]] = []
        for group, tracks in self.groups.items():
            calls = [track.open[0] for track in tracks.values() if track.open]
            if len(calls) > 1 and len(calls) == len(tracks) == len(group.ranks) and len({c.number for c in calls}) == 1:
                found.append((min(map(_when, calls)), group, min(calls, key=_when), len(calls)))
        if not found or self.waits:
            return ()
        _, group, call, count = min(found, key=lambda one: (one[0], str(one[1])))
        sentence = f"all {count} ranks of {group} came to {call}, and it did not end"
        return (self._evidence(STUCK, "nccl_timeout", Role.CONDITIONAL, sentence, None, min(self.groups[group]), call),)

    def _told(self, one: _Accused) -> Evidence:
        who, where = f"rank {one.rank} of {one.group}", f"{one.call}"
        others = f"{one.others} {'others' if one.others > 1 else 'other'}"
        sentence = {
            BEHIND: f"{who} did not reach {where} that {others} waited in",
            UNFINISHED: f"{who} did not get through {where} that {others} had behind them",
            NOT_STARTED: f"{who} had {where} in its queue and did not start it while {others} had",
            ABSENT: f"{who} left no dump, and {others} waited in {where}",
        }[one.signature]
        at = one.rank if one.rank in self.dumps else min(self.dumps)
        return self._evidence(one.signature, "nccl_timeout", Role.CONDITIONAL, sentence, one.rank, at, one.call)

    def _evidence(
        self, signature: str, reason: str, role: Role, sentence: str, rank: int | None, at: int, call: Call
    ) -> Evidence:
        return Evidence(
            source=Source.FLIGHT_RECORDER,
            trust=Trust.USER,
            signature=signature,
            reason=reason,
            role=role,
            line=sentence[:LONGEST],
            place=self.dumps[at].path[:LONGEST],
            rank=rank,
            time=call.created / 1e9 if 0 < call.created < 1 << 62 else None,
        )


@lru_cache(maxsize=512)
def _members(ranks: tuple[int, ...]) -> frozenset[int]:
    return frozenset(ranks)


def _open(track: Track) -> list[Call]:
    """The collectives that a rank may be in, by their numbers: what is not done; without states, what it did last."""
    if track.open:
        return sorted(track.open, key=lambda call: call.number)
    last = track.collectives[-1] if track.collectives else None
    return [last] if last and not last.tells_state and last.operation.startswith(_TOGETHER) else []


def _sides(track: Track) -> list[tuple[tuple[int, int], list[Call]]]:
    """A rank's sends and receives that are not done, by source and target within the group."""
    found: dict[tuple[int, int], list[Call]] = defaultdict(list)
    for call in track.exchanges:
        if call.source is not None and call.target is not None and call.tells_state:
            found[call.source, call.target].append(call)
    return list(found.items())


def _most_missed(signature: str, waits: Iterable[_Wait]) -> Iterator[_Accused]:
    """Each rank with the call that most others wait for it in; of several the oldest."""
    waiters: dict[tuple[int, Group, int], dict[int, Call]] = defaultdict(dict)
    for wait in waits:
        waiters[wait.missed, wait.group, wait.call.number][wait.waiter] = wait.call
    best: dict[int, tuple[tuple[int, int, str], _Accused]] = {}
    for (rank, group, _), calls in waiters.items():
        first = min(calls.values(), key=_when)
        order = (-len(calls), _when(first), str(group))
        if rank not in best or order < best[rank][0]:
            best[rank] = order, _Accused(signature, rank, group, first, len(calls))
    yield from (accused for _, accused in best.values())


def _shape(call: Call) -> str:
    """An operation as it must be the same on every rank."""
    words = call.operation.upper()
    if call.operation not in _ALIKE:
        return words
    return f"{words} of {'+'.join(map(str, call.sizes))} {'/'.join(dict.fromkeys(call.dtypes))}".strip()


def _when(call: Call) -> int:
    return call.created


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:8]))}{', ...' if len(ranks) > 8 else ''}"
