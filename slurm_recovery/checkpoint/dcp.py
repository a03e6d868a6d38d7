"""PyTorch's distributed checkpoints: a folder of shards `__RANK_N.distcp`, and `.metadata`, written last.

torch/distributed/checkpoint/filesystem.py: `finish` pickles the Metadata to `.metadata.tmp` and renames it; its
storage_data says for each piece in which shard it is, from which byte, and how many. Writers without collectives
write one `__RANK.metadata` a rank.
"""

from __future__ import annotations

import os
import re

from slurm_recovery.checkpoint import torch_file
from slurm_recovery.checkpoint.look import Broken, Entry, Look, Unseen, printable
from slurm_recovery.checkpoint.pickled import Dict, Machine, Made, NotPickled, TooLong, whole

METADATA = ".metadata"
LONGEST_METADATA = 256 << 20
SHARD = re.compile(r"__(\d{1,9})_\d{1,9}\.distcp")
OF_RANK = re.compile(r"__(\d{1,9})\.metadata")


def is_part(name: str, is_folder: bool) -> bool:
    return not is_folder and (name.startswith(METADATA) or name.endswith(".distcp") or bool(OF_RANK.fullmatch(name)))


def check(look: Look, path: str, names: dict[str, Entry]) -> dict[str, object]:
    """Raises Broken if a shard is missing or too short. Returns what the state dict's keys are."""
    if METADATA in names:
        return _check_one(look, path, METADATA)
    ranks = {int(found[1]) for found in map(OF_RANK.fullmatch, names) if found}
    if not ranks:
        raise Broken("no .metadata")
    begun = {int(found[1]) for found in map(SHARD.fullmatch, names) if found}
    for rank in range(len(ranks | begun)):
        if rank not in ranks:
            raise Broken(f"no __{rank}.metadata")
    keys: dict[str, object] = {}
    for rank in sorted(ranks):
        keys.update(_check_one(look, path, f"__{rank}.metadata"))
    return keys


def _check_one(look: Look, path: str, name: str) -> dict[str, object]:
    metadata = _read(look, path, name)
    storage, keys = metadata.field("storage_data"), metadata.field("state_dict_metadata")
    if type(storage) is not Dict:
        raise Broken(f"{name} names no shards")
    for shard, (last, size) in _ends(storage, name).items():
        _check_shard(look, os.path.join(path, shard), name, last, size)
    return keys.texts if type(keys) is Dict else {}


def _read(look: Look, path: str, name: str) -> Made:
    with look.file(os.path.join(path, name)) as file:
        if file.size > LONGEST_METADATA:
            raise Unseen(f"{name} has {file.size} bytes, more than {LONGEST_METADATA}")
        data = file.read(0, file.size)
    try:
        root = Machine(data, look.deadline).run()
    except TooLong as error:
        raise Unseen(f"{name}: {error}") from error
    except NotPickled as error:
        raise Broken(f"{name} is {error}") from error
    if type(root) is not Made:
        raise Broken(f"{name} is not a checkpoint's metadata")
    return root


def _ends(storage: Dict, name: str) -> dict[str, tuple[int, int]]:
    """For each shard the last piece: where it begins, and where it ends, and with it the shard."""
    ends: dict[str, tuple[int, int]] = {}
    for piece in storage.values():
        fields = [piece.field(key) for key in ("relative_path", "offset", "length")] if type(piece) is Made else []
        shard, offset, length = fields or (None, None, None)
        begin, size = whole(offset), whole(length)
        if type(shard) is not str or begin is None or size is None:
            raise Broken(f"{name} has a piece without a shard")
        if not shard or "/" in shard or shard in (".", "..") or "\0" in shard:
            raise Broken(f"{name} names a shard outside of its folder: {printable(shard)}")
        if begin + size >= ends.get(shard, (0, 0))[1]:
            ends[shard] = begin, begin + size
    return ends


def _check_shard(look: Look, path: str, metadata: str, begin: int, end: int) -> None:
    shard = printable(os.path.basename(path))
    with look.file(path) as file:
        if file.size < end:
            raise Broken(f"shard {shard} is {end - file.size} bytes shorter than {metadata} says")
        # Each piece is what torch.save wrote, a zip: the last of a shard ends with its end record.
        head = file.read(begin, 4)
        tail = file.read(max(begin, end - 22), min(22, end - begin))
        if head == b"PK\3\4":
            torch_file.directory(file, begin, end)
    if len(tail) == 22 and not head.strip(b"\0") and not tail.strip(b"\0"):
        raise Broken(f"shard {shard}: its last piece is zeros")
