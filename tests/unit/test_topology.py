"""The switches of nodes, read from the files that lie beside slurm.conf."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_recovery.slurm.topology import leaf_switch

YAML = """---
- topology: topo1
  cluster_default: true
  tree:
    switches:
      - switch: sw_root
        children: s[1-2]
      - switch: s1
        nodes: node[01-02]   # the left rack
      - nodes: "node[03-04],x9"
        switch: 's2'
- topology: topo2
  block:
    block_sizes:
      - 4
    blocks:
      - block: b1
        nodes: node[03-05]
- topology: topo3
  flat: true
- topology: topo4
  ring:
    rings:
      - ring: ring0
        nodes: node06
- topology: topo5
  torus3d:
    toruses:
      - name: pod1
        nodes: node07
"""


def beside(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"topology.{name}").write_text(text)
    return folder / "slurm.conf"


def test_a_tree_has_its_leaves(tmp_path: Path) -> None:
    conf = beside(
        tmp_path,
        conf="# racks\nSwitchName=s1 Nodes=n[1-2],m1 LinkSpeed=100\nswitchname = s2  NODES=n[03-04]\nSwitchName=root "
        "Switches=s[1-2]\nInclude more.conf\n",
    )
    (tmp_path / "more.conf").write_text("SwitchName=s3 \\\n  Nodes=n9\n")
    assert leaf_switch(conf) == {"n1": "s1", "n2": "s1", "m1": "s1", "n03": "s2", "n04": "s2", "n9": "s3"}


@pytest.mark.parametrize("key", ["BlockName", "RingName"])
def test_a_block_and_a_ring_are_leaves(tmp_path: Path, key: str) -> None:
    conf = beside(tmp_path, conf=f"{key}=b1 Nodes=n[1-2]\n{key}=b2 Nodes=n3\nBlockSizes=30,120\n")
    assert leaf_switch(conf) == {"n1": "b1", "n2": "b1", "n3": "b2"}


def test_a_node_of_several_leaves_is_the_first_ones(tmp_path: Path) -> None:
    assert leaf_switch(beside(tmp_path, conf="SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n[2-3]\n")) == {
        "n1": "a", "n2": "a", "n3": "b",
    }  # fmt: skip


def test_topology_yaml_goes_first(tmp_path: Path) -> None:
    conf = beside(tmp_path, yaml=YAML, conf="SwitchName=old Nodes=node01\n")
    assert leaf_switch(conf) == {
        "node01": "s1", "node02": "s1", "node03": "s2", "node04": "s2", "x9": "s2", "node05": "b1", "node06": "ring0",
    }  # fmt: skip


def test_without_a_file_no_node_has_a_switch(tmp_path: Path) -> None:
    assert leaf_switch(tmp_path / "slurm.conf") == {}
    assert leaf_switch(Path("/dev/null/slurm.conf")) == {}


@pytest.mark.parametrize("name", ["topology.conf", "topology.yaml"])
@pytest.mark.parametrize("kind", ["fifo", "folder", "endless", "binary", "loop"])
def test_what_cannot_be_read_is_none(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / name
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "binary":
        path.write_bytes(b"SwitchName=s1 Nodes=n1\n\xff\xfe\n")
    else:
        path.symlink_to(path)
    began = time.monotonic()
    assert leaf_switch(tmp_path / "slurm.conf") == {}
    assert time.monotonic() - began < 5


def test_a_list_that_is_none_costs_only_its_own_switch(tmp_path: Path) -> None:
    conf = beside(
        tmp_path, conf="SwitchName=bad Nodes=n[1-\nSwitchName=far Nodes=n[0-999999999]\nSwitchName=s Nodes=m1\n"
    )
    assert leaf_switch(conf) == {"m1": "s"}


@pytest.mark.parametrize(
    ("name", "line"), [("conf", "SwitchName=s Nodes=n[1-60000]\n"), ("yaml", "- switch: s\n  nodes: n[1-60000]\n")]
)
def test_all_lists_together_are_bounded(tmp_path: Path, name: str, line: str) -> None:
    conf = beside(tmp_path, **{name: line * 20000})
    began = time.monotonic()
    assert len(leaf_switch(conf)) == 60000
    assert time.monotonic() - began < 10


@given(st.text(max_size=300) | st.lists(st.sampled_from(YAML.splitlines()), max_size=12).map("\n".join))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_text_is_read_or_left(tmp_path: Path, text: str) -> None:
    for name in ("conf", "yaml"):
        (tmp_path / f"topology.{name}").write_text(text, encoding="utf-8", errors="replace")
        assert all(isinstance(node, str) and switch for node, switch in leaf_switch(tmp_path / "slurm.conf").items())
        (tmp_path / f"topology.{name}").unlink()
