"""The worker is killed before and after each step that leaves a trace; a sweep puts everything right.

Right is: restarted once, or ended as Slurm ended it; never held, never twice, nothing left in the spool.
"""

from __future__ import annotations

import queue
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.private_cluster import PrivateCluster
from tests.cluster.site import Site

CRASHING_WORKER = Path(__file__).with_name("crashing_worker.py")
CHECKOUT = Path(__file__).parents[2]
CLUSTERS = 4

# Every call of a port that leaves a trace, as often as one restart makes it.
TRACES = [
    *(f"store.save {number}" for number in range(1, 10)),
    "spool.done 1",
    "spool.mark_hold 1",
    "spool.clear_hold 1",
    "slurm.requeue_hold 1",
    "slurm.update 1",
    "slurm.release 1",
]
POINTS = [
    (when, trace, dependents) for trace in TRACES for when in ("before", "after") for dependents in (False, True)
]


def crashing_site(cluster: PrivateCluster) -> Site:
    """A site whose hooks start the crashing worker."""
    site = Site(cluster, {"Backoff": "0", "WatchdogTimeout": "3", "HoldTimeout": "20"})
    site.install()
    start = [sys.executable, "-I", "-c", f"import sys, runpy; sys.path.insert(0, {str(CHECKOUT)!r}); "
             f"sys.argv = [{str(CRASHING_WORKER)!r}, *sys.argv[1:]]; "
             f"runpy.run_path({str(CRASHING_WORKER)!r}, run_name='__main__')"]  # fmt: skip
    site.replace_worker(start)
    return site


@pytest.fixture(scope="module")
def sites() -> Iterator[queue.Queue[Site]]:
    clusters = [PrivateCluster() for _ in range(CLUSTERS)]
    try:
        free: queue.Queue[Site] = queue.Queue()
        for cluster in clusters:
            free.put(crashing_site(cluster.start()))
        yield free
    finally:
        for cluster in clusters:
            cluster.stop()


def test_a_sweep_mends_what_a_killed_worker_left(sites: queue.Queue[Site]) -> None:
    with ThreadPoolExecutor(CLUSTERS) as pool:
        wrong = [complaint for complaint in pool.map(lambda point: crash_at(point, sites), POINTS) if complaint]
    assert not wrong, "\n".join(wrong)


def crash_at(point: tuple[str, str, bool], sites: queue.Queue[Site]) -> str:
    """What is wrong after a crash there and a sweep; "" where all is well."""
    site = sites.get()
    try:
        return one_crash(site, *point)
    except Exception as error:  # noqa: BLE001  # reported with all the others
        return f"{point}: {error}\n{site.worker_log()[-3000:]}"
    finally:
        (site.state / "crash").unlink(missing_ok=True)
        sites.put(site)


def one_crash(site: Site, when: str, trace: str, dependents: bool) -> str:
    cluster = site.cluster
    (site.state / "crash").write_text(f"{when} {trace}")
    # Fails in its first attempt, succeeds in any other: a third attempt would show.
    job = cluster.sbatch("--output=/dev/null", script='sleep 0.3; test "${SLURM_RESTART_COUNT:-0}" != 0')
    successor = cluster.sbatch(f"--dependency=afterok:{job}", "--output=/dev/null", script="true") if dependents else 0
    cluster.wait_for(lambda: cluster.show(job)["State"] not in ("RUNNING", "CONFIGURING"), what="the failure")
    cluster.wait_for(lambda: site.worker_is_gone(job), what="the worker's death")
    (site.state / "crash").unlink()
    site.sweep()
    record = cluster.wait_for(
        lambda: site.swept() and cluster.show(job)["State"] in ("COMPLETED", "FAILED") and cluster.show(job),
        what=f"job {job} to be over",
    )
    told = f"{when} {trace} dependents={dependents}: job {job} {record['State']} Restarts={record['RestartCnt']}"
    if record["RestartCnt"] != {"COMPLETED": "1", "FAILED": "0"}[record["State"]]:
        return f"{told}: not restarted exactly once"
    if left := [path.name for path in (site.state / "holds").iterdir()]:
        return f"{told}: left over: {left}"
    if dependents and record["State"] == "FAILED":
        cluster.run("scancel", str(successor))
    cluster.wait_for(site.swept, what="an empty spool")  # the good end has left an event, too
    return ""
