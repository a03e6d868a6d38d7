"""The drill's job: one sh script for all drills, told its drill as its argument; and the checkpoints that one needs.

The batch step runs on the first node, one rank on each. In the first run the ranks fail as their drill says; a run that
Slurm counts as a restart says what it was told and ends well. Nothing is loaded, allocated or left behind: the lines of
a failure are printed, in the words of the real ones. Nodes need sh and srun.
"""

from __future__ import annotations

import json
import re
import struct
from typing import NamedTuple

MARK = "slurm_recovery drill:"
ENDS_WELL = "well"
NEWEST, EARLIER = "checkpoint-20", "checkpoint-10"  # the drill's job cannot load the newest
OLD = 3600.0  # seconds: how old the checkpoints are, as those of a job that ran before

SCRIPT = r"""#!/bin/sh
# srecover drill: a harmless job that fails on purpose in its first run, and ends well when it is restarted.
ulimit -c 0
if [ "${SLURM_RESTART_COUNT:-0}" != 0 ]; then
    echo "slurm_recovery drill: told checkpoint=${SLURM_RECOVERY_CHECKPOINT-}"
    echo "slurm_recovery drill: told attempt=${SLURM_RECOVERY_ATTEMPT-} reason=${SLURM_RECOVERY_REASON-}"
    set -- well
fi
rank='
me=$SLURM_PROCID last=$((SLURM_NTASKS - 1))
echo "slurm_recovery drill: run ${SLURM_RESTART_COUNT:-0} rank $me on $SLURMD_NODENAME"
# As NCCL and DeepSpeed do, which tells whose rank is where.
echo "$SLURMD_NODENAME:$$:$$ [0] NCCL INFO comm 0x1 rank $me nranks $SLURM_NTASKS cudaDev 0 busId 1000 - Init COMPLETE"
echo "Discovered MPI settings of world_rank=$me, local_rank=0, world_size=$SLURM_NTASKS, master_addr=$SLURMD_NODENAME"
# What a rank prints in its last moment srun may lose: so each waits a second before it ends.
say() { for line; do echo "[rank$me]: $line"; done >&2; }
wait_for_the_other() { [ $me = $last ] || exec sleep 60; }
case $1 in
ecc)
    wait_for_the_other
    say "Traceback (most recent call last):" "  File \"train.py\", line 112, in <module>" "    loss.backward()" \
        "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    sleep 1
    exit 1 ;;
killed)
    wait_for_the_other
    sleep 1
    kill -KILL $$ ;;
hang)
    [ $me = $last ] && exec sleep 60
    at="E101 00:00:00.000000000 ProcessGroupNCCL.cpp"
    echo "[rank$me]:[$at:683] [Rank $me] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=512, \
OpType=ALLREDUCE, NumelIn=4194304, NumelOut=4194304, Timeout(ms)=600000) ran for 600001 milliseconds before \
timing out." >&2
    echo "[rank$me]:[$at:2241] [PG ID 0 PG GUID 0(default_pg) Rank $me]  failure detected by watchdog at work \
sequence id: 512 PG status: last enqueued work: 512, last completed work: 511" >&2
    sleep 1
    exit 134 ;;
exception)
    say "Traceback (most recent call last):" "  File \"train.py\", line 7, in <module>" \
        "    raise ValueError(\"no such optimizer\")" "ValueError: no such optimizer"
    sleep 1
    exit 1 ;;
corrupt)
    say "Traceback (most recent call last):" "  File \"train.py\", line 31, in <module>" \
        "    load_file(\"model.safetensors\")" \
        "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer"
    sleep 1
    exit 1 ;;
esac
exit 0
'
exec srun --label --kill-on-bad-exit=1 sh -c "$rank" rank "$1"
"""

_RANK = re.compile(rf"^(?:\d+: )?{MARK} run (\d{{1,4}}) rank (\d{{1,6}}) on (\S{{1,255}})$", re.MULTILINE)
_TOLD = re.compile(rf"^{MARK} told checkpoint=(.{{0,4096}})$", re.MULTILINE)


class Said(NamedTuple):
    """What the job's log tells: {run: {rank: node}}, and the checkpoint that the restart was told; None: no word yet.

    `failed_on`: the node whose rank was the one to fail.
    """

    nodes: dict[int, dict[int, str]]
    checkpoint: str | None = None

    def of_run(self, run: int) -> tuple[str, ...]:
        return tuple(sorted(set(self.nodes.get(run, {}).values())))

    @property
    def failed_on(self) -> str:
        first = self.nodes.get(0, {})
        return first[max(first)] if first else ""


def said(log: str) -> Said:
    """What the job wrote into its log."""
    nodes: dict[int, dict[int, str]] = {}
    for run, rank, node in _RANK.findall(log):
        nodes.setdefault(int(run), {})[int(rank)] = node
    told = _TOLD.findall(log)
    return Said(nodes, told[-1] if told else None)


def checkpoint_files(step: int) -> dict[str, bytes]:
    """{name: content} of a whole checkpoint as Hugging Face's Trainer writes it, of one number."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    state = {"global_step": step, "epoch": 0.0, "max_steps": 100, "log_history": []}
    return {
        "config.json": b"{}\n",
        "model.safetensors": struct.pack("<Q", len(header)) + header + struct.pack("<f", float(step)),
        "trainer_state.json": json.dumps(state).encode(),
    }
