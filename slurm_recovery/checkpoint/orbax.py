"""Orbax: a folder of the step, `1200`, which has its temporary name until it is committed.

orbax/checkpoint/_src/path/atomicity.py: the folder is renamed at the end; where a file system cannot, as buckets,
`commit_success.txt` is written last; newer releases write it in both cases. `_CHECKPOINT_METADATA` names the items,
each of them a folder with `_METADATA` and the arrays: OCDBT (`manifest.ocdbt`, tensorstore) or a folder of zarr each.
"""

from __future__ import annotations

import os
import re

from slurm_recovery.checkpoint import ocdbt
from slurm_recovery.checkpoint.look import Broken, Entry, Look, printable

TEMPORARY = ".orbax-checkpoint-tmp"
COMMITTED = "commit_success.txt"
STEP_METADATA, ITEM_METADATA, MANIFEST = "_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt"
AGGREGATE = "checkpoint"  # in place of it, in old releases
DATA = re.compile(rb"(?:ocdbt\.process_\d{1,6}/)?d/[0-9a-f]{32}")  # a name of data, where it is not compressed
PARTS = (STEP_METADATA, ITEM_METADATA, MANIFEST, COMMITTED)
FOLDER = re.compile(r"(?:[A-Za-z]\w{0,40}_)?(\d{1,18})")  # step_prefix, step_format_fixed_length


def is_part(name: str, is_folder: bool) -> bool:
    return name in PARTS and not is_folder


def step_of(name: str) -> int | None:
    found = FOLDER.fullmatch(name)
    return int(found[1]) if found else None


def check(look: Look, path: str, entries: dict[str, Entry]) -> int | None:
    name = os.path.basename(path)
    if TEMPORARY in name:
        raise Broken("not committed: it has its temporary name still")
    before = look.before(path)
    if COMMITTED not in entries and before and look.is_there(os.path.join(before, COMMITTED)):
        raise Broken(f"not committed: no {COMMITTED}, which {printable(os.path.basename(before))} has")
    items = _items(look, path, entries)
    for item in items:
        if item not in entries:
            raise Broken(f"no item {printable(item)}, which {STEP_METADATA} names")
    found = 0
    for item, entry in sorted(entries.items()):
        if TEMPORARY in item:
            raise Broken(f"item {printable(item)} has its temporary name still")
        if item in items or (entry.is_folder and not _is_of_arrays(item)):
            found += _check_item(look, entry.path, look.folder(entry.path), item)
    found += _check_item(look, path, entries, name)
    if not found:
        raise Broken("no arrays")
    return step_of(name)


def _is_of_arrays(name: str) -> bool:
    """Folders that an item itself has, not items."""
    return name in ("d", "array_metadatas") or name.startswith("ocdbt.process_")


def _items(look: Look, path: str, entries: dict[str, Entry]) -> list[str]:
    """The items that the step's own metadata names, which also says whether it was committed."""
    if COMMITTED in entries and not look.size(entries[COMMITTED].path):
        raise Broken(f"{COMMITTED} is empty")
    if STEP_METADATA not in entries:
        return []
    told = look.json(os.path.join(path, STEP_METADATA))
    if not isinstance(told, dict):
        raise Broken(f"{STEP_METADATA} is not a table")
    began, committed = told.get("init_timestamp_nsecs"), told.get("commit_timestamp_nsecs")
    if COMMITTED not in entries and began is not None and committed is None:
        raise Broken(f"not committed: no {COMMITTED}")
    handlers = told.get("item_handlers")
    return [str(item) for item in handlers] if isinstance(handlers, dict) else []


def _check_item(look: Look, path: str, entries: dict[str, Entry], item: str) -> int:
    """1 if the item holds something whole, 0 if it holds nothing."""
    try:
        if ITEM_METADATA in entries:
            told = look.json(os.path.join(path, ITEM_METADATA))
            if not isinstance(told, dict) or not isinstance(told.get("tree_metadata"), dict):
                raise Broken(f"{ITEM_METADATA} names no tree")
            if told.get("use_ocdbt"):
                if MANIFEST not in entries:
                    raise Broken(f"no {MANIFEST}")
            else:
                _check_zarr(look, path, entries, told["tree_metadata"])
        elif MANIFEST not in entries:
            return _check_others(look, entries)
        elif AGGREGATE not in entries:
            raise Broken(f"no {ITEM_METADATA}")
        if MANIFEST in entries:
            _check_ocdbt(look, path, entries)
    except Broken as why:
        raise Broken(f"{printable(item)}: {why}") from why
    return 1


def _check_others(look: Look, entries: dict[str, Entry]) -> int:
    """JSON, datasets' iterators and what else handlers write: not empty."""
    files = [entry for name, entry in entries.items() if entry.is_file and name not in PARTS]
    for entry in files:
        if not look.size(entry.path):
            raise Broken(f"{printable(entry.name)} is empty")
    return bool(files)


def _check_ocdbt(look: Look, path: str, entries: dict[str, Entry]) -> None:
    _check_store(look, path, entries)
    for name, entry in sorted(entries.items()):
        if name.startswith("ocdbt.process_") and entry.is_folder:
            _check_store(look, entry.path, look.folder(entry.path))


def _check_store(look: Look, path: str, entries: dict[str, Entry]) -> None:
    """A manifest, and files of data in `d`: the small ones hold the names of others."""
    told = [ocdbt.manifest(look, os.path.join(path, MANIFEST))]
    data = look.folder(entries["d"].path) if "d" in entries else {}
    for entry in data.values():
        if entry.is_file:
            told.append(ocdbt.data(look, entry.path))
    _check_named(path, look, told)


def _check_named(path: str, look: Look, data: list[bytes]) -> None:
    """Names are compressed with the rest (zstd, which Python cannot read before 3.14), so some are seen, not all."""
    for one in {found for text in data for found in DATA.findall(text)}:
        if not look.is_there(os.path.join(path, one.decode())):
            raise Broken(f"no {one.decode()}, which {MANIFEST} names")


def _check_zarr(look: Look, path: str, entries: dict[str, Entry], tree: dict[str, object]) -> None:
    for leaf in tree.values():
        keys = leaf.get("key_metadata") if isinstance(leaf, dict) else None
        value = leaf.get("value_metadata") if isinstance(leaf, dict) else None
        if not isinstance(keys, list) or not isinstance(value, dict) or value.get("skip_deserialize"):
            continue
        name = ".".join(str(key.get("key")) for key in keys if isinstance(key, dict))
        if value.get("value_type") in ("jax.Array", "np.ndarray") and name not in entries:
            raise Broken(f"no array {printable(name)}, which {ITEM_METADATA} names")
    for name, entry in entries.items():
        if entry.is_folder and not _is_of_arrays(name):
            inside = look.folder(entry.path)
            if not {".zarray", "zarr.json"} & set(inside):
                raise Broken(f"array {printable(name)} has no .zarray")
