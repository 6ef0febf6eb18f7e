"""The ids of all that a forget takes out of a store: what names the targets, and what rests on them.

Nothing is found by its words. An answer rests on a source that it cites, found or quotes. A reply of a model
says for which recipe and questions it was asked (`core.about`); it stays where each of these has stored
answers by that recipe and none of them rests on a target. Reads, and changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    search = _Search(store, targets)
    gone, safe = search.gone()
    named = search.named
    here = holding(store, gone, named)
    held = {(table, version) for table, versions in here.items() for version in versions}
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


class _Search:
    """What a store has of some targets, in any version that is named."""

    def __init__(self, store: Store, targets: Sequence[Target]) -> None:
        def of(name: str) -> tuple[str, ...]:
            return tuple(sorted({x for target in targets for x in getattr(target, name)}))

        self.store, self.named = store, named_versions(store)
        self.start = Gone(of("sources"), of("urls"), of("documents"), of("questions"))

    def gone(self) -> tuple[Gone, dict[str, tuple[str, ...]]]:
        """The ids that go, and recipe -> the questions whose replies by it stay."""
        start = self.start
        same = {d["id"] for d in self._rows("documents", ["id", "source"]) if d["source"] in start.sources}
        documents = tuple(sorted({*start.documents, *same}))
        cited = {
            q["id"]
            for q in self._rows("questions", ["id", "citations"])
            if q["id"] not in start.questions and any(map(start.cites, q["citations"] or ()))
        }
        graded = {
            r["question"]
            for r in self._rows("relevance", ["question", "grades"])
            if not {name for name, _ in r["grades"]}.isdisjoint(documents)
        }
        answers, resting, asked, others = self._answers()
        resting |= {*start.questions, *cited}
        safe = {recipe: tuple(sorted(ids - resting)) for recipe, ids in others.items()}
        gone = Gone(
            start.sources, start.urls, documents, start.questions, tuple(sorted(resting)),
            tuple(sorted(cited)), tuple(sorted(graded)), tuple(sorted(answers)), (), self._segments(),
            dict(self._memo(asked, safe)),
        )  # fmt: skip
        return gone, safe

    def _rows(self, table: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """The rows that any named version has, and those that were deleted and are in its files yet."""
        for version in sorted(self.named.get(table, ())):
            for batch in self.store.with_deleted(table, columns, version, AT_ONCE):
                yield from batch.to_pylist()

    def _answers(self) -> tuple[set[str], set[str], set[str], dict[str, set[str]]]:
        """Keys of answers that rest on a target, and the ids and texts of their questions; and recipe ->
        questions that have other answers by it."""
        start, sources = self.start, set(self.start.sources)
        keys, resting, asked, safe = set[str](), set[str](), set[str](), dict[str, set[str]]()
        columns = ["key", "recipe", "id", "text", "citations", "hits", "replies"]
        for row in self._rows("answers", columns):
            quotes = (q for _, reply in row["replies"] for q in reply["quotes"])
            used = {*(h["source"] for h in row["hits"]), *(q["source"] for q in quotes)}
            cites = any(map(start.cites, row["citations"] or ()))
            if row["id"] in start.questions or cites or not used.isdisjoint(sources):
                keys.add(row["key"])
                resting.add(row["id"])
                asked.add(row["text"])
            else:
                safe.setdefault(row["recipe"], set()).add(row["id"])
        return keys, resting, asked, safe

    def _segments(self) -> dict[str, tuple[int, ...]]:
        """Table of lengths or postings -> segments of words that have words of a source."""
        found: dict[str, set[int]] = {}
        for table in (t for t in tables(self.store) if t.startswith("lengths-")):
            for row in self._rows(table, ["source", "segment"]):
                if row["source"] in self.start.sources:
                    for name in (table, table.replace("lengths-", "postings-")):
                        found.setdefault(name, set()).add(row["segment"])
        return {table: tuple(sorted(segments)) for table, segments in found.items()}

    def _passages(self) -> set[str]:
        """The texts of the chunks and passages of the sources."""
        parsed, found = dict[str, set[str]](), set[str]()
        for table in (t for t in tables(self.store) if t.startswith("texts-")):
            for row in self._of_sources(table, ["source", "text"]):
                parsed.setdefault(row["source"], set()).add(row["text"] or "")
        for table in (t for t in tables(self.store) if t.startswith("passages-")):
            for row in self._of_sources(table, None):
                spans = (row["start"], row["end"]), (row["parent_start"], row["parent_end"])
                found |= {t[a:b] for t in parsed.get(row["source"], ()) for a, b in spans}
        return {x for text in found - {""} for x in (text, text.lower())}

    def _of_sources(self, table: str, columns: Sequence[str] | None) -> Iterator[dict[str, Any]]:
        for version in self.named[table]:
            found = rows(self.store.dataset(table, version), "source", self.start.sources, columns)
            yield from found.to_pylist()

    def _memo(
        self, asked: Iterable[str], safe: Mapping[str, Iterable[str]]
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Memo table -> keys of the cached values that go. `asked`: what was asked about the sources."""
        passages = sorted(self._passages())
        queries = [
            q["text"] for q in self._rows("questions", ["id", "text"]) if q["id"] in self.start.questions
        ]
        pairs = [(q, p) for q in asked for p in passages]
        kept = {recipe: set(ids) for recipe, ids in safe.items()}
        for table in memo_tables(self.store):
            kind, _, identity = table.partition("-")
            if kind == "replies":
                keys = {
                    row["key"]
                    for row in self._rows(table, ["key", "recipe", "questions"])
                    if not row["questions"] or not kept.get(row["recipe"], set()).issuperset(row["questions"])
                }
            else:
                made = score_keys(identity, pairs)
                if kind == "embeddings":
                    made = vector_keys(identity, "passage", passages) + vector_keys(
                        identity, "query", queries
                    )
                keys = lookup(self.store, MemoTable(table), sorted(made))
            if keys:
                yield table, tuple(sorted(keys))


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
