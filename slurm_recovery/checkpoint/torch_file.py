"""Whether a file that torch.save wrote is whole, and the plain values at its top, without torch.

Since torch 1.6 such a file is a zip archive (torch/serialization.py, caffe2/serialize/inline_container.cc): its
records one after the other, not compressed, then the central directory and the end record. A file that was cut, or
whose tail is zeros after a crash, has no end record. The format before it is a row of pickles and then each storage,
with its length; the pickles tell how long the file must be. A pickle that is neither must end with its STOP.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from slurm_recovery.checkpoint.look import Broken, File, Look, Unseen, printable
from slurm_recovery.checkpoint.pickled import Machine, Made, Name, NotPickled, TooLong, whole

SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".distcp")
LONGEST_DIRECTORY = 32 << 20  # of a zip: some 300,000 records
LONGEST_PICKLE = 32 << 20
LOCAL_HEADERS = 16  # of how many records the header is read: each read is one more request to a file server

_END = struct.Struct("<4s4H2LH")  # APPNOTE.TXT 4.3.16
_LOCATOR = struct.Struct("<4sLQL")  # 4.3.15
_END64 = struct.Struct("<4sQ2H2L4Q")  # 4.3.14
_RECORD = struct.Struct("<4s6H3L5H2L")  # 4.3.12
_LEGACY_MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."  # torch/serialization.py MAGIC_NUMBER
_ITEM_SIZE = {
    **dict.fromkeys("Byte Char Bool QInt8 QUInt8 Untyped".split(), 1),
    **dict.fromkeys("Short Half BFloat16".split(), 2),
    **dict.fromkeys("Int Float QInt32".split(), 4),
    **dict.fromkeys("Long Double ComplexFloat".split(), 8),
    "ComplexDouble": 16,
}


class Record(NamedTuple):
    """One record of the zip: where its local header begins, and its length."""

    name: bytes
    header: int
    size: int


def check(look: Look, path: str) -> None:
    """Raises Broken if the file is not whole."""
    with look.file(path) as file:
        check_open(file, look.deadline)


def check_open(file: File, deadline: float) -> None:
    name = printable(file.name)
    if not file.size:
        raise Broken(f"{name} is empty")
    head = file.read(0, 16)
    if head[:4] == b"PK\3\4":
        records(file)
    elif head.startswith(_LEGACY_MAGIC):
        _legacy(file, deadline)
    elif head[:1] == b"\x80":
        _one_pickle(file, deadline)
    elif not head.strip(b"\0"):
        raise Broken(f"{name} begins with zeros")
    else:
        raise Broken(f"{name} is neither a zip nor a pickle")


def records(file: File) -> list[Record]:
    """The records of the zip; raises Broken if it is not whole."""
    name = printable(file.name)
    start, size = directory(file, 0, file.size)
    if size > LONGEST_DIRECTORY:
        raise Unseen(f"{name}: a zip directory of {size} bytes, more than {LONGEST_DIRECTORY}")
    found = _parsed(file.read(start, size), start, name)
    for one in found[:: max(1, len(found) // LOCAL_HEADERS)]:
        if file.read(one.header, 4) != b"PK\3\4":
            raise Broken(f"{name}: zip record at byte {one.header} has no header")
    if not any(one.name.endswith(b"/data.pkl") for one in found):
        raise Broken(f"{name}: no data.pkl in the zip")
    return found


def directory(file: File, begin: int, after: int) -> tuple[int, int]:
    """Offset, from `begin`, and length of the central directory of the zip in those bytes of the file."""
    name = printable(file.name)
    size = after - begin
    wanted = min(size, _END.size + _LOCATOR.size)
    tail = file.read(after - wanted, wanted)
    if len(tail) < _END.size or tail[-_END.size :][:4] != b"PK\5\6":
        raise Broken(f"{name}: no zip end record")
    *_, length, start, _ = _END.unpack(tail[-_END.size :])
    end = size - _END.size
    if len(tail) == _END.size + _LOCATOR.size and tail[:4] == b"PK\6\7":
        _, _, at, _ = _LOCATOR.unpack(tail[: _LOCATOR.size])
        data = file.read(begin + at, _END64.size) if at < size else b""
        if len(data) < _END64.size or data[:4] != b"PK\6\6":
            raise Broken(f"{name}: no zip64 end record")
        *_, length, start = _END64.unpack(data)
        end = at
    if start + length != end:
        raise Broken(f"{name}: the zip directory does not end where it must")
    return start, length


def _parsed(directory: bytes, start: int, name: str) -> list[Record]:
    found, at = [], 0
    while at < len(directory):
        if len(directory) - at < _RECORD.size:
            raise Broken(f"{name}: the zip directory is damaged")
        fields = _RECORD.unpack_from(directory, at)
        if fields[0] != b"PK\1\2":
            raise Broken(f"{name}: the zip directory is damaged")
        packed, unpacked, named, extra, comment, header = (*fields[8:13], fields[-1])
        begin = at + _RECORD.size
        if 0xFFFFFFFF in (packed, unpacked, header):
            more = directory[begin + named : begin + named + extra]
            packed, header = _zip64(more, packed, unpacked, header, name)
        if header + 30 + named + packed > start:
            raise Broken(f"{name}: a zip record does not fit into the file")
        found.append(Record(directory[begin : begin + named], header, packed))
        at = begin + named + extra + comment
    if not found:
        raise Broken(f"{name}: the zip is empty")
    return found


def _zip64(extra: bytes, packed: int, unpacked: int, header: int, name: str) -> tuple[int, int]:
    """Length and offset from the extra field 1 (APPNOTE.TXT 4.5.3)."""
    at = 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            wanted = [value == 0xFFFFFFFF for value in (unpacked, packed, header)]
            if size < 8 * sum(wanted) or at + 4 + size > len(extra):
                break
            values = iter(struct.unpack_from(f"<{sum(wanted)}Q", extra, at + 4))
            _, packed, header = (
                next(values) if wide else value for wide, value in zip(wanted, (unpacked, packed, header), strict=True)
            )
            return packed, header
        at += 4 + size
    raise Broken(f"{name}: the zip directory is damaged")


def top(look: Look, path: str, most: int) -> dict[str, object]:
    """The plain values at the top of the dict that was saved, from the first `most` steps of its pickle."""
    with look.file(path) as file:
        if file.read(0, 4) != b"PK\3\4":
            return {}
        pickle = next(one for one in records(file) if one.name.endswith(b"/data.pkl"))
        if pickle.size > LONGEST_PICKLE:
            return {}
        lengths = file.read(pickle.header + 26, 4)  # of the name and the extra field, in the local header
        begin = pickle.header + 30 + sum(struct.unpack("<2H", lengths)) if len(lengths) == 4 else 0
        wanted = pickle.size if most > 1000 else min(pickle.size, 64 << 10)
        return Machine(file.read(begin, wanted), look.deadline).top(most)


def _one_pickle(file: File, deadline: float) -> None:
    """A pickle and nothing else: its last byte is STOP; where it is short enough, its first STOP is its last byte."""
    name = printable(file.name)
    if file.read(file.size - 1, 1) != b".":
        raise Broken(f"{name}: the pickle has no end")
    if file.size <= LONGEST_PICKLE:
        machine = Machine(file.read(0, file.size), deadline)
        _run(machine, name)
        if machine.at != file.size:
            raise Broken(f"{name}: {file.size - machine.at} bytes after the pickle's end")


def _legacy(file: File, deadline: float) -> None:
    """Magic, version, system, object, keys: five pickles. Then each storage: its length in 8 bytes, its items."""
    name = printable(file.name)
    machine = Machine(file.read(0, min(file.size, LONGEST_PICKLE)), deadline)
    for _ in range(3):
        _run(machine, name)
    _run(machine, name)
    sizes = dict(filter(None, map(_storage, machine.persistent)))
    keys = _run(machine, name)
    if type(keys) is not list or not all(type(key) is str and key in sizes for key in keys):
        raise Unseen(f"{name}: a file of torch before 1.6 with storages that are not known")
    must = machine.at + sum(8 + sizes[key] for key in keys)
    if file.size < must:
        raise Broken(f"{name} is {must - file.size} bytes shorter than its pickle says")


def _run(machine: Machine, name: str) -> object:
    try:
        return machine.run()
    except TooLong as error:
        raise Unseen(f"{name}: {error}") from error
    except NotPickled as error:
        raise Broken(f"{name}: pickle {error}") from error


def _storage(reference: object) -> tuple[str, int] | None:
    """Key and bytes of ("storage", type, key, location, items, view)."""
    if type(reference) is not tuple or len(reference) < 5 or reference[0] != "storage":
        return None
    kind, key, items = reference[1], reference[2], whole(reference[4])
    if type(kind) is Made:
        kind = kind.of
    if type(kind) is not Name or type(key) is not str or items is None:
        return None
    size = _ITEM_SIZE.get(kind.text.rpartition(".")[2].removesuffix("Storage"))
    return None if size is None else (key, items * size)
