"""Parts of a run: a worker writes rows that no table version shows yet, then one completion record.

A run is the work that was missing when it began, cut into parts. Its plan is kept until its last table is
committed, so a driver that starts after a kill resumes with the same parts. The ids of all parts are one
column in a file of the run, which never changes; a part is a range of its rows. A part is done once its
completion record is complete. A kill before that leaves only files that no table version names.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from lance import FragmentMetadata
from lance.file import LanceFileReader
from lance.fragment import write_fragments

from raypipe.core.arrow import id_texts
from raypipe.core.records import digest
from raypipe.store.database import Store
from raypipe.store.errors import StoreError, reaching
from raypipe.store.files import PARTS, PLANNED, RUNS
from raypipe.store.ids import Ids
from raypipe.store.tables import check_run, checked

NO_GROUPS: Mapping[str, int] = {}
PLAN_BATCH = 8192  # ids of a plan that are read at a time: 130 KB; a plan of ten million has a 30 KB footer


@dataclass(frozen=True, slots=True)
class PlanRows:
    """A range of rows in a run's plan. A task reads the ids of its rows from this range."""

    run: str
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class TableRun:
    """A run: its name, and the ids of all parts."""

    name: str
    ids: Ids = field(compare=False)  # of sources or questions, in the order of the parts
    starts: tuple[int, ...]  # the index in `ids` at which each part begins
    replaces: bool = False  # True: the commit removes the table's older rows of these ids
    fresh: bool = False  # True: language models are called again, and cached replies are ignored

    @property
    def parts(self) -> list[str]:
        """Names of the parts, in their order."""
        return [f"{i:06d}" for i in range(len(self.starts))]

    def part(self, name: str) -> tuple[str, ...]:
        """Returns the ids of a part. Raises KeyError for an unknown part."""
        rows = self.rows(name)
        return tuple(self.ids[rows.first : rows.first + rows.count])

    def rows(self, part: str) -> PlanRows:
        """Returns the range of a part in the plan. Raises KeyError for an unknown part."""
        if not part.isdigit() or int(part) >= len(self.starts):
            raise KeyError(part)
        first, *end = self.starts[int(part) : int(part) + 2]
        return PlanRows(self.name, first, (end[0] if end else len(self.ids)) - first)

    def ids_of(self, parts: Iterable[str]) -> Ids:
        """Returns the ids of some parts, in the order of the run."""
        mask = np.zeros(len(self.ids), bool)
        for rows in map(self.rows, parts):
            mask[rows.first : rows.first + rows.count] = True
        return self.ids.where(pa.array(mask))


def begun(store: Store, what: str) -> TableRun | None:
    """Reads the unfinished run of some work; None if there is none. `what` names the work: a digest of its
    stages. Removes a damaged plan and returns None, so that the missing work is planned again."""
    raw = store.files.read(_plan(what))
    if raw is None:
        return None
    text = unsealed(raw)
    plan = json.loads(text) if text else {}
    if "starts" not in plan or _digest(store, plan["run"]) != plan["ids"]:
        end(store, what)
        return None
    with _reading(store, plan["run"]) as file:
        ids = Ids(pa.ipc.open_file(file).read_all()["id"].combine_chunks())
    return TableRun(plan["run"], ids, tuple(plan["starts"]), plan["replaces"], plan["fresh"])


def part_starts(
    ids: Sequence[str], per_part: int, groups: Mapping[str, int] = NO_GROUPS, most: int = 0
) -> tuple[int, ...]:
    """Cuts ids into parts of at most `per_part` ids, and returns the start of each. With `groups` (id ->
    group), cuts between groups if possible. A part of a single group may then have up to `most` ids. The ids
    without a group are one group.

    >>> part_starts("abcde", 2), part_starts("abcde", 2, {"a": 1, "b": 2, "c": 2, "d": 3, "e": 4})
    ((0, 2, 4), (0, 1, 3))
    >>> part_starts("abcde", 1, dict.fromkeys("bcd", 1), most=3)
    (0, 1, 4)
    """
    if not groups:
        return tuple(range(0, len(ids), per_part))
    starts, border = [0] if ids else [], 0
    for i in range(1, len(ids)):
        if groups.get(ids[i]) != groups.get(ids[i - 1]):
            border = i
        if i - starts[-1] >= per_part and (border > starts[-1] or i - starts[-1] >= most):
            starts.append(border if border > starts[-1] else i)
    return tuple(starts)


