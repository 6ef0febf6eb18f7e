"""Search for all that a store holds of a text to forget. Changes nothing.

`find_target` resolves a name to a `Target`. `find` collects, as a `Gone`, the ids of all rows that rest on
targets. Both compare ids and addresses, never words.

An answer rests on each source that it cites, found or quotes. A cached reply records what it was requested
for (`core.call_context`): either sources, or a recipe and questions. A reply requested for sources is kept if
none of these sources is a target. A reply requested for questions is kept if each question has a stored
answer by the recorded recipe, and no question is a target, cites a target, or has an answer that rests on a
target. A reply that records neither sources nor questions is removed.
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
from raypipe.core.bounded_rows import batches
from raypipe.core.call_context import OF_SOURCES
from raypipe.core.errors import DataError
from raypipe.core.records import digest
from raypipe.runs.pipeline.ingest_staging import FORMAT, Tombstone, tombstones
from raypipe.runs.release import adapters_named, releases, roots
from raypipe.store import Store, StoreError, read_now
from raypipe.store.fields import PARTS
from raypipe.store.housekeeping import tables, tagged, versions
from raypipe.store.ids import rows
from raypipe.store.memo.disk import memo_tables
from raypipe.store.memo.lookup import lookup
from raypipe.store.memo.memo import MemoTable, score_keys, vector_keys
from raypipe.store.text_places import Gone, holding
from raypipe.text.replies import UnreadableReply, placed, read_text
from raypipe.text.thoughts import answer_of

ROWS = 4096  # questions per batch
AT_ONCE = 256  # rows with texts in memory at a time
KEYS = 1 << 16  # vector keys per look-up


@dataclass(frozen=True, slots=True)
class Target:
    """A thing to forget, as the store holds it."""

    kind: str  # url, document, source or question
    name: str  # the url, or an id
    urls: tuple[str, ...] = ()  # addresses of the citations to remove
    documents: tuple[str, ...] = ()  # ids to remove
    sources: tuple[str, ...] = ()  # ids to remove
    questions: tuple[str, ...] = ()  # ids to remove

    @property
    def tombstone(self) -> str:
        """Id of the target's tombstone."""
        return digest("forgotten", self.kind, self.name)

    def buried(self, reason: str) -> Tombstone:
        """Returns the target's tombstone, which names addresses, documents and questions by their digests."""
        addresses = tuple(map(digest, (*self.urls, *self.documents)))
        refused = addresses, self.sources, tuple(map(digest, self.questions))
        return Tombstone(FORMAT, self.tombstone, self.kind, reason, time.time(), *refused)


@dataclass(frozen=True, slots=True)
class Forgetting:
    """A started forget, stored before it removes anything."""

    given: tuple[str, ...]  # names, as the command received them
    reason: str
    targets: tuple[Target, ...]  # the resolved names
    places: tuple[str, ...]  # folders outside the store to search: of runs, and of training data


def find_target(store: Store, given: str) -> Target:
    """Resolves a name: the id of a question or source, the id or path of a document, or a url. If the newest
    table versions lack the name, searches older versions, because a release may still use these. Last,
    searches the tombstones (digests of forgotten things). Raises DataError if nothing has the name, or if
    documents of several folders have it."""
    if _find_row(store, "questions", "id", [given]):
        return Target("question", given, questions=(given,))
    if _find_row(store, "sources", "id", [given]):
        return Target("source", given, sources=(given,))
    path = [given.partition("#")[0], quote(os.fsencode(given))]  # as citations and as folders write it
    if row := _find_row(store, "documents", "id", [given]) or _find_row(store, "layouts", "url", path):
        return Target("document", row["id"], documents=(row["id"],), sources=(row["source"],))
    if (target := _find_page(store, given)) is not None:
        return target
    # A name with a tombstone can be forgotten again: that removes rows ingested since the first time.
    stones = {stone.id: stone for stone in tombstones(store)}
    for field in ("urls", "documents", "sources", "questions"):
        target = Target(field.removesuffix("s"), given)
        if (stone := stones.get(target.tombstone)) is not None:
            fields: dict[str, Any] = {"sources": stone.sources, field: (given,)}
            return replace(target, **fields)
    expected = "expected the url of a page, the path of a document, or the id of a source or question"
    mend = "`raypipe inspect DIR ROW` shows the urls and sources of an answer"
    raise DataError(f"{store.uri}: {expected}, found nothing named {given!r}. {mend}")


