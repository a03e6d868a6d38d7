"""Files of OCDBT, tensorstore's database, in which Orbax keeps arrays: whether they are whole, as far as that is told.

tensorstore/kvstore/ocdbt/format: a manifest, and nodes, have a magic number, their own length and a checksum. A file
of data is a row of nodes and values; a value that zstd compressed (RFC 8878) tells block by block where it ends, so
such files are walked from one to the next without decompressing anything. A value that is not compressed tells
nothing: what comes after it is not judged.
"""

from __future__ import annotations

import os

from slurm_recovery.checkpoint.look import Broken, File, Look, printable

MANIFEST_MAGIC, NODE_MAGIC = b"\x0c\xdb\x3a\x2a", b"\x0c\xdb\x20\xde"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
SMALLEST = 12 + 2 + 4  # magic, length, version, compression, checksum
LONGEST_CHECKED = 1 << 20  # of which the checksum is computed
MOST_READS = 1_000  # in one file: each is one more request to a file server


def manifest(look: Look, path: str) -> bytes:
    """What a manifest holds. It is always replaced as a whole."""
    with look.file(path) as file:
        name = printable(file.name)
        data = file.read(0, min(file.size, LONGEST_CHECKED))
        if data[:4] != MANIFEST_MAGIC:
            raise Broken(f"{name} does not begin as one")
        length = int.from_bytes(data[4:12], "little")
        if length != file.size:
            raise Broken(f"{name} has {file.size} of its {length} bytes")
        _check_sum(name, data, length)
    return data


def data(look: Look, path: str) -> bytes:
    """Raises Broken if a file of data is seen not to be whole. Returns its beginning."""
    with look.file(path) as file:
        if not file.size:
            raise Broken(f"{printable(file.name)} is empty")
        at: int | None = 0
        for _ in range(MOST_READS // 2):
            if at is None or at >= file.size:
                break
            at = _after(file, at)
        if at is not None and at > file.size:
            raise Broken(f"{printable(os.path.basename(path))} is {at - file.size} bytes too short")
        return file.read(0, 4096)


def _after(file: File, at: int) -> int | None:
    """Where the node or value at `at` ends; None where that is not told."""
    head = file.read(at, 18)
    if head[:4] == NODE_MAGIC and len(head) >= 12:
        length = int.from_bytes(head[4:12], "little")
        if SMALLEST <= length <= min(LONGEST_CHECKED, file.size - at):
            _check_sum(printable(file.name), file.read(at, length), length)
        return at + max(length, SMALLEST)
    if head[:4] == ZSTD_MAGIC and len(head) >= 6:
        return _after_frame(file, at, head)
    if at and not head.strip(b"\0"):
        raise Broken(f"{printable(file.name)} has zeros after byte {at}")
    return None


def _after_frame(file: File, at: int, head: bytes) -> int | None:
    """RFC 8878, 3.1.1: a header, blocks that tell their lengths, perhaps a checksum."""
    flags = head[4]
    is_single, has_sum = bool(flags & 0x20), bool(flags & 0x04)
    size = (1 if is_single else 0, 2, 4, 8)[flags >> 6]
    at += 5 + (not is_single) + (0, 1, 2, 4)[flags & 3] + size
    for _ in range(MOST_READS):
        block = int.from_bytes(file.read(at, 3), "little")
        kind, length = block >> 1 & 3, block >> 3
        if kind == 3:
            return None
        if not block and not file.read(at, 64).strip(b"\0"):  # an empty block, then nothing but zeros
            raise Broken(f"{printable(file.name)} has zeros after byte {at}")
        at += 3 + (1 if kind == 1 else length)
        if at > file.size:
            return at
        if block & 1:
            return at + 4 * has_sum
    return None


def _check_sum(name: str, data: bytes, length: int) -> None:
    if len(data) == length and crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise Broken(f"{name} is damaged: its checksum is wrong")


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """Castagnoli's, RFC 3720 B.4."""
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF
