"""A pickle is a program: what may run here, and what a hostile one may cost."""

from __future__ import annotations

import copyreg
import os
import pickle
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_recovery.detect.plain_pickle import NotPlain, loads

DUMPS = sorted((Path(__file__).parent / "data/flight").glob("*/*_rank_[0-9]"))
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(st.text(max_size=8) | st.integers(0, 9), inner, max_size=6)
        | st.tuples(inner)
        | st.tuples(inner, inner)
        | st.tuples(inner, inner, inner, inner)
    ),
    max_leaves=40,
)


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: f"{path.parent.name}-{path.name[-1]}")
def test_real_dumps_are_read_as_pickle_reads_them(path: Path) -> None:
    data = path.read_bytes()
    assert loads(data) == pickle.loads(data)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@settings(max_examples=60, deadline=None)
@given(value=PLAIN)
def test_plain_data_of_any_pickler_is_read(protocol: int, value: Any) -> None:
    assert loads(pickle.dumps(value, protocol)) == value


def test_a_float_only_takes_its_place() -> None:
    assert loads(pickle.dumps({"duration_ms": 2.5, "next": 3}, 2)) == {"duration_ms": 0.0, "next": 3}


class Evil:
    """What pickles to a call."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_nothing_is_called(tmp_path: Path, protocol: int) -> None:
    data = pickle.dumps({"version": "2.10", "entries": [Evil(tmp_path / "made")]}, protocol)
    with pytest.raises(NotPlain):
        loads(data)
    assert not (tmp_path / "made").exists()
    pickle.loads(data)
    assert (tmp_path / "made").exists()  # so it was an attack


@pytest.fixture
def extension() -> Iterator[int]:
    """An extension code for os.mkdir: pickle puts it on the stack without asking find_class once it is cached."""
    copyreg.add_extension("os", "mkdir", 240)
    yield 240
    copyreg.remove_extension("os", "mkdir", 240)


def test_no_extension_code_is_looked_up(extension: int, tmp_path: Path) -> None:
    target = str(tmp_path / "made").encode()
    call = b"X" + struct.pack("<I", len(target)) + target + b"\x85R."
    for opcode, form in ((b"\x82", "<B"), (b"\x83", "<H"), (b"\x84", "<I")):
        code = opcode + struct.pack(form, extension)
        with pytest.raises(NotPlain, match="opcode"):
            loads(b"\x80\x02" + code + call)
    assert not (tmp_path / "made").exists()


HOSTILE = {
    "global": b"cos\nsystem\n(X\x02\x00\x00\x00idtR.",
    "stack_global": b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    "inst": b"(X\x02\x00\x00\x00idios\nsystem\n.",
    "obj": b"(cos\nsystem\nX\x02\x00\x00\x00ido.",
    "newobj": b"\x80\x02cbuiltins\nobject\n)\x81.",
    "newobj_ex": b"\x80\x04)}\x92.",
    "build": b"\x80\x02}}b.",
    "reduce_of_data": b"\x80\x02X\x01\x00\x00\x00a)R.",
    "persistent_id": b"Pid\n.",
    "binary_persistent_id": b"\x80\x02K\x01Q.",
    "long4_of_two_gigabytes": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "long_as_text": b"L" + b"9" * 200_000 + b"L\n.",
    "text_longer_than_the_file": b"\x80\x02X\xff\xff\xff\xffa.",
    "text_of_eight_bytes_length": b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fa.",
    "bytearray_of_exabytes": b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "buffer": b"\x80\x05\x97.",
    "unknown_memo": b"\x80\x02j\xff\xff\xff\xff.",
    "memo_of_nothing": b"\x80\x02r\xff\xff\xff\xff.",
    "mark_that_is_not_there": b"\x80\x02u.",
    "tuple_of_nothing": b"\x80\x02\x87.",
    "append_to_a_dict": b"\x80\x02}K\x01a.",
    "items_of_a_list": b"\x80\x02](K\x01K\x02u.",
    "key_without_value": b"\x80\x02}(K\x01u.",
    "key_that_cannot_be_hashed": b"\x80\x02}]K\x01s.",
    "key_that_takes_a_deep_stack_to_hash": b"\x80\x02}N" + b"\x85" * 300_000 + b"K\x01s.",
    "end_without_a_value": b"\x80\x02.",
    "no_end": b"\x80\x02}",
    "set": b"\x80\x04\x8f.",
    "duplicate": b"\x80\x02]2.",
    "empty": b"",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_whatever_is_no_plain_data_is_refused_at_once(data: bytes) -> None:
    begin = time.process_time()
    with pytest.raises(NotPlain):
        loads(data)
    assert time.process_time() - begin < 1


def test_a_deep_nest_neither_overflows_nor_lasts() -> None:
    begin = time.process_time()
    depth = 500_000
    value = loads(b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b".")
    assert isinstance(value, list)
    del value
    assert time.process_time() - begin < 5


def test_a_memo_bomb_stays_as_small_as_its_bytes() -> None:
    """`[x, x]` forty times over: two to the fortieth values to whoever copies, forty lists to us."""
    step = b"q\x00](h\x00h\x00e"
    begin = time.process_time()
    value = loads(b"\x80\x02]" + step * 40 + b".")
    assert isinstance(value, list)
    assert time.process_time() - begin < 1


def test_a_huge_memo_index_takes_no_memory() -> None:
    assert loads(b"\x80\x02]r\xfe\xff\xff\xff0j\xfe\xff\xff\xff.".replace(b"0", b"")) == []


def test_steps_are_bounded() -> None:
    with pytest.raises(NotPlain, match="more than 4000000 steps"):
        loads(b"\x80\x02" + b"]" * 4_100_000)


def test_a_dump_cut_anywhere_is_refused() -> None:
    data = DUMPS[0].read_bytes()
    for length in range(len(data)):
        with pytest.raises(NotPlain):
            loads(data[:length])


@settings(max_examples=400, deadline=None)
@given(data=st.binary(max_size=400), at=st.integers(0, 3000), real=st.sampled_from(DUMPS))
def test_no_bytes_raise_anything_else(data: bytes, at: int, real: Path) -> None:
    whole = real.read_bytes()
    for attempt in (data, b"\x80\x02" + data, whole[:at] + data + whole[at + len(data) :]):
        try:
            loads(attempt)
        except NotPlain:
            continue
