"""Reads a pickle of plain data: texts, numbers, lists, tuples and dicts, and nothing else.

A pickle is a program, and whoever wrote the file may have written any. So nothing is imported, called or built
here: an opcode that names a global, calls, or takes more than the bytes at hand is refused. Memory and time are
linear in the bytes. The opcodes are those of PyTorch's own pickler (torch/csrc/jit/serialization/pickler.h) and
those that Python's writes for the same data (protocol 2 to 5). Knows nothing of what the data means.
"""

from __future__ import annotations

from collections.abc import Callable

MOST_STEPS = 4_000_000  # 20 times what a dump of 2000 collectives with their stacks takes


class NotPlain(ValueError):
    """Not a pickle, cut short, or one that holds more than plain data."""


class _Machine:
    """The stack machine of pickletools, without the opcodes that do anything."""

    __slots__ = ("at", "data", "marks", "memo", "stack")

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}

    def run(self) -> object:
        data, opcodes, stack, memo = self.data, _OPCODES, self.stack, self.memo
        for _ in range(MOST_STEPS):
            code = data[self.at]
            self.at += 1
            if code == _BINGET:  # more than half of all: every key of a dump after its first use
                stack.append(memo[data[self.at]])
                self.at += 1
                continue
            if code == _STOP:
                return stack[-1]
            step = opcodes.get(code)
            if step is None:
                raise NotPlain(f"opcode {code:#04x} at byte {self.at - 1} is not one of plain data")
            step(self)
        raise NotPlain(f"more than {MOST_STEPS} steps")

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        begin, self.at = self.at, self.at + size
        if self.at > len(self.data):
            raise NotPlain("cut short")
        return self.data[begin : self.at]

    def number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "little", signed=signed)

    def since_mark(self) -> list[object]:
        """What was pushed since the last mark, taken off the stack."""
        begin = self.marks.pop()
        items = self.stack[begin:]
        del self.stack[begin:]
        return items

    def push(self, value: object) -> None:
        self.stack.append(value)

    def text(self, size_of_length: int) -> None:
        self.stack.append(self.take(self.number(size_of_length)).decode("utf-8", errors="replace"))

    def whole(self) -> None:
        """LONG1: the length in one byte, so at most 255 of them."""
        self.stack.append(self.number(self.number(1), signed=True))

    def real(self) -> None:
        """A float takes its place; nothing here needs its value."""
        self.take(8)
        self.stack.append(0.0)

    def tuple_of(self, size: int) -> None:
        if len(self.stack) < size:
            raise NotPlain("nothing to make a tuple of")
        items = tuple(self.stack[-size:])
        del self.stack[-size:]
        self.stack.append(items)

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def append(self, items: list[object]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise NotPlain("appends to what is no list")
        target.extend(items)

    def set(self, items: list[object]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise NotPlain("sets keys of what is no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) is not str and type(key) is not int:  # anything else may take for ever to hash
                raise NotPlain("a key that is neither text nor number")
            target[key] = value

    def last(self, count: int) -> list[object]:
        if len(self.stack) <= count:
            raise NotPlain("nothing on the stack")
        items = self.stack[-count:]
        del self.stack[-count:]
        return items


_STOP, _BINGET = ord("."), ord("h")
_Step = Callable[[_Machine], None]

# pickletools.opcodes, by their letters.
_ROWS: dict[bytes, _Step] = {
    b"j": lambda m: m.push(m.memo[m.number(4)]),  # LONG_BINGET
    b"q": lambda m: m.put(m.number(1)),  # BINPUT
    b"r": lambda m: m.put(m.number(4)),  # LONG_BINPUT
    b"\x94": lambda m: m.put(len(m.memo)),  # MEMOIZE
    b"(": lambda m: m.marks.append(len(m.stack)),  # MARK
    b"]": lambda m: m.push([]),  # EMPTY_LIST
    b"}": lambda m: m.push({}),  # EMPTY_DICT
    b")": lambda m: m.push(()),  # EMPTY_TUPLE
    b"a": lambda m: m.append(m.last(1)),  # APPEND
    b"e": lambda m: m.append(m.since_mark()),  # APPENDS
    b"s": lambda m: m.set(m.last(2)),  # SETITEM
    b"u": lambda m: m.set(m.since_mark()),  # SETITEMS
    b"t": lambda m: m.push(tuple(m.since_mark())),  # TUPLE
    b"\x85": lambda m: m.tuple_of(1),
    b"\x86": lambda m: m.tuple_of(2),
    b"\x87": lambda m: m.tuple_of(3),
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"K": lambda m: m.push(m.number(1)),  # BININT1
    b"M": lambda m: m.push(m.number(2)),  # BININT2
    b"J": lambda m: m.push(m.number(4, signed=True)),  # BININT
    b"\x8a": _Machine.whole,  # LONG1
    b"G": _Machine.real,  # BINFLOAT
    b"X": lambda m: m.text(4),  # BINUNICODE
    b"\x8c": lambda m: m.text(1),  # SHORT_BINUNICODE
    b"\x80": lambda m: _nothing(m.take(1)),  # PROTO
    b"\x95": lambda m: _nothing(m.take(8)),  # FRAME: how much to read ahead; we have it all
}
_OPCODES: dict[int, _Step] = {letter[0]: step for letter, step in _ROWS.items()}


def _nothing(_: bytes) -> None:
    """An argument that tells nothing here."""


def loads(data: bytes) -> object:
    """What the pickle holds. Raises NotPlain, and nothing else, whatever the bytes are."""
    try:
        return _Machine(data).run()
    except (IndexError, KeyError) as error:  # an empty stack, a mark or memo that is not there, no more bytes
        raise NotPlain("cut short or damaged") from error
