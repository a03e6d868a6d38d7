"""Hands a log over piece by piece, unpacked if it is packed, and searches several blocks at once.

Owns how bytes come from a stream that is open already: nothing is opened here, and nothing is known of jobs.
"""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import Protocol, TypeVar

from slurm_recovery.detect.lines import PIECE

GZIP = b"\x1f\x8b\x08"
_HEADER_AND_WINDOW = 16 + zlib.MAX_WBITS  # zlib.decompressobj: a gzip file
THREADS = min(2, len(os.sched_getaffinity(0)))  # of a controller's processors, no more
FEW = 4  # blocks for which no thread is worth its start
AHEAD = 6  # blocks that are searched, or wait to be, before their turn

In = TypeVar("In")
Out = TypeVar("Out")


class Stream(Protocol):
    def read(self, size: int, /) -> bytes | None: ...


def read_pieces(stream: Stream) -> Iterator[bytes]:
    """A stream's bytes, in pieces of at most PIECE."""
    while piece := stream.read(PIECE):
        yield piece


class Unpacked:
    """A log's text in pieces, whether it is packed by gzip or not. `trouble` says what was wrong with the packing."""

    def __init__(self, read: Iterable[bytes], most: int) -> None:
        self._read, self._most = iter(read), most
        self.trouble = ""

    def __iter__(self) -> Iterator[bytes]:
        first = next(self._read, b"")
        whole = chain((first,) if first else (), self._read)
        return self._gunzip(whole) if first.startswith(GZIP) else whole

    def _gunzip(self, packed: Iterable[bytes]) -> Iterator[bytes]:
        """At most `most` bytes: a few packed bytes may hold terabytes."""
        left, members, begun = self._most, zlib.decompressobj(_HEADER_AND_WINDOW), False
        for data in packed:
            while data:
                begun = True
                try:
                    text = members.decompress(data, min(PIECE, left))
                except zlib.error as error:
                    self.trouble = f"the gzip data is damaged ({' '.join(str(error).split())})"
                    return
                left -= len(text)
                if text:
                    yield text
                if left <= 0:
                    self.trouble = f"only the first {self._most} bytes were unpacked"
                    return
                data = members.unconsumed_tail
                if members.eof:
                    data, members, begun = members.unused_data, zlib.decompressobj(_HEADER_AND_WINDOW), False
        if begun and not members.eof:
            self.trouble = "the gzip data is cut short"


def ahead(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same pieces, the next ones of which are read while one is worked on."""
    source = iter(pieces)
    yield from islice(source, FEW)
    following = next(source, None)
    if following is None:
        return
    with ThreadPoolExecutor(1) as pool:
        reading = deque(pool.submit(next, source, None) for _ in range(2))
        while following is not None:
            yield following
            following = reading.popleft().result()
            reading.append(pool.submit(next, source, None))


def side_by_side(search: Callable[[In], Out], blocks: Iterable[In]) -> Iterator[Out]:
    """`map` by a few threads: the answers come in order, and no more than AHEAD of them wait."""
    waiting = iter(blocks)
    yield from map(search, islice(waiting, FEW))
    following = next(waiting, None)
    if following is None:
        return
    with ThreadPoolExecutor(THREADS) as pool:
        running: deque[Future[Out]] = deque()
        for block in chain((following,), waiting):
            running.append(pool.submit(search, block))
            if len(running) > AHEAD:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
