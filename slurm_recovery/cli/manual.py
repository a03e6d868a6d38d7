"""`srecover manual`: the manual pages srecover(1) and recovery.conf(5), made from the code.

Options come from the commands, keys from the settings' declarations, reasons from their table: a page cannot
say anything else than the program does. The pages in conf/man are this command's output; a test compares.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurm_recovery.cli.common import version
from slurm_recovery.cli.roff import Item, Page

if TYPE_CHECKING:
    from slurm_recovery.cli.declarations import Declared

EXIT_STATUS = (
    Item("0", "Done; list: also where the table is empty."),
    Item(
        "1",
        "It could not be done, or show found nothing, or replay could not read a case, or check found something "
        "wrong, or a drill failed. One line on standard error says where and what, and gives a hint.",
    ),
    Item("2", "The command line is wrong; drill: also where it could not be held."),
    Item("141", "The reader of the output went away (as in srecover list | head)."),
)
ENVIRONMENT = (
    Item("SRECOVER_CONF", "Path of recovery.conf, where --conf is not given."),
    Item("SLURM_CONF", "Path of slurm.conf; recovery.conf is looked for in the same folder, and nowhere else."),
)
FILES = (
    Item(
        "/etc/slurm/recovery.conf",
        "The settings, see recovery.conf(5). Where SLURM_CONF is set: recovery.conf in the folder of that file.",
    ),
    Item(
        "StateDir/recovery.db",
        "The incidents (SQLite), unless StoreUrl names another database. Only SlurmUser and root can read it, so "
        "list, show, nodes and release are for them.",
    ),
    Item("StateDir/worker.log", "What the workers said."),
)
EXAMPLES = (
    ("srecover list --since now-1day --open", "What is under way since yesterday:"),
    ("srecover list -h -u ada --json", "One user's incidents, for a script:"),
    ("srecover show 120_3", "Why task 3 of array 120 failed, and what was done:"),
    ("srecover show 120_3 --log", "The end of its log, as it was when the attempt was judged:"),
    (
        "srecover explain --nodes n[1-4] --ntasks-per-node 8 slurm-4711.out",
        "What a log says, without any installation:",
    ),
    ("srecover explain --rules", "Every reason and every line that is known:"),
    ("srecover replay --json cases/* > answers", "What today's rules say of recorded failures:"),
    ("srecover --conf ./recovery.conf config", "Whether a file is right, before it is installed:"),
)


def manual(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Write the pages there, as files.")
    ] = None,
) -> None:
    """Print the manual pages srecover(1) and recovery.conf(5) as roff text."""
    for name, text in pages().items():
        if output is None:
            typer.echo(text, nl=False)
        else:
            output.mkdir(parents=True, exist_ok=True)
            (output / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """{file name: roff text}."""
    from slurm_recovery.cli.manual_lines import NAME, lines_page

    return {
        "srecover.1": str(_srecover()),
        "recovery.conf.5": str(_recovery_conf()),
        f"{NAME}.7": str(lines_page(_release())),
    }


# -- srecover(1) ---------------------------------------------------------------------------------


def _srecover() -> Page:
    from slurm_recovery.cli.main import app

    group = typer.main.get_command(app)
    page = Page("srecover", 1, _release(), "Slurm recovery")
    page.section("Name")
    page.text("srecover - explain failed Slurm jobs, and bring them back")
    page.section("Synopsis")
    page.text("srecover [--conf PATH] COMMAND [OPTIONS] [ARGUMENTS]")
    page.section("Description")
    page.text(
        f"{group.help} Tables are printed as squeue prints them. Text that a job's owner chose is printed with "
        "control characters and direction overrides spelt out. Each command has --help."
    )
    page.section("Options")
    page.items(_options(group))
    page.section("Commands")
    for name, command in commands(group):
        page.subsection(_synopsis(name, command))
        page.text(command.help or "")
        page.items(_options(command))
    for title, items in (("Exit status", EXIT_STATUS), ("Environment", ENVIRONMENT), ("Files", FILES)):
        page.section(title)
        page.items(items)
    page.section("Examples")
    for line, sentence in EXAMPLES:
        page.text(sentence)
        page.verbatim([line])
    page.section("See also")
    page.text("recovery.conf(5), squeue(1), scontrol(1), slurm.conf(5), strigger(1)")
    return page


def commands(group: Any) -> Iterator[tuple[str, Any]]:
    """The commands that are shown to people, by name."""
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if not command.hidden:
            yield name, command


def _synopsis(name: str, command: Any) -> str:
    arguments = [_argument(param) for param in command.params if not _is_option(param)]
    return " ".join(["srecover", name, "[OPTIONS]", *arguments])


def _argument(param: Any) -> str:
    word = param.metavar or param.name.upper()
    return (word if param.required else f"[{word}]") + ("..." if param.nargs == -1 else "")


def _options(command: Any) -> Iterator[Item]:
    """Arguments and options with their help, and their default where they have one."""
    for param in command.params:
        if getattr(param, "hidden", False):
            continue
        if _is_option(param):
            yield Item(_names(param), _help(param), _metavar(param))
        elif param.help:
            yield Item(param.metavar or param.name.upper(), param.help)


def _is_option(param: Any) -> bool:
    return bool(param.param_type_name == "option")


def _names(param: Any) -> str:
    return ", ".join([*sorted(param.opts, key=len), *param.secondary_opts])


def _metavar(param: Any) -> str:
    if param.is_flag or getattr(param, "count", False):
        return ""
    return str(param.metavar or param.name.upper())


def _help(param: Any) -> str:
    default = param.default
    told = "" if default in (None, False, "", ()) or callable(default) or param.is_flag else f" Default: {default}."
    return (param.help or "") + told


# -- recovery.conf(5) ----------------------------------------------------------------------------


def _recovery_conf() -> Page:
    from slurm_recovery.cli.declarations import declared
    from slurm_recovery.config.settings import CheckpointFormat, Policy, ReasonPolicy, Settings

    page = Page("recovery.conf", 5, _release(), "Slurm recovery")
    page.section("Name")
    page.text("recovery.conf - settings of slurm_recovery")
    page.section("Description")
    page.text(_FORMAT)
    page.section("Keys")
    page.items(_key(one) for one in declared(Settings))
    page.section("Partitions")
    page.text(
        "A line that begins with PartitionName= says what differs for jobs of that partition, or of each of a list "
        f"of them (train[1-3]). These keys may follow: {', '.join(one.key for one in declared(Policy))}. What the "
        "line does not say is as for all others."
    )
    page.verbatim(["PartitionName=train Mode=act MaxRequeues=10"])
    page.section("Reasons")
    page.text("A line that begins with Reason= says what shall be done about one reason. These keys may follow:")
    page.items(_key(one) for one in declared(ReasonPolicy))
    page.verbatim(["Reason=nccl_timeout Action=requeue MaxRequeues=2"])
    page.text(
        "The reasons, by who owns the repair. Behind each stand its Action and MaxRequeues, unless a line says "
        "otherwise. Where the fault is proven to be one node's, a reason may become another, or gain a suspect."
    )
    _reasons(page)
    page.section("Checkpoint formats")
    page.text(
        "A line that begins with CheckpointFormat= and a name describes a kind of checkpoint of your own, beside those "
        "that are known. These keys may follow:"
    )
    page.items(_key(one) for one in declared(CheckpointFormat))
    page.verbatim(["CheckpointFormat=mine Pattern=ckpt-{step} Marker=DONE"])
    page.section("Signatures")
    _signatures(page)
    page.section("Files")
    page.items([Item("/etc/slurm/recovery.conf", _WHERE)])
    page.section("See also")
    page.text("srecover(1), slurm.conf(5), sbatch(1)")
    return page


_WHERE = """\
The file, unless --conf or SRECOVER_CONF names another. Where SLURM_CONF is set: recovery.conf in the folder of that
file, beside slurm.conf.
"""

_FORMAT = """\
Written in the tongue of slurm.conf(5): Key=Value pairs, several on a line if wished; keys in any case; # begins a
comment, a backslash at the end of a line continues it; Include names a further file, relative to this one; a value
with blanks stands in double quotes. A later line beats an earlier one. Every key has a default, and an empty file is
a good one.

