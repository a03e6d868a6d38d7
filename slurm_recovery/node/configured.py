"""How many GPUs slurm.conf gives a node (`NodeName= Gres=`). Reads files, asks no daemon, never raises.

None is "unknown", and nothing follows from it: a node that slurm.conf does not list (dynamic), a file that cannot be
read, MIG profiles, which are no whole GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from slurm_recovery.config.confile import ConfigError, Pair, read_lines
from slurm_recovery.hostlist import MAX_HOSTS, HostlistError, expand

MAX_LINES = 200_000
_BRACKETS = re.compile(r"\([^()]{0,1000}\)")  # gpu:h100:8(S:0-1)
_NUMBER = re.compile(r"[0-9]{1,6}")
_MIG = re.compile(r"\d{1,2}g\.\d{1,4}gb", re.IGNORECASE)  # gpu:1g.5gb:7, gpu:a100_3g.20gb:2


def configured_gpus(slurm_conf: str, node: str) -> int | None:
    """GPUs of all types that the node has by `slurm_conf`; 0 where it has none."""
    try:
        gres = _gres(read_lines(Path(slurm_conf)), node)
    except (ConfigError, HostlistError, ValueError):
        return None
    return None if gres is None else _count(gres)


def _gres(lines: Iterable[tuple[Pair, ...]], node: str) -> str | None:
    """The node's Gres=, or that of the last NodeName=DEFAULT before it; None where the node is not listed."""
    default, found, room = "", None, MAX_HOSTS
    for number, line in enumerate(lines):
        if number > MAX_LINES:
            return None
        words = {pair.key.lower(): pair.value for pair in line}
        names = words.get("nodename")
        if names is None:
            continue
        if names.lower() == "default":
            default = words.get("gres", default)
            continue
        nodes = expand(names, room)
        room -= len(nodes)
        if node in nodes:
            found = words.get("gres", default)
    return found


def _count(gres: str) -> int | None:
    """`gpu:h100:8(S:0-1),gpu:l4:2,nvme:1` is 10."""
    total = 0
    for item in _BRACKETS.sub("", gres).split(","):
        name, *rest = item.strip().lower().split(":")
        if name != "gpu":
            continue
        if any(_MIG.search(word) for word in rest):
            return None
        if rest and _NUMBER.fullmatch(rest[-1]):
            total += int(rest[-1])
        elif len(rest) < 2:  # "gpu", "gpu:h100": one
            total += 1
        else:
            return None
    return total
