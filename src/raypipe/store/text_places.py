"""Every place of a store that can hold a text, and how a forget (the removal of a text) clears it.

`TABLES` lists the tables, in the order in which a forget removes rows; `FILES` lists the folders of small
files. A forget, its dry run and the drill that searches for a planted word use both lists. A test refuses a
table or folder that is not listed. Rows are found by ids, never by words. The details of faults and the texts
of users' feedback name no source, so each forget removes all of them. `runs.forget` decides what to remove.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceDataset

from raypipe.core import arrow
from raypipe.store import files
from raypipe.store.database import Store
from raypipe.store.errors import reaching
from raypipe.store.fields import PARTS
from raypipe.store.housekeeping import keep_only, rewrite_deleted, tables
from raypipe.store.ids import SCAN_ROWS, rows, wheres
from raypipe.store.segments import read_segments, segment, segment_names

TAKEN_OUT = "taken out by a forget"
"""Text that replaces the detail of a fault, because a detail may repeat any text that a step read."""


@dataclass(frozen=True, slots=True)
class Gone:
    """Ids of everything that a forget removes or changes."""

    sources: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()  # of citations
    documents: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    resting: tuple[str, ...] = ()  # questions that cite a removed source, or whose answer rests on one
    cited: tuple[str, ...] = ()  # questions that lose a citation, or a part of one
    graded: tuple[str, ...] = ()  # questions that lose a judged document
    answers: tuple[str, ...] = ()  # keys
    adapters: tuple[str, ...] = ()  # names
    keyed: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)
    """Memo table -> keys. Table of lengths or postings -> segments; the next index builds them again."""
    safe: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Recipe -> questions that it answered, if none of these answers rests on a removed text."""

    @property
    def named(self) -> tuple[str, ...]:
        """Ids of removed sources, questions and documents, and urls. A fault with such an id is removed."""
        return (*self.sources, *self.questions, *self.documents, *self.urls)

    def cites(self, citation: Mapping[str, Any]) -> bool:
        """Returns whether a citation names a removed url or source."""
        return citation["url"] in self.urls or any(citation[part] in self.sources for part in PARTS)

    def answered_by(self, line: Mapping[str, Any]) -> bool:
        """Returns whether a captured answer belongs to a removed question, rests on a removed source, or
        cites a removed source or url."""
        used = {*line["found"], *(q["source"] for q in line["quotes"]), *(s["id"] for s in line["sources"])}
        if line["id"] in self.questions or not used.isdisjoint(self.sources):
            return True
        return any(map(self.cites, line["citations"] or ()))


@dataclass(frozen=True, slots=True)
class FoundText:
    """Rows of one place that a forget removes or edits."""

    place: str  # a table, a file of the store, or a folder
    rows: int
    does: str = "rows are removed"  # the consequence for these rows, for people