A time is written 90 (seconds), 1:30 (minutes), 2:00:00 (hours) or 1-00:00:00 (days); a size 65536, 64K, 4M or 1G.

An unknown key or a value out of its range makes the whole file unusable: srecover config prints the one line that says
where and why. Jobs are not harmed by it: the hooks record what happened, and the next sweep with a good file takes it
up. After a change of the file, run srecover setup.

Under Mode=observe, the default, nothing is touched; the advice is on record (srecover list, srecover show). The owner
of a job may ask for less than the site does, by sbatch --comment=recovery=observe or recovery=off.
"""


def _key(declared: Declared) -> Item:
    default = f"Default: {declared.default}." if declared.default else ""
    span = f"Range: {declared.range}." if declared.range else ""
    return Item(declared.key, " ".join(filter(None, [declared.sentence, default, span])), f"= {declared.kind}")


def _reasons(page: Page) -> None:
    from slurm_recovery.attribute.reasons import REASONS
    from slurm_recovery.records import Category

    for category in Category:
        rows = [reason for reason in REASONS.values() if reason.category is category]
        page.subsection(category.value)
        for reason in rows:
            becomes = f" On one node alone: {reason.one_node}, and that node is suspect." if reason.one_node else ""
            tries = f", {reason.max_requeues}" if reason.max_requeues else ""
            page.items([Item(reason.code, reason.sentence + becomes, f"({reason.action.value}{tries})")])


def _signatures(page: Page) -> None:
    from slurm_recovery.detect.signature import Signature

    page.text(
        "A signature says what one line of a log means. The package brings its own; a site may add others, or replace "
        "one by its id, in *.toml files in the folder that SignatureDir names. slurm_recovery.signatures(7) and "
        "srecover explain --rules list all. "
        "Each is a table [[signature]] with these fields:"
    )
    page.verbatim([", ".join(name for name in Signature.model_fields)])
    page.text(" ".join((Signature.__doc__ or "").split("\n\n", 1)[-1].split()))
    page.text("An example:")
    page.verbatim(_EXAMPLE.splitlines())


_EXAMPLE = """\
[[signature]]
id = 'site_scratch_gone'
reason = 'filesystem_io'
role = 'root'
literals = ['scratch is gone']
pattern = 'ERROR: scratch is gone on (?P<node>[a-z0-9-]{1,60})'
source = 'our own prologue, since 2026'
example = 'ERROR: scratch is gone on n17'
counterexample = 'WARNING: scratch is slow on n17'
"""


def _release() -> str:
    return f"slurm_recovery {version()}"
