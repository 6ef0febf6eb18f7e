"""Write events: each call of this process that changes what lies in a folder, seen before and after it.

Knows the functions by which raypipe writes: of the operating system (rename, link, sync, remove), of `Files`
(which removes through pyarrow) and of Lance. What others call is not seen, and neither are other processes.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, TypeAlias

Seen: TypeAlias = Callable[[str, bool], None]
"""Called with an event's name, before (False) and after (True) it."""


def _lance() -> list[tuple[Any, str]]:
    """(class, method) of Lance and LanceDB, each of which writes files or removes some."""
    import lance
    from lance.dataset import DatasetOptimizer, MergeInsertBuilder, Tags
    from lancedb.db import LanceDBConnection

    methods = (
        "commit delete create_scalar_index cleanup_old_versions update insert restore add_columns "
        "drop_columns alter_columns drop_index"
    )
    found: list[tuple[Any, str]] = [(lance.LanceDataset, name) for name in methods.split()]
    found += [(DatasetOptimizer, "compact_files"), (DatasetOptimizer, "optimize_indices")]
    found += [(MergeInsertBuilder, "execute"), (Tags, "create"), (Tags, "delete"), (Tags, "update")]
    return [*found, (LanceDBConnection, "create_table")]


def _fragment_writers() -> list[tuple[Any, str]]:
    """(module, name) where raypipe took Lance's `write_fragments` by name."""
    from lance import fragment

    ours = [m for name, m in sys.modules.items() if name.startswith("raypipe.")]
    held = [m for m in ours if getattr(m, "write_fragments", None) is fragment.write_fragments]
    return [(m, "write_fragments") for m in held]


def _ignored(fd: int) -> None:
    """Takes no note of a file that was synced."""


@contextmanager
def watched(root: Path, seen: Seen, synced: Callable[[int], None] = _ignored) -> Iterator[None]:
    """Tells `seen` of every write event under a folder while the block runs, one event at a time: while one
    is under way, other threads wait with theirs. `synced` gets each open file whose bytes were synced."""
    from raypipe.store.files import Files, _classed

    one = threading.RLock()
    put_back: list[tuple[Any, str, Any]] = []

    def wrapped(function: Any, name: Callable[..., str]) -> Any:
        @wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            event = name(*args)
            if not event:
                return function(*args, **named)
            with one:
                seen(event, False)
                try:
                    return function(*args, **named)
                finally:
                    if event.startswith("sync"):
                        synced(args[0])
                    seen(event, True)

        return call

    def patch(owner: Any, attribute: str, name: Callable[..., str]) -> None:
        held = inspect.getattr_static(owner, attribute)
        put_back.append((owner, attribute, held))
        static = isinstance(held, staticmethod)
        new = wrapped(held.__func__ if static else held, name)
        setattr(owner, attribute, staticmethod(new) if static else new)

    def under(verb: str, path: Any) -> str:
        """The event of a path; "" for one elsewhere."""
        path = os.fspath(path)
        return f"{verb} {kind(path[len(str(root)) + 1 :])}" if str(path).startswith(f"{root}{os.sep}") else ""

    for function in ("replace", "rename", "link"):
        patch(os, function, lambda source, target, *_, verb=function: under(verb, target))
    for function in ("unlink", "remove"):
        patch(os, function, lambda path, *_, verb=function: under(verb, path))
    patch(os, "fsync", lambda fd, *_: under("sync", os.readlink(f"/proc/self/fd/{fd}")))
    for method in ("remove", "remove_folder"):  # inside of what classes errors, as the file system's own are
        held = getattr(Files, method)
        put_back.append((Files, method, held))
        event = lambda files, name, *_, verb=method: under(verb, files._path(name))  # noqa: E731
        setattr(Files, method, _classed(wrapped(held.__wrapped__, event)))
    for owner, attribute in [*_lance(), *_fragment_writers()]:
        patch(owner, attribute, lambda *args, verb=attribute: f"lance {verb}")
    try:
        yield
    finally:
        for owner, attribute, held in put_back:
            setattr(owner, attribute, held)


def kind(path: str) -> str:
    """A path without what differs from run to run: digests, counters, moments.

    >>> kind("store/_runs/answers-0f1e2d3c4b5a69788796a5b4c3d2e1f0.json")
    'store/_runs/answers-*.json'
    >>> kind("store/_releases/r0001-12ab34cd.json")
    'store/_releases/r*-*.json'
    >>> kind("store/_releases/r0001-cacfbadf.json")
    'store/_releases/r*-*.json'
    """
    parts = path.split("/")
    return "/".join("".join(_plain(word) for word in _words(part)) for part in parts)


def _words(part: str) -> list[str]:
    """A name cut at its dots, dashes and underscores, which stay."""
    words, word = [], ""
    for c in part:
        if c in "-._":
            words += [word, c]
            word = ""
        else:
            word += c
    return [*words, word]


def _plain(word: str) -> str:
    counted = len(word) >= 6 and any(c.isdigit() for c in word)
    digest = len(word) >= 8 and set(word) <= set("0123456789abcdef")  # one in 2,500 of eight has no digit
    if re.fullmatch(r"r\d{4}", word):  # the number of a release: a killed promote takes one, too
        return "r*"
    return "*" if counted or digest else word
