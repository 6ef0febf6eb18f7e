"""Storage of a dataset's tables and answers in LanceDB; rows of a run are committed exactly once.

    store = Store.create(uri)                            # the driver; a worker opens it: Store.open(uri)
    put(store, "sources", rows)                          # ingested rows; the same rows again change nothing
    run = begin(store, what, missing_ids, per_part)      # or resumes the run of a killed driver
    write_part(store, table, run.name, part, rows, {})   # in workers, in any order, any number of times
    version = commit(store, table, run.name, run.parts)  # the driver, one table after the other
    end(store, what)                                     # after the last table

Depends on `core`, `text`, Arrow and LanceDB, and not on steps, recipes or Ray.
"""

from raypipe.store.commit import commit, committed, put
from raypipe.store.database import Store
from raypipe.store.errors import AddedMeanwhile, StoreError
from raypipe.store.lease import Reading, read_now, sweep
from raypipe.store.parts import TableRun, begin, begun, done_parts, end, write_part
from raypipe.store.tables import ANSWERS, PASSAGES, vectors_schema, with_chunkless

__all__ = [
    "ANSWERS",
    "PASSAGES",
    "AddedMeanwhile",
    "Reading",
    "Store",
    "StoreError",
    "TableRun",
    "begin",
    "begun",
    "commit",
    "committed",
    "done_parts",
    "end",
    "put",
    "read_now",
    "sweep",
    "vectors_schema",
    "with_chunkless",
    "write_part",
]
