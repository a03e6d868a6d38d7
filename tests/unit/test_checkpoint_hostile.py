"""Folders that someone made to do harm, and folders that change while they are looked at."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_recovery.checkpoint.found import Found, Passed, Saved
from slurm_recovery.checkpoint.pickled import Machine, NotPickled
from slurm_recovery.checkpoint.search import find, judge
from tests.checkpoint_layouts import (
    LAYOUTS,
    dcp_metadata,
    files_of,
    put,
    safetensors,
    torch_legacy,
    torch_zip,
)


def why(path: Path) -> str:
    verdict = judge(str(path))
    assert isinstance(verdict, Passed), verdict
    return verdict.why


def is_json_safe(found: Found) -> bool:
    text = json.dumps(found, ensure_ascii=False)
    return text.encode().decode() == text and text.isprintable()


@pytest.mark.parametrize("special", ["fifo", "socket", "folder", "device"])
def test_what_is_no_regular_file_is_not_opened(special: str, tmp_path: Path) -> None:
    path = LAYOUTS["dcp"].save(tmp_path, 9)
    LAYOUTS["dcp"].save(tmp_path, 8)
    for shard in (path / "__1_0.distcp", path / ".metadata"):
        shard.unlink()
        if special == "fifo":
            os.mkfifo(shard)
        elif special == "socket":
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(os.path.relpath(shard))
        elif special == "folder":
            shard.mkdir()
        else:
            shard.symlink_to("/dev/zero")
        begin = time.monotonic()
        found = find(str(tmp_path))
        assert time.monotonic() - begin < 2
        assert found.newest
        assert found.newest.step == 8
        expected = "leads out of the folder" if special == "device" else "not a regular file"
        assert expected in found.passed[0].why


def test_a_fifo_by_a_checkpoints_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "step_5.pt")
    os.mkfifo(tmp_path / "last.ckpt")
    found = find(str(tmp_path))
    assert [one.why for one in found.passed] == ["step_5.pt is not a regular file", "last.ckpt is not a regular file"]


def test_links_that_lead_out_are_not_followed(tmp_path: Path) -> None:
    outside = LAYOUTS["dcp"].save(tmp_path / "outside", 9)
    folder = tmp_path / "folder"
    path = LAYOUTS["dcp"].save(folder, 9)
    LAYOUTS["torch_file"].save(tmp_path / "outside", 9)
    (path / "__1_0.distcp").unlink()
    (path / "__1_0.distcp").symlink_to(outside / "__1_0.distcp")
    (folder / "step-10").symlink_to(outside)
    (folder / "checkpoint_11.pt").symlink_to(tmp_path / "outside" / "checkpoint_9.pt")
    assert [(Path(one.path).name, one.why) for one in find(str(folder)).passed] == [
        ("checkpoint_11.pt", "a link that leads out of the folder"),
        ("step-10", "a link that leads out of the folder"),
        ("step-9", "__1_0.distcp is a link that leads out of the folder"),
    ]


def test_links_inside_are_followed(tmp_path: Path) -> None:
    """Shards that did not change, as links to the ones of the checkpoint before."""
    LAYOUTS["dcp"].save(tmp_path, 8)
    path = LAYOUTS["dcp"].save(tmp_path, 9)
    (path / "__1_0.distcp").unlink()
    (path / "__1_0.distcp").symlink_to("../step-8/__1_0.distcp")
    (tmp_path / "latest").symlink_to("step-9")
    found = find(str(tmp_path))
    assert found.newest
    assert (found.newest.step, [one.step for one in found.earlier], found.passed) == (9, [8], ())


def test_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "step_1.pt").symlink_to("step_1.pt")
    (tmp_path / "run").symlink_to(".")
    (tmp_path / "step-2").mkdir()
    (tmp_path / "step-2" / ".metadata").symlink_to(".metadata")
    assert find(str(tmp_path)).newest is None


@pytest.mark.parametrize(
    "name",
    [b"step_7\n\x1b[2J.pt", b"step_7\xff.pt", b"step_7\x7f.pt", "step_7\u202e.pt".encode(), b"step_7\xc2\x85.pt"],
)
def test_names_that_cannot_be_told(name: bytes, tmp_path: Path) -> None:
    LAYOUTS["torch_file"].save(tmp_path, 6)
    path = os.path.join(os.fsencode(tmp_path), name)
    with open(path, "wb") as file:
        file.write(torch_zip())
    found = find(str(tmp_path))
    assert found.newest
    assert found.newest.step == 6
    assert len(found.passed) == 1
    assert is_json_safe(found)
    assert isinstance(judge(os.fsdecode(path)), Passed)


def test_names_inside_that_cannot_be_told(tmp_path: Path) -> None:
    path = LAYOUTS["script_folder"].save(tmp_path, 7)
    with open(os.path.join(os.fsencode(path), b"\xff\n.pt"), "wb") as file:
        file.write(b"x")
    found = find(str(tmp_path))
    assert found.newest is None
    assert is_json_safe(found)


def test_names_of_temporary_files_inside(tmp_path: Path) -> None:
    path = LAYOUTS["hugging_face"].save(tmp_path, 7)
    put(path / "a\n\x1b[2J.tmp", b"x")
    found = find(str(tmp_path))
    assert [one.why for one in found.passed] == ["a??[2J.tmp has its temporary name still"]


def test_long_names(tmp_path: Path) -> None:
    put(tmp_path / ("9" * 250 + ".pt"), torch_zip())
    put(tmp_path / ("step_" + "0" * 240 + "5.pt"), torch_zip())
    put(tmp_path / ("a" * 250 + ".pt"), b"")
    found = find(str(tmp_path))
    assert is_json_safe(found)
    assert all(len(one.why) < 300 for one in found.passed)


@pytest.mark.parametrize("shard", ["../../secret", "/etc/passwd", "..", ".", "", "a\0b", "x" * 5000, "\n"])
def test_shards_that_metadata_names_elsewhere(shard: str, tmp_path: Path) -> None:
    path = LAYOUTS["dcp"].save(tmp_path, 9)
    put(path / ".metadata", dcp_metadata([("w", shard, 0, 1)]))
    assert "metadata" in why(path) or why(path).startswith(("no ", "x"))
    path = LAYOUTS["safetensors_sharded"].save(tmp_path, 9)
    put(path / "model.safetensors.index.json", json.dumps({"weight_map": {"w": shard}}))
    assert "index.json names" in why(path)


HARMFUL: dict[str, bytes] = {
    "memo": b"\x80\x02}r\xff\xff\xff\x7f.",  # would make C's unpickler ask for 16 GiB
    "call": b"\x80\x02cos\nsystem\nX\x04\0\0\0trueq\0\x85R.",
    "nested": b"\x80\x02" + b"(" * 100_000 + b".",
    "tuples": b"\x80\x04)" + b"\x94h\0h\0\x86" * 1000 + b".",
    "laughs": b"\x80\x02)" + b"".join(b"q" + bytes([i]) + b"h" + bytes([i]) + b"\x86" for i in range(200)) + b".",
    "long": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "bytes": b"\x80\x04\x8e" + b"\xff" * 8 + b".",
    "text": b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f.",
    "no stop": b"\x80\x02" + b"N" * 50_000,
    "empty stack": b"\x80\x02....",
    "pop": b"\x80\x02000000.",
    "marks": b"\x80\x02utuetea.",
    "persistent": b"\x80\x02QQQ.",
    "build": b"\x80\x02}}b.",
    "global": b"\x80\x02c" + b"a" * 100_000 + b".",
    "globals": b"\x80\x02" + b"c" * 200_000 + b".",
    "names": b"\x80\x02NN\x93)R.",
}


@pytest.mark.parametrize("name", HARMFUL)
def test_harmful_pickles(name: str, tmp_path: Path) -> None:
    data = HARMFUL[name]
    put(tmp_path / "step-1" / ".metadata", data)
    put(tmp_path / "step-1" / "__0_0.distcp", b"x")
    put(tmp_path / "step_2.pt", torch_legacy()[:60] + data)
    put(tmp_path / "step_3.pt", b"\x80\x02" + data)
    begin = time.monotonic()
    found = find(str(tmp_path))
    assert time.monotonic() - begin < 5
    assert "step-1" in {Path(one.path).name for one in found.passed} or found.newest


def test_pickles_at_random() -> None:
    """Nothing but NotPickled, and never an object that was built."""
    dice = random.Random(5)
    seeds = [torch_legacy(), dcp_metadata([("w", "s", 0, 1)] * 3), pickle.dumps({"a": [1, (2.5, None)]})]
    seeds += HARMFUL.values()
    for _ in range(3000):
        data = bytearray(dice.choice(seeds)[:5000])
        for _ in range(dice.randrange(1, 6)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        machine = Machine(bytes(data))
        with contextlib.suppress(NotPickled):
            machine.run(100_000)
        machine.at = 0
        machine.top(1000)


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"null",
        b"{}",
        b"[]",
        b'{"w":{"data_offsets":[0,' + b"9" * 5000 + b"]}}",
        b'{"w":{"data_offsets":[-5,0]}}',
        b'{"w":{"data_offsets":[0,1e400]}}',
        b'{"w":{"data_offsets":[true,true]}}',
        b'{"w":{"data_offsets":[0,4]},"v":{"data_offsets":[2,8]}}',
        b'{"w":7}',
        b"\xff\xfe",
    ],
)
def test_harmful_headers(header: bytes, tmp_path: Path) -> None:
    put(tmp_path / "m.safetensors", struct.pack("<Q", len(header)) + header + b"12345678")
    assert why(tmp_path / "m.safetensors")
    path = LAYOUTS["hugging_face_sharded"].save(tmp_path, 9)
    for name in ("trainer_state.json", "model.safetensors.index.json"):
        data = (path / name).read_bytes()
        put(path / name, header)
        assert why(path)
        put(path / name, data)


def test_bytes_at_random(tmp_path: Path) -> None:
    """Nothing is raised, whatever a file holds, and the answer is JSON-safe."""
    dice = random.Random(7)
    for name in ("dcp", "megatron_dist", "deepspeed", "hugging_face_sharded", "orbax", "lightning_fsdp", "accelerate"):
        layout = LAYOUTS[name]
        for seed in range(15):
            folder = tmp_path / f"{name}{seed}"
            layout.save(folder, 5)
            for file in dice.sample(files_of(folder), 2):
                data = bytearray(file.read_bytes())
                for _ in range(dice.randrange(1, 10)):
                    data[dice.randrange(len(data))] = dice.randrange(256)
                file.write_bytes(data)
            found = find(str(folder))
            assert is_json_safe(found)
            assert not any("could not be looked at" in gap for gap in found.gaps), found


def test_zip_directory_that_lies(tmp_path: Path) -> None:
    data = bytearray(torch_zip())
    end = len(data) - 22
    start = struct.unpack_from("<L", data, end + 16)[0]
    dice = random.Random(3)
    for _ in range(300):
        copy = bytearray(data)
        copy[dice.randrange(start, len(copy))] ^= 1 << dice.randrange(8)
        put(tmp_path / "x.pt", bytes(copy))
        assert isinstance(judge(str(tmp_path / "x.pt")), Saved | Passed)


class Changing:
    """Does something over and over, in a thread, until the block ends."""

    def __init__(self, change: Callable[[int], None]) -> None:
        self.change, self.ended = change, threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        count = 0
        while not self.ended.is_set():
            self.change(count)
            count += 1

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join(10)


@pytest.mark.parametrize("name", ["dcp", "hugging_face", "deepspeed", "megatron", "torch_file", "orbax"])
def test_written_and_deleted_meanwhile(name: str, tmp_path: Path) -> None:
    """The newest comes and goes: the answer is it or the one before, and nothing is raised or out of bounds."""
    layout = LAYOUTS[name]
    spare = layout.save(tmp_path / "spare", 200)
    folder = tmp_path / "folder"
    layout.save(folder, 100)
    for tracker in (tmp_path / "spare").iterdir():
        if tracker.is_file() and tracker != spare:
            put(folder / tracker.name, tracker.read_bytes())
    target = layout.path(folder, 200)

    def change(count: int) -> None:
        if count % 2 == 0:
            os.rename(spare, target)
        else:
            files = files_of(target)
            data = files[count % len(files)].read_bytes()
            files[count % len(files)].write_bytes(data[: len(data) // 2])
            time.sleep(0.0005)
            files[count % len(files)].write_bytes(data)
            os.rename(target, spare)

    seen = set()
    with Changing(change):
        for _ in range(100):
            found = find(str(folder))
            assert found.newest, found
            seen.add(found.newest.step)
            assert not any("could not be looked at:" in gap for gap in found.gaps), found
    assert seen <= {100, 200}


def test_cut_for_good_is_never_complete_while_things_move(tmp_path: Path) -> None:
    layout = LAYOUTS["dcp"]
    layout.save(tmp_path, 100)
    path = layout.save(tmp_path, 200)
    shard = path / "__1_0.distcp"
    shard.write_bytes(shard.read_bytes()[:-1])

    def change(count: int) -> None:
        os.rename(path / "__0_0.distcp", path / "moved") if count % 2 == 0 else os.rename(
            path / "moved", path / "__0_0.distcp"
        )

    with Changing(change):
        for _ in range(200):
            found = find(str(tmp_path))
            assert found.newest
            assert found.newest.step == 100


def test_a_deep_and_wide_folder_is_bounded(tmp_path: Path) -> None:
    path = tmp_path
    for _ in range(60):
        path = path / "a"
    path.mkdir(parents=True)
    for index in range(2500):
        (tmp_path / f"x{index}y").mkdir()
    found = find(str(tmp_path))
    assert found.newest is None
    assert found.gaps == ("more than 2000 folders",)


def test_safetensors_as_it_is(tmp_path: Path) -> None:
    put(tmp_path / "m.safetensors", safetensors())
    assert isinstance(judge(str(tmp_path / "m.safetensors")), Saved)
