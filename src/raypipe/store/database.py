"""The tables of a store: a LanceDB database in one folder, local or on an object store.

Makes, reads and indexes tables, and takes leases. Look-ups by key are in `ids`; exactly-once writes are in
`parts` and `commit`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from raypipe.core.arrow import ADDED
from raypipe.store import ids as lookups
from raypipe.store.errors import NO_PLACE, StoreError, StoreUnavailable, reaching, says_absent
from raypipe.store.files import CHANGING, FORGETTING, MARK, Files, durable, restore
from raypipe.store.lease import Lease
from raypipe.store.tables import BASE, ON_DEMAND, kind_of, table_schema

DRIVER = "driver"  # the lease of the process that changes tables
FORMAT = 1  # version of a store's layout; raised when an older raypipe could misread it

INDEX_TRIES = 20  # a try is lost only if another driver updated the index at the same time


class Store:
    """An open store. Opening is cheap, so every process opens its own; only the address is passed around."""

    def __init__(self, uri: str) -> None:
        # Workers start in another folder than the driver, so a local address is made absolute.
        self.uri = (uri if "://" in uri else str(Path(uri).absolute())).rstrip("/")
        self.files = Files(self.uri)
        self._held: set[str] = set()  # names of the leases that this object holds
        self._changing: set[str] = set()  # tables inside a block of `durable`
        self.kept: object = None  # cache of `sources.all_sources`: its last result
        self.sums: dict[str, list[Any]] = {}  # fragment of `sources` -> sum and count of its ids

    @classmethod
    def open(cls, uri: str) -> Store:
        """Opens the store at an address. Raises StoreError if none exists, or if it has another format."""
        if (store := cls.find(uri)) is None:
            raise StoreError(f"there is no store at {uri}: `raypipe ingest PATH --store {uri}` makes one")
        return store

    @classmethod
    def find(cls, uri: str) -> Store | None:
        """Opens the store at an address; None if none exists. Raises StoreError for another format."""
        with _place(uri, "read"):
            store = cls(uri)
            mark = store.files.read(MARK)
        if mark is None:
            return None
        if (found := json.loads(mark)["format"]) != FORMAT:
            raise StoreError(
                f"the store at {uri} has format {found}, this raypipe reads format {FORMAT}. Name another "
                "place with --store: everything is ingested and computed again there"
            )
        return store

    @classmethod
    def create(cls, uri: str) -> Store:
        """Opens the store at an address, or makes it. Raises StoreError if the address can hold no store."""
        with _place(uri, "made"):
            store = cls(uri)
            if store.files.read(MARK) is None:
                if store.files.local:  # raises if the folder has no hard links, by which leases are claimed
                    store.files.create(".links", b"")
                    store.files.remove(".links")
                for table in (t for t in BASE if t not in ON_DEMAND):
                    store.ensure(table, kind_of(table).columns)
                store.files.write(MARK, json.dumps({"format": FORMAT}).encode())
        return cls.open(uri)

    @contextmanager
    def lease(self, name: str, owner: str, forgetting: bool = False, wait_s: float = 0.0) -> Iterator[None]:
        """Holds a lease while the block runs: `with store.lease("driver", "eval local"): ...`. Does nothing
        if this Store object holds the lease already: an eval holds it over all phases, and each phase takes
        it, too. Raises StoreInUse if another process still holds the lease after `wait_s` seconds. The
        driver's lease also repairs tables after a power cut, and adds missing columns. While a forget is
        unfinished, the driver's lease raises StoreError, except with `forgetting`."""
        if name in self._held:
            yield
            return
        with Lease(self.files, name, owner, wait_s=wait_s):
            self._held.add(name)
            try:
                if name == DRIVER:
                    for note in self.files.names(CHANGING) if self.files.local else ():
                        restore(self.files, note.removesuffix(".json"))
                    self._add_columns()
                    if not forgetting:
                        self.require_forgotten()
                yield
            finally:
                self._held.discard(name)

    def _add_columns(self) -> None:
        """Adds the columns that tables of an older raypipe lack; reads and writes no data file."""
        for table in BASE:
            wanted = [f for f in kind_of(table).columns if f.name in ADDED]
            there = self.dataset(table) if wanted and self.has(table) else None
            if there is not None and (lacking := [f for f in wanted if f.name not in there.schema.names]):
                with reaching(there.uri), self.durable(table):
                    there.add_columns(pa.schema(lacking))

    def require_forgotten(self) -> None:
        """Raises StoreError if a forget was begun and has not ended."""
        for name in self.files.names(FORGETTING):
            given = json.loads(self.files.read(f"{FORGETTING}/{name}") or b"{}").get("given", ())
            raise StoreError(
                f"{self.uri}: a forget was begun and has not ended, so some of its text is still stored. "
                f"Run it again: `raypipe forget {' '.join(map(repr, given))} --yes --store {self.uri}`"
            )

    @property
    def drives(self) -> bool:
        """Returns whether this Store object holds the driver's lease."""
        return DRIVER in self._held

    @contextmanager
    def durable(self, table: str) -> Iterator[None]:
        """Makes a change of a table durable: its files are on disk when the block ends (`files.durable`).
        Does nothing more inside another such block of this Store object."""
        if table in self._changing:
            yield
            return
        with durable(self.files, table):
            self._changing.add(table)
            try:
                yield
            finally:
                self._changing.discard(table)

    def table_uri(self, table: str) -> str:
        kind_of(table)
        return f"{self.uri}/{table}.lance"

    def has(self, table: str) -> bool:
        kind_of(table)
        # A kill during the write of the first manifest leaves a partial file under another name.
        return any(n.endswith(".manifest") for n in self.files.names(f"{table}.lance/_versions"))

    def ensure(self, table: str, schema: pa.Schema) -> None:
        """Makes a table if it does not exist. Raises StoreError if it exists with other columns."""
        wanted = table_schema(table, schema)
        if self.files.local:
            restore(self.files, table)  # a power cut during its creation leaves a table that cannot be opened
        if not self.has(table):
            import lancedb  # takes 0.6 s, and only a process that makes a table needs it: no worker does

            with reaching(self.table_uri(table)), self.durable(table):
                lancedb.connect(self.uri).create_table(table, schema=wanted, exist_ok=True)
        found = self.dataset(table).schema
        if not found.equals(wanted):
            raise StoreError(f"table {table} at {self.uri} has columns\n{found}\nexpected\n{wanted}")

    def dataset(self, table: str, version: int | None = None) -> lance.LanceDataset:
        """Opens a table at a version (None: the newest). Raises StoreError if either does not exist."""
        with reaching(f"table {table} at {self.uri}"):
            there = self.has(table)
        if not there:
            made_by = "ingest PATH" if table in BASE else "eval RECIPE --until index"
            raise StoreError(
                f"no table {table} at {self.uri}: `raypipe {made_by} --store {self.uri}` makes it"
            )
        with reaching(f"table {table} at {self.uri}"):
            try:
                return lance.dataset(self.table_uri(table), version=version)
            except ValueError as e:
                if not says_absent(e):
                    raise
                raise StoreError(
                    f"table {table} at {self.uri} cannot be read at version {version}: {e}"
                ) from e

    def version(self, table: str) -> int:
        version: int = self.dataset(table).version
        return version

    def count(self, table: str, where: str | None = None, version: int | None = None) -> int:
        with reaching(self.table_uri(table)):
            rows: int = self.dataset(table, version).count_rows(where)
        return rows

    def scan(
        self, table: str, columns: Sequence[str] | None = None, version: int | None = None, **options: Any
    ) -> pa.Table:
        """Reads all rows of a table, or those that Lance's `options` select (`filter`, `limit`)."""
        with reaching(self.table_uri(table)):
            return self.dataset(table, version).to_table(columns=columns and list(columns), **options)

    def batches(
        self,
        table: str,
        columns: Sequence[str] | None,
        rows: int = lookups.SCAN_ROWS,
        version: int | None = None,
        filter: str | None = None,
        deleted: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Yields a table's rows at a version (None: the newest) that match a filter, at most `rows` per
        batch. With `deleted`, also yields deleted rows that are still in the files."""
        options: dict[str, Any] = {"include_deleted_rows": True, "with_row_id": True} if deleted else {}
        options |= {"batch_size": rows, "batch_readahead": lookups.READ_AHEAD}
        with reaching(self.table_uri(table)):
            wanted = columns and list(columns)
            yield from self.dataset(table, version).scanner(wanted, filter, **options).to_batches()

    def missing(self, table: str, column: str, ids: Sequence[str]) -> list[str]:
        """Returns the ids that do not occur in a column, in their order."""
        return lookups.missing(self.dataset(table), column, ids)

    def rows(
        self, table: str, column: str, values: Sequence[str], columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Reads the rows whose column has one of the values, from the newest version, in no fixed order."""
        return lookups.rows(self.dataset(table), column, values, columns)

    def forget(self, table: str, column: str, values: Sequence[str]) -> None:
        """Deletes the rows whose column has one of the values; older versions keep them."""
        with self.durable(table):
            dataset = self.dataset(table)
            for where in lookups.wheres(dataset, column, values):
                with reaching(dataset.uri):
                    dataset.delete(where)

    def index(self, table: str) -> None:
        """Builds the table's scalar indexes, or adds the rows that they do not cover yet."""
        for _ in range(INDEX_TRIES):
            try:
                with reaching(self.table_uri(table)):
                    for column in kind_of(table).indexes:
                        dataset = self.dataset(table)
                        if (name := _btrees(dataset).get(column)) is None:
                            with self.durable(table):
                                dataset.create_scalar_index(column, "BTREE")
                        elif dataset.stats.index_stats(name)["num_unindexed_fragments"]:
                            with self.durable(table):  # an approximate index of vectors is never updated
                                dataset.optimize.optimize_indices(index_names=[name])
                    return
            except OSError as e:  # two drivers index at the same time: one of them must try again
                if "commit conflict" not in str(e):
                    raise
        raise StoreError(
            f"table {table} at {self.uri} could not be indexed: other processes keep indexing it"
        )

    def check_indexes(self, table: str, version: int | None = None) -> None:
        """Raises StoreError if a scalar index of the table is missing; an empty table needs none."""
        dataset = self.dataset(table, version)
        with reaching(dataset.uri):
            rows, there = dataset.count_rows(), _btrees(dataset)
        if rows and (lacking := [c for c in kind_of(table).indexes if c not in there]):
            raise StoreError(
                f"table {table} at {self.uri} has no BTREE index on {lacking[0]}: each question would read "
                f"all {rows} rows. `raypipe eval RECIPE --until index --store {self.uri}` builds it"
            )


@contextmanager
def _place(uri: str, what: str) -> Iterator[None]:
    """Raises StoreError if an address can hold no store. `what` is "read" or "made", for the message."""
    try:
        yield
    except StoreUnavailable as e:
        cause = str(e.__cause__)
        if not NO_PLACE.search(cause):
            raise
        why = "its bucket does not exist" if "ucket" in cause else cause
        raise StoreError(
            f"no store can be {what} at {uri}: {why}. Name a --store that exists and can be written"
        ) from e


def _btrees(dataset: lance.LanceDataset) -> dict[str, str]:
    """Maps each column that has a BTREE index to the index's name."""
    found = dataset.describe_indices()
    return {i.field_names[0]: i.name for i in found if i.index_type == "BTree" and len(i.field_names) == 1}
