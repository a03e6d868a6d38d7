"""Whose files StateDir holds: SlurmUser's. A command that root runs becomes that user before it opens them.

Otherwise a database or a lock made by root would lock SlurmUser's hooks out.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import NamedTuple


class Account(NamedTuple):
    """A user to run as."""

    name: str
    uid: int
    gid: int

    def process(self) -> dict[str, object]:
        """The arguments by which subprocess.run starts a child as this user."""
        if os.geteuid() != 0 or self.uid == 0:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": os.getgrouplist(self.name, self.gid)}


def account(name: str) -> Account:
    """The account of that name. Raises KeyError where there is none."""
    entry = pwd.getpwnam(name)
    return Account(name, entry.pw_uid, entry.pw_gid)


def become_owner(state_dir: Path) -> None:
    """For root only: take the identity of StateDir's owner, for good."""
    if os.geteuid() != 0:
        return
    try:
        owner = state_dir.stat().st_uid
        entry = pwd.getpwuid(owner)
    except (OSError, KeyError):
        return
    if owner != 0:
        os.initgroups(entry.pw_name, entry.pw_gid)
        os.setresgid(entry.pw_gid, entry.pw_gid, entry.pw_gid)
        os.setresuid(owner, owner, owner)
