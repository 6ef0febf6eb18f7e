"""Fragments of a table written as fewer ones: all in this process, or group by group wherever.

Lance says which neighbouring fragments become one group. A group is written as files that no version names
yet; one commit puts them in the place of the old ones. Rows and their order stay. Knows Lance.
"""

from __future__ import annotations

from collections.abc import Iterable

from lance.optimize import Compaction, CompactionOptions, CompactionTask, RewriteResult

from raypipe.store.database import Store
from raypipe.store.errors import reaching

OPTIONS = CompactionOptions(num_threads=1, batch_size=1024)  # 22 MB of real texts at a time


def compact_here(store: Store, table: str, version: int) -> None:
    """Compacts a table, which stands at this version, in this process."""
    Compaction.execute(store.dataset(table, version), OPTIONS)


def table_bytes(store: Store, table: str, version: int) -> int:
    """Bytes of all rows of a table."""
    found = store.dataset(table, version).get_fragments()
    return sum(file.file_size_bytes for fragment in found for file in fragment.metadata.files)


def groups(store: Store, table: str, version: int) -> list[str]:
    """The groups of fragments that become one each, as Lance describes them."""
    return [group.json() for group in Compaction.plan(store.dataset(table, version), OPTIONS).tasks]


def write_group(store: Store, table: str, version: int, group: str) -> str:
    """Writes a group of fragments. Returns what was written, for `replace_groups`."""
    with reaching(store.table_uri(table)):
        written: str = CompactionTask.from_json(group).execute(store.dataset(table, version)).json()
    return written


def replace_groups(store: Store, table: str, version: int, written: Iterable[str]) -> None:
    """One commit that puts groups in the place of what they were written from."""
    Compaction.commit(store.dataset(table, version), list(map(RewriteResult.from_json, written)), OPTIONS)
