"""The search: which is the newest, what is passed over, where it looks, and what it costs."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_recovery.checkpoint.birth import born
from slurm_recovery.checkpoint.found import Found, Passed, Rule, Saved
from slurm_recovery.checkpoint.search import find, judge
from tests.checkpoint_layouts import LAYOUTS, dcp_into, files_of, put, torch_zip

REPOSITORY = Path(__file__).parents[2]


def newest(found: Found) -> Saved:
    assert found.newest, found
    return found.newest


def steps(found: Found) -> list[int | None]:
    return [one.step for one in (*filter(None, [found.newest]), *found.earlier)]


def test_greatest_step_not_latest_time(tmp_path: Path) -> None:
    for step in (300, 1000, 200):
        LAYOUTS["torch_file"].save(tmp_path, step)
    found = find(str(tmp_path))
    assert steps(found) == [1000, 300, 200]


def test_latest_time_where_no_step_is_told(tmp_path: Path) -> None:
    for age, name in ((30, "best.pt"), (10, "newer.pt"), (20, "older.pt")):
        path = put(tmp_path / name, torch_zip())
        os.utime(path, (1e9 - age, 1e9 - age))
    found = find(str(tmp_path))
    assert [Path(one.path).name for one in (newest(found), *found.earlier)] == ["newer.pt", "older.pt", "best.pt"]


def test_broken_ones_are_passed_over_and_said(tmp_path: Path) -> None:
    layout = LAYOUTS["torch_file"]
    for step in (1, 2, 3, 4, 5):
        layout.save(tmp_path, step)
    for step in (2, 4, 5):
        layout.path(tmp_path, step).write_bytes(torch_zip()[:-1])
    found = find(str(tmp_path))
    assert steps(found) == [3, 1]
    assert found.passed == (
        Passed(str(layout.path(tmp_path, 5)), "checkpoint_5.pt: no zip end record"),
        Passed(str(layout.path(tmp_path, 4)), "checkpoint_4.pt: no zip end record"),
    )


def test_refused(tmp_path: Path) -> None:
    layout = LAYOUTS["hugging_face"]
    paths = [layout.save(tmp_path, step) for step in (100, 200, 300)]
    found = find(str(tmp_path), refused=[str(paths[2]), str(paths[1]) + "/", "/elsewhere", "a\0b"])
    assert steps(found) == [100]
    assert found.passed == tuple(Passed(str(path), "it failed to load before") for path in reversed(paths[1:]))


@pytest.mark.parametrize("earlier", [0, 1, 3])
def test_earlier(earlier: int, tmp_path: Path) -> None:
    for step in range(6):
        LAYOUTS["torch_file"].save(tmp_path, step)
    assert steps(find(str(tmp_path), earlier=earlier)) == list(range(5, 4 - earlier, -1))


@pytest.mark.parametrize("inside", ["", "run-1", "lightning_logs/version_0/checkpoints", "a/b", "out/20240102/ckpt"])
def test_levels(inside: str, tmp_path: Path) -> None:
    for name in ("lightning", "hugging_face", "dcp", "megatron", "orbax"):
        layout = LAYOUTS[name]
        folder = tmp_path / layout.format
        layout.save(folder / inside, 7)
        layout.save(folder / inside, 8)
        assert newest(find(str(folder))).path == str(layout.path(folder / inside, 8))


def test_not_deeper(tmp_path: Path) -> None:
    LAYOUTS["torch_file"].save(tmp_path / "a/b/c/d", 7)
    assert find(str(tmp_path)).newest is None


def test_runs(tmp_path: Path) -> None:
    """The number of a run is no step, and the run with the greatest number need not be the furthest."""
    for run, step in ((1, 500), (2, 2000), (3, 70)):
        LAYOUTS["hugging_face"].save(tmp_path / f"run-{run}", step)
        LAYOUTS["lightning"].save(tmp_path / f"run-{run}", step - 1)
    assert steps(find(str(tmp_path))) == [2000, 1999, 500, 499, 70, 69]


def test_a_job_id_is_no_step(tmp_path: Path) -> None:
    for job in (4711, 4712):
        LAYOUTS["lightning"].save(tmp_path / str(job), job - 4700)
    assert steps(find(str(tmp_path))) == [12, 11]


def test_a_row_of_any_name(tmp_path: Path) -> None:
    for index in range(3):
        for _ in dcp_into(tmp_path / f"my_weights.{index * 50}"):
            pass
    (tmp_path / "my_weights.200").mkdir()
    found = find(str(tmp_path))
    assert steps(found) == [100, 50, 0]
    assert found.passed == (Passed(str(tmp_path / "my_weights.200"), "the folder is empty"),)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_folder_is_itself_a_checkpoint(name: str, tmp_path: Path) -> None:
    path = LAYOUTS[name].save(tmp_path / "x", 300)
    if path.is_dir():
        found = find(str(path))
        assert (newest(found).path, newest(found).format) == (str(path), LAYOUTS[name].format)


def test_final_weights_beside_checkpoints(tmp_path: Path) -> None:
    """Trainer.save_model and save_state at the end of a run: the folder holds weights and checkpoints."""
    LAYOUTS["hugging_face"].save(tmp_path, 500)
    for file in files_of(LAYOUTS["hugging_face"].path(tmp_path, 500)):
        put(tmp_path / file.name, file.read_bytes())
    found = find(str(tmp_path))
    assert newest(found).path == str(tmp_path / "checkpoint-500")
    assert not found.passed


def test_the_folder_is_a_link(tmp_path: Path) -> None:
    LAYOUTS["dcp"].save(tmp_path / "real", 3)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "latest").symlink_to("step-3")
    found = find(str(tmp_path / "link"))
    assert newest(found).path == str(tmp_path / "link" / "step-3")
    assert (found.earlier, found.passed, found.gaps) == ((), (), ())
    assert isinstance(judge(str(tmp_path / "real" / "latest")), Saved)


@pytest.mark.parametrize("marker", ["DONE", ".done", ""])
def test_rules(marker: str, tmp_path: Path) -> None:
    rule = Rule("mine", "state-*-at-{step}.d", marker)
    for step in (10, 20, 30):
        put(tmp_path / f"state-x-at-{step}.d" / "data", "x")
        if marker and step < 30:
            put(tmp_path / (f"state-x-at-{step}.d" + ("/DONE" if marker == "DONE" else marker)), "")
    found = find(str(tmp_path), [rule])
    assert newest(found).format == "mine"
    assert steps(found) == ([20, 10] if marker else [30, 20, 10])
    assert len(found.passed) == bool(marker)
    if marker:
        assert found.passed[0].why == ("no DONE" if marker == "DONE" else "no state-x-at-30.d.done")
    assert isinstance(judge(str(tmp_path / "state-x-at-10.d"), [rule]), Saved)


def test_rule_of_files(tmp_path: Path) -> None:
    rule = Rule("mine", "{step}.state")
    put(tmp_path / "10.state", "x")
    put(tmp_path / "20.state", "")
    put(tmp_path / "30.status", "x")
    found = find(str(tmp_path), [rule])
    assert steps(found) == [10]
    assert found.passed == (Passed(str(tmp_path / "20.state"), "the file is empty"),)


def test_a_rule_whose_file_is_torchs(tmp_path: Path) -> None:
    put(tmp_path / "net_5.pth", torch_zip()[:-1])
    found = find(str(tmp_path), [Rule("mine", "net_{step}.pth")])
    assert found.passed == (Passed(str(tmp_path / "net_5.pth"), "net_5.pth: no zip end record"),)


def test_times(tmp_path: Path) -> None:
    path = LAYOUTS["megatron"].save(tmp_path, 3)
    for index, file in enumerate(files_of(path)):
        os.utime(file, (1e9 + index, 1e9 + index))
    os.utime(tmp_path / "latest_checkpointed_iteration.txt", (2e9, 2e9))  # written again by later ones
    saved = newest(find(str(tmp_path)))
    assert (saved.began, saved.time) == (1e9, 1e9 + 7)


def test_began_is_the_birth_where_it_is_known(tmp_path: Path) -> None:
    path = LAYOUTS["torch_file"].save(tmp_path, 3)
    birth = born(str(path))
    later = path.stat().st_mtime + 50
    os.utime(path, (later, later))
    saved = newest(find(str(tmp_path)))
    assert (saved.began, saved.time) == (birth, pytest.approx(later, abs=1e-3))


def test_of_one_file_that_is_written_over_nobody_knows_when_it_was_begun(tmp_path: Path) -> None:
    put(tmp_path / "model.pt", torch_zip())
    assert newest(find(str(tmp_path))).began is None


@pytest.mark.parametrize("folder", ["/nonexistent/at/all", "relative", "", "/dev/null", "/a\0b", "/bad\udcff"])
def test_no_folder_is_a_gap(folder: str) -> None:
    found = find(folder)
    assert found.newest is None
    assert found.gaps
    assert isinstance(judge(folder), Passed)


def test_an_empty_folder_has_no_gap(tmp_path: Path) -> None:
    assert find(str(tmp_path)) == Found(str(tmp_path))


def test_no_time_left_is_a_gap(tmp_path: Path) -> None:
    LAYOUTS["torch_file"].save(tmp_path, 3)
    assert find(str(tmp_path), deadline=-math.inf) == Found(str(tmp_path), gaps=("the time for looking was over",))
    assert judge(str(tmp_path / "checkpoint_3.pt"), deadline=-math.inf) == Passed(
        str(tmp_path / "checkpoint_3.pt"), "the time for looking was over"
    )


def test_many_broken_ones_are_counted(tmp_path: Path) -> None:
    for step in range(100):
        put(tmp_path / f"step_{step}.pt", "")
    found = find(str(tmp_path))
    assert len(found.passed) == 32
    assert found.gaps == ("68 more were passed over",)


COUNT_OPENS = """
import json, sys, time
from slurm_recovery.checkpoint.search import find
opened = {"open": 0, "os.scandir": 0}
sys.addaudithook(lambda event, _: opened.update({event: opened[event] + 1}) if event in opened else None)
begin = time.perf_counter()
found = find(sys.argv[1])
print(json.dumps({"seconds": time.perf_counter() - begin, "opened": sum(opened.values()),
                  "step": found.newest and found.newest.step, "earlier": [one.step for one in found.earlier]}))
