"""srecover nodes and srecover release, on a ledger made by hand, with Slurm's programs played by a script."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from slurm_recovery.attribute.suspicion import suspicions
from slurm_recovery.cli.node_standing import State, standing
from slurm_recovery.cli.release import resume_drained
from slurm_recovery.cli.times import short, shown
from slurm_recovery.records import NodeAction, NodeEvent, Run
from slurm_recovery.slurm.commands import Commands
from slurm_recovery.slurm.errors import SlurmUnavailable
from tests.unit.cli_site import HOSTILE, Site
from tests.unit.test_cli_process import as_nobody

NOW = time.time()
HOUR = 3600.0
DAY = 24 * HOUR

FAULT, XID, DRAIN, RESUME = NodeAction.FAULT, NodeAction.XID, NodeAction.DRAIN, NodeAction.RESUME
BOOT, CLEAN, ALERT = NodeAction.BOOT, NodeAction.CLEAN, NodeAction.ALERT

# sinfo and scontrol, as far as they are asked: the nodes lie in nodes.json, each call in `calls`.
PLAYED = """#!{python} -I
import json, os, re, sys
folder = {folder!r}
program, words = os.path.basename(sys.argv[0]), sys.argv[1:]
with open(folder + "/calls", "a") as calls:
    print(program, *words[:4], file=calls)
with open(folder + "/nodes.json") as file:
    nodes = json.load(file)
if nodes.pop("away", None):
    sys.exit("slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)")
if program == "scontrol" and words[:2] == ["show", "config"]:
    print("ClusterName             = mars")
elif program == "sinfo":
    for name, shown in nodes.items():
        for field in words[-1].split(","):
            field, mark = field.split(":", 1)
            value = {{"NodeList": name, "StateComplete": shown["state"], "Reason": shown["reason"]}}.get(field, "x")
            print(value, end=mark)
        print()
elif program == "scontrol" and words[0] == "update":
    given = dict(word.split("=", 1) for word in words[1:])
    node = nodes[given["NodeName"]]
    if node.get("refuses"):
        sys.exit("slurm_update error: " + node["refuses"])
    assert given["State"] == "UNDRAIN"
    if not node.get("deaf"):
        node["state"], node["reason"] = node["state"].replace("+drain", ""), "none"
    with open(folder + "/nodes.json", "w") as file:
        json.dump(nodes, file)
else:
    sys.exit("not played: " + " ".join(sys.argv))
"""


class NodeSite(Site):
    """A site with a ledger, and with Slurm's programs."""

    def __init__(self, folder: Path, conf: str = "") -> None:
        self.programs = folder / "bin"
        self.programs.mkdir()
        super().__init__(folder, f"SlurmBackend=commands\nSlurmBinDir={self.programs}\n{conf}")
        for name in ("sinfo", "scontrol"):
            path = self.programs / name
            path.write_text(PLAYED.format(python=sys.executable, folder=str(self.programs)))
            path.chmod(0o755)
        self.play({"n1": {"state": "idle"}, "n2": {"state": "idle"}, "n3": {"state": "idle"}})

    def play(self, nodes: Mapping[str, Any]) -> None:
        told = {
            name: {"reason": "none", **shown} if isinstance(shown, dict) else shown for name, shown in nodes.items()
        }
        (self.programs / "nodes.json").write_text(json.dumps(told))
        (self.programs / "calls").unlink(missing_ok=True)

    def shown(self, node: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.programs / "nodes.json").read_text())[node]
        return found

    @property
    def calls(self) -> list[str]:
        path = self.programs / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def events(self, *events: NodeEvent) -> list[NodeEvent]:
        with self.store() as store:
            return store.ledger.add_all(events)

    def runs(self, *runs: Run) -> None:
        with self.store() as store:
            for run in runs:
                store.ledger.save_run(run)

    def history(self, node: str | None = None) -> list[NodeEvent]:
        """Oldest first."""
        with self.store() as store:
            return store.ledger.events("mars", node=node)[::-1]


def event(action: NodeAction, node: str = "n1", ago: float = HOUR, **more: Any) -> NodeEvent:
    given = {"cluster": "mars", "node": node, "time": NOW - ago, "action": action, **more}
    return NodeEvent.model_validate(given)


