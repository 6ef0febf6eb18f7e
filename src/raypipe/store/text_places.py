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
from raypipe.store import adapters, layout
from raypipe.store.database import Store
from raypipe.store.errors import reaching
from raypipe.store.ids import SCAN_ROWS, filters, rows
from raypipe.store.keep import keep_only, rewrite_deleted, tables
from raypipe.store.segments import read_segments, segment_names
from raypipe.store.sources import merge_sizes

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
    segments: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Table of lengths or postings -> the segments with words of these; the next index makes them again."""
    memo: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # table -> keys

    def cites(self, citation: Mapping[str, Any]) -> bool:
        """Whether it names one of these."""
        return citation["url"] in self.urls or any(citation[part] in self.sources for part in PARTS)

    def uncited(self, citations: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The citations without those, and the parts of those, that go."""
        gone = set(self.sources)
        return [
            {**c, **{part: None if c[part] in gone else c[part] for part in PARTS}}
            for c in citations
            if c["url"] not in self.urls
        ]

    def answered_by(self, line: Mapping[str, Any]) -> bool:
        """Whether a captured answer rests on one of these."""
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
    """How the rows of one kind of table are found."""

    holds: str
    column: str  # that names what goes
    of: str  # the field of Gone with the values of that column
    edited: str = ""  # the field of Gone with the ids of rows that lose a part; "": none
    edit: Edit = lambda gone, row: row

    def ids(self, gone: Gone, table: str) -> list[Any]:
        """Values of its column in the rows that go."""
        if self.of == "named":  # of faults
            return sorted({*gone.sources, *gone.questions, *gone.documents, *gone.urls})
        found = getattr(gone, self.of)
        return list(found.get(table, ()) if isinstance(found, Mapping) else found)

    def edited_ids(self, gone: Gone) -> list[str]:
        """The same of the rows that lose a part."""
        return list(getattr(gone, self.edited)) if self.edited else []


def _uncite(gone: Gone, row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "citations": row["citations"] and gone.uncited(row["citations"])}


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
    "postings": TextTable("words of passages", "segment", "segments"),
    "lengths": TextTable("words of passages, counted", "segment", "segments"),
    "embeddings": TextTable("vectors of texts", "key", "memo"),
    "scores": TextTable("scores of passages", "key", "memo"),
    "replies": TextTable("what models said of passages", "key", "memo"),
}
"""By kind of table (`tables.KINDS`)."""


def place_of(table: str) -> TextTable:
    """The entry of a table."""
    return TABLES[table.partition("-")[0]]


def here(dataset: LanceDataset, column: str, values: Collection[Any]) -> bool:
    """Whether a file of an open table has a row with one of the values, deleted or not."""
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
    """What the tables hold of it now."""
    for table in tables(store):
        place, dataset = place_of(table), store.dataset(table)
        going = (place.ids(gone, table), "go"), (place.edited_ids(gone), "lose what names it")
        for values, does in going:
            count = 0
            for where in filters(place.column, values):
                with reaching(dataset.uri):
                    count += dataset.count_rows(where)
            if count:
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


InFiles: TypeAlias = Callable[[Store, Gone, bool], Iterator[FoundText]]
"""Finds what small files hold of it, and takes it out where the last argument is true."""


def _lines(store: Store, folder: str, name: str) -> list[dict[str, Any]]:
    return list(read_segments(store.files, folder, [name]))


def _write_lines(store: Store, folder: str, name: str, lines: list[dict[str, Any]]) -> None:
    if not lines:
        store.files.remove(f"{folder}/{name}")
        return
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    store.files.write(f"{folder}/{name}", text.encode("utf-8", "replace"))


def _captured(store: Store, gone: Gone, write: bool) -> Iterator[FoundText]:
    for name in segment_names(store.files, layout.CAPTURED):
        lines = _lines(store, layout.CAPTURED, name)
        left = [line for line in lines if not gone.answered_by(line)]
        if len(left) < len(lines):
            yield FoundText(f"{layout.CAPTURED}/{name}", len(lines) - len(left), "lines go")
            if write:
                _write_lines(store, layout.CAPTURED, name, left)


