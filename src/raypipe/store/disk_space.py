"""Room on the disk of a store: work that cannot fit is refused before it starts.

Knows local folders; of an object store nothing is known, and nothing is refused there.
"""

from __future__ import annotations

import shutil

from raypipe.store.database import Store
from raypipe.store.errors import DiskFull

RESERVE = 256 << 20  # bytes for what is written after the rows: commits, indexes, manifests, reports
RESERVE_SHARE = 0.05  # of the disk, where that is less


def need(store: Store, nbytes: int, what: str) -> None:
    """Raises DiskFull, with numbers, if `nbytes` and a reserve do not fit next to the store's tables."""
    if "://" in store.uri:
        return
    disk = shutil.disk_usage(store.uri)
    reserve = int(min(RESERVE, RESERVE_SHARE * disk.total))
    if disk.free < nbytes + reserve:
        raise DiskFull(
            f"{what} needs at least {_mb(nbytes)} at {store.uri} and {_mb(reserve)} to finish in; "
            f"{_mb(disk.free)} are free. Nothing was started. Free some, or run `raypipe prune`"
        )


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB"
