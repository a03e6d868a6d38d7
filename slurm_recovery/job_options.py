"""What a job's owner says about its recovery: `sbatch --recovery...`, or `--comment=recovery=act,checkpoint=/path`.

Owns the names, the grammar and the reading. What the site allows is `allowed`; what is done with it is decided
elsewhere. The nodes read it too: standard library only. All of it is text that a user chose: nothing here fails, and
what is not understood is told in `refused` and counts as not said, but for the mode: who says something about recovery
and is not understood is better left alone, so that means `observe`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

MODE, CHECKPOINT, MAX_REQUEUES, LOG, MIN_NODES = "mode", "checkpoint", "max-requeues", "log", "min-nodes"
NAMES = (MODE, CHECKPOINT, MAX_REQUEUES, LOG, MIN_NODES)

# The plugin's option --recovery-max-requeues reaches hooks as SPANK_RECOVERY_MAX_REQUEUES; see spank_hooks/.
SPANK = {MODE: "SPANK_RECOVERY"} | {name: "SPANK_RECOVERY_" + name.upper().replace("-", "_") for name in NAMES[1:]}

MOST_PATH = 4096  # bytes, PATH_MAX
MOST_REQUEUES = 1000
MOST_NODES = 1_000_000

_ORDER = ("off", "observe", "act")
_WORDS = {
    **dict.fromkeys(("off", "no", "none", "never", "false", "0"), "off"),
    **dict.fromkeys(("act", "on", "yes", "true", "1"), "act"),
    "observe": "observe",
}
_COMMENT = re.compile(r"\brecovery\s*[=:]\s*([^\s;]*)", re.IGNORECASE)
_NODES = re.compile(r"(\d{1,7})(?::(\d{1,7}))?")


class JobOptions(NamedTuple):
    """A field that is "", None or 0 was not said."""

    mode: str = ""  # off, observe or act
    checkpoint: str = ""  # the folder, an absolute path
    max_requeues: int | None = None
    log: str = ""  # a file name pattern as of sbatch --output, an absolute path
    min_nodes: int = 0  # the job can do with so many nodes,
    node_step: int = 1  # and with so many more at a time
    refused: tuple[str, ...] = ()  # one sentence for each option that is not understood, or not allowed


def read_options(comment: str, spank: Mapping[str, str]) -> JobOptions:
    """What both ways say. The plugin's word goes before the comment's; of several modes the lowest counts.

    `spank`: the SPANK_RECOVERY... variables of a hook's environment; others are not looked at.
    """
    said: dict[str, str] = {}
    modes: list[str] = []
    for text in _COMMENT.findall(comment[:MOST_PATH]):
        mode, *rest = text.split(",")
        modes.append(mode)
        for word in rest:
            name, equals, value = word.partition("=")
            if equals:
                said.setdefault(name.lower().replace("_", "-"), value)
    said |= {name: spank[variable] for name, variable in SPANK.items() if spank.get(variable)}
    if MODE in said:
        modes.append(said.pop(MODE))
    return _read(modes, said)


def allowed(options: JobOptions, names: Collection[str]) -> JobOptions:
    """Without what the site does not let a job choose (JobOptions in recovery.conf); it is told in `refused`."""
    empty = JobOptions()
    fields = {name: name.replace("-", "_") for name in NAMES}
    forbidden = [
        name for name, field in fields.items() if name not in names and getattr(options, field) != getattr(empty, field)
    ]
    told = tuple(f"{name}: this site does not let a job choose it (JobOptions)" for name in forbidden)
    taken = {fields[name]: getattr(empty, fields[name]) for name in forbidden}
    if MIN_NODES in forbidden:
        taken["node_step"] = 1
    return options._replace(refused=options.refused + told, **taken)


def _read(modes: list[str], said: Mapping[str, str]) -> JobOptions:
    refused: list[str] = []

    def refuse(name: str, value: str, hint: str) -> None:
        refused.append(f"{_shown(name)}={_shown(value)}: {hint}")

    found = []
    for word in modes:
        if word.lower() not in _WORDS:
            refuse("recovery", word, "not understood, taken as observe; write act, observe or off")
        found.append(_WORDS.get(word.lower(), "observe"))
    paths = {}
    for name in (CHECKPOINT, LOG):
        value = said.get(name, "")
        if value and (not value.startswith("/") or len(value.encode(errors="replace")) >= MOST_PATH or "\0" in value):
            refuse(name, value, "not an absolute path")
            value = ""
        paths[name] = value
    requeues = said.get(MAX_REQUEUES, "")
    if requeues and not (_number(requeues) and int(requeues) <= MOST_REQUEUES):
        refuse(MAX_REQUEUES, requeues, f"not a number from 0 to {MOST_REQUEUES}")
        requeues = ""
    nodes = said.get(MIN_NODES, "")
    match = _NODES.fullmatch(nodes) if nodes.isascii() else None
    least, step = (int(match[1]), int(match[2] or 1)) if match else (0, 1)
    if nodes and not (1 <= least <= MOST_NODES and 1 <= step <= MOST_NODES):
        refuse(MIN_NODES, nodes, "not MIN or MIN:STEP")
        least, step = 0, 1
    for name in said.keys() - set(NAMES):
        refuse(name, said[name], f"unknown; known are {', '.join(NAMES[1:])}")
    return JobOptions(
        mode=min(found, key=_ORDER.index, default=""),
        checkpoint=paths[CHECKPOINT],
        max_requeues=int(requeues) if requeues else None,
        log=paths[LOG],
        min_nodes=least,
        node_step=step,
        refused=tuple(refused[:8]),
    )


def _number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6


def _shown(value: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in value[:80])
