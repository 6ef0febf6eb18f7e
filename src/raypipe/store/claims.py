"""Exclusive creation: of all processes that try to make a file of one name, one succeeds.

In a local folder that is a hard link. On an object store it is a conditional put (`If-None-Match: *`), which
Lance makes when it creates a table: a claim is the first version of a table of one row next to the file.
Knows files; does not know what they mean.
"""

from __future__ import annotations

import lance
import pyarrow as pa

from raypipe.store.errors import StoreError, reaching, says_absent
from raypipe.store.files import Files

_CLAIM = ".claim"  # of the table that an object store has next to the file


def claim(files: Files, name: str, content: bytes) -> bool:
    """Makes a file that is not there; True if this call made it. Raises StoreError on an object store that
    lets two make it."""
    if files.local:
        return files.create(name, content)
    if not _create(files, name, content):
        return False
    if _create(files, name, content):
        raise StoreError(
            f"{files.uri}: expected an object store with conditional writes (If-None-Match), found one that "
            "lets two processes create the same object, so no process can hold the store alone. Use a "
            "local folder, or a store that has them: S3, Google Cloud Storage, Azure, MinIO"
        )
    files.write(name, content)
    return True


def _create(files: Files, name: str, content: bytes) -> bool:
    with reaching(_table(files, name)):
        try:
            lance.write_dataset(pa.table({"content": [content]}), _table(files, name), mode="create")
        except OSError as e:
            if "already exists" in str(e):
                return False
            raise
    return True


def claimed(files: Files, name: str) -> bytes | None:
    """What the file holds now, or held when it was claimed; None if it never was."""
    content = files.read(name)
    if content is not None or files.local:
        return content
    with reaching(_table(files, name)):
        try:
            found: bytes = lance.dataset(_table(files, name)).to_table()["content"][0].as_py()
        except ValueError as e:
            if says_absent(e):
                return None
            raise
    return found


def claims(files: Files, folder: str) -> list[str]:
    """Names of the files in a folder that are claimed, sorted."""
    return sorted({name.removesuffix(_CLAIM) for name in files.names(folder)})


def unclaim(files: Files, name: str) -> None:
    """Removes a file, so that it can be claimed again; one that is gone already is no error."""
    files.remove(name)
    if not files.local:
        files.remove_folder(f"{name}{_CLAIM}")


def _table(files: Files, name: str) -> str:
    return f"{files.uri}/{name}{_CLAIM}"
