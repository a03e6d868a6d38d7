"""The SPANK plugin on a real cluster: what users see, what hooks get, and that jobs run as before without it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from slurm_recovery.job_options import SPANK
from tests.cluster.errors import ClusterError
from tests.cluster.private_cluster import PrivateCluster
from tests.spank_build import build_plugin, headers_of_another_release

USER = "nobody"
FOLDER = "/scratch/a b/größe=1"
ALL = {
    "--recovery=Act": "act",
    f"--recovery-checkpoint={FOLDER}": FOLDER,
    "--recovery-max-requeues=7": "7",
    "--recovery-log=/logs/%x-%j.out": "/logs/%x-%j.out",
    "--recovery-min-nodes=4:2": "4:2",
}
FLAGS = ("recovery", "recovery-checkpoint", "recovery-max-requeues", "recovery-log", "recovery-min-nodes")
CARRIED = dict(zip(SPANK.values(), ALL.values(), strict=True))
OPTION_VARIABLE = "SLURM_SPANK__SLURM_SPANK_OPTION_slurm_recovery_"
HOOK = """#!/bin/sh
folder={folder}/seen
mkdir -p "$folder"
env | grep ^SPANK_RECOVERY >"$folder/.$$"
mv "$folder/.$$" "$folder/${{0##*/}}.$SLURM_JOB_ID.$$"
exit 0
"""
HOOKS = {"Prolog": "prolog", "Epilog": "epilog", "EpilogSlurmctld": "epilog_slurmctld"}


class Spank(NamedTuple):
    """A cluster whose hooks write down their SPANK_RECOVERY variables, with the plugin in its plugstack.conf."""

    cluster: PrivateCluster
    plugin: Path

    def arguments(self, text: str = "") -> None:
        (self.cluster.folder / "plugstack.conf").write_text(f"# a comment\noptional {self.plugin} {text}\n")

    def submit(self, *options: str, script: str = "true", env: dict[str, str] | None = None) -> tuple[int, list[str]]:
        """The job's id, and the lines that the user sees besides."""
        done = self.cluster.run(
            "sbatch",
            "--parsable",
            *options,
            user=USER,
            env=env,
            stdin=f"#!/bin/bash\n{script}\n",
            cwd=self.cluster.work,
        )
        return int(done.stdout), done.stderr.splitlines()

    def seen(self, job: int, hook: str, runs: int = 1) -> list[dict[str, str]]:
        """What each run of a job's hook saw; waits for so many at least."""

        def found() -> list[Path]:
            paths = list((self.cluster.folder / "seen").glob(f"{hook}.{job}.*"))
            return paths if len(paths) >= runs else []

        paths = self.cluster.wait_for(found, what=f"{runs} of {hook} of {job}")
        return [dict(line.split("=", 1) for line in path.read_text().splitlines()) for path in paths]

    def carried(self, job: int) -> dict[str, str]:
        """What a job that is over has brought to EpilogSlurmctld."""
        self.cluster.wait(job, "COMPLETED")
        return self.seen(job, "epilog_slurmctld")[0]


@pytest.fixture(scope="module")
def spank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spank]:
    conf = {key: f"{{folder}}/{name}" for key, name in HOOKS.items()}
    with PrivateCluster(nodes=2, conf=dict.fromkeys(HOOKS, "")) as cluster:
        for name in HOOKS.values():
            (cluster.folder / name).write_text(HOOK.format(folder=cluster.folder))
            (cluster.folder / name).chmod(0o755)
        cluster.append_conf(f"{key}={value.format(folder=cluster.folder)}" for key, value in conf.items())
        plugin = shutil.copy(build_plugin(tmp_path_factory.mktemp("build")), cluster.folder)
        Path(plugin).chmod(0o644)
        spank = Spank(cluster, Path(plugin))
        spank.arguments()
        restart(cluster)
        yield spank


def restart(cluster: PrivateCluster) -> None:
    cluster.stop_slurmctld()
    for node in cluster.nodes:
        cluster.kill_slurmd(node)
    cluster.start_slurmctld(nodes=False)
    for node in cluster.nodes:
        cluster.start_slurmd(node)


@pytest.fixture(autouse=True)
def no_arguments(spank: Spank) -> None:
    spank.arguments()


@pytest.mark.parametrize("command", ["sbatch", "salloc", "srun"])
def test_help_lists_the_options(spank: Spank, command: str) -> None:
    said = spank.cluster.run(command, "--help").stdout
    plugins = said.partition("Options provided by plugins:")[2]
    for flag in FLAGS:
        assert f"--{flag}=" in plugins