def _feedback(store: Store, gone: Gone, write: bool) -> Iterator[FoundText]:
    """Of answers that go: all of it. Of others: what users wrote, which may be pasted from any page."""
    answers = set[str]()
    for name in segment_names(store.files, layout.CAPTURED):
        lines = _lines(store, layout.CAPTURED, name)
        answers |= {line["answer_id"] for line in lines if gone.answered_by(line)}
    for name in segment_names(store.files, layout.FEEDBACK):
        lines = _lines(store, layout.FEEDBACK, name)
        left = [
            {**x, "text": None}
            for x in lines
            if x["answer_id"] not in answers and (x["verdict"] is not None or x["text"] is None)
        ]
        if left != lines:
            does = "lines go or lose what a user wrote; verdicts on other answers stay"
            yield FoundText(f"{layout.FEEDBACK}/{name}", len(lines), does)
            if write:
                _write_lines(store, layout.FEEDBACK, name, left)


def _of_json(
    folder: str, does: str, edit: Callable[[Gone, dict[str, Any]], tuple[int, dict[str, Any]]]
) -> InFiles:
    """Edits the JSON objects of a folder; `edit` says how many entries an object loses."""

    def in_files(store: Store, gone: Gone, write: bool) -> Iterator[FoundText]:
        for place in store.files.walk(folder):
            count, tree = edit(gone, json.loads(store.files.read(place) or b"{}"))
            if count:
                yield FoundText(place, count, does)
                if write:
                    store.files.write(place, json.dumps(tree).encode())

    return in_files


def _read(gone: Gone, tree: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The note of a read without ids of questions."""
    ids = set(gone.questions)
    left = [q for q in tree.get("questions", ()) if q not in ids]
    replaced = [{**r, "ids": [i for i in r["ids"] if i not in ids]} for r in tree.get("replaced", ())]
    count = len(tree.get("questions", ())) - len(left)
    return count, {**tree, "questions": left, "replaced": replaced}


def _folder(gone: Gone, tree: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The state of a folder without documents."""
    files = tree.get("files", {})
    left = {
        n: f
        for n, f in files.items()
        if f["document"] not in gone.documents and f["source"] not in gone.sources
    }
    return len(files) - len(left), {**tree, "files": left}


def _recall(gone: Gone, tree: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The recall of an index without the id of a question."""
    worst = tree.get("worst_question") in gone.questions
    return int(worst), {**tree, "worst_question": ""} if worst else tree


def _answer_keys(store: Store, gone: Gone, write: bool) -> Iterator[FoundText]:
    ids = pa.array(gone.questions, pa.string())
    for place in store.files.walk(layout.ANSWER_KEYS):
        table = arrow.rows_of(store.files.read(place) or b"")
        left = table.filter(pc.invert(pc.is_in(table["question"], value_set=ids)))
        if left.num_rows < table.num_rows:
            yield FoundText(place, table.num_rows - left.num_rows, "keys of answers go")
            if write:
                store.files.write(place, arrow.file_of(left))


def _adapters(store: Store, gone: Gone, write: bool) -> Iterator[FoundText]:
    """Weights cannot be taken apart: an adapter goes whole."""
    for name in gone.adapters:
        if store.files.walk(f"{layout.ADAPTERS}/{name}"):
            yield FoundText(f"{layout.ADAPTERS}/{name}", 0, "was trained on labels that show it, and goes")
            if write:
                adapters.remove_adapter(store.files, name)


def _whole(folder: str, does: str) -> InFiles:
    """Removes a folder that no command needs while none works."""

    def in_files(store: Store, gone: Gone, write: bool) -> Iterator[FoundText]:
        if names := store.files.walk(folder):
            yield FoundText(folder, len(names), does)
            if write:
                store.files.remove_folder(folder)

    return in_files


def _sizes(store: Store, gone: Gone, write: bool) -> Iterator[FoundText]:
    if write:
        merge_sizes(store)
    yield from ()


LEFT = "what killed commands left goes"
FILES: Mapping[str, InFiles] = {
    layout.FEEDBACK: _feedback,  # before CAPTURED: by these lines it is found
    layout.CAPTURED: _captured,
    layout.INGESTED: _of_json(layout.INGESTED, "ids of questions go", _read),
    layout.FOLDERS: _of_json(layout.FOLDERS, "files of documents go", _folder),
    layout.ANN: _of_json(layout.ANN, "the id of a question goes", _recall),
    layout.ANSWER_KEYS: _answer_keys,
    layout.SIZES: _sizes,
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
    """What the files next to the tables hold of it; with `write` it is taken out, and the same again finds
    nothing."""
    return [found for in_files in FILES.values() for found in in_files(store, gone, write)]
