"""The drills, as rows: how each fails, the reason that must be found, and what the site must have for it.

To add one is to add a row, and its lines in job.py. What is checked, in which order, is steps.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from slurm_recovery.config.settings import Config
from slurm_recovery.decide.progress import LOAD_FAILED
from slurm_recovery.job_options import CHECKPOINT


class Drill(NamedTuple):
    """`reasons`: the right ones, the likeliest first; none where the job ends well. `names_node`: one node is to blame.

    `reports`: the nodes' own reports must be in the record; `resumes`: the restart must be told its checkpoint.
    `missing` says, of recovery.conf, slurm.conf (keys in lower case) and the partition, what the drill needs and the
    site has not; "" for nothing.
    """

    name: str
    sentence: str
    job: str  # what its job does: a word of job.py
    reasons: tuple[str, ...] = ()
    names_node: bool = False
    reports: bool = False
    resumes: bool = False
    missing: Callable[[Config, Mapping[str, str], str], str] = lambda config, slurm, partition: ""


def _no_evidence(config: Config, slurm: Mapping[str, str], partition: str) -> str:
    return "" if config.settings.evidence_dir else "EvidenceDir is not set"


def _no_resume(config: Config, slurm: Mapping[str, str], partition: str) -> str:
    if CHECKPOINT not in config.policy(partition).job_options:
        return "JobOptions does not let a job say its checkpoint"
    if not config.settings.evidence_dir:
        return "EvidenceDir is not set, so no node looks for checkpoints"
    return "" if slurm.get("taskprolog") else "TaskProlog is not set, so no job is told its checkpoint"


DRILLS: Mapping[str, Drill] = {
    drill.name: drill
    for drill in (
        Drill(
            "ecc",
            "a rank prints CUDA's line of an uncorrectable ECC error and exits with 1; its node is to blame",
            "ecc",
            ("gpu_ecc_uncorrectable",),
            names_node=True,
        ),
        Drill("killed", "a rank is killed by SIGKILL, and nothing says by whom", "killed", ("killed_unknown",)),
        Drill(
            "hang",
            "a rank hangs; the others print the lines of NCCL's watchdog and abort",
            "hang",
            ("nccl_timeout", "hang"),
        ),
        Drill("stop", "a Python error, which no restart would help", "exception", ("python_exception",)),
        Drill(
            "evidence",
            "a Python error; the reports of all nodes must be taken into the record",
            "exception",
            ("python_exception",),
            reports=True,
            missing=_no_evidence,
        ),
        Drill(
            "corrupt",
            "the newest checkpoint cannot be loaded; the restart must be told the one before",
            "corrupt",
            (LOAD_FAILED,),
            reports=True,
            resumes=True,
            missing=_no_resume,
        ),
        Drill("sweep", "the job ends well: its event starts no worker and must be taken up by the sweep", "well"),
    )
}
