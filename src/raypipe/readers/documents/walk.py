"""The files of a folder, found and opened safely.

A file is judged by its `stat` before it is opened: opening a pipe blocks, and two gigabytes of nothing cost
as much as two gigabytes. Links are followed where they stay inside the folder, each file once. Knows names
and sizes, nothing of what is inside.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from raypipe.core.errors import DataError
from raypipe.readers.rows import DocumentLimits, UnusableLine

LEVELS = 100  # of folders in folders


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file of a folder, not opened yet; or an entry that is none."""

    name: str  # path from the folder, with /; what is no UTF-8 in it as Python has it, as surrogates
    path: Path  # where it is opened
    size: int
    mtime_ns: int
    inode: int
    trouble: UnusableLine | None = None  # why it cannot be read

    @property
    def state(self) -> tuple[int, int, int]:
        """Equal states mean that a file was not written since."""
        return self.size, self.mtime_ns, self.inode

    @property
    def url(self) -> str:
        """The path as a relative address: the bytes of its name, so a name in Latin-1 has one, too."""
        return quote(os.fsencode(self.name))

    @property
    def shown(self) -> str:
        """The path as text that can be stored."""
        return os.fsencode(self.name).decode(errors="replace")


def walk(root: Path, globs: Sequence[str], limits: DocumentLimits) -> Iterator[FoundFile]:
    """The files under a folder, or the file itself, in name order. Names that begin with a dot are left out.

    `globs` are patterns of paths from the folder, `*` for anything; a file must match one of them, and none
    that begins with `!`. Raises DataError for a folder that is not there or cannot be listed.
    """
    if not root.exists():
        raise DataError(f"{root}: no such file or folder. Check the path")
    if not root.is_dir():
        yield _found(root, root.name, root, limits)
        return
    real = root.resolve()
    seen: set[tuple[int, int]] = set()
    for path in _entries(root, real, {_identity(os.stat(real))}):
        name = path.relative_to(root).as_posix()
        if not wanted(name, globs):
            continue
        found = _found(path, name, real, limits)
        if found.trouble is None:
            identity = _identity(os.stat(path))
            if identity in seen:
                continue  # a second link to a file that is read already
            seen.add(identity)
        yield found


def wanted(name: str, globs: Sequence[str]) -> bool:
    """Returns whether a path matches.

    >>> wanted("a/b.pdf", ["*.pdf"]), wanted("a/b.pdf", ["*.pdf", "!a/*"]), wanted("a", [])
    (True, False, True)
    """

    def matches(glob: str) -> bool:
        return any(fnmatch.fnmatchcase(name, g) for g in (glob, glob.removeprefix("**/")))

    takes = [g for g in globs if not g.startswith("!")]
    if any(matches(g[1:]) for g in globs if g.startswith("!")):
        return False
    return not takes or any(map(matches, takes))


def _entries(folder: Path, real: Path, above: set[tuple[int, int]]) -> Iterator[Path]:
    """Everything below a folder that is no folder, and folders that cannot be entered, in name order."""
    try:
        entries = sorted(os.scandir(folder), key=lambda e: e.name)
    except OSError:
        yield folder  # `_found` says why
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        path = Path(entry.path)
        try:
            inside = entry.is_dir() and path.resolve().is_relative_to(real)
            identity = _identity(os.stat(path)) if inside else None
        except (OSError, RuntimeError):  # a link to itself
            identity = None
        if identity is None or identity in above or len(above) > LEVELS:
            yield path
        else:
            yield from _entries(path, real, above | {identity})


def _found(path: Path, name: str, root: Path, limits: DocumentLimits) -> FoundFile:
    try:
        own = os.lstat(path)
        seen = os.stat(path)
    except (OSError, RuntimeError) as e:
        why = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
        if isinstance(e, FileNotFoundError):
            why = "a link to something that is not there"
        elif isinstance(e, PermissionError):
            why = "permission denied"
        return _bad(path, name, "loop" if "symbolic link" in why.lower() else "unreadable", why)
    if stat.S_ISLNK(own.st_mode) and root.is_dir() and not path.resolve().is_relative_to(root):
        return _bad(path, name, "outside", "a link that leaves the folder is not followed")
    if stat.S_ISDIR(seen.st_mode):
        if stat.S_ISLNK(own.st_mode):
            return _bad(path, name, "loop", "a link to a folder that it lies in")
        if not os.access(path, os.R_OK | os.X_OK):
            return _bad(path, name, "unreadable", "expected a folder that may be listed: permission denied")
        return _bad(path, name, "loop", f"expected at most {LEVELS} folders in each other")
    if not stat.S_ISREG(seen.st_mode):
        pipe, socket = stat.S_ISFIFO(seen.st_mode), stat.S_ISSOCK(seen.st_mode)
        found = "a named pipe" if pipe else "a socket" if socket else "a device"
        return _bad(path, name, "not_a_file", f"expected a file, found {found}")
    trouble = None
    if seen.st_size > limits.file_bytes:
        detail = f"expected at most {limits.file_bytes:,} bytes, found {seen.st_size:,}"
        trouble = UnusableLine("too_large", detail)
    return FoundFile(name, path.resolve(), seen.st_size, seen.st_mtime_ns, seen.st_ino, trouble)


def _bad(path: Path, name: str, reason: str, detail: str) -> FoundFile:
    return FoundFile(name, path, 0, 0, 0, UnusableLine(reason, detail))


def _identity(seen: os.stat_result) -> tuple[int, int]:
    return seen.st_dev, seen.st_ino


def fresh_bytes(file: FoundFile) -> bytes:
    """The content of a file. Raises UnusableLine where it cannot be read, or is no longer the file that was
    found: opened without waiting, following no link."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(file.path, flags)
        with os.fdopen(handle, "rb") as stream:
            seen = os.fstat(stream.fileno())
            if not stat.S_ISREG(seen.st_mode) or (seen.st_size, seen.st_ino) != (file.size, file.inode):
                raise UnusableLine("changed", "the file changed while the folder was read: ingest again")
            return stream.read(file.size + 1)[: file.size]
    except OSError as e:
        raise UnusableLine("unreadable", f"expected a file that can be read: {e.strerror}") from e


def content_digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
