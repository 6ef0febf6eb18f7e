"""Rows of files to parts of the ingested tables, which no table shows yet, but for what tombstones refuse.

What is staged is plain values (`StagedRows`), so that several processes can each stage a stretch of the files
and one adds up what they did. A tombstone says what was forgotten and may not come in again, by digest, with
the reason. It holds no byte of what is gone: it names sources by their ids, which are digests of their
content, and addresses, documents and questions by digests of theirs. Knows records, parts and small files of
a store; knows no reader of files.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core import arrow, config
from raypipe.core.bounded_rows import DiskMap
from raypipe.core.config import Where
from raypipe.core.errors import DataError
from raypipe.core.records import Citation, Document, Fault, Gold, Layout, Question, Source, digest
from raypipe.readers import BadLine
from raypipe.runs.pipeline.dead_letters import faults_table
from raypipe.store import Store, write_part
from raypipe.store.commit import stage
from raypipe.store.files import TOMBSTONES
from raypipe.store.sources import write_sizes
from raypipe.store.text_places import PARTS

SHOWN = 3  # ids of replaced rows that a summary names
BAD_SHOWN = 3  # lines that could not be read, in messages; the table of faults has all


@dataclass(slots=True)
class IngestBatch:
    """Records of some rows, by table."""

    sources: list[Source] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    golds: list[Gold] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    layouts: list[Layout] = field(default_factory=list)
    faults: list[tuple[str, Fault]] = field(default_factory=list)  # id, trouble


def fault_id(where: str, number: int, fault: Fault, *folder: str) -> str:
    """Names one trouble of one line: another trouble at the same place, after an edit, is another row.
    `folder`: the id of the one that `where` is in; another of the same name has rows of its own."""
    return f"{where}#{digest(*folder, str(number), fault.reason, fault.detail)[:8]}"


def bad_line(id: str, fault: Mapping[str, Any]) -> BadLine:
    """A line that could not be read, by the id of its fault and the fault's fields."""
    return BadLine(id.rpartition("#")[0], fault["reason"], fault["detail"])


@dataclass(slots=True)
class StagedRows:
    """Rows that a read of files has written, and no table shows yet; plain values."""

    parts: dict[str, list[str]] = field(default_factory=dict)  # table -> parts that have rows
    questions: list[str] = field(default_factory=list)  # ids, in file order
    documents: int = 0
    reasons: dict[str, int] = field(default_factory=dict)  # of faults -> how many
    bad: list[tuple[str, str, str]] = field(default_factory=list)  # where, reason, detail of the first faults
    replaced: dict[str, None] = field(default_factory=dict)  # ids of questions
    documents_replaced: int = 0
    first_documents: list[str] = field(default_factory=list)  # of those replaced
    left: dict[str, str] = field(default_factory=dict)  # document that is replaced -> its source
    kept: int = 0  # questions and documents
    refused: list[str] = field(default_factory=list)  # why tombstones refuse records, each reason once

    def add(self, other: StagedRows) -> None:
        """Adds what was read behind this."""
        for table, names in other.parts.items():
            self.parts.setdefault(table, []).extend(names)
        self.questions += other.questions
        self.documents += other.documents
        self.reasons = dict(Counter(self.reasons) + Counter(other.reasons))
        self.bad = [*self.bad, *other.bad][:BAD_SHOWN]
        self.replaced |= other.replaced
        self.documents_replaced += other.documents_replaced
        self.first_documents = [*self.first_documents, *other.first_documents][:SHOWN]
        self.left |= other.left
        self.kept += other.kept
        self.refused = list(dict.fromkeys([*self.refused, *other.refused]))

    def bad_lines(self) -> list[BadLine]:
        return [BadLine(*found) for found in self.bad]


