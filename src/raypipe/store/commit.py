"""Exactly-once commit of all parts of a run, also after retries and with concurrent drivers.

A run is the missing work of a table, cut into parts (`store.parts`). The Lance transaction carries the run's
name, so a later process sees that the run was committed. Lance lets two independent appends both succeed. So
each commit checks the table's history afterwards. It withdraws a second commit of the same run. It also
withdraws its own run if another run added some of the same rows meanwhile. This needs no clock and no lease.

A unit is a value of the table's unit column, such as a source's id. A commit that replaces rows removes the
older rows of its units in the same transaction. So a reader, or the process that starts after a kill, finds
either the old rows or the new ones.

`put` commits ingested rows. It adds a row with a new id, replaces a row with changed content, and leaves an
equal row as it is. A source's id is a digest of its content, so no source is replaced.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.commit import CommitConflictError
from lance.file import LanceFileReader

from raypipe.core.arrow import id_column, id_texts
from raypipe.store.database import Store
from raypipe.store.errors import AddedMeanwhile, StoreError, reaching
from raypipe.store.ids import Ids, gathered, present, repeats, rows
from raypipe.store.parts import Record, data_files, drop_records, need_record, write_part
from raypipe.store.tables import checked, kind_of

_RUN, _WITHDRAWN = "raypipe.run", "raypipe.withdrawn"  # transaction properties: added run, withdrawn version
_READ = "raypipe.read"  # transaction property: the version against which the run's rows were checked


def committed(store: Store, table: str, run: str) -> int | None:
    """Returns the version that added a run's rows to a table; None if none did, or if it was withdrawn."""
    dataset = store.dataset(table)
    with reaching(dataset.uri):
        versions = _history(dataset).get(run)
    return versions[0] if versions else None


def commit(
    store: Store, table: str, run: str, parts: Iterable[str], replace: bool = False, gone: Sequence[str] = ()
) -> int:
    """Commits all parts of a run to a table in one transaction, unless the run was committed before. Then
    refreshes the indexes and removes the completion records. Returns the newest version. With `replace`, the
    transaction also removes older rows whose unit is in the parts or in `gone`.

    Raises StoreError, and leaves the table unchanged, if a part is not done, a file is missing, or two parts
    have a unit in common. Raises AddedMeanwhile, and discards the parts, if another run added some of these
    units.
    """
    checked_at = None
    with reaching(store.table_uri(table)), store.durable(table):
        if committed(store, table, run) is None:
            records = {part: need_record(store, table, run, part) for part in parts}
            if replace:
                checked_at = _replace(store, table, run, records, gone)
            else:
                checked_at, units = _check_staged(store, table, run, records)
                _check_new(store, table, run, store.dataset(table, checked_at), units)
                append(store, table, run, _fragments(records), checked_at)
        _settle(store, table, run, checked_at)
        store.index(table)
    drop_records(store, table, run)
    return store.version(table)


def append(store: Store, table: str, run: str, fragments: list[lance.FragmentMetadata], read: int) -> None:
    """Appends written fragments to a table, as a transaction that carries the run's name."""
    transact(store, table, run, lance.LanceOperation.Append(fragments), read)


def transact(
    store: Store, table: str, run: str, operation: lance.LanceOperation.BaseOperation, read: int
) -> None:
    """Commits an operation against the version `read`, as a transaction that carries the run's name."""
    properties = {_RUN: run, _READ: str(read)}
    transaction = lance.Transaction(read, operation, transaction_properties=properties)
    lance.LanceDataset.commit(store.table_uri(table), transaction)


def _fragments(records: dict[str, Record]) -> list[lance.FragmentMetadata]:
    return [f for record in records.values() for f in record.fragments]