def run(job_id: int, nodes: str, *, ago: float = HOUR, good: bool = False, **more: Any) -> Run:
    given = {"cluster": "mars", "label": str(job_id), "user": "ada", "nodes": tuple(nodes.split()), "good": good}
    times = {"start_time": NOW - ago - HOUR, "end_time": NOW - ago}
    reason = "" if good else "nccl_timeout"
    return Run.model_validate({"job_id": job_id, **given, **times, "reason": reason, **more})


@pytest.fixture
def site(tmp_path: Path) -> NodeSite:
    """n3 was in every failed attempt, and is drained; n2 told of a flapping link; n1 and n4 are well."""
    site = NodeSite(tmp_path)
    site.runs(
        run(1, "n1 n3", ago=5 * HOUR),
        run(2, "n2 n3", ago=4 * HOUR, user="grace", blamed=("n3",), reason="gpu_fell_off_bus"),
        run(3, "n1 n2 n4", ago=3 * HOUR, good=True),
        run(4, "n1 n4", ago=2 * HOUR, good=True, user="grace"),
    )
    site.events(
        event(FAULT, "n3", 4 * HOUR, reason="gpu_fell_off_bus", job="2", incident_id=12, detail="Xid 79 on 9b:00.0"),
        event(DRAIN, "n3", 3.9 * HOUR, result="intent", reason="gpu_fell_off_bus", incident_id=12),
        event(DRAIN, "n3", 3.9 * HOUR, result="done", reason="gpu_fell_off_bus", incident_id=12, detail="IDLE+DRAIN"),
        event(FAULT, "n2", 2 * HOUR, reason="nic_link_down", job="2"),
        event(FAULT, "n9", 60 * DAY, reason="nic_failure"),
    )
    return site


# -- the table -----------------------------------------------------------------------------------


def told(site: NodeSite) -> dict[str, Any]:
    """What the ledger's attempts say, by the same rules."""
    with site.store() as store:
        return {one.node: one for one in suspicions(store.ledger.runs("mars", 0), time.time(), 3 * DAY)}


def test_the_table_shows_what_has_anything_to_say(site: NodeSite) -> None:
    by_node = told(site)
    percent = {node: f"{one.posterior:.0%}" for node, one in by_node.items()}
    assert by_node["n3"].posterior > 0.5
    assert site.run("nodes").out == (
        "NODE STATE   SUSPICION FAILED GOOD USERS LAST_FAULT       SINCE       WAITS_FOR\n"
        f"n3   drained {percent['n3']:>9}      2    0     2 gpu_fell_off_bus {short(NOW - 3.9 * HOUR)} "
        "a reboot\n"
        f"n2   watched        0%      0    1     0 nic_link_down    {short(NOW - 2 * HOUR)}\n"
    )


def test_slurm_is_not_asked(site: NodeSite) -> None:
    site.play({"away": True})
    for words in (["nodes"], ["nodes", "--all"], ["nodes", "--history"], ["nodes", "n3", "--long"]):
        assert site.run(*words).status == 0
    assert site.calls == []


def test_all_nodes_on_record(site: NodeSite) -> None:
    rows = {line.split()[0]: line.split()[1:] for line in site.run("nodes", "--all", "-h").lines}
    assert set(rows) == {"n1", "n2", "n3", "n4", "n9"}
    assert rows["n4"] == ["-", "0%", "0", "2", "0"]
    assert rows["n1"][:1] == ["-"]
    assert rows["n1"][2:5] == ["1", "2", "1"]
    assert rows["n9"][0] == "watched"  # of two months ago, so it is not in the short table


def test_the_most_suspected_stand_first(site: NodeSite) -> None:
    site.runs(*(run(10 + number, "n7 n8", user=user) for number, user in enumerate(("ada", "grace", "linus"))))
    posteriors = [one["suspicion"] for one in json.loads(site.run("nodes", "--all", "--json").out)["nodes"]]
    assert posteriors == sorted(posteriors, reverse=True)
    assert len({one for one in posteriors if one > 0}) >= 2


def test_nodes_by_name(site: NodeSite) -> None:
    assert [line.split()[0] for line in site.run("nodes", "-h", "n[1,4]").lines] == ["n1", "n4"]
    assert [line.split()[0] for line in site.run("nodes", "-h", "n4", "n1,n3").lines] == ["n3", "n1", "n4"]