def begin(
    store: Store,
    what: str,
    ids: Sequence[str],
    per_part: int,
    replaces: bool = False,
    fresh: bool = False,
    groups: Mapping[str, int] = NO_GROUPS,
    most: int = 0,
) -> TableRun:
    """Begins a run over the ids, in their order, or returns the unfinished run of `what`. `part_starts` cuts
    the parts. `ids` is an `Ids`, or a list of question ids."""
    starts = part_starts(ids, per_part, groups, most)
    run = TableRun(uuid.uuid4().hex, Ids.of(ids, pa.string()), starts, replaces, fresh)
    if store.files.create(_plan(what), _written(store, run)):
        return run
    store.files.remove(_ids(run.name))
    return begun(store, what) or begin(store, what, ids, per_part, replaces, fresh, groups, most)


def begin_rest(
    store: Store,
    what: str,
    run: TableRun,
    ids: Sequence[str],
    per_part: int,
    groups: Mapping[str, int] = NO_GROUPS,
    most: int = 0,
) -> None:
    """Replaces a committed run's plan by one over some of its ids, whose rows must be computed again."""
    starts = part_starts(ids, per_part, groups, most)
    rest = replace(run, name=uuid.uuid4().hex, ids=Ids.of(ids, pa.string()), starts=starts)
    store.files.write(_plan(what), _written(store, rest))
    store.files.remove(_ids(run.name))


def _written(store: Store, run: TableRun) -> bytes:
    """Writes the ids of a run, and returns its plan as bytes. The caller writes the plan afterwards, so the
    ids of a plan are always complete."""
    table = pa.table({"id": run.ids.array})
    with store.files.writing(_ids(run.name)) as file, pa.ipc.new_file(file, table.schema) as rows:
        rows.write_table(table, PLAN_BATCH)
    plan = {"run": run.name, "ids": _digest(store, run.name), "starts": run.starts}
    return sealed(json.dumps({**plan, "replaces": run.replaces, "fresh": run.fresh}))