def _replace(
    store: Store, table: str, run: str, records: dict[str, Record], gone: Sequence[str]
) -> int | None:
    """Commits a run's fragments and removes the older rows of the same units. Returns the version against
    which it committed; None if another driver committed the run first."""
    while committed(store, table, run) is None:
        checked_at, units = _check_staged(store, table, run, records)
        dataset, unit = store.dataset(table, checked_at), kind_of(table).unit
        if unit is None:
            raise StoreError(f"{table}: expected a table with a unit, by which rows are replaced; found none")
        units = Ids(units).joined(Ids.of(gone, units.type))
        there = units.where(present(dataset, unit, units.array)).array
        old = rows(dataset, unit, there, [unit, "_rowaddr"])["_rowaddr"].to_numpy()
        removed, updated = without_rows(dataset, old)
        operation = lance.LanceOperation.Update(removed, updated, _fragments(records))
        with suppress(CommitConflictError):  # another driver changed the same fragments: check again
            transact(store, table, run, operation, checked_at)
            return checked_at
    return None


def without_rows(
    dataset: lance.LanceDataset, addresses: np.ndarray
) -> tuple[list[int], list[lance.FragmentMetadata]]:
    """Deletes rows ((n,) uint64 addresses) from their fragments, without a commit. Returns the ids of the
    fragments that become empty, and the metadata of those that lose only some rows."""
    removed, updated = [], []
    for fragment in np.unique(addresses >> 32).tolist():
        offsets = (addresses[addresses >> 32 == fragment] & 0xFFFFFFFF).tolist()
        left = dataset.get_fragment(fragment).delete_rows(offsets)
        if left is None:
            removed.append(fragment)
        else:
            updated.append(left)
    return removed, updated


def read_transaction(dataset: lance.LanceDataset, version: int) -> lance.Transaction | None:
    """Reads the transaction that made a version; None if it cannot be read.

    For a compaction that rewrote an index, pylance 14.0.2 cannot build the Python object and raises
    TypeError. Such a transaction adds no run's rows, so None loses nothing."""
    try:
        return dataset.read_transaction(version)
    except TypeError as e:
        if "RewrittenIndex" not in str(e):
            raise
        return None


def _history(dataset: lance.LanceDataset) -> dict[str, list[int]]:
    """Maps runs to the versions that added their rows and were not withdrawn, oldest first."""
    came: dict[str, list[int]] = {}
    withdrawn = set()
    for version in sorted(v["version"] for v in dataset.versions()):  # 0.15 ms each
        transaction = read_transaction(dataset, version)
        properties = transaction.transaction_properties if transaction else {}
        if _RUN in properties:
            came.setdefault(properties[_RUN], []).append(version)
        if _WITHDRAWN in properties:
            withdrawn.add(int(properties[_WITHDRAWN]))
    stay = {run: [v for v in versions if v not in withdrawn] for run, versions in came.items()}
    return {run: versions for run, versions in stay.items() if versions}


def _check_staged(store: Store, table: str, run: str, records: dict[str, Record]) -> tuple[int, pa.Array]:
    """Checks a run's written files. Returns the table's version before the check, and the run's units. Raises
    StoreError if a part has another number of rows than its record says, or if two parts have the same unit.
    The files themselves are read, because Lance would commit missing files and so break the table."""
    unit, version = kind_of(table).unit, store.version(table)
    kind = kind_of(table).columns.field(unit).type if unit else pa.string()

    def units() -> Iterator[pa.Array]:
        for part, record in records.items():
            rows, found = 0, list[pa.Array]()
            for name in data_files(table, record.fragments):
                reader = LanceFileReader(f"{store.uri}/{name}", columns=[unit] if unit else None)
                rows += reader.metadata().num_rows
                if unit:
                    found.append(reader.read_all().to_table()[unit].combine_chunks())
            if rows != record.rows:
                raise StoreError(
                    f"{table}, run {run}: part {part} has {rows} rows, its record says {record.rows}"
                )
            yield gathered(found, kind).unique()

    added = gathered(units(), kind)
    if twice := repeats(added):
        raise StoreError(f"{table}, run {run}: {twice} values of {unit} are in two parts")
    return version, added


def _check_new(store: Store, table: str, run: str, dataset: lance.LanceDataset, added: pa.Array) -> None:
    """Raises AddedMeanwhile, and discards the run's parts, if `dataset` has some of the added units."""
    if (unit := kind_of(table).unit) is None:
        return
    if there := pc.sum(present(dataset, unit, added)).as_py():
        drop_records(store, table, run)
        raise AddedMeanwhile(
            f"{table}: another run meanwhile added {there} of {len(added)} values of {unit} that run {run} "
            "would add. None of this run's rows were kept. Run the command again: it plans what is missing"
        )


