"""Setup and check of what nodes need: EvidenceDir, the hooks of compute nodes, slurm.conf's lines for them."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_recovery.hooks.install import NODE_HOOKS, NODE_MODULE, node_conf_lines
from tests.cluster.node_site import NodeSite
from tests.cluster.private_cluster import PrivateCluster


@pytest.fixture(scope="module")
def site() -> Iterator[NodeSite]:
    with PrivateCluster(nodes=2, slurm_user="slurm") as cluster:
        yield NodeSite(cluster)


def problems(site: NodeSite) -> list[str]:
    options = ("--hook-dir", str(site.hooks), "--slurm-conf", str(site.cluster.slurm_conf), "--json")
    said = json.loads(site.srecover("check", *options, check=False).stdout)
    return [f"{one['level']}: {one['what']}" for one in said]


def about(site: NodeSite, *words: str) -> list[str]:
    return [line for line in problems(site) if any(word in line for word in words)]


def test_setup_makes_the_folder_and_the_hooks_and_says_the_lines(site: NodeSite) -> None:
    said = site.setup()
    status = site.evidence.stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (0, 0o2750)
    assert site.evidence.group() == "slurm"
    assert set(node_conf_lines(site.hooks)) <= set(said.splitlines())
    for name in (*NODE_HOOKS, NODE_MODULE):
        assert os.access(site.hooks / name, os.X_OK)
    assert "written" not in site.setup(), "again is nothing"
    missed = about(site, "Epilog does not call", "HealthCheckProgram does not call", "HealthCheckInterval")
    assert len(missed) == 3


def test_check_has_nothing_to_say_once_all_is_in_place(site: NodeSite) -> None:
    site.install()
    assert about(site, "Epilog", "HealthCheck", "Evidence", "hooks/epilog.d", "hooks/prolog.d", "health_check") == []


def test_check_names_a_folder_that_others_can_write_and_a_hook_of_other_settings(site: NodeSite) -> None:
    site.evidence.chmod(0o2777)
    (site.hooks / "health_check").unlink()
    assert about(site, "only root can write") == [
        f"error: EvidenceDir={site.evidence}: not a folder that only root can write, so nothing in it is believed"
    ]
    assert about(site, "health_check: not there") != []
    shutil.rmtree(site.evidence)
    assert about(site, "No such file") == [f"error: EvidenceDir={site.evidence}: No such file or directory"]
    site.setup()
    assert about(site, "Evidence", "health_check") == []


def test_a_node_that_never_reported_is_named(site: NodeSite) -> None:
    told = site.evidence / "n1"
    told.mkdir()
    (told / "health.json").write_text("{}")
    assert about(site, "never reported") == ["warning: 1 of 2 nodes have never reported: n2"]
    shutil.rmtree(told)


def test_a_compute_node_gets_its_hooks_and_asks_nobody(site: NodeSite, tmp_path: Path) -> None:
    hooks = tmp_path / "hooks"
    conf = ("--hook-dir", str(hooks), "--slurm-conf", "/nowhere/slurm.conf")
    said = site.srecover("setup", "--node", *conf).stdout
    assert {path.name for path in hooks.iterdir()} == {
        "epilog.d", "prolog.d", "health_check", NODE_MODULE, "__pycache__"
    }  # fmt: skip
    assert "epilog.d/50-slurm-recovery: written" in said
    site.srecover("setup", "--node", "--remove", *conf)
    assert not hooks.exists()


def test_a_node_without_an_evidence_dir_has_nothing_to_do(site: NodeSite, tmp_path: Path) -> None:
    conf = tmp_path / "recovery.conf"
    conf.write_text("Mode=observe\n")
    command = [site.python, "-I", "-m", "slurm_recovery.cli.main", "--conf", str(conf), "setup", "--node"]
    done = site.cluster.run(*command, "--hook-dir", str(tmp_path / "hooks"), check=False)
    assert done.returncode == 1
    assert "EvidenceDir is not set" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_link_as_evidence_dir_is_refused(site: NodeSite) -> None:
    shutil.rmtree(site.evidence)
    site.evidence.symlink_to(site.cluster.work)
    try:
        done = site.srecover("setup", "--hook-dir", str(site.hooks), check=False)
        assert done.returncode == 1
        assert "is a symbolic link" in done.stderr
    finally:
        site.evidence.unlink()
