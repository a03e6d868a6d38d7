"""`srecover setup`, `check` and `setup --remove` on a cluster, as a sysadmin meets them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.private_cluster import PrivateCluster
from tests.cluster.site import Site


@pytest.fixture
def bare() -> Iterator[Site]:
    with PrivateCluster(nodes=2) as cluster:
        yield Site(cluster)


def problems(site: Site) -> dict[str, str]:
    """{what: hint} of `srecover check`."""
    options = ("--hook-dir", str(site.hooks), "--slurm-conf", str(site.cluster.slurm_conf), "--json")
    done = site.srecover("check", *options, check=False)
    found = json.loads(done.stdout)
    assert done.returncode == int(any(problem["level"] == "error" for problem in found)), done.stderr
    return {problem["what"]: problem["hint"] for problem in found}


def has(found: dict[str, str], words: str) -> bool:
    return any(words in what for what in found)


def test_setup_twice_check_and_remove(bare: Site) -> None:
    assert list(problems(bare)) == ["not set up yet"]
    first = bare.install()
    assert "trigger registered: nodes that go down" in first
    again = bare.setup()
    assert "written" not in again
    assert "trigger registered already" in again
    bare.sweep()
    job = bare.cluster.sbatch(script="true")
    bare.cluster.wait(job, "COMPLETED")
    found = problems(bare)
    assert set(found) == {"JobFileAppend=0: a restarted job overwrites the log of its failed attempt"}

    refused = bare.srecover("setup", "--remove", "--hook-dir", str(bare.hooks), check=False)
    assert refused.returncode == 1
    assert "slurmctld still runs our hook" in refused.stderr
    conf = bare.cluster.slurm_conf
    conf.write_text("".join(line for line in conf.open() if not line.startswith("EpilogSlurmctld=")))
    bare.restart_slurmctld()
    bare.srecover("setup", "--remove", "--hook-dir", str(bare.hooks))
    assert not bare.hooks.exists()
    assert (bare.state / "recovery.db").exists()
    assert "node_down" not in bare.cluster.run("strigger", "--get").stdout
    bare.srecover("setup", "--remove", "--hook-dir", str(bare.hooks))


def signatures(cluster: PrivateCluster) -> Path:
    """A site's signatures, with a pattern that could run away."""
    folder = cluster.folder / "signatures.d"
    folder.mkdir()
    row = ["[[signature]]", "id = 'slow'", "reason = 'unknown'", "role = 'root'", "literals = ['abcd']"]
    row += ["pattern = '(?:a+)+abcd'", "source = 'ours'", "example = 'aabcd'", "counterexample = 'b'"]
    (folder / "mysite.toml").write_text("\n".join(row) + "\n")
    return folder


def test_check_names_what_is_wrong(bare: Site) -> None:
    bare.install()
    bare.sweep()
    cluster = bare.cluster
    bare.state.chmod(0o755)
    (bare.hooks / "node_down").chmod(0o644)
    cluster.run("strigger", "--clear", "--user=root")
    cluster.append_conf(["MinJobAge=30", "JobRequeue=0"])
    bare.restart_slurmctld()
    settings = {"WatchdogTimeout": "25", "Attributor": "/no/such/program", "SignatureDir": str(signatures(cluster))}
    bare.configure(settings, "PartitionName=nosuch Mode=act\n")
    found = problems(bare)
    for words in (
        "is open to others (mode 755)",
        "node_down: not executable",
        "no trigger for nodes that go down",
        "MinJobAge=30",
        "JobRequeue=0",
        "written for other settings (watchdog)",
        "PartitionName=nosuch: no such partition",
        "Attributor=/no/such/program is not asked: ",
        "mysite.toml: slow: pattern: ",
    ):
        assert has(found, words), (words, found)
    bare.conf.write_text("Mode=act\nMaxRequeus=3\n")
    (what, hint) = problems(bare).popitem()
    assert "recovery.conf:2: unknown key MaxRequeus" in what
    assert "did you mean MaxRequeues?" in hint


def test_a_line_for_the_hook_in_the_sites_own_script_is_enough(bare: Site) -> None:
    bare.setup()
    script = bare.cluster.folder / "epilogslurmctld.sh"
    script.write_text(f"#!/bin/sh\n{bare.hooks}/epilog_slurmctld\n")
    script.chmod(0o755)
    bare.cluster.append_conf(f"EpilogSlurmctld={script}")
    bare.restart_slurmctld()
    job = bare.cluster.sbatch(script="exit 1")
    bare.cluster.wait_for(lambda: bare.incidents(job), what="an incident")
    assert not has(problems(bare), "EpilogSlurmctld")


def test_setup_refuses_what_it_cannot_do(bare: Site) -> None:
    done = bare.srecover("setup", "--hook-dir", "/tmp/with blank", check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "without blanks" in done.stderr
    bare.cluster.stop_slurmctld()
    done = bare.srecover("setup", "--hook-dir", str(bare.hooks), check=False)
    assert done.returncode == 1
    assert "trigger not registered" in done.stderr