def test_a_node_without_a_record(site: NodeSite) -> None:
    for words in (["nodes", "n[1,5-7]"], ["nodes", "--history", "n5,n6,n7,n3"]):
        answer = site.run(*words)
        assert (answer.status, answer.out) == (1, "")
        assert answer.err == "srecover: error: nothing is on record of n[5-7]; hint: srecover nodes --all lists all\n"


def test_the_long_table(site: NodeSite) -> None:
    line = next(line for line in site.run("nodes", "-l", "-h").lines if " n3 " in line)
    assert line.split()[:3] == ["mars", "n3", "drained"]
    assert line.split()[4:9] == ["2", "0", "1", "2", "2"]  # failed, good, blamed, jobs, users
    assert line.endswith(f"{shown(NOW - 3.9 * HOUR)} a reboot        12 IDLE+DRAIN")


def test_nodes_as_json(site: NodeSite) -> None:
    document = json.loads(site.run("nodes", "--json").out)
    drained, watched = document["nodes"]
    assert document["alerts"] == []
    assert drained["suspicion"] == pytest.approx(told(site)["n3"].posterior, abs=0.001)
    assert {key: drained[key] for key in ("node", "state", "last_fault", "waits_for", "blamed")} == {
        "node": "n3",
        "state": "drained",
        "last_fault": "gpu_fell_off_bus",
        "waits_for": "a reboot",
        "blamed": 1,
    }
    assert drained["event"]["incident_id"] == 12
    assert (watched["node"], watched["state"], watched["waits_for"]) == ("n2", "watched", None)


def test_a_suspicion_that_restarts_heed_is_watched(tmp_path: Path) -> None:
    site = NodeSite(tmp_path)
    site.runs(
        *(run(number, f"n5 n{10 + number}", user=f"user{number}") for number in range(4)),
        *(run(20 + number, f"n{10 + number}", good=True, ago=HOUR / 2) for number in range(4)),
    )
    (row,) = [line.split() for line in site.run("nodes", "-h").lines if line.startswith("n5")]
    assert row[1] == "watched"
    assert int(row[2].rstrip("%")) >= 50
    assert row[3:6] == ["4", "0", "4"]
    assert row[6] == short(NOW - HOUR)


def test_an_empty_table_is_a_header(tmp_path: Path) -> None:
    site = NodeSite(tmp_path)
    assert (site.run("nodes").status, len(site.run("nodes").lines)) == (0, 1)
    assert json.loads(site.run("nodes", "--json").out) == {"nodes": [], "alerts": []}
    assert site.run("nodes", "--history", "-h").out == ""


def test_clusters_are_told_apart(site: NodeSite) -> None:
    site.events(event(FAULT, "v1", cluster="venus", reason="nic_failure"))
    assert [line.split()[0] for line in site.run("nodes", "-h", "-M", "venus").lines] == ["v1"]
    assert [line.split()[0] for line in site.run("nodes", "-h").lines] == ["n3", "n2", "v1"]
    assert site.run("nodes", "-h", "-M", "mercury").out == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["n[1"], "not a host list: 'n[1'; write n1,n2 or n[1-4]"),
        (["n[1-99999999]"], "too many hosts"),
        (["--history", "--all"], "--all"),
        (["--history", "-n", "0"], "0 lines cannot be listed"),
        ([HOSTILE], "not a host list"),
    ],
)
def test_a_wrong_option_is_a_usage_error(site: NodeSite, words: list[str], said: str) -> None:
    answer = site.run("nodes", *words)
    assert (answer.status, answer.out) == (2, "")
    assert said in answer.err


def test_what_users_wrote_cannot_rule_the_terminal(site: NodeSite) -> None:
    site.events(
        event(FAULT, "n2", 1, reason=HOSTILE, user=HOSTILE, job=HOSTILE, detail=HOSTILE),
        event(ALERT, HOSTILE, 1, reason=HOSTILE, detail=HOSTILE),
    )
    for words in (["nodes"], ["nodes", "-l"], ["nodes", "--all"], ["nodes", "--history"], ["nodes", "--history", "-l"]):
        answer = site.run(*words)
        assert answer.status == 0
        assert all(char.isprintable() for line in answer.out.split("\n") for char in line), words


# -- alerts --------------------------------------------------------------------------------------


