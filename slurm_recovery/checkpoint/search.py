"""The newest complete checkpoint under a folder, and the ones before it.

First the names are gathered, then checkpoints are judged from the greatest step down until enough are found: of ten
thousand, a few are opened. Bounded in names, folders, checkpoints judged, and by the deadline; what was left out is a
gap. Nothing is written, moved or deleted, and nothing is raised. Knows folders and order; formats.py knows the rest.
"""

from __future__ import annotations

import itertools
import math
import os
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from slurm_recovery.checkpoint import formats, names, weights
from slurm_recovery.checkpoint.birth import born
from slurm_recovery.checkpoint.found import Found, Passed, Rule, Saved
from slurm_recovery.checkpoint.look import Broken, Changed, Entry, Late, Look, Unseen, printable

MOST_NAMES = 2_000_000  # in all folders
MOST_FOLDERS = 2_000  # that are opened to see what they hold
MOST_KEPT = 50_000  # checkpoints, by name alone
MOST_JUDGED = 1_000
MOST_TIMED = 10_000  # those without a step are ordered by their times
MOST_ASKED = 8  # files without a step in their name that are asked for it
MOST_PASSED = 32
MOST_GAPS = 16
# After which one complete checkpoint before the newest is enough: files and folders opened, and seconds of judging.
MOST_OPENED = 180
MOST_SECONDS = 2.0
PEEKED = 3  # folders of a row that are opened to see whether the row is one of checkpoints
LONGEST_WHY = 400
DEPTH = 2  # levels of folders that may hold checkpoints: runs, and what is in a run
# Folders that Lightning and scripts put between a run and its checkpoints: these cost no level.
BETWEEN = ("lightning_logs", "checkpoints", "checkpoint", "ckpt", "ckpts", "weights")
BORN_BEFORE = 6 * 3600  # seconds: an older birth is that of a file that was written over


class Candidate(NamedTuple):
    """Something whose name, or whose content, is a checkpoint's."""

    path: str
    step: int | None
    is_folder: bool
    rule: Rule | None = None
    why: str = ""  # why it need not be judged


def find(
    folder: str,
    rules: Sequence[Rule] = (),
    *,
    refused: Collection[str] = (),
    earlier: int = 8,
    deadline: float = math.inf,
) -> Found:
    """The newest complete checkpoint under `folder`. `deadline`: of time.monotonic(), in seconds."""
    try:
        return _find(folder, rules, refused, earlier, deadline)
    except Exception as error:  # noqa: BLE001 - a look into a stranger's folder never ends its caller
        return Found(folder, gaps=(f"the folder could not be looked at: {type(error).__name__}",))


def judge(path: str, rules: Sequence[Rule] = (), *, deadline: float = math.inf) -> Saved | Passed:
    """One checkpoint, by its path."""
    try:
        path = os.path.abspath(path)
        # Links may lead to the checkpoints beside it, and so may the checkpoint itself.
        look = Look(os.path.realpath(os.path.dirname(path)), deadline)
        mode = os.stat(path).st_mode
        rule = next((rule for rule in rules if names.matches(rule, os.path.basename(path))[0]), None)
        candidate = Candidate(path, names.step_of(os.path.basename(path)), stat.S_ISDIR(mode), rule)
        return _judged(look, candidate, _safe_root(look, path))
    except Unseen as why:
        return Passed(_named(path), printable(str(why), LONGEST_WHY))
    except OSError as error:
        return Passed(_named(path), f"it cannot be looked at: {error.strerror}")
    except Exception as error:  # noqa: BLE001 - as above
        return Passed(_named(path), f"it cannot be looked at: {type(error).__name__}")


def _safe_root(look: Look, path: str) -> str:
    """A checkpoint that is itself a link is its owner's choice: then what it leads to is the folder."""
    if os.path.islink(path):
        real = os.path.realpath(path)
        look.root = os.path.dirname(real)
        return real
    return path


