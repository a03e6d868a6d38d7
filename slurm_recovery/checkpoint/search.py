"""The newest complete checkpoint under a folder, and the ones before it.

gather.py tells which there are; they are judged from the greatest step down until enough are found: of ten thousand, a
few are opened. Bounded in checkpoints judged, and by the deadline; what was left out is a gap. Nothing is written,
moved or deleted, and nothing is raised. formats.py knows what makes a checkpoint complete.
"""

from __future__ import annotations

import itertools
import math
import os
import stat
import time
from collections.abc import Collection, Sequence

from slurm_recovery.checkpoint import formats, names, weights
from slurm_recovery.checkpoint.birth import born
from slurm_recovery.checkpoint.found import Found, Passed, Rule, Saved
from slurm_recovery.checkpoint.gather import Candidate, Gathering, ordered, stepped
from slurm_recovery.checkpoint.look import Broken, Changed, Entry, Late, Look, Unseen, printable

MOST_JUDGED = 1_000
MOST_PASSED = 32
MOST_GAPS = 16
# After which one complete checkpoint before the newest is enough: files and folders opened, and seconds of judging.
MOST_OPENED = 180
MOST_SECONDS = 2.0
LONGEST_WHY = 400
BORN_BEFORE = 6 * 3600  # seconds: an older birth is that of a file that was written over


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
    gathering = Gathering(look, rules)
    gathering.gather(root)
    candidates = ordered(stepped(look, gathering.candidates), gathering.gaps)
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


def _named(path: str) -> str:
    """A path as text that JSON can hold, on one line."""
    return printable(path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"), 4000)