def test_alerts_of_the_last_day_stand_below_the_table(site: NodeSite) -> None:
    site.events(
        event(ALERT, "", 2 * DAY, reason="nccl_timeout", detail="old"),
        event(ALERT, "", HOUR, reason="filesystem_io", detail="6 jobs of 2 users on n[1-4]"),
        event(ALERT, "n2", HOUR / 2, detail="drained by nobody"),
    )
    assert site.run("nodes").lines[-2:] == [
        f"Alert {short(NOW - HOUR)}: filesystem_io: 6 jobs of 2 users on n[1-4]",
        f"Alert {short(NOW - HOUR / 2)}: n2: drained by nobody",
    ]
    alerts = json.loads(site.run("nodes", "--json").out)["alerts"]
    assert [alert["reason"] for alert in alerts] == ["filesystem_io", ""]
    assert "Alert" not in site.run("nodes", "n3").out
    assert not any(line.startswith("Alert") for line in site.run("nodes", "--history").lines)


# -- histories -----------------------------------------------------------------------------------


def test_a_nodes_history_is_told_oldest_first(site: NodeSite) -> None:
    drained, found = shown(NOW - 3.9 * HOUR), shown(NOW - 4 * HOUR)
    assert site.run("nodes", "--history", "n3").out == (
        f"{'TIME':19} NODE ACTION RESULT REASON           USER JOB INCIDENT DETAIL\n"
        f"{found} n3   fault         gpu_fell_off_bus      2         12 Xid 79 on 9b:00.0\n"
        f"{drained} n3   drain  intent gpu_fell_off_bus                12\n"
        f"{drained} n3   drain  done   gpu_fell_off_bus                12 IDLE+DRAIN\n"
    )


def test_the_newest_lines_of_all_nodes(site: NodeSite) -> None:
    lines = [line.split()[1:3] for line in site.run("nodes", "--history", "-h", "-n", "2").lines]
    assert lines == [["n3", "drain"], ["n2", "fault"]]
    assert [one["node"] for one in json.loads(site.run("nodes", "--history", "--json").out)] == [
        "n9",
        "n3",
        "n3",
        "n3",
        "n2",
    ]


def test_a_long_history_names_cluster_and_boot(site: NodeSite) -> None:
    site.events(event(BOOT, "n2", boot_id="6b0d9b6e"))
    assert site.run("nodes", "--history", "-l", "-h", "n2").lines[-1].split()[:2] == ["mars", "6b0d9b6e"]


# -- how a node stands ---------------------------------------------------------------------------


def stands(*events: NodeEvent) -> tuple[State, str]:
    latest: dict[NodeAction, NodeEvent] = {}
    for number, one in enumerate(events, 1):
        latest[one.action] = one.model_copy(update={"id": number})
    found = standing(latest)
    return found.state, found.waits_for


def drain(ago: float = HOUR, result: str = "done", reason: str = "gpu_fell_off_bus", detail: str = "") -> NodeEvent:
    return event(DRAIN, ago=ago, result=result, reason=reason, detail=detail, boot_id="one")


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([], State.NONE),
        ([event(BOOT), event(CLEAN)], State.NONE),
        ([event(FAULT)], State.WATCHED),
        ([event(XID)], State.NONE),
        ([event(FAULT), event(NodeAction.REFUSED)], State.WATCHED),
        ([event(FAULT), drain(result="intent")], State.BEGUN),
        ([drain()], State.DRAINED),
        ([drain(result="already so")], State.DRAINED),
        ([event(FAULT), drain(result="refused")], State.WATCHED),
        ([drain(), event(RESUME, result="intent")], State.DRAINED),
        ([drain(), event(RESUME, result="refused")], State.DRAINED),
        ([drain(), event(RESUME, result="failed")], State.DRAINED),
        ([drain(), event(RESUME, result="done")], State.RESUMED),
        ([drain(), event(RESUME, result="already so")], State.RESUMED),
        ([drain(), event(NodeAction.OVERRULED)], State.OVERRULED),
        ([drain(2 * HOUR), event(RESUME, result="done"), event(FAULT, ago=60)], State.WATCHED),
        ([event(RESUME, result="done", ago=2 * HOUR), drain()], State.DRAINED),
        ([event(FAULT), event(NodeAction.RELEASE)], State.RELEASED),
        ([drain(2 * HOUR), event(NodeAction.RELEASE)], State.RELEASED),
        ([event(NodeAction.RELEASE, ago=2 * HOUR), event(FAULT)], State.WATCHED),
    ],
)
def test_what_we_did_last(events: list[NodeEvent], state: State) -> None:
    assert stands(*events)[0] is state


