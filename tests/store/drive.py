"""A driver for the kill drill, run as a process of its own: `drive.py URI LOG KILL`.

It brings twelve sources with their passages and vectors into a store in three parts, remembers some scores,
and goes on from whatever it finds. KILL is "never", "EVENT:FUNCTION" (SIGKILL when a function of the store is
called or returns) or a number (SIGKILL at that many calls of functions of the store).
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

import numpy as np
from storerows import DIGEST, DIM, hex_id, passage_rows, vector_rows

from raypipe.core import arrow
from raypipe.core.arrow import id_column, id_texts
from raypipe.core.records import Source
from raypipe.store import (
    PASSAGES,
    Store,
    begin,
    begun,
    commit,
    committed,
    done_parts,
    end,
    put,
    vectors_schema,
    with_chunkless,
    write_part,
)
from raypipe.store.ids import sources_with_chunks
from raypipe.store.memo.disk import StoreMemo, memo_versions, merge_memo
from raypipe.store.memo.memo import MemoTable

OURS = str(Path(sys.modules[Store.__module__].__file__).parent)
IDS = [hex_id(i) for i in range(12)]
BARE = IDS[3]
TABLES = {f"passages-{DIGEST}": PASSAGES, f"vectors-{DIGEST}": vectors_schema(DIM)}
SCORES = MemoTable(f"scores-{DIGEST}", 0)


def arm(kill):
    event, _, name = kill.partition(":")
    calls = 0

    def watch(frame, happened, _):
        nonlocal calls
        if not frame.f_code.co_filename.startswith(OURS):
            return
        calls += happened == "call"
        if (happened == event and frame.f_code.co_name == name) or kill == str(calls):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(watch)


def rows_of(table, ids):
    full = [i for i in ids if i != BARE]
    if table.startswith("vectors"):
        return vector_rows(full)
    return with_chunkless(passage_rows(full), id_column(ids))


def drive(uri, log):
    store = Store.create(uri)
    with store.lease("drill", "the drill"):
        put(store, "sources", arrow.source.table([Source(i, "page", f"<p>{i}") for i in IDS]))
        for table, schema in TABLES.items():
            store.ensure(table, schema)
        passages, vectors = TABLES
        run = begun(store, "work")
        if run is None:
            missing = set(store.missing(passages, "source", IDS))
            missing |= set(
                store.missing(vectors, "source", id_texts(sources_with_chunks(store.dataset(passages))))
            )
            run = begin(store, "work", sorted(missing), 4) if missing else None
        for table in TABLES if run else ():
            if committed(store, table, run.name) is None:
                done = done_parts(store, table, run.name)
                for part in set(run.parts) - done.keys():
                    with open(log, "a") as file:
                        file.write(f"{table} {part}\n")
                    write_part(
                        store, table, run.name, part, rows_of(table, run.part(part)), {"by": os.getpid()}
                    )
            commit(store, table, run.name, run.parts)
        if run:
            end(store, "work")
        merge_memo(store)
        asyncio.run(remember(store))
        merge_memo(store)


async def remember(store):
    memo = StoreMemo(store.uri, memo_versions(store))
    known, _ = await memo.get_many(SCORES, IDS)
    fresh = [i for i, k in zip(IDS, known, strict=True) if not k]
    await memo.put_many(SCORES, fresh, np.array([int(i[:6], 16) for i in fresh], np.float32))


if __name__ == "__main__":
    if sys.argv[3] != "never":
        arm(sys.argv[3])
    drive(sys.argv[1], sys.argv[2])