def _find(folder: str, rules: Sequence[Rule], refused: Collection[str], earlier: int, deadline: float) -> Found:
    why = names.is_told(folder)
    root = os.path.realpath(folder)
    if why or not os.path.isabs(folder):
        return Found(folder, gaps=(why or "the folder's path is not absolute",))
    look = Look(root, deadline)
    gathering = _Gathering(look, rules)
    gathering.gather(root)
    candidates = _ordered(_stepped(look, gathering.candidates), gathering.gaps)
    harvest = _Harvest(folder, root, refused, earlier)
    for count, candidate in enumerate(candidates):
        if count >= MOST_JUDGED:
            gathering.gap(f"more than {MOST_JUDGED} checkpoints to judge")
            break
        before = look.opened
        try:
            look.in_time()
            harvest.take(candidate, _verdict(look, candidate, harvest))
        except Late as late:
            gathering.gap(str(late))
            break
        except Unseen as unseen:
            harvest.take(candidate, Passed(candidate.path, printable(str(unseen), LONGEST_WHY)))
            if not harvest.complete:
                gathering.gap(f"{printable(os.path.basename(candidate.path))}: {unseen}")
        if harvest.is_enough(look.opened, look.opened - before):
            break
    return harvest.found(gathering.gaps)


class _Harvest:
    """What has been found so far, from the newest down."""

    def __init__(self, folder: str, root: str, refused: Collection[str], earlier: int) -> None:
        self.folder, self.root, self.most = folder, root, earlier
        self.refused = {os.path.realpath(path) for path in itertools.islice(refused, 1000) if "\0" not in path}
        self.complete: list[Saved] = []
        self.passed: list[Passed] = []
        self.not_named = 0
        self.begun = time.monotonic()

    def outward(self, path: str) -> str:
        """The path as the caller wrote its folder: it may be a link that stays when its target moves."""
        return self.folder.rstrip("/") + path[len(self.root.rstrip("/")) :] if path != self.root else self.folder

    def take(self, candidate: Candidate, verdict: Saved | Passed) -> None:
        if isinstance(verdict, Saved):
            if verdict.step is not None and any(one.step == verdict.step for one in self.complete):
                return  # a second copy of it, as Lightning's last.ckpt, is not one before it
            self.complete.append(verdict._replace(path=self.outward(verdict.path)))
        elif not self.complete:
            self.pass_over(self.outward(candidate.path), verdict.why)

    def pass_over(self, path: str, why: str) -> None:
        if len(self.passed) >= MOST_PASSED:
            self.not_named += 1
            return
        self.passed.append(Passed(_named(path), why))

    def is_enough(self, opened: int, cost: int) -> bool:
        found = len(self.complete)
        is_dear = opened + cost > MOST_OPENED or time.monotonic() - self.begun > MOST_SECONDS
        return found > self.most or (found > min(1, self.most) and is_dear)

    def found(self, gaps: list[str]) -> Found:
        """Sentences may hold names of the folder's files; here they become what JSON and a terminal can bear."""
        if self.not_named:
            gaps.append(f"{self.not_named} more were passed over")
        newest = self.complete[0] if self.complete else None
        said = tuple(printable(gap, LONGEST_WHY) for gap in gaps[:MOST_GAPS])
        return Found(self.folder, newest, tuple(self.complete[1:]), tuple(self.passed), said)


def _verdict(look: Look, candidate: Candidate, harvest: _Harvest) -> Saved | Passed:
    if os.path.realpath(candidate.path) in harvest.refused:
        return Passed(candidate.path, "it failed to load before")
    return _judged(look, candidate, candidate.path)


def _judged(look: Look, candidate: Candidate, path: str) -> Saved | Passed:
    """`path`: where the candidate really is."""
    problem = names.is_told(candidate.path) or candidate.why
    if problem:
        return Passed(_named(candidate.path), problem)
    try:
        try:
            name, step = _checked(look, candidate, path)
        except Changed:  # one name of it may have been anything's; what goes on changing is not complete
            name, step = _checked(look, candidate, path)
    except Broken as why:
        return Passed(candidate.path, printable(str(why), LONGEST_WHY))
    began, written = look.times()
    return Saved(candidate.path, name, step, _began(path, step, began, written, candidate.is_folder), written)


