"""Batches of rows, and a map of texts on disk, for any number of rows in bounded memory."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from itertools import islice
from tempfile import gettempdir
from typing import TypeVar

from raypipe.core.errors import Unavailable

T = TypeVar("T")


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yields lists of `size` items, in order; the last may be shorter.

    >>> list(batches("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some


CACHE_KIB = 2048  # pages in memory, room for 20,000 ids; others come from the file system's cache


class DiskMap:
    """Map of text to text in a temporary file of this process. `setdefault` keeps the first value of a key,
    `setmax` keeps the greatest value. Keys are stored as hashes (`key_of`).

    >>> seen = DiskMap()
    >>> seen.setdefault("a", "1"), seen.setdefault("a", "2"), "a" in seen, "b" in seen
    ('1', '1', True, False)
    """

    def __init__(self) -> None:
        # "": an unnamed temporary file; the system removes it when it is closed.
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for pragma in (f"cache_size=-{CACHE_KIB}", "journal_mode=OFF", "synchronous=OFF"):
            self._run(f"PRAGMA {pragma}")
        self._run("CREATE TABLE found (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")

    def setdefault(self, key: str, value: str) -> str:
        """Sets the value of a key that is absent. Returns the stored value of the key."""
        name, given = key_of(key), value.encode("utf-8", "surrogatepass")
        done = self._run("INSERT OR IGNORE INTO found VALUES (?, ?)", (name, given))
        if done.rowcount:
            return value
        [(first,)] = self._run("SELECT value FROM found WHERE key = ?", (name,))
        return str(first, "utf-8", "surrogatepass")

    def setmax(self, key: str, value: str) -> None:
        """Sets the value of a key that is absent or has a smaller value."""
        self._run(
            "INSERT INTO found VALUES (?, ?) "
            "ON CONFLICT (key) DO UPDATE SET value = excluded.value WHERE excluded.value > value",
            (key_of(key), value.encode("utf-8", "surrogatepass")),
        )

    def get(self, key: str, default: str) -> str:
        found = self._run("SELECT value FROM found WHERE key = ?", (key_of(key),)).fetchone()
        return default if found is None else str(found[0], "utf-8", "surrogatepass")

    def update(self, keys: Iterable[str]) -> None:
        """Adds absent keys, with an empty value."""
        for key in keys:
            self._run("INSERT OR IGNORE INTO found VALUES (?, x'')", (key_of(key),))

    def items(self) -> Iterator[tuple[bytes, str]]:
        """Yields (`key_of(key)`, value) for every key, ordered by the hash."""
        for key, value in self._run("SELECT key, value FROM found ORDER BY key"):
            yield key, str(value, "utf-8", "surrogatepass")

    def __contains__(self, key: str) -> bool:
        found = self._run("SELECT 1 FROM found WHERE key = ?", (key_of(key),))
        return found.fetchone() is not None

    def _run(self, sql: str, values: tuple[bytes, ...] = ()) -> sqlite3.Cursor:
        """Executes a statement. Raises Unavailable if the temporary file cannot grow."""
        try:
            return self._db.execute(sql, values)
        except sqlite3.OperationalError as e:
            raise Unavailable(
                f"{gettempdir()}, the folder of temporary files, cannot take the ids of what is read: {e}. "
                f"Free some space there, or set TMPDIR to another folder"
            ) from e


def key_of(key: str) -> bytes:
    """Hashes a key of any length to 16 bytes. The key may hold lone surrogates, which UTF-8 cannot encode."""
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
