"""The ids of all that a forget takes out of a store: what names the targets, and what rests on them.

Nothing is found by its words. An answer rests on a source that it cites, found or quotes. A reply of a model
says for which recipe and questions it was asked (`core.about`); it stays where each of these has stored
answers by that recipe and none of them rests on a target. Reads, and changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from raypipe.core.config import Where, build
from raypipe.runs.forget.target import Target
from raypipe.runs.pipeline.ingest_log import reads_with
from raypipe.runs.pipeline.tombstones import Tombstone
from raypipe.runs.roots import roots
from raypipe.runs.store_records import write_record
from raypipe.store import Store, read_now
from raypipe.store.ids import rows
from raypipe.store.keep import tables, tagged, versions
from raypipe.store.layout import FORGETTING
from raypipe.store.memo.disk import memo_tables
from raypipe.store.memo.keys import score_keys, vector_keys
from raypipe.store.memo.lookup import lookup
from raypipe.store.memo.memo import MemoTable
from raypipe.store.text_places import Gone, holding

AT_ONCE = 256  # rows with texts in memory


@dataclass(frozen=True, slots=True)
class ForgetDecision:
    """All that a forget will do. Written before anything of it is done."""

    given: tuple[str, ...]  # as the command named them
    targets: tuple[Target, ...]  # what they mean
    tombstones: tuple[Tombstone, ...]
    gone: Gone
    safe: Mapping[str, tuple[str, ...]]  # recipe -> questions of which no answer by it rests on a target
    releases: tuple[str, ...]  # ids of those that end
    notes: tuple[str, ...]  # fingerprints of reads of files that had it
    folders: tuple[str, ...] = ()  # of runs
    text_folders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Kind of a folder that a plugin writes -> those of this kind that show it."""


def find(store: Store, targets: Sequence[Target], given: Sequence[str], reason: str) -> ForgetDecision:
    """Decides what goes for some targets, but for folders outside of the store."""

    def of(name: str) -> tuple[str, ...]:
        return tuple(sorted({x for target in targets for x in getattr(target, name)}))

    named = named_versions(store)
    start = Gone(of("sources"), of("urls"), of("documents"), of("questions"))
    gone, safe = _Search(store, named, start).gone()
    held = {(table, v) for table, versions in holding(store, gone, named).items() for v in versions}
    ended = tuple(r.id for r in roots(store).releases if not held.isdisjoint(r.tables.items()))
    notes = reads_with(store, {*gone.questions, *gone.cited}, bool(gone.documents))
    stones = tuple(target.buried(reason) for target in targets)
    return ForgetDecision(tuple(given), tuple(targets), stones, gone, safe, ended, notes)


def named_versions(store: Store) -> dict[str, set[int]]:
    """Table -> versions that releases, the last runs of recipes and living readers name, and the newest."""
    last, read, found = roots(store).last, read_now(store.files), dict[str, set[int]]()
    for table in tables(store):
        named = {*tagged(store, table).values(), *read.get(table, ())}
        named |= {r.tables[table] for r in last if table in r.tables}
        found[table] = named & set(versions(store, table)) | {store.version(table)}
    return found


