"""What every command is given: where recovery.conf is, how it and the store are opened, how errors are said.

Imports nothing heavy: the project's own modules are imported by the methods that need them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from slurm_recovery.cli.tables import harmless

if TYPE_CHECKING:
    from slurm_recovery.config.settings import Config
    from slurm_recovery.detect.signature import Signature
    from slurm_recovery.store.store import Store

DEFAULT_CONF = Path("/etc/slurm/recovery.conf")
NOT_YOURS = "only SlurmUser and root can read the record (StateDir); ask your administrator"
ENDED_BY_SIGPIPE = 128 + 13  # what a shell shows of a program that `| head` ended

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
User = Annotated[str | None, typer.Option("--user", "-u", metavar="NAME", help="Only this user's jobs.")]
Partition = Annotated[
    str | None, typer.Option("--partition", "-p", metavar="NAME", help="Only jobs of this partition.")
]
Cluster = Annotated[str | None, typer.Option("--cluster", "-M", metavar="NAME", help="Only jobs of this cluster.")]
NoHeader = Annotated[bool, typer.Option("--noheader", "-h", help="Print no header line.")]


class CommandError(Exception):
    """The command cannot answer; the text is the one line to say."""


@dataclass(frozen=True)
class Context:
    """The installation that a command works on. `given`: somebody named its recovery.conf."""

    conf_path: Path
    given: bool

    @classmethod
    def found(cls, conf: Path | None, environment: Mapping[str, str]) -> Context:
        """By --conf, SRECOVER_CONF, beside SLURM_CONF, or in Slurm's usual folder; it need not be there yet."""
        named = conf or environment.get("SRECOVER_CONF")
        if named:
            return cls(Path(os.path.abspath(named)), given=True)
        if slurm_conf := environment.get("SLURM_CONF"):
            return cls(Path(os.path.abspath(slurm_conf)).parent / "recovery.conf", given=False)
        return cls(DEFAULT_CONF, given=False)

    def config(self) -> Config:
        """The settings. Raises ConfigError where the file is missing or wrong."""
        from slurm_recovery.config.load import load

        return load(self.conf_path)

    def config_or_defaults(self) -> Config:
        """The settings; the defaults where nobody named a file and there is none."""
        from slurm_recovery.config.settings import Config

        return self.config() if self.given or self.conf_path.exists() else Config()

    @contextmanager
    def store(self) -> Iterator[Store]:
        """The incidents. Raises ConfigError or StoreError; CommandError where this user may not read them."""
        from slurm_recovery.config.confile import ConfigError
        from slurm_recovery.store.errors import StoreReadOnly, StoreUnreachable
        from slurm_recovery.store.store import Store
        from slurm_recovery.worker import configure_log

        configure_log()
        try:
            settings = self.config().settings
        except ConfigError as error:
            if isinstance(error.__cause__, PermissionError):
                raise CommandError(f"{error}; {NOT_YOURS}") from error
            raise
        try:
            opened = Store.open(settings.url)
        except (StoreReadOnly, StoreUnreachable) as error:
            if _is_ordinary_user(settings.state_dir):
                raise CommandError(NOT_YOURS) from error
            raise
        with opened as store:
            yield store


def _is_ordinary_user(state_dir: Path) -> bool:
    """Whether this user is neither root nor SlurmUser, whose StateDir is."""
    try:
        return os.geteuid() not in (0, state_dir.stat().st_uid)
    except PermissionError:
        return True
    except OSError:
        return False


def common_of(ctx: typer.Context) -> Context:
    common: Context = ctx.obj
    return common


def signatures_of(config: Config) -> tuple[Signature, ...]:
    """The package's signatures and the site's."""
    from slurm_recovery.config.signature_files import load_signatures

    folder = config.settings.signature_dir
    return load_signatures([folder] if folder else [])


def version() -> str:
    return (Path(__file__).parents[1] / "VERSION").read_text().strip()


def is_ours(error: Exception) -> bool:
    """Whether an error is an operator's to mend: any of this package's own classes, or one of a file."""
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] == "slurm_recovery"


def say_error(text: str) -> None:
    typer.echo(f"srecover: error: {harmless(' '.join(text.split()))}", err=True)


def end_quietly() -> NoReturn:
    """Nobody reads our output any more: end without a word, and without one from Python's own last flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(ENDED_BY_SIGPIPE)
