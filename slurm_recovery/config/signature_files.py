"""Finds and reads signature files: the package's own and a site's.

Owns where they lie; what they may hold is detect/signature.py. A site's signature replaces the package's
of the same id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path

from slurm_recovery.detect.signature import Signature, SignatureError, order, parse_signatures


def load_signatures(site_folders: Sequence[Path] = ()) -> tuple[Signature, ...]:
    """All signatures in the order in which they are tried on a line.

    Every `*.toml` of the package and then of each folder is read; later files override earlier ones by id,
    but no file may name one id twice. Raises SignatureError for a file that cannot be read or used.
    """
    chosen: dict[str, Signature] = {}
    for origin, text in (*_own(), *_site(site_folders)):
        found = parse_signatures(text, origin)
        names = [signature.id for signature in found]
        double = next((name for name in names if names.count(name) > 1), None)
        if double:
            raise SignatureError(origin, double, "named twice in one file", "give each signature its own id")
        chosen.update(zip(names, found, strict=True))
    return tuple(sorted(chosen.values(), key=order))


def _own() -> Iterator[tuple[str, str]]:
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
