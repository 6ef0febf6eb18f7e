"""Tombstones: what was forgotten and may not come in again, by digest, with the reason.

A tombstone holds no byte of what is gone: it names sources by their ids, which are digests of their content,
and addresses, documents and questions by digests of theirs. An ingest asks it for every record that it reads.
Knows small files of a store and the records of an ingest.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from raypipe.core import config
from raypipe.core.config import Where
from raypipe.core.errors import DataError
from raypipe.core.records import Citation, Fault, Question, digest
from raypipe.store import Store
from raypipe.store.files import TOMBSTONES
from raypipe.store.text_places import PARTS

if TYPE_CHECKING:
    from raypipe.runs.pipeline.ingest_staging import IngestBatch

FORMAT = 1
REASON = "forgotten"  # of the fault of a record that a tombstone refuses


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What one `forget` took out."""

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


def without_sources(citation: Citation, gone: Collection[str]) -> Citation:
    """A citation without those of its sources that go."""
    page, snippet, name = (None if s in gone else s for s in (citation.page, citation.snippet, citation.name))
    return replace(citation, page=page, snippet=snippet, name=name)


class Tombstones:
    """What the tombstones of a store refuse."""

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
        """Whether an answer may not be kept, by the id of its question, and by the addresses and sources that
        it rests on."""
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
            left.append(without_sources(c, gone))
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


def require_allowed(path: object, kept: int, refused: Sequence[str]) -> None:
    """Raises DataError where tombstones refuse all that was read of some files."""
    if kept or not refused:
        return
    raise DataError(f"{path}: nothing of it may be stored: {'; '.join(refused)}")
