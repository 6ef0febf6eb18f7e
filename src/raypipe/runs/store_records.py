"""Records of a store as JSON: one in a small file, or one in each line of a segment."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from pydantic_core import to_jsonable_python

from raypipe.core import config
from raypipe.core.config import Where
from raypipe.core.errors import ConfError
from raypipe.store import Store, StoreError
from raypipe.store.segments import read_segments

T = TypeVar("T")


def read_record(store: Store, name: str, record: type[T], mend: str) -> T | None:
    """The record in a file; None: there is no such file. Raises StoreError for one that raypipe did not
    write; `mend`: what to do then."""
    if (raw := store.files.read(name)) is None:
        return None
    try:
        return config.build(record, json.loads(raw), Where(f"{store.uri}/{name}"))
    except (ValueError, ConfError) as e:
        kind = " ".join(re.findall("[A-Z][a-z]+", record.__name__)).lower()
        raise StoreError(
            f"{store.uri}/{name}: expected a {kind} that raypipe wrote, found {raw[:60]!r} ({e}). {mend}"
        ) from e


def write_record(store: Store, name: str, record: Any) -> None:
    store.files.write(name, json.dumps(to_jsonable_python(record), allow_nan=False).encode())


def read_lines(store: Store, folder: str, names: Iterable[str], record: type[T], format: int) -> Iterator[T]:
    """The records in these segments of a folder, in order. Raises StoreError for a line of another format."""
    where = Where(f"{store.uri}/{folder}")
    for line in read_segments(store.files, folder, names):
        try:
            yield config.build(record, dict(line), where)
        except ConfError as e:
            raise StoreError(
                f"{e}. Expected a line that raypipe of format {format} wrote, found format "
                f"{line.get('format')!r}"
            ) from e
