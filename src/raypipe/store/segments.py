"""Small JSON files of a store: one record per file, or one record per line of a segment.

A segment is a file of lines that is written once, because several processes write at the same time and an
object in an object store cannot grow. Its name is `<milliseconds since the epoch>-<digits>.jsonl`: readers
and sweeps skip segments by this time, without opening them. This module does not depend on the records'
meaning.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pydantic_core import to_jsonable_python

from raypipe.core import config
from raypipe.core.config import Where
from raypipe.core.errors import ConfError
from raypipe.core.textfile import json_lines
from raypipe.store.database import Store
from raypipe.store.errors import StoreError
from raypipe.store.files import MARK, Files

ENDING = ".jsonl"


def write_segment(files: Files, folder: str, lines: Sequence[Mapping[str, Any]], now: float) -> str:
    """Writes lines as one file and returns its name. After a kill, the file is whole or missing. `now` is the
    time in seconds since the epoch. Raises StoreError if there is no store."""
    if files.size(MARK) is None:  # a write must not create the folder of a removed store again
        raise StoreError(f"there is no store at {files.uri}: lines of {folder} cannot be written")
    name = f"{int(now * 1000):015d}-{uuid.uuid4().hex[:8]}{ENDING}"
    files.write(f"{folder}/{name}", segment(lines))
    return name


def segment(lines: Iterable[Mapping[str, Any]]) -> bytes:
    """Encodes lines as the content of a segment; "?" replaces half a surrogate pair."""
    text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
    return text.encode("utf-8", "replace")


def segment_names(files: Files, folder: str, since: float = 0.0) -> list[str]:
    """Lists the segments written at or after `since` (seconds since the epoch), in order of time."""
    names = (n for n in files.names(folder) if n.endswith(ENDING))
    return [n for n in names if written_at(n) >= since]


def written_at(name: str) -> float:
    """Returns the time in a segment's name, in seconds since the epoch; raises StoreError without a time."""
    digits = name.partition("-")[0]
    if not digits.isdecimal():
        raise StoreError(f"{name}: expected a file that raypipe wrote, TIME-ID{ENDING}. Take it out of there")
    return int(digits) / 1000


def read_segments(files: Files, folder: str, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yields the lines of these segments, in order. Skips a segment that another process removes meanwhile.
    Raises StoreError for a line that is no JSON object."""
    for name in names:
        try:
            lines = [dict(line) for line in json_lines(files.read(f"{folder}/{name}") or b"")]
        except (ValueError, TypeError) as e:
            expected = f"expected lines of JSON that raypipe wrote ({e})"
            raise StoreError(f"{files.uri}/{folder}/{name}: {expected}. Remove the file") from e
        yield from lines


def sweep_segments(files: Files, folder: str, before: float) -> int:
    """Removes the segments written before `before`, and returns how many. Several processes may do so."""
    gone = [n for n in files.names(folder) if n.endswith(ENDING) and written_at(n) < before]
    for name in gone:
        files.remove(f"{folder}/{name}")
    return len(gone)


T = TypeVar("T")


def read_record(store: Store, name: str, record: type[T], mend: str) -> T | None:
    """Reads the record in a file; None if the file does not exist. Raises StoreError, with the advice `mend`,
    if the file holds no such record."""
    if (raw := store.files.read(name)) is None:
        return None
    try:
        return config.build(record, json.loads(raw), Where(f"{store.uri}/{name}"))
    except (ValueError, ConfError) as e:
        kind = " ".join(re.findall("[A-Z][a-z]+", record.__name__)).lower()
        expected = f"expected a {kind} that raypipe wrote"
        raise StoreError(f"{store.uri}/{name}: {expected}, found {raw[:60]!r} ({e}). {mend}") from e


def write_record(store: Store, name: str, record: Any) -> None:
    store.files.write(name, json.dumps(to_jsonable_python(record), allow_nan=False).encode())


def read_lines(store: Store, folder: str, names: Iterable[str], record: type[T], format: int) -> Iterator[T]:
    """Yields the records in these segments, in order. Raises StoreError for a line that is no such record."""
    where = Where(f"{store.uri}/{folder}")
    for line in read_segments(store.files, folder, names):
        try:
            yield config.build(record, dict(line), where)
        except ConfError as e:
            expected = f"Expected a line that raypipe of format {format} wrote"
            raise StoreError(f"{e}. {expected}, found format {line.get('format')!r}") from e
