"""Errors of a store, and the class of what Lance, Arrow and the file system raise: never a row's fault.

Lance reports the same trouble as OSError, ValueError, RuntimeError, an error of Arrow or a panic, and says in
words alone whether a disk is full. So the class is given here, where the call is made, to all of them: what a
caller may ask of a store is checked before. Knows no table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from raypipe.core.errors import DiskFull, RaypipeError, Unavailable, is_full

SHOWN = 2000  # characters of an error
_PLACE = re.compile(r"Permission denied|Not a directory|Is a directory|File exists|Read-only file system")


class StoreError(RaypipeError):
    """The store is not as it must be: a table or index is missing, rows are there twice, a lease is held."""

    exit_code = 2


class AddedMeanwhile(StoreError):
    """Another run added some of the same rows first. End the run and start again with what is missing now."""


class StoreUnavailable(Unavailable, OSError):
    """The store cannot be read or written now: an object store that refuses, a file that is cut or gone."""


def is_of_the_place(error: StoreUnavailable) -> bool:
    """Returns whether an address can never hold a store: a file is in the way, or it is read-only."""
    return _PLACE.search(str(error.__cause__)) is not None


def says_absent(error: ValueError) -> bool:
    """Returns whether Lance says that a table or a version is not there. It raises ValueError, too, where the
    table cannot be opened: an object store that refuses, a manifest that is cut."""
    said = str(error)  # of a version in a bucket it repeats the status
    return " was not found: " in said and ("Not found: " in said or "404 Not Found" in said)


@contextmanager
def reaching(what: str) -> Iterator[None]:
    """A block that only calls Lance, Arrow and the file system; `what` it reads or writes. Raises
    StoreUnavailable or DiskFull for all that these raise."""
    try:
        yield
    except RaypipeError:
        raise
    except BaseException as e:
        # Lance's Rust panics on a file that is not what its head says.
        if not isinstance(e, (Exception, pa.lib.ArrowException)) and type(e).__name__ != "PanicException":
            raise
        if is_full(e):
            raise DiskFull(
                f"{what}: the disk is full. What was stored before stays readable; free some space and run "
                f"the same command again: {str(e)[:SHOWN]}"
            ) from e
        raise StoreUnavailable(
            f"{what} cannot be reached now: {type(e).__name__}: {str(e)[:SHOWN]}. Nothing that is stored is "
            "lost: run the same command again when the store is well"
        ) from e
