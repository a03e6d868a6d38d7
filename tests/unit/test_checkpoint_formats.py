"""Each format's checkpoints: whole, stopped at each point of being written, and damaged in each of their files."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from slurm_recovery.checkpoint.found import Passed, Saved
from slurm_recovery.checkpoint.search import find, judge
from tests import checkpoint_layouts as layouts
from tests.checkpoint_layouts import LAYOUTS, Layout, files_of, put, torch_zip

DAMAGES = ("cut", "zeros", "gone")


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> Layout:
    return LAYOUTS[request.param]


def damage(path: Path, how: str, share: float = 0.5) -> None:
    """Cut after a share of its bytes; or the rest of them zeros, as after a crash of the node; or not there."""
    data = path.read_bytes()
    keep = min(int(len(data) * share), len(data) - 1)
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(data[:keep] + (b"\0" * (len(data) - keep) if how == "zeros" else b""))


def needed(layout: Layout, path: Path, how: str) -> bool:
    return not any(how in damages and fnmatch(str(path), name) for name, damages in layout.survives.items())


def test_whole(layout: Layout, tmp_path: Path) -> None:
    layout.save(tmp_path, 100)
    path = layout.save(tmp_path, 200)
    found = find(str(tmp_path))
    assert found.newest
    assert (found.newest.path, found.newest.format, found.newest.step) == (str(path), layout.format, 200)
    assert [one.step for one in found.earlier] == [100]
    assert not found.passed
    assert not found.gaps
    assert judge(str(path)) == found.newest


def test_stopped_while_it_was_written(layout: Layout, tmp_path: Path) -> None:
    """Killed after each thing that its framework does: the one before is the newest, and what was begun is told."""
    things = sum(1 for _ in layout.write(tmp_path / "all", 200))
    for done in range(1, things):
        folder = tmp_path / str(done)
        folder.mkdir()
        layout.save(folder, 100)
        writing: Iterator[Path] = layout.write(folder, 200)
        for _ in range(done):
            next(writing)
        if layout is LAYOUTS["dcp_of_ranks"] and done == 2:
            continue  # rank 0 has finished, and rank 1 has not begun: nothing tells that it was to come
        found = find(str(folder))
        assert found.newest, (done, found)
        assert found.newest.step == 100, (done, found)
        assert len(found.passed) == 1, (done, found)


def test_stopped_while_a_file_was_written(layout: Layout, tmp_path: Path) -> None:
    layout.save(tmp_path, 100)
    for path in layout.write(tmp_path, 200):
        if path.is_file() and needed(layout, path, "cut") and path.parent != tmp_path.parent:
            data = path.read_bytes()
            path.write_bytes(data[: len(data) * 2 // 3])
            found = find(str(tmp_path))
            assert found.newest is None or found.newest.step != 200, (path, found)
            path.write_bytes(data)


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged(layout: Layout, how: str, tmp_path: Path) -> None:
    """Each of its files in turn, the tracker files beside it too."""
    layout.save(tmp_path, 200)
    for path in files_of(tmp_path):
        if needed(layout, path, how):
            data = path.read_bytes()
            damage(path, how)
            verdict = judge(str(layout.path(tmp_path, 200)))
            assert isinstance(verdict, Passed), (path, how)
            assert verdict.why
            path.write_bytes(data)
    assert isinstance(judge(str(layout.path(tmp_path, 200))), Saved)


def test_damaged_at_random(layout: Layout, tmp_path: Path) -> None:
    dice = random.Random(layout.name)
    for seed in range(12):
        folder = tmp_path / str(seed)
        layout.save(folder, 100)
        path = layout.save(folder, 200)
        broken = False
        for file in dice.sample(files_of(path), min(2, len(files_of(path)))):
            how = dice.choice(DAMAGES)
            damage(file, how, dice.random())
            broken = broken or needed(layout, file, how)
        found = find(str(folder))
        if broken:
            assert found.newest
            assert found.newest.step == 100, (seed, found)


def why(path: Path) -> str:
    verdict = judge(str(path))
    assert isinstance(verdict, Passed), verdict
    return verdict.why


def test_why_dcp(tmp_path: Path) -> None:
    path = LAYOUTS["dcp"].save(tmp_path, 1)
    shard = path / "__1_0.distcp"
    data = shard.read_bytes()
    shard.write_bytes(data[:-10])
    assert why(path) == "shard __1_0.distcp is 10 bytes shorter than .metadata says"
    shard.write_bytes(data[:-10] + b"\0" * 10)
    assert why(path) == "__1_0.distcp: the zip directory does not end where it must"
    shard.write_bytes(b"\0" * len(data))
    assert why(path) == "shard __1_0.distcp: its last piece is zeros"
    shard.unlink()
    assert why(path) == "no __1_0.distcp"
    (path / ".metadata").unlink()
    assert why(path) == "no .metadata"


def test_why_megatron(tmp_path: Path) -> None:
    path = LAYOUTS["megatron"].save(tmp_path, 1200)
    tracker = tmp_path / "latest_checkpointed_iteration.txt"
    tracker.write_text("1100")
    assert why(path) == "latest_checkpointed_iteration.txt says 1100, and it is written last"
    tracker.write_text("release")
    assert why(path) == "latest_checkpointed_iteration.txt says release, and it is written last"
    tracker.write_text("1300")
    (path / "mp_rank_01_001" / "model_optim_rng.pt").write_bytes(torch_zip()[:-5])
    assert why(path) == "mp_rank_01_001: model_optim_rng.pt: no zip end record"
    (path / "mp_rank_00_001").rename(path / "elsewhere")
    assert why(path) == "3 of 4 folders mp_rank_*"


@pytest.mark.parametrize(
    ("name", "tracker"), [("megatron", "latest_checkpointed_iteration.txt"), ("deepspeed", "latest")]
)
def test_an_emptied_tracker_file_speaks_against_the_last_one_only(tmp_path: Path, name: str, tracker: str) -> None:
    """Its writer empties it first, and may die then: all but the last checkpoint were done with before."""
    for step in (100, 200, 300):
        LAYOUTS[name].save(tmp_path, step)
    (tmp_path / tracker).write_bytes(b"")
    found = find(str(tmp_path))
    assert found.newest
    assert found.newest.step == 200
    assert [(Path(one.path).name[-3:], one.why) for one in found.passed] == [
        ("300", f"{tracker} is empty, and it is written last")
    ]


def test_megatron_release(tmp_path: Path) -> None:
    put(tmp_path / "release" / "mp_rank_00" / "model_optim_rng.pt", torch_zip())
    put(tmp_path / "latest_checkpointed_iteration.txt", "release\n")
    newest = find(str(tmp_path)).newest
    assert newest
    assert (newest.format, newest.step) == ("megatron", 0)


def test_megatron_distributed_needs_what_is_not_sharded(tmp_path: Path) -> None:
    path = LAYOUTS["megatron_dist"].save(tmp_path, 5)
    (path / "common.pt").unlink()
    assert why(path) == "no common.pt"
    path = LAYOUTS["megatron_dist_2026"].save(tmp_path, 6)
    (path / "metadata.json").unlink()
    assert why(path) == "no metadata.json"


def test_why_deepspeed(tmp_path: Path) -> None:
    path = LAYOUTS["deepspeed"].save(tmp_path, 200)
    (path / "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt").unlink()  # the last rank: told by dp_world_size
    assert why(path) == "2 of 3 files *_optim_states.pt"
    for optimizer in path.glob("*optim_states.pt"):
        optimizer.unlink()
    assert why(path) == "0 of 3 files *_optim_states.pt"
    (tmp_path / "latest").write_text("global_step100")
    assert why(path) == "latest says global_step100, and it is written last"
    (tmp_path / "latest").write_text("global_st")
    assert why(path) == "latest names no folder: global_st"


def test_deepspeed_after_its_latest_was_taken_away(tmp_path: Path) -> None:
    """Someone deleted the newest to go back: the tag in `latest` is still a later one."""
    path = LAYOUTS["deepspeed"].save(tmp_path, 200)
    (tmp_path / "latest").write_text("global_step300")
    assert isinstance(judge(str(path)), Saved)


def test_why_hugging_face(tmp_path: Path) -> None:
    path = LAYOUTS["hugging_face_sharded"].save(tmp_path, 500)
    (path / "rng_state_1.pth").unlink()
    assert why(path) == "no rng_state_1.pth"
    (path / "model-00002-of-00003.safetensors").unlink()
    assert why(path) == "no model-00002-of-00003.safetensors, which model.safetensors.index.json names"
    (path / "trainer_state.json").unlink()
    assert why(path) == "no trainer_state.json"


def test_hugging_face_without_optimizer(tmp_path: Path) -> None:
    """save_only_model: all three of them missing is one's choice, one of them missing is not."""
    path = LAYOUTS["hugging_face"].save(tmp_path, 500)
    (path / "optimizer.pt").unlink()
    assert why(path) == "no optimizer.pt"
    (path / "scheduler.pt").unlink()
    (path / "rng_state.pth").unlink()
    assert isinstance(judge(str(path)), Saved)


