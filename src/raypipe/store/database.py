"""The tables themselves: a LanceDB database in one folder, local or on an object store.

Knows how tables are made, read by key and indexed. How rows get in exactly once is in `parts` and `commit`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc

from raypipe.store.durable import durable, restore, restore_all
from raypipe.store.errors import StoreUnavailable, is_of_the_place, reaching, says_absent
from raypipe.store.files import Files, StoreError
from raypipe.store.ids import HASHED, stand_in
from raypipe.store.layout import FORGETTING, MARK
from raypipe.store.lease import Lease
from raypipe.store.tables import BASE, ON_DEMAND, kind_of, table_schema

DRIVER = "driver"  # the lease of who changes tables
FORMAT = 3  # of what lies in a store; raised when an older raypipe could misread it

LOOKUP_KEYS = 4096  # per query: one of 5,000 keys takes 57 ms, and the query text is parsed in memory
SCAN_RATIO = 250  # a BTREE look-up takes 16 us, a row of a scanned key column .07 us
SCAN_ROWS = 1 << 20  # per batch of a scan
INDEX_TRIES = 20  # each one lost means that another driver brought the index forward


def quoted(values: Iterable[str]) -> str:
    """Strings as a list of SQL literals. What is in them stays data: `it's` becomes `'it''s'`."""
    return ", ".join("'" + v.replace("'", "''") + "'" for v in values)


class Store:
    """One store, open. Cheap to open, and opened in every process; only its address is passed around."""

    def __init__(self, uri: str) -> None:
        # Workers start in other folders than the driver: a local address is made absolute once.
        self.uri = (uri if "://" in uri else str(Path(uri).absolute())).rstrip("/")
        self.files = Files(self.uri)
        self._held: set[str] = set()  # leases
        self._changing: set[str] = set()  # tables inside a block of `durable`
        self.kept: object = None  # the `Ids` of all sources that were read last (`source_ids.all_sources`)
        self.sums: dict[str, list[Any]] = {}  # fragment of sources -> sum and count of its ids (`corpus_sum`)

    @classmethod
    def open(cls, uri: str) -> Store:
        """The store at an address. Raises StoreError if none is there, or a later raypipe made it."""
        store = cls(uri)
        try:
            mark = store.files.read(MARK)
        except StoreUnavailable as e:
            if not is_of_the_place(e):
                raise
            raise StoreError(
                f"no store can be read at {uri}: {e.__cause__}. Name another place with --store"
            ) from e
        if mark is None:
            raise StoreError(f"there is no store at {uri}: `raypipe ingest PATH --store {uri}` makes one")
        if (found := json.loads(mark)["format"]) != FORMAT:
            raise StoreError(
                f"the store at {uri} has format {found}, this raypipe reads format {FORMAT}. Name another "
                "place with --store: everything is ingested and computed again there"
            )
        return store

    @classmethod
    def create(cls, uri: str) -> Store:
        """The store at an address, made if it is not there."""
        store = cls(uri)
        try:
            if store.files.read(MARK) is None:
                for table in (t for t in BASE if t not in ON_DEMAND):
                    store.ensure(table, kind_of(table).columns)
                store.files.write(MARK, json.dumps({"format": FORMAT}).encode())
        except StoreUnavailable as e:
            if not is_of_the_place(e):
                raise
            raise StoreError(
                f"no store can be made at {uri}: {e.__cause__}. Name another place with --store, or make it "
                f"writable"
            ) from e
        return cls.open(uri)

    @contextmanager
    def lease(self, name: str, owner: str, forgetting: bool = False) -> Iterator[None]:
        """A lease to hold while driving: `with store.lease("driver", "eval local"): ...`. Inside a block that
        holds one of this name through this very Store nothing more is taken: the phases of an eval each ask
        for one, and the eval holds it over all of them. Raises StoreError that names the holder, if another
        has it; and to a driver while a forget was begun and has not ended, unless it is one (`forgetting`):
        its tables may stand at an older version."""
        if name in self._held:
            yield
            return
        with Lease(self.files, name, owner):
            self._held.add(name)
            try:
                if name == DRIVER:
                    restore_all(self.files)
                    if not forgetting:
                        self._require_forgotten()
                yield
            finally:
                self._held.discard(name)

    def _require_forgotten(self) -> None:
        for name in self.files.names(FORGETTING):
            given = json.loads(self.files.read(f"{FORGETTING}/{name}") or b"{}").get("given", "")
            raise StoreError(
                f"{self.uri}: a forget was begun and has not ended, so tables may stand at an older version. "
                f"Run it again to its end: `raypipe forget {given!r} --yes --store {self.uri}`"
            )

    @property
    def drives(self) -> bool:
        """Whether this very Store holds the driver's lease."""
        return DRIVER in self._held

    @contextmanager
    def durable(self, table: str) -> Iterator[None]:
        """Around a change of a table: what it wrote is on disk when the block ends (`store.durable`). Inside
        such a block of this very Store nothing more is done."""
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
        # A kill while the first manifest is written leaves the start of one under another name.
        return any(n.endswith(".manifest") for n in self.files.names(f"{table}.lance/_versions"))

    def ensure(self, table: str, schema: pa.Schema) -> None:
        """Makes a table if it is not there. Raises StoreError if it is there with other columns."""
        wanted = table_schema(table, schema)
        if self.files.local:
            restore(self.files, table)  # a power cut while it was made leaves a table that cannot be opened
        if not self.has(table):
            import lancedb  # .6 s that only who makes a table needs: no worker does

            with reaching(self.table_uri(table)), self.durable(table):
                lancedb.connect(self.uri).create_table(table, schema=wanted, exist_ok=True)
        found = self.dataset(table).schema
        if not found.equals(wanted):
            raise StoreError(f"table {table} at {self.uri} has columns\n{found}\nexpected\n{wanted}")

    def dataset(self, table: str, version: int | None = None) -> lance.LanceDataset:
        """A table as it is now, or as it was. Raises StoreError if it, or that version, is not there."""
        with reaching(f"table {table} at {self.uri}"):
            there = self.has(table)
        if not there:
            made_by = "ingest PATH" if table in BASE else "index RECIPE"
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
        """The newest version of a table, to be pinned by readers."""
        version: int = self.dataset(table).version
        return version

    def count(self, table: str, where: str | None = None, version: int | None = None) -> int:
        """Rows of a table; `where` is a filter of Lance."""
        with reaching(self.table_uri(table)):
            rows: int = self.dataset(table, version).count_rows(where)
        return rows

    def scan(
        self, table: str, columns: Sequence[str] | None = None, version: int | None = None, **options: Any
    ) -> pa.Table:
        """All rows of a table, or those that Lance's `options` leave (`filter`, `limit`)."""
        with reaching(self.table_uri(table)):
            return self.dataset(table, version).to_table(columns=columns and list(columns), **options)

    def batches(
        self,
        table: str,
        columns: Sequence[str] | None,
        rows: int = SCAN_ROWS,
        version: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """All rows of a table at a version (None: as it is now), `rows` of them at a time. `columns` None:
        all of them."""
        with reaching(self.table_uri(table)):
            dataset = self.dataset(table, version)
            found = iter(dataset.to_batches(columns=columns and list(columns), batch_size=rows))
        while True:
            with reaching(self.table_uri(table)):
                batch = next(found, None)
            if batch is None:
                return
            yield batch

    def missing(self, table: str, column: str, ids: Sequence[str]) -> list[str]:
        """Which of the ids do not stand in a column, in their order."""
        return missing(self.dataset(table), column, ids)

    def rows(
        self, table: str, column: str, values: Sequence[str], columns: Sequence[str] | None = None
    ) -> pa.Table:
        """The rows whose column has one of the values, in no order. `columns` None: all of them."""
        return rows(self.dataset(table), column, values, columns)

    def forget(self, table: str, column: str, values: Sequence[str]) -> None:
        """Deletes the rows whose column has one of the values."""
        with self.durable(table):
            forget(self.dataset(table), column, values)

    def sources_with_chunks(self, passages: str) -> pa.Array:
        """Sources of a `passages` table that have chunks: those a vector table must hold. One may stand there
        twice."""
        with reaching(self.table_uri(passages)):
            return sources_with_chunks(self.dataset(passages))

    def index(self, table: str) -> None:
        """Builds the table's scalar indexes, or brings them up to date."""
        for _ in range(INDEX_TRIES):
            try:
                with reaching(self.table_uri(table)):
                    return self._index(table)
            except OSError as e:  # two drivers that index at once: one of them must look again
                if "commit conflict" not in str(e):
                    raise
        raise StoreError(f"table {table} at {self.uri} could not be indexed: others index it all the time")

    def _index(self, table: str) -> None:
        for column in kind_of(table).indexes:
            dataset = self.dataset(table)
            name = _btrees(dataset).get(column)
            if name is None:
                with self.durable(table):
                    dataset.create_scalar_index(column, "BTREE")
            elif dataset.stats.index_stats(name)["num_unindexed_fragments"]:
                with self.durable(table):  # an approximate index of vectors stays as it was built
                    dataset.optimize.optimize_indices(index_names=[name])

    def check_indexes(self, table: str, version: int | None = None) -> None:
        """Raises StoreError if a scalar index of the table is missing; one without rows needs none."""
        dataset = self.dataset(table, version)
        with reaching(dataset.uri):
            there = _btrees(dataset) if dataset.count_rows() else None
        if there is None:
            return
        for column in kind_of(table).indexes:
            if column not in there:
                raise StoreError(
                    f"table {table} at {self.uri} has no BTREE index on {column}: each question would read "
                    f"all {dataset.count_rows()} rows. `raypipe index RECIPE --store {self.uri}` builds it"
                )


def _btrees(dataset: lance.LanceDataset) -> dict[str, str]:
    """Column -> name of its BTREE index."""
    found = dataset.describe_indices()
    return {i.field_names[0]: i.name for i in found if i.index_type == "BTree" and len(i.field_names) == 1}


def distinct(dataset: lance.LanceDataset, column: str) -> pa.Array:
    """The values of a column, each once."""
    with reaching(dataset.uri):
        found = [pa.array([], pa.string()), *(v.combine_chunks() for v in _slabs(dataset, column))]
    return pa.concat_arrays(found).unique()


def sources_with_chunks(passages: lance.LanceDataset) -> pa.Array:
    """The same, of a table that is open at a version. A source's chunks stand together, so only one that is
    cut by two batches comes twice."""
    found = [pa.array([], pa.string())]
    for batch in passages.to_batches(columns=["source", "start", "end"], batch_size=SCAN_ROWS):
        real = batch.filter(pc.greater(batch["end"], batch["start"]))
        found.append(real["source"].unique())
    return pa.concat_arrays(found)


def rows(
    dataset: lance.LanceDataset, column: str, values: Sequence[str], columns: Sequence[str] | None = None
) -> pa.Table:
    """The rows whose column has one of the values, found by BTREE, in no order."""
    distinct = list(dict.fromkeys(values))
    found = []
    for at in range(0, max(len(distinct), 1), LOOKUP_KEYS):
        some = distinct[at : at + LOOKUP_KEYS]
        where = f"{column} IN ({quoted(some)})" if some else "false"
        with reaching(dataset.uri):
            found.append(dataset.to_table(columns=columns and list(columns), filter=where))
    return pa.concat_tables(found)


def forget(dataset: lance.LanceDataset, column: str, values: Sequence[str]) -> None:
    """Deletes the rows whose column has one of the values."""
    for at in range(0, len(values), LOOKUP_KEYS):
        with reaching(dataset.uri):
            dataset.delete(f"{column} IN ({quoted(values[at : at + LOOKUP_KEYS])})")


def missing(dataset: lance.LanceDataset, column: str, ids: Sequence[str]) -> list[str]:
    """Which of the ids do not stand in a column, in their order."""
    if not ids:
        return []
    left: list[str] = absent(dataset, column, pa.array(ids, pa.string())).to_pylist()
    return left


def absent(dataset: lance.LanceDataset, column: str, wanted: pa.Array) -> pa.Array:
    """The same, of an array."""
    return wanted.filter(pc.invert(present(dataset, column, wanted)))


def present(dataset: lance.LanceDataset, column: str, wanted: pa.Array) -> pa.Array:
    """(ids,) bool: which of the ids stand in a column."""
    with reaching(dataset.uri):
        if len(wanted) * SCAN_RATIO < dataset.count_rows():
            return pc.is_in(wanted, value_set=rows(dataset, column, wanted.to_pylist(), [column])[column])
        mask = stand_in(wanted, wanted[:0])
        for values in _slabs(dataset, column):
            mask = pc.or_(mask, stand_in(wanted, values))
    return mask


def _slabs(dataset: lance.LanceDataset, column: str) -> Iterator[pa.ChunkedArray]:
    """A column, many values at a time: a batch ends with its fragment, and to look for ids in values hashes
    the fewer of both once. Of equal values that stand together one is given."""
    held, count = list[pa.Array](), 0
    for batch in dataset.to_batches(columns=[column], batch_size=SCAN_ROWS):
        if batch.num_rows:
            held.append(pc.run_end_encode(batch[column]).values)
            count += len(held[-1])
        if count >= HASHED:
            yield pa.chunked_array(held)
            held, count = [], 0
    if held:
        yield pa.chunked_array(held)