def _find_row(store: Store, table: str, column: str, values: list[str]) -> dict[str, Any] | None:
    """Returns the row with one of these values, from the newest version that has one; None if none has.
    Raises DataError if that version has several."""
    for version in versions(store, table)[::-1]:
        columns = ["id", "source"] if table in ("documents", "layouts") else ["id"]
        found = rows(store.dataset(table, version), column, values, columns).to_pylist()
        if len(found) > 1:
            ids = ", ".join(sorted(row["id"] for row in found))
            several = f"{len(found)} folders have a document {values[0]!r}"
            raise DataError(f"{store.uri}: {several}; name one by its id: {ids}")
        for row in found:
            return dict(with_id_texts(row))
    return None


def _find_page(store: Store, url: str) -> Target | None:
    """Finds the page of a url, in the newest version of the questions that cites the url; None if none does.
    A name or snippet that another url or a document has, too, is not part of the target."""
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
    """Maps each table to its newest version and the versions that releases, last runs and processes read."""
    root_runs, read, found = roots(store).root_runs, read_now(store.files), dict[str, set[int]]()
    for table in tables(store):
        named = {*tagged(store, table).values(), *read.get(table, ())}
        named |= {r.tables[table] for r in root_runs if table in r.tables}
        found[table] = named & set(versions(store, table)) | {store.version(table)}
    return found


def resting(store: Store, gone: Gone, named: Mapping[str, set[int]], adapters: Collection[str]) -> list[str]:
    """Lists ids of the releases to end: they use a table with rows to remove, or one of the adapters."""
    held = {(table, v) for table, found in holding(store, gone, named).items() for v in found}
    ended = [r.id for r in roots(store).releases if not held.isdisjoint(r.tables.items())]
    ended += [r.id for r in releases(store) if not adapters_named([r]).isdisjoint(adapters)]
    return list(dict.fromkeys(ended))


def check_readers(store: Store, gone: Gone) -> None:
    """Raises StoreError if a living process has pinned a table version that holds rows to remove."""
    read = {table: versions for table, versions in read_now(store.files).items() if store.has(table)}
    for table, held in holding(store, gone, read).items():
        if held:
            reader = f"an endpoint or `ask` over a recipe reads table {table} at version {min(held)}"
            mend = "End it first; one over `live` switches by itself"
            raise StoreError(f"{store.uri}: {reader}, which would be deleted. {mend}")


def find(store: Store, targets: Sequence[Target], named: Mapping[str, Collection[int]]) -> Gone:
    """Collects the ids of all rows that rest on the targets, in the `named` table versions. No adapters."""
    fields = ("sources", "urls", "documents", "questions")
    start: dict[str, Any] = {f: tuple(sorted({x for t in targets for x in getattr(t, f)})) for f in fields}
    return _Search(store, named, Gone(**start)).gone()


