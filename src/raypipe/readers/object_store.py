"""Copying of a run's data files and reports between an object store and local files.

Data files are read from front to back many times, and reports are small, so both are copied whole. Tables are
not copied: `store/` reads and writes them in place. Every store that pyarrow supports works; pyarrow takes
the credentials from the environment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, LocalFileSystem, copy_files

from raypipe.core.backoff import Backoff
from raypipe.core.errors import DataError, unstopped
from raypipe.core.records import digest

TRIES = 4  # attempts to copy one object


def is_remote(place: str) -> bool:
    return "://" in place


def download(uri: str, cache: Path, wanted: Callable[[str], bool] = lambda below: True) -> Path:
    """Downloads an object, or the objects below a prefix, into `cache`. Returns the path of the file or
    folder. `wanted` selects objects by their paths below the prefix, and a single object by its name. Copies
    of unchanged objects are kept, and copies of missing objects deleted. Raises DataError if an object cannot
    be read, or if none exists."""
    try:
        system, path = FileSystem.from_uri(uri)
        info = system.get_file_info(path)
        inside = FileSelector(path, recursive=True, allow_not_found=True)
        below = [info] if info.type is FileType.File else system.get_file_info(inside)
        found = [f for f in below if f.type is FileType.File]
    except (OSError, pa.ArrowInvalid) as e:
        raise DataError(
            f"{uri}: cannot be read: {unstopped(e)}. Check the address and the environment's keys"
        ) from e
    if not found:
        raise DataError(f"{uri}: nothing is there. Expected an object, or a prefix with objects below it")
    home = cache / digest(uri)[:16] / Path(path).name
    copies = {home / info.path.removeprefix(path).lstrip("/"): info for info in found}
    for sign in [*home.rglob(f"*{_SIGN}")]:  # deletes copies of objects that no longer exist
        if (copy := sign.with_suffix("")) not in copies:
            copy.unlink(missing_ok=True)
            sign.unlink(missing_ok=True)
    for copy, info in copies.items():
        if wanted(home.name if copy == home else copy.relative_to(home).as_posix()):
            _fetch(system, info, copy, uri)
    return home


_SIGN = ".fetched"  # NAME.fetched next to a copy NAME holds the size and time of the copied object


def _fetch(system: FileSystem, info: FileInfo, here: Path, uri: str) -> None:
    """Downloads one object to the file `here`, atomically, unless it already holds this version (`_SIGN`)."""
    sign = here.with_name(here.name + _SIGN)
    wanted = f"{info.size} {info.mtime_ns}"
    if here.is_file() and sign.is_file() and sign.read_text() == wanted:
        return
    here.parent.mkdir(parents=True, exist_ok=True)
    staged = here.with_name(here.name + ".part")

    def copy() -> None:
        copy_files(info.path, str(staged), source_filesystem=system, destination_filesystem=LocalFileSystem())

    try:
        copy_with_retries(copy)
    except OSError as e:
        raise DataError(f"{uri}: {info.path} broke off: {unstopped(e)}. Start again") from e
    sign.unlink(missing_ok=True)
    staged.replace(here)
    sign.write_text(wanted)


def copy_with_retries(copy: Callable[[], None], pause: Callable[[float], None] = time.sleep) -> None:
    """Calls `copy`, which copies one object, until it succeeds, at most TRIES times. Then raises the last
    OSError. Retries are needed, since the stores' clients do not retry a transfer that breaks off in the
    middle. An OSError with an errno comes from this machine (no permission, disk full) and is not retried."""
    backoff = Backoff(TRIES, first_s=0.5)
    while True:
        try:
            return copy()
        except OSError as e:
            if e.errno is not None or (wait_s := backoff.next_s()) is None:
                raise
        pause(wait_s)


def upload(folder: Path, uri: str, last: Iterable[str] = ()) -> None:
    """Copies every file below a folder to a prefix; files with a name in `last` are copied at the end. Their
    old copies are deleted first: while a file of `last` is at the prefix, all other files there are complete.
    Raises DataError if a file cannot be read or written."""
    ending = tuple(last)
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    try:
        system, path = FileSystem.from_uri(uri)
        targets = {f: f"{path.rstrip('/')}/{f.relative_to(folder).as_posix()}" for f in files}
        for file in (f for f in files if f.name in ending):
            with suppress(FileNotFoundError):
                system.delete_file(targets[file])
        for file in sorted(files, key=lambda p: p.name in ending):
            target = targets[file]
            if isinstance(system, LocalFileSystem):  # an object store has no folders to make
                system.create_dir(target.rpartition("/")[0])

            def write(file: Path = file, target: str = target) -> None:
                with system.open_output_stream(target) as out:
                    out.write(file.read_bytes())

            copy_with_retries(write)
    except (OSError, pa.ArrowInvalid) as e:
        raise DataError(f"{uri}: cannot be written: {unstopped(e)}. Its content is in {folder}") from e
