"""Which nodes hang on one switch: topology.conf or topology.yaml, as they lie beside slurm.conf.

Owns the reading of both, within bounds. Raises nothing: without such a file, or where it cannot be read, no node has a
switch, and nothing is concluded. Of topology.yaml only the form of its manual page is read, one key a line; items in
braces are left out.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import structlog

from slurm_recovery.config.confile import MAX_BYTES, ConfigError, read_lines
from slurm_recovery.hostlist import MAX_HOSTS, HostlistError, expand

log = structlog.get_logger(__name__)

LEAVES = ("switch", "block", "ring")  # topology.yaml(5); topology.conf(5) has SwitchName, BlockName, RingName
_PAIR = re.compile(r"(\s*(?:-\s+)?)([a-z_]{1,40})\s*:\s+(\S.*)")

Leaf = tuple[str, str]  # its name, and its nodes as a host list


def leaf_switch(slurm_conf: Path) -> Mapping[str, str]:
    """{node: the switch, block or ring that it hangs on}, by the files beside slurm.conf.

    topology.yaml (25.05 and later) goes before topology.conf, as in Slurm. A node that several leaves name is the
    first one's.
    """
    try:
        yaml = _text(slurm_conf.with_name("topology.yaml"))
        leaves = _yaml_leaves(yaml) if yaml is not None else _conf_leaves(slurm_conf.with_name("topology.conf"))
        return _by_node(leaves)
    except (ConfigError, OSError, ValueError) as error:
        log.warning("topology not used", why=str(error))
        return {}


def _by_node(leaves: Iterable[Leaf]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    room = 2 * MAX_HOSTS  # names that all host lists together may hold
    for name, hosts in leaves:
        try:
            nodes = expand(hosts, min(room, MAX_HOSTS))
        except HostlistError as error:
            log.warning("switch not used", switch=name[:64], why=str(error))
            continue
        room -= len(nodes)
        for node in nodes:
            found.setdefault(node, name)
    return found


def _conf_leaves(path: Path) -> Iterator[Leaf]:
    if not path.exists():
        return
    for pairs in read_lines(path):
        values = {pair.key.lower(): pair.value for pair in pairs}
        name = next((values[f"{leaf}name"] for leaf in LEAVES if f"{leaf}name" in values), "")
        if name and "nodes" in values:
            yield name, values["nodes"]


def _yaml_leaves(text: str) -> Iterator[Leaf]:
    """The items that have a name of a leaf and `nodes`. `- ` begins an item."""
    item: dict[str, str] = {}
    for line in text.splitlines():
        pair = _PAIR.fullmatch(line.partition(" #")[0].rstrip())
        if pair is None:
            continue
        if "-" in pair[1]:
            yield from _leaf(item)
            item = {}
        item.setdefault(pair[2], pair[3].strip("\"'"))
    yield from _leaf(item)


def _leaf(item: Mapping[str, str]) -> Iterator[Leaf]:
    name = next((item[leaf] for leaf in LEAVES if leaf in item), "")
    if name and "nodes" in item:
        yield name, item["nodes"]


def _text(path: Path) -> str | None:
    """The file's text; None where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigError(str(path), "not a regular file")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ConfigError(str(path), f"larger than {MAX_BYTES} bytes")
    return data.decode()
