"""Reads what a pickle would build, as symbols: nothing is imported, called or built.

A pickle is a program, and whoever wrote the file may have written any. Here a global is its name, a call is its name
with its arguments, and so on; memory and time are linear in the bytes. The opcodes are those of Python's pickletools
for protocol 2 to 5. Knows nothing of what the symbols mean.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable

MOST_STEPS = 20_000_000  # .metadata of 100,000 shards of tensors takes half of them


class NotPickled(ValueError):
    """Not a pickle, cut short, or with opcodes that no writer of checkpoints uses."""


class TooLong(NotPickled):
    """More steps than the bound, or than the deadline leaves time for."""


class Name:
    """A global: a class or a function, by its name alone."""

    __slots__ = ("text",)

    def __init__(self, module: str, name: str) -> None:
        self.text = f"{module}.{name}"


class Made:
    """What a call, or a new object, would have given."""

    __slots__ = ("args", "of", "state")

    def __init__(self, of: object, args: object) -> None:
        self.of, self.args = of, args
        self.state: object = None

    def field(self, name: str) -> object:
        """An attribute, as the state that BUILD would have set says it."""
        state = self.state
        if type(state) is tuple and len(state) == 2:  # an object with slots
            state = state[1]
        return state.texts.get(name) if type(state) is Dict else None


class Dict:
    """A dict. Only keys that are text are kept as keys: anything else may take for ever to hash."""

    __slots__ = ("others", "texts")

    def __init__(self) -> None:
        self.texts: dict[str, object] = {}
        self.others: list[object] = []

    def values(self) -> list[object]:
        return [*self.texts.values(), *self.others]

    def set(self, items: list[object]) -> None:
        texts, others = self.texts, self.others
        for key, value in zip(items[::2], items[1::2], strict=False):
            if type(key) is str:
                texts[key] = value
            else:
                others.append(value)


class Machine:
    """The stack machine over one buffer; `run` reads one pickle, and may be called again for the next."""

    def __init__(self, data: bytes, deadline: float = math.inf) -> None:
        self.data, self.at, self.deadline = data, 0, deadline
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}
        self.persistent: list[object] = []  # what BINPERSID was given

    def run(self, most: int = MOST_STEPS) -> object:
        """The next pickle's object. Raises NotPickled, and nothing else, whatever the bytes are."""
        self.stack, self.marks, self.memo, self.persistent = [], [], {}, []
        try:
            if not self._steps(most):
                raise TooLong(f"more than {most} steps")
            return self.stack[-1]
        except (IndexError, KeyError, struct.error) as error:
            raise NotPickled("cut short or damaged") from error

    def top(self, most: int) -> dict[str, object]:
        """The first keys and values of the dict that a pickle begins with, after at most that many steps."""
        self.stack, self.marks, self.memo, self.persistent = [], [], {}, []
        try:
            whole = self._steps(most)
        except (IndexError, KeyError, struct.error, NotPickled):
            whole = False
        if whole and self.stack and type(self.stack[-1]) is Dict:
            return self.stack[-1].texts
        found = Dict()
        if self.stack and type(self.stack[0]) is Dict:
            found.texts.update(self.stack[0].texts)
            if self.marks:
                end = self.marks[1] if len(self.marks) > 1 else len(self.stack)
                found.set(self.stack[self.marks[0] : end])
        return found.texts

    def _steps(self, most: int) -> bool:
        """True at STOP; False after that many steps. The opcodes that make up nine tenths of a .metadata come first."""
        data, opcodes, stack, memo, at = self.data, _OPCODES, self.stack, self.memo, self.at
        append, pop, get_long = stack.append, stack.pop, _LONG.unpack_from
        for count in range(most):
            if not count & 0xFFFF and time.monotonic() > self.deadline:
                raise TooLong("the time for looking was over")
            code = data[at]
            at += 1
            if code == _MEMOIZE:
                memo[len(memo)] = stack[-1]
            elif code == _LONG_BINGET:
                append(memo[get_long(data, at)[0]])
                at += 4
            elif code == _BINGET:
                append(memo[data[at]])
                at += 1
            elif code == _BININT1:
                append(data[at])
                at += 1
            elif code == _TUPLE1:
                append((pop(),))
            elif code == _TUPLE2:
                last = pop()
                append((pop(), last))
            elif code == _EMPTY_TUPLE:
                append(())
            elif code == _SHORT_BINUNICODE:
                begin = at + 1
                at = begin + data[at]
                append(data[begin:at].decode("utf-8", "replace"))
            elif code == _STOP:
                self.at = at
                return True
            else:
                step = opcodes.get(code)
                if step is None:
                    raise NotPickled(f"opcode {code:#04x} at byte {at - 1} is not one of a checkpoint's")
                self.at = at
                step(self)
                at = self.at
        return False

    def take(self, size: int) -> bytes:
        begin, self.at = self.at, self.at + size
        if self.at > len(self.data):
            raise NotPickled("cut short")
        return self.data[begin : self.at]

    def number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "little", signed=signed)

    def since_mark(self) -> list[object]:
        begin = self.marks.pop()
        items = self.stack[begin:]
        del self.stack[begin:]
        return items

    def pop(self) -> object:
        return self.stack.pop()

    def push(self, value: object) -> None:
        self.stack.append(value)

    def text(self, size_of_length: int) -> None:
        self.push(self.take(self.number(size_of_length)).decode("utf-8", "replace"))

    def octets(self, size_of_length: int) -> None:
        self.push(self.take(self.number(size_of_length)))

    def tuple_of(self, size: int) -> None:
        if len(self.stack) < size:
            raise NotPickled("nothing to make a tuple of")
        items = tuple(self.stack[-size:])
        del self.stack[-size:]
        self.push(items)

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def append(self, items: list[object]) -> None:
        if type(self.stack[-1]) is list:
            self.stack[-1].extend(items)

    def set(self, items: list[object]) -> None:
        target = self.stack[-1]
        if type(target) is Dict:
            target.set(items)

    def line(self) -> str:
        end = self.data.index(b"\n", self.at) if b"\n" in self.data[self.at : self.at + 4096] else -1
        if end < 0:
            raise NotPickled("a line without an end")
        line, self.at = self.data[self.at : end], end + 1
        return line.decode("utf-8", "replace")

    def named(self) -> None:
        name, module = self.pop(), self.pop()
        self.push(Name(str(module)[:200], str(name)[:200]) if type(name) is type(module) is str else Name("", ""))

    def called(self) -> None:
        args, of = self.pop(), self.pop()
        # An OrderedDict is a dict: state dicts are.
        is_dict = type(of) is Name and of.text == "collections.OrderedDict" and args == ()
        self.push(Dict() if is_dict else Made(of, args))

    def called_with_names(self) -> None:
        self.pop()
        self.called()

    def build(self) -> None:
        state, target = self.pop(), self.stack[-1]
        if type(target) is Made:
            target.state = state

    def referred(self) -> None:
        """BINPERSID: for torch, a storage."""
        self.persistent.append(self.pop())
        self.push(None)

    def two(self) -> list[object]:
        value, key = self.pop(), self.pop()
        return [key, value]