@dataclass(frozen=True, slots=True)
class _Search:
    """A search for all that rests on some targets, in each version that is named."""

    store: Store
    named: Mapping[str, Collection[int]]  # table -> versions
    start: Gone  # the targets alone

    def gone(self) -> tuple[Gone, dict[str, tuple[str, ...]]]:
        """Returns the ids that go, and recipe -> the questions whose replies by it stay."""
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
        safe = {recipe: ids - resting for recipe, ids in others.items()}
        keyed = {**self._segments(), **self._cached(asked), **self._replies(safe)}
        gone = replace(
            start,
            documents=tuple(sorted(documents)),
            resting=tuple(sorted(resting)),
            cited=tuple(sorted(cited)),
            graded=tuple(sorted(graded)),
            answers=tuple(sorted(answers)),
            keyed={table: tuple(sorted(keys)) for table, keys in keyed.items() if keys},
        )
        return gone, {recipe: tuple(sorted(ids)) for recipe, ids in safe.items()}

    def _rows(self, table: str, *columns: str) -> Iterator[dict[str, Any]]:
        """Yields the rows of every named version, and deleted ones that its files still have."""
        for version in sorted(self.named.get(table, ())):
            for batch in self.store.with_deleted(table, columns, version, AT_ONCE):
                yield from batch.to_pylist()

    def _of_sources(self, kind: str) -> Iterator[dict[str, Any]]:
        """Yields the rows of the sources in all tables of a kind, in every named version."""
        for table in (t for t in self.named if t.startswith(f"{kind}-")):
            for version in self.named[table]:
                found = rows(self.store.dataset(table, version), "source", self.start.sources)
                yield from found.to_pylist()

    def _rests(self, row: Mapping[str, Any]) -> bool:
        """Returns whether an answer is to a target, cites one, found one or quotes one."""
        quotes = (q for _, reply in row["replies"] for q in reply["quotes"])
        used = {*(h["source"] for h in row["hits"]), *(q["source"] for q in quotes)}
        cites = any(map(self.start.cites, row["citations"] or ()))
        return row["id"] in self.start.questions or cites or not used.isdisjoint(self.start.sources)

    def _segments(self) -> dict[str, set[Any]]:
        """Table of lengths or postings -> segments with words of a source."""
        found: dict[str, set[Any]] = {}
        for table in (t for t in self.named if t.startswith("lengths-")):
            lengths = self._rows(table, "source", "segment")
            of = {r["segment"] for r in lengths if r["source"] in self.start.sources}
            found |= {table: of, table.replace("lengths-", "postings-"): of}
        return found

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

    def _cached(self, asked: Iterable[str]) -> dict[str, set[Any]]:
        """Memo table of vectors or scores -> its keys of texts of the targets. `asked`: questions that were
        scored with passages of the sources."""
        passages, found = self._passages(), dict[str, set[Any]]()
        own = [q["text"] for q in self._rows("questions", "id", "text") if q["id"] in self.start.questions]
        pairs = [(query, passage) for query in asked for passage in passages]
        for table in memo_tables(self.store):
            kind, _, identity = table.partition("-")
            keys = score_keys(identity, pairs) if kind == "scores" else []
            if kind == "embeddings":
                keys = vector_keys(identity, "passage", passages) + vector_keys(identity, "query", own)
            found[table] = lookup(self.store, MemoTable(table), sorted(keys))
        return found

    def _replies(self, safe: Mapping[str, Collection[str]]) -> dict[str, set[Any]]:
        """Memo table of replies -> keys of those that do not say for which questions they were asked, or for
        one that has no answer which stays."""
        return {
            table: {
                row["key"]
                for row in self._rows(table, "key", "recipe", "questions")
                if not row["questions"] or not set(row["questions"]).issubset(safe.get(row["recipe"], ()))
            }
            for table in memo_tables(self.store)
            if table.startswith("replies-")
        }


def save(store: Store, decision: ForgetDecision) -> None:
    write_record(store, _place(decision), decision)


def begun(store: Store, given: Sequence[str]) -> ForgetDecision | None:
    """The decision of a forget of these names that has not ended. Raises StoreError for one of others."""
    for name in store.files.names(FORGETTING):
        tree = json.loads(store.files.read(f"{FORGETTING}/{name}") or b"{}")
        if tree["given"] == list(given):
            return build(ForgetDecision, tree, Where(f"{store.uri}/{FORGETTING}/{name}"))
    store.require_forgotten()
    return None


def end(store: Store, decision: ForgetDecision) -> None:
    store.files.remove(_place(decision))


def _place(decision: ForgetDecision) -> str:
    return f"{FORGETTING}/{decision.tombstones[0].id}.json"
