"""Reads a case folder: a failed job kept as files, for `srecover replay` and for tests.

Owns the layout: `case.json` (its table "job" holds the attempt's fields), `job.log`, `dmesg.<node>.log`.
The expected answer that a case may also hold is not read here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from slurm_recovery.config.signature_files import load_signatures
from slurm_recovery.detect.scan import scan
from slurm_recovery.detect.signature import Signature
from slurm_recovery.records import Attempt, Evidence, Gap, Observation, Source

MOST_BYTES = 64 * 1024 * 1024
TAIL_CHARACTERS = 4000


class CaseError(ValueError):
    """A case that cannot be read. One line: where, what, hint."""


def read_case(folder: Path, signatures: Sequence[Signature] | None = None) -> Observation:
    """What was known of the case's job; the package's signatures are used unless others are given.

    Raises CaseError; a log that is missing is a gap, not an error.
    """
    signatures = load_signatures() if signatures is None else signatures
    attempt = _attempt(folder)
    data, gaps = _bytes(folder / "job.log")
    evidence = scan(data, signatures=signatures, source=Source.JOB_LOG, path="job.log")
    for path in sorted(folder.glob("dmesg.*.log")):
        found, gap = _kernel(path, signatures)
        evidence, gaps = evidence + found, gaps + gap
    return Observation(
        attempt=attempt,
        evidence=evidence,
        gaps=gaps,
        log_path=str(folder / "job.log"),
        log_tail=data[-TAIL_CHARACTERS:].decode(errors="replace"),
        log_end=len(data),
    )


def _kernel(path: Path, signatures: Sequence[Signature]) -> tuple[tuple[Evidence, ...], tuple[Gap, ...]]:
    node = path.name.removeprefix("dmesg.").removesuffix(".log")
    data, gaps = _bytes(path, Source.KERNEL_LOG)
    return scan(data, signatures=signatures, source=Source.KERNEL_LOG, path=path.name, node=node), gaps


def _bytes(path: Path, source: Source = Source.JOB_LOG) -> tuple[bytes, tuple[Gap, ...]]:
    """The file's last MOST_BYTES; a file that cannot be read is a gap."""
    try:
        if not path.is_file():
            return b"", (Gap(source=source, what=path.name, why="no such regular file"),)
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - MOST_BYTES))
            return stream.read(MOST_BYTES), ()
    except OSError as error:
        return b"", (Gap(source=source, what=path.name, why=error.strerror or str(error)),)


def _attempt(folder: Path) -> Attempt:
    path = folder / "case.json"
    case = _json(path)
    job = case.get("job") if isinstance(case, dict) else None
    if not isinstance(job, dict):
        raise CaseError(f'{path}: no table "job" (see tests/corpus for the layout)')
    try:
        return Attempt.model_validate({"cluster": "case", "job_id": 0, "name": folder.name, **job})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise CaseError(f"{path}: job.{field}: {first['msg']} (fields: records.Attempt)") from None


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CaseError(f"{path}: {error.strerror} (a case is a folder with case.json and job.log)") from None
    except (ValueError, RecursionError) as error:
        raise CaseError(f"{path}: not JSON: {' '.join(str(error).split())}") from None
