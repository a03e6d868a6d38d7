"""Cases of Lightning, Accelerate, Open MPI and JAX."""

from __future__ import annotations

from tests.reallogs import mishaps
from tests.reallogs.labels import crashed, expect, killed, raised
from tests.reallogs.run import Case

MPI = ("Open MPI",)
MPI4PY = ("Open MPI", "mpi4py")
STENCIL = "/opt/train/stencil "
AS_ROOT = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n"
JAX = ("jax", "jaxlib")
JAX_PYTHON = "/opt/jax/bin/python -u /opt/train/jax_train.py"


def mpirun(program: str, options: str = "") -> str:
    return f"{AS_ROOT}mpirun {options} {program}"


LIGHTNING = "/opt/torch/bin/python -u /opt/train/lightning_train.py"
ACCELERATE = "/opt/torch/bin/accelerate launch --cpu --num_processes=1 /opt/train/accelerate_train.py "
TORCHRUN = (
    "export ACCELERATE_USE_CPU=true\nsrun {srun}--ntasks-per-node=1 /opt/torch/bin/torchrun --nnodes=$SLURM_NNODES "
    "--nproc-per-node=2 --rdzv-id=$SLURM_JOB_ID --rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:29500 "
    "/opt/train/accelerate_train.py "
)

TRAINER_CASES = (
    Case("lightning-srun-label-exception", f"srun --label {LIGHTNING} exception 2", raised(2),
         "Rank 2 multiplies matrices that do not fit.", ("lightning", "torch")),
    Case("lightning-srun-killed", f"srun {LIGHTNING} kill 1", killed(1, "@1"),
         "srun says that task 1 was killed; the others lost their peer.", ("lightning", "torch")),
    Case("accelerate-launch-exception", f"srun --ntasks=1 {ACCELERATE} exception 0", raised(0, root_ranks=[None]),
         "The only process has labels that are out of bounds.", ("accelerate", "torch"), nodes=1, tasks=1),
    Case("accelerate-torchrun-exception", TORCHRUN.format(srun="") + "exception 3", raised(3),
         "Rank 3 has labels that are out of bounds.", ("accelerate", "torch"), tasks=1),
    Case("accelerate-torchrun-label-killed", TORCHRUN.format(srun="--label ") + "kill 2", killed(2, "@2"),
         "Rank 2 got SIGKILL and nothing says from whom.", ("accelerate", "torch"), tasks=1),
)  # fmt: skip

MPI4PY_RUN = "/opt/jax/bin/python -u {mpi4py}/opt/train/mpi_train.py {program}"

MPI_CASES = (
    Case("mpirun-abort", mpirun(STENCIL + "abort 3"),
         expect("application", "mpi_abort", "stop", 3), "Rank 3 called MPI_Abort after its own fatal message.", MPI),
    Case("mpirun-segfault",
         mpirun(STENCIL + "segv 2"), crashed(2), "Rank 2 crashed in its own code; Open MPI shows the stack.", MPI),
    Case("mpirun-killed", mpirun(STENCIL + "kill 1"), killed(1, "@1"),
         "mpirun says that rank 1 exited on signal 9, and nothing says from whom.", MPI),
    Case("mpirun-tagged-killed", mpirun(STENCIL + "kill 3", "--tag-output"), killed(3, "@3"),
         "mpirun says that rank 3 exited on signal 9, and nothing says from whom.", MPI),
    Case("mpirun-exit-code", mpirun(STENCIL + "exit 2"),
         expect("unknown", "unknown", "requeue", 2, actions=["stop"], categories=["application"],
                reasons=["python_exception", "script_error", "mpi_abort"]),
         "Rank 2 left with exit code 3 and no word.", MPI),
    Case("mpirun-truncated-message", mpirun(STENCIL + "truncate 1"),
         expect("application", "mpi_abort", "stop", 2, reasons=["collective_mismatch"], root_ranks=[1, None]),
         "A message of rank 1 is longer than the buffer of rank 2, which aborts: a bug of the program.", MPI),
    Case("mpirun-tagged-exception",
         mpirun(MPI4PY_RUN.format(mpi4py="-m mpi4py ", program="exception 2"), "--tag-output"),
         raised(2, reasons=["mpi_abort"]), "Rank 2 raised, and mpi4py aborted the rest.", MPI4PY),
    Case("mpirun-exception-then-hang",
         mpirun(MPI4PY_RUN.format(mpi4py="", program="exception 1")),
         raised(1, reasons=["time_limit"], categories=["user_or_scheduler"], root_ranks=[None]),
         "Rank 1 raised; the others waited for it until the time limit.", MPI4PY, options=("--time=1",)),
    Case("mpirun-daemon-lost", mpirun(STENCIL + "none 0 0 2000"),
         expect("node", "node_fail", "requeue_exclude", None, ("gn2",), actions=["requeue"],
                reasons=["node_unreachable", "launch_failed"], categories=["interconnect"]),
         "mpirun lost its daemon on gn2; Slurm says no more.", MPI, during=mishaps.kill_daemon),
    Case("mpirun-program-missing-one-node", mpirun(STENCIL + "none"),
         expect("node", "mount_missing", "requeue_exclude", None, ("gn2",),
                reasons=["launch_failed", "command_not_found"], categories=["software_env"], actions=["stop"],
                suspect_nodes=[[]], root_ranks=[2]),
         "mpirun cannot find the program on gn2, and says so of no other node.", MPI,
         before=mishaps.hide_programs, after=mishaps.show_programs),
    Case("mpirun-not-enough-slots", mpirun(STENCIL + "none", "-np 64"),
         expect("user_or_scheduler", "slurm_config_error", "stop", None, reasons=["bad_arguments", "script_error"],
                categories=["application"]),
         "mpirun is asked for more processes than the job has slots.", MPI),
    Case("srun-pmix-abort", "srun --mpi=pmix /opt/train/stencil abort 2",
         expect("application", "mpi_abort", "stop", 2), "Rank 2 called MPI_Abort after its own fatal message.", MPI),
    Case("srun-pmix-label-segfault", "srun --mpi=pmix --label /opt/train/stencil segv 1", crashed(1),
         "Task 1 crashed in its own code; Open MPI shows the stack.", MPI, faulty="@1"),
    Case("srun-pmix-label-killed", "srun --mpi=pmix --label /opt/train/stencil kill 3", killed(3, "@3"),
         "srun says that task 3 was killed.", MPI),
)  # fmt: skip

