"""Ports for a private cluster, in a row, that nobody else has or is about to take.

Free is what can be bound. An abstract socket named after each port, which the kernel drops together with its owner,
keeps other clusters off until our daemons have bound theirs, and while one of them is restarted.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence

# Below Linux' ephemeral ports (ip_local_port_range begins at 32768): nobody gets one of these by chance.
PORTS = range(20000, 32000)


class PortClaim:
    """A row of ports. Let go of it with close()."""

    def __init__(self, first: int, sockets: Sequence[socket.socket]) -> None:
        self.first = first
        self._sockets = sockets

    @classmethod
    def find(cls, count: int, tries: int = 200) -> PortClaim:
        """Raises OSError when no such row is free."""
        for _ in range(tries):
            first = random.randrange(PORTS.start, PORTS.stop - count)
            if claim := cls.of(range(first, first + count)):
                return claim
        raise OSError(f"no {count} free ports in a row between {PORTS.start} and {PORTS.stop}")

    @classmethod
    def of(cls, ports: range) -> PortClaim | None:
        """These ports; None when one of them is taken."""
        claim = cls(ports.start, [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in ports])
        try:
            for port, held in zip(ports, claim._sockets, strict=True):
                held.bind(f"\0slurm_recovery.port.{port}")
                _bind(port)
        except OSError:
            claim.close()
            return None
        return claim

    def close(self) -> None:
        for held in self._sockets:
            held.close()


def _bind(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Slurm does: TIME_WAIT is no hindrance
        probe.bind(("0.0.0.0", port))
