"""What a look into a folder of checkpoints finds. Times are seconds since the epoch. Standard library only."""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """A site's own kind of checkpoint: `CheckpointFormat=` in recovery.conf.

    `pattern` is a name with `{step}` and `*` in it; `marker` the file that is written last ("" for none): a name in
    the checkpoint's folder, or, beginning with a dot, what is added to the checkpoint's own name.
    """

    name: str
    pattern: str
    marker: str = ""


class Saved(NamedTuple):
    """A complete checkpoint: what a framework would be told to load."""

    path: str
    format: str
    step: int | None
    began: float | None  # when the first of its files was begun, as far as that can be told
    time: float  # when the last of its files was written


class Passed(NamedTuple):
    """One that is newer than the newest complete one and cannot be started from."""

    path: str
    why: str


class Found(NamedTuple):
    """`gaps`: what could not be looked at, and why, as sentences: then `newest` may not be the newest."""

    folder: str
    newest: Saved | None = None
    earlier: tuple[Saved, ...] = ()  # complete ones before it, newest first
    passed: tuple[Passed, ...] = ()
    gaps: tuple[str, ...] = ()
