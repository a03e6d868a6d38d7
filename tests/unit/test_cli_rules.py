"""srecover explain and srecover replay: what today's rules say of logs, case folders and recorded incidents."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.config.signature_files import load_signatures
from tests.unit.cli_site import HOSTILE, Site, recovered, run

ECC = "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
RESET = "[rank0]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error\n"
ANSWER = ["case", "category", "reason", "action", "suspect_nodes", "root_rank", "because", "evidence"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "job.log"
    path.write_text("step 1\n" + RESET + ECC)
    return path


def a_case(folder: Path, log: str, **job: object) -> Path:
    folder.mkdir()
    (folder / "case.json").write_text(
        json.dumps({"job": {"state": "FAILED", "exit_code": 1, "nodes": ["a1", "a2"], "ntasks_per_node": 2, **job}})
    )
    (folder / "job.log").write_text(log)
    return folder


# -- explain -------------------------------------------------------------------------------------


def test_explain_needs_no_installation(log: Path) -> None:
    answer = run("explain", str(log))
    assert answer.status == 0
    assert answer.lines[0].startswith("Cause: gpu_ecc_uncorrectable (hardware, rank 3)")
    assert answer.lines[1].startswith("Would do: requeue (restart 1 of 3, no node excluded)")


def test_explain_finds_the_node_of_a_rank(log: Path) -> None:
    answer = run("explain", "--nodes", "a[1-2]", "--ntasks-per-node", "2", str(log))
    assert "rank 3, on a2" in answer.lines[0]
    assert answer.lines[1].startswith("Would do: requeue_exclude a2 ")


def test_explain_shows_the_line_with_its_place(log: Path) -> None:
    lines = run("explain", str(log)).lines
    first = lines.index("Lines:") + 2
    assert lines[first].startswith(f"   {log.name}:3 ")
    assert "uncorrectable ECC" in lines[first]


def test_explain_shows_at_most_ten_lines(tmp_path: Path) -> None:
    log = tmp_path / "many.log"
    log.write_text("".join(f"[rank{rank}]: ValueError: bad shape\n" for rank in range(500)))
    printed = run("explain", str(log)).lines
    assert sum("ValueError" in line for line in printed if line.startswith("   ")) <= 10


def test_explain_reads_standard_input() -> None:
    assert "   stdin:1 " in run("explain", "-", stdin=ECC).out


def test_explain_says_what_beat_the_other_explanations_and_where_they_stood(log: Path) -> None:
    lines = run("explain", str(log)).lines
    (beaten,) = lines[lines.index("Not the cause:") + 1 :]
    assert beaten.startswith("   nccl_network_error (job.log:2): a device that fails explains ")
    assert beaten.endswith(" (job.log:3)")


def test_explain_tells_logs_of_one_name_apart(tmp_path: Path) -> None:
    logs = [tmp_path / folder / "job.log" for folder in ("a", "b")]
    for path, text in zip(logs, (ECC, RESET), strict=True):
        path.parent.mkdir()
        path.write_text(text)
    printed = run("explain", *map(str, logs)).out
    assert all(f"{path}:1 " in printed for path in logs)


def test_explain_counts_what_followed_and_shows_one_of_each_kind(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("".join(RESET.replace("rank0", f"rank{rank}") for rank in range(8) if rank != 3) + ECC)
    lines = run("explain", str(log)).lines
    shown = lines[lines.index("Lines:") + 2 : lines.index("Not the cause:")]
    assert ["uncorrectable ECC" in line for line in shown] == [True, False]
    assert shown[1].split()[:2] == ["job.log:1", "7x"]


def test_explain_says_where_an_earlier_attempt_ends(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(
        ECC + "slurmstepd: error: *** JOB 8 ON a1 CANCELLED AT 2026-01-01T00:00:00 DUE TO JOB REQUEUE ***\n"
        "resuming from step 4000\n[rank1]: ValueError: bad shape\n"
    )
    printed = run("explain", str(log))
    assert "python_exception" in printed.lines[0]
    assert "all before job.log:2 is of an earlier attempt" in printed.out


def test_without_a_state_the_log_alone_speaks() -> None:
    line = "srun: error: Node failure on a2\n[rank1]: ValueError: bad shape\n"
    assert "node_fail" in run("explain", "--nodes", "a[1-2]", "-", stdin=line).lines[0]
    assert "python_exception" in run("explain", "--nodes", "a[1-2]", "--state", "FAILED", "-", stdin=line).lines[0]


def test_a_kernel_log_is_known_by_its_name_and_belongs_to_its_node(tmp_path: Path) -> None:
    log = tmp_path / "dmesg.a2.log"
    log.write_text("[ 12.345678] NVRM: Xid (PCI:0000:3b:00): 79, pid=2211, name=python, GPU has fallen off the bus.\n")
    answer = run("explain", "--nodes", "a[1-2]", str(log))
    assert "gpu_fell_off_bus" in answer.lines[0]
    assert "suspect a2 (trust root)" in answer.out


def test_explain_reads_all_of_a_log_and_of_a_packed_one_what_may_be_unpacked(tmp_path: Path) -> None:
    site = Site(tmp_path, "LogBytes=4K\n")
    text = ECC + "x" * 5000 + "\n" + "[rank1]: ValueError: bad shape\n"
    (tmp_path / "long.log").write_text(text)
    (tmp_path / "long.log.gz").write_bytes(gzip.compress(text.encode()))
    assert "gpu_ecc_uncorrectable" in site.run("explain", str(tmp_path / "long.log")).lines[0]
    answer = site.run("explain", str(tmp_path / "long.log.gz"))
    assert "gpu_ecc_uncorrectable" in answer.lines[0]
    assert answer.lines[-1] == f"{tmp_path}/long.log.gz: only the first 4096 bytes were unpacked"


@pytest.mark.parametrize("data", [b"", b"\xff\xfe\x00\x1b]0;pwned\x07" * 100, b"\r\r\n" * 1000, b"x" * 200_000])
def test_explain_answers_to_any_bytes(data: bytes) -> None:
    answer = run("explain", "-", stdin=data)
    assert answer.status == 0
    assert all(line.isprintable() for line in answer.lines)


def test_a_line_of_the_log_cannot_write_to_the_terminal() -> None:
    answer = run("explain", "-", stdin=f"[rank3]: ValueError: {HOSTILE.partition(chr(13))[0]}\n")
    assert "ValueError" in answer.out
    assert all(line.isprintable() for line in answer.lines)


def test_a_site_explains_with_its_own_signatures(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(
        "[[signature]]\nid = 'ours'\nreason = 'filesystem_io'\nrole = 'root'\nliterals = ['scratch is gone']\n"
        "pattern = 'scratch is gone'\nsource = 'us'\nexample = 'scratch is gone'\ncounterexample = 'scratch is slow'\n"
    )
    site = Site(tmp_path, f"SignatureDir={tmp_path}\n")
    assert "filesystem_io" in site.run("explain", "-", stdin="scratch is gone\n").lines[0]


def test_explain_as_json(log: Path) -> None:
    found = json.loads(run("explain", "--json", str(log)).out)
    assert set(ANSWER) < set(found)
    assert (found["reason"], found["root_rank"], found["action"]) == ("gpu_ecc_uncorrectable", 3, "requeue")


def test_rules_lists_every_reason_and_every_signature() -> None:
    first_words = {line.split()[0] for line in run("explain", "--rules").lines if line}
    assert first_words >= set(REASONS) | {signature.id for signature in load_signatures()}
    data = json.loads(run("explain", "--rules", "--json").out)
    assert (len(data["reasons"]), len(data["signatures"])) == (len(REASONS), len(load_signatures()))


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--exit-code", "one", "x"],
        ["--exit-code", "1:2:3", "x"],
        ["--nodes", "a[1-", "x"],
        ["--nodes", "$(id)", "x"],
    ],
)
def test_a_wrong_question_is_a_usage_error(words: list[str]) -> None:
    assert run("explain", *words).status == 2


@pytest.mark.parametrize("path", ["nowhere.log", "\x1b[2J\nnowhere", "."])
def test_a_log_that_cannot_be_read_is_one_line(path: str) -> None:
    answer = run("explain", path)
    assert (answer.status, answer.out) == (1, "")
    assert answer.err.startswith("srecover: error: ")
    assert answer.err.removesuffix("\n").isprintable()


def test_a_recovery_conf_that_is_named_must_be_there(tmp_path: Path, log: Path) -> None:
    assert run("--conf", str(tmp_path / "none.conf"), "explain", str(log)).status == 1


# -- replay --------------------------------------------------------------------------------------


def test_replay_answers_one_object_a_line_with_the_promised_fields(tmp_path: Path) -> None:
    cases = [a_case(tmp_path / "ecc", ECC), a_case(tmp_path / "nothing", "")]
    answers = [json.loads(line) for line in run("replay", "--json", *map(str, cases)).lines]
    assert [list(answer) for answer in answers] == [ANSWER, ANSWER]
    assert [answer["case"] for answer in answers] == ["ecc", "nothing"]
    first = answers[0]
    assert (first["category"], first["reason"], first["action"]) == (
        "hardware",
        "gpu_ecc_uncorrectable",
        "requeue_exclude",
    )
    assert (first["suspect_nodes"], first["root_rank"]) == (["a2"], 3)
    assert first["because"]
    assert first["evidence"][0]["place"] == "job.log:1"


def test_replay_is_a_table_for_people(tmp_path: Path) -> None:
    head, row = run("replay", str(a_case(tmp_path / "ecc", ECC))).lines
    assert head.split() == ["CASE", "CATEGORY", "REASON", "ACTION", "RANK", "NODES"]
    assert row.split() == ["ecc", "hardware", "gpu_ecc_uncorrectable", "requeue_exclude", "3", "a2"]


@pytest.mark.parametrize(("restarts", "action"), [(0, "requeue_exclude"), (2, "requeue_exclude"), (3, "stop")])
def test_a_case_s_restarts_count_against_its_budget(tmp_path: Path, restarts: int, action: str) -> None:
    case = a_case(tmp_path / "ecc", ECC, restart_count=restarts)
    assert json.loads(run("replay", "--json", str(case)).out)["action"] == action


def test_the_restarts_of_a_preempted_job_were_not_ours(tmp_path: Path) -> None:
    case = a_case(tmp_path / "preempted", "", state="PREEMPTED", restart_count=9)
    assert json.loads(run("replay", "--json", str(case)).out)["action"] == "requeue"


def test_replay_uses_the_defaults_unless_a_file_is_named(tmp_path: Path) -> None:
    case = a_case(tmp_path / "ecc", ECC)
    site = Site(tmp_path, "Reason=gpu_ecc_uncorrectable Action=stop\n")
    env = {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    assert json.loads(run("replay", "--json", str(case), env=env).out)["action"] == "requeue_exclude"
    assert json.loads(site.run("replay", "--json", str(case)).out)["action"] == "stop"


def test_a_case_that_cannot_be_read_does_not_keep_the_others_from_their_answer(tmp_path: Path) -> None:
    good, bad = a_case(tmp_path / "good", ECC), tmp_path / "bad"
    bad.mkdir()
    readme = tmp_path / "README.md"
    readme.write_text("no case")
    answer = run("replay", "--json", str(bad), str(readme), str(good))
    assert answer.status == 1
    assert [json.loads(line)["case"] for line in answer.lines] == ["good"]
    assert answer.err.count("srecover: error: ") == answer.err.count("\n") == 1


def test_replay_of_an_incident_judges_what_was_observed_by_today_s_rules(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with site.store() as store:
        key = store.save(recovered(ntasks_per_node=1)).id
    found = json.loads(site.run("replay", "--json", "--incident", str(key)).out)
    assert list(found) == ANSWER
    assert (found["case"], found["reason"], found["suspect_nodes"]) == (
        f"incident-{key}",
        "gpu_ecc_uncorrectable",
        ["n3"],
    )


def test_replay_counts_the_earlier_attempts_of_an_incident(tmp_path: Path) -> None:
    site = Site(tmp_path, "MaxRequeues=1\n")
    with site.store() as store:
        store.save(recovered(start_time=1000.0, end_time=2000.0))
        key = store.save(recovered(restart_count=1)).id
    found = json.loads(site.run("replay", "--json", "-i", str(key)).out)
    assert found["action"] == "stop"
    assert "1 of 1 restarts used" in found["because"]


@pytest.mark.parametrize("number", ["1", "99"])
def test_an_incident_without_observation_is_one_line(tmp_path: Path, number: str) -> None:
    site = Site(tmp_path)
    with site.store() as store:
        store.save(recovered().model_copy(update={"observation": None}))
    answer = site.run("replay", "-i", number)
    assert (answer.status, answer.out, answer.err.count("\n")) == (1, "", 1)


def test_replay_prints_no_header_before_an_error(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    answer = run("replay", str(bad))
    assert (answer.status, answer.out, answer.err.count("\n")) == (1, "", 1)
    assert len(run("replay", str(bad), str(a_case(tmp_path / "good", ECC))).lines) == 2


@pytest.mark.parametrize("words", [[], ["-i", "1", "somewhere"]])
def test_replay_without_a_clear_question_is_a_usage_error(words: list[str]) -> None:
    assert run("replay", *words).status == 2
