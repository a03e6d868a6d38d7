"""Which checkpoints there are under a folder, by their names, and in which order they are to be judged.

Folders are read as streams. What is opened are folders whose names do not tell whether they are checkpoints or hold
some: of a row of names that differ in their numbers alone, a few. Bounded in names, folders and levels; what was left
out is a gap. Judges nothing.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from slurm_recovery.checkpoint import formats, names
from slurm_recovery.checkpoint.found import Rule
from slurm_recovery.checkpoint.look import Broken, Entry, Late, Look, Unseen

MOST_NAMES = 2_000_000  # in all folders
MOST_FOLDERS = 2_000  # that are opened to see what they hold
MOST_KEPT = 50_000  # checkpoints, by name alone
MOST_TIMED = 10_000  # those without a step are ordered by their times
MOST_ASKED = 8  # files without a step in their name that are asked for it
PEEKED = 3  # folders of a row that are opened to see whether the row is one of checkpoints
DEPTH = 2  # levels of folders that may hold checkpoints: runs, and what is in a run
# Folders that Lightning and scripts put between a run and its checkpoints: these cost no level.
BETWEEN = ("lightning_logs", "checkpoints", "checkpoint", "ckpt", "ckpts", "weights")


class Candidate(NamedTuple):
    """Something whose name, or whose content, is a checkpoint's."""

    path: str
    step: int | None
    is_folder: bool
    rule: Rule | None = None
    why: str = ""  # why it need not be judged


class Gathering:
    """Candidates by their names, from a folder and the levels below it."""

    def __init__(self, look: Look, rules: Sequence[Rule]) -> None:
        self.look, self.rules = look, rules
        self.candidates: list[Candidate] = []
        self.gaps: list[str] = []
        self.names = self.folders = 0

    def gap(self, why: str) -> None:
        if why not in self.gaps:
            self.gaps.append(why)

    def gather(self, root: str) -> None:
        try:
            self._level(root, None, DEPTH)
        except Late as late:
            self.gap(str(late))
        except (Broken, Unseen) as why:
            self.gap(f"the folder: {why}")

    def _level(self, folder: str, step: int | None, depth: int) -> None:
        """A folder that may be a checkpoint, hold some, or hold folders that do."""
        rows: dict[str, list[Entry]] = {}
        parts: dict[str, Entry] = {}
        files: list[str] = []
        start = len(self.candidates)
        for entry in self._entries(folder):
            if len(parts) < 1000 and any(row.is_part(entry.name, entry.is_folder) for row in formats.FOLDERS):
                parts[entry.name] = entry
            if len(files) < 1000 and not entry.is_folder and names.is_file(entry.name):
                files.append(entry.name)
            if not self._take(entry) and entry.is_folder:
                rows.setdefault(names.shape_of(entry.name), []).append(entry)
        has_folders = any(one.is_folder for one in self.candidates[start:])
        if _is_one(folder, parts, files) or (parts and not has_folders and formats.of_folder(folder, parts)):
            del self.candidates[start:]
            self._add(Candidate(folder, names.step_of(os.path.basename(folder)) if step is None else step, True))
            return
        for entries in rows.values():
            self._row(entries, depth)

    def _entries(self, folder: str) -> Iterator[Entry]:
        self.folders += 1
        if self.folders > MOST_FOLDERS:
            self.gap(f"more than {MOST_FOLDERS} folders")
            return
        for entry in self.look.entries(folder):
            self.names += 1
            if self.names > MOST_NAMES:
                self.gap(f"more than {MOST_NAMES} names")
                return
            yield entry

    def _take(self, entry: Entry) -> bool:
        """Whether the name alone makes it a candidate, or nothing at all."""
        name = entry.name
        for rule in self.rules:
            is_match, step = names.matches(rule, name)
            if is_match and not (rule.marker.startswith(".") and name.endswith(rule.marker)):
                self._add(Candidate(entry.path, step, entry.is_folder, rule))
                return True
        if entry.is_link:
            return self._link(entry)
        if names.is_unfinished(name):
            if names.number_of(name) is not None:
                why = "unfinished: it has its temporary name still"
                self._add(Candidate(entry.path, _unfinished_step(name), entry.is_folder, why=why))
            return True
        if entry.is_folder and (names.is_checkpoints(name) or name.endswith(".ckpt")):
            self._add(Candidate(entry.path, names.step_of(name), True))
            return True
        if not entry.is_folder and names.is_file(name):
            self._add(Candidate(entry.path, names.step_of(name), False))
        return not entry.is_folder

    def _link(self, entry: Entry) -> bool:
        """A link to something in the folder is that thing again; one that leads out is not followed."""
        name = entry.name
        real = os.path.realpath(entry.path)
        is_inside = real.startswith(self.look.root.rstrip("/") + "/")
        if not is_inside and (names.is_checkpoints(name) or names.is_file(name)):
            why = "a link that leads out of the folder"
            self._add(Candidate(entry.path, names.step_of(name), False, why=why))
        return True

    def _row(self, entries: list[Entry], depth: int) -> None:
        """Folders whose names differ in their numbers alone: checkpoints if one of the newest is, else runs."""
        entries.sort(key=lambda entry: (names.number_of(entry.name) or 0, entry.name), reverse=True)
        numbered = names.number_of(entries[0].name) is not None
        if numbered and len(entries) > 1 and any(map(self._is_checkpoint, entries[:PEEKED])):
            for entry in entries:
                self._add(Candidate(entry.path, names.number_of(entry.name), True))
            return
        for entry in entries:
            free = names.shape_of(entry.name).strip("_#").lower() in (*BETWEEN, "version")
            if depth > 0 or free:
                self._below(entry, depth if free else depth - 1)

    def _below(self, entry: Entry, depth: int) -> None:
        try:
            self._level(entry.path, names.number_of(entry.name), min(depth, DEPTH))
        except Late:
            raise
        except (Broken, Unseen) as why:
            self.gap(str(why))

    def _is_checkpoint(self, entry: Entry) -> bool:
        self.folders += 1
        try:
            inside = self.look.folder(entry.path)
            row = formats.of_folder(entry.path, inside)
            return row is not None and not (row is formats.PLAIN and _has_steps(entry.name, inside))
        except Late:
            raise
        except (Broken, Unseen):
            return False

    def _add(self, candidate: Candidate) -> None:
        self.candidates.append(candidate)
        if len(self.candidates) > 2 * MOST_KEPT:
            self.gap(f"more than {MOST_KEPT} checkpoints: only those with the greatest steps were looked at")
            self.candidates.sort(key=_rank, reverse=True)
            del self.candidates[MOST_KEPT:]


