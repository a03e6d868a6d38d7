"""A site's own attributor: slow, dead, wrong, huge, forged. Real programs, and a real server on loopback."""

from __future__ import annotations

import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from slurm_recovery.attribute.answer import SAYS, AnswerRefused, read_answer
from slurm_recovery.attribute.attributed import attributed, attributed_lightly
from slurm_recovery.attribute.engine import attribute
from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.attribute.view import view
from slurm_recovery.config.settings import Settings
from slurm_recovery.consult import QUIET, UNASKED, Consultant
from slurm_recovery.evidence.attributor import MOST_ANSWER, ask, name_of
from slurm_recovery.records import Attempt, Evidence, Gap, Observation, Role, Source, Trust

NOBODY = pwd.getpwnam("nobody").pw_uid
EXAMPLE = Path(__file__).parents[2] / "conf/attributor.example"
GOOD = {
    "reason": "nccl_timeout",
    "category": "interconnect",
    "action": "requeue_exclude",
    "suspect_nodes": ["a2"],
    "root_rank": 3,
    "because": "Rank 3 was late.",
    "evidence": ["a line", {"line": "another", "place": "job.log:7", "node": "a2", "rank": 3}],
    "weight": 0.8,
    "case": "what we do not know is left aside",
}
ATTEMPT = Attempt(
    cluster="c", job_id=881, nodes=("a1", "a2"), ntasks_per_node=2, state="FAILED", exit_code=1, user="ann"
)
OBSERVED = Observation(attempt=ATTEMPT, log_path="/home/ann/slurm-881.out")


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., str]:
    """Writes a program that only we can write."""

    def write(body: str, *, mode: int = 0o755, shell: str = f"{sys.executable} -I") -> str:
        path = tmp_path / "attributor"
        path.write_text(f"#!{shell}\n{body}\n")
        path.chmod(mode)
        return str(path)

    return write


def printing(answer: object) -> str:
    return f"print({json.dumps(answer)!r})"


def configured(address: str, **fields: Any) -> Settings:
    return Settings(**{"attributor": address, "attributor_timeout": 5, "attributor_weight": 0.6, **fields})


def consult(observation: Observation, settings: Settings) -> Observation:
    """Asked once, by a worker that has not asked before."""
    return Consultant(settings, time.monotonic).consult(observation)


def said(observation: Observation) -> list[Evidence]:
    return [one for one in observation.evidence if one.source is Source.ATTRIBUTOR]


def why(observation: Observation) -> str:
    """The one gap, where nothing else was changed."""
    assert observation.model_copy(update={"gaps": ()}) == OBSERVED
    (gap,) = observation.gaps
    assert gap.source is Source.ATTRIBUTOR
    assert gap.what
    assert "\n" not in gap.why
    return gap.why


# A program.


def test_who_kept_us_waiting_is_left_alone_for_a_while(program: Callable[..., str], tmp_path: Path) -> None:
    asked, clock = tmp_path / "asked", [1000.0]
    slow = f"import time\nopen({str(asked)!r}, 'a').write('x')\ntime.sleep(60)"
    consultant = Consultant(configured(program(slow), attributor_timeout=1), lambda: clock[0])
    assert why(consultant.consult(OBSERVED)) == "no answer within 1 s (AttributorTimeout)"
    for _ in range(20):
        assert why(consultant.consult(OBSERVED)) == f"not asked: it did not answer less than {QUIET:g} s ago"
    assert asked.read_text() == "x"
    clock[0] += QUIET
    consultant.consult(OBSERVED)
    assert asked.read_text() == "xx"


def test_its_word_is_on_record_with_its_name_and_weight(program: Callable[..., str]) -> None:
    seen = consult(OBSERVED, configured(program(printing(GOOD))))
    assert seen.gaps == ()
    first, named, *quotes = said(seen)
    assert (first.signature, first.reason, first.rank, first.node, first.trust) == (
        *(SAYS, "nccl_timeout", 3, None),
        Trust.USER,
    )
    assert (named.node, named.rank, named.weight, first.weight) == ("a2", None, 0.48, 0.48)
    assert first.line == "attributor (weight 0.48): nccl_timeout, action requeue_exclude. Rank 3 was late."
    assert [(one.line, one.place) for one in quotes] == [
        ("attributor (weight 0.48): a line", "attributor"),
        ("attributor (weight 0.48): another", "job.log:7"),
    ]
    assert {one.role for one in said(seen)} == {Role.NOISE}