_STOP, _BINGET, _LONG_BINGET, _BININT1, _EMPTY_TUPLE = b".hjK)"
_MEMOIZE, _SHORT_BINUNICODE, _TUPLE1, _TUPLE2 = b"\x94\x8c\x85\x86"
_LONG = struct.Struct("<I")
_Step = Callable[[Machine], object]

# pickletools.opcodes, by their letters.
_ROWS: dict[bytes, _Step] = {
    b"j": lambda m: m.push(m.memo[m.number(4)]),  # LONG_BINGET
    b"q": lambda m: m.put(m.number(1)),  # BINPUT
    b"r": lambda m: m.put(m.number(4)),  # LONG_BINPUT
    b"(": lambda m: m.marks.append(len(m.stack)),  # MARK
    b"0": Machine.pop,  # POP
    b"1": Machine.since_mark,  # POP_MARK
    b"2": lambda m: m.push(m.stack[-1]),  # DUP
    b"]": lambda m: m.push([]),  # EMPTY_LIST
    b"}": lambda m: m.push(Dict()),  # EMPTY_DICT
    b")": lambda m: m.push(()),  # EMPTY_TUPLE
    b"\x8f": lambda m: m.push([]),  # EMPTY_SET
    b"\x90": lambda m: m.append(m.since_mark()),  # ADDITEMS
    b"\x91": lambda m: m.push(m.since_mark()),  # FROZENSET
    b"a": lambda m: m.append([m.pop()]),  # APPEND
    b"e": lambda m: m.append(m.since_mark()),  # APPENDS
    b"s": lambda m: m.set(m.two()),  # SETITEM
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
    b"\x8a": lambda m: m.push(m.number(m.number(1), signed=True)),  # LONG1
    b"\x8b": lambda m: m.push(m.number(min(m.number(4), 255), signed=True)),  # LONG4
    b"G": lambda m: m.push(struct.unpack(">d", m.take(8))[0]),  # BINFLOAT
    b"X": lambda m: m.text(4),  # BINUNICODE
    b"\x8d": lambda m: m.text(8),  # BINUNICODE8
    b"U": lambda m: m.octets(1),  # SHORT_BINSTRING
    b"T": lambda m: m.octets(4),  # BINSTRING
    b"C": lambda m: m.octets(1),  # SHORT_BINBYTES
    b"B": lambda m: m.octets(4),  # BINBYTES
    b"\x8e": lambda m: m.octets(8),  # BINBYTES8
    b"\x96": lambda m: m.octets(8),  # BYTEARRAY8
    b"c": lambda m: m.push(Name(m.line(), m.line())),  # GLOBAL
    b"\x93": Machine.named,  # STACK_GLOBAL
    b"R": Machine.called,  # REDUCE
    b"\x81": Machine.called,  # NEWOBJ
    b"\x92": Machine.called_with_names,  # NEWOBJ_EX
    b"b": Machine.build,  # BUILD
    b"Q": Machine.referred,  # BINPERSID
    b"\x80": lambda m: m.take(1),  # PROTO
    b"\x95": lambda m: m.take(8),  # FRAME: how much to read ahead; we have it all
}
_OPCODES: dict[int, _Step] = {letter[0]: step for letter, step in _ROWS.items()}


def whole(value: object) -> int | None:
    """A number of bytes, steps or ranks; None for anything else."""
    return value if type(value) is int and 0 <= value < 1 << 63 else None