@pytest.mark.parametrize(
    ("events", "waits_for"),
    [
        ([drain()], "a reboot"),
        ([event(BOOT, ago=2 * HOUR, boot_id="one"), drain()], "a reboot"),
        ([drain(), event(CLEAN, ago=60)], "a reboot"),  # a clean check is no reboot
        ([drain(), event(BOOT, ago=60, boot_id="one")], "a reboot"),  # the boot that it was drained in
        ([drain(), event(BOOT, ago=60, boot_id="two")], "a clean health check"),
        ([drain(), event(CLEAN, ago=120), event(BOOT, ago=60, boot_id="two")], "a clean health check"),
        ([drain(), event(BOOT, ago=120, boot_id="two"), event(CLEAN, ago=60)], "the next sweep"),
        ([drain(reason="gpu_missing")], "a clean health check"),
        ([event(CLEAN, ago=2 * HOUR), drain(reason="gpu_missing")], "a clean health check"),
        ([drain(reason="gpu_missing"), event(CLEAN, ago=60)], "the next sweep"),
        ([drain(reason="gpu_missing", detail="slurm_recovery: suspected gpu_missing incident 7")], "a reboot"),
        ([drain(result="intent")], ""),
        ([drain(), event(RESUME, result="done", ago=1)], ""),
    ],
)
def test_what_a_drained_node_waits_for(events: list[NodeEvent], waits_for: str) -> None:
    assert stands(*events)[1] == waits_for


# -- release -------------------------------------------------------------------------------------

OURS = "slurm_recovery: gpu_fell_off_bus incident 12"
SUDO = {"SUDO_USER": "ada"}


def test_a_release_is_on_record_with_who_gave_the_word(site: NodeSite) -> None:
    site.play({"away": True})
    answer = site.run("release", "n[1-2]", "n4", env=SUDO)
    assert (answer.status, answer.err) == (0, "")
    assert answer.out == "n[1-2,4] released: what was known until now counts no longer\n"
    assert site.calls == []  # all on record: it works while slurmctld is away
    released = [one for one in site.history() if one.action is NodeAction.RELEASE]
    assert [(one.node, one.user) for one in released] == [("n1", "ada"), ("n2", "ada"), ("n4", "ada")]
    with site.store() as store:
        assert store.ledger.latest("mars", [NodeAction.RELEASE])["n2"].time == pytest.approx(time.time(), abs=60)


def test_without_sudo_it_is_this_users_word(site: NodeSite) -> None:
    import pwd

    assert site.run("release", "n2", env={"SUDO_USER": ""}).status == 0
    assert site.history("n2")[-1].user == pwd.getpwuid(os.getuid()).pw_name


def test_what_was_known_counts_no_longer(tmp_path: Path) -> None:
    site = NodeSite(tmp_path)
    site.runs(*(run(number, "n5 n6", user=f"user{number}") for number in range(4)))
    before = {one["node"]: one["suspicion"] for one in json.loads(site.run("nodes", "--json").out)["nodes"]}
    assert before["n5"] == before["n6"] > 0.1
    assert site.run("release", "n5").status == 0
    after = {one["node"]: one for one in json.loads(site.run("nodes", "--all", "--json").out)["nodes"]}
    assert (after["n5"]["state"], after["n5"]["suspicion"], after["n5"]["failed"]) == ("released", 0.0, 0)
    assert after["n6"]["suspicion"] == pytest.approx(before["n6"], abs=0.01)


def test_a_node_that_only_slurm_knows(site: NodeSite) -> None:
    site.play({"n1": {"state": "idle"}, "n77": {"state": "idle"}})
    assert site.run("release", "n1,n77").status == 0
    assert site.history("n77")[-1].action is NodeAction.RELEASE


@pytest.mark.parametrize("more", [[], ["--resume"], ["-M", "mars"]])
def test_an_unknown_node_releases_none(site: NodeSite, more: list[str]) -> None:
    answer = site.run("release", "n[1,50-51]", *more)
    assert (answer.status, answer.out) == (1, "")
    assert answer.err == "srecover: error: nothing was released: cluster mars has no node n[50-51]; hint: sinfo -N\n"
    assert NodeAction.RELEASE not in [one.action for one in site.history()]


