"""Cases of PyTorch with gloo: started by torchrun, or by srun with one task a rank."""

from __future__ import annotations

from tests.reallogs import mishaps
from tests.reallogs.labels import crashed, expect, killed, late, raised, unreadable
from tests.reallogs.run import Case

TORCH = ("torch",)
TRAIN = "/opt/train/train.py"
PYTHON = f"/opt/torch/bin/python -u {TRAIN}"
DETAIL = "export TORCH_DISTRIBUTED_DEBUG=DETAIL\n"
TORCHRUN = (
    "srun --ntasks-per-node=1 {srun}/opt/torch/bin/torchrun --nnodes=$SLURM_NNODES --nproc-per-node=2 \\\n"
    "  --rdzv-id=$SLURM_JOB_ID --rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:29500 {agent}\\\n"
    "  /opt/train/train.py {program}"
)


def torchrun(program: str, srun: str = "", agent: str = "") -> str:
    return TORCHRUN.format(srun=srun and srun + " ", agent=agent and agent + " ", program=program)


def checkpoint(size: int, zeros: bool = False, name: str = "step_4000.pt") -> str:
    """Lines of a batch script that make a checkpoint and then cut it, or write zeros over it."""
    source = "/dev/zero" if zeros else "$CKPT.whole"
    return (
        f"CKPT=/srv/run/ckpt/{name}; mkdir -p /srv/run/ckpt\n"
        "/opt/torch/bin/python -c 'import sys, torch; torch.save({\"step\": 4000, \"model\": torch.zeros(1 << 18)}, "
        "sys.argv[1])' $CKPT.whole\n"
        f"head -c {size} {source} > $CKPT\n"
    )


def stage_data(megabytes: int) -> str:
    return f"DATA=/srv/run/shard-00017.tar; head -c {megabytes}M /dev/zero > $DATA\n"


def attempts(first: str, next_one: str) -> str:
    """Lines of a batch script that set FAIL for the job's first attempt, and for the one after it."""
    return f"FAIL='{first}'\n[ ${{SLURM_RESTART_COUNT:-0}} = 0 ] || FAIL='{next_one}'\n"