def test_what_is_said_reaches_every_hook_and_still_after_a_requeue(spank: Spank) -> None:
    """slurmctld has it in its saved state, too."""
    job, said = spank.submit(*ALL, "--requeue", "--nodes=2", script="srun true; test $SLURM_RESTART_COUNT || sleep 99")
    assert said == []
    spank.cluster.wait(job, "RUNNING")
    assert spank.seen(job, "prolog", runs=2) == [CARRIED] * 2
    spank.cluster.run("scontrol", "requeuehold", str(job))
    spank.cluster.wait(job, "PENDING")
    spank.cluster.stop_slurmctld()
    spank.cluster.start_slurmctld()
    spank.cluster.run("scontrol", "update", f"job={job}", "StartTime=now")
    spank.cluster.run("scontrol", "release", str(job))
    spank.cluster.wait(job, "COMPLETED")
    for hook, runs in {"prolog": 3, "epilog": 4, "epilog_slurmctld": 2}.items():
        assert all(seen == CARRIED for seen in spank.seen(job, hook, runs))


def test_a_job_that_says_nothing_has_none_of_the_variables(spank: Spank) -> None:
    job, said = spank.submit()
    assert (said, spank.carried(job)) == ([], {})


def test_the_longest_path(spank: Spank) -> None:
    path = "/" + "x" * 4094
    job, said = spank.submit(f"--recovery-checkpoint={path}")
    assert (said, spank.carried(job)) == ([], {"SPANK_RECOVERY_CHECKPOINT": path})


def test_every_task_of_an_array_has_it(spank: Spank) -> None:
    array, said = spank.submit(*ALL, "--array=1-3%2")
    assert said == []
    tasks = [spank.cluster.wait(f"{array}_{task}", "COMPLETED")["JobID"] for task in (1, 2, 3)]
    for task in tasks:
        for hook in HOOKS.values():
            assert spank.seen(int(task), hook) == [CARRIED]


def test_what_is_said_of_a_component_holds_for_those_after_it(spank: Spank) -> None:
    """Slurm's own way with SPANK: one process, one job control environment."""
    job, said = spank.submit("--recovery=observe", "-N1", ":", "--recovery-max-requeues=2", "-N1", script="srun true")
    assert said == []
    for component in (f"{job}+0", f"{job}+1"):
        spank.cluster.wait(component, "COMPLETED")
    first, second = (spank.seen(number, "epilog_slurmctld")[0] for number in (job, job + 1))
    assert first == {"SPANK_RECOVERY": "observe"}
    assert second == first | {"SPANK_RECOVERY_MAX_REQUEUES": "2"}


@pytest.mark.parametrize("command", [("srun",), ("salloc", "--no-shell"), ("salloc", "srun")])
def test_salloc_and_srun_carry_it_too(spank: Spank, command: tuple[str, ...]) -> None:
    tail = () if "--no-shell" in command else ("true",)
    argv = (command[0], *ALL, "--job-name=other", *command[1:], *tail)
    done = spank.cluster.run(*argv, user=USER)
    assert "recovery" not in done.stderr.lower()
    job = max(int(row["JobID"]) for row in spank.cluster.records() if row["Name"] == "other")
    if "--no-shell" in command:
        spank.cluster.run("scancel", str(job))
    assert spank.seen(job, "epilog_slurmctld") == [CARRIED]
    if "srun" in command:
        assert spank.seen(job, "prolog") == [CARRIED]


# -- what is refused, lowered, ignored ------------------------------------------------------------------------------

MODE, PATH, NUMBER = "write act, observe or off", "not an absolute path", "not a number from 0 to 1000"
NODES = "not MIN or MIN:STEP, both from 1 to 1000000"
REFUSED = [
    ("recovery", "on", MODE),
    ("recovery", "", MODE),
    ("recovery", "act ", MODE),
    ("recovery-checkpoint", "relative/path", PATH),
    ("recovery-checkpoint", "", PATH),
    ("recovery-checkpoint", "/" + "y" * 4095, PATH),
    ("recovery-log", "%j.log", PATH),
    ("recovery-max-requeues", "x", NUMBER),
    ("recovery-max-requeues", "-1", NUMBER),
    ("recovery-max-requeues", "1001", NUMBER),
    ("recovery-max-requeues", "4294967296", NUMBER),
    ("recovery-max-requeues", "3\n4\x1b[31m", NUMBER),
    ("recovery-min-nodes", "0", NODES),
    ("recovery-min-nodes", "4:", NODES),
    ("recovery-min-nodes", "4:0", NODES),
    ("recovery-min-nodes", ":2", NODES),
    ("recovery-min-nodes", "1000001", NODES),
    ("recovery-min-nodes", "4:2:1", NODES),
]


def shown(value: str) -> str:
    text = re.sub(r"[\0-\x1f\x7f]", "?", value)
    return text if len(text) <= 80 else text[:80] + "..."


