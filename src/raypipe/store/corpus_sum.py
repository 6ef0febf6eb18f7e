"""What names all sources of a store: the sum of their ids, which grows by what comes in.

An id is a digest of 128 bits, so the sum of a fragment's ids names them in any order, and the sum over
fragments names all. Sums of fragments are kept in a small file, a hint that may be missing: a store that
grows by a fragment reads that fragment's ids. Memory holds the ids of one batch.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from raypipe.core.records import digest
from raypipe.store.database import Store
from raypipe.store.errors import StoreError, reaching
from raypipe.store.ids import digest_bytes
from raypipe.store.layout import CORPUS_SUMS, COVERAGE
from raypipe.store.lookups import SCAN_ROWS

BITS = 128


def corpus_sum(store: Store, more: Collection[str] = ()) -> str:
    """32 hex digits and the number of sources that a store has now, and with those in `more`."""
    dataset = store.dataset("sources")
    known = json.loads(store.files.read(CORPUS_SUMS) or b"{}")
    here = {**store.sums, **known}
    with reaching(dataset.uri):
        now = {_name(f): here.get(_name(f)) or _of_fragment(f) for f in dataset.get_fragments()}
    store.sums = now
    if now != known and store.drives:
        store.files.write(CORPUS_SUMS, json.dumps(now).encode())
    fresh = store.missing("sources", "id", list(more)) if more else []
    whole = sum(int(text, 16) for text, _ in now.values()) + sum_of(pa.array(fresh, pa.string()))
    return f"{whole % (1 << BITS):032x} {len(fresh) + sum(count for _, count in now.values())}"


def rows_id(store: Store, table: str, dataset: lance.LanceDataset) -> str:
    """Names the rows of a table as it is open, whatever version that is: after a power cut a number may come
    again with other rows. The same before a compaction and after it (`keep_rows_id`)."""
    files = _files_id(dataset)
    kept: dict[str, str] = json.loads(store.files.read(_kept(table)) or b"{}")
    return kept.get(files, files)


def keep_rows_id(store: Store, table: str, id: str) -> None:
    """Lets the rows of a table, whose files are others now, have the name that they had."""
    store.files.write(_kept(table), json.dumps({_files_id(store.dataset(table)): id}).encode())


def _files_id(dataset: lance.LanceDataset) -> str:
    return digest(*sorted(_name(f) for f in dataset.get_fragments()))


def _kept(table: str) -> str:
    return f"{COVERAGE}/{table}-rows.json"


def _name(fragment: lance.LanceFragment) -> str:
    """Names the rows of a fragment: its files, and that of the rows that were taken out of it."""
    files = ",".join(f.path for f in fragment.metadata.files)
    return f"{files} {str(fragment.deletion_file() or '').rpartition('/')[2]}"


def _of_fragment(fragment: lance.LanceFragment) -> list[Any]:
    total = count = 0
    for batch in fragment.to_batches(columns=["id"], batch_size=SCAN_ROWS):
        total += sum_of(batch["id"])
        count += batch.num_rows
    return [f"{total % (1 << BITS):032x}", count]


def sum_of(ids: pa.StringArray) -> int:
    """The sum of ids of 32 hex digits, as numbers.

    >>> hex(sum_of(pa.array(["0" * 31 + "a", "f" * 16 + "0" * 16])))
    '0xffffffffffffffff000000000000000a'
    """
    if (raw := digest_bytes(ids)) is None:
        raise StoreError("a source has an id that is no digest of 32 hex digits. Ingest its files again")
    words = np.frombuffer(raw, ">u4").reshape(-1, 4)  # (ids, 4); the sum of 2^32 ids fits
    return sum(int(total) << 96 - 32 * at for at, total in enumerate(words.sum(axis=0, dtype=np.uint64)))
