"""Writes slurm_recovery.signatures(7): every line of a log that is known, by what it means."""

from __future__ import annotations

from itertools import groupby

from slurm_recovery.cli.roff import Item, Page
from slurm_recovery.config.signature_files import load_signatures
from slurm_recovery.detect.signature import Signature
from slurm_recovery.records import Role

NAME = "slurm_recovery.signatures"
_NOTHING = "No reason of their own"


def lines_page(release: str) -> Page:
    page = Page(NAME, 7, release, "Slurm recovery")
    page.ragged()
    page.section("Name")
    page.text(f"{NAME} - the lines of logs that slurm_recovery knows")
    page.section("Description")
    page.text(
        "Each signature is told with an example of its line, and with the software, file and versions that print it. "
        "Behind its name stand its role, and the kind of log that it is narrowed to. A root is a cause; a conditional "
        "line is one where no better is found; a secondary line always follows from something else; noise is harmless, "
        "whatever its words. recovery.conf(5) tells how a site adds its own."
    )
    for reason, rows in groupby(sorted(load_signatures(), key=_place), lambda row: row.reason):
        page.section(reason or _NOTHING)
        page.items(_item(row) for row in rows)
    page.section("See also")
    page.text("srecover(1), recovery.conf(5)")
    return page


def _place(row: Signature) -> tuple[bool, str, int, str]:
    return not row.reason, row.reason, list(Role).index(row.role), row.id


def _item(row: Signature) -> Item:
    example, source = (" ".join(text.split()) for text in (row.example, row.source))
    kind = f", {row.log.value}" if row.log else ""
    return Item(row.id, f"{example}\n\n{source}", f"({row.role.value}{kind})")
