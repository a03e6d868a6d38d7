"""How many GPUs slurm.conf gives a node."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_recovery.node.configured import configured_gpus


def count(folder: Path, text: str, node: str = "n1") -> int | None:
    (folder / "slurm.conf").write_text(text)
    return configured_gpus(str(folder / "slurm.conf"), node)


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:8", 8),
        ("gpu", 1),
        ("gpu:h100:8", 8),
        ("gpu:h100", 1),
        ("gpu:2080ti:4", 4),
        ("gpu:2080ti", 1),
        ("gpu:h100:8(S:0-1)", 8),
        ("GPU:H100:8(S:0-1)", 8),
        ("gpu:a100:4(S:0),gpu:a40:2(S:1)", 6),
        ("gpu:a100:4(S:0,1),gpu:a40:2", 6),
        ("nvme:2,gpu:4,shard:64", 4),
        ("mps:400,shard:h100:64", 0),
        ("bandwidth:lustre:no_consume:4G", 0),
        ("gpu:0", 0),
        ("(null)", 0),
        ("gpu:h100:8k", None),
        ("gpu:a100_1g.5gb:7", None),
        ("gpu:a100:1,gpu:1g.10gb:7", None),
    ],
)
def test_gres(tmp_path: Path, gres: str, gpus: int | None) -> None:
    assert count(tmp_path, f"NodeName=n1 CPUs=64 Gres={gres} State=UNKNOWN\n") == gpus


@pytest.mark.parametrize(
    ("node", "gpus"),
    [("gpu01", 8), ("gpu16", 8), ("gpu17", None), ("gpu1", None), ("big1", 4), ("login", 0), ("a3-rack2", 2)],
)
def test_host_lists(tmp_path: Path, node: str, gpus: int | None) -> None:
    text = """
        ClusterName=c
        NodeName=gpu[01-08,10-16],big1 Gres=gpu:8
        NodeName=big[2-4] Gres=gpu:4
        NodeName=login CPUs=2
        NodeName=a[1-4]-rack[1-2] Gres=gpu:2
    """
    if node == "big1":
        text = text.replace(",big1", "").replace("big[2-4]", "big[1-4]")
    assert count(tmp_path, text, node) == gpus


def test_keys_in_any_case_quotes_and_continued_lines(tmp_path: Path) -> None:
    assert count(tmp_path, 'nodename=n[1-2] cpus=4 \\\n  GRES="gpu:h100:4" # eight once\n') == 4


def test_defaults_hold_for_the_lines_after_them(tmp_path: Path) -> None:
    text = """
        NodeName=n0
        NodeName=DEFAULT Gres=gpu:8 CPUs=64
        NodeName=n1
        NodeName=n2 Gres=gpu:4
        nodename=default CPUs=32
        NodeName=n3
        NodeName=default gres=gpu:2
        NodeName=n4
    """
    assert [count(tmp_path, text, f"n{index}") for index in range(5)] == [0, 8, 4, 8, 2]


def test_a_later_line_counts(tmp_path: Path) -> None:
    assert count(tmp_path, "NodeName=n1 Gres=gpu:8\nNodeName=n1 Gres=gpu:4\n") == 4


def test_include(tmp_path: Path) -> None:
    (tmp_path / "nodes.conf").write_text("NodeName=n1 Gres=gpu:8\n")
    assert count(tmp_path, "ClusterName=c\ninclude nodes.conf\n") == 8


@pytest.mark.parametrize(
    "text",
    [
        "ClusterName=c\n",
        "NodeName=n[1 Gres=gpu:8\n",
        "NodeName=n1 Gres=gpu:8\nthis is no setting\n",
        "NodeName=n1 Gres=gpu:8\nInclude missing.conf\n",
        "NodeName=n1 Gres=gpu:8\nInclude slurm.conf\n",
        "NodeName=m[0-99999] Gres=gpu:8\nNodeName=n1 Gres=gpu:8\n",
        "NodeName=m[0-40000] Gres=gpu:8\nNodeName=o[0-40000] Gres=gpu:8\nNodeName=n1 Gres=gpu:8\n",
    ],
)
def test_what_cannot_be_told_is_unknown(tmp_path: Path, text: str) -> None:
    assert count(tmp_path, text) is None


def test_a_file_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in ("", "\0", str(tmp_path), str(tmp_path / "none"), str(tmp_path / "fifo")):
        assert configured_gpus(path, "n1") is None


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.sampled_from('NodeNam=n1[]-,:()\\"# \ngpuGres8DEFAULT\x00é'), max_size=200))
def test_it_never_raises(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.getbasetemp() / "configured"
    folder.mkdir(exist_ok=True)
    found = count(folder, "NodeName=n1 Gres=" + text)
    assert found is None or found >= 0


def test_the_largest_cluster_is_read_in_time(tmp_path: Path) -> None:
    """65536 nodes on 512 lines, as many as Slurm can have."""
    text = "".join(f"NodeName=r{row}n[0-127] CPUs=64 Gres=gpu:h100:8(S:0-1)\n" for row in range(512))
    start = time.monotonic()
    assert count(tmp_path, text, "r511n127") == 8
    assert time.monotonic() - start < 2


def test_it_imports_the_standard_library_alone() -> None:
    """The collector runs beside the user's job: no pydantic, no ClusterShell."""
    code = "import sys, slurm_recovery.node.configured, slurm_recovery.node.present; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=30)
    code = "import sys; print(*sys.modules)"
    bare = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=30)
    added = {name.partition(".")[0] for name in set(done.stdout.split()) - set(bare.stdout.split())}
    assert added - sys.stdlib_module_names <= {"slurm_recovery"}
