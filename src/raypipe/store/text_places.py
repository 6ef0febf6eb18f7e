"""Every place of a store that can hold a text: how its rows are found by ids, and how they are taken out.

One list for tables and one for files. A forget, its dry run and the drill that looks for a planted word all
go through them, and a law holds that a table or folder which is not listed cannot be added. Nothing is found
by its words. Two places hold texts that name no source, details of faults and what users wrote: these texts
go with each forget. Knows tables and the lines of small files; why something goes, `runs.forget` knows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceDataset

from raypipe.core import arrow
from raypipe.store import layout
from raypipe.store.database import Store
from raypipe.store.errors import reaching
from raypipe.store.ids import SCAN_ROWS, filters, rows
from raypipe.store.keep import keep_only, rewrite_deleted, tables
from raypipe.store.segments import read_segments, segment_names

PARTS = ("page", "snippet", "name")  # of a citation, that are sources
TAKEN_OUT = "taken out by a forget"
"""In the place of the detail of a fault, which may repeat any text that a step read."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The ids of all that goes."""

    sources: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()  # of citations
    documents: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    resting: tuple[str, ...] = ()  # questions with an answer that rests on these, or that cite them
    cited: tuple[str, ...] = ()  # questions that lose a citation, or a part of one
    graded: tuple[str, ...] = ()  # questions that lose a judged document
    answers: tuple[str, ...] = ()  # keys
    adapters: tuple[str, ...] = ()  # names
    keyed: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)
    """Memo table -> keys; table of lengths or postings -> segments, which the next index makes again."""

    @property
    def named(self) -> tuple[str, ...]:
        """All that a fault's id may be."""
        return (*self.sources, *self.questions, *self.documents, *self.urls)

    def cites(self, citation: Mapping[str, Any]) -> bool:
        """Returns whether a citation names one of these."""
        return citation["url"] in self.urls or any(citation[part] in self.sources for part in PARTS)

    def answered_by(self, line: Mapping[str, Any]) -> bool:
        """Returns whether a captured answer rests on one of these."""
        used = {*line["found"], *(q["source"] for q in line["quotes"]), *(s["id"] for s in line["sources"])}
        if line["id"] in self.questions or not used.isdisjoint(self.sources):
            return True
        return any(map(self.cites, line["citations"] or ()))


@dataclass(frozen=True, slots=True)
class FoundText:
    """Rows of one place that go, or lose a text."""

    place: str  # a table, or a file of the store
    rows: int
    does: str  # what becomes of them, for people


