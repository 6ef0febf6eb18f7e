"""Exactly-once commit of all parts of a run: idempotent across retries and concurrent drivers.

The transaction carries the run's name, so a commit that happened is seen, whatever died after it. Lance lets
two appends pass that know nothing of each other; so each commit looks back afterwards: rows of a run that are
there a second time, or that another run had added meanwhile, are withdrawn. Clocks and leases play no part.

A commit that replaces takes the older rows of its units out in the same transaction: a reader, and the
process that starts after a kill, find the old rows or the new ones.

What the driver itself puts in is what was ingested; the same again changes nothing. A row whose id is not
there is added, one that is there with other content is replaced, one that is equal is left alone. Sources are
named by their content, so for them there is nothing to replace.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
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
from raypipe.store.ids import Ids, gathered, present, repeats, rows, stand_in
from raypipe.store.parts import Record, data_files, drop_records, need_record, write_part
from raypipe.store.tables import checked, kind_of

_RUN, _WITHDRAWN = "raypipe.run", "raypipe.withdrawn"  # transaction properties: a run; the version it came in
_READ = "raypipe.read"  # the version against which a run's rows were found sound


def committed(store: Store, table: str, run: str) -> int | None:
    """The version in which a run's rows came into a table; None if they did not."""
    dataset = store.dataset(table)
    with reaching(dataset.uri):
        found = _history(dataset).get(run)
    return found[0] if found else None


def commit(
    store: Store, table: str, run: str, parts: Iterable[str], replace: bool = False, gone: Sequence[str] = ()
) -> int:
    """Brings all parts of a run into a table with one commit, unless that has happened, refreshes its indexes
    and removes the completion records. Returns the version to read.

    `replace`: rows that the table has of the parts' units, and of those in `gone`, go in the same commit.

    Raises StoreError, with the table as it was, if a part is not done, a file is gone, or a unit stands in
    two parts; AddedMeanwhile, and the parts are void, if another run added some of the same units.
    """
    checked_at = None
    with reaching(store.table_uri(table)), store.durable(table):
        if committed(store, table, run) is None:
            records = {part: need_record(store, table, run, part) for part in parts}
            fragments = [f for r in records.values() for f in r.fragments]
            if replace:
                checked_at = _replace(store, table, run, records, fragments, gone)
            else:
                checked_at, units = _check_staged(store, table, run, records)
                _check_new(store, table, run, store.dataset(table, checked_at), units)
                append(store, table, run, fragments, checked_at)
        _settle(store, table, run, checked_at)
        store.index(table)
    drop_records(store, table, run)
    return store.version(table)


def append(store: Store, table: str, run: str, fragments: list[lance.FragmentMetadata], read: int) -> None:
    """Commits fragments that a table gets, under a run's name."""
    transact(store, table, run, lance.LanceOperation.Append(fragments), read)


def transact(
    store: Store, table: str, run: str, operation: lance.LanceOperation.BaseOperation, read: int
) -> None:
    """Commits under a run's name, against the version `read`."""
    properties = {_RUN: run, _READ: str(read)}
    transaction = lance.Transaction(read, operation, transaction_properties=properties)
    lance.LanceDataset.commit(store.table_uri(table), transaction)


def _replace(
    store: Store,
    table: str,
    run: str,
    records: dict[str, Record],
    fragments: list[lance.FragmentMetadata],
    gone: Sequence[str],
) -> int | None:
    """Commits a run's fragments and takes out the older rows of the same units. Returns
    the version that it was made against; None where another driver has committed the run meanwhile."""
    while committed(store, table, run) is None:
        checked_at, units = _check_staged(store, table, run, records)
        dataset, unit = store.dataset(table, checked_at), kind_of(table).unit
        if unit is None:
            raise StoreError(f"{table}: a table without units has nothing to replace")
        units = Ids(units).joined(Ids.of(gone, units.type))
        there = units.where(present(dataset, unit, units.array)).array
        old = rows(dataset, unit, there, [unit, "_rowaddr"])["_rowaddr"].to_numpy()
        removed, updated = without_rows(dataset, old)
        operation = lance.LanceOperation.Update(removed, updated, fragments)
        try:
            transact(store, table, run, operation, checked_at)
            return checked_at
        except CommitConflictError:  # another driver changed the same fragments: look again
            continue
    return None


def without_rows(
    dataset: lance.LanceDataset, addresses: np.ndarray
) -> tuple[list[int], list[lance.FragmentMetadata]]:
    """Returns what becomes of the fragments that hold some rows ((n,) uint64 addresses), without these rows:
    ids of those that have no row left, and the others as they then are."""
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
    """The transaction that made a version; None where there is none to read.

    Of a compaction that wrote an index again pylance 14.0.2 cannot make a Python object, and raises
    TypeError. No run's rows came in with one, so nothing is lost."""
    try:
        return dataset.read_transaction(version)
    except TypeError as e:
        if "RewrittenIndex" not in str(e):
            raise
        return None


