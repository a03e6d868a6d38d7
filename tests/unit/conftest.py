"""What several of the unit tests need."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter: those of pytest are closed to others, again with every run beside."""
    with tempfile.TemporaryDirectory(prefix="open.") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