Edit: TypeAlias = Callable[[Gone, dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class TextTable:
    """The way to find the rows of a kind of table."""

    holds: str
    column: str  # that names what goes
    of: str  # the field of Gone with the values of that column
    edited: str = ""  # the field of Gone with the ids of rows that lose a part; "": none do
    edit: Edit = lambda gone, row: row

    def ids(self, gone: Gone, table: str) -> list[Any]:
        """Values of its column in the rows that go."""
        return list(gone.keyed.get(table, ()) if self.of == "keyed" else getattr(gone, self.of))

    def edited_ids(self, gone: Gone) -> list[str]:
        """The same of the rows that lose a part."""
        return list(getattr(gone, self.edited, ()))


def _uncite(gone: Gone, row: dict[str, Any]) -> dict[str, Any]:
    left = [
        {**c, **{part: None if c[part] in gone.sources else c[part] for part in PARTS}}
        for c in row["citations"] or ()
        if c["url"] not in gone.urls
    ]
    return {**row, "citations": None if row["citations"] is None else left}


def _ungrade(gone: Gone, row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "grades": [g for g in row["grades"] if g[0] not in gone.documents]}


TABLES: Mapping[str, TextTable] = {
    "sources": TextTable("pages as they came", "id", "sources"),
    "documents": TextTable("titles of documents", "source", "sources"),
    "layouts": TextTable("titles, headings and paths of documents", "source", "sources"),
    "questions": TextTable("questions, and addresses they cite", "id", "questions", "cited", _uncite),
    "golds": TextTable("true answers", "question", "questions"),
    "relevance": TextTable("ids of judged documents", "question", "questions", "graded", _ungrade),
    "annotations": TextTable("answers and evidence of annotators", "question", "questions"),
    "faults": TextTable("what a step could not read", "id", "named"),
    "answers": TextTable("questions, answers and replies", "key", "answers"),
    "texts": TextTable("pages as they were parsed", "source", "sources"),
    "passages": TextTable("places of passages", "source", "sources"),
    "vectors": TextTable("vectors of chunks, and their codes", "source", "sources"),
    "postings": TextTable("words of passages", "segment", "keyed"),
    "lengths": TextTable("words of passages, counted", "segment", "keyed"),
    "embeddings": TextTable("vectors of texts", "key", "keyed"),
    "scores": TextTable("scores of passages", "key", "keyed"),
    "replies": TextTable("what models said of passages", "key", "keyed"),
}
"""By kind of table (`tables.KINDS`)."""


def place_of(table: str) -> TextTable:
    """The entry of a table."""
    return TABLES[table.partition("-")[0]]


def here(dataset: LanceDataset, column: str, values: Collection[Any]) -> bool:
    """Returns whether a file of an open table has a row with one of the values, deleted or not."""
    if not values:
        return False
    wanted = pa.array(list(values), dataset.schema.field(column).type)
    scan = dataset.scanner([column], include_deleted_rows=True, with_row_id=True, batch_size=SCAN_ROWS)
    return any(pc.any(pc.is_in(b[column], value_set=wanted)).as_py() for b in scan.to_batches())


def holding(store: Store, gone: Gone, named: Mapping[str, Collection[int]]) -> dict[str, set[int]]:
    """Table -> those of its named versions that have rows which go, or lose a part."""
    found: dict[str, set[int]] = {}
    for table, versions in named.items():
        place = place_of(table)
        values = [*place.ids(gone, table), *place.edited_ids(gone)]
        with reaching(store.table_uri(table)):
            found[table] = {v for v in versions if here(store.dataset(table, v), place.column, values)}
    return found


def in_tables(store: Store, gone: Gone) -> Iterator[FoundText]:
    """Yields what the tables hold of it now."""
    for table in tables(store):
        place = place_of(table)
        going = (place.ids(gone, table), "go"), (place.edited_ids(gone), "lose what names it")
        for values, does in going:
            if count := sum(store.count(table, where) for where in filters(place.column, values)):
                yield FoundText(table, count, f"rows {does} ({place.holds})")
    if said := store.count("faults", f"detail != '{TAKEN_OUT}'"):
        yield FoundText("faults", said, "lose their detail, which may repeat a text")


def take_out_of_tables(store: Store, gone: Gone, named: Mapping[str, Collection[int]]) -> None:
    """Takes it out of every table. Versions that had it go with their files; of `named` (table -> versions)
    the others stay. The same again changes nothing."""
    for table in tables(store):
        place = place_of(table)
        store.forget(table, place.column, place.ids(gone, table))
        _edit(store, table, place, gone)
        if table == "faults":
            with store.durable(table):
                store.dataset(table).update({"detail": f"'{TAKEN_OUT}'"}, where=f"detail != '{TAKEN_OUT}'")
        rewrite_deleted(store, table)
        others = {table: () if table == "faults" else named.get(table, ())}
        keep_only(store, table, set(others[table]) - holding(store, gone, others)[table])


def _edit(store: Store, table: str, place: TextTable, gone: Gone) -> None:
    """Puts rows without a part in the place of those that have it, in one commit."""
    dataset = store.dataset(table)
    found = rows(dataset, place.column, place.edited_ids(gone)).to_pylist()
    changed = [(row, place.edit(gone, row)) for row in found]
    if new := [after for before, after in changed if after != before]:
        with store.durable(table), reaching(dataset.uri):
            written = pa.Table.from_pylist(new, dataset.schema)
            dataset.merge_insert(place.column).when_matched_update_all().execute(written)


@dataclass(frozen=True, slots=True)
class FileChange:
    """A small file without what goes."""

    place: str
    rows: int  # entries that go; 0: nothing changes
    does: str
    content: bytes | pa.Buffer | None  # of the file from then on; empty: it goes; None: a folder that goes


InFiles: TypeAlias = Callable[[Store, Gone], Iterator[FileChange]]


def _segments(store: Store, folder: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for name in segment_names(store.files, folder):
        yield f"{folder}/{name}", list(read_segments(store.files, folder, [name]))


def _text(lines: Iterable[Mapping[str, Any]]) -> bytes:
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    return text.encode("utf-8", "replace")


def _captured(store: Store, gone: Gone) -> Iterator[FileChange]:
    for place, lines in _segments(store, layout.CAPTURED):
        left = [line for line in lines if not gone.answered_by(line)]
        yield FileChange(place, len(lines) - len(left), "lines go", _text(left))


def _feedback(store: Store, gone: Gone) -> Iterator[FileChange]:
    """Takes out feedback on answers that go, and of others the texts, which may be pasted from any page."""
    captured = (line for _, lines in _segments(store, layout.CAPTURED) for line in lines)
    answers = {line["answer_id"] for line in captured if gone.answered_by(line)}
    does = "lines go or lose what a user wrote; verdicts on other answers stay"
    for place, lines in _segments(store, layout.FEEDBACK):
        left = [
            {**x, "text": None}
            for x in lines
            if x["answer_id"] not in answers and (x["verdict"] is not None or x["text"] is None)
        ]
        yield FileChange(place, len(lines) if left != lines else 0, does, _text(left))


def _json(folder: str, does: str, edit: Edit) -> InFiles:
    """Edits the JSON objects of a folder."""

    def in_files(store: Store, gone: Gone) -> Iterator[FileChange]:
        for place in store.files.walk(folder):
            tree = json.loads(store.files.read(place) or b"{}")
            after = edit(gone, tree)
            yield FileChange(place, int(after != tree), does, json.dumps(after).encode())

    return in_files


def _read(gone: Gone, tree: dict[str, Any]) -> dict[str, Any]:
    """The note of a read without ids of questions."""
    left = [q for q in tree["questions"] if q not in gone.questions]
    replaced = [{**r, "ids": [i for i in r["ids"] if i not in gone.questions]} for r in tree["replaced"]]
    return {**tree, "questions": left, "replaced": replaced}


def _folder(gone: Gone, tree: dict[str, Any]) -> dict[str, Any]:
    """The state of a folder without documents."""
    left = {
        name: file
        for name, file in tree["files"].items()
        if file["document"] not in gone.documents and file["source"] not in gone.sources
    }
    return {**tree, "files": left}


def _recall(gone: Gone, tree: dict[str, Any]) -> dict[str, Any]:
    """The recall of an index without the id of a question."""
    return {**tree, "worst_question": ""} if tree.get("worst_question") in gone.questions else tree


def _answer_keys(store: Store, gone: Gone) -> Iterator[FileChange]:
    ids = pa.array(gone.questions, pa.string())
    for place in store.files.walk(layout.ANSWER_KEYS):
        table = arrow.rows_of(store.files.read(place) or b"")
        left = table.filter(pc.invert(pc.is_in(table["question"], value_set=ids)))
        yield FileChange(place, table.num_rows - left.num_rows, "keys of answers go", arrow.file_of(left))


def _adapters(store: Store, gone: Gone) -> Iterator[FileChange]:
    """Removes adapters whole: weights cannot be taken apart."""
    for folder in (f"{layout.ADAPTERS}/{name}" for name in gone.adapters):
        does = "files go: it was trained on labels that show it"
        yield FileChange(folder, len(store.files.walk(folder)), does, None)


def _whole(folder: str, does: str) -> InFiles:
    """Removes a folder that no command needs while none works."""

    def in_files(store: Store, gone: Gone) -> Iterator[FileChange]:
        yield FileChange(folder, len(store.files.walk(folder)), does, None)

    return in_files


LEFT = "what killed commands left goes"
FILES: Mapping[str, InFiles] = {
    layout.FEEDBACK: _feedback,  # before CAPTURED: by these lines it is found
    layout.CAPTURED: _captured,
    layout.INGESTED: _json(layout.INGESTED, "ids of questions go", _read),
    layout.FOLDERS: _json(layout.FOLDERS, "files of documents go", _folder),
    layout.ANN: _json(layout.ANN, "the id of a question goes", _recall),
    layout.ANSWER_KEYS: _answer_keys,
    layout.ADAPTERS: _adapters,
    layout.TRAININGS: _whole(layout.TRAININGS, "checkpoints go: labels that show it may be in them"),
    layout.PARTS: _whole(layout.PARTS, LEFT),
    layout.READS: _whole(layout.READS, LEFT),
    layout.PLANNED: _whole(layout.PLANNED, LEFT),
}
"""Folder of a store -> what is done there."""

WITHOUT_TEXT: Mapping[str, str] = {
    layout.MARK: "a number",
    layout.LEASES: "names of processes, tables and versions",
    layout.RUNS: "plans of unfinished work, of which a forget lets none be",
    layout.MANIFESTS: "recipes, versions and scores of runs",
    layout.ATTEMPTS: "counts",
    layout.PROBES: "replies to fixed texts",
    layout.COVERAGE: "ids of sources",
    layout.CORPUS_SUMS: "sums of ids of sources",
    layout.SIZES: "ids of sources, and numbers",
    layout.CHANGING: "numbers of versions",
    layout.MEMO: "cached values that a forget puts into their tables first",
    layout.MEMO_LOSSES: "digests",
    layout.RELEASES: "recipes and versions; those that rest on it end",
    layout.LIVE: "ids of releases, in the folder of these",
    layout.TOMBSTONES: "digests and reasons",
    layout.FORGETTING: "the ids that go, until they are gone",
    layout.CAPTURE_SECRET: "a secret",
}
"""File or folder of a store -> why no text is looked for there."""


def in_small_files(store: Store, gone: Gone, write: bool) -> list[FoundText]:
    """Returns what the files next to the tables hold of it; with `write` it is taken out, and the same again
    finds nothing."""
    found = []
    for in_files in FILES.values():
        for change in (c for c in in_files(store, gone) if c.rows):
            found.append(FoundText(change.place, change.rows, change.does))
            if not write:
                continue
            if change.content is None:
                store.files.remove_folder(change.place)
            elif len(change.content):
                store.files.write(change.place, change.content)
            else:
                store.files.remove(change.place)
    return found