class Staging:
    """Stages the rows of one read of files, batch by batch."""

    def __init__(
        self, store: Store, of: str, what: str = "ingest", run: str | None = None, prefix: str = ""
    ) -> None:
        """`of`: fingerprint of what is read; `what`: in the place of a run, of its faults. `run` and `prefix`
        name the parts; None: a run of its own."""
        self._store, self._of, self._prefix, self._batches = store, of, prefix, 0
        self.run = run or uuid.uuid4().hex
        self._what = what
        self.rows = StagedRows()
        self._tombstones = Tombstones(tombstones(store))
        self._given = DiskMap()  # sources of what is read
        # An earlier read of the same bytes, some of whose rows were replaced since, has told them already.
        self._told = set(store.rows("faults", "digest", [of], ["id"])["id"].to_pylist())

    def add(self, batch: IngestBatch) -> None:
        """Writes a part for each table that gets rows."""
        name = f"{self._prefix}{self._batches:06d}"
        self._batches += 1
        batch, refused = self._tombstones.batch(batch)
        batch.faults.extend((fault_id(id, i, f), f) for i, (id, f) in enumerate(refused))
        sources = arrow.source.table(batch.sources)
        self._stage("sources", name, sources)
        write_sizes(self._store, f"{self.run}-{name}", sources)
        replaced = self._stage("questions", name, arrow.question.table(batch.questions))
        golds = self._with_lost("golds", batch, batch.golds)
        replaced += self._stage("golds", name, arrow.gold.table(golds))
        for table, schema, form, some in (
            ("relevance", arrow.RELEVANCE, arrow.relevance, [g for g in batch.golds if g.grades]),
            ("annotations", arrow.ANNOTATIONS, arrow.annotated, [g for g in batch.golds if g.annotators]),
        ):
            if found := self._with_lost(table, batch, some):
                self._store.ensure(table, schema)
                replaced += self._stage(table, name, form.table(found))
        others = self._stage("documents", name, arrow.document.table(batch.documents))
        had = self._store.rows("documents", "id", sorted(others), ["id", "source"])
        self._given.update(source.id for source in batch.sources)
        if batch.layouts:
            self._store.ensure("layouts", arrow.layout.schema)
            self._stage("layouts", name, arrow.layout.table(batch.layouts))
        faults = [(i, asdict(f), 1, self._of) for i, f in batch.faults if i not in self._told]
        if faults:
            write_part(self._store, "faults", self.run, name, faults_table(faults, self._what), {})
            self.rows.parts.setdefault("faults", []).append(name)
        self.rows.add(
            StagedRows(
                questions=[q.id for q in batch.questions],
                documents=len(batch.documents),
                reasons=dict(Counter(fault.reason for _, fault in batch.faults)),
                bad=[astuple(bad_line(id, asdict(f))) for id, f in batch.faults[:BAD_SHOWN]],
                replaced=dict.fromkeys(replaced),
                documents_replaced=len(others),
                first_documents=list(others[:SHOWN]),
                left=dict(zip(*map(arrow.id_texts, had.columns), strict=True)),
                kept=len(batch.questions) + len(batch.documents),
                refused=[f.detail for _, f in refused],
            )
        )

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
        staged = stage(self._store, table, self.run, part, rows)
        if staged.added or staged.replaced:
            self.rows.parts.setdefault(table, []).append(part)
        return staged.replaced

    def left(self) -> dict[str, tuple[str, ...]]:
        """Rows that go: sources of documents that are replaced, where nothing else names them."""
        return sources_left(self._store, self.rows, {s for s in self.rows.left.values() if s in self._given})

    def sources(self) -> Iterator[bytes]:
        """`key_of` each source of what was read."""
        return (key for key, _ in self._given.items())


