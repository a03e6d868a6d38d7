"""Finds and reads signature files: the package's own and a site's.

Owns where they lie, and that their reasons are known; what else they may hold is detect/signature.py. A site's
signature replaces the package's of the same id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path

from slurm_recovery.attribute.reasons import REASONS
from slurm_recovery.detect.signature import Signature, SignatureError, order, parse_signatures
from slurm_recovery.records import Role


def load_signatures(site_folders: Sequence[Path] = ()) -> tuple[Signature, ...]:
    """All signatures in the order in which they are tried on a line.

    Every `*.toml` of the package and then of each folder is read; later files override earlier ones by id,
    but no file may name one id twice. Raises SignatureError for a file that cannot be read or used.
    """
    chosen: dict[str, Signature] = {}
    for origin, text in own_files():
        chosen.update(_by_id(parse_signatures(text, origin, proven=True), origin))
    for origin, text in _site(site_folders):
        found = parse_signatures(text, origin)
        for signature in found:
            check_reason(signature, origin)
        chosen.update(_by_id(found, origin))
    return tuple(sorted(chosen.values(), key=order))


def _by_id(found: Sequence[Signature], origin: str) -> dict[str, Signature]:
    named = {signature.id: signature for signature in found}
    if len(named) < len(found):
        names = [signature.id for signature in found]
        double = next(name for name in names if names.count(name) > 1)
        raise SignatureError(origin, double, "named twice in one file", "give each signature its own id")
    return named


def check_reason(signature: Signature, origin: str) -> None:
    """Raises SignatureError for a reason that is not in the table, or for a cause without one."""
    if signature.reason:
        if signature.reason not in REASONS:
            near = get_close_matches(signature.reason, REASONS, 1)
            hint = f"{near[0]}? All are listed by srecover explain --rules" if near else "see srecover explain --rules"
            raise SignatureError(origin, signature.id, f"reason: unknown: {signature.reason[:60]!r}", hint)
    elif signature.role in (Role.ROOT, Role.CONDITIONAL):
        hint = "name a reason, or write role = 'noise' or 'secondary'"
        raise SignatureError(origin, signature.id, f"reason: empty, and yet role {signature.role.value!r}", hint)


def own_files() -> Iterator[tuple[str, str]]:
    """The package's files: name and text."""
    folder = files("slurm_recovery.detect") / "signatures.d"
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        if entry.name.endswith(".toml"):
            yield entry.name, entry.read_text(encoding="utf-8")


def _site(folders: Sequence[Path]) -> Iterator[tuple[str, str]]:
    for folder in folders:
        if not folder.is_dir():
            raise SignatureError(str(folder), "folder", "not a folder", "correct the setting that names it")
        for path in sorted(folder.glob("*.toml")):
            try:
                yield str(path), path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise SignatureError(str(path), "file", f"unreadable: {error}", "UTF-8 text, mode 0644") from None
