"""Whether a job gets further, on real daemons: what its batch node sees in its folder of checkpoints decides.

The job's attempts follow a plan: what each one saves before it fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_recovery.decide.progress import Gained, gains
from slurm_recovery.records import Incident, Stage
from slurm_recovery.resume import read_resume
from tests.cluster.node_site import NodeSite
from tests.cluster.private_cluster import PrivateCluster

LINES = """\
CheckpointFormat=plain Pattern=step-{step} Marker=DONE
PartitionName=left StopAction=leave
PartitionName=few MaxRequeues=3
PartitionName=forbids JobOptions=mode,max-requeues
Reason=unknown MaxRequeues=50
"""
SETTINGS = {
    "Backoff": "0",
    "EvidenceWait": "2",
    "MaxRequeues": "50",
    "StopAfterNoProgress": "4",
    "StopAction": "hold",
}
UNREADABLE = "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"
# What the attempt does: the word of the plan at its place, the last one for all that follow. "3" saves step 3, "-"
# nothing, "half4" begins step 4 and does not finish it, "load" fails to load, "use" loads what it is told to, but for
# step 3, and ends well; so does "end".
SCRIPT = """\
mkdir -p {folder}
set -- {plan}
shift $(( SLURM_RESTART_COUNT < $# ? SLURM_RESTART_COUNT : $# - 1 ))
echo "attempt $SLURM_RESTART_COUNT: $1"
case $1 in
    half*) mkdir -p {folder}/step-${{1#half}};;
    [0-9]*) [ -e {folder}/step-$1/DONE ] || {{ mkdir -p {folder}/step-$1; touch {folder}/step-$1/DONE; }};;
    load) echo "{unreadable}" >&2;;
    use) echo "begins from ${{SLURM_RECOVERY_CHECKPOINT##*/}}"
        case $SLURM_RECOVERY_CHECKPOINT in
            */step-3) echo "{unreadable}" >&2;;
            */step-*) exit 0;;
        esac;;
    end) exit 0;;