def _history(dataset: lance.LanceDataset) -> dict[str, list[int]]:
    """Run -> versions in which rows of it came in and were not withdrawn, oldest first. 0.15 ms a version."""
    came: dict[str, list[int]] = {}
    withdrawn = set()
    for version in sorted(v["version"] for v in dataset.versions()):
        transaction = read_transaction(dataset, version)
        properties = transaction.transaction_properties if transaction else {}
        if _RUN in properties:
            came.setdefault(properties[_RUN], []).append(version)
        if _WITHDRAWN in properties:
            withdrawn.add(int(properties[_WITHDRAWN]))
    left = {run: [v for v in versions if v not in withdrawn] for run, versions in came.items()}
    return {run: versions for run, versions in left.items() if versions}


def _check_staged(store: Store, table: str, run: str, records: dict[str, Record]) -> tuple[int, pa.Array]:
    """The version against which a run's rows were found sound: all there, each unit in one part; and their
    units. Reads the files themselves, since a commit of files that are gone succeeds and spoils the table."""
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
        raise StoreError(f"{table}, run {run}: {twice} values of {unit} stand in two parts")
    return version, added


def _check_new(
    store: Store,
    table: str,
    run: str,
    dataset: lance.LanceDataset,
    added: pa.Array,
    known: pa.Array | None = None,
) -> None:
    """Raises AddedMeanwhile, and makes the run's parts void, if a table had some of the units before, other
    than those that were `known` to be there."""
    if (unit := kind_of(table).unit) is None:
        return
    asked = added if known is None else added.filter(pc.invert(stand_in(added, known)))
    if there := pc.sum(present(dataset, unit, asked)).as_py():
        drop_records(store, table, run)
        raise AddedMeanwhile(
            f"{table}: {there} of {len(added)} values of {unit} that run {run} would add are there already: "
            "another run added them meanwhile. None of this run's rows were kept; start the command again: "
            "it plans what is still missing"
        )


def _settle(store: Store, table: str, run: str, checked_at: int | None) -> None:
    """Leaves one copy of every run's rows, and none of this run's that another had brought in before."""
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
        # Those that the table had when the commit was made ready: it took out their older rows. A commit that
        # only adds has none.
        properties = store.dataset(table).read_transaction(first).transaction_properties
        known = units.slice(0, 0)
        if _READ in properties:
            known = units.filter(present(store.dataset(table, int(properties[_READ])), unit, units))
        _check_new(store, table, run, store.dataset(table, first - 1), units, known)
    except AddedMeanwhile:
        _withdraw(store, table, first)
        raise


def _added(store: Store, table: str, version: int) -> list[lance.LanceFragment]:
    """The fragments that a version has and the one before it has not."""
    before = {f.fragment_id for f in store.dataset(table, version - 1).get_fragments()}
    return [f for f in store.dataset(table, version).get_fragments() if f.fragment_id not in before]


def _withdraw(store: Store, table: str, version: int) -> None:
    """Takes out again what one version brought in. Two drivers may try at once: one does it."""
    ids = {f.fragment_id for f in _added(store, table, version)}
    while True:
        dataset = store.dataset(table)
        here = sorted(ids & {f.fragment_id for f in dataset.get_fragments()})
        if not here:
            return
        operation = lance.LanceOperation.Delete([], here, "withdrawn by raypipe")
        properties = {_WITHDRAWN: str(version)}
        transaction = lance.Transaction(dataset.version, operation, transaction_properties=properties)
        try:
            lance.LanceDataset.commit(store.table_uri(table), transaction)
            return
        except CommitConflictError:  # the other driver was faster: look again
            continue


@dataclass(frozen=True, slots=True)
class Staged:
    """Effect of rows that are committed with `replace`."""

    added: tuple[str, ...]  # ids
    replaced: tuple[str, ...]  # ids
    equal: int


def stage(store: Store, table: str, run: str, part: str, rows: pa.Table) -> Staged:
    """Writes rows that an ingested table lacks, or has otherwise, as a part of a run, if there are any."""
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
    return Staged(tuple(fresh), tuple(changed), len(there) - len(changed))


def put(store: Store, table: str, rows: pa.Table) -> Staged:
    """Puts rows into one of the ingested tables, with one commit. After a kill, put the same again."""
    run = uuid.uuid4().hex
    staged = stage(store, table, run, "0", rows)
    if staged.added or staged.replaced:
        commit(store, table, run, ["0"], replace=table != "sources")
    else:
        store.index(table)  # an earlier call may have been killed between its commit and its index
    return staged


def _named(rows: pa.Table, id: str, names: list[str]) -> pa.Table:
    return rows.filter(pc.is_in(rows[id], value_set=id_column(names, rows[id].type)))
