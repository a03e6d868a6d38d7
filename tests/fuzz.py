"""`python -m tests.fuzz SECONDS [FOLDER]`: coverage-guided attacks on scanner, frames and judgement (atheris).

Starts from the corpus' logs. An input that breaks something is written to FOLDER and named in the output; made
small, it belongs into tests/unit/test_hostile.py.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

try:
    import atheris
except ImportError:
    sys.exit("fuzz: atheris is not installed: pip install atheris (it has wheels for x86_64)")

with atheris.instrument_imports(include=["slurm_recovery"]):
    from tests.hostile import judge_log, read_kernel_log, read_lines

LONGEST = 64 << 10


def one(data: bytes) -> None:
    shape, log = (data[0], data[1:]) if data else (0, b"")
    judge_log(log, shape)
    read_kernel_log(log)
    read_lines(log)


def main() -> None:
    seconds, folder = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp(prefix="fuzz.")
    seeds = Path(folder, "seeds")
    seeds.mkdir(parents=True, exist_ok=True)
    for log in (Path(__file__).parent / "corpus").rglob("*.log"):
        Path(seeds, f"{log.parent.name}.{log.name}").write_bytes(b"\0" + log.read_bytes()[: LONGEST - 1])
    limits = [f"-max_total_time={seconds}", f"-max_len={LONGEST}", "-timeout=20", "-rss_limit_mb=2048"]
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={folder}/", str(seeds)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
