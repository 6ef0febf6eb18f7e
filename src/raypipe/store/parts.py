"""Parts of a run: a worker writes rows that no table shows yet, and then says so in one small file.

A run is the work that was missing when it began, cut into parts; its plan is kept until its last table is
committed, so that a driver that starts after a kill resumes with the same parts. A part is done when its
completion record is there and whole: everything before that leaves only files that no version references.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from lance import FragmentMetadata
from lance.file import LanceFileReader
from lance.fragment import write_fragments

from raypipe.core.records import digest
from raypipe.store.database import Store
from raypipe.store.errors import reaching
from raypipe.store.files import StoreError
from raypipe.store.layout import PARTS, RUNS
from raypipe.store.tables import check_run, checked


@dataclass(frozen=True, slots=True)
class Run:
    """Work that was begun: its name, and the ids of each part."""

    name: str
    parts: Mapping[str, tuple[str, ...]]  # part -> ids (of sources or questions), each id in one part
    replaces: bool = False  # True: rows that the table has of these ids go in the commit
    fresh: bool = False  # True: language models are asked again, whatever they replied before

    @property
    def ids(self) -> list[str]:
        """All ids, in the order of the parts."""
        return [id for part in self.parts.values() for id in part]


def begun(store: Store, what: str) -> Run | None:
    """The unfinished run of some work, if there is one. `what` names the work: a digest of its stages. A plan
    that is damaged is removed: what is missing is planned again."""
    raw = store.files.read(_plan(what))
    if raw is None:
        return None
    text = unsealed(raw)
    if text is None:
        end(store, what)
        return None
    plan = json.loads(text)
    parts = {name: tuple(ids) for name, ids in plan["parts"].items()}
    return Run(plan["run"], parts, plan.get("replaces", False), plan.get("fresh", False))


def begin(
    store: Store, what: str, ids: Sequence[str], per_part: int, replaces: bool = False, fresh: bool = False
) -> Run:
    """Begins a run over the ids in their order, `per_part` to a part; or gives back the unfinished one."""
    run = _cut(ids, per_part, replaces, fresh)
    if store.files.create(_plan(what), _written(run)):
        return run
    return begun(store, what) or begin(store, what, ids, per_part, replaces, fresh)


def begin_rest(store: Store, what: str, run: Run, ids: Sequence[str], per_part: int) -> None:
    """Puts a run over some of its ids in the place of a run that is committed: they are to be done again."""
    store.files.write(_plan(what), _written(_cut(ids, per_part, run.replaces, run.fresh)))


def _cut(ids: Sequence[str], per_part: int, replaces: bool, fresh: bool) -> Run:
    some = [tuple(ids[at : at + per_part]) for at in range(0, len(ids), per_part)]
    return Run(uuid.uuid4().hex, {f"{i:06d}": part for i, part in enumerate(some)}, replaces, fresh)


def _written(run: Run) -> bytes:
    how = {"replaces": True, "fresh": run.fresh} if run.replaces else {}
    return sealed(json.dumps({"run": run.name, "parts": run.parts, **how}))


def run_of(store: Store, what: str) -> str | None:
    """The run of some unfinished work; None where its plan is damaged."""
    text = unsealed(store.files.read(_plan(what)) or b"")
    return None if text is None else str(json.loads(text)["run"])


def end(store: Store, what: str) -> None:
    """Ends a run all of whose tables are committed."""
    store.files.remove(_plan(what))


def sealed(text: str) -> bytes:
    """A text under its own digest."""
    return f"{digest(text)}\n{text}".encode()


def unsealed(raw: bytes) -> str | None:
    """The text, or None where a bit of it is lost."""
    name, _, text = raw.decode("utf-8", "replace").partition("\n")
    return text if digest(text) == name else None


def _plan(what: str) -> str:
    return f"{RUNS}/{check_run(what)}.json"


@dataclass(frozen=True, slots=True)
class Record:
    """What a completion record says."""

    rows: int
    fragments: tuple[FragmentMetadata, ...]  # rows written and not yet in any version of the table
    facts: Mapping[str, Any]  # counts and timings of the worker; plain JSON


def write_part(
    store: Store, table: str, run: str, part: str, data: pa.Table, facts: Mapping[str, Any]
) -> Record:
    """Writes the rows of one part, which may be none, and its completion record; a part that is done already
    is left as it is. The table must be there. Raises DataError for rows that the table must not hold,
    StoreUnavailable and DiskFull."""
    dataset = store.dataset(table)
    rows = checked(table, dataset.schema, data)
    with reaching(dataset.uri):
        if (done := read_record(store, table, run, part)) is not None:
            return done
        fragments = write_fragments(rows, dataset) if rows.num_rows else []
        record = Record(rows.num_rows, tuple(fragments), dict(facts))
        for name in data_files(table, record):
            store.files.sync(name)  # the record must not outlive the rows when the machine loses power
        body = {"rows": record.rows, "fragments": [f.to_json() for f in fragments], "facts": record.facts}
        store.files.write(_record(table, run, part), sealed(json.dumps(body)))
    return record


def done_parts(store: Store, table: str, run: str) -> dict[str, Mapping[str, Any]]:
    """Part -> facts, of each part that need not be done again. One whose record is damaged, or whose files
    are gone, is not among them."""
    names = [n.removesuffix(".json") for n in store.files.names(_folder(table, run))]
    records = {part: read_record(store, table, run, part) for part in names}
    return {part: record.facts for part, record in records.items() if record is not None}


def read_record(store: Store, table: str, run: str, part: str) -> Record | None:
    """The completion record of a part; None if the part must be done again."""
    raw = store.files.read(_record(table, run, part))
    if raw is None:
        return None
    text = unsealed(raw)
    if text is None:
        return None
    body = json.loads(text)
    fragments = tuple(FragmentMetadata.from_json(json.dumps(f)) for f in body["fragments"])
    record = Record(body["rows"], fragments, body["facts"])
    for path, size in data_files(table, record).items():
        if store.files.size(path) != size:
            return None
    return record


def need_record(store: Store, table: str, run: str, part: str) -> Record:
    """The completion record of a part that must be done by now."""
    record = read_record(store, table, run, part)
    if record is None:
        raise StoreError(
            f"{table}, run {run}: part {part} has no whole completion record, or its files are gone. Nothing "
            "was committed; start the command again: only such parts are done again"
        )
    return record


def part_rows(
    store: Store, table: str, run: str, part: str, columns: Sequence[str] | None = None
) -> pa.Table:
    """The rows of a finished part of a run that is not committed. `columns` None: all of them."""
    found = [
        LanceFileReader(f"{store.uri}/{name}", columns=columns and list(columns)).read_all().to_table()
        for name in data_files(table, need_record(store, table, run, part))
    ]
    return pa.concat_tables(found)


def staged(store: Store, table: str, run: str, parts: Iterable[str], column: str) -> set[str]:
    """The values of a column in the rows of some finished parts of a run that is not committed."""
    found = (part_rows(store, table, run, part, [column])[column] for part in parts)
    return {value for values in found for value in values.to_pylist()}


def data_files(table: str, record: Record) -> dict[str, int]:
    """Path under the store -> bytes, of each file that a part wrote."""
    files = [f for fragment in record.fragments for f in fragment.files]
    return {f"{table}.lance/data/{f.path}": f.file_size_bytes for f in files}


def drop_records(store: Store, table: str, run: str) -> None:
    """Removes the completion records of a run; its rows are in the table, or shall be done again."""
    store.files.remove_folder(_folder(table, run))


def _folder(table: str, run: str) -> str:
    return f"{PARTS}/{table}/{check_run(run)}"


def _record(table: str, run: str, part: str) -> str:
    return f"{_folder(table, run)}/{check_run(part)}.json"
