"""Changes of a table that a power cut may meet: Lance syncs none of the files that it writes.

While a table is changed, a small file names the version before. It goes when all that the change wrote is on
disk, and what the change makes needless (completion records, cached values) goes only after that. A driver
that finds such a file after a restart of the machine takes the table back to that version: the same work is
then missing, and done again. After a kill without a restart nothing is lost, and the files are synced then.
On an object store a file is durable when its upload is complete; nothing is done there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from raypipe.store.files import Files
from raypipe.store.layout import CHANGING

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_LAST = 2**64 - 1  # Lance names the manifest of version v by this minus v, so that the newest comes first


@contextmanager
def durable(files: Files, table: str) -> Iterator[None]:
    """Around a change of a table: when the block ends, all files that it wrote are on disk."""
    if not files.local:
        yield
        return
    restore(files, table)
    found = map(manifest_version, files.names(f"{table}.lance/_versions"))
    version = max((v for v in found if v is not None), default=0)  # 0: there is none
    before = set(files.walk(f"{table}.lance"))
    files.write(_note(table), json.dumps({"version": version, "boot": boot()}).encode())
    files.sync(CHANGING)  # the folder: the name is to be there before anything of the change is
    try:
        yield
    finally:
        _sync(files, (name for name in files.walk(f"{table}.lance") if name not in before))
        files.remove(_note(table))


def restore_all(files: Files) -> None:
    """Ends every change that a driver began and did not end. Only the holder of the driver's lease may."""
    for name in files.names(CHANGING) if files.local else ():
        restore(files, name.removesuffix(".json"))


def restore(files: Files, table: str) -> None:
    """Takes a table back to the version before an unfinished change, if the machine was started since."""
    raw = files.read(_note(table))
    if raw is None:
        return
    found = json.loads(raw)
    if found["boot"] != boot():
        _take_back(files, table, found["version"])
    _sync(files, files.walk(f"{table}.lance"))
    files.remove(_note(table))


def _sync(files: Files, names: Iterable[str]) -> None:
    for name in names:
        try:
            files.sync(name)
        except OSError:
            if files.size(name) is not None:
                raise  # else: a worker's or another driver's, which has its last name by now


def boot() -> str:
    """Names the time since the machine was started."""
    return _BOOT.read_text().strip() if _BOOT.exists() else str(int(psutil.boot_time()))


def _take_back(files: Files, table: str, version: int) -> None:
    """Removes the manifests of later versions; a table that had no version goes."""
    folder = f"{table}.lance"
    if version == 0:
        files.remove_folder(folder)
        return
    for name in files.names(f"{folder}/_versions"):
        if (of := manifest_version(name)) is None or of > version:  # with the hint which one is the newest
            files.remove(f"{folder}/_versions/{name}")


def manifest_version(name: str) -> int | None:
    """The version of a manifest; None for another file."""
    stem, _, end = name.rpartition(".")
    if end != "manifest" or not stem.isdigit():
        return None
    return _LAST - int(stem) if len(stem) == len(str(_LAST)) else int(stem)


def _note(table: str) -> str:
    return f"{CHANGING}/{table}.json"