@dataclass(frozen=True, slots=True)
class _Search:
    """A search for all rows that rest on some targets."""

    store: Store
    named: Mapping[str, Collection[int]]  # table -> versions
    start: Gone  # the targets, and nothing that rests on them

    def gone(self) -> Gone:
        """Returns the ids of all rows to remove or edit, and questions whose replies are kept (`safe`)."""
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
        others: dict[str, set[str]] = {}  # recipe -> questions with an answer by it that is kept
        for row in self._rows("answers", "key", "recipe", "id", "text", "citations", "hits", "replies"):
            if self._rests_on_target(row):
                answers.add(row["key"])
                asked.add(row["text"])
                resting.add(row["id"])
            else:
                others.setdefault(row["recipe"], set()).add(row["id"])
        safe = {recipe: tuple(sorted(ids - resting)) for recipe, ids in others.items()}
        passages, replies = self._passage_texts(), self._reply_keys(safe)
        cached = self._vector_and_score_keys(asked, passages, replies)
        segments: dict[str, set[Any]] = {}  # table of lengths or postings -> segments with a target's words
        for table in (t for t in self.named if t.startswith("lengths-")):
            lengths = self._rows(table, "source", "segment")
            of = {r["segment"] for r in lengths if r["source"] in start.sources}
            segments |= {table: of, table.replace("lengths-", "postings-"): of}
        keyed = {**segments, **cached, **replies}
        return replace(
            start,
            documents=tuple(sorted(documents)),
            resting=tuple(sorted(resting)),
            cited=tuple(sorted(cited)),
            graded=tuple(sorted(graded)),
            answers=tuple(sorted(answers)),
            keyed={table: tuple(sorted(keys)) for table, keys in keyed.items() if keys},
            safe=safe,
        )

    def _rows(self, table: str, *columns: str) -> Iterator[dict[str, Any]]:
        """Yields the rows of all named versions of a table, and deleted rows that its files still hold."""
        for version in sorted(self.named.get(table, ())):
            for batch in self.store.batches(table, columns, AT_ONCE, version, deleted=True):
                yield from with_id_texts(batch.to_pylist())

    def _target_rows(self, kind: str) -> Iterator[dict[str, Any]]:
        """Yields the target sources' rows in all tables of a kind, such as `texts`, in all named versions."""
        for table in (t for t in self.named if t.startswith(f"{kind}-")):
            for version in self.named[table]:
                found = rows(self.store.dataset(table, version), "source", self.start.sources)
                yield from with_id_texts(found.to_pylist())

    def _rests_on_target(self, row: Mapping[str, Any]) -> bool:
        """Returns whether an answer is for a target question, or has a target among its citations, hits or
        quotes."""
        quotes = (q for _, reply in row["replies"] for q in reply["quotes"])
        used = {*(h["source"] for h in row["hits"]), *(q["source"] for q in quotes)}
        cites = any(map(self.start.cites, row["citations"] or ()))
        return row["id"] in self.start.questions or cites or not used.isdisjoint(self.start.sources)

    def _passage_texts(self) -> list[str]:
        """Returns the texts of the target sources' chunks and passages, as written and in lower case."""
        parsed: dict[str, set[str]] = {}
        for row in self._target_rows("texts"):
            parsed.setdefault(row["source"], set()).add(row["text"] or "")
        cut = {
            text[start:end]
            for row in self._target_rows("passages")
            for start, end in ((row["start"], row["end"]), (row["parent_start"], row["parent_end"]))
            for text in parsed.get(row["source"], ())
        }
        return sorted({x for text in cut - {""} for x in (text, text.lower())})

    def _vector_and_score_keys(
        self, asked: Collection[str], passages: Sequence[str], replies: Mapping[str, Collection[Any]]
    ) -> dict[str, set[Any]]:
        """Maps each memo table of vectors or scores to its keys to remove. These are vectors of target texts,
        vectors of texts that contain a removed reply, and scores of pairs of a text in `asked` and one in
        `passages`. A reply is in search texts (`hyde`) and in chunks with a note on their place
        (`embed_contextual`). `asked` are texts of questions with an answer to remove; `passages` are target
        texts. `replies` maps memo tables of replies to keys to remove."""
        kinds = {table: table.partition("-") for table in memo_tables(self.store)}
        vectors = {table: identity for table, (kind, _, identity) in kinds.items() if kind == "embeddings"}
        keys_of: dict[str, set[Any]] = {table: set() for table in vectors}

        def search(queries: Sequence[str], texts: Sequence[str]) -> None:
            for table, identity in vectors.items():
                keys = vector_keys(identity, "query", queries) + vector_keys(identity, "passage", texts)
                keys_of[table] |= lookup(self.store, MemoTable(table), sorted(keys))

        own = [q["text"] for q in self._rows("questions", "id", "text") if q["id"] in self.start.questions]
        search(own, passages)
        pairs = [(query, passage) for query in asked for passage in passages]
        for table, (kind, _, identity) in kinds.items():
            if kind == "scores":
                keys_of[table] = lookup(self.store, MemoTable(table), sorted(score_keys(identity, pairs)))
        for table, keys in replies.items() if vectors else ():
            stored = (row["text"] for row in self._rows(table, "key", "text") if row["key"] in keys)
            for texts in batches(stored, max(1, KEYS // (1 + len(passages)))):
                reply_texts = set[str]()
                for text in texts:
                    with suppress(UnreadableReply):  # such a reply was never embedded
                        reply_texts.add(read_text(answer_of(text)).text)
                with_notes = [placed(note, passage) for note in reply_texts for passage in passages]
                search([*reply_texts], with_notes)
        return keys_of

    def _reply_keys(self, safe: Mapping[str, Collection[str]]) -> dict[str, set[Any]]:
        """Maps each memo table of replies to its keys to remove. Their replies record no source or question,
        a target source, or a question outside `safe` (recipe -> questions whose replies are kept)."""

        def stays(row: Mapping[str, Any]) -> bool:
            if row["recipe"] == OF_SOURCES:
                return set(row["questions"]).isdisjoint(self.start.sources)
            return set(row["questions"]).issubset(safe.get(row["recipe"], ()))

        keys_of: dict[str, set[Any]] = {}
        for table in (t for t in memo_tables(self.store) if t.startswith("replies-")):
            stored = self._rows(table, "key", "recipe", "questions")
            keys_of[table] = {row["key"] for row in stored if not (row["questions"] and stays(row))}
        return keys_of