def test_lightning_last_tells_its_step(tmp_path: Path) -> None:
    LAYOUTS["lightning"].save(tmp_path, 1200)
    put(tmp_path / "last.ckpt", torch_zip({"epoch": 4, "global_step": 1300, "state_dict": {"w": 1}}))
    found = find(str(tmp_path))
    assert found.newest
    assert (found.newest.path, found.newest.step) == (str(tmp_path / "last.ckpt"), 1300)
    assert [one.step for one in found.earlier] == [1200]


def test_lightning_last_is_not_one_before(tmp_path: Path) -> None:
    path = LAYOUTS["lightning"].save(tmp_path, 1200)
    (tmp_path / "last.ckpt").write_bytes(path.read_bytes())
    found = find(str(tmp_path))
    assert found.newest
    assert (found.newest.path, found.earlier) == (str(path), ())
    refused = find(str(tmp_path), refused=[str(path)])
    assert refused.newest
    assert refused.newest.path == str(tmp_path / "last.ckpt")
    assert [one.why for one in refused.passed] == ["it failed to load before"]


def test_why_orbax(tmp_path: Path) -> None:
    path = LAYOUTS["orbax_committed"].save(tmp_path, 7)
    manifest = path / "state" / "manifest.ocdbt"
    data = manifest.read_bytes()
    manifest.write_bytes(data[:-6])
    assert why(path) == f"state: manifest.ocdbt has {len(data) - 6} of its {len(data)} bytes"
    manifest.write_bytes(data[:20] + b"?" + data[21:])
    assert why(path) == "state: manifest.ocdbt is damaged: its checksum is wrong"
    manifest.write_bytes(data)
    next((path / "state" / "d").iterdir()).unlink()
    assert why(path).endswith("which manifest.ocdbt names")
    (path / "state").rename(path / "state2")
    assert why(path) == "no item state, which _CHECKPOINT_METADATA names"


