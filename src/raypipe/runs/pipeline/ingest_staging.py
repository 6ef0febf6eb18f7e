"""Staging of ingested rows: parts that no table shows yet. Rows that a tombstone refuses are left out.

The summary of staged rows is plain values (`StagedRows`). So several processes can each stage a section of
the files, and one process adds up the summaries. A tombstone is the record of a forgotten text: digests of
what may not be stored again, and the reason. It contains no byte of the text: it has ids of sources, which
are digests of their content, and digests of addresses and of ids of documents and questions.
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
from raypipe.store.fields import PARTS
from raypipe.store.files import TOMBSTONES
from raypipe.store.sources import write_sizes

SHOWN = 3  # ids of replaced rows that a summary names
BAD_SHOWN = 3  # unreadable lines that messages show; the table `faults` has all


@dataclass(slots=True)
class IngestBatch:
    """Some records that were read from files, in one list per table."""

    sources: list[Source] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    golds: list[Gold] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    layouts: list[Layout] = field(default_factory=list)
    faults: list[tuple[str, Fault]] = field(default_factory=list)  # (id, fault)


def fault_id(where: str, number: int, fault: Fault, *folder: str) -> str:
    """Returns the id of a fault at the place `where`. If a file is edited, a different fault at the same
    place gets a different id. `folder` is the id of its folder, because two folders can have one name."""
    return f"{where}#{digest(*folder, str(number), fault.reason, fault.detail)[:8]}"


def bad_line(id: str, fault: Mapping[str, Any]) -> BadLine:
    """Makes the line of a message about an unreadable line, from the id and fields of its fault."""
    return BadLine(id.rpartition("#")[0], fault["reason"], fault["detail"])


@dataclass(slots=True)
class StagedRows:
    """Summary of the rows that a read of files has staged, as plain values."""

    parts: dict[str, list[str]] = field(default_factory=dict)  # table -> parts with rows
    questions: list[str] = field(default_factory=list)  # ids, in file order
    documents: int = 0  # documents read
    reasons: dict[str, int] = field(default_factory=dict)  # reason -> number of faults
    bad: list[tuple[str, str, str]] = field(default_factory=list)  # (place, reason, detail) of first faults
    replaced: dict[str, None] = field(default_factory=dict)  # ids of questions with replaced rows
    documents_replaced: int = 0
    first_documents: list[str] = field(default_factory=list)  # ids of the first replaced documents
    left: dict[str, str] = field(default_factory=dict)  # replaced document -> its old source
    kept: int = 0  # questions and documents that no tombstone refused
    refused: list[str] = field(default_factory=list)  # details of the faults of refused records, each once

    def add(self, other: StagedRows) -> None:
        """Adds the summary of the following section of the files."""
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
    """Writer of the staged rows of one read of files, batch by batch."""

    def __init__(self, store: Store, of: str, what: str = "ingest", run: str = "", prefix: str = "") -> None:
        """Prepares the staging of files with the fingerprint `of`. `run` and `prefix` name the parts; if
        `run` is "", a new name is made. In the table of faults, the column `run` gets `what`."""
        self._store, self._of, self._what, self._prefix, self._batches = store, of, what, prefix, 0
        self.run, self.rows = run or uuid.uuid4().hex, StagedRows()
        self._tombstones = Tombstones(tombstones(store))
        self._given = DiskMap()  # sources in this read
        # An earlier read of the same bytes, some of whose rows were replaced since, has stored these faults.
        self._stored_faults = set(store.rows("faults", "digest", [of], ["id"])["id"].to_pylist())

    def add(self, batch: IngestBatch) -> None:
        """Writes a part per table with the batch's new or changed rows. Refused records become faults."""
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
            if rows := self._with_lost(table, batch, some):
                self._store.ensure(table, schema)
                replaced += self._stage(table, name, form.table(rows))
        documents = self._stage("documents", name, arrow.document.table(batch.documents))
        had = self._store.rows("documents", "id", sorted(documents), ["id", "source"])
        self._given.update(source.id for source in batch.sources)
        if batch.layouts:
            self._store.ensure("layouts", arrow.layout.schema)
            self._stage("layouts", name, arrow.layout.table(batch.layouts))
        faults = [(i, asdict(f), 1, self._of) for i, f in batch.faults if i not in self._stored_faults]
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
                documents_replaced=len(documents),
                first_documents=list(documents[:SHOWN]),
                left=dict(zip(*map(arrow.id_texts, had.columns), strict=True)),
                kept=len(batch.questions) + len(batch.documents),
                refused=[f.detail for _, f in refused],
            )
        )

    def _with_lost(self, table: str, batch: IngestBatch, golds: Sequence[Gold]) -> list[Gold]:
        """Returns the golds, and an empty gold for each question of the batch that has a gold only in the
        table, because new files replace everything that earlier files gave for a question."""
        with_gold = {g.question for g in golds}
        bare = [q.id for q in batch.questions if q.id not in with_gold]
        if not bare or not self._store.has(table):
            return list(golds)
        never = set(self._store.missing(table, "question", bare))
        return [*golds, *(Gold(id, (), {}) for id in bare if id not in never)]

    def _stage(self, table: str, part: str, rows: pa.Table) -> tuple[str, ...]:
        """Stages rows of a table as a part. Returns the ids of rows that replace stored ones."""
        staged = stage(self._store, table, self.run, part, rows)
        if staged.added or staged.replaced:
            self.rows.parts.setdefault(table, []).append(part)
        return staged.replaced

    def left(self) -> dict[str, tuple[str, ...]]:
        """Returns table -> ids to delete: sources that replaced documents had and nothing else names."""
        return sources_left(self._store, self.rows, {s for s in self.rows.left.values() if s in self._given})

    def sources(self) -> Iterator[bytes]:
        """Yields the key (`bounded_rows.key_of`) of each source in this read."""
        return (key for key, _ in self._given.items())