def test_an_unknown_node_while_slurmctld_is_away(site: NodeSite) -> None:
    site.play({"away": True})
    answer = site.run("release", "n1,n50")
    assert answer.status == 1
    assert answer.err.startswith(
        "srecover: error: nothing was released: nothing is on record of n50, and Slurm does not answer: "
    )
    assert answer.err.count("\n") == 1
    assert NodeAction.RELEASE not in [one.action for one in site.history()]


def test_several_clusters_while_slurmctld_is_away(site: NodeSite) -> None:
    site.events(event(FAULT, "v1", cluster="venus"))
    site.play({"away": True})
    answer = site.run("release", "n1")
    assert answer.status == 1
    assert answer.err.endswith("; hint: --cluster NAME\n")
    assert site.run("release", "n1", "-M", "mars").status == 0


def test_nodes_of_another_cluster(site: NodeSite) -> None:
    site.events(event(FAULT, "v1", cluster="venus"))
    assert "cluster mars has no node v1" in site.run("release", "v1").err
    assert "nothing is on record of n1 in cluster venus" in site.run("release", "n1", "-M", "venus").err
    assert "cluster venus does not answer here" in site.run("release", "v1", "-M", "venus", "--resume").err
    assert site.run("release", "v1", "-M", "venus").status == 0
    with site.store() as store:
        assert [one.action for one in store.ledger.events("venus")] == [NodeAction.RELEASE, FAULT]


@pytest.mark.parametrize(("words", "said"), [([], "NODE"), ([""], "no node is named"), (["n[1"], "not a host list")])
def test_a_wrong_command_line(site: NodeSite, words: list[str], said: str) -> None:
    answer = site.run("release", *words)
    assert answer.status == 2
    assert said in answer.err


def test_only_its_owner_and_root_may_release(open_folder: Path) -> None:
    site = NodeSite(open_folder)
    site.events(event(FAULT))
    if os.geteuid() != 0:
        return
    assert as_nobody(lambda: site.run("release", "n1")) == (
        f"1 srecover: error: {open_folder}: only SlurmUser and root can release; hint: sudo srecover release\n"
    )
    assert as_nobody(lambda: site.run("nodes")).startswith("1 srecover: error: only SlurmUser and root can read")
    assert [one.action for one in site.history()] == [FAULT]


# -- resume --------------------------------------------------------------------------------------


def test_a_node_that_we_drained_is_resumed_and_read_back(site: NodeSite) -> None:
    site.play({"n3": {"state": "idle+drain", "reason": OURS}})
    answer = site.run("release", "--resume", "n3", env=SUDO)
    assert (answer.status, answer.err) == (0, "")
    assert answer.lines[1:] == ["n3 resumed: IDLE"]
    assert site.shown("n3")["state"] == "idle"
    released, intent, outcome = site.history("n3")[-3:]
    assert released.action is NodeAction.RELEASE
    assert (intent.action, intent.result, intent.detail) == (RESUME, "intent", f"DRAIN+IDLE Reason={OURS}")
    assert (outcome.action, outcome.result, outcome.detail) == (RESUME, "done", "IDLE")
    assert {(one.user, one.reason, one.incident_id) for one in (intent, outcome)} == {("ada", "gpu_fell_off_bus", 12)}
    assert [row["state"] for row in json.loads(site.run("nodes", "n3", "--json").out)["nodes"]] == ["resumed"]
    assert [call.split()[:2] for call in site.calls if "update" in call] == [["scontrol", "update"]]


def test_without_the_option_a_drained_node_stays_drained_and_the_hint_says_so(site: NodeSite) -> None:
    site.play({"n3": {"state": "idle+drain", "reason": OURS}})
    answer = site.run("release", "n[1,3]")
    assert answer.lines[1:] == ["n3 drained by us; hint: srecover release --resume n3"]
    assert site.shown("n3")["state"] == "idle+drain"


