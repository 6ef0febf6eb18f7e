"""Which memo tables have lost values: a damaged file, a table that was dropped.

A plan takes what a finished run asked for cached as long as its table never lost anything. Notes are empty
files, one for each loss, so that processes need not agree on an order.
"""

from __future__ import annotations

from raypipe.core.records import digest
from raypipe.store.database import Store
from raypipe.store.layout import MEMO, MEMO_LOSSES


def note_loss(store: Store, table: str, what: str) -> None:
    """Notes that values of a memo table are gone. `what` names the loss: the same one twice is one note."""
    store.files.write(f"{MEMO_LOSSES}/{table}/{digest(what)}", b"")


def has_lost(store: Store, table: str) -> bool:
    """Whether values of a memo table are gone, or lie in a damaged file that is not merged yet. A table that
    is not there has lost whatever it held."""
    if store.files.names(f"{MEMO_LOSSES}/{table}"):
        return True
    names = store.files.names(f"{MEMO}/{table}")
    if not names and not store.has(table):
        return True
    return any(
        content is not None and not intact(name, content)
        for name in names
        if (content := store.files.read(f"{MEMO}/{table}/{name}")) is not None
    )


def intact(name: str, content: bytes) -> bool:
    """Whether a cache file holds what its writer put there: its name is the digest of its content."""
    return digest(content) == name.removesuffix(".arrow")