TORCH_CASES = (
    Case("torchrun-rank-killed", torchrun("--fail kill --rank 3"), killed(3, "@3"),
         "Rank 3 got SIGKILL and nothing says from whom; the others lost their peer.", TORCH, tasks=1),
    Case("srun-label-rank-killed", f"srun --label --kill-on-bad-exit=1 {PYTHON} --fail kill --rank 2", killed(2, "@2"),
         "srun says that task 2 was killed; the other tasks lost their peer or were ended.", TORCH),
    Case("srun-rank-killed", f"srun {PYTHON} --fail kill --rank 1", killed(1, "@1"),
         "srun says that task 1 was killed; every other rank prints a gloo error about it.", TORCH),
    Case("torchrun-segfault", torchrun("--fail segv --rank 1"), crashed(1),
         "Rank 1 crashed; the other agent's table shows only victims.", TORCH, tasks=1, faulty="@1"),
    Case("srun-label-segfault", f"srun -l {PYTHON} --fail segv --rank 3", crashed(3),
         "Task 3 crashed; its peers lost the connection, and the first of them prints before srun speaks.", TORCH),
    Case("srun-segfault-faulthandler",
         "srun /opt/torch/bin/python -u -X faulthandler /opt/train/train.py --fail segv --rank 2",
         crashed(2), "Rank 2 crashed in native code; faulthandler shows where.", TORCH, faulty="@2"),
    Case("srun-label-exception", f"srun -l {PYTHON} --fail exception --rank 2", raised(2),
         "Rank 2 looks up a key that is not there; the others lost their peer.", TORCH),
    Case("srun-exception-three-nodes", f"srun {PYTHON} --fail exception --rank 4", raised(4),
         "One KeyError of rank 4, five gloo errors about it.", TORCH, nodes=3),
    Case("torchrun-exception", torchrun("--fail exception --rank 2"), raised(2),
         "Rank 2 raised; the agents' tables name it and its victims.", TORCH, tasks=1),
    Case("torchrun-tee-exception", torchrun("--fail bad-record --rank 1 --workers 1 --step 9", "--label",
                                            "--log-dir /srv/run/logs --tee 3"),
         raised(1), "A record without its label: the loader's worker raised, and rank 1 with it.", TORCH, tasks=1),
    Case("srun-label-timeout-one-sleeps",
         f"srun -l --kill-on-bad-exit=1 {PYTHON} --fail sleep --rank 2 --timeout 12", late(2, "@2"),
         "Three ranks time out in a collective that rank 2 never enters.", TORCH),
    Case("torchrun-timeout-one-sleeps", torchrun("--fail sleep --rank 3 --timeout 12"), late(3, "@3"),
         "Three ranks time out in a collective that rank 3 never enters.", TORCH, tasks=1),
    Case("srun-label-mismatch-detail", f"{DETAIL}srun -l --wait=20 {PYTHON} --by-hand --fail kind --rank 3",
         expect("application", "collective_mismatch", "stop", 3, root_ranks=[None]),
         "Rank 3 calls a barrier where the others broadcast or reduce.", TORCH),
    Case("torchrun-mismatch-shape-detail",
         DETAIL + torchrun("--by-hand --fail shape --rank 1"),
         expect("application", "collective_mismatch", "stop", 1, root_ranks=[None]),
         "Rank 1 reduces a tensor of another shape.", TORCH, tasks=1),
    Case("srun-label-crash-everywhere", f"{DETAIL}srun -l --wait=20 {PYTHON}",
         expect("application", "segfault", "stop", None, actions=["requeue"], categories=["software_env"]),
         "PyTorch 2.13 with this debug mode crashes in DistributedDataParallel, on every rank.", TORCH),
    Case("torchrun-crash-everywhere", DETAIL + torchrun(""),
         expect("application", "segfault", "stop", None, actions=["requeue"], categories=["software_env"]),
         "PyTorch 2.13 with this debug mode crashes in DistributedDataParallel, on every rank.", TORCH, tasks=1),
    Case("srun-mismatch-shape", f"srun --wait=20 {PYTHON} --fail shape --rank 2 --timeout 12",
         expect("application", "collective_mismatch", "stop", 2, root_ranks=[None]),
         "Rank 2 reduces a tensor of another size.", TORCH),
    Case("srun-label-monitored-barrier",
         f"srun -l -K1 {PYTHON} --monitor --fail sleep --rank 3 --timeout 8", late(3, "@3"),
         "The barrier names rank 3 as absent.", TORCH),
    Case("torchrun-rendezvous-one-node-misses",
         "srun --label -K1 --ntasks-per-node=1 bash -c '[ $SLURM_NODEID != 2 ] || sleep 300; "
         "echo \"agent on $(hostname)\"; "
         "exec /opt/torch/bin/torchrun --nnodes=3 --nproc-per-node=1 --rdzv-id=77 --rdzv-backend=c10d "
         "--rdzv-endpoint=$MASTER_ADDR:29500 --rdzv-conf join_timeout=15 /opt/train/train.py'",
         expect("interconnect", "rendezvous_timeout", "requeue_exclude", None, ("gn3",), categories=["node"],
                actions=["requeue"], suspect_nodes=[[]]),
         "Two of three agents wait in vain; nothing was heard of the one on gn3.", TORCH, nodes=3, tasks=1),
    Case("srun-store-not-there", "srun -l --kill-on-bad-exit=1 bash -c '[ $SLURM_PROCID != 0 ] || sleep 300; "
         f"exec {PYTHON} --timeout 10'",
         expect("interconnect", "rendezvous_timeout", "requeue", None, categories=["node", "unknown"],
                actions=["requeue_exclude"], suspect_nodes=[["gn1"]], root_ranks=[0]),
         "No rank can reach the store of rank 0 on gn1, which is silent.", TORCH),
    Case("srun-label-one-never-joins", "srun -l --kill-on-bad-exit=1 bash -c '[ $SLURM_PROCID != 3 ] || sleep 300; "
         f"exec {PYTHON} --timeout 10'",
         expect("interconnect", "rendezvous_timeout", "requeue", None, categories=["node", "unknown"],
                reasons=["gloo_connection_error"], actions=["requeue_exclude"], suspect_nodes=[["gn2"]],
                root_ranks=[3]),
         "Three of four ranks come together; of task 3 nothing is heard.", TORCH),
    Case("srun-label-loader-killed", f"srun -l {PYTHON} --fail kill-loader --rank 1 --workers 2",
         expect("application", "dataloader_killed", "stop", 1, reasons=["killed_unknown", "host_oom"],
                categories=["unknown", "node"], actions=["requeue"]),
         "A worker of rank 1's DataLoader was killed; no kernel or cgroup line says why.", TORCH),
    Case("torchrun-loader-killed", torchrun("--fail kill-loader --rank 2 --workers 1"),
         expect("application", "dataloader_killed", "stop", 2, reasons=["killed_unknown", "host_oom"],
                categories=["unknown", "node"], actions=["requeue"]),
         "A worker of rank 2's DataLoader was killed; no kernel or cgroup line says why.", TORCH, tasks=1),
    Case("srun-checkpoint-disk-full",
         f"srun --wait=10 {PYTHON} --save /mnt/lustre/run7.pt\nstatus=$?\ndf -h /mnt/lustre\nexit $status",
         expect("storage", "disk_full", "stop", 0, reasons=["filesystem_io", "checkpoint_write_failed"]),
         "Rank 0 cannot write its checkpoint: the file system is full.", TORCH,
         before=mishaps.small_checkpoint_disk, after=mishaps.no_checkpoint_disk),
    Case("srun-label-write-fails-one-node", f"srun -l --kill-on-bad-exit=1 {PYTHON} --spool /tmp",
         expect("node", "local_disk_full", "requeue_exclude", 2, ("gn2",), reasons=["disk_full", "filesystem_io"],
                categories=["storage"], root_ranks=[3, None], actions=["stop", "requeue"], suspect_nodes=[[]]),
         "torch.save is cut short on both ranks of gn2, and on no other; where it wrote to is not said.", TORCH,
         before=mishaps.fill_tmp, after=mishaps.free_tmp),
    Case("srun-label-tmp-full-one-node",
         stage_data(20) + f"srun -l --kill-on-bad-exit=1 {PYTHON} --stage $DATA --spool /tmp",
         expect("node", "local_disk_full", "requeue_exclude", 2, ("gn2",), reasons=["disk_full"],
                categories=["storage"], root_ranks=[3, None]),
         "The ranks on gn2 cannot copy their data to /tmp, those on gn1 can.", TORCH,
         before=mishaps.fill_tmp, after=mishaps.free_tmp),
    Case("srun-label-checkpoint-cut", checkpoint(500_000) + f"srun -l {PYTHON} --load $CKPT",
         expect("storage", "checkpoint_corrupt", "stop", None, root_ranks=[0, 1, 2, 3], actions=["requeue"]),
         "The checkpoint ends in the middle; no rank can read it.", TORCH),
    Case("torchrun-checkpoint-zeroed", checkpoint(1_000_000, zeros=True) + torchrun("--load $CKPT"), unreadable(),
         "The checkpoint holds zeros only; torch.load takes it for one of an old format.", TORCH, tasks=1),
    Case("srun-checkpoint-zeroed-trusted", checkpoint(1_000_000, zeros=True) + f"srun {PYTHON} --load $CKPT --trust",
         unreadable(), "The checkpoint holds zeros only; torch.load takes it for one of an old format.", TORCH),
    Case("srun-label-checkpoint-pickle-zeroed", checkpoint(1_000_000, zeros=True, name="step_4000.pkl")
         + f"srun -l {PYTHON} --load $CKPT", unreadable(), "The pickled checkpoint holds zeros only.", TORCH),
    Case("srun-label-torch-missing-one-node", f"srun -l --wait=30 {PYTHON} --timeout 12",
         expect("node", "import_error", "requeue_exclude", 2, ("gn2",), categories=["software_env"],
                root_ranks=[3, None]),
         "Both ranks on gn2 miss torch; those on gn1 found it.", TORCH,
         before=mishaps.hide_torch, after=mishaps.show_torch),
    Case("srun-label-torch-missing-peers-silent", f"srun -l --kill-on-bad-exit=1 {PYTHON}",
         expect("node", "import_error", "requeue_exclude", 2, ("gn2",), categories=["software_env"],
                root_ranks=[3, None], actions=["stop"], suspect_nodes=[[]]),
         "Both ranks on gn2 miss torch; those on gn1 were ended before they could say a word.", TORCH,
         before=mishaps.hide_torch, after=mishaps.show_torch),
    Case("srun-module-missing", f"srun {PYTHON} --attention flash",
         expect("software_env", "import_error", "stop", None, root_ranks=[0, 1, 2, 3]),
         "Every rank misses flash_attn.", TORCH),
    Case("srun-label-memory-limit", f"srun -l {PYTHON} --fail memory --rank 1",
         expect("application", "host_oom", "stop", 1, root_ranks=[None], categories=["node"], actions=["requeue"]),
         "Rank 1 grew until the job's memory limit ended it.", TORCH, options=("--mem=1200",)),
    Case("torchrun-memory-limit", torchrun("--fail memory --rank 3"),
         expect("application", "host_oom", "stop", 3, root_ranks=[None], categories=["node"], actions=["requeue"],
                suspect_nodes=[["@3"]]),
         "Rank 3 grew until the job's memory limit ended it.", TORCH, tasks=1, options=("--mem=1200",)),
    Case("srun-label-time-limit", f"srun -l {PYTHON} --steps 100000 --pause 2",
         expect("user_or_scheduler", "time_limit", "stop", None, actions=["requeue"]),
         "Steady steps up to the time limit.", TORCH, options=("--time=1",)),
    Case("torchrun-cancelled", torchrun("--steps 1000"),
         expect("user_or_scheduler", "cancelled_by_user", "stop", None, reasons=["cancelled", "cancelled_by_admin"],
                actions=["none"]),
         "scancel, in the middle of steady steps.", TORCH, tasks=1, during=mishaps.cancel),
    Case("srun-port-in-use", f"srun --wait=15 {PYTHON} --timeout 30",
         expect("software_env", "port_in_use", "requeue", None, root_ranks=[0]),
         "Another program listens on the port of the store on gn1.", TORCH,
         before=mishaps.take_port, after=mishaps.give_port),
    Case("torchrun-port-in-use",
         "srun --label --wait=20 --ntasks-per-node=1 /opt/torch/bin/torchrun --nnodes=2 --nproc-per-node=1 "
         "--node-rank=$SLURM_NODEID --master-addr=$MASTER_ADDR --master-port=29500 /opt/train/train.py",
         expect("software_env", "port_in_use", "requeue", None, root_ranks=[0]),
         "Another program listens on the port of the store on gn1.", TORCH, tasks=1,
         before=mishaps.take_port, after=mishaps.give_port),
    Case("script-error", "set -u\necho \"staging $DATA_DIR\"\n" + torchrun(""),
         expect("application", "script_error", "stop", None, categories=["user_or_scheduler", "software_env"],
                reasons=["command_not_found"]),
         "The batch script uses a variable that is not set.", (), nodes=1, tasks=1),
    Case("command-not-found", "module load cuda\ntorchrunn --nproc-per-node=2 /opt/train/train.py",
         expect("software_env", "command_not_found", "stop", None, categories=["application"],
                reasons=["script_error"]),
         "The script's last command does not exist.", (), nodes=1, tasks=1),
    Case("srun-program-not-found", "srun --label torchrun --nproc-per-node=2 /opt/train/train.py",
         expect("software_env", "command_not_found", "stop", None, categories=["application"]),
         "torchrun is not in the PATH of any node.", (), tasks=1),
    Case("srun-bad-arguments", f"srun {PYTHON} --learning-rate 0.1",
         expect("application", "bad_arguments", "stop", None, root_ranks=[0, 1, 2, 3]),
         "argparse refuses an option, on every rank.", TORCH),
    Case("srun-label-too-many-tasks", f"srun -l --ntasks=64 --nodes=2 {PYTHON}",
         expect("user_or_scheduler", "slurm_config_error", "stop", None, reasons=["bad_arguments", "script_error"],
                categories=["application"]),
         "srun asks for more processors than the job has.", TORCH),
    Case("srun-label-healthy-noise", f"srun -l {PYTHON} --noisy --keep-group",
         expect("healthy", "completed", "none"),
         "Tracebacks of a metrics server that is not there, a warning at the end; the job is COMPLETED.", TORCH),
    Case("torchrun-healthy-after-retry",
         f"srun -N1 -n1 {PYTHON} --fail exception --rank 0 || echo 'warm-up failed, going on without cache'\n"
         + torchrun("--keep-group"),
         expect("healthy", "completed", "none"),
         "A step failed, the script went on, the job is COMPLETED.", TORCH, tasks=1),
    Case("two-attempts-in-one-file",
         attempts("--fail kill --rank 3", "--fail exception --rank 1") +
         f"srun -l {PYTHON} $FAIL",
         raised(1), "In the first attempt rank 3 was killed; in this one rank 1 raised.", TORCH,
         options=("--open-mode=append", "--requeue"), during=mishaps.requeue_failed, timeout=240),
    Case("two-attempts-second-killed",
         attempts("--fail exception --rank 1", "--fail kill --rank 2") +
         f"srun {PYTHON} $FAIL",
         killed(2, "@2"), "In the first attempt rank 1 raised; in this one rank 2 was killed.", TORCH,
         options=("--open-mode=append", "--requeue"), during=mishaps.requeue_failed, timeout=240),
    Case("srun-label-node-lost", f"srun -l {PYTHON} --steps 2000",
         expect("node", "node_fail", "requeue_exclude", None, ("gn2",), root_ranks=[2, 3]),
         "gn2 went away; srun and slurmctld say so.", TORCH, options=("--no-requeue",),
         during=mishaps.lose_node, after=mishaps.bring_node_back, timeout=240),
    Case("srun-label-cable-pulled", f"srun -l --wait=30 {PYTHON} --steps 2000 --timeout 8",
         expect("interconnect", "gloo_connection_error", "requeue", None,
                reasons=["nccl_timeout", "collective_timeout"],
                categories=["unknown", "node"], actions=["requeue_exclude"], suspect_nodes=[["gn1"], ["gn2"]]),
         "Every rank times out at once; no one is behind, nothing else is said.", TORCH,
         during=mishaps.pull_cable, after=mishaps.plug_in),
    Case("srun-name-not-known", f"export MASTER_ADDR=gn1-ib\nsrun {PYTHON} --timeout 10",
         expect("software_env", "name_resolution_failed", "stop", None, reasons=["rendezvous_timeout"],
                actions=["requeue"], root_ranks=[0, 1, 2, 3], categories=["interconnect"]),
         "MASTER_ADDR is a name that no resolver knows.", TORCH),
    Case("srun-silent-exit", f"srun {PYTHON} --fail exit --rank 2",
         expect("unknown", "unknown", "requeue", 2, actions=["stop"], categories=["application"],
                reasons=["python_exception", "script_error"]),
         "Rank 2 left with exit code 3 and no word; the others lost their peer.", TORCH),
    Case("srun-label-hang-to-time-limit", f"srun -l {PYTHON} --stamp --fail sleep --rank 2 --timeout 3600",
         expect("unknown", "hang", "requeue", None, reasons=["time_limit"], actions=["stop", "requeue_exclude"],
                categories=["user_or_scheduler", "interconnect"]),
         "Steps take a tenth of a second, and then there is none until the time limit.", TORCH, options=("--time=1",)),
    Case("srun-label-shm-full-one-node", f"srun -l --kill-on-bad-exit=1 {PYTHON} --workers 2",
         expect("node", "shm_exhausted", "requeue_exclude", 2, ("gn2",), root_ranks=[3, None],
                reasons=["local_disk_full", "dataloader_killed"]),
         "/dev/shm of gn2 is full, that of gn1 is not.", TORCH, before=mishaps.fill_shm, after=mishaps.free_shm),
    Case("srun-label-nan", f"srun -l {PYTHON} --fail nan --rank 1",
         expect("application", "nan_loss", "stop", 1, reasons=["python_exception"]),
         "The program's own check found a loss that is not a number.", TORCH),
)  # fmt: skip
