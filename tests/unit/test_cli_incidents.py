"""srecover list and srecover show, on a store of hand-made incidents."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from slurm_recovery.cli.times import short, shown
from slurm_recovery.records import Attribution, Category, Checkpoint, Incident, PassedOver, Progress, Stage
from tests.unit.cli_site import END, HOSTILE, STEPS, Site, an_attempt, recovered


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Two attempts of job 120, a task of an array, and a fresh incident."""
    site = Site(tmp_path)
    with site.store(END) as store:
        store.save(recovered(), *STEPS)
    with site.store(END + 100) as store:
        store.save(recovered(restart_count=1, start_time=END + 2, end_time=END + 90))
        store.save(recovered(125, array_job_id=120, array_task_id=3, user="grace", partition="debug"))
        store.save(Incident(attempt=an_attempt(122, state="")))
    return site


# -- list ----------------------------------------------------------------------------------------


def test_list_is_a_table_as_squeue_prints_it(site: Site) -> None:
    first, second = short(END), short(END + 90)
    restarted = "restarted gpu_ecc_uncorrectable requeue"
    answer = site.run("list")
    assert answer.out == (
        "JOBID A PART  USER  STAGE     REASON                VERDICT ENDED       EXCLUDED\n"
        f"  122 0 train ada   detected{'':32}{first}\n"
        f"120_3 0 debug grace {restarted} {first} n3\n"
        f"  120 1 train ada   {restarted} {second} n3\n"
        f"  120 0 train ada   {restarted} {first} n3\n"
    )
    assert max(map(len, answer.lines)) <= 80


def test_a_long_list_has_all_columns_in_full(site: Site) -> None:
    first, second = shown(END), shown(END + 90)
    restarted = "restarted gpu_ecc_uncorrectable requeue_exclude act "
    assert site.run("list", "--long").out == (
        "INCIDENT JOBID ATTEMPT PARTITION USER  STAGE     REASON                VERDICT         MODE "
        "ENDED               EXCLUDED\n"
        f"       4   122       0 train     ada   detected{'':45}{first}\n"
        f"       3 120_3       0 debug     grace {restarted} {first} n3\n"
        f"       2   120       1 train     ada   {restarted} {second} n3\n"
        f"       1   120       0 train     ada   {restarted} {first} n3\n"
    )


