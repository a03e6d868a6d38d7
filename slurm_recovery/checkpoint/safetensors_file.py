"""Whether a safetensors file is whole: the length of its header, the header, and as many bytes as the header says.

The format's own rules (safetensors, README "Format"): 8 bytes of length, JSON, then the tensors without holes. Tensors
are not read: zeros where they should be cannot be told from tensors of zeros.
"""

from __future__ import annotations

import json

from slurm_recovery.checkpoint.look import Broken, Look, Unseen, printable
from slurm_recovery.checkpoint.pickled import whole

LONGEST_HEADER = 100_000_000  # the format's own bound


def check(look: Look, path: str) -> None:
    """Raises Broken if the file is not whole."""
    with look.file(path) as file:
        name = printable(file.name)
        head = file.read(0, 8)
        length = int.from_bytes(head, "little")
        if len(head) < 8 or length < 2:
            raise Broken(f"{name} has no header")
        if length > LONGEST_HEADER or 8 + length > file.size:
            raise Broken(f"{name}: a header of {length} bytes in a file of {file.size}")
        if length > 32 << 20:
            raise Unseen(f"{name}: a header of {length} bytes")
        header = file.read(8, length)
    try:
        tensors = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise Broken(f"{name}: its header is not JSON") from error
    _check_sizes(name, tensors, file.size - 8 - length)


def _check_sizes(name: str, tensors: object, size: int) -> None:
    if not isinstance(tensors, dict):
        raise Broken(f"{name}: its header is not a table of tensors")
    offsets = [_offsets(name, one) for key, one in tensors.items() if key != "__metadata__"]
    end = 0
    for begin, after in sorted(offsets):
        if begin != end:
            raise Broken(f"{name}: a hole before byte {begin} of its tensors")
        end = after
    if end > size:
        raise Broken(f"{name} is {end - size} bytes shorter than its header says")
    if end < size:
        raise Broken(f"{name} is {size - end} bytes longer than its header says")


def _offsets(name: str, tensor: object) -> tuple[int, int]:
    offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
    if isinstance(offsets, list) and len(offsets) == 2:
        begin, end = whole(offsets[0]), whole(offsets[1])
        if begin is not None and end is not None and begin <= end:
            return begin, end
    raise Broken(f"{name}: a tensor without data_offsets")