def sources_left(store: Store, rows: StagedRows, given: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Returns table -> ids to delete: sources of replaced documents, unless `given` or named elsewhere."""
    sources = set(rows.left.values()) - set(given)
    sources -= named_elsewhere(store, sources, rows.left)
    return {"sources": tuple(sorted(sources))} if sources else {}


def named_elsewhere(store: Store, sources: set[str], own: Collection[str]) -> set[str]:
    """Returns those of `sources` that a question cites, or that a document other than `own` (ids) has."""
    if not sources:
        return set()
    rows = store.rows("documents", "source", sorted(sources), ["id", "source"])
    named = {s for id, s in zip(*map(arrow.id_texts, rows.columns), strict=True) if id not in own}
    for batch in store.batches("questions", ["citations"]):
        named |= sources & cited_sources(batch["citations"])
    return named


def cited_sources(citations: pa.Array) -> set[str]:
    """Returns the ids of all sources in a column of citations."""
    parts = (pc.struct_field(pc.list_flatten(citations), kind) for kind in PARTS)
    return {id for part in parts for id in arrow.id_texts(part.unique())}


FORMAT = 1
REASON = "forgotten"  # reason of the fault of a refused record


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Digests of one thing that `raypipe forget` deleted: a page, document, source or question."""

    format: int
    id: str  # digest of "forgotten", kind and name
    kind: str  # url, document, source or question
    reason: str  # given by the user
    forgotten: float  # seconds since the epoch
    addresses: tuple[str, ...] = ()  # digests of citations' urls and of documents' ids
    sources: tuple[str, ...] = ()  # ids
    questions: tuple[str, ...] = ()  # digests of ids

    def fault(self) -> Fault:
        """Makes the fault of a record that the tombstone refuses."""
        day = time.strftime("%Y-%m-%d", time.gmtime(self.forgotten))
        why = f"tombstone {self.id[:8]} of {day} refuses it: {self.reason}"
        return Fault("ingest", REASON, why, transient=False)


def write_tombstone(store: Store, stone: Tombstone) -> None:
    store.files.write(f"{TOMBSTONES}/{stone.id}.json", json.dumps(asdict(stone)).encode())


def tombstones(store: Store) -> list[Tombstone]:
    """Loads every tombstone of a store. Raises DataError or ConfError if one is damaged."""
    stones = []
    for name in store.files.names(TOMBSTONES):
        where = f"{store.uri}/{TOMBSTONES}/{name}"
        try:
            tree = json.loads(store.files.read(f"{TOMBSTONES}/{name}") or b"null")
        except ValueError as e:
            mend = "Restore the file: without it nothing can be ingested into this store"
            raise DataError(f"{where}: expected a tombstone, found a damaged file ({e}). {mend}") from e
        stones.append(config.build(Tombstone, tree, Where(where)))
    return stones


class Tombstones:
    """Tombstones of a store, looked up by the records that they refuse."""

    def __init__(self, stones: Iterable[Tombstone]) -> None:
        self._stones: dict[tuple[str, str], Tombstone] = {}  # (field, digest) -> tombstone
        for stone in stones:
            for of in ("sources", "addresses", "questions"):
                self._stones |= {(of, name): stone for name in getattr(stone, of)}

    def source(self, id: str) -> Tombstone | None:
        """Returns the tombstone that refuses a source; None: it may be stored."""
        return self._stones.get(("sources", id))

    def address(self, name: str) -> Tombstone | None:
        """Returns the tombstone that refuses a citation's url or a document's id; None: it may be stored."""
        return self._stones.get(("addresses", digest(name))) if self._stones else None

    def question(self, id: str) -> Tombstone | None:
        return self._stones.get(("questions", digest(id))) if self._stones else None

    def refuses(self, question: str, addresses: Iterable[str], sources: Iterable[str]) -> bool:
        """Returns whether a tombstone refuses an answer, by its question or its evidence."""
        if not self._stones:
            return False
        named = (*map(self.address, addresses), *map(self.source, sources), self.question(question))
        return any(stone is not None for stone in named)

    def citations(self, question: Question) -> tuple[Question, list[Tombstone]]:
        """Returns a question without refused citations and sources, and the tombstones that refused them."""
        if question.citations is None:
            return question, []
        allowed: list[Citation] = []
        why: list[Tombstone] = []
        for c in question.citations:
            if (stone := self.address(c.url)) is not None:
                why.append(stone)
                continue
            gone = {s: stone for n in PARTS if (s := getattr(c, n)) and (stone := self.source(s))}
            why += gone.values()
            page, snippet, name = (None if s in gone else s for s in (c.page, c.snippet, c.name))
            allowed.append(replace(c, page=page, snippet=snippet, name=name))
        return (replace(question, citations=tuple(allowed)), why) if why else (question, [])

    def batch(self, batch: IngestBatch) -> tuple[IngestBatch, list[tuple[str, Fault]]]:
        """Returns the batch without refused records, and an (id, fault) for each refused question, document,
        citation, or source of a citation."""
        if not self._stones:
            return batch, []
        faults: list[tuple[str, Fault]] = []
        dropped = {q.id for q in batch.questions if self.question(q.id) is not None}
        gone = {s.id for s in batch.sources if self.source(s.id)}  # unless an allowed record names them
        questions = []
        for q in batch.questions:
            if (stone := self.question(q.id)) is not None:
                faults.append((stone.id[:12], stone.fault()))  # not the question's id, which is forgotten
                continue
            kept, why = self.citations(q)
            gone |= set(q.sources() or ()) - set(kept.sources() or ())
            faults += [(f"{q.id}#{i}", stone.fault()) for i, stone in enumerate(why)]
            questions.append(kept)
        documents = []
        for d in batch.documents:
            if (stone := self.address(d.id) or self.source(d.source)) is not None:
                faults.append((stone.id[:12], stone.fault()))
                gone.add(d.source)
            else:
                documents.append(d)
        cited = {s for q in questions for s in q.sources() or ()} | {d.source for d in documents}
        allowed = {d.id for d in documents}
        remaining = replace(
            batch,
            sources=[s for s in batch.sources if s.id in cited or s.id not in gone],
            questions=questions,
            golds=[g for g in batch.golds if g.question not in dropped],
            documents=documents,
            layouts=[x for x in batch.layouts if x.id in allowed],
        )
        return remaining, faults