def test_a_job_id_is_never_cut_and_long_names_are_only_in_the_short_list(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with site.store() as store:
        store.save(
            recovered(7, array_job_id=12345678, array_task_id=12345, user="ada.lovelace", partition="training_large")
        )
    (short_row,), (long_row,) = site.run("list", "-h").lines, site.run("list", "-h", "-l").lines
    assert short_row.split()[:4] == ["12345678_12345", "0", "training_", "ada.love"]
    assert long_row.split()[1:5] == ["12345678_12345", "0", "training_large", "ada.lovelace"]


@pytest.mark.parametrize(
    ("options", "jobs"),
    [
        (["-u", "grace"], ["120_3"]),
        (["-p", "train"], ["122", "120", "120"]),
        (["-s", "running,left"], ["120_3", "120", "120"]),
        (["-s", "restarted"], ["120_3", "120", "120"]),
        (["-u", "nobody"], []),
        (["-p", "nowhere"], []),
        (["-r", "nccl_timeout"], []),
        (["--open"], ["122"]),
        (["--open", "-s", "running"], []),
        (["-n", "1"], ["122"]),
        (["-M", "venus"], []),
        (["-r", "gpu_ecc_uncorrectable", "-n", "2"], ["120_3", "120"]),
        (["--since", shown(END + 50)], ["122", "120_3", "120"]),
    ],
)
def test_list_chooses(site: Site, options: list[str], jobs: list[str]) -> None:
    answer = site.run("list", "-h", *options)
    assert [line.split()[0] for line in answer.lines] == jobs
    assert answer.status == 0


def test_an_empty_list_is_a_header_and_no_error(tmp_path: Path) -> None:
    answer = Site(tmp_path).run("list")
    assert (answer.status, len(answer.lines)) == (0, 1)


def test_list_as_json_is_one_list(site: Site) -> None:
    found = json.loads(site.run("list", "--json").out)
    assert [one["job"] for one in found] == ["122", "120_3", "120", "120"]
    assert (found[0]["verdict"], found[1]["excluded"], found[1]["mode"]) == (None, ["n3"], "act")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-s", "asleep"], "no stage is called asleep; the stages are detected, held"),
        (["--since", "soon"], "not a time: 'soon'"),
        (["-n", "0"], "0 incidents cannot be listed; give 1 or more"),
        (["-r", "nccl_timout"], "no reason is called nccl_timout; did you mean nccl_timeout?"),
        (["-r", HOSTILE], "srecover explain --rules lists all"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_a_wrong_option_is_a_usage_error(site: Site, options: list[str], said: str) -> None:
    answer = site.run("list", *options)
    assert (answer.status, answer.out) == (2, "")
    assert said in answer.err
    assert all(line.isprintable() for line in answer.err.splitlines())


# -- show ----------------------------------------------------------------------------------------


def test_show_tells_the_whole_story(site: Site) -> None:
    assert site.run("show", "--incident", "1").out == (
        "JobId=120 Attempt=0 Incident=1 Cluster=mars\n"
        "   Stage=restarted\n"
        "   UserId=ada(1001) Partition=train JobName=llm\n"
        "   JobState=FAILED Reason=NonZeroExitCode ExitCode=1:0 NodeList=n[1-3]\n"
        f"   StartTime={shown(END - 2096)} EndTime={shown(END)} RunTime=34:56\n"
        "Cause: gpu_ecc_uncorrectable (hardware, rank 2, on n3): Rank 2 on n3 met memory errors.\n"
        "   suspect n3 (trust user): its rank 2 failed first\n"
        "Evidence:\n"
        "   TRUST SOURCE  COUNT NODE RANK PLACE                 LINE\n"
        "   user  job_log     4 n3      2 /home/ada/llm.out:812 RuntimeError: CUDA error\n"
        "Not the cause:\n"
        "   nccl_network_error: beaten by device_error\n"
        "Log: /home/ada/llm.out, last 32 bytes on record: srecover show --incident 1 --log\n"
        "Decision: requeue_exclude n3 (carried out)\n"
        "   because: restart 1 of 3 without n3\n"
        "   Rule=exclude Policy=0123456789ab\n"
        "Timeline:\n"
        "   SECONDS AFTER STEP            WHAT\n"
        "      0    +0.00 ended           the job ended\n"
        "      0.12 +0.12 detected        120.json\n"
        "      0.30 +0.18 decided         requeue_exclude: restart 1 of 3 without n3\n"
        "      0.31 +0.01 requeue intent  held\n"
        "      0.35 +0.04 requeue outcome done: PENDING Restarts=1\n"
        "      2.05 +1.70 release intent\n"
        "      2.10 +0.05 release outcome done: PENDING\n"
        "      2    +0.00 running         running again\n"
        "      2.40 +0.30 closed          restarted\n"
        "Done:\n"
        "   ACTION  RESULT DETAIL SLURM SHOWED\n"
        "   requeue done   held   PENDING Reason=JobHeldUser Restarts=1\n"
        "Not to be had:\n"
        "   SOURCE  WHAT              WHY\n"
        "   job_log /home/ada/llm.err EACCES: Permission denied\n"
    )


def test_show_takes_the_newest_attempt_and_all_of_them_on_demand(site: Site) -> None:
    assert site.run("show", "120").lines[0].startswith("JobId=120 Attempt=1 ")
    everything = site.run("show", "120", "--all").out
    assert [line.split()[1] for line in everything.splitlines() if line.startswith("JobId")] == [
        "Attempt=1",
        "Attempt=0",
    ]


def test_show_takes_a_task_of_an_array(site: Site) -> None:
    assert site.run("show", "120_3").lines[0].startswith("JobId=120_3 ")


def test_show_of_an_incident_that_has_only_begun(site: Site) -> None:
    answer = site.run("show", "122")
    assert answer.status == 0
    assert "Stage=detected" in answer.out
    assert "JobState=not certain" in answer.out


def test_advice_is_said_to_be_advice(tmp_path: Path) -> None:
    site = Site(tmp_path)
    advised = recovered()
    assert advised.decision is not None
    with site.store() as store:
        store.save(advised.model_copy(update={"decision": advised.decision.model_copy(update={"act": False})}))
    assert "Decision: requeue_exclude n3 (advice only, Mode=observe)" in site.run("show", "120").out
    assert " observe " in site.run("list", "-l").out


def test_show_as_json_is_the_record_and_its_audit(site: Site) -> None:
    one = json.loads(site.run("show", "-i", "1", "--json").out)
    record = {key: value for key, value in one.items() if key not in ("steps", "gained")}
    assert Incident.model_validate(record).stage is Stage.RUNNING
    assert one["gained"] == {"progress": "unknown", "steps": None}
    assert len(one["steps"]) == len(STEPS)
    assert [each["id"] for each in json.loads(site.run("show", "120", "--all", "--json").out)] == [2, 1]


@pytest.mark.parametrize("words", [["99"], ["-i", "99"], ["120", "-M", "venus"], ["120_4"], ["99+1"]])
def test_nothing_on_record_is_one_line_and_status_1(site: Site, words: list[str]) -> None:
    answer = site.run("show", *words)
    assert (answer.status, answer.out) == (1, "")
    assert answer.err.startswith("srecover: error: no incident ")
    assert answer.err.removesuffix("\n").isprintable()


@pytest.mark.parametrize("word", ["abc", "120_", "120_[1-3]", "-1", "1.0", "", "٣", HOSTILE])
def test_what_is_not_a_job_id_is_a_usage_error_that_shows_one(site: Site, word: str) -> None:
    answer = site.run("show", "--", word)
    assert (answer.status, answer.out) == (2, "")
    assert "is not a job id; write 4711, 120_3 for a task of a job array" in answer.err
    assert all(line.isprintable() for line in answer.err.splitlines())


def test_a_component_of_a_het_job_leads_to_the_job(site: Site) -> None:
    assert site.run("show", "120+1").lines[0].startswith("JobId=120 Attempt=1 ")


@pytest.mark.parametrize("words", [[], ["120", "-i", "1"], ["-i", "x"]])
def test_show_without_a_clear_question_is_a_usage_error(site: Site, words: list[str]) -> None:
    assert site.run("show", *words).status == 2


def test_no_text_of_a_user_reaches_the_terminal_as_it_is(tmp_path: Path) -> None:
    site = Site(tmp_path)
    texts: dict[str, Any] = {
        "name": HOSTILE,
        "user": HOSTILE,
        "partition": HOSTILE,
        "nodes": (HOSTILE,),
        "comment": HOSTILE,
    }
    with site.store() as store:
        store.save(recovered(line=HOSTILE, **texts), *(step.model_copy(update={"detail": HOSTILE}) for step in STEPS))
    for words in (["show", "120"], ["list"]):
        printed = site.run(*words).lines
        assert all(line.isprintable() for line in printed)
        assert sum(line.startswith("Decision:") for line in printed) <= 1
    assert site.run("show", "120", "--json").out.isascii()


def seen_checkpoints(restart_count: int, *steps: int, **more: object) -> Incident:
    """An attempt whose folder has complete checkpoints of these steps."""
    incident = recovered(restart_count=restart_count, start_time=END + 100 * restart_count, **more)
    newest, *earlier = (
        Checkpoint(path=f"/ckpt/{step}", format="dcp", step=step, time=END - 9000 + step) for step in steps
    )
    passed = (PassedOver(path="/ckpt/999", why="no .metadata"),)
    progress = Progress(folder="/ckpt", newest=newest, earlier=tuple(earlier), passed=passed)
    assert incident.observation is not None
    assert incident.decision is not None
    return incident.model_copy(
        update={
            "observation": incident.observation.model_copy(update={"progress": progress}),
            "decision": incident.decision.model_copy(update={"untaken": ("evil=1: unknown",)}),
        }
    )


def test_show_tells_what_each_attempt_gained_and_which_checkpoints_are_not_begun_from(tmp_path: Path) -> None:
    site = Site(tmp_path)
    corrupt = Attribution(category=Category.STORAGE, reason="checkpoint_corrupt")
    with site.store() as store:
        store.save(seen_checkpoints(0, 100))
        store.save(seen_checkpoints(1, 300, 100))
        store.save(seen_checkpoints(2, 300, 100).model_copy(update={"attribution": corrupt}))
    told = [site.run("show", "-i", str(number)).lines for number in (1, 2, 3)]
    progress = [[line for line in lines if line.startswith("Progress:")] for lines in told]
    assert progress == [
        [f"Progress: step 100; newest checkpoint /ckpt/100 (dcp, written {shown(END - 8900)})"],
        [f"Progress: step 300, 200 more than before; newest checkpoint /ckpt/300 (dcp, written {shown(END - 8700)})"],
        [f"Progress: step 300, no more than before; newest checkpoint /ckpt/300 (dcp, written {shown(END - 8700)})"],
    ]
    assert all("   passed over /ckpt/999: no .metadata" in lines for lines in told)
    assert all("   option not taken: evil=1: unknown" in lines for lines in told)
    refused = "   not to be begun from, it could not be loaded: /ckpt/300"
    assert [refused in lines for lines in told] == [False, False, True]
    gained = json.loads(site.run("show", "-i", "2", "--json").out)["gained"]
    assert gained == {"progress": "more", "steps": 200}


@pytest.mark.parametrize("conf", ["Mode=fly\n", "StoreUrl=oracle://x/y\n", "StoreUrl=sqlite:////nowhere/at/all.db\n"])
def test_a_site_that_cannot_be_used_is_one_line(tmp_path: Path, conf: str) -> None:
    answer = Site(tmp_path, conf).run("list")
    assert (answer.status, answer.out) == (1, "")
    assert answer.err.startswith("srecover: error: ")
    assert answer.err.count("\n") == 1


def test_a_record_that_cannot_be_read_spoils_neither_table_nor_json(site: Site) -> None:
    import sqlite3

    with sqlite3.connect(site.url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE incident SET record = '{}' WHERE id = 1")
    assert len(json.loads(site.run("list", "--json").out)) == 3
    answer = site.run("show", "-i", "1")
    assert (answer.status, answer.err.count("\n")) == (1, 1)


def test_files_made_by_root_belong_to_the_owner_of_the_folder(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        return
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    os.chown(state, 1, 1)
    site = Site(state)
    assert site.run("list").status == 0
    assert {path.stat().st_uid for path in state.glob("recovery.db*")} == {1}