def _settle(store: Store, table: str, run: str, checked_at: int | None) -> None:
    """Resolves conflicts after a commit. Withdraws each second commit of a run. If another run added some of
    this run's units after this run's check and before its commit, also withdraws this run's rows and raises
    AddedMeanwhile."""
    history = _history(store.dataset(table))
    for versions in history.values():
        for version in versions[1:]:
            _withdraw(store, table, version)
    unit, first = kind_of(table).unit, history[run][0]
    if unit is None or checked_at == first - 1:
        return
    new = (f.to_table(columns=[unit])[unit] for f in _added(store, table, first))
    try:
        kind = kind_of(table).columns.field(unit).type
        units = gathered((some for column in new for some in column.chunks), kind).unique()
        # The commit replaced the rows of units that the table had when it was prepared. A commit that only
        # appends has no such units.
        properties = store.dataset(table).read_transaction(first).transaction_properties
        if _READ in properties:
            read = store.dataset(table, int(properties[_READ]))
            units = units.filter(pc.invert(present(read, unit, units)))
        _check_new(store, table, run, store.dataset(table, first - 1), units)
    except AddedMeanwhile:
        _withdraw(store, table, first)
        raise


def _added(store: Store, table: str, version: int) -> list[lance.LanceFragment]:
    """Lists the fragments that a version added."""
    before = {f.fragment_id for f in store.dataset(table, version - 1).get_fragments()}
    return [f for f in store.dataset(table, version).get_fragments() if f.fragment_id not in before]


def _withdraw(store: Store, table: str, version: int) -> None:
    """Removes the fragments that a version added. If two drivers try at the same time, only one does it."""
    ids = {f.fragment_id for f in _added(store, table, version)}
    while True:
        dataset = store.dataset(table)
        here = sorted(ids & {f.fragment_id for f in dataset.get_fragments()})
        if not here:
            return
        operation = lance.LanceOperation.Delete([], here, "withdrawn by raypipe")
        properties = {_WITHDRAWN: str(version)}
        transaction = lance.Transaction(dataset.version, operation, transaction_properties=properties)
        with suppress(CommitConflictError):  # another driver was faster: check again
            lance.LanceDataset.commit(store.table_uri(table), transaction)
            return


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Changes that ingested rows make to their table."""

    added: tuple[str, ...]  # ids of new rows
    replaced: tuple[str, ...]  # ids of stored rows whose content changes
    equal: int  # number of rows that are stored already with the same content


def stage(store: Store, table: str, run: str, part: str, rows: pa.Table) -> RowChanges:
    """Writes the new and changed rows of an ingested table as a part of a run, if there are any."""
    [id] = kind_of(table).key
    rows = checked(table, store.dataset(table).schema, rows)
    names = id_texts(rows[id])
    fresh = store.missing(table, id, names)
    there, changed = sorted(set(names) - set(fresh)), list[str]()
    if table != "sources":
        stored = {r[id]: r for r in store.rows(table, id, there).to_pylist()}
        given = {r[id]: r for r in _named(rows, id, there).to_pylist()}
        changed = [name for name in there if stored[name] != given[name]]
    if fresh or changed:
        write_part(store, table, run, part, _named(rows, id, [*fresh, *changed]), {})
    return RowChanges(tuple(fresh), tuple(changed), len(there) - len(changed))


def put(store: Store, table: str, rows: pa.Table) -> RowChanges:
    """Adds new rows to an ingested table and replaces changed ones. After a kill, put the same rows again."""
    run = uuid.uuid4().hex
    staged = stage(store, table, run, "0", rows)
    if staged.added or staged.replaced:
        commit(store, table, run, ["0"], replace=table != "sources")
    else:
        store.index(table)  # an earlier call may have been killed between its commit and its index
    return staged


def _named(rows: pa.Table, id: str, names: list[str]) -> pa.Table:
    return rows.filter(pc.is_in(rows[id], value_set=id_column(names, rows[id].type)))