def test_orbax_temporary_is_told(tmp_path: Path) -> None:
    LAYOUTS["orbax"].save(tmp_path, 100)
    LAYOUTS["orbax"].save(tmp_path, 200).rename(tmp_path / "200.orbax-checkpoint-tmp-17")
    found = find(str(tmp_path))
    assert found.newest
    assert found.newest.step == 100
    assert [(one.path, one.why) for one in found.passed] == [
        (str(tmp_path / "200.orbax-checkpoint-tmp-17"), "unfinished: it has its temporary name still")
    ]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "x.pt is empty"),
        (b"\0" * 100, "x.pt begins with zeros"),
        (b"hello, world", "x.pt is neither a zip nor a pickle"),
        (torch_zip()[:-22], "x.pt: no zip end record"),
        (torch_zip()[:-30] + b"\0" * 30, "x.pt: no zip end record"),
        (torch_zip()[200:], "x.pt is neither a zip nor a pickle"),
        (torch_zip()[:100] + torch_zip()[160:], "x.pt: the zip directory does not end where it must"),
        (layouts.torch_legacy()[:-7], "x.pt is 7 bytes shorter than its pickle says"),
        (b"\x80\x02}q\0X\x01\0\0\0aK\x01s.", None),
        (b"\x80\x02}q\0X\x01\0\0\0aK\x01s", "x.pt: the pickle has no end"),
        (b"\x80\x02}q\0.X\x01\0\0\0aK\x01s.", "x.pt: 10 bytes after the pickle's end"),
        (b"\x80\x02}q\0X\xff\0\0\0aK\x01s.", "x.pt: pickle cut short"),
    ],
)
def test_torch_files(data: bytes, expected: str | None, tmp_path: Path) -> None:
    put(tmp_path / "x.pt", data)
    assert getattr(judge(str(tmp_path / "x.pt")), "why", None) == expected


