"""What of a job's evidence goes on record: bounded in bytes, the causes first."""

from __future__ import annotations

import json

from slurm_recovery.observe import snapshot, within
from slurm_recovery.records import Evidence, Role, Source, Trust


def evidence(role: Role, line: str, place: str = "log:1") -> Evidence:
    return Evidence(
        source=Source.JOB_LOG, trust=Trust.USER, signature="x", reason="unknown", role=role, line=line, place=place
    )


def test_causes_are_kept_before_consequences_and_in_their_order() -> None:
    many = [evidence(Role.SECONDARY, "s" * 400)] * 50 + [evidence(Role.ROOT, "first"), evidence(Role.ROOT, "second")]
    kept = within(many, 2000)
    assert [one.line for one in kept if one.role is Role.ROOT] == ["first", "second"]
    assert 2 < len(kept) < 10
    assert within(many[:3], 100_000) == tuple(many[:3])


def test_a_hostile_text_takes_no_more_room() -> None:
    hostile = [evidence(Role.ROOT, "\x01" * 500, "\U0001f600" * 200)] * 1000
    kept = within(hostile, 256 << 10)
    assert len(json.dumps([one.model_dump(mode="json") for one in kept])) < 512 << 10


def test_the_snapshot_is_bounded_as_it_is_stored() -> None:
    assert snapshot(b"x" * 100, 10) == "x" * 10
    assert snapshot(b"abc", 0) == ""
    assert "\0" not in snapshot(b"a\0b", 10)
    assert len(json.dumps(snapshot(b"\x01" * 100_000, 65536))) <= 2 * 65536 + 2
    assert len(json.dumps(snapshot("\U0001f600".encode() * 100_000, 65536))) <= 2 * 65536 + 12
