"""What befalls a job or its nodes, in the hands of make.py: before it starts, while it runs, and what repairs it after.

Must not: know a label. Each takes the run of a case; a node is named where only one is struck.
"""

from __future__ import annotations

from tests.reallogs.run import Run

TORCH = "/opt/torch/lib/python3.11/site-packages/torch"


def small_checkpoint_disk(run: Run) -> None:
    for node in run.cluster.nodes:
        run.cluster.on(node, "mkdir", "-p", "/mnt/lustre")
    run.cluster.small_disk("gn1", "/mnt/lustre", "2M")


def no_checkpoint_disk(run: Run) -> None:
    run.cluster.unmount("gn1", "/mnt/lustre")


def fill_tmp(run: Run) -> None:
    run.cluster.small_disk("gn2", "/tmp", "12M")


def free_tmp(run: Run) -> None:
    run.cluster.unmount("gn2", "/tmp")


def fill_shm(run: Run) -> None:
    run.cluster.small_disk("gn2", "/dev/shm", "16k")


def free_shm(run: Run) -> None:
    run.cluster.unmount("gn2", "/dev/shm")


def hide_torch(run: Run) -> None:
    run.cluster.hide("gn2", TORCH)


def show_torch(run: Run) -> None:
    run.cluster.unmount("gn2", TORCH)


def take_port(run: Run) -> None:
    run.cluster.background("gn1", "/usr/bin/python3", "-m", "http.server", "29500")


def give_port(run: Run) -> None:
    run.cluster.end_background()


def cancel(run: Run) -> None:
    run.until("step 9")
    run.cluster.run("scancel", str(run.job))


def requeue_failed(run: Run) -> None:
    run.cluster.wait(run.job, "FAILED")
    run.cluster.run("scontrol", "requeue", str(run.job))
    run.cluster.run("scontrol", "update", f"JobId={run.job}", "StartTime=now")
    run.cluster.wait_for(lambda: run.cluster.show(run.job)["RestartCnt"] == "1", 30, "the restart")
    run.cluster.wait(run.job, "RUNNING", timeout=180)


def lose_node(run: Run) -> None:
    run.until("step 9")
    run.cluster.cut_off("gn2")
    run.cluster.kill_slurmd("gn2")
    run.cluster.wait(run.job, timeout=150)


def bring_node_back(run: Run) -> None:
    run.cluster.plug_in("gn2")
    if not run.cluster.daemon_pid("gn2"):
        run.cluster.start_slurmd("gn2")


def pull_cable(run: Run) -> None:
    run.until("step 9")
    run.cluster.cut_off("gn2")
    run.until("rror", timeout=60)
    run.cluster.plug_in("gn2")


def plug_in(run: Run) -> None:
    run.cluster.plug_in("gn2")


def hide_programs(run: Run) -> None:
    run.cluster.hide("gn2", "/opt/train")


def show_programs(run: Run) -> None:
    run.cluster.unmount("gn2", "/opt/train")


def kill_daemon(run: Run) -> None:
    run.until("step 9")
    run.cluster.kill_named("gn2", "orted")
