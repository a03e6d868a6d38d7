"""Writes checkpoints as the frameworks do: the same names, the same order, the bytes that tell whether they are whole.

Each layout is a generator that does one thing at each step, so that a test can stop between any two of them, as a
kill does. Sources are named in slurm_recovery/checkpoint/*.py. Needs nothing but Python.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from slurm_recovery.checkpoint.ocdbt import crc32c

STORED = zipfile.ZIP_STORED


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def torch_zip(top: dict[str, Any] | None = None, size: int = 600) -> bytes:
    """What torch.save writes: records one after the other, not compressed, the directory, the end record."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", STORED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"step": 1} if top is None else top, protocol=2))
        archive.writestr("archive/byteorder", b"little")
        archive.writestr("archive/data/0", noise(size))
        archive.writestr("archive/data/1", noise(size // 2, 1))
        archive.writestr("archive/version", b"3\n")
        archive.writestr("archive/.data/serialization_id", b"0" * 40)
    return buffer.getvalue()


def torch_legacy(items: int = 50) -> bytes:
    """torch.save before 1.6: five pickles, then each storage with its length."""
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    magic = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
    storage = b"((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x007X\x03\0\0\0cpuK" + bytes([items]) + b"Nt"
    saved = b"\x80\x02}X\x01\0\0\0w" + storage[1:] + b"Qs."
    keys = pickle.dumps(["7"], protocol=2)
    data = struct.pack("<q", items) + noise(4 * items)
    return magic + pickle.dumps(1001, protocol=2) + pickle.dumps(system, protocol=2) + saved + keys + data


def safetensors(size: int = 400, tensors: int = 3) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for index in range(tensors):
        header[f"layer.{index}.weight"] = {
            "dtype": "F32",
            "shape": [size // 4],
            "data_offsets": [index * size, (index + 1) * size],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + noise(size * tensors)


class _Symbol:
    """An instance of a class of torch's, which need not be there to be pickled."""

    def __init__(self, **state: Any) -> None:
        self.__dict__.update(state)


def _named(module: str, name: str) -> type[_Symbol]:
    return type(name, (_Symbol,), {"__module__": module, "__qualname__": name})


class _Pickler(pickle._Pickler):  # type: ignore[name-defined]
    """Writes classes by their names, without looking whether they can be imported."""

    dispatch = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_global(self, obj: Any, name: str | None = None) -> None:
        self.save(obj.__module__)
        self.save(name or obj.__qualname__)
        self.write(pickle.STACK_GLOBAL)
        self.memoize(obj)

    dispatch[type] = lambda self, obj: self.save_global(obj)


_METADATA = "torch.distributed.checkpoint.metadata"
Metadata = _named(_METADATA, "Metadata")
MetadataIndex = _named(_METADATA, "MetadataIndex")
TensorStorageMetadata = _named(_METADATA, "TensorStorageMetadata")
StorageInfo = _named("torch.distributed.checkpoint.filesystem", "_StorageInfo")


def dcp_metadata(pieces: list[tuple[str, str, int, int]], keys: tuple[str, ...] = ()) -> bytes:
    """`.metadata`: for each piece its key, its shard, from which byte, how many."""
    metadata = Metadata(
        state_dict_metadata={
            key: TensorStorageMetadata(size=(8, 8), chunks=[]) for key in (*(one[0] for one in pieces), *keys)
        },
        planner_data={},
        storage_data={
            MetadataIndex(fqn=key, offset=(0, index), index=index): StorageInfo(
                relative_path=shard, offset=offset, length=length, transform_descriptors=None
            )
            for index, (key, shard, offset, length) in enumerate(pieces)
        },
        storage_meta=None,
        version="1.0.0",
    )
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=4).dump(metadata)
    return buffer.getvalue()


def ocdbt_manifest(body: bytes, magic: bytes = b"\x0c\xdb\x3a\x2a") -> bytes:
    """Magic, length, version, no compression, body, checksum."""
    data = magic + struct.pack("<Q", 12 + 2 + len(body) + 4) + b"\0\0" + body
    return data + struct.pack("<I", crc32c(data))


def ocdbt_data(size: int) -> bytes:
    """Values as zstd frames of blocks that are not compressed, then a node."""
    frame = b"\x28\xb5\x2f\xfd\x00\x58"
    for last in (0, 0, 1):
        frame += (size // 3 << 3 | last).to_bytes(3, "little") + noise(size // 3)
    return 2 * frame + ocdbt_manifest(noise(40), b"\x0c\xdb\x20\xde")


def put(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def dcp_into(folder: Path, ranks: int = 2, keys: tuple[str, ...] = ()) -> Iterator[Path]:
    pieces = []
    for rank in range(ranks):
        shard, data = f"__{rank}_0.distcp", b""
        for index in range(2):
            piece = torch_zip(size=100 + 40 * rank)
            pieces.append((f"model.{rank}.{index}", shard, len(data), len(piece)))
            data += piece
        yield put(folder / shard, data)
    temporary = put(folder / ".metadata.tmp", dcp_metadata(pieces, keys))
    yield temporary
    yield temporary.rename(folder / ".metadata")


def dcp(folder: Path, step: int) -> Iterator[Path]:
    yield from dcp_into(folder / f"step-{step}")


def dcp_of_ranks(folder: Path, step: int) -> Iterator[Path]:
    """Writers without collectives."""
    for rank in range(2):
        data, shard = torch_zip(), f"__{rank}_0.distcp"
        yield put(folder / f"step-{step}" / shard, data)
        yield put(folder / f"step-{step}" / f"__{rank}.metadata", dcp_metadata([("w", shard, 0, len(data))]))


def megatron(folder: Path, step: int) -> Iterator[Path]:
    for tensor in range(2):
        for pipeline in range(2):
            of_rank = folder / f"iter_{step:07d}" / f"mp_rank_{tensor:02d}_{pipeline:03d}"
            yield put(of_rank / "distrib_optim.pt", torch_zip())
            yield put(of_rank / "model_optim_rng.pt", torch_zip())
    yield put(folder / "latest_checkpointed_iteration.txt", str(step))


def megatron_dist(folder: Path, step: int) -> Iterator[Path]:
    inside = folder / f"iter_{step:07d}"
    yield put(inside / "common.pt", torch_zip())
    yield from dcp_into(inside)
    yield put(inside / "metadata.json", json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}))
    yield put(folder / "latest_checkpointed_iteration.txt", str(step))


def megatron_dist_2026(folder: Path, step: int) -> Iterator[Path]:
    """Without common.pt: what is not sharded is an object of a shard."""
    inside = folder / f"iter_{step:07d}"
    yield from dcp_into(inside, keys=("common_state/shard_0_1",))
    yield put(inside / "metadata.json", json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}))
    yield put(folder / "latest_checkpointed_iteration.txt", str(step))


def megatron_zarr(folder: Path, step: int) -> Iterator[Path]:
    inside = folder / f"iter_{step:07d}"
    yield put(inside / "common.pt", torch_zip())
    for tensor in ("decoder.weight", "embedding.weight"):
        yield put(inside / tensor / ".zarray", json.dumps({"shape": [4], "chunks": [4], "zarr_format": 2}))
        yield put(inside / tensor / "0", noise(16))
    yield put(inside / "metadata.json", json.dumps({"sharded_backend": "zarr", "sharded_backend_version": 1}))
    yield put(folder / "latest_checkpointed_iteration.txt", str(step))


def deepspeed_states(inside: Path, step: int, ranks: int = 3) -> Iterator[Path]:
    top = {
        "module": {"weight": [1, 2, 3]},
        "global_steps": step,
        "dp_world_size": ranks,
        "mp_world_size": 1,
        "ds_config": {"zero_optimization": {"stage": 1}},
    }
    yield put(inside / "mp_rank_00_model_states.pt", torch_zip(top))
    for rank in range(ranks):
        yield put(inside / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", torch_zip())


def deepspeed(folder: Path, step: int) -> Iterator[Path]:
    yield from deepspeed_states(folder / f"global_step{step}", step)
    yield put(folder / "latest", f"global_step{step}")


def deepspeed_zero3(folder: Path, step: int) -> Iterator[Path]:
    inside = folder / f"global_step{step}"
    top = {"global_steps": step, "dp_world_size": 2, "mp_world_size": 1}
    for rank in range(2):
        yield put(inside / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt", torch_zip(top))
        yield put(inside / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", torch_zip())
    yield put(folder / "latest", f"global_step{step}")


def _trainer_state(step: int) -> str:
    return json.dumps({"epoch": 0.5, "global_step": step, "log_history": []})


def hugging_face(folder: Path, step: int) -> Iterator[Path]:
    inside = folder / f"checkpoint-{step}"
    yield put(inside / "config.json", "{}")
    yield put(inside / "model.safetensors", safetensors())
    yield put(inside / "training_args.bin", torch_zip())
    yield put(inside / "optimizer.pt", torch_zip())
    yield put(inside / "scheduler.pt", torch_zip())
    yield put(inside / "rng_state.pth", torch_zip())
    yield put(inside / "trainer_state.json", _trainer_state(step))


def _sharded_weights(inside: Path) -> Iterator[Path]:
    shards = [f"model-{index:05d}-of-00003.safetensors" for index in (1, 2, 3)]
    for shard in shards:
        yield put(inside / shard, safetensors())
    index = {"metadata": {"total_size": 3600}, "weight_map": {f"w.{at}": shards[at % 3] for at in range(6)}}
    yield put(inside / "model.safetensors.index.json", json.dumps(index))


def hugging_face_sharded(folder: Path, step: int) -> Iterator[Path]:
    inside = folder / f"checkpoint-{step}"
    yield from _sharded_weights(inside)
    yield put(inside / "optimizer.pt", torch_zip())
    yield put(inside / "scheduler.pt", torch_zip())
    for rank in range(3):
        yield put(inside / f"rng_state_{rank}.pth", torch_zip())
    yield put(inside / "trainer_state.json", _trainer_state(step))


def hugging_face_deepspeed(folder: Path, step: int) -> Iterator[Path]:
    inside = folder / f"checkpoint-{step}"
    yield from deepspeed(inside, step)
    for rank in range(2):
        yield put(inside / f"rng_state_{rank}.pth", torch_zip())
    yield put(inside / "trainer_state.json", _trainer_state(step))


def hugging_face_fsdp(folder: Path, step: int) -> Iterator[Path]:
    inside = folder / f"checkpoint-{step}"
    yield from dcp_into(inside / "pytorch_model_fsdp_0")
    yield from dcp_into(inside / "optimizer_0")
    yield put(inside / "scheduler.pt", torch_zip())
    for rank in range(2):
        yield put(inside / f"rng_state_{rank}.pth", torch_zip())
    yield put(inside / "trainer_state.json", _trainer_state(step))


def accelerate(folder: Path, step: int) -> Iterator[Path]:
    inside = folder / f"checkpoint_{step}"
    yield put(inside / "model.safetensors", safetensors())
    yield put(inside / "optimizer.bin", torch_zip())
    yield put(inside / "scheduler.bin", torch_zip())
    yield put(inside / "random_states_0.pkl", torch_zip())


def lightning(folder: Path, step: int) -> Iterator[Path]:
    top = {"epoch": 3, "global_step": step, "pytorch-lightning_version": "2.6.0", "state_dict": {"w": [1]}}
    yield put(folder / f"epoch=3-step={step}.ckpt", torch_zip(top))


def lightning_fsdp(folder: Path, step: int) -> Iterator[Path]:
    inside = folder / f"epoch=3-step={step}.ckpt"
    yield from dcp_into(inside)
    yield put(inside / "meta.pt", torch_zip({"epoch": 3, "global_step": step}))


def lightning_deepspeed(folder: Path, step: int) -> Iterator[Path]:
    inside = folder / f"epoch=3-step={step}.ckpt"
    yield from deepspeed_states(inside / "checkpoint", step)
    yield put(inside / "latest", "checkpoint")


def _orbax_into(inside: Path, step: int) -> Iterator[Path]:
    yield put(inside / "_CHECKPOINT_METADATA", json.dumps({"init_timestamp_nsecs": 1, "commit_timestamp_nsecs": None}))
    item, name = inside / "state", "d/" + "1a27cc4159a601fc" * 2
    yield put(item / "ocdbt.process_0" / name, ocdbt_data(300))
    yield put(item / "ocdbt.process_0/manifest.ocdbt", ocdbt_manifest(b"\x0f" + name.encode()))
    yield put(item / name, ocdbt_manifest(noise(200), b"\x0c\xdb\x20\xde"))
    yield put(item / "manifest.ocdbt", ocdbt_manifest(b"\x0f" + name.encode()))
    tree = {"('w',)": {"key_metadata": [{"key": "w"}], "value_metadata": {"value_type": "jax.Array"}}}
    yield put(item / "_METADATA", json.dumps({"tree_metadata": tree, "use_ocdbt": True}))
    yield put(item / "array_metadatas/process_0", "{}")
    told = {"item_handlers": {"state": "S"}, "init_timestamp_nsecs": 1, "commit_timestamp_nsecs": step}
    yield put(inside / "_CHECKPOINT_METADATA", json.dumps(told))


def orbax(folder: Path, step: int) -> Iterator[Path]:
    temporary = folder / f"{step}.orbax-checkpoint-tmp-1700000000"
    yield from _orbax_into(temporary, step)
    yield temporary.rename(folder / str(step))


def orbax_committed(folder: Path, step: int) -> Iterator[Path]:
    """Where a folder cannot be renamed."""
    yield from _orbax_into(folder / str(step), step)
    yield put(folder / str(step) / "commit_success.txt", "Checkpoint commit was successful")


def safetensors_sharded(folder: Path, step: int) -> Iterator[Path]:
    yield from _sharded_weights(folder / f"step_{step}")


def safetensors_file(folder: Path, step: int) -> Iterator[Path]:
    yield put(folder / f"model_step_{step}.safetensors", safetensors())


def torch_file(folder: Path, step: int) -> Iterator[Path]:
    yield put(folder / f"checkpoint_{step}.pt", torch_zip())


def torch_legacy_file(folder: Path, step: int) -> Iterator[Path]:
    yield put(folder / f"checkpoint_{step}.pth", torch_legacy())


def script_folder(folder: Path, step: int) -> Iterator[Path]:
    yield put(folder / f"step_{step}" / "model.pt", torch_zip())
    yield put(folder / f"step_{step}" / "optimizer.pt", torch_zip())


class Layout(NamedTuple):
    """A kind of checkpoint, as `write` leaves it in a folder.

    `name`: the checkpoint's own, with {} for the step. `survives`: files (fnmatch) of which it bears a damage ("cut",
    "zeros", "gone"): because the format does, or because nothing written anywhere tells of it.
    """

    format: str
    name: str
    write: Callable[[Path, int], Iterator[Path]]
    survives: dict[str, tuple[str, ...]] = {}

    def path(self, folder: Path, step: int) -> Path:
        return folder / self.name.format(step)

    def save(self, folder: Path, step: int) -> Path:
        """The whole checkpoint."""
        folder.mkdir(parents=True, exist_ok=True)
        for _ in self.write(folder, step):
            pass
        return self.path(folder, step)


ANY = ("cut", "zeros", "gone")
# Tensors of zeros are tensors; so are a few bytes less of what has no length written anywhere.
WEIGHTS = {"*.safetensors": ("zeros",)}
OCDBT = {"*/array_metadatas/*": ANY}
LAYOUTS = {
    "dcp": Layout("dcp", "step-{}", dcp),
    "dcp_of_ranks": Layout("dcp", "step-{}", dcp_of_ranks, {"*/__1*": ("gone",)}),
    "megatron": Layout("megatron", "iter_{:07d}", megatron),
    "megatron_dist": Layout("megatron", "iter_{:07d}", megatron_dist),
    "megatron_dist_2026": Layout("megatron", "iter_{:07d}", megatron_dist_2026),
    "megatron_zarr": Layout("megatron", "iter_{:07d}", megatron_zarr, {"*.weight/0": ANY}),
    "deepspeed": Layout("deepspeed", "global_step{}", deepspeed),
    "deepspeed_zero3": Layout("deepspeed", "global_step{}", deepspeed_zero3),
    "hugging_face": Layout(
        "huggingface",
        "checkpoint-{}",
        hugging_face,
        {**WEIGHTS, "*/config.json": ANY, "*/training_args.bin": ("gone",)},
    ),
    "hugging_face_sharded": Layout(
        "huggingface", "checkpoint-{}", hugging_face_sharded, {**WEIGHTS, "*/rng_state_2.pth": ("gone",)}
    ),
    "hugging_face_deepspeed": Layout(
        "huggingface", "checkpoint-{}", hugging_face_deepspeed, {"*/rng_state_1.pth": ("gone",)}
    ),
    "hugging_face_fsdp": Layout("huggingface", "checkpoint-{}", hugging_face_fsdp, {"*/rng_state_1.pth": ("gone",)}),
    "accelerate": Layout("accelerate", "checkpoint_{}", accelerate, {**WEIGHTS, "*/scheduler.bin": ("gone",)}),
    "lightning": Layout("lightning", "epoch=3-step={}.ckpt", lightning),
    "lightning_fsdp": Layout("lightning", "epoch=3-step={}.ckpt", lightning_fsdp),
    "lightning_deepspeed": Layout("lightning", "epoch=3-step={}.ckpt", lightning_deepspeed),
    "orbax": Layout("orbax", "{}", orbax, {**OCDBT, "*/_CHECKPOINT_METADATA": ("gone",)}),
    "orbax_committed": Layout(
        "orbax", "{}", orbax_committed, {**OCDBT, "*/commit_success.txt": ANY, "*/_CHECKPOINT_METADATA": ("gone",)}
    ),
    "safetensors_sharded": Layout("safetensors", "step_{}", safetensors_sharded, WEIGHTS),
    "safetensors_file": Layout("safetensors", "model_step_{}.safetensors", safetensors_file, WEIGHTS),
    "torch_file": Layout("torch", "checkpoint_{}.pt", torch_file),
    "torch_legacy_file": Layout("torch", "checkpoint_{}.pth", torch_legacy_file, {"*": ("zeros",)}),
    "script_folder": Layout("torch", "step_{}", script_folder, {"*": ("gone",)}),
}


def files_of(path: Path) -> list[Path]:
    """The files of a checkpoint, in a fixed order."""
    if path.is_file():
        return [path]
    return sorted(Path(folder) / name for folder, _, names in os.walk(path) for name in names)
