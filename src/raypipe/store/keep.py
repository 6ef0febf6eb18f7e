"""What stays in a store and what goes: tags that protect a version, tables and rows that are taken out.

Knows Lance's tags, deletions and cleanup. Does not know why something may go: `release.py` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from raypipe.store.database import LOOKUP_KEYS, Store, quoted
from raypipe.store.files import StoreError

KEPT = timedelta(days=1)  # a version that is younger may still be read by a run or a request


def tag(store: Store, table: str, name: str, version: int) -> None:
    """Protects a version of a table under a name. Raises StoreError if the version is gone."""
    tags = store.dataset(table, version).tags
    if name not in tags.list():
        tags.create(name, version)
    elif tags.list()[name]["version"] != version:
        raise StoreError(f"table {table} at {store.uri} has tag {name} at another version than {version}")


def untag(store: Store, table: str, name: str) -> None:
    """Takes a tag away; one that is gone already is no error."""
    if store.has(table) and name in store.dataset(table).tags.list():
        store.dataset(table).tags.delete(name)


def tagged(store: Store, table: str) -> dict[str, int]:
    """Tag -> version of a table."""
    return {name: t["version"] for name, t in store.dataset(table).tags.list().items()}


def tables(store: Store) -> list[str]:
    """Every table of a store."""
    names = [n.removesuffix(".lance") for n in store.files.names("") if n.endswith(".lance")]
    return [n for n in names if store.has(n)]


def drop(store: Store, table: str) -> None:
    """Removes a table with all its versions. Raises StoreError for one with a tag."""
    if found := tagged(store, table):
        raise StoreError(f"table {table} at {store.uri} is protected by {', '.join(sorted(found))}")
    store.files.remove_folder(f"{table}.lance")


def delete_rows(store: Store, table: str, column: str, values: Sequence[str]) -> None:
    """Takes rows out of the newest version of a table; older versions keep them."""
    for at in range(0, len(values), LOOKUP_KEYS):
        store.dataset(table).delete(f"{column} IN ({quoted(values[at : at + LOOKUP_KEYS])})")


def clean(store: Store, table: str) -> int:
    """Removes versions older than KEPT that no tag protects; the bytes that this frees."""
    stats = store.dataset(table).cleanup_old_versions(older_than=KEPT, error_if_tagged_old_versions=False)
    freed: int = stats.bytes_removed
    return freed
