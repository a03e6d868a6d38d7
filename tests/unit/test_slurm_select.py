"""Which adapter is taken: pyslurm only where it fits, found out without importing it."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_recovery.config.settings import Backend, Settings
from slurm_recovery.slurm.commands import Commands
from slurm_recovery.slurm.errors import SlurmUnavailable
from slurm_recovery.slurm.select import open_slurm, pyslurm_unfit, slurm_release


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Slurm 22.05 and a pyslurm that must not be imported."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("SLURM_CONF", "/nowhere")
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=x\n")
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\n[ "$SLURM_CONF" = {conf} ] && echo slurm-wlm 22.05.8\n')
    scontrol.chmod(0o755)
    install_pyslurm(tmp_path, "22.5.3")
    return Settings(slurm_bin_dir=tmp_path, slurm_conf=conf)


def install_pyslurm(folder: Path, release: str) -> None:
    package = folder / "site" / "pyslurm"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    for old in (folder / "site").glob("*.dist-info"):
        (old / "METADATA").unlink()
        old.rmdir()
    if release:
        info = folder / "site" / f"pyslurm-{release}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: pyslurm\nVersion: {release}\n")


def test_a_matching_pyslurm_fits(machine: Settings) -> None:
    assert pyslurm_unfit(machine) == ""
    assert slurm_release(machine) == (22, 5)


def test_another_release_does_not_fit(machine: Settings, tmp_path: Path) -> None:
    install_pyslurm(tmp_path, "25.11.2")
    assert pyslurm_unfit(machine) == "pyslurm 25.11 does not match Slurm 22.5"
    assert isinstance(open_slurm(machine), Commands)
    with pytest.raises(SlurmUnavailable, match=r"SlurmBackend=pyslurm: pyslurm 25\.11 does not match.*hint"):
        open_slurm(machine.model_copy(update={"slurm_backend": Backend.PYSLURM}))


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_without_a_slurm_conf_pyslurm_is_not_touched(machine: Settings, content: str | None) -> None:
    assert machine.slurm_conf is not None
    machine.slurm_conf.unlink()
    if content is not None:
        machine.slurm_conf.write_text(content)
    assert pyslurm_unfit(machine).startswith(f"no slurm.conf at {machine.slurm_conf}")
    assert isinstance(open_slurm(machine), Commands)


def test_a_slurm_conf_that_ends_scontrol_would_end_us(machine: Settings, tmp_path: Path) -> None:
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho fatal: Unable to process configuration file >&2; exit 1\n")
    assert pyslurm_unfit(machine) == f"scontrol --version fails with {machine.slurm_conf}"
    install_pyslurm(tmp_path, "")
    assert pyslurm_unfit(machine)


def test_a_folder_is_no_slurm_conf(machine: Settings, tmp_path: Path) -> None:
    assert "no slurm.conf" in pyslurm_unfit(machine.model_copy(update={"slurm_conf": tmp_path}))


def test_a_folder_of_that_name_is_no_pyslurm(machine: Settings, tmp_path: Path) -> None:
    install_pyslurm(tmp_path, "")
    assert pyslurm_unfit(machine)


def test_commands_are_taken_where_they_are_asked_for(machine: Settings) -> None:
    assert isinstance(open_slurm(machine.model_copy(update={"slurm_backend": Backend.COMMANDS})), Commands)


def test_no_scontrol_is_said_to_be_so(machine: Settings, tmp_path: Path) -> None:
    (tmp_path / "scontrol").unlink()
    with pytest.raises(SlurmUnavailable, match="scontrol --version"):
        slurm_release(machine)
