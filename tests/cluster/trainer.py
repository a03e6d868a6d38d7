"""A small data-parallel training job: steps, checkpoints, and a chosen node that fails as real ones do.

Run by srun, one task a rank; standard library only. The lines are those that PyTorch and NCCL print. It
resumes from its newest checkpoint. `--fail-node` breaks that node in the job's first attempt.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

ECC = """\
[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "train.py", line 112, in <module>
[rank{rank}]:     loss.backward()
[rank{rank}]: RuntimeError: CUDA error: uncorrectable ECC error encountered
[rank{rank}]: CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
[rank{rank}]: For debugging consider passing CUDA_LAUNCH_BLOCKING=1
"""  # noqa: E501
PEER = """\
{node}:{pid}:{pid} [0] NCCL INFO [Service thread] Connection closed by localRank 0
[rank{rank}]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2027, remote process exited or there was a network error, NCCL version 2.21.5
[rank{rank}]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
[rank{rank}]: socketProgress: Connection closed by remote peer {peer}<50253>
"""  # noqa: E501


def newest(folder: Path) -> int:
    """The step of the newest checkpoint, 0 where there is none."""
    return max((int(path.stem.removeprefix("step")) for path in folder.glob("step*.json")), default=0)


def save(folder: Path, step: int) -> None:
    fresh = folder / f".step{step}.tmp"
    fresh.write_text(json.dumps({"step": step}))
    fresh.replace(folder / f"step{step}.json")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--every", type=int, default=3, help="steps between checkpoints")
    parser.add_argument("--seconds", type=float, default=0.2, help="time of a step")
    parser.add_argument("--fail-node", default="")
    parser.add_argument("--fail-step", type=int, default=5)
    options = parser.parse_args()
    rank, node = int(os.environ["SLURM_PROCID"]), os.environ["SLURMD_NODENAME"]
    first = os.environ.get("SLURM_RESTART_COUNT", "0") == "0"
    options.folder.mkdir(parents=True, exist_ok=True)
    begin = newest(options.folder)
    if rank == 0:
        print(f"resuming from checkpoint step {begin}" if begin else "starting from scratch", flush=True)
    for step in range(begin + 1, options.steps + 1):
        time.sleep(options.seconds)
        if options.fail_node and first and step == options.fail_step:
            failed = node == options.fail_node
            time.sleep(0 if failed else 0.5)
            text = ECC if failed else PEER
            sys.stderr.write(text.format(rank=rank, node=node, pid=os.getpid(), peer=options.fail_node))
            return 1
        if rank == 0:
            print(f"step {step} | loss {4.0 / step:.4f}", flush=True)
            if step % options.every == 0 or step == options.steps:
                save(options.folder, step)
    if rank == 0:
        print("training complete", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
