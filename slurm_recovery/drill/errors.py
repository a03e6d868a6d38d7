"""What keeps a drill from being held at all."""

from __future__ import annotations


class DrillError(Exception):
    """The drill cannot be held: one line with a hint."""
