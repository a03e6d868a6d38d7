"""Every signature speaks for itself: its example is recognised through the scanner, its counterexample is not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.config.signature_files import load_signatures
from slurm_recovery.detect.scan import scan
from slurm_recovery.detect.signature import Signature, SignatureError, parse_signatures
from slurm_recovery.records import Evidence, Role, Source

SIGNATURES = load_signatures()

# Reasons that no line can prove by itself: Slurm's states, exit codes, or several lines together say them.
WITHOUT_A_LINE = {"completed", "killed_unknown", "gpu_missing", "cancelled_by_admin", "teardown_hang"}

ENTRY = """
[[signature]]
id = 'a'
reason = 'cuda_oom'
role = 'root'
literals = ['out of memory']
pattern = 'GPU out of memory'
source = 'a program'
example = 'GPU out of memory'
counterexample = 'CPU out of memory'
"""


def seen(line: str, signature: Signature) -> list[Evidence]:
    source = signature.log or Source.JOB_LOG
    return [
        found
        for found in scan(line.encode(), signatures=SIGNATURES, source=source, path="log")
        if found.signature == signature.id
    ]


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda signature: signature.id)
def test_the_example_is_recognised(signature: Signature) -> None:
    (found,) = seen(signature.example, signature)
    assert (found.reason, found.role) == (signature.reason, signature.role)


@pytest.mark.parametrize("signature", SIGNATURES, ids=lambda signature: signature.id)
def test_the_counterexample_is_not(signature: Signature) -> None:
    assert not seen(signature.counterexample, signature)


def test_every_reason_is_in_the_table() -> None:
    assert {signature.reason for signature in SIGNATURES} <= {*REASONS, ""}


def test_every_reason_has_a_line_or_is_known_to_have_none() -> None:
    assert set(REASONS) - {signature.reason for signature in SIGNATURES} == WITHOUT_A_LINE


def test_a_cause_has_a_reason() -> None:
    assert all(row.reason for row in SIGNATURES if row.role in (Role.ROOT, Role.CONDITIONAL))


def test_every_id_is_there_once() -> None:
    assert max(Counter(signature.id for signature in SIGNATURES).values()) == 1


def test_a_site_adds_and_replaces(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(ENTRY.replace("'a'", "'xid_79'") + ENTRY)
    rows = {row.id: row for row in load_signatures([tmp_path])}
    assert rows["xid_79"].reason == "cuda_oom"
    assert len(rows) == len(SIGNATURES) + 1


def test_one_file_may_not_name_an_id_twice(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(ENTRY + ENTRY)
    with pytest.raises(SignatureError, match=r"site.toml: a: named twice in one file \("):
        load_signatures([tmp_path])


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(SignatureError, match="not a folder"):
        load_signatures([tmp_path / "none"])


def test_a_file_that_is_not_text_is_said(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SignatureError, match="unreadable"):
        load_signatures([tmp_path])


BROKEN = [
    ("signature = 1", "signature: not a list of tables"),
    ("[other]\na = 1", "other: unknown table"),
    ("[[signature", "file: not TOML"),
    (ENTRY.replace("id = 'a'", ""), "entry 1: id: Field required"),
    (ENTRY + "colour = 'red'", "a: colour: Extra inputs"),
    (ENTRY.replace("'root'", "'cause'"), "a: role: Input should be"),
    (ENTRY.replace("'GPU out of memory'\nsource", "'GPU (out'\nsource"), "a: pattern: "),
    (ENTRY.replace("'GPU out of memory'\nsource", "'(?:GPU +)+out of memory'\nsource"), "a: pattern: a repeat inside"),
    (ENTRY.replace("['out of memory']", "['ou']"), "a: literals: too short"),
    (ENTRY.replace("['out of memory']", "[]"), "a: literals: too short or none"),
    (ENTRY.replace("['out of memory']", "['elsewhere']"), "a: example: not matched"),
    (ENTRY.replace("'CPU out of memory'", "'GPU out of memory'"), "a: counterexample: matched"),
]


@pytest.mark.parametrize(("text", "message"), BROKEN, ids=[message for _, message in BROKEN])
def test_a_bad_entry_is_one_line_with_a_hint(text: str, message: str) -> None:
    with pytest.raises(SignatureError) as raised:
        parse_signatures(text, "site.toml")
    said = str(raised.value)
    assert said.startswith(f"site.toml: {message}")
    assert said.endswith(")")
    assert "\n" not in said
