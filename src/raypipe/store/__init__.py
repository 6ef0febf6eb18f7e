"""The store: every table of a dataset and its answers, in a LanceDB database, committed exactly once.

    store = Store.create(uri)                            # the driver; a worker opens it: Store.open(uri)
    put(store, "sources", rows)                          # what is ingested; the same again changes nothing
    run = begin(store, what, missing_ids, per_part)      # or the run that a killed driver left behind
    write_part(store, table, run.name, part, rows, {})   # in workers, in any order, any number of times
    version = commit(store, table, run.name, run.parts)  # the driver, one table after the other
    end(store, what)                                     # after the last table

Knows records, Arrow and LanceDB. Knows no step, no recipe and no Ray.
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