@pytest.mark.parametrize(
    ("shown_now", "said"),
    [
        ({"state": "idle+drain", "reason": "disk swap, ask Ada"}, "drained by others: DRAIN+IDLE Reason=disk swap"),
        ({"state": "idle+drain", "reason": "not slurm_recovery: x"}, "drained by others"),
        ({"state": "idle+drain", "reason": "none"}, "drained by others: DRAIN+IDLE"),
        ({"state": "idle+drain", "reason": OURS, "refuses": "Invalid user id"}, "Invalid user id"),
        ({"state": "idle+drain", "reason": OURS, "deaf": True}, "still drained: DRAIN+IDLE"),
    ],
)
def test_what_is_not_resumed(site: NodeSite, shown_now: dict[str, Any], said: str) -> None:
    site.play({"n2": {"state": "idle"}, "n3": shown_now})
    answer = site.run("release", "--resume", "n[2-3]")
    assert answer.status == 1
    assert answer.lines[1:] == ["n2 not drained: IDLE"]
    assert answer.err.startswith("srecover: error: n3 not resumed: ")
    assert said in answer.err
    assert answer.err.count("\n") == 1
    assert answer.err.endswith("; hint: scontrol update NodeName=n3 State=RESUME\n")
    assert site.shown("n3")["state"] == "idle+drain"
    assert site.history("n3")[-1].result in ("refused", "failed")
    assert site.history("n2")[-1].action is NodeAction.RELEASE  # we had not drained it: there is nothing to tell
    if "others" in said:
        assert not [call for call in site.calls if "update" in call]


def test_slurm_away_releases_nothing_where_it_must_resume(site: NodeSite) -> None:
    site.play({"away": True})
    answer = site.run("release", "--resume", "n3")
    assert answer.status == 1
    assert answer.err.startswith("srecover: error: nothing was released: Slurm does not answer: ")
    assert NodeAction.RELEASE not in [one.action for one in site.history()]


class Vanishing(Commands):
    """slurmctld goes away in the middle of the deed."""

    def resume(self, node: str) -> None:
        raise SlurmUnavailable(f"scontrol update NodeName={node}: no answer within 10 s")


def test_an_intent_stays_on_record_where_slurmctld_goes_away(site: NodeSite) -> None:
    site.play({"n3": {"state": "idle+drain", "reason": OURS}})
    slurm = Vanishing(bin_dir=site.programs)
    with site.store() as store, pytest.raises(SlurmUnavailable):
        resume_drained(slurm, store.ledger, "mars", ["n3"], user="ada", now=time.time)
    assert (site.history("n3")[-1].action, site.history("n3")[-1].result) == (RESUME, "intent")
    assert [row["state"] for row in json.loads(site.run("nodes", "n3", "--json").out)["nodes"]] == ["drained"]


def test_each_node_is_read_again_before_its_own_deed(site: NodeSite) -> None:
    """Whoever drains a node while another one is being resumed wins."""

    class Meddled(Commands):
        def resume(self, node: str) -> None:
            super().resume(node)
            nodes = json.loads((site.programs / "nodes.json").read_text())
            nodes["n3"]["reason"] = "mine now"
            (site.programs / "nodes.json").write_text(json.dumps(nodes))

    site.play({name: {"state": "idle+drain", "reason": OURS} for name in ("n2", "n3")})
    with site.store() as store:
        slurm = Meddled(bin_dir=site.programs)
        outcomes = resume_drained(slurm, store.ledger, "mars", ["n2", "n3"], user="ada", now=time.time)
    assert [(one.node, one.result) for one in outcomes] == [("n2", "done"), ("n3", "refused")]
    assert site.shown("n3")["state"] == "idle+drain"


def test_a_store_that_cannot_be_written_is_one_line(site: NodeSite) -> None:
    import sqlite3

    with sqlite3.connect(site.url.removeprefix("sqlite:///")) as connection:
        connection.execute("DROP TABLE node_event")
    for words in (["release", "n1"], ["nodes"], ["nodes", "--history"]):
        answer = site.run(*words)
        assert (answer.status, answer.out) == (1, "")
        assert "no such table" in answer.err
        assert answer.err.count("\n") == 1


def test_ten_thousand_nodes_are_listed_in_seconds(tmp_path: Path) -> None:
    site = NodeSite(tmp_path)
    every = [f"n{number:05}" for number in range(10_000)]
    site.runs(*(run(number, " ".join(every), good=number % 2 == 0, ago=number) for number in range(1, 21)))
    site.events(*(event(DRAIN, node, result="done", reason="gpu_missing") for node in every[:1000]))
    begin = time.monotonic()
    answer = site.run("nodes", "-h", "--all")
    assert time.monotonic() - begin < 30  # 2 s on an idle core of 2024
    assert len(answer.lines) == 10_000