esac
exit 1
"""


@pytest.fixture(scope="module")
def site() -> Iterator[NodeSite]:
    partitions = [f"PartitionName={name} Nodes=ALL" for name in ("main", "left", "few", "forbids")]
    with PrivateCluster(nodes=4, partitions=partitions) as cluster:
        site = NodeSite(cluster, SETTINGS, LINES)
        site.install()
        yield site


class Run:
    """A job that follows a plan, and what became of it."""

    def __init__(self, site: NodeSite, name: str, plan: str, *options: str, said: str = "", partition: str = "main"):
        self.site, self.folder = site, site.cluster.work / name
        comment = f"recovery=act,checkpoint={self.folder}{said}"
        script = SCRIPT.format(folder=self.folder, plan=plan, unreadable=UNREADABLE)
        options = (f"--comment={comment}", f"--partition={partition}", "--output=%j.log", *options)
        self.job = site.cluster.sbatch(*options, script=script)

    def stopped(self) -> Incident:
        incident = self.site.wait_stage(self.job, Stage.STOPPED, Stage.LEFT, timeout=120)
        assert incident.stage is Stage.STOPPED
        return incident

    def restarts(self) -> int:
        return int(self.site.cluster.show(self.job)["RestartCnt"])

    def comment(self) -> str:
        return self.site.cluster.show(self.job)["AdminComment"]

    def completed(self) -> None:
        self.site.cluster.wait(self.job, "COMPLETED", timeout=120)

    def history(self) -> list[Incident]:
        return self.site.incidents(self.job)


def basis(incident: Incident) -> str:
    return incident.decision.basis if incident.decision else ""


def seen(incident: Incident) -> list[Path]:
    """The complete checkpoints on record, the newest first."""
    progress = incident.observation.progress if incident.observation else None
    assert progress is not None
    return [Path(one.path) for one in (progress.newest, *progress.earlier) if one]


def test_restarts_without_progress_stop_the_job_and_its_owner_reads_why(site: NodeSite) -> None:
    """Four in a row do; four with one in between that got further do not; each counts double in MaxRequeues."""
    none = Run(site, "none", "100")
    between = Run(site, "between", "100 100 100 200 200 200 end")
    double = Run(site, "double", "100", partition="few")
    gained = Run(site, "gained", "1 2 3 4 5", partition="few")
    left = Run(site, "left", "100", partition="left")

    assert basis(none.stopped()) == "no_progress"
    assert none.restarts() == 4 + 1  # to be held for somebody to look is one more
    assert none.comment() == (
        "slurm_recovery: unknown: not restarted: 4 restarts in a row without a newer checkpoint or a later step "
        "(StopAfterNoProgress); last step 100"
    )
    between.completed()
    assert between.restarts() == 6
    assert [gain.gained for gain in gains(between.history())] == [
        Gained.NOTHING,
        Gained.NOTHING,
        Gained.MORE,
        Gained.NOTHING,
        Gained.NOTHING,
        Gained.UNKNOWN,
    ]
    assert basis(double.stopped()) == "budget_job"
    assert double.comment().endswith(": 2 restarts count as 4 of 3: 2 without progress count double")
    assert basis(gained.stopped()) == "budget_job"
    assert gained.comment().endswith(": 3 of 3 restarts used")
    assert basis(left.stopped()) == "no_progress"
    assert left.comment() == (  # of its last restart: none can be set on a job that has ended
        "slurm_recovery: unknown: restarted; no progress in the last 3 restarts: each counts double, "
        "and 4 in a row stop the job (StopAfterNoProgress)"
    )
    shown = site.srecover("show", str(between.job), "--all").stdout
    assert f"Progress: step 200, 100 more than before; newest checkpoint {between.folder}/step-200 (plain, " in shown
    assert "Progress: step 200, no more than before; " in shown


def test_a_checkpoint_that_does_not_load_sends_the_job_to_the_one_before_once(site: NodeSite) -> None:
    # Alone on its node: slurmd 22.05 starts no Prolog for a restart where any job began or ended within two seconds.
    led = Run(site, "led", "1 2 3 use", "--exclusive")
    lost = Run(site, "lost", "1 2 load")
    nothing = Run(site, "nothing", "load")
    led.completed()
    history = led.history()
    assert basis(history[0]) == "earlier_checkpoint"
    assert [path.name for path in seen(history[0])] == ["step-3", "step-2", "step-1"]
    told = read_resume(str(site.evidence), led.job)
    assert told is not None
    assert (told.attempt, told.step, Path(told.checkpoint).name) == (5, 2, "step-2")
    assert [Path(path).name for path in told.refused] == ["step-3"]
    assert f"not to be begun from, it could not be loaded: {led.folder}/step-3" in (
        site.srecover("show", str(led.job)).stdout
    )
    stopped = lost.stopped()
    assert basis(stopped) == "no_checkpoint_left"
    assert lost.restarts() == 3 + 1
    assert "no complete checkpoint is left to begin from: 2 could not be loaded" in lost.comment()
    assert basis(nothing.stopped()) == "reason_stops"


def test_a_half_written_one_is_passed_over_and_said_to_be(site: NodeSite) -> None:
    run = Run(site, "half", "1 half2 end")
    run.completed()
    (newest, _) = run.history()
    assert [path.name for path in seen(newest)] == ["step-1"]
    shown = site.srecover("show", str(run.job)).stdout
    assert f"passed over {run.folder}/step-2: " in shown


def test_the_owners_options_hold_within_what_the_site_allows(site: NodeSite) -> None:
    never = Run(site, "never", "1", said=",max-requeues=0")
    once = Run(site, "once", "1 2 3", said=",max-requeues=1,nonsense=1")
    forbidden = Run(site, "forbidden", "1 2 end", said=",max-requeues=9", partition="forbids")
    assert basis(never.stopped()) == "budget_job"
    assert never.comment().endswith(": not restarted: not to be restarted, as its owner wants (max-requeues=0)")
    assert basis(once.stopped()) == "budget_job"
    assert once.comment().endswith(
        ": 1 of 1 restarts used, as its owner wants (max-requeues); recovery options not taken: an unknown one"
    )
    forbidden.completed()
    assert all(one.observation and one.observation.progress is None for one in forbidden.history())
    assert forbidden.comment().endswith(": restarted; recovery options not taken: checkpoint")


def test_a_further_log_tells_the_cause_and_the_steps(site: NodeSite) -> None:
    log = site.cluster.work / "further.log"
    said = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    script = f"echo 'global_step: '$((SLURM_RESTART_COUNT + 7))' | loss: 1' >>{log}; echo '{said}' >>{log}; exit 1"
    comment = f"--comment=recovery=act,log={site.cluster.work}/further.log,max-requeues=1"
    job = site.cluster.sbatch(comment, "--output=%j.log", script=script)
    last = site.wait_stage(job, Stage.STOPPED)
    assert last.attribution is not None
    assert last.attribution.reason == "gpu_ecc_uncorrectable"
    history = site.incidents(job)
    steps = [one.observation.progress.step for one in history if one.observation and one.observation.progress]
    assert steps == [8, 7]
