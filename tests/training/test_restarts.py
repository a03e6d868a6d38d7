"""The whole way on a cluster: killed within a write, a job is restarted, told its checkpoint, and ends undisturbed."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.cluster.node_site import NodeSite
from tests.cluster.private_cluster import PrivateCluster
from tests.training.formats import FORMATS, Format
from tests.training.software.run import EVERY
from tests.training.software_server import PYTHON, ROOT

pytestmark = pytest.mark.xdist_group("cluster")  # one cluster, in one process

SAVE, CHANGE, PART = 3, 4, 0.5  # the kill: in the third write, too early for any format to be complete


class Jobs:
    """One for each format, all of them queued at once; two at a time run.

    Each has a node of its own, and some time before its restart: slurmd 22.05 forgets the jobs that it had at most once
    in two seconds (slurm_cred.c, _clear_expired_job_states), and starts no Prolog for one that it has not forgotten.
    """

    def __init__(self, cluster: PrivateCluster) -> None:
        self.cluster = cluster
        lines = "".join(
            f"CheckpointFormat={rule.name} Pattern={rule.pattern} Marker={rule.marker}\n"
            for software in FORMATS
            for rule in software.rules
        )
        self.site = NodeSite(cluster, {"Backoff": "10", "JobOptions": "mode,checkpoint"}, lines)
        self.site.install()
        places = zip(FORMATS, cluster.nodes, strict=True)
        self.numbers = {software.module: self.submit(software, node) for software, node in places}

    def submit(self, software: Format, node: str) -> int:
        folder = self.cluster.work / software.module
        words = f"{software.module} {folder} {SAVE} {CHANGE} {PART}"
        return self.cluster.sbatch(
            f"--nodelist={node}",
            "--licenses=processor",
            f"--job-name={software.module}",
            f"--comment=recovery=act,checkpoint={folder}",
            "--output=%j.log",
            "--open-mode=append",
            script=f"cd {ROOT} && srun {PYTHON} -m tests.training.software.once {words}",
        )

    def log(self, software: Format) -> str:
        path = self.cluster.work / f"{self.numbers[software.module]}.log"
        return path.read_text() if path.exists() else ""


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    with PrivateCluster(nodes=len(FORMATS), conf={"Licenses": "processor:2"}) as cluster:
        yield Jobs(cluster)


@pytest.mark.parametrize("software", FORMATS, ids=str)
def test_a_job_killed_while_it_saves_ends_as_if_nothing_had_been(jobs: Jobs, software: Format) -> None:
    job = jobs.numbers[software.module]
    try:
        jobs.cluster.wait(job, "COMPLETED", timeout=180)
    except Exception as error:
        error.add_note(jobs.log(software))
        error.add_note(jobs.site.worker_log())
        raise
    said = jobs.log(software)
    assert jobs.cluster.show(job)["RestartCnt"] == "1"
    assert said.startswith("attempt  begins from ''\n"), said  # it is told nothing yet
    assert "killed within a write" in said, said
    last = said[said.index("killed within a write") :]
    assert re.search(rf"attempt 2 begins from '{jobs.cluster.work}/{software.module}/\S+'", last), said
    newest = EVERY * (SAVE - 1)
    assert f"loaded {newest}" in last.splitlines(), said
    losses = re.findall(r"^(undisturbed )?loss (\S+)$", last, re.MULTILINE)
    assert [bool(which) for which, _ in losses] == [False, True], said
    assert losses[0][1] == losses[1][1], said
