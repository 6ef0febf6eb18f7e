"""Rows of any number in bounded memory: some at a time, and a map of texts that lies on disk.

The map is temporary, belongs to one process and is gone with it. Memory holds a cache of fixed size.
"""

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
    """The items in order, `size` at a time.

    >>> list(batches("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some


CACHE_KIB = 2048  # of pages in memory; 20,000 ids fit, the rest is read from the file system's own cache


class DiskMap:
    """Text -> text, each key with its first value, or its greatest.

    >>> seen = DiskMap()
    >>> seen.setdefault("a", "1"), seen.setdefault("a", "2"), "a" in seen, "b" in seen
    ('1', '1', True, False)
    """

    def __init__(self) -> None:
        # "": a file without a name, which the system removes when it is closed.
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for pragma in (f"cache_size=-{CACHE_KIB}", "journal_mode=OFF", "synchronous=OFF"):
            self._run(f"PRAGMA {pragma}")
        self._run("CREATE TABLE found (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")

    def setdefault(self, key: str, value: str) -> str:
        """The value of a key, which is set if there was none."""
        name, given = key_of(key), value.encode("utf-8", "surrogatepass")
        done = self._run("INSERT OR IGNORE INTO found VALUES (?, ?)", (name, given))
        if done.rowcount:
            return value
        [(first,)] = self._run("SELECT value FROM found WHERE key = ?", (name,))
        return str(first, "utf-8", "surrogatepass")

    def setmax(self, key: str, value: str) -> None:
        """Sets a key, where it had none or a smaller value."""
        self._run(
            "INSERT INTO found VALUES (?, ?) "
            "ON CONFLICT (key) DO UPDATE SET value = excluded.value WHERE excluded.value > value",
            (key_of(key), value.encode("utf-8", "surrogatepass")),
        )

    def get(self, key: str, default: str) -> str:
        found = self._run("SELECT value FROM found WHERE key = ?", (key_of(key),)).fetchone()
        return default if found is None else str(found[0], "utf-8", "surrogatepass")

    def update(self, keys: Iterable[str]) -> None:
        """Puts in keys whose value does not matter."""
        for key in keys:
            self._run("INSERT OR IGNORE INTO found VALUES (?, x'')", (key_of(key),))

    def items(self) -> Iterator[tuple[bytes, str]]:
        """(`key_of` a key, value) of every key, by the bytes of the first."""
        for key, value in self._run("SELECT key, value FROM found ORDER BY key"):
            yield key, str(value, "utf-8", "surrogatepass")

    def __contains__(self, key: str) -> bool:
        found = self._run("SELECT 1 FROM found WHERE key = ?", (key_of(key),))
        return found.fetchone() is not None

    def _run(self, sql: str, values: tuple[bytes, ...] = ()) -> sqlite3.Cursor:
        """Raises Unavailable where the temporary file cannot grow."""
        try:
            return self._db.execute(sql, values)
        except sqlite3.OperationalError as e:
            raise Unavailable(
                f"{gettempdir()}, the folder of temporary files, cannot take the ids of what is read: {e}. "
                f"Free some space there, or set TMPDIR to another folder. What is stored stays readable"
            ) from e


def key_of(key: str) -> bytes:
    """Sixteen bytes for a key of any length, which may hold what no UTF-8 can."""
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
