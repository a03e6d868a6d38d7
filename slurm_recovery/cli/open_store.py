"""`python -m slurm_recovery.cli.open_store RECOVERY_CONF`: open its store once, which makes or upgrades the schema.

The file is named, not the URL, which may hold a password that every user would see in `ps`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from slurm_recovery.config.confile import ConfigError
from slurm_recovery.config.load import load
from slurm_recovery.store.errors import StoreError
from slurm_recovery.store.store import Store

if __name__ == "__main__":
    try:
        Store.open(load(Path(sys.argv[1])).settings.url).close()
    except (ConfigError, StoreError) as error:
        sys.exit(str(error))
