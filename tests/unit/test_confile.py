"""The file format of slurm.conf, read within bounds."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from slurm_recovery.config.confile import MAX_BYTES, ConfigError, read_lines


def written(folder: Path, text: str, name: str = "recovery.conf") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def pairs(path: Path) -> list[tuple[str, str, str]]:
    return [(pair.key, pair.value, pair.origin.rpartition("/")[2]) for line in read_lines(path) for pair in line]


def test_pairs_with_their_places(tmp_path: Path) -> None:
    written(tmp_path, "Inner=2\n", "inner.conf")
    path = written(tmp_path, 'A=1 b="x y" # not C=3\n\nLong=\\\n5\ninclude inner.conf\nEmpty=\n')
    assert pairs(path) == [
        ("A", "1", "recovery.conf:1"),
        ("b", "x y", "recovery.conf:1"),
        ("Long", "5", "recovery.conf:3"),
        ("Inner", "2", "inner.conf:1"),
        ("Empty", "", "recovery.conf:6"),
    ]


@pytest.mark.parametrize("lines", [1, 2, 200])
def test_a_file_that_includes_itself_ends(tmp_path: Path, lines: int) -> None:
    path = written(tmp_path, "Include recovery.conf\n" * lines)
    begin = time.process_time()
    with pytest.raises(ConfigError, match="include itself"):
        pairs(path)
    assert time.process_time() - begin < 2


def test_many_files_that_include_many_end(tmp_path: Path) -> None:
    for depth in range(7):
        written(tmp_path, f"Include {depth + 1}\n" * 50, str(depth))
    written(tmp_path, "A=1\n", "7")
    begin = time.process_time()
    with pytest.raises(ConfigError, match="more than 256 files"):
        pairs(tmp_path / "0")
    assert time.process_time() - begin < 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Mode=act\nnonsense\n", "recovery.conf:2: not Key=Value: 'nonsense'"),
        ("Include\n", "recovery.conf:1: Include without a file"),
        ("Include nowhere.conf\n", "nowhere.conf: No such file"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        pairs(written(tmp_path, text))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_file_of_settings_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    written(tmp_path, "x" * (MAX_BYTES + 1), "large")
    (tmp_path / "bytes").write_bytes(b"A=1\nB=\xff\n")
    for name, said in (("fifo", "not a regular file"), ("large", "larger than"), ("bytes", "bytes:2: not UTF-8")):
        with pytest.raises(ConfigError, match=said):
            pairs(tmp_path / name)