def test_a_value_that_is_not_understood_is_refused_in_one_clear_line(spank: Spank) -> None:
    before = spank.cluster.records()
    for flag, value, hint in REFUSED:
        done = spank.cluster.run("sbatch", f"--{flag}={value}", user=USER, check=False, stdin="#!/bin/sh\ntrue\n")
        ours, slurms = done.stderr.split("\n", 1)
        assert ours == f"sbatch: error: slurm_recovery: --{flag}={shown(value)}: {hint}"
        assert slurms.startswith(f"sbatch: error: Invalid --{flag} argument: {value[:900]}")
        assert (done.returncode != 0, done.stdout) == (True, "")
    for command in ("salloc", "srun"):
        done = spank.cluster.run(command, "--recovery=x", "true", user=USER, check=False)
        assert done.stderr.splitlines()[0] == f"{command}: error: slurm_recovery: --recovery=x: {MODE}"
        assert done.returncode != 0
    assert spank.cluster.records() == before


def test_the_command_line_goes_before_the_script_and_variables_as_with_other_options(spank: Spank) -> None:
    script = "#SBATCH --recovery=off\n#SBATCH --recovery-max-requeues=5\n#SBATCH --recovery-min-nodes=1\ntrue"
    variables = {OPTION_VARIABLE + "recovery": "observe", OPTION_VARIABLE + "recovery_max_requeues": "6"}
    job, said = spank.submit("--recovery=act", script=script, env=variables)
    assert said == []
    assert spank.carried(job) == {
        "SPANK_RECOVERY": "act",
        "SPANK_RECOVERY_MAX_REQUEUES": "6",
        "SPANK_RECOVERY_MIN_NODES": "1",
    }


@pytest.mark.parametrize(
    ("arguments", "options", "told", "carried"),
    [
        ("max_mode=act max_requeues=7 job_options=all", (*ALL,), [], CARRIED),
        (
            "max_mode=observe max_requeues=3",
            ("--recovery=act", "--recovery-max-requeues=4"),
            [
                "--recovery=act: this site allows at most observe, taken as that",
                "--recovery-max-requeues=4: this site allows at most 3, taken as that",
            ],
            {"SPANK_RECOVERY": "observe", "SPANK_RECOVERY_MAX_REQUEUES": "3"},
        ),
        ("max_mode=observe", ("--recovery=off",), [], {"SPANK_RECOVERY": "off"}),
        (
            "job_options=none",
            (*ALL,),
            [f"{word}: this site does not let a job choose it, ignored" for word in ALL],
            {},
        ),
        (
            "job_options=mode,max-requeues max_requeues=0",
            ("--recovery=act", "--recovery-max-requeues=1", "--recovery-log=/l"),
            [
                "--recovery-max-requeues=1: this site allows at most 0, taken as that",
                "--recovery-log=/l: this site does not let a job choose it, ignored",
            ],
            {"SPANK_RECOVERY": "act", "SPANK_RECOVERY_MAX_REQUEUES": "0"},
        ),
    ],
)
def test_a_wish_beyond_what_the_site_allows_is_told_and_the_job_goes_on(
    spank: Spank, arguments: str, options: tuple[str, ...], told: list[str], carried: dict[str, str]
) -> None:
    spank.arguments(arguments)
    job, said = spank.submit(*options)
    assert said == [f"slurm_recovery: {line}" for line in told]
    assert spank.carried(job) == carried


def test_a_wish_of_several_components_is_told_once(spank: Spank) -> None:
    spank.arguments("max_mode=off")
    job, said = spank.submit("--recovery=act", "-N1", ":", "-N1")
    assert said == ["slurm_recovery: --recovery=act: this site allows at most off, taken as that"]
    assert spank.carried(job) == {"SPANK_RECOVERY": "off"}


BAD_ARGUMENTS = (
    "max_mode=sometimes max_requeues=-3 job_options=mode,colour max_requeues=99999999999 verbose job_options"
)
COMPLAINTS = [
    "max_mode=sometimes: not act, observe or off",
    "max_requeues=-3: not a number from 0 to 1000",
    "job_options=mode,colour: not all, none, or a list of mode,checkpoint,max-requeues,log,min-nodes",
    "max_requeues=99999999999: not a number from 0 to 1000",
    "verbose: unknown (known are max_mode=, max_requeues=, job_options=)",
    "job_options: not all, none, or a list of mode,checkpoint,max-requeues,log,min-nodes",
]