def test_a_hole_in_a_zip_is_seen_at_its_records(tmp_path: Path) -> None:
    data = bytearray(torch_zip(size=5000))
    second = data.index(b"PK\3\4", 10)
    data[second : second + 100] = bytes(100)
    put(tmp_path / "x.pt", bytes(data))
    assert why(tmp_path / "x.pt") == f"x.pt: zip record at byte {second} has no header"


@pytest.mark.parametrize("cut", [1, 5, 300])
def test_safetensors_sizes(cut: int, tmp_path: Path) -> None:
    data = layouts.safetensors()
    put(tmp_path / "m.safetensors", data[:-cut])
    assert why(tmp_path / "m.safetensors") == f"m.safetensors is {cut} bytes shorter than its header says"
    put(tmp_path / "m.safetensors", data + b"\0" * cut)
    assert why(tmp_path / "m.safetensors") == f"m.safetensors is {cut} bytes longer than its header says"


def test_a_large_zip(tmp_path: Path) -> None:
    """Zip64: a record of more than 4 GiB, in a sparse file."""
    path = tmp_path / "step_2.pt"
    size = (4 << 30) + 5
    with path.open("wb") as file:
        for name, length in ((b"archive/data.pkl", 4), (b"archive/data/0", size), (b"archive/version", 2)):
            file.write(b"PK\3\4" + bytes(22) + len(name).to_bytes(2, "little") + bytes(2) + name)
            file.seek(length, 1)
        start = file.tell()
        offset = 0
        for name, length in ((b"archive/data.pkl", 4), (b"archive/data/0", size), (b"archive/version", 2)):
            wide = [value for value in (length, length, offset) if value >= 0xFFFFFFFF]
            extra = b"\1\0" + (8 * len(wide)).to_bytes(2, "little") if wide else b""
            extra += b"".join(value.to_bytes(8, "little") for value in wide)
            short = min(length, 0xFFFFFFFF).to_bytes(4, "little")
            file.write(b"PK\1\2" + bytes(16) + short + short + len(name).to_bytes(2, "little"))
            file.write(len(extra).to_bytes(2, "little") + bytes(10) + min(offset, 0xFFFFFFFF).to_bytes(4, "little"))
            file.write(name + extra)
            offset += 30 + len(name) + length
        end = file.tell()
        file.write(b"PK\6\6" + bytes(36) + (end - start).to_bytes(8, "little") + start.to_bytes(8, "little"))
        file.write(b"PK\6\7" + bytes(4) + end.to_bytes(8, "little") + bytes(4))
        file.write(b"PK\5\6" + bytes(4) + b"\xff" * 12 + bytes(2))
    assert isinstance(judge(str(path)), Saved), judge(str(path))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    assert why(path) == "step_2.pt: no zip end record"
    path.write_bytes(b"")


def test_a_script_that_lacks_a_file_of_the_one_before(tmp_path: Path) -> None:
    layout = LAYOUTS["script_folder"]
    layout.save(tmp_path, 100)
    path = layout.save(tmp_path, 200)
    (path / "optimizer.pt").unlink()
    assert why(path) == "no optimizer.pt, which step_100 has"
