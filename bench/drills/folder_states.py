"""States of a folder after each of its write events: paths, and bytes kept once under their digest.

`crash.py` ends a life in each of them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from life import Calls

from raypipe.core.records import digest

ONCE = (".lance", ".manifest", ".txn")  # endings of names that are used for one content

Listing: TypeAlias = dict[str, str]
"""Path of a file -> digest of its bytes; path of a folder with a slash at its end -> ""."""


@dataclass(frozen=True, slots=True)
class State:
    """The folder at one moment."""

    event: str
    command: int  # in COMMANDS
    asked: int  # inputs that models had got in this command
    listing: Listing
    unsynced: frozenset[str]  # paths whose bytes may not be on disk yet


class Recorder:
    """Keeps the folder of a life after each of its events: bytes once, under their digest, in `pool`."""

    def __init__(self, root: Path, pool: Path) -> None:
        self._root, self._pool = root, pool
        self._known: dict[str, tuple[tuple[int, int, int], str]] = {}  # path -> (inode and so on, digest)
        self._synced: set[tuple[int, int, int]] = set()
        self.states: list[State] = []
        self.command, self.calls, self.events = 0, Calls(), 0

    def seen(self, event: str, done: bool) -> None:
        """Keeps the state after an event; before it, where something has changed since the last one."""
        listing, unsynced = self._look()
        self.events += done
        if done or not self.states or listing != self.states[-1].listing:
            name = event if done else f"before {event}"
            self.states.append(State(name, self.command, self.calls.total, listing, unsynced))

    def synced(self, fd: int) -> None:
        """Notes that the bytes of an open file are on disk."""
        self._synced.add(_mark(os.fstat(fd)))

    def _look(self) -> tuple[Listing, frozenset[str]]:
        listing: Listing = {}
        unsynced = set()
        for folder, _names, names in os.walk(self._root):
            inside = os.path.relpath(folder, self._root)
            listing[f"{inside}/"] = ""
            for name in names:
                path = os.path.normpath(os.path.join(inside, name))
                try:
                    listing[path], mark = self._keep(path)
                except FileNotFoundError:  # another thread's, gone meanwhile
                    continue
                if mark not in self._synced:
                    unsynced.add(path)
        return listing, frozenset(unsynced)

    def _keep(self, path: str) -> tuple[str, tuple[int, int, int]]:
        """The digest of a file's bytes. Names of Lance's files are used once; others are read each time:
        a clock of 4 ms cannot tell two of one inode and length apart."""
        mark = _mark(os.stat(self._root / path))
        if path.endswith(ONCE) and (known := self._known.get(path)) is not None and known[0] == mark:
            return known[1], mark
        content = (self._root / path).read_bytes()
        key = digest(content)
        if not (self._pool / key).exists():
            (self._pool / key).write_bytes(content)
        self._known[path] = mark, key
        return key, mark


def _mark(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns
