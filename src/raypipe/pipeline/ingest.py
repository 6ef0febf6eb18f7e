"""Files into a store: every line read once, equal sources stored once, all or nothing.

What is read is staged in parts as it comes, so memory holds a part and the ids of questions, however large
the files are. A damaged file raises before anything is committed. When all of it is staged, one small file
says so (`ingest_log`): from then on the new state holds, and the next driver does what a killed process has
left. So a kill leaves the old rows of all tables or the new ones of all tables.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raypipe import readers
from raypipe.core import arrow
from raypipe.core.disk_map import DiskMap
from raypipe.core.records import Document, Fault, Gold, Layout, Question, Source, digest
from raypipe.pipeline.dead_letters import faults_table
from raypipe.pipeline.ingest_log import Decision, IngestSummary, decide, driving, holders, note_kind, noted
from raypipe.pipeline.tombstones import Tombstones, require_allowed, tombstones
from raypipe.readers import BadLine, Format, ReadCounts, Row
from raypipe.readers.formats import OWN_KIND, kind_of
from raypipe.report.progress import Progress, ProgressTask
from raypipe.report.report import ReplacedRows
from raypipe.store import Store, stage, write_part
from raypipe.store.disk_space import need
from raypipe.store.sizes import write_sizes

PART_BYTES = 16 << 20  # of records per part, one Lance fragment: it takes three times as much memory
ROW_BYTES = 500  # of a record on top of its content, about
SHOWN = 3  # ids of replaced rows that a summary names
BAD_SHOWN = 3  # lines that could not be read, in messages; the table of faults has all
READER = "3"  # raised when the readers make other rows of the same bytes


def ingest(
    store: Store,
    paths: Sequence[Path],
    format: Format,
    progress: Progress,
    before: Callable[[], object] = lambda: None,
    kind: str | None = None,
) -> IngestSummary:
    """Reads files into a store. The same bytes again change nothing and are not decoded. `before` is called
    ahead of the first line that is read. `kind` of the data is noted with it; None: as noted, else the
    format's.

    Rows take the place of older rows with their ids, and the summary says of which. Raises ConfError for an
    unknown format and DataError for a missing, truncated or mislabelled file, and where no line of the files
    can be read; then the store is as it was.
    """
    of = fingerprint(paths, format)
    if (known := noted(store, of)) is not None:
        return known if kind is None else note_kind(store, known, kind)
    with driving(store, f"ingest {paths[0]}"):
        if (known := noted(store, of)) is not None:  # a killed process had read them
            return known if kind is None else note_kind(store, known, kind)
        before()
        need(store, 0, "reading files")
        counts, staging = ReadCounts(), Staging(store, of)
        with progress.task("read", "MB", readers.size(paths, format) >> 20) as task:
            for batch in _batches(_watched(readers.open(paths, format, counts), counts, task)):
                staging.add(batch)
        readers.require_rows(paths, counts, staging.bad)
        require_allowed(paths[0], staging.kept, staging.refused)
        names = tuple(file.name for file in readers.files_of(paths, format))
        decision = staging.decision(counts, names, staging.left(), kind=kind or kind_of(format))
        decide(store, decision)
    return decision.summary


def fingerprint(paths: Sequence[Path], format: Format) -> str:
    """Names the bytes of the files, of those that their rows name, and the reader of them."""
    parts = [readers.reader_id(format), READER]
    for file in (*readers.files_of(paths, format), *readers.referenced(paths, format)):
        with file.open("rb") as stream:
            parts += [file.name, hashlib.file_digest(stream, "blake2b").hexdigest()]
    return digest(*parts)


def _watched(rows: Iterator[Row], counts: ReadCounts, task: ProgressTask) -> Iterator[Row]:
    for row in rows:
        task.advance((counts.bytes_read >> 20) - task.done)
        yield row
    task.advance((counts.bytes_read >> 20) - task.done)


@dataclass(slots=True)
class IngestBatch:
    """Records of some rows, by table."""

    sources: list[Source] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    golds: list[Gold] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    layouts: list[Layout] = field(default_factory=list)
    faults: list[tuple[str, Fault]] = field(default_factory=list)  # id, trouble


def _batches(rows: Iterator[Row]) -> Iterator[IngestBatch]:
    """Batches of about PART_BYTES, each source once in all of them."""
    seen = DiskMap()
    batch, size = IngestBatch(), 0
    for row in rows:
        fresh = readers.unseen(row.sources, seen)
        batch.sources += fresh
        batch.questions += [row.question] if row.question else []
        batch.golds += [row.gold] if row.gold else []
        batch.documents += [row.document] if row.document else []
        batch.layouts += [row.layout] if row.layout else []
        batch.faults += [(fault_id(row.where, i, f), f) for i, f in enumerate(row.faults)]
        cited = len(row.question.citations or ()) if row.question else 0
        size += sum(len(s.content) for s in fresh) + ROW_BYTES * (1 + len(fresh) + cited)
        if size >= PART_BYTES:
            yield batch
            batch, size = IngestBatch(), 0
    yield batch


def fault_id(where: str, number: int, fault: Fault) -> str:
    """Names one trouble of one line: another trouble at the same place, after an edit, is another row."""
    return f"{where}#{digest(str(number), fault.reason, fault.detail)[:8]}"


def bad_lines(store: Store, of: str) -> list[BadLine]:
    """The first lines of files (`of`: their fingerprint) that could not be read, or lost a page."""
    found = store.scan("faults", filter=f"digest = '{of}'", limit=BAD_SHOWN)
    return [_bad_line(r["id"], r) for r in found.to_pylist()]


def _bad_line(id: str, fault: Mapping[str, Any]) -> BadLine:
    return BadLine(id.rpartition("#")[0], fault["reason"], fault["detail"])


class Staging:
    """What one read of files has written, and no table shows yet."""

    def __init__(self, store: Store, of: str, what: str = "ingest") -> None:
        """`of`: fingerprint of what is read; `what`: in the place of a run, of its faults."""
        self._store, self._of, self._run, self._batches = store, of, uuid.uuid4().hex, 0
        self._what = what
        self._parts: dict[str, list[str]] = {}
        self._questions: list[str] = []
        self._documents = 0
        self._reasons: Counter[str] = Counter()
        self.bad: list[BadLine] = []  # the first lines that could not be read
        self._replaced: dict[str, None] = {}  # ids of questions
        self._documents_replaced = 0
        self._first_documents: list[str] = []  # of those replaced
        self._tombstones = Tombstones(tombstones(store))
        self.kept = 0  # questions and documents
        self.refused: list[tuple[str, Fault]] = []  # records that tombstones refuse: id, fault
        self._left: dict[str, str] = {}  # document that is replaced -> its source
        self._given = DiskMap()  # sources of what is read
        # An earlier read of the same bytes, some of whose rows were replaced since, has told them already.
        self._told = set(store.rows("faults", "digest", [of], ["id"])["id"].to_pylist())

    def add(self, batch: IngestBatch) -> None:
        """Writes a part for each table that gets rows."""
        name = f"{self._batches:06d}"
        self._batches += 1
        batch, refused = self._tombstones.batch(batch)
        self.kept += len(batch.questions) + len(batch.documents)
        self.refused += refused
        batch.faults.extend((fault_id(id, i, f), f) for i, (id, f) in enumerate(refused))
        self._questions += [q.id for q in batch.questions]
        self._documents += len(batch.documents)
        self._reasons.update(fault.reason for _, fault in batch.faults)
        self.bad += [_bad_line(id, asdict(f)) for id, f in batch.faults[: BAD_SHOWN - len(self.bad)]]
        sources = arrow.source.table(batch.sources)
        self._stage("sources", name, sources)
        write_sizes(self._store, f"{self._run}-{name}", sources)
        replaced = self._stage("questions", name, arrow.question.table(batch.questions))
        golds = self._with_lost("golds", batch, batch.golds)
        replaced += self._stage("golds", name, arrow.gold.table(golds))
        if judged := self._with_lost("relevance", batch, [g for g in batch.golds if g.grades]):
            self._store.ensure("relevance", arrow.RELEVANCE)
            replaced += self._stage("relevance", name, arrow.relevance.table(judged))
        if said := self._with_lost("annotations", batch, [g for g in batch.golds if g.annotators]):
            self._store.ensure("annotations", arrow.ANNOTATIONS)
            replaced += self._stage("annotations", name, arrow.annotated.table(said))
        self._replaced |= dict.fromkeys(replaced)
        others = self._stage("documents", name, arrow.document.table(batch.documents))
        had = self._store.rows("documents", "id", sorted(others), ["id", "source"]).to_pylist()
        self._left.update({row["id"]: row["source"] for row in had})
        self._given.update(source.id for source in batch.sources)
        self._documents_replaced += len(others)
        self._first_documents = [*self._first_documents, *others][:SHOWN]
        if batch.layouts:
            self._store.ensure("layouts", arrow.layout.schema)
            self._stage("layouts", name, arrow.layout.table(batch.layouts))
        faults = [(i, asdict(f), 1, self._of) for i, f in batch.faults if i not in self._told]
        if faults:
            write_part(self._store, "faults", self._run, name, faults_table(faults, self._what), {})
            self._parts.setdefault("faults", []).append(name)

    def _with_lost(self, table: str, batch: IngestBatch, golds: Sequence[Gold]) -> list[Gold]:
        """The golds of a table, and an empty one for each question of the batch that has one there and has
        none any more: what files say of a question takes the place of all that earlier ones said."""
        given = {g.question for g in golds}
        bare = [q.id for q in batch.questions if q.id not in given]
        if not bare or not self._store.has(table):
            return list(golds)
        strange = set(self._store.missing(table, "question", bare))
        return [*golds, *(Gold(id, (), {}) for id in bare if id not in strange)]

    def _stage(self, table: str, part: str, rows: pa.Table) -> tuple[str, ...]:
        """Ids of the rows that replace others."""
        staged = stage(self._store, table, self._run, part, rows)
        if staged.added or staged.replaced:
            self._parts.setdefault(table, []).append(part)
        return staged.replaced

    def left(self) -> dict[str, tuple[str, ...]]:
        """Rows that go: sources of documents that are replaced, where nothing else names them."""
        sources = {s for s in self._left.values() if s not in self._given}
        sources -= named_elsewhere(self._store, sources, self._left)
        return {"sources": tuple(sorted(sources))} if sources else {}

    def decision(
        self, counts: ReadCounts, files: tuple[str, ...], gone: Mapping[str, tuple[str, ...]] = {},
        state: tuple[str, str] | None = None, kind: str = OWN_KIND,
    ) -> Decision:  # fmt: skip
        """All that was read and what becomes of it. `gone` and `state` as `Decision` has them; `kind`: of the
        data."""
        ids, documents = tuple(self._replaced), self._documents_replaced
        asked, had = holders(self._store, self._of, ids, documents > 0)
        replaced = []
        if ids:
            replaced.append(ReplacedRows("questions", len(ids), ids[:SHOWN], _flat(asked)))
        if documents:
            first = tuple(self._first_documents)
            replaced.append(ReplacedRows("documents", documents, first, _flat(had)))
        summary = IngestSummary(
            self._of, tuple(self._questions), asdict(counts), dict(sorted(self._reasons.items())), False,
            tuple(replaced), files, self._documents, kind,
        )  # fmt: skip
        parts = {table: tuple(names) for table, names in self._parts.items()}
        return Decision(self._run, parts, tuple({**asked, **had}), summary, gone, state)


def named_elsewhere(store: Store, sources: set[str], own: Collection[str]) -> set[str]:
    """Those sources that a question cites, or a document that is not among `own` has."""
    if not sources:
        return set()
    found = store.rows("documents", "source", sorted(sources), ["id", "source"]).to_pylist()
    named = {r["source"] for r in found if r["id"] not in own}
    for batch in store.batches("questions", ["citations"]):
        for kind in ("page", "snippet", "name"):
            cited = pc.struct_field(pc.list_flatten(batch["citations"]), kind)
            named |= sources & set(cited.unique().to_pylist())
    return named


def _flat(reads: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The names of the files of some reads, each once."""
    return tuple(dict.fromkeys(name for names in reads.values() for name in names))
