"""The row about a peer that several others complain of, and nobody else.

Owns the addresses: which node answers at which, as the hosts themselves announced it, and whom a complaint names.
A node with a broken link complains of anyone, so its own complaints accuse nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from slurm_recovery.attribute.view import Finding, View, told
from slurm_recovery.detect.frame import frame
from slurm_recovery.records import Evidence, Role, Source, Suspect, Trust

# NCCL net_ib.cc, socket.cc: "from peer 10.0.0.4<35806>"; "Call to recv from 10.0.9.3<41002>"; "remote peer a03<45153>";
# "Connect to 10.0.0.4<45763> failed"
_PEER = re.compile(r"(?:from peer|recv from|send to|[Cc]onnect to|remote peer) ([A-Za-z0-9.:_-]{1,120}?)<\d{1,5}>")
_OWN_ADDRESS = re.compile(r"(?:Bootstrap ?: Using|NET/(?:IB|Socket) : Using) .{1,400}?:(\d{1,3}(?:\.\d{1,3}){3})<")
_REASONS = ("ib_link_error", "nccl_network_error")
ENOUGH = 2  # other nodes that complain


def blamed_peer(view: View) -> Finding | None:
    """A peer that several other nodes complain about, and nobody else."""
    for reason in _REASONS:
        lines = view.having(source=Source.JOB_LOG, role=Role.CONDITIONAL, reasons=(reason,))
        node = _blamed(view, lines)
        if node is not None:
            why = told(view, reason, lines[0])
            accused = (Suspect(node=node, trust=Trust.USER, because=f"All complaints name {node}. {why}"),)
            return Finding(reason, f"{why} All complaints name {node}.", lines, suspects=accused)
    return None


def _blamed(view: View, lines: Iterable[Evidence]) -> str | None:
    addresses = _addresses(view)
    complaints: set[tuple[str, str | None]] = set()
    for found in lines:
        match, host = _PEER.search(found.line, 0, 1000), view.node(found)
        # A host that refuses a connection answers: its process has ended, and that is no fault of the host.
        if match and host and "Connection refused" not in found.line:
            complaints.add((host, addresses.get(match[1]) or view.places.known(match[1])))
    named = {peer for _, peer in complaints if peer is not None}
    return next((peer for peer in view.attempt.nodes if peer in named and _all_name(peer, complaints)), None)


def _all_name(peer: str, complaints: Iterable[tuple[str, str | None]]) -> bool:
    """Whether several others complain, all of this peer."""
    others = {(host, named) for host, named in complaints if host != peer}
    return len({host for host, _ in others}) >= ENOUGH and {named for _, named in others} == {peer}


def _addresses(view: View) -> dict[str, str]:
    """IP addresses of the job's nodes, as their own NCCL announced them."""
    found = dict(view.places.layout.of_address)
    for line in view.having(signatures=("bootstrap_address", "oob_address")):
        match = _OWN_ADDRESS.search(line.line, 0, 1000)
        node = view.places.known(frame(line.line).node)
        if match and node:
            found[match[1]] = node
    return found