def planned_ids(store: Store, rows: PlanRows) -> tuple[str, ...]:
    """Reads only the ids in a range of a plan. Raises StoreError if the plan no longer exists."""
    with _reading(store, rows.run) as file:
        plan = pa.ipc.open_file(file)
        last = rows.first + rows.count - 1
        numbers = range(rows.first // PLAN_BATCH, last // PLAN_BATCH + 1)
        some = pa.Table.from_batches([plan.get_batch(n) for n in numbers])
        return tuple(id_texts(some["id"].slice(rows.first % PLAN_BATCH, rows.count)))


def run_of(store: Store, what: str) -> str | None:
    """Returns the run of some unfinished work; None if its plan is damaged or missing."""
    text = unsealed(store.files.read(_plan(what)) or b"")
    return None if text is None else str(json.loads(text)["run"])


def end(store: Store, what: str) -> None:
    """Removes the plan and the ids of a run, after its last table is committed or its work is given up."""
    run = run_of(store, what)
    store.files.remove(_plan(what))
    if run is not None:
        store.files.remove(_ids(run))


@contextmanager
def _reading(store: Store, run: str) -> Iterator[pa.NativeFile]:
    name = _ids(run)
    if (file := store.files.open(name)) is None:
        raise StoreError(
            f"{store.uri}/{name} is missing: another command ended this run. Run this command again"
        )
    with reaching(f"{store.uri}/{name}"), file:
        yield file


def _digest(store: Store, run: str) -> str | None:
    """Returns the digest of the file with a run's ids; None if the file is missing."""
    if (file := store.files.open(_ids(run))) is None:
        return None
    with reaching(f"{store.uri}/{_ids(run)}"), file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def sealed(text: str) -> bytes:
    """Prefixes a text with its own digest."""
    return f"{digest(text)}\n{text}".encode()


def unsealed(raw: bytes) -> str | None:
    """Returns the text from the bytes of `sealed`; None if the digest does not match: the file is damaged."""
    name, _, text = raw.decode("utf-8", "replace").partition("\n")
    return text if digest(text) == name else None


def _plan(what: str) -> str:
    return f"{RUNS}/{check_run(what)}.json"


def _ids(run: str) -> str:
    return f"{PLANNED}/{check_run(run)}.arrow"


@dataclass(frozen=True, slots=True)
class Record:
    """Content of a completion record."""

    rows: int
    fragments: tuple[FragmentMetadata, ...]  # rows written and not yet in any version of the table
    facts: Mapping[str, Any]  # counts and timings of the worker; plain JSON


def write_part(
    store: Store, table: str, run: str, part: str, data: pa.Table, facts: Mapping[str, Any]
) -> Record:
    """Writes the rows of one part, perhaps none, and its completion record. For a part that is done, writes
    nothing and returns its record. Raises DataError for rows that do not fit the table, and StoreError,
    StoreUnavailable or DiskFull if the table is missing or the write fails."""
    with reaching(store.table_uri(table)):
        if (done := read_record(store, table, run, part)) is not None:
            return done
        fragments = write_rows(store, table, data)
        body = {"rows": data.num_rows, "fragments": [f.to_json() for f in fragments], "facts": dict(facts)}
        store.files.write(record_path(table, run, part), sealed(json.dumps(body)))
    return Record(data.num_rows, tuple(fragments), facts)


def write_rows(store: Store, table: str, data: pa.Table) -> list[FragmentMetadata]:
    """Writes rows as files that no table version names yet, synced to disk: after a power cut no record may
    name missing files. Raises as `write_part`."""
    dataset = store.dataset(table)
    rows = checked(table, dataset.schema, data)
    with reaching(dataset.uri):
        fragments = write_fragments(rows, dataset) if rows.num_rows else []
        for name in data_files(table, fragments):
            store.files.sync(name)
    return fragments


def done_parts(store: Store, table: str, run: str) -> dict[str, Mapping[str, Any]]:
    """Maps each finished part to its facts. A part is finished if its record and its files are complete."""
    return dict(new_parts(store, table, run, set()))


def new_parts(store: Store, table: str, run: str, seen: set[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the finished parts that are not in `seen`, with their facts. Adds them to `seen`."""
    for name in store.files.names(_folder(table, run)):
        part, is_record, _ = name.rpartition(".json")
        if is_record and part not in seen and (record := read_record(store, table, run, part)) is not None:
            seen.add(part)
            yield part, record.facts


def read_record(store: Store, table: str, run: str, part: str) -> Record | None:
    """Reads the completion record of a part; None if the part must be computed again."""
    if (text := unsealed(store.files.read(record_path(table, run, part)) or b"")) is None:
        return None
    body = json.loads(text)
    fragments = tuple(FragmentMetadata.from_json(json.dumps(f)) for f in body["fragments"])
    for path, size in data_files(table, fragments).items():
        if store.files.size(path) != size:
            return None
    return Record(body["rows"], fragments, body["facts"])


def need_record(store: Store, table: str, run: str, part: str) -> Record:
    """Reads the completion record of a part that must be done; raises StoreError if it is not."""
    if (record := read_record(store, table, run, part)) is None:
        raise StoreError(
            f"{table}, run {run}: part {part} has an incomplete completion record, or lacks files. Nothing "
            "was committed. Run the command again: it repeats only such parts"
        )
    return record


def part_rows(
    store: Store, table: str, run: str, part: str, columns: Sequence[str] | None = None
) -> pa.Table:
    """Reads the rows of a finished part of an uncommitted run; with `columns`, only these columns."""
    names = data_files(table, need_record(store, table, run, part).fragments)
    readers = (LanceFileReader(f"{store.uri}/{name}", columns=columns and list(columns)) for name in names)
    if tables := [reader.read_all().to_table() for reader in readers]:
        return pa.concat_tables(tables)
    whole: pa.Table = store.dataset(table).schema.empty_table()
    return whole.select(list(columns)) if columns else whole


def staged(store: Store, table: str, run: str, parts: Iterable[str], column: str) -> set[str]:
    """Returns the values of a column in some finished parts of an uncommitted run."""
    found = (part_rows(store, table, run, part, [column])[column] for part in parts)
    return {value for values in found for value in id_texts(values)}


def data_files(table: str, fragments: Iterable[FragmentMetadata]) -> dict[str, int]:
    """Maps the path of each file of some fragments, relative to the store, to its bytes."""
    return {f"{table}.lance/data/{f.path}": f.file_size_bytes for x in fragments for f in x.files}


def drop_records(store: Store, table: str, run: str) -> None:
    """Removes a run's completion records and `halt` file, after its commit or to compute its rows again."""
    store.files.remove_folder(_folder(table, run))


def _folder(table: str, run: str) -> str:
    return f"{PARTS}/{table}/{check_run(run)}"


def record_path(table: str, run: str, part: str) -> str:
    """Returns the path of a part's completion record."""
    return f"{_folder(table, run)}/{check_run(part)}.json"


def halt(store: Store, table: str, run: str, why: str) -> None:
    """Stops a run: writes the reason why no further part may begin. `go_on` and `drop_records` remove it."""
    store.files.write(f"{_folder(table, run)}/halt", sealed(why))


def halted(store: Store, table: str, run: str) -> str | None:
    """Returns the reason why no further part may begin; None if parts may begin."""
    return unsealed(store.files.read(f"{_folder(table, run)}/halt") or b"")


def go_on(store: Store, table: str, run: str) -> None:
    store.files.remove(f"{_folder(table, run)}/halt")
