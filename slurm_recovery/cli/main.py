"""The `srecover` command: its global options, its table of commands, and how errors end.

Owns no command: each lies in the module that COMMANDS names and is imported when it is asked for, so that
`srecover list` does not pay for `srecover setup`. To add a command is to add a row.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from slurm_recovery.cli.common import Context, end_quietly, is_ours, say_error, version

COMMANDS = {
    "list": "slurm_recovery.cli.list_:list_incidents",
    "show": "slurm_recovery.cli.show:show",
    "report": "slurm_recovery.cli.report:report",
    "nodes": "slurm_recovery.cli.nodes:nodes",
    "release": "slurm_recovery.cli.release:release",
    "explain": "slurm_recovery.cli.explain:explain",
    "replay": "slurm_recovery.cli.replay:replay",
    "sweep": "slurm_recovery.cli.sweep:sweep",
    "config": "slurm_recovery.cli.config_:config",
    "check": "slurm_recovery.cli.check:check",
    "drill": "slurm_recovery.cli.drill:drill",
    "setup": "slurm_recovery.cli.setup:setup",
    "manual": "slurm_recovery.cli.manual:manual",
}
HIDDEN = frozenset({"manual"})


class Commands(TyperGroup):
    """The commands of COMMANDS. An error of ours is one line on standard error and exit status 1."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            self.commands[cmd_name] = _loaded(cmd_name)
        return self.commands[cmd_name]

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            end_quietly()
        except Exception as error:
            if not is_ours(error):
                raise
            say_error(str(error))
            raise typer.Exit(1) from error


def _loaded(name: str) -> Any:
    """The command of that name, made from its function."""
    module, _, function = COMMANDS[name].partition(":")
    one = typer.Typer(add_completion=False, rich_markup_mode=None)
    one.command(name, hidden=name in HIDDEN)(getattr(import_module(module), function))
    return typer.main.get_command(one)


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"slurm_recovery {version()}")
        raise typer.Exit


# -h is help wherever it is not a command's own -h (--noheader).
@app.callback(no_args_is_help=True, context_settings={"help_option_names": ["--help", "-h"]})
def srecover(
    ctx: typer.Context,
    conf: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            readable=False,  # who may read it is for whoever opens it to say
            help="The recovery.conf to use. Without it: $SRECOVER_CONF; else, where SLURM_CONF is set, recovery.conf "
            "beside that file; else /etc/slurm/recovery.conf.",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the release and exit.")
    ] = False,
) -> None:
    """Explain why jobs failed, and what was done about it."""
    ctx.obj = Context.found(conf, os.environ)


def main() -> None:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="srecover")
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            end_quietly()


if __name__ == "__main__":
    main()
