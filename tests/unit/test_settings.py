"""Values and lines of recovery.conf that are more than one word: what is read, and what is refused where."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_recovery.config.confile import ConfigError
from slurm_recovery.config.load import load
from slurm_recovery.config.settings import CheckpointFormat, Config
from slurm_recovery.job_options import NAMES


def loaded(folder: Path, text: str) -> Config:
    path = folder / "recovery.conf"
    path.write_text(text)
    return load(path)


@pytest.mark.parametrize(
    ("written", "names"),
    [("all", NAMES), ("none", ()), ("log,MODE", ("mode", "log")), ("checkpoint", ("checkpoint",)), ("", ())],
)
def test_job_options_are_names(tmp_path: Path, written: str, names: tuple[str, ...]) -> None:
    config = loaded(tmp_path, f"JobOptions=none\nPartitionName=train JobOptions={written}\n")
    assert config.policy("train").job_options == names
    assert config.policy("other").job_options == ()


def test_job_options_are_written_as_they_are_read(tmp_path: Path) -> None:
    for written in ("all", "none", "mode,log"):
        config = loaded(tmp_path, f"JobOptions={written}\n")
        assert config.settings.model_dump(mode="json", by_alias=True)["JobOptions"] == written


def test_a_checkpoint_format_is_a_line_of_its_own(tmp_path: Path) -> None:
    config = loaded(tmp_path, "CheckpointFormat=mine Pattern=ckpt-{step}*.bin Marker=.done\n")
    assert config.checkpoint_formats == {"mine": CheckpointFormat(pattern="ckpt-{step}*.bin", marker=".done")}
    assert config.origins["CheckpointFormat=mine Marker"].endswith("recovery.conf:1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("JobOptions=mode,chekpoint", "recovery.conf:1: JobOptions=mode,chekpoint: not a job option: 'chekpoint'"),
        ("JobOptions=all,mode", "not a job option: 'all'"),
        ("CheckpointFormat=mine", "CheckpointFormat=mine: no Pattern"),
        ("CheckpointFormat=../x Pattern={step}", "CheckpointFormat=../x; hint: at most 32 letters"),
        ("CheckpointFormat=mine Pattern=step", "Pattern=step: "),
        ("CheckpointFormat=mine Pattern=a/{step}", "Pattern=a/{step}: "),
        ("CheckpointFormat=mine Pattern={step}{step}", "Pattern={step}{step}: "),
        ("CheckpointFormat=mine Pattern={step} Marker=a/b", "Marker=a/b: "),
        ("CheckpointFormat=mine Pattern={step} Makrer=a", "unknown key Makrer; hint: did you mean Marker?"),
        ("RunDir=run", "RunDir=run: "),
        ("StopAfterNoProgress=-1", "StopAfterNoProgress=-1: "),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        loaded(tmp_path, text + "\n")
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert "hint" in str(error.value)