"""


def looked(folder: Path) -> dict[str, object]:
    command = [sys.executable, "-c", COUNT_OPENS, str(folder)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60)
    return dict(json.loads(done.stdout))


@pytest.fixture
def ten_thousand(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "folder"
    shutil.rmtree(tmp_path / "folder")  # pytest would keep 100,000 names


@pytest.mark.timing
@pytest.mark.parametrize("kind", ["dcp", "numbers", "deepspeed", "megatron", "script"])
def test_ten_thousand_checkpoints_of_eight_shards(kind: str, ten_thousand: Path, tmp_path: Path) -> None:
    """Hard links: the search sees what the test need not write. Of all but the first kind, the older ones are empty."""
    one, top = tmp_path / "one", {"dp_world_size": 8, "mp_world_size": 1}
    if kind in ("dcp", "numbers"):
        list(dcp_into(one, ranks=8))
    for rank in range(8):
        name = {"deepspeed": f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", "script": f"rank{rank}.pt"}.get(
            kind, ""
        )
        if kind == "megatron":
            put(one / f"mp_rank_{rank:02d}" / "model_optim_rng.pt", torch_zip())
        elif name:
            put(one / name, torch_zip())
    if kind == "deepspeed":
        put(one / "mp_rank_00_model_states.pt", torch_zip(top))
    pattern = {"dcp": "step-{}", "numbers": "{}", "deepspeed": "global_step{}", "megatron": "iter_{:07d}"}
    for step in range(10_000):
        path = ten_thousand / pattern.get(kind, "ckpt_{}").format(step)
        if kind == "dcp" or step > 9900:
            shutil.copytree(one, path, copy_function=os.link)
        else:
            path.mkdir(parents=True)
    put(ten_thousand / "latest", "global_step9999")
    put(ten_thousand / "latest_checkpointed_iteration.txt", "9999")
    answer = looked(ten_thousand)
    assert answer["step"] == 9999
    assert answer["earlier"] == list(range(9998, 9990, -1))
    assert float(str(answer["seconds"])) < 1
    assert int(str(answer["opened"])) < 200


def test_a_deadline_within_a_folder_of_any_size_is_kept(tmp_path: Path) -> None:
    for index in range(3000):
        (tmp_path / f"file-{index}").touch()
    begin = time.monotonic()
    find(str(tmp_path), deadline=begin + 0.001)
    assert time.monotonic() - begin < 2


def test_it_writes_nothing(tmp_path: Path) -> None:
    for name, layout in LAYOUTS.items():
        layout.save(tmp_path / name, 5)
    for file in files_of(tmp_path)[::5]:
        file.write_bytes(file.read_bytes()[:-1])

    def state() -> list[tuple[Path, int, int, bytes]]:
        return [(file, file.stat().st_ino, file.stat().st_mtime_ns, file.read_bytes()) for file in files_of(tmp_path)]

    before = state()
    find(str(tmp_path))
    assert state() == before