def _has_steps(folder: str, files: Iterable[str]) -> bool:
    """Whether the files in a folder are checkpoints each, as run_3/ckpt_100.pt, and not parts, as 0500/model_1.pt."""
    return any(names.has_step(name) or (not folder.isdigit() and names.step_of(name) is not None) for name in files)


def _is_one(folder: str, parts: dict[str, Entry], files: list[str]) -> bool:
    """Whether a folder that bears a checkpoint's name has a checkpoint's content too."""
    name = os.path.basename(folder)
    if name.endswith(".ckpt"):
        return True
    return names.is_checkpoints(name) and bool(parts or (files and not _has_steps(name, files)))


def _unfinished_step(name: str) -> int | None:
    """The step of a temporary name, without what the writer added to it."""
    stem = name.partition(".orbax")[0] if ".orbax" in name else name
    return names.step_of(stem) if names.step_of(stem) is not None else names.number_of(stem)


def _rank(candidate: Candidate) -> int:
    return -1 if candidate.step is None else candidate.step


def ordered(candidates: Iterable[Candidate], gaps: list[str]) -> Iterator[Candidate]:
    """The greatest step first; of equal steps, and of those without one, the latest first."""
    ranked = sorted(candidates, key=_rank, reverse=True)
    for _, group in itertools.groupby(ranked, key=_rank):
        same = list(group)
        if len(same) > MOST_TIMED:
            gaps.append(f"more than {MOST_TIMED} checkpoints without a step: only some were looked at")
            del same[MOST_TIMED:]
        yield from sorted(same, key=_time, reverse=True) if len(same) > 1 else same


def stepped(look: Look, candidates: list[Candidate]) -> Iterator[Candidate]:
    """Lightning's last.ckpt tells its step inside; which is looked up for a few."""
    asked = 0
    for one in candidates:
        if one.step is None and not one.why and not one.rule and one.path.endswith(".ckpt") and not one.is_folder:
            asked += 1
            if asked <= MOST_ASKED:
                yield one._replace(step=_inside(look, one.path))
                continue
        yield one


def _inside(look: Look, path: str) -> int | None:
    try:
        return formats.format_of_file(look, path)[1]
    except (Broken, Unseen):
        return None


def _time(candidate: Candidate) -> tuple[bool, int]:
    """At the same step, a name with the step in it goes before one that is written over, as last.ckpt."""
    has_step = names.number_of(os.path.basename(candidate.path)) is not None
    try:
        return has_step and candidate.step is not None, os.lstat(candidate.path).st_mtime_ns
    except OSError:
        return False, 0