def _checked(look: Look, candidate: Candidate, path: str) -> tuple[str, int | None]:
    """The format and the step of a complete checkpoint; raises Broken or Unseen for any other."""
    look.begin(path)
    found = _of_format(look, candidate, path)
    look.unchanged()
    return found


def _of_format(look: Look, candidate: Candidate, path: str) -> tuple[str, int | None]:
    if candidate.rule:
        _check_rule(look, candidate.rule, path, candidate.is_folder)
        return candidate.rule.name, candidate.step
    if not candidate.is_folder:
        weights.check_file(look, path)
        return formats.format_of_file(look, path)
    entries = look.folder(path)
    row = formats.of_folder(path, entries)
    if row is None:
        raise Broken("the folder is empty" if not entries else "nothing of a known format in it")
    step = row.check(look, path, entries)
    if row is formats.PLAIN:
        _check_as_before(look, path, entries)
    return row.name, candidate.step if step is None else step


def _check_rule(look: Look, rule: Rule, path: str, is_folder: bool) -> None:
    """The marker, which is written last, and, where the kind of a file is known, that it is whole."""
    if rule.marker:
        marker = path + rule.marker if rule.marker.startswith(".") else os.path.join(path, rule.marker)
        if not look.is_there(marker):
            raise Broken(f"no {printable(os.path.basename(marker))}")
        look.size(marker)
    if not is_folder:
        if path.endswith(names.FILES):
            weights.check_file(look, path)
        elif not look.size(path):
            raise Broken("the file is empty")
        return
    entries = look.folder(path)
    if not rule.marker and not entries:
        raise Broken("the folder is empty")
    weights.check_files(look, path, entries)
    for name, entry in itertools.islice(sorted(entries.items()), 1000):
        if entry.is_file and name not in look.seen:
            look.size(entry.path)


def _check_as_before(look: Look, path: str, entries: dict[str, Entry]) -> None:
    """A script's folder has no file that is written last: it must have the kinds of files that the one before has."""
    before = look.before(path)
    if not before:
        return
    kinds = {names.shape_of(name) for name in entries}
    for name, entry in sorted(look.folder(before).items()):
        if entry.is_file and name.endswith(names.FILES) and names.shape_of(name) not in kinds:
            raise Broken(f"no {printable(name)}, which {printable(os.path.basename(before))} has")


def _began(path: str, step: int | None, earliest: float, latest: float, is_folder: bool) -> float | None:
    """When writing began: the birth of the file or folder, if that is not one of an older checkpoint written over.

    Without it, the time at which the first of several files was finished; of one file, nothing.
    """
    birth = born(path) if step is not None else None
    if birth is not None and 0 <= earliest - birth <= BORN_BEFORE:
        return birth
    return earliest if is_folder and earliest < latest else None


class _Gathering:
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


def _ordered(candidates: Iterable[Candidate], gaps: list[str]) -> Iterator[Candidate]:
    """The greatest step first; of equal steps, and of those without one, the latest first."""
    ranked = sorted(candidates, key=_rank, reverse=True)
    for _, group in itertools.groupby(ranked, key=_rank):
        same = list(group)
        if len(same) > MOST_TIMED:
            gaps.append(f"more than {MOST_TIMED} checkpoints without a step: only some were looked at")
            del same[MOST_TIMED:]
        yield from sorted(same, key=_time, reverse=True) if len(same) > 1 else same


def _stepped(look: Look, candidates: list[Candidate]) -> Iterator[Candidate]:
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


def _named(path: str) -> str:
    """A path as text that JSON can hold, on one line."""
    return printable(path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"), 4000)
