"""Setup and check of what nodes need: EvidenceDir, the hooks of compute nodes, slurm.conf's lines for them."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_recovery.hooks.install import NODE_HOOKS, NODE_MODULE, TASK_HOOK, TASK_MODULE, node_conf_lines
from slurm_recovery.hooks.spank import PLUGIN, PLUGSTACK
from tests.cluster.node_site import NodeSite
from tests.cluster.private_cluster import PrivateCluster


@pytest.fixture(scope="module")
def site() -> Iterator[NodeSite]:
    conf = {"PlugStackConfig": "{folder}/plugstack.conf"}
    with PrivateCluster(nodes=2, slurm_user="slurm", conf=conf) as cluster:
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
    resume = site.evidence / "resume"
    assert (resume.owner(), stat.S_IMODE(resume.stat().st_mode)) == ("slurm", 0o700)
    for name in (*NODE_HOOKS, NODE_MODULE, TASK_HOOK, TASK_MODULE):
        assert os.access(site.hooks / name, os.X_OK)
    assert "written" not in site.setup(), "again is nothing"
    missed = about(site, "does not call", "HealthCheckInterval")
    assert [line.split()[1] for line in missed] == [
        "Epilog", "Prolog", "TaskProlog", "HealthCheckProgram", "HealthCheckInterval"
    ]  # fmt: skip
    assert all(line.startswith("warning: ") for line in missed)


def test_check_has_nothing_to_say_once_all_is_in_place(site: NodeSite) -> None:
    site.install()
    assert about(site, "Epilog", "Prolog", "HealthCheck", "Evidence", "hooks/", "evidence", "plugin") == []


def test_check_names_a_folder_that_others_can_write_and_a_hook_of_other_settings(site: NodeSite) -> None:
    site.evidence.chmod(0o2777)
    (site.hooks / "health_check").unlink()
    assert about(site, "only root can write") == [
        f"error: EvidenceDir={site.evidence}: not a folder that only root can write, so nothing in it is believed"
    ]
    assert about(site, "health_check: not there") != []
    site.evidence.chmod(0o2750)
    os.chown(site.evidence / "resume", 0, -1)
    (site.hooks / TASK_HOOK).write_text("#!/bin/sh\n")
    assert about(site, "/resume", "task_prolog") == [
        f"error: {site.evidence}/resume: not a folder that only slurm can enter",
        f"error: {site.hooks}/task_prolog: not there, or not ours",
    ]
    shutil.rmtree(site.evidence)
    assert about(site, "No such file") == [f"error: EvidenceDir={site.evidence}: No such file or directory"]
    site.setup()
    assert about(site, "Evidence", "evidence", "health_check", "task_prolog") == []


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
        "epilog.d", "prolog.d", "health_check", NODE_MODULE, TASK_HOOK, TASK_MODULE, "__pycache__"
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


def test_a_task_prolog_of_the_sites_own_calls_ours(site: NodeSite) -> None:
    script = site.cluster.folder / "task_prolog.sh"
    script.write_text("#!/bin/sh\necho export THEIRS=1\n")
    script.chmod(0o755)
    conf = site.cluster.slurm_conf
    before = conf.read_text()
    conf.write_text("".join(line for line in before.splitlines(True) if not line.startswith("TaskProlog=")))
    site.cluster.append_conf(f"TaskProlog={script}")
    site.cluster.reconfigure()
    try:
        assert f"# slurm.conf has TaskProlog={script} already, and takes only one" in site.setup()
        assert about(site, "TaskProlog does not call") != []
        with script.open("a") as file:
            file.write(f"{site.hooks}/task_prolog\n")
        assert about(site, "TaskProlog does not call") == []
    finally:
        conf.write_text(before)
        site.cluster.reconfigure()


def test_the_plugin_is_built_and_its_line_follows_recovery_conf(site: NodeSite) -> None:
    ours = {"EvidenceDir": str(site.evidence)}
    more = "PartitionName=main MaxRequeues=5 JobOptions=mode,log\n"
    site.configure(ours | {"Mode": "observe", "MaxRequeues": "2"}, more)
    assert not (site.hooks / PLUGSTACK).exists()
    said = site.setup("--spank")
    assert f"include {site.hooks}/{PLUGSTACK}" in said.splitlines()
    assert f"{site.hooks}/{PLUGIN}: written" in said
    line = f"optional {site.hooks}/{PLUGIN} max_mode=observe max_requeues=5"
    assert f"{line} job_options=mode,checkpoint,max-requeues,log,min-nodes\n" in (site.hooks / PLUGSTACK).read_text()
    plugstack = site.cluster.folder / "plugstack.conf"
    assert [one.partition(" does")[0] for one in about(site, "plugin")] == [f"warning: {plugstack}"]
    plugstack.write_text(f"include {site.hooks}/{PLUGSTACK}\n")
    assert about(site, "plugin", "plugstack") == []
    assert "--recovery" in site.cluster.run("sbatch", "--help").stdout
    job = site.cluster.run("sbatch", "--parsable", "--recovery=act", "--recovery-max-requeues=9", "--wrap=env")
    assert job.stderr.splitlines() == [
        "slurm_recovery: --recovery=act: this site allows at most observe, taken as that",
        "slurm_recovery: --recovery-max-requeues=9: this site allows at most 5, taken as that",
    ]
    site.cluster.wait(int(job.stdout), "COMPLETED")
    refused = site.cluster.run("sbatch", "--recovery=perhaps", "--wrap=true", check=False)
    assert (bool(refused.returncode), refused.stdout) == (True, "")
    assert "slurm_recovery: --recovery=perhaps: " in refused.stderr
    site.configure(ours)
    assert about(site, "users are told other limits") != []
    assert "written" in site.setup(), "without --spank, too"
    assert about(site, "plugin", "plugstack") == []
    plugstack.write_text(f"required {site.hooks}/{PLUGIN}\n")
    assert len(about(site, "no job would start", "users are told other limits")) == 2
    plugstack.unlink()
    (site.hooks / PLUGSTACK).unlink()


def test_a_plugin_that_cannot_be_built_is_one_line(site: NodeSite, tmp_path: Path) -> None:
    (tmp_path / "make").write_text("#!/bin/sh\necho 'slurm/spank.h: error: No such file' >&2; exit 2\n")
    (tmp_path / "make").chmod(0o755)
    options = ("--spank", "--plugin-dir", str(tmp_path / "lib"), "--hook-dir", str(site.hooks))
    command = [site.python, "-I", "-m", "slurm_recovery.cli.main", "--conf", str(site.conf), "setup", "--node"]
    for path, words in ((f"{tmp_path}:/usr/bin:/bin", "spank.h: error"), (str(tmp_path), "cc not found")):
        done = site.cluster.run(*command, *options, env={"PATH": path}, check=False)
        assert done.returncode == 1
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "lib").exists()
