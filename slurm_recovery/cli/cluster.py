"""What setup and check need to know of the cluster: slurm.conf, SlurmUser, the registered triggers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from slurm_recovery.cli.owner import Account, account
from slurm_recovery.config.confile import ConfigError, read_lines
from slurm_recovery.config.settings import Settings
from slurm_recovery.slurm.commands import Commands
from slurm_recovery.slurm.errors import SlurmError

# Slurm's own default, and where slurmd keeps what it fetched in a configless cluster.
DEFAULT_SLURM_CONFS = (Path("/etc/slurm/slurm.conf"), Path("/run/slurm/conf/slurm.conf"))


class Trigger(NamedTuple):
    """One line of `strigger --get`."""

    number: str
    user: str
    program: str


class Cluster:
    """A cluster as its slurm.conf and, where it answers, its slurmctld describe it."""

    def __init__(self, settings: Settings, slurm_conf: Path | None = None) -> None:
        self.settings = settings
        self.slurm_conf = slurm_conf_of(settings, slurm_conf)
        self.commands = Commands(
            timeout=settings.command_timeout, bin_dir=settings.slurm_bin_dir, slurm_conf=self.slurm_conf
        )
        self.unreachable = ""
        try:
            self.config: Mapping[str, str] = self.commands.config()
        except SlurmError as error:
            self.unreachable = str(error)
            self.config = self._written()

    def _written(self) -> Mapping[str, str]:
        """slurm.conf as it is written, for while slurmctld does not answer."""
        if self.slurm_conf is None:
            return {}
        try:
            return {pair.key.lower(): pair.value for line in read_lines(self.slurm_conf) for pair in line}
        except ConfigError:
            return {}

    @property
    def slurm_user(self) -> Account:
        """SlurmUser. `scontrol show config` prints it as `slurm(64030)`. Raises KeyError where it has no account."""
        return account(self.config.get("slurmuser", "root").partition("(")[0])

    def triggers(self) -> list[Trigger]:
        """Registered triggers whose program is known. Raises SlurmError."""
        rows = (line.split(None, 7) for line in self.strigger("--get", "--noheader").splitlines())
        return [Trigger(row[0], row[5], row[7].strip()) for row in rows if len(row) == 8]

    def strigger(self, *arguments: str) -> str:
        """strigger as SlurmUser, who alone may set one. Raises SlurmError."""
        return self.commands.run_as("strigger", *arguments, **self.slurm_user.process())

    def try_as_slurm_user(self, *command: str) -> str:
        """What goes wrong when SlurmUser runs this; "" where nothing does."""
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                cwd="/",
                env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
                **self.slurm_user.process(),  # type: ignore[call-overload]
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no message"])[-1]


def slurm_conf_of(settings: Settings, given: Path | None) -> Path | None:
    """slurm.conf by option, recovery.conf, environment, or in its usual place; None where none of them leads to one."""
    named = given or settings.slurm_conf or _from_environment()
    return named or next((path for path in DEFAULT_SLURM_CONFS if path.exists()), None)


def _from_environment() -> Path | None:
    return Path(os.environ["SLURM_CONF"]) if os.environ.get("SLURM_CONF") else None
