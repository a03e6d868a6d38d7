"""`srecover config`: every setting, its value, and the line of recovery.conf that it came from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurm_recovery.cli import tables
from slurm_recovery.cli.common import Json, NoHeader, common_of
from slurm_recovery.cli.tables import Column

if TYPE_CHECKING:
    from slurm_recovery.config.settings import Config, Section

DEFAULT = "default"
KEY_WIDTH, VALUE_WIDTH = 40, 30

# A database URL's password, and a query that may hold one.
_PASSWORD = re.compile(r"(://[^/@:]*:).*@")
_QUERY = re.compile(r"(://[^?]*\?).*")


def config(
    ctx: typer.Context,
    as_sample: Annotated[
        bool, typer.Option("--sample", help="Print a commented recovery.conf with all defaults instead.")
    ] = False,
    noheader: NoHeader = False,
    as_json: Json = False,
) -> None:
    """Print every setting and where it came from.

    That is a line of recovery.conf, or the default. Below the settings stand the values of the PartitionName
    and Reason lines. Passwords are not shown. Exit status 1, and one line with file, line and a hint, where
    recovery.conf cannot be used.
    """
    from slurm_recovery.config.sample import sample

    if as_sample and as_json:
        raise typer.BadParameter("the sample is text; give either --sample or --json")
    if as_sample:
        typer.echo(sample(), nl=False)
        return
    common = common_of(ctx)
    found = common.config()
    if as_json:
        tables.say_json({"file": str(common.conf_path), "policy": found.digest, **document(found)})
        return
    columns = (Column("KEY", KEY_WIDTH), Column("VALUE", VALUE_WIDTH), Column("FROM", 0))
    rows = list(_rows(found))
    width = max([VALUE_WIDTH, *(len(tables.harmless(value)) for _, value, _ in rows)])
    tables.say_table((columns[0], columns[1]._replace(width=width), columns[2]), rows, header=not noheader)


def _rows(config: Config) -> Iterator[tuple[str, str, str]]:
    for prefix, section in _sections(config):
        for key, (value, origin) in _values(section, prefix, config.origins).items():
            if not prefix or origin != DEFAULT:
                yield prefix + key, value, origin


def _sections(config: Config) -> Iterator[tuple[str, Section]]:
    """Each section with the prefix of its lines."""
    yield "", config.settings
    yield from ((f"PartitionName={name} ", policy) for name, policy in config.partitions.items())
    yield from ((f"Reason={code} ", reason) for code, reason in config.reasons.items())
    yield from ((f"CheckpointFormat={name} ", one) for name, one in config.checkpoint_formats.items())


def _values(section: Section, prefix: str, origins: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """{key: (value as recovery.conf writes it, where it came from)}."""
    written = section.model_dump(mode="json", by_alias=True)
    return {
        key: (without_password("" if value is None else str(value)), origins.get(prefix + key, DEFAULT))
        for key, value in written.items()
    }


def without_password(text: str) -> str:
    return _QUERY.sub(r"\1...", _PASSWORD.sub(r"\1***@", text))


def document(config: Config) -> dict[str, Any]:
    """All values, as data. A partition's values that are not its own are the settings'."""

    def of(section: Section, prefix: str) -> dict[str, Any]:
        found = _values(section, prefix, config.origins)
        inherited = {key: config.origins.get(key, DEFAULT) for key in found} if "PartitionName" in prefix else {}
        return {
            key: {"value": value, "from": inherited.get(key, origin) if origin == DEFAULT else origin}
            for key, (value, origin) in found.items()
        }

    return {
        "settings": of(config.settings, ""),
        "partitions": {name: of(policy, f"PartitionName={name} ") for name, policy in config.partitions.items()},
        "reasons": {code: of(reason, f"Reason={code} ") for code, reason in config.reasons.items()},
        "checkpoint_formats": {
            name: of(one, f"CheckpointFormat={name} ") for name, one in config.checkpoint_formats.items()
        },
    }