JAX_CASES = (
    Case("jax-srun-label-killed", f"srun --label {JAX_PYTHON} --fail kill --process 1", killed(1, "@1"),
         "srun says that task 1 was killed; JAX ends the others and names it.", JAX, tasks=1, nodes=3),
    Case("jax-srun-coordinator-killed", f"srun {JAX_PYTHON} --fail kill --process 0", killed(0, "@0"),
         "The coordinator's process was killed; the others lost it.", JAX),
    Case("jax-srun-label-exception", f"srun --label {JAX_PYTHON} --fail exception --process 2", raised(2),
         "Process 2 multiplies matrices that do not fit; JAX ends the others.", JAX),
    Case("jax-srun-one-never-comes", f"srun --kill-on-bad-exit=1 {JAX_PYTHON} --fail absent --process 3 --start 15",
         expect("interconnect", "rendezvous_timeout", "requeue", None, categories=["node", "unknown"], root_ranks=[3],
                actions=["requeue_exclude"], suspect_nodes=[["gn2"]]),
         "Three of four processes wait for the last in vain.", JAX),
    Case("jax-srun-label-frozen", f"srun --label --kill-on-bad-exit=1 {JAX_PYTHON} --fail freeze --process 3",
         expect("unknown", "hang", "requeue", 3, categories=["interconnect", "node", "application"],
                reasons=["nccl_timeout", "collective_timeout", "node_unreachable", "node_fail", "killed_unknown"],
                actions=["requeue_exclude"], suspect_nodes=[["gn2"]], root_ranks=[None]),
         "Task 3 sent no more heartbeats; why is not said.", JAX),
    Case("jax-srun-label-cable-pulled", f"srun --label --kill-on-bad-exit=1 {JAX_PYTHON} --steps 2000",
         expect("node", "node_unreachable", "requeue_exclude", None, ("gn2",), root_ranks=[2, 3],
                reasons=["nccl_timeout", "collective_timeout", "hang", "node_fail", "gloo_connection_error"],
                categories=["interconnect", "unknown"], actions=["requeue"], suspect_nodes=[[]]),
         "Both tasks on gn2 fell silent at once.", JAX, during=mishaps.pull_cable, after=mishaps.plug_in),
    Case("jax-srun-nan", f"srun {JAX_PYTHON} --fail nan --process 1",
         expect("application", "nan_loss", "stop", 1, reasons=["python_exception"], root_ranks=[None]),
         "jax_debug_nans found a value that is not a number.", JAX),
    Case("jax-srun-healthy", f"srun --label {JAX_PYTHON}", expect("healthy", "completed", "none"),
         "All went well, whatever JAX prints.", JAX),
)  # fmt: skip
