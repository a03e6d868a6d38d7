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
from slurm_recovery.evidence.pieces import Unpacked, read_pieces, side_by_side
from slurm_recovery.records import Attempt, Evidence, Gap, Observation, Source

MOST_BYTES = 2 << 30  # unpacked from a packed log


class CaseError(ValueError):
    """A case that cannot be read. One line: where, what, hint."""


def read_case(folder: Path, signatures: Sequence[Signature] | None = None) -> Observation:
    """What was known of the case's job; the package's signatures are used unless others are given.

    Raises CaseError; a log that is missing is a gap, not an error.
    """
    signatures = load_signatures() if signatures is None else signatures
    attempt = _attempt(folder)
    evidence, gaps = _scanned(folder / "job.log", signatures, Source.JOB_LOG)
    for path in sorted(folder.glob("dmesg.*.log")):
        node = path.name.removeprefix("dmesg.").removesuffix(".log")
        found, missing = _scanned(path, signatures, Source.KERNEL_LOG, node)
        evidence, gaps = evidence + found, gaps + missing
    return Observation(attempt=attempt, evidence=evidence, gaps=gaps, log_path=str(folder / "job.log"))


def _scanned(
    path: Path, signatures: Sequence[Signature], source: Source, node: str | None = None
) -> tuple[tuple[Evidence, ...], tuple[Gap, ...]]:
    """What the file says; a file that cannot be read, or not whole, is a gap."""
    try:
        if not path.is_file():
            return (), (Gap(source=source, what=path.name, why="no such regular file"),)
        with path.open("rb", buffering=0) as stream:
            text = Unpacked(read_pieces(stream), MOST_BYTES)
            found = scan(text, signatures=signatures, source=source, path=path.name, node=node, each=side_by_side)
    except OSError as error:
        return (), (Gap(source=source, what=path.name, why=error.strerror or str(error)),)
    return found, (Gap(source=source, what=path.name, why=text.trouble),) if text.trouble else ()


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