Edit: TypeAlias = Callable[[Gone, dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rule for a kind of table: how a forget finds the rows to remove and the rows to edit."""

    column: str  # the column that is compared with ids to remove
    of: str  # the field of Gone with these ids
    edited: str = ""  # the field of Gone with the ids of rows to edit; "": no row is edited
    edit: Edit = lambda gone, row: row

    def ids(self, gone: Gone, table: str) -> tuple[list[Any], list[str]]:
        """Returns the values of `column` by which rows are removed, then those by which rows are edited."""
        going = gone.keyed.get(table, ()) if self.of == "keyed" else getattr(gone, self.of)
        return list(going), list(getattr(gone, self.edited, ()))


def _uncite(gone: Gone, row: dict[str, Any]) -> dict[str, Any]:
    sources = set(map(bytes.fromhex, gone.sources))
    left = [
        {**c, **{part: None if c[part] in sources else c[part] for part in PARTS}}
        for c in row["citations"] or ()
        if c["url"] not in gone.urls
    ]
    return {**row, "citations": None if row["citations"] is None else left}


def _ungrade(gone: Gone, row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "grades": [g for g in row["grades"] if g[0] not in gone.documents]}


TABLES: Mapping[str, TextTable] = {
    "embeddings": TextTable("key", "keyed"),
    "scores": TextTable("key", "keyed"),
    "replies": TextTable("key", "keyed"),
    "postings": TextTable("segment", "keyed"),
    "lengths": TextTable("segment", "keyed"),
    "faults": TextTable("id", "named"),
    "answers": TextTable("key", "answers"),
    "vectors": TextTable("source", "sources"),
    "passages": TextTable("source", "sources"),
    "texts": TextTable("source", "sources"),
    "golds": TextTable("question", "questions"),
    "relevance": TextTable("question", "questions", "graded", _ungrade),
    "annotations": TextTable("question", "questions"),
    "questions": TextTable("id", "questions", "cited", _uncite),
    "layouts": TextTable("source", "sources"),
    "documents": TextTable("source", "sources"),
    "sources": TextTable("id", "sources"),
}
"""Rule by kind of table (`tables.KINDS`). A table that helps to find rows of other tables comes after them,
so a repeated forget still finds the rows that a killed one left."""


def place_of(table: str) -> TextTable:
    """Returns the rule for a table, by its kind."""
    return TABLES[table.partition("-")[0]]


def here(dataset: LanceDataset, column: str, values: Collection[Any]) -> bool:
    """Returns whether an open table's files hold a row with one of the values, deleted or not."""
    if not values:
        return False
    wanted = arrow.id_column(values, dataset.schema.field(column).type)
    scan = dataset.scanner([column], include_deleted_rows=True, with_row_id=True, batch_size=SCAN_ROWS)
    return any(pc.any(pc.is_in(b[column], value_set=wanted)).as_py() for b in scan.to_batches())


def holding(store: Store, gone: Gone, named: Mapping[str, Collection[int]]) -> dict[str, set[int]]:
    """Maps each table to those of its `named` versions that hold rows to remove or to edit."""
    found: dict[str, set[int]] = {}
    for table, versions in named.items():
        place = place_of(table)
        values = [value for some in place.ids(gone, table) for value in some]
        with reaching(store.table_uri(table)):
            found[table] = {v for v in versions if here(store.dataset(table, v), place.column, values)}
    return found


def in_tables(
    store: Store, gone: Gone, named: Mapping[str, Collection[int]], write: bool
) -> Iterator[FoundText]:
    """Yields the rows of all tables that a forget affects. With `write`, also removes or edits them, so a
    second call finds nothing. Then removes each table's old versions with their files, even tagged ones. Of
    `named` (table -> versions), those without such rows stay, except versions of `faults`."""
    order = list(TABLES)
    for table in sorted(tables(store), key=lambda t: order.index(t.partition("-")[0])):
        place = place_of(table)
        going, edited = place.ids(gone, table)
        for values, does in ((going, "rows are removed"), (edited, "rows lose the fields that name it")):
            found = wheres(store.dataset(table), place.column, values)
            if count := sum(store.count(table, where) for where in found):
                yield FoundText(table, count, does)
        has_detail = f"detail != '{TAKEN_OUT}'"
        if table == "faults" and (count := store.count(table, has_detail)):
            yield FoundText(table, count, "rows lose their detail, which may repeat a text")
        if write:
            store.forget(table, place.column, going)
            dataset = store.dataset(table)
            found = rows(dataset, place.column, edited).to_pylist()
            changed = [(row, place.edit(gone, row)) for row in found]
            if new := [after for before, after in changed if after != before]:  # in one commit
                with store.durable(table), reaching(dataset.uri):
                    written = pa.Table.from_pylist(new, dataset.schema)
                    dataset.merge_insert(place.column).when_matched_update_all().execute(written)
            if table == "faults":
                with store.durable(table):
                    store.dataset(table).update({"detail": f"'{TAKEN_OUT}'"}, where=has_detail)
            rewrite_deleted(store, table)
            others = set[int]() if table == "faults" else set(named.get(table, ()))
            keep_only(store, table, others - holding(store, gone, {table: others})[table])


Change: TypeAlias = tuple[str, int, bytes | pa.Buffer | None]
"""A change of a small file: its path; the number of affected entries, 0 for no change; its new content.
Empty content removes the file; None removes a folder."""
InFiles: TypeAlias = Callable[[Store, Gone], Iterator[Change]]


def _segments(store: Store, folder: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for name in segment_names(store.files, folder):
        yield f"{folder}/{name}", list(read_segments(store.files, folder, [name]))


def _captured(store: Store, gone: Gone) -> Iterator[Change]:
    for place, lines in _segments(store, files.CAPTURED):
        left = [line for line in lines if not gone.answered_by(line)]
        yield place, len(lines) - len(left), segment(left)


def _feedback(store: Store, gone: Gone) -> Iterator[Change]:
    """Removes feedback on removed answers, feedback that is only a text, and the texts of other feedback. A
    text may quote any page."""
    captured = (line for _, lines in _segments(store, files.CAPTURED) for line in lines)
    answers = {line["answer_id"] for line in captured if gone.answered_by(line)}
    for place, lines in _segments(store, files.FEEDBACK):
        left = [
            {**x, "text": None}
            for x in lines
            if x["answer_id"] not in answers and (x["verdict"] is not None or x["text"] is None)
        ]
        yield place, len(lines) if left != lines else 0, segment(left)


def _json(folder: str) -> InFiles:
    """Makes a rule for the JSON files of a folder: ids are removed, and objects with an id (`_without`)."""

    def in_files(store: Store, gone: Gone) -> Iterator[Change]:
        ids = {*gone.sources, *gone.documents, *gone.questions}
        for place in store.files.walk(folder):
            tree = json.loads(store.files.read(place) or b"{}")
            after = _without(tree, ids)
            yield place, int(after != tree), json.dumps(after).encode()

    return in_files


def _without(tree: Any, ids: set[str]) -> Any:
    """Removes ids from a JSON tree: ids in lists, and each inner object with an id among its values. An id
    among the values of the outermost object becomes ""."""

    def named(value: Any) -> bool:
        fields = value.values() if isinstance(value, dict) else (value,)
        return any(isinstance(x, str) and x in ids for x in fields)

    if isinstance(tree, dict):
        kept = {k: v for k, v in tree.items() if not (isinstance(v, dict) and named(v))}
        return {k: "" if named(v) else _without(v, ids) for k, v in kept.items()}
    return [_without(x, ids) for x in tree if not named(x)] if isinstance(tree, list) else tree


def _answer_keys(store: Store, gone: Gone) -> Iterator[Change]:
    ids = pa.array(gone.questions, pa.string())
    for place in store.files.walk(files.ANSWER_KEYS):
        table = arrow.rows_of(store.files.read(place) or b"")
        left = table.filter(pc.invert(pc.is_in(table["question"], value_set=ids)))
        yield place, table.num_rows - left.num_rows, arrow.file_of(left)


def _whole(folder: str, named: str = "") -> InFiles:
    """Makes a rule that removes a folder, which a store without unfinished work does not need. With `named`,
    a field of Gone, the rule removes only the subfolders with the names in this field."""

    def in_files(store: Store, gone: Gone) -> Iterator[Change]:
        for place in [f"{folder}/{name}" for name in getattr(gone, named)] if named else [folder]:
            yield place, len(store.files.walk(place)), None

    return in_files


FILES: Mapping[str, InFiles] = {
    files.FEEDBACK: _feedback,  # before CAPTURED, whose lines show which feedback to remove
    files.CAPTURED: _captured,
    files.INGESTED: _json(files.INGESTED),
    files.FOLDERS: _json(files.FOLDERS),
    files.ANN: _json(files.ANN),
    files.ANSWER_KEYS: _answer_keys,
    files.ADAPTERS: _whole(files.ADAPTERS, "adapters"),  # weights cannot be taken apart
    files.TRAININGS: _whole(files.TRAININGS),  # checkpoints may hold labels that reveal a text
    files.PARTS: _whole(files.PARTS),
    files.READS: _whole(files.READS),
    files.PLANNED: _whole(files.PLANNED),
}
"""Folder of a store -> the rule that a forget applies to it."""


def in_small_files(store: Store, gone: Gone, write: bool) -> Iterator[FoundText]:
    """Yields the affected entries of the files next to the tables. With `write`, it also removes them."""
    changes = (c for in_files in FILES.values() for c in in_files(store, gone))
    for place, count, content in (c for c in changes if c[1]):
        yield FoundText(place, count)
        if write and content is None:
            store.files.remove_folder(place)
        elif write and content is not None and len(content):
            store.files.write(place, content)
        elif write:
            store.files.remove(place)