def test_arguments_that_are_not_understood_are_in_the_log_and_ignored(spank: Spank) -> None:
    spank.arguments(" ".join(complaint.partition(": ")[0] for complaint in COMPLAINTS))
    job, said = spank.submit(*ALL)
    assert (said, spank.carried(job)) == ([], CARRIED)
    job, said = spank.submit("--verbose", *ALL)
    lines = [f"slurm_recovery: plugstack.conf: {complaint}, ignored" for complaint in COMPLAINTS]
    assert [line for line in said if "plugstack.conf: " in line and "slurm_recovery: p" in line] == [
        f"sbatch: {line}" for line in lines
    ]
    restart(spank.cluster)
    log = spank.cluster.slurmd_log("n1")
    assert [line for line in lines if f"error: {line}" in log] == lines


# -- a job is never hurt --------------------------------------------------------------------------------------------


def test_a_step_is_not_hurt_by_an_option_and_does_not_change_the_jobs_say(spank: Spank) -> None:
    script = (
        "set -e\nsrun true\nsrun --recovery=off true\nsrun --recovery=nonsense --recovery-log=x true\nsrun hostname"
    )
    job, _ = spank.submit("--recovery=observe", "--output=steps-%j", script=script)
    assert spank.carried(job) == {"SPANK_RECOVERY": "observe"}
    assert spank.seen(job, "epilog") == spank.seen(job, "prolog") == [{"SPANK_RECOVERY": "observe"}]
    told = "; ignored, as this srun starts a step of a job"
    assert [line for line in (spank.cluster.work / f"steps-{job}").read_text().splitlines() if "recovery" in line] == [
        f"slurm_recovery: --recovery=nonsense: {MODE}{told}",
        f"slurm_recovery: --recovery-log=x: {PATH}{told}",
    ]


def test_a_job_that_a_job_submits_says_the_same_unless_told_otherwise(spank: Spank) -> None:
    """Slurm exports SPANK options to the job; so do its own SBATCH_ variables."""
    script = "sbatch --parsable --wrap=true\nsbatch --parsable --recovery=off --wrap=true"
    job, _ = spank.submit("--recovery=observe", "--recovery-min-nodes=1", "--output=chain-%j", script=script)
    assert spank.carried(job) == {"SPANK_RECOVERY": "observe", "SPANK_RECOVERY_MIN_NODES": "1"}
    same, other = (int(line) for line in (spank.cluster.work / f"chain-{job}").read_text().splitlines())
    assert spank.carried(same) == {"SPANK_RECOVERY": "observe", "SPANK_RECOVERY_MIN_NODES": "1"}
    assert spank.carried(other) == {"SPANK_RECOVERY": "off", "SPANK_RECOVERY_MIN_NODES": "1"}


def broken_plugins(spank: Spank, folder: Path) -> dict[str, bytes | None]:
    whole = spank.plugin.read_bytes()
    other = build_plugin(folder / "build", f"SLURM_CPPFLAGS=-I{headers_of_another_release(folder / 'include')}")
    return {
        "removed": None,
        "empty": b"",
        "begun": whole[:1000],
        "half": whole[: len(whole) // 2],
        "without its last byte": whole[:-1],
        "another file": b"#!/bin/sh\necho no plugin\n" * 99,
        "of another release": other.read_bytes(),
    }


def test_with_a_plugin_that_is_gone_or_broken_jobs_run_as_before(spank: Spank, tmp_path: Path) -> None:
    kinds = broken_plugins(spank, tmp_path)
    for number, (kind, content) in enumerate(kinds.items()):
        plugin = spank.cluster.folder / f"broken{number}.so"
        if content is not None:
            plugin.write_bytes(content)
        Spank(spank.cluster, plugin).arguments()
        job, said = spank.submit("--nodes=2", "--output=broken-%j", script="srun true && echo done")
        assert spank.carried(job) == {}, kind
        output = (spank.cluster.work / f"broken-{job}").read_text().splitlines()
        assert output[-1] == "done", kind
        assert spank.cluster.run("srun", "echo", "alone", user=USER).stdout == "alone\n", kind
        with pytest.raises(ClusterError, match="unrecognized option '--recovery=act'"):
            spank.submit("--recovery=act")
        print(kind, said, output)
    restart(spank.cluster)
    job, _ = spank.submit()
    assert spank.carried(job) == {}


def test_a_node_without_the_plugin_runs_the_job_all_the_same(spank: Spank) -> None:
    """Only slurmstepd looks for it there; here it is gone between submission and start."""
    job, said = spank.submit(*ALL, "--hold", "--output=gone-%j", script="srun true && echo done")
    assert said == []
    (spank.cluster.folder / "plugstack.conf").write_text(f"optional {spank.plugin}.gone\n")
    spank.cluster.run("scontrol", "release", str(job))
    assert spank.carried(job) == CARRIED
    assert (spank.cluster.work / f"gone-{job}").read_text().splitlines()[-1] == "done"
