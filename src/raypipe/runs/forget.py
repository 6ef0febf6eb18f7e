"""Decisions of a forget: what a name means in a store, and the ids of all that rests on it.

Nothing is found by its words. An answer rests on a source that it cites, found or quotes. A reply of a model
says for which recipe and questions, or for which sources, it was asked (`core.calls`); it stays where each of
these questions has stored answers by that recipe and none of them rests on a target, and where none of these
sources is one. Reads, and changes nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from raypipe.core.arrow import id_texts, with_id_texts
from raypipe.core.calls import OF_SOURCES
from raypipe.core.errors import DataError
from raypipe.core.records import digest
from raypipe.runs.pipeline.ingest_staging import FORMAT, Tombstone, tombstones
from raypipe.runs.release import adapters_named, releases, roots
from raypipe.store import Store, StoreError, read_now
from raypipe.store.ids import rows
from raypipe.store.keep import tables, tagged, versions
from raypipe.store.memo.disk import memo_tables
from raypipe.store.memo.lookup import lookup
from raypipe.store.memo.memo import MemoTable, score_keys, vector_keys
from raypipe.store.text_places import PARTS, Gone, holding
from raypipe.text.replies import UnreadableReply, placed, read_text
from raypipe.text.thoughts import answer_of

ROWS = 4096  # questions at a time
AT_ONCE = 256  # rows with texts in memory
KEYS = 1 << 16  # of vectors, looked up together


@dataclass(frozen=True, slots=True)
class Target:
    """Something that is to be forgotten, as the store has it."""

    kind: str  # url, document, source or question
    name: str  # the url, or an id
    urls: tuple[str, ...] = ()  # of citations that go
    documents: tuple[str, ...] = ()  # ids
    sources: tuple[str, ...] = ()  # ids
    questions: tuple[str, ...] = ()  # ids

    @property
    def tombstone(self) -> str:
        """The id of its tombstone."""
        return digest("forgotten", self.kind, self.name)

    def buried(self, reason: str) -> Tombstone:
        """Its tombstone, which names addresses, documents and questions by digests."""
        addresses = tuple(digest(x) for x in (*self.urls, *self.documents))
        questions = tuple(digest(q) for q in self.questions)
        return Tombstone(
            FORMAT, self.tombstone, self.kind, reason, time.time(), addresses, self.sources, questions
        )


@dataclass(frozen=True, slots=True)
class Forgetting:
    """A forget that was begun, written before anything of it is done."""

    given: tuple[str, ...]  # as the command named them
    reason: str
    targets: tuple[Target, ...]  # what they mean
    places: tuple[str, ...]  # folders that are looked through


def find_target(store: Store, given: str) -> Target:
    """Finds what a name means: the id of a question or source, the id or path of a document, or a url. Looks
    through older versions, too, since a release may name them; what is forgotten already has a tombstone.
    Raises DataError for a name that nothing has, and for a path that documents of several folders have."""
    if _row(store, "questions", "id", [given]):
        return Target("question", given, questions=(given,))
    if _row(store, "sources", "id", [given]):
        return Target("source", given, sources=(given,))
    path = [given.partition("#")[0], quote(os.fsencode(given))]  # as citations have it, and as folders do
    if row := _row(store, "documents", "id", [given]) or _row(store, "layouts", "url", path):
        return Target("document", row["id"], documents=(row["id"],), sources=(row["source"],))
    if (target := _page(store, given)) is not None:
        return target
    # The tombstone of a name: the same forget again takes out what has come in since.
    stones = {stone.id: stone for stone in tombstones(store)}
    for field in ("urls", "documents", "sources", "questions"):
        target = Target(field.removesuffix("s"), given)
        if (stone := stones.get(target.tombstone)) is not None:
            fields: dict[str, Any] = {"sources": stone.sources, field: (given,)}
            return replace(target, **fields)
    raise DataError(
        f"{store.uri}: expected the url of a page, the path of a document, or the id of a source or "
        f"question, found no such thing as {given!r}. `raypipe inspect DIR ROW` shows the urls and sources "
        "of an answer"
    )


def _row(store: Store, table: str, column: str, values: list[str]) -> dict[str, Any] | None:
    """Returns the row that has one of the values, from the newest version with such a row."""
    for version in versions(store, table)[::-1]:
        columns = ["id", "source"] if table in ("documents", "layouts") else ["id"]
        found = rows(store.dataset(table, version), column, values, columns).to_pylist()
        if len(found) > 1:
            raise DataError(
                f"{store.uri}: {len(found)} folders have a document {values[0]!r}; name one by its id: "
                f"{', '.join(sorted(row['id'] for row in found))}"
            )
        for row in found:
            return dict(with_id_texts(row))
    return None


def _page(store: Store, url: str) -> Target | None:
    """A page by its address. Its name and snippet stay where documents or other addresses have the same
    ones."""
    documents = set(id_texts(store.scan("documents", ["source"])["source"]))
    for version in versions(store, "questions")[::-1]:
        own, others = dict[str, str](), set(documents)
        for batch in store.batches("questions", ["citations"], ROWS, version):
            for c in with_id_texts([c for cited in batch["citations"].to_pylist() for c in cited or ()]):
                parts = {c[part]: part for part in PARTS if c[part] is not None}
                if c["url"] == url:
                    own |= parts
                else:
                    others |= {s for s, part in parts.items() if part != "page"}
        if own:
            gone = sorted(s for s, part in own.items() if part == "page" or s not in others)
            return Target("url", url, urls=(url,), sources=tuple(gone))
    return None


def named_versions(store: Store) -> dict[str, set[int]]:
    """Table -> versions that releases, the last runs of recipes and living readers name, and the newest."""
    last, read, found = roots(store).last, read_now(store.files), dict[str, set[int]]()
    for table in tables(store):
        named = {*tagged(store, table).values(), *read.get(table, ())}
        named |= {r.tables[table] for r in last if table in r.tables}
        found[table] = named & set(versions(store, table)) | {store.version(table)}
    return found


def resting(store: Store, gone: Gone, named: Mapping[str, set[int]], adapters: Collection[str]) -> list[str]:
    """Ids of the releases with tables that hold what goes, or that name one of these adapters."""
    held = {(table, v) for table, found in holding(store, gone, named).items() for v in found}
    ended = [r.id for r in roots(store).releases if not held.isdisjoint(r.tables.items())]
    ended += [r.id for r in releases(store) if not adapters_named([], [r]).isdisjoint(adapters)]
    return list(dict.fromkeys(ended))


def check_readers(store: Store, gone: Gone) -> None:
    """Raises StoreError where a living process reads what would go and follows no release."""
    read = {table: versions for table, versions in read_now(store.files).items() if store.has(table)}
    for table, held in holding(store, gone, read).items():
        if held:
            raise StoreError(
                f"{store.uri}: an endpoint or `ask` over a recipe reads table {table} at version "
                f"{min(held)}, which would go. End it first; one over `live` follows by itself"
            )


def find(store: Store, targets: Sequence[Target], named: Mapping[str, Collection[int]]) -> Gone:
    """Decides what goes for some targets, in each version that is named, but for adapters."""
    fields = ("sources", "urls", "documents", "questions")
    start: dict[str, Any] = {f: tuple(sorted({x for t in targets for x in getattr(t, f)})) for f in fields}
    return _Search(store, named, Gone(**start)).gone()


@dataclass(frozen=True, slots=True)
class _Search:
    """A search for all that rests on some targets."""

    store: Store
    named: Mapping[str, Collection[int]]  # table -> versions
    start: Gone  # the targets alone

    def gone(self) -> Gone:
        """Returns the ids that go, and which replies stay."""
        start = self.start
        same = {d["id"] for d in self._rows("documents", "id", "source") if d["source"] in start.sources}
        documents = same.union(start.documents)
        cited = {
            q["id"]
            for q in self._rows("questions", "id", "citations")
            if q["id"] not in start.questions and any(map(start.cites, q["citations"] or ()))
        }
        graded = {
            r["question"]
            for r in self._rows("relevance", "question", "grades")
            if any(name in documents for name, _ in r["grades"])
        }
        answers, asked, resting = set[str](), set[str](), {*start.questions, *cited}
        others: dict[str, set[str]] = {}  # recipe -> questions of which it has an answer that stays
        for row in self._rows("answers", "key", "recipe", "id", "text", "citations", "hits", "replies"):
            if self._rests(row):
                answers.add(row["key"])
                asked.add(row["text"])
                resting.add(row["id"])
            else:
                others.setdefault(row["recipe"], set()).add(row["id"])
        safe = {recipe: tuple(sorted(ids - resting)) for recipe, ids in others.items()}
        ids = dict(documents=documents, resting=resting, cited=cited, graded=graded, answers=answers)
        passages, replies = self._passages(), self._replies(safe)
        cached = self._cached(asked, passages, replies)
        segments: dict[str, set[Any]] = {}  # table of lengths or postings -> those with words of a source
        for table in (t for t in self.named if t.startswith("lengths-")):
            lengths = self._rows(table, "source", "segment")
            of = {r["segment"] for r in lengths if r["source"] in start.sources}
            segments |= {table: of, table.replace("lengths-", "postings-"): of}
        keyed = {**segments, **cached, **replies}
        return replace(
            start,
            **{name: tuple(sorted(found)) for name, found in ids.items()},
            keyed={table: tuple(sorted(keys)) for table, keys in keyed.items() if keys},
            safe=safe,
        )

    def _rows(self, table: str, *columns: str) -> Iterator[dict[str, Any]]:
        """Yields the rows of every named version, and deleted ones that its files still have."""
        for version in sorted(self.named.get(table, ())):
            for batch in self.store.with_deleted(table, columns, version, AT_ONCE):
                yield from with_id_texts(batch.to_pylist())

    def _of_sources(self, kind: str) -> Iterator[dict[str, Any]]:
        """Yields the rows of the sources in all tables of a kind, in every named version."""
        for table in (t for t in self.named if t.startswith(f"{kind}-")):
            for version in self.named[table]:
                found = rows(self.store.dataset(table, version), "source", self.start.sources)
                yield from with_id_texts(found.to_pylist())

    def _rests(self, row: Mapping[str, Any]) -> bool:
        """Returns whether an answer is to a target, cites one, found one or quotes one."""
        quotes = (q for _, reply in row["replies"] for q in reply["quotes"])
        used = {*(h["source"] for h in row["hits"]), *(q["source"] for q in quotes)}
        cites = any(map(self.start.cites, row["citations"] or ()))
        return row["id"] in self.start.questions or cites or not used.isdisjoint(self.start.sources)

    def _passages(self) -> list[str]:
        """The texts of the chunks and passages of the sources."""
        parsed: dict[str, set[str]] = {}
        for row in self._of_sources("texts"):
            parsed.setdefault(row["source"], set()).add(row["text"] or "")
        cut = {
            text[start:end]
            for row in self._of_sources("passages")
            for start, end in ((row["start"], row["end"]), (row["parent_start"], row["parent_end"]))
            for text in parsed.get(row["source"], ())
        }
        return sorted({x for text in cut - {""} for x in (text, text.lower())})

    def _cached(
        self, asked: Collection[str], passages: Sequence[str], replies: Mapping[str, Collection[Any]]
    ) -> dict[str, set[Any]]:
        """Memo table of vectors or scores -> its keys of texts of the targets, and of replies that go:
        searched with (`hyde`), or said of the place of a chunk of the sources (`embed_contextual`). `asked`:
        questions that were scored with passages of the sources."""
        kinds = {table: table.partition("-") for table in memo_tables(self.store)}
        vectors = {table: identity for table, (kind, _, identity) in kinds.items() if kind == "embeddings"}
        found: dict[str, set[Any]] = {table: set() for table in vectors}

        def search(queries: Sequence[str], texts: Sequence[str]) -> None:
            for table, identity in vectors.items():
                keys = vector_keys(identity, "query", queries) + vector_keys(identity, "passage", texts)
                found[table] |= lookup(self.store, MemoTable(table), sorted(keys))

        own = [q["text"] for q in self._rows("questions", "id", "text") if q["id"] in self.start.questions]
        search(own, passages)
        pairs = [(query, passage) for query in asked for passage in passages]
        for table, (kind, _, identity) in kinds.items():
            if kind == "scores":
                found[table] = lookup(self.store, MemoTable(table), sorted(score_keys(identity, pairs)))
        for table, keys in replies.items() if vectors else ():
            said = set[str]()
            for row in self._rows(table, "key", "text"):
                if row["key"] not in keys:
                    continue
                with suppress(UnreadableReply):  # nothing is embedded with it
                    said.add(read_text(answer_of(row["text"])).text)
                if len(said) * (1 + len(passages)) >= KEYS:
                    search([*said], [placed(place, passage) for place in said for passage in passages])
                    said.clear()
            search([*said], [placed(place, passage) for place in said for passage in passages])
        return found

    def _replies(self, safe: Mapping[str, Collection[str]]) -> dict[str, set[Any]]:
        """Memo table of replies -> keys of those that do not say for what they were asked, or for a source
        that goes, or for a question that has no answer which stays."""

        def stays(row: Mapping[str, Any]) -> bool:
            if row["recipe"] == OF_SOURCES:
                return set(row["questions"]).isdisjoint(self.start.sources)
            return set(row["questions"]).issubset(safe.get(row["recipe"], ()))

        return {
            table: {
                row["key"]
                for row in self._rows(table, "key", "recipe", "questions")
                if not (row["questions"] and stays(row))
            }
            for table in memo_tables(self.store)
            if table.startswith("replies-")
        }
