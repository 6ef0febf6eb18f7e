"""Errors of a store, and the translation of errors of Lance, Arrow and the file system. No row is to blame.

Lance reports the same trouble as OSError, ValueError, RuntimeError, an Arrow error or a panic. Only its
message tells whether a disk is full. So `reaching` wraps each such call and translates all of these errors.
Callers must check their arguments first, because a wrong argument would look like trouble of the store.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from raypipe.core.errors import DiskFull, RaypipeError, Unavailable, is_full, unstopped

SHOWN = 2000  # characters of an error that a message repeats
NO_PLACE = re.compile(  # a file blocks the path, it is read-only, or its bucket is missing
    r"Permission denied|Not a directory|Is a directory|File exists|Read-only file system|NoSuchBucket"
    r"|[Bb]ucket '[^']{1,63}' not found|bucket does not exist|Unrecognized filesystem type"
)


class StoreError(RaypipeError):
    """A store that cannot be used as it is: a table is missing, or a forget (of a text) is unfinished."""

    exit_code = 2


class StoreInUse(StoreError):
    """A lease refused because a living process holds it. Once that process ends, the command succeeds."""

    exit_code = Unavailable.exit_code


class AddedMeanwhile(StoreError):
    """A conflict: another run added some of the same rows first. End the run; plan what is missing now."""


class StoreUnavailable(Unavailable, OSError):
    """A store that cannot be read or written now: an object store refuses, a file is truncated or missing."""


def says_absent(error: ValueError) -> bool:
    """Returns whether a ValueError of Lance means that a table or version does not exist. Lance also raises
    ValueError for a table that it cannot open: the object store refuses, or a manifest is truncated."""
    message = str(error)  # for a version in a bucket, the message repeats the HTTP status
    return " was not found: " in message and ("Not found: " in message or "404 Not Found" in message)


@contextmanager
def reaching(what: str) -> Iterator[None]:
    """Translates errors of a block into DiskFull or StoreUnavailable; a RaypipeError passes unchanged. The
    block calls only Lance, Arrow and the file system. `what` names the data that it reads or writes."""
    try:
        yield
    except RaypipeError:
        raise
    except BaseException as e:
        # Lance's Rust code panics on a file whose content contradicts its header.
        if not isinstance(e, (Exception, pa.lib.ArrowException)) and type(e).__name__ != "PanicException":
            raise
        if is_full(e):
            raise DiskFull(
                f"{what}: the disk is full. What was stored before stays readable; free some space and run "
                f"the same command again: {str(e)[:SHOWN]}"
            ) from e
        unset = "resolving region" in str(e)
        named = ". Set AWS_REGION, and for another store than Amazon's AWS_ENDPOINT_URL" if unset else ""
        raise StoreUnavailable(
            f"{what} cannot be reached now: {type(e).__name__}: {unstopped(e)[:SHOWN]}. Nothing that is "
            f"stored is lost: run the same command again when the store is well{named}"
        ) from e