def test_it_is_given_the_observation_and_nothing_of_ours(program: Callable[..., str], tmp_path: Path) -> None:
    body = f"""
import json, os, sys
json.dump([json.load(sys.stdin), dict(os.environ), os.getcwd(), sys.argv[1:], os.getsid(0) == os.getpid(),
           os.listdir("/proc/self/fd")], open({str(tmp_path / "seen")!r}, "w"))
"""
    os.environ["SECRET_OF_OURS"] = "1"
    handle = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(handle, True)
    try:
        assert consult(OBSERVED, configured(program(body))) == OBSERVED
    finally:
        os.close(handle)
        del os.environ["SECRET_OF_OURS"]
    question, environment, folder, words, own_session, files = json.loads((tmp_path / "seen").read_text())
    assert Observation.model_validate(question) == OBSERVED
    assert set(environment) - {"LC_CTYPE"} == {"PATH", "LANG", "HOME"}
    assert (folder, words, own_session) == ("/", [], True)
    assert {"0", "1", "2"} <= set(files)
    assert len(files) <= 5  # and the file that it writes, and the folder that it lists


@pytest.mark.parametrize("output", ["", "null", "{}", "  \n"])
def test_nothing_to_say_is_no_gap(program: Callable[..., str], output: str) -> None:
    assert consult(OBSERVED, configured(program(f"print({output!r}, end='')"))) == OBSERVED


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("import time; time.sleep(60)", "no answer within 1 s (AttributorTimeout)"),
        ("import sys, time; print('{', flush=True); time.sleep(60)", "no answer within 1 s (AttributorTimeout)"),
        ("import os; os.close(1); import time; time.sleep(60)", "no answer within 1 s (AttributorTimeout)"),
        ("while True: print('x' * 65536)", f"answered more than {MOST_ANSWER} bytes"),
        ("import sys; sys.exit('no such model')", "exit code 1: no such model"),
        ("raise KeyError('log_path')", "exit code 1: KeyError: 'log_path'"),
        ("import os; os.kill(os.getpid(), 11)", "signal 11"),
        ("print('it was the network')", "answer not used: Invalid JSON: expected value at line 1 column 1"),
        ("print('[' * 100000)", "answer not used: Invalid JSON: recursion limit exceeded"),
        ("import os; os.write(1, bytes(range(256)))", "answer not used: Invalid JSON"),
        ("print('[]')", "answer not used: Input should be an object"),
        (printing({"reason": "gremlins"}), "answer not used: reason 'gremlins' is not known"),
        (printing({"because": "?"}), "answer not used: reason: Field required"),
        (printing(GOOD | {"suspect_nodes": ["b7"]}), "answer not used: suspect node 'b7' is not of the job"),
        (printing(GOOD | {"suspect_nodes": ["a2", "a[1-9]"]}), "answer not used: suspect node 'a[1-9]' is not of"),
        (printing(GOOD | {"suspect_nodes": "a2"}), "answer not used: suspect_nodes: Input should be a valid"),
        (printing(GOOD | {"suspect_nodes": ["a1"] * 5000}), "answer not used: suspect_nodes: Tuple should have at"),
        (printing(GOOD | {"root_rank": -1}), "answer not used: root_rank: Input should be greater than or equal to 0"),
        (printing(GOOD | {"root_rank": 10**30}), "answer not used: root_rank: "),
        (printing(GOOD | {"category": "fate"}), "answer not used: category: Input should be 'hardware'"),
        (printing(GOOD | {"action": "drain"}), "answer not used: action: Input should be 'requeue_exclude'"),
        (printing(GOOD | {"weight": 7}), "answer not used: weight: Input should be less than or equal to 1"),
        ("print('{\"reason\": \"hang\", \"weight\": NaN}')", "answer not used: weight: Input should be a finite"),
        (printing(GOOD | {"because": "x" * 70_000}), "answer not used: because: String should have at most"),
    ],
)
def test_what_goes_wrong_is_one_line_and_changes_nothing(
    program: Callable[..., str], body: str, expected: str
) -> None:
    begin = time.monotonic()
    slow = "time.sleep" in body
    assert why(consult(OBSERVED, configured(program(body), attributor_timeout=1 if slow else 5))).startswith(expected)
    assert time.monotonic() - begin < 4.9