def sources_left(store: Store, rows: StagedRows, given: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Returns the rows to delete after a read: sources of replaced documents that nothing else names.
    `given`: those that the read itself brings again, which stay."""
    sources = set(rows.left.values()) - set(given)
    sources -= named_elsewhere(store, sources, rows.left)
    return {"sources": tuple(sorted(sources))} if sources else {}


def named_elsewhere(store: Store, sources: set[str], own: Collection[str]) -> set[str]:
    """Those sources that a question cites, or a document that is not among `own` has."""
    if not sources:
        return set()
    found = store.rows("documents", "source", sorted(sources), ["id", "source"])
    named = {s for id, s in zip(*map(arrow.id_texts, found.columns), strict=True) if id not in own}
    for batch in store.batches("questions", ["citations"]):
        named |= sources & cited_sources(batch["citations"])
    return named


def cited_sources(citations: pa.Array) -> set[str]:
    """Ids of the sources of a column of citations."""
    parts = (pc.struct_field(pc.list_flatten(citations), kind) for kind in PARTS)
    return {id for part in parts for id in arrow.id_texts(part.unique())}


FORMAT = 1
REASON = "forgotten"  # of the fault of a record that a tombstone refuses


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Everything that one `forget` took out."""

    format: int
    id: str  # digest of "forgotten", kind and name
    kind: str  # url, document, source or question
    reason: str  # as it was given
    forgotten: float  # seconds since the epoch
    addresses: tuple[str, ...] = ()  # digests of urls of citations, and of ids of documents
    sources: tuple[str, ...] = ()  # ids
    questions: tuple[str, ...] = ()  # digests of ids

    def says(self) -> str:
        """Why a record is refused, for people."""
        day = time.strftime("%Y-%m-%d", time.gmtime(self.forgotten))
        return f"tombstone {self.id[:8]} of {day} refuses it: {self.reason}"


def write_tombstone(store: Store, stone: Tombstone) -> None:
    """Keeps a tombstone for as long as the store is there."""
    store.files.write(f"{TOMBSTONES}/{stone.id}.json", json.dumps(asdict(stone)).encode())


def tombstones(store: Store) -> list[Tombstone]:
    """Every tombstone of a store. Raises DataError for a damaged one: what it refuses is not known."""
    found = []
    for name in store.files.names(TOMBSTONES):
        where = f"{store.uri}/{TOMBSTONES}/{name}"
        try:
            tree = json.loads(store.files.read(f"{TOMBSTONES}/{name}") or b"null")
        except ValueError as e:
            raise DataError(
                f"{where}: expected a tombstone, found a damaged file ({e}). Put back what stood there: "
                "without it nothing is read into this store"
            ) from e
        found.append(config.build(Tombstone, tree, Where(where)))
    return found


class Tombstones:
    """The refusals that the tombstones of a store make."""

    def __init__(self, stones: Iterable[Tombstone]) -> None:
        self._stones: dict[tuple[str, str], Tombstone] = {}  # (field, what it names) -> tombstone
        for stone in stones:
            for of in ("sources", "addresses", "questions"):
                self._stones |= {(of, name): stone for name in getattr(stone, of)}

    def source(self, id: str) -> Tombstone | None:
        """The tombstone of a source; None: it may come in."""
        return self._stones.get(("sources", id))

    def address(self, name: str) -> Tombstone | None:
        """The tombstone of a url of a citation, or of the id of a document."""
        return self._stones.get(("addresses", digest(name))) if self._stones else None

    def question(self, id: str) -> Tombstone | None:
        return self._stones.get(("questions", digest(id))) if self._stones else None

    def refuses(self, question: str, addresses: Iterable[str], sources: Iterable[str]) -> bool:
        """Returns whether an answer may not be kept, by the id of its question, and by the addresses and
        sources that it rests on."""
        if not self._stones:
            return False
        return bool(
            self.question(question) or any(map(self.address, addresses)) or any(map(self.source, sources))
        )

    def citations(self, question: Question) -> tuple[Question, list[Tombstone]]:
        """The question without what is refused of its citations, and why."""
        if question.citations is None:
            return question, []
        left: list[Citation] = []
        why: list[Tombstone] = []
        for c in question.citations:
            if (stone := self.address(c.url)) is not None:
                why.append(stone)
                continue
            gone = {s: stone for n in PARTS if (s := getattr(c, n)) and (stone := self.source(s))}
            why += gone.values()
            page, snippet, name = (None if s in gone else s for s in (c.page, c.snippet, c.name))
            left.append(replace(c, page=page, snippet=snippet, name=name))
        return (replace(question, citations=tuple(left)), why) if why else (question, [])

    def batch(self, batch: IngestBatch) -> tuple[IngestBatch, list[tuple[str, Fault]]]:
        """The records that may come in, and a fault for each refused one: id, fault."""
        if not self._stones:
            return batch, []
        faults: list[tuple[str, Fault]] = []
        dropped = {q.id for q in batch.questions if self.question(q.id) is not None}
        gone = {s.id for s in batch.sources if self.source(s.id)}  # unless something else names them
        questions = []
        for q in batch.questions:
            if (stone := self.question(q.id)) is not None:
                faults.append((stone.id[:12], fault(stone)))  # not by its name: that is gone
                continue
            kept, why = self.citations(q)
            gone |= set(q.sources() or ()) - set(kept.sources() or ())
            faults += [(f"{q.id}#{i}", fault(stone)) for i, stone in enumerate(why)]
            questions.append(kept)
        documents = []
        for d in batch.documents:
            if (stone := self.address(d.id) or self.source(d.source)) is not None:
                faults.append((stone.id[:12], fault(stone)))
                gone.add(d.source)
            else:
                documents.append(d)
        cited = {s for q in questions for s in q.sources() or ()} | {d.source for d in documents}
        there = {d.id for d in documents}
        return (
            replace(
                batch,
                sources=[s for s in batch.sources if s.id in cited or s.id not in gone],
                questions=questions,
                golds=[g for g in batch.golds if g.question not in dropped],
                documents=documents,
                layouts=[x for x in batch.layouts if x.id in there],
            ),
            faults,
        )


def fault(stone: Tombstone) -> Fault:
    """The fault of a record that a tombstone refuses."""
    return Fault("ingest", REASON, stone.says(), transient=False)
