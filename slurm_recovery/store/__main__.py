"""`python -m slurm_recovery.store URL`: open the store once, which makes or upgrades its schema."""

from __future__ import annotations

import sys

from slurm_recovery.store.errors import StoreError
from slurm_recovery.store.store import Store

try:
    Store.open(sys.argv[1]).close()
except StoreError as error:
    sys.exit(str(error))