def test_what_it_started_ends_with_it(program: Callable[..., str], tmp_path: Path) -> None:
    """Too late: the program and its children are killed, for they share a process group."""
    body = f"""
import os, subprocess, time
child = subprocess.Popen(["sleep", "300"])
open({str(tmp_path / "pids")!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
time.sleep(300)
"""
    assert "no answer" in why(consult(OBSERVED, configured(program(body), attributor_timeout=2)))
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    until = time.monotonic() + 5
    while any(_runs(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(_runs(pid) for pid in pids)


def _runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_it_may_answer_without_reading_the_question(program: Callable[..., str]) -> None:
    big = OBSERVED.model_copy(update={"log_tail": "x" * (4 << 20)})
    seen = consult(big, configured(program("import os; os.close(0)\n" + printing(GOOD))))
    assert len(said(seen)) == 4
    talkative = "import sys\nsys.stderr.write('noise' * 200000)\n" + printing(GOOD)
    assert len(said(consult(big, configured(program(talkative))))) == 4


def test_a_program_that_others_may_write_is_not_run(program: Callable[..., str], tmp_path: Path) -> None:
    path = Path(program(f"open({str(tmp_path / 'ran')!r}, 'w')"))
    for mode in (0o775, 0o757):
        path.chmod(mode)
        assert why(consult(OBSERVED, configured(str(path)))) == (
            f"{path} can be written by others than its owner; chown root, chmod go-w"
        )
    path.chmod(0o755)
    os.chown(path, NOBODY, NOBODY)
    assert "can be written by others" in why(consult(OBSERVED, configured(str(path))))
    os.chown(path, os.getuid(), os.getgid())
    tmp_path.chmod(0o777)
    assert why(consult(OBSERVED, configured(str(path)))).startswith(f"{tmp_path} can be written by others")
    tmp_path.chmod(0o700)
    link = tmp_path / "link"
    link.symlink_to("/bin")
    assert why(consult(OBSERVED, configured(f"{link}"))) == "not a regular file by an absolute path"
    assert not (tmp_path / "ran").exists()


def test_a_program_that_cannot_be_run_is_said(program: Callable[..., str], tmp_path: Path) -> None:
    assert "No such file" in why(consult(OBSERVED, configured(str(tmp_path / "missing"))))
    assert why(consult(OBSERVED, configured(program("", mode=0o644)))).endswith("may not be executed; chmod 755")
    assert "No such file" in why(consult(OBSERVED, configured(program("", shell="/no/such/interpreter"))))
    assert "Exec format" in why(consult(OBSERVED, configured(_garbage(tmp_path))))


def _garbage(folder: Path) -> str:
    path = folder / "garbage"
    path.write_bytes(b"\x7fELFgarbage")
    path.chmod(0o755)
    return str(path)


def test_the_path_is_no_shell_line(program: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "a; touch ran $(touch ran)"
    Path(program(printing(GOOD))).rename(path)
    assert len(said(consult(OBSERVED, configured(str(path))))) == 4
    assert not list(tmp_path.glob("**/ran"))


@pytest.mark.parametrize("state", UNASKED)
def test_it_is_asked_only_of_failures_that_are_certain(program: Callable[..., str], state: str) -> None:
    observed = Observation(attempt=ATTEMPT.model_copy(update={"state": state}))
    assert consult(observed, configured(program(printing(GOOD)))) == observed
    assert consult(OBSERVED, Settings()) == OBSERVED


@pytest.mark.parametrize("address", ["attributor", "./attributor", "ftp://x/", "file:///etc/passwd", "/a\nb", "http://"])
def test_what_is_no_address_is_refused_in_recovery_conf(address: str) -> None:
    with pytest.raises(ValidationError):
        Settings(attributor=address)


# An HTTP address.


class Server(ThreadingHTTPServer):
    """Answers each POST by the function that is put here."""

    daemon_threads = True
    respond: Callable[[BaseHTTPRequestHandler, bytes], None]
    asked: list[tuple[str, dict[str, str], bytes]]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.server.asked.append((f"{self.command} {self.path}", dict(self.headers), body))
        self.server.respond(self, body)

    do_POST = do_GET = _answer

    def log_message(self, *words: object) -> None:
        pass


def give(data: bytes, code: int = 200, **headers: str) -> Callable[[BaseHTTPRequestHandler, bytes], None]:
    def respond(handler: BaseHTTPRequestHandler, _: bytes) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(data)

    return respond


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as running:
        running.asked = []
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_a_service_is_sent_the_observation(server: Server) -> None:
    server.respond = give(json.dumps(GOOD).encode())
    seen = consult(OBSERVED, configured(f"{server.address}/attribute?site=x"))
    assert [one.node for one in said(seen)][:2] == [None, "a2"]
    assert said(seen)[0].line.startswith(f"127.0.0.1:{server.server_port} (weight 0.48): nccl_timeout")
    ((request, headers, body),) = server.asked
    assert request == "POST /attribute?site=x"
    assert headers["Content-Type"] == "application/json"
    assert Observation.model_validate_json(body) == OBSERVED


def test_a_service_with_nothing_to_say_is_no_gap(server: Server) -> None:
    for respond in (give(b"", 204), give(b"null"), give(b"")):
        server.respond = respond
        assert consult(OBSERVED, configured(server.address)) == OBSERVED


@pytest.mark.parametrize(
    ("respond", "expected"),
    [
        (give(b"oops", 500), "HTTP 500"),
        (give(b"", 404), "HTTP 404"),
        (give(b"", 302, Location="file:///etc/passwd"), "HTTP 302 to file:///etc/passwd: redirects are not followed"),
        (give(b"", 307, Location="http://127.0.0.1:1/"), "HTTP 307 to http://127.0.0.1:1/: redirects are not followed"),
        (give(b"x" * (MOST_ANSWER + 1)), f"answered more than {MOST_ANSWER} bytes"),
        (give(b"<html>"), "answer not used: Invalid JSON"),
        (give(json.dumps(GOOD | {"suspect_nodes": ["b1"]}).encode()), "answer not used: suspect node 'b1'"),
        (give(b"null", **{"Content-Length": "100"}), "cut short, 96 bytes are missing"),
        (give(b"{}", **{"Content-Length": "many"}), None),
    ],
)
def test_a_service_that_answers_wrong_changes_nothing(
    server: Server, respond: Callable[[BaseHTTPRequestHandler, bytes], None], expected: str | None
) -> None:
    server.respond = respond
    seen = consult(OBSERVED, configured(server.address))
    if expected is None:
        assert said(seen) == []
    else:
        assert why(seen).startswith(expected)


def drip(handler: BaseHTTPRequestHandler, _: bytes) -> None:
    """A byte now and then, so that no single read is ever late."""
    handler.send_response(200)
    handler.end_headers()
    try:
        for _ in range(200):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.1)
    except OSError:
        return


def sleep(handler: BaseHTTPRequestHandler, _: bytes) -> None:
    time.sleep(6)


@pytest.mark.parametrize("respond", [drip, sleep])
def test_the_time_is_a_total(server: Server, respond: Callable[[BaseHTTPRequestHandler, bytes], None]) -> None:
    server.respond = respond
    begin = time.monotonic()
    assert why(consult(OBSERVED, configured(server.address, attributor_timeout=1))) == (
        "no answer within 1 s (AttributorTimeout)"
    )
    assert time.monotonic() - begin < 5


def test_a_service_that_is_not_there_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody answers, and nobody else takes it
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        assert "refused" in why(consult(OBSERVED, configured(address)))
    assert why(consult(OBSERVED, configured("http://no.such.host.invalid/")))
    assert why(consult(OBSERVED, configured("http://127.0.0.1:99999999/")))
    assert why(consult(OBSERVED, configured("https://[::1")))


def test_what_speaks_no_http_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def talk() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        thread = threading.Thread(target=talk)
        thread.start()
        port = listening.getsockname()[1]
        assert why(consult(OBSERVED, configured(f"http://127.0.0.1:{port}/"))) == "not HTTP: BadStatusLine"
        thread.join()


def test_tls_is_checked(server: Server) -> None:
    server.respond = give(b"{}")
    assert "SSL" in why(consult(OBSERVED, configured(server.address.replace("http:", "https:"))))


def test_secrets_in_an_address_are_not_put_on_record(server: Server) -> None:
    server.respond = give(b"", 500)
    address = server.address.replace("//", "//ann:secret@") + "/x?token=secret"
    assert "secret" not in consult(OBSERVED, configured(address)).model_dump_json()
    assert name_of(address) == f"127.0.0.1:{server.server_port}"


def test_no_proxy_of_the_environment_is_asked(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    server.respond = give(json.dumps(GOOD).encode())
    assert said(consult(OBSERVED, configured(server.address)))


# The example.


def nvrx(answer: dict[str, Any]) -> Callable[[BaseHTTPRequestHandler, bytes], None]:
    """nvrx-attrsvc, as services/attrsvc/README.md tells its POST and GET /logs: pending, then completed."""

    def respond(handler: BaseHTTPRequestHandler, _: bytes) -> None:
        asked = handler.server.asked  # type: ignore[attr-defined]
        first = sum(request.startswith("GET") for request, _, _ in asked) < 2
        told = {"submitted": True} if handler.command == "POST" else {"status": "in_flight"} if first else answer
        give(json.dumps(told).encode())(handler, b"")

    return respond


def test_the_example_asks_nvidias_service(server: Server, program: Callable[..., str]) -> None:
    server.respond = nvrx(
        {
            "status": "completed",
            "recommendation": {"action": "STOP", "source": "restart_agent"},
            "result": {
                "schema_version": "restart_agent_response.v1",
                "primary_failure": {"failure_class": "cuda_oom", "rank": "3", "node": "a2", "signature": "CUDA OOM"},
                "justification": "Rank 3 ran out of memory.",
            },
        }
    )
    text = EXAMPLE.read_text().replace("http://127.0.0.1:8000", server.address)
    path = Path(program(""))
    path.write_text(text)
    seen = consult(OBSERVED, configured(str(path), attributor_timeout=20))
    assert [(one.reason, one.rank, one.node) for one in said(seen)] == [
        ("cuda_oom", 3, None),
        ("cuda_oom", None, "a2"),
        ("", None, None),
    ]
    assert server.asked[0][0] == "POST /logs"
    assert json.loads(server.asked[0][2]) == {
        "log_path": "/home/ann/slurm-881.out",
        "user": "ann",
        "job_id": "881",
        "analysis_intent": "terminal",
    }


def test_every_reason_of_the_example_is_ours() -> None:
    words: dict[str, Any] = {"__name__": "example"}
    exec(compile(EXAMPLE.read_text(), str(EXAMPLE), "exec"), words)
    assert set(words["REASONS"].values()) <= set(REASONS)
    assert os.access(EXAMPLE, os.X_OK)
    assert subprocess.run([EXAMPLE], input=b"", capture_output=True, check=False, timeout=30).returncode == 1


# What its word is worth.


def evidence(answer: dict[str, Any], *, weight: float = 0.6, trust: Trust = Trust.USER) -> tuple[Evidence, ...]:
    return read_answer(json.dumps(answer).encode(), ATTEMPT, name="site", weight=weight, trust=trust)


def finding(answer: dict[str, Any], weight: float, **fields: Any) -> tuple[Any, Any]:
    attempt = ATTEMPT.model_copy(update=fields)
    seen = view(Observation(attempt=attempt, evidence=evidence(answer, weight=weight)))
    return attributed(seen), attributed_lightly(seen)


def test_from_half_on_it_stands_before_what_is_conditional() -> None:
    answer = {key: value for key, value in GOOD.items() if key != "weight"}
    heavy, light = finding(answer, 0.5)
    assert heavy == light
    assert (heavy.reason, heavy.rank) == ("nccl_timeout", 3)
    assert [(one.node, one.trust) for one in heavy.suspects] == [("a2", Trust.USER)]
    assert "Attributor site (weight 0.5): nccl_timeout" in heavy.because
    heavy, light = finding(answer, 0.4)
    assert (heavy, light.reason) == (None, "nccl_timeout")
    assert finding(answer, 0.0) == (None, None)


def test_less_sure_is_less_and_more_sure_is_no_more() -> None:
    assert {one.weight for one in evidence(GOOD | {"weight": 0.5}, weight=0.6)} == {0.3}
    assert {one.weight for one in evidence(GOOD | {"weight": 1}, weight=0.6)} == {0.6}


def test_an_exit_code_that_tells_stands_above_a_light_word() -> None:
    assert finding({"reason": "hang"}, 0.3, exit_code=127) == (None, None)
    assert finding({"reason": "hang"}, 0.3, exit_code=137)[1].reason == "hang"


def test_unknown_is_on_record_and_decides_nothing() -> None:
    assert evidence({"reason": "unknown", "because": "Could be the weather."})
    assert finding({"reason": "unknown", "because": "x", "suspect_nodes": ["a2"]}, 1.0) == (None, None)


def test_naming_every_node_names_none() -> None:
    heavy, _ = finding({"reason": "gpu_ecc_uncorrectable", "suspect_nodes": ["a1", "a2"]}, 1.0)
    assert heavy.suspects == ()


def test_nodes_are_written_as_slurm_writes_them() -> None:
    found = evidence({"reason": "node_hang", "suspect_nodes": ["a2.cluster.example", "a2"]})
    assert [one.node for one in found] == [None, "a2"]


def test_it_never_speaks_of_where_ranks_ran() -> None:
    """A rank and a node together would be taken for a place; and a reason's word alone is no cause for other rows."""
    assert not [one for one in evidence(GOOD) if one.rank is not None and one.node is not None]
    assert attribute(OBSERVED.model_copy(update={"evidence": evidence(GOOD, weight=0.0)})).reason == "unknown"


def test_its_text_is_shown_and_never_obeyed() -> None:
    found = evidence({"reason": "hang", "because": "\x1b[31m\nred" + "x" * 900, "evidence": ["\x00\x9b"] * 90})
    assert all(one.line.isprintable() and len(one.line) <= 500 for one in found)
    assert len(found) <= 9


def test_trust_is_the_sites_to_give(program: Callable[..., str]) -> None:
    settings = configured(program(printing(GOOD)), attributor_trust=Trust.ROOT)
    assert {one.trust for one in said(consult(OBSERVED, settings))} == {Trust.ROOT}
    assert Settings().attributor_trust is Trust.USER


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(
    answer=st.fixed_dictionaries(
        {"reason": st.sampled_from(sorted(REASONS)) | ANY},
        optional={key: ANY for key in GOOD if key != "reason"},
    )
    | ANY,
    raw=st.binary(max_size=60),
)
def test_any_answer_is_evidence_of_the_job_or_refused(answer: object, raw: bytes) -> None:
    for data in (json.dumps(answer).encode(), raw, json.dumps(answer).encode()[:-1]):
        refusal = ""
        try:
            found = read_answer(data, ATTEMPT, name="site", weight=0.6, trust=Trust.USER)
        except AnswerRefused as refused:
            found, refusal = (), str(refused)
        assert refusal.isprintable()
        assert {one.node for one in found} <= {None, "a1", "a2"}
        assert {one.trust for one in found} <= {Trust.USER}
        view(Observation(attempt=ATTEMPT, evidence=found))


def test_a_gap_is_what_ask_answers_for_anything_else() -> None:
    gap = ask("/dev/null", b"{}", timeout=1)
    assert isinstance(gap, Gap)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
