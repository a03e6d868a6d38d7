"""What a job's owner says about its recovery: read from a comment and from the plugin's variables."""

from __future__ import annotations

import random
import time

import pytest

from slurm_recovery.job_options import NAMES, SPANK, JobOptions, allowed, read_options


def test_nothing_said_is_nothing() -> None:
    assert read_options("", {}) == JobOptions()
    assert read_options("team=x, checkpoint=/data", {"SPANK_OTHER": "1"}) == JobOptions()


def test_a_comment_says_all_of_it() -> None:
    said = read_options(
        "team=x; recovery=act,checkpoint=/ckpt,max-requeues=5,log=/logs/%x.log,min-nodes=4:2; more=1", {}
    )
    assert said == JobOptions("act", "/ckpt", 5, "/logs/%x.log", 4, 2)


def test_the_plugin_says_all_of_it() -> None:
    spank = dict(zip(SPANK.values(), ("off", "/ckpt dir", "0", "/logs/a,b", "3"), strict=True))
    assert read_options("", spank) == JobOptions("off", "/ckpt dir", 0, "/logs/a,b", 3, 1)


def test_the_plugin_goes_before_the_comment_but_the_lowest_mode_counts() -> None:
    comment = "recovery=observe,checkpoint=/by-comment,max-requeues=1"
    said = read_options(comment, {"SPANK_RECOVERY": "act", "SPANK_RECOVERY_CHECKPOINT": "/by-plugin"})
    assert (said.mode, said.checkpoint, said.max_requeues) == ("observe", "/by-plugin", 1)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("checkpoint=relative", "checkpoint=relative: not an absolute path"),
        ("max-requeues=many", "max-requeues=many: not a number from 0 to 1000"),
        ("max-requeues=1001", "max-requeues=1001: not a number from 0 to 1000"),
        ("max-requeues=\N{ARABIC-INDIC DIGIT THREE}", "not a number from 0 to 1000"),
        ("min-nodes=0", "min-nodes=0: not MIN or MIN:STEP"),
        ("min-nodes=4:0", "min-nodes=4:0: not MIN or MIN:STEP"),
        ("min-nodes=-1", "min-nodes=-1: not MIN or MIN:STEP"),
        ("chekpoint=/x", "chekpoint=/x: unknown; known are checkpoint, max-requeues, log, min-nodes"),
    ],
)
def test_what_is_not_understood_is_told_and_counts_as_not_said(word: str, told: str) -> None:
    said = read_options(f"recovery=act,{word}", {})
    assert told in said.refused[0]
    assert said._replace(refused=()) == JobOptions("act")


def test_a_mode_that_is_not_understood_means_observe() -> None:
    said = read_options("recovery=never-ever", {})
    assert said.mode == "observe"
    assert "taken as observe" in said.refused[0]


@pytest.mark.parametrize("name", NAMES)
def test_what_the_site_does_not_allow_is_taken_away_and_told(name: str) -> None:
    said = read_options("recovery=off,checkpoint=/c,max-requeues=0,log=/l,min-nodes=4:2", {})
    kept = allowed(said, [other for other in NAMES if other != name])
    assert [told.partition(":")[0] for told in kept.refused] == [name]
    everything = allowed(said, NAMES)
    assert everything == said
    assert sum(one != other for one, other in zip(kept, said, strict=True)) == (3 if name == "min-nodes" else 2)
    assert allowed(said, ())._replace(refused=()) == JobOptions()


def test_text_of_an_attacker_is_read_at_once_and_never_fails() -> None:
    chance = random.Random(5)
    letters = "recovery=:,;-_/ \0\n\x1b\N{RIGHT-TO-LEFT OVERRIDE}%19ckpointmaxqusl" + "\udc80"
    begin = time.process_time()
    for _ in range(300):
        text = "".join(chance.choice(letters) for _ in range(4000))
        said = read_options(f"recovery={text}", {"SPANK_RECOVERY_MIN_NODES": text, "SPANK_RECOVERY_CHECKPOINT": text})
        assert len(said.refused) <= 8
        assert all(told.isprintable() and len(told) < 300 for told in said.refused)
    assert time.process_time() - begin < 5
