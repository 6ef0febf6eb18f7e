"""What of a store holds a page, a document or a question, or rests on it; and what says the same and stays.
Reads, and changes nothing."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, get_args

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core import arrow
from raypipe.core.plain import to_json
from raypipe.core.records import (
    ABSTAINED,
    ANSWERED,
    FAULT,
    INVALID,
    SKIPPED,
    TRACE,
    Outcome,
    SourceKind,
    digest,
)
from raypipe.runs.forget.apply import held_segments
from raypipe.runs.forget.memo_rows import Followed, follow, memo_rows
from raypipe.runs.forget.mentions import RUN, Mentions, OwnWords
from raypipe.runs.forget.records import ForgetDecision, Holding
from raypipe.runs.forget.target import Target
from raypipe.runs.pipeline.ingest_log import reads_with
from raypipe.runs.pipeline.tombstones import FORMAT, PARTS, Tombstone
from raypipe.runs.roots import roots
from raypipe.store import Store
from raypipe.store.ids import rows
from raypipe.store.keep import tables
from raypipe.store.rewrite import Rows, held, pinned_versions
from raypipe.store.tables import OF_SOURCES

AT_ONCE = 256  # rows with texts in memory
FIXED = (ANSWERED, ABSTAINED, INVALID, SKIPPED, FAULT, TRACE, *get_args(Outcome), *get_args(SourceKind))
"""Words that stand in every record, with the roles of a chat's turns."""

LISTED = 10  # sources, or questions, that are named for people


def find(store: Store, target: Target, given: str, reason: str) -> tuple[ForgetDecision, list[Holding]]:
    """What a forget of the target does, and what it finds, for people."""
    search = _Search(store, target)
    texts, passages = search.texts()
    own = OwnWords(texts)
    alone = passages - search.staying(own, passages)
    search.ingested()
    asked = search.answered(own.mentions())
    followed = follow(store, target, search.kept.runs, search.answers.keys() | search.doubtful.keys())
    for key in followed.resting & search.doubtful.keys():
        search.answers[key] = search.doubtful.pop(key)
    search.add("answers", "key", search.answers)
    search.subtract_answers(own)
    told = own.mentions()
    for table, keys in memo_rows(store, alone, asked, followed, told).items():
        search.add(table, "key", keys)
    decision = search.decision(given, reason, told)
    return decision, [*search.going(decision), *search.staying_too(followed)]


class _Search:
    """What a store has of a target."""

    def __init__(self, store: Store, target: Target) -> None:
        self.store, self.target, self.kept = store, target, roots(store)
        self.pinned = pinned_versions(store, tables(store), [r.tables for r in self.kept.last])
        self.rows: dict[str, tuple[str, set[str]]] = {}  # table -> column, values
        self.cited: set[str] = set()  # questions that lose a citation
        self.answers: dict[str, str] = {}  # key -> question id
        self.doubtful: dict[str, str] = {}
        """Key -> question id of answers that name none of it, and say what no other source says."""
        self.alike: dict[str, int] = {}  # source that stays -> runs of words that it has, too

    def add(self, table: str, column: str, values: Iterable[str]) -> None:
        if values := set(values):
            self.rows.setdefault(table, (column, set()))[1].update(values)

    def _versions(self, table: str) -> list[int]:
        """Those of a table that are named, and the newest."""
        here = self.store.has(table)
        return sorted({*self.pinned.get(table, ()), self.store.version(table)}) if here else []

    def _records(self, table: str, column: str, values: Sequence[str]) -> Iterator[dict[str, Any]]:
        """The rows with these values in any of these versions."""
        for version in self._versions(table) if values else ():
            yield from rows(self.store.dataset(table, version), column, values).to_pylist()

    def _tables(self, kind: str) -> list[str]:
        return [t for t in tables(self.store) if t.startswith(f"{kind}-")]

    def texts(self) -> tuple[list[str], set[str]]:
        """The texts of the target, as they came and as they were parsed, and its passages."""
        target, found, passages = self.target, set[str](), set[str]()
        for q in self._records("questions", "id", target.questions):
            found |= {q["text"], q["body"]}
        for gold in self._records("golds", "question", target.questions):
            found |= set(gold["answers"])
        for source in self._records("sources", "id", target.sources):
            found.add(source["content"])
        parsed: dict[str, set[str]] = {}
        for table in self._tables("texts"):
            for row in self._records(table, "source", target.sources):
                parsed.setdefault(row["source"], set()).add(row["text"] or "")
        for table in self._tables("passages"):
            for row in self._records(table, "source", target.sources):
                spans = ((row["start"], row["end"]), (row["parent_start"], row["parent_end"]))
                passages |= {t[a:b] for t in parsed.get(row["source"], ()) for a, b in spans}
        return sorted(found.union(*parsed.values()) - {""}), passages - {""}

    def staying(self, own: OwnWords, passages: Collection[str]) -> set[str]:
        """Takes out of the words of the target what others say: sources, as they came and as they were
        parsed, questions, golds and recipes. The passages that other sources have, byte for byte."""
        store, shared, gone = self.store, set[str](), pa.array(self.target.sources, pa.string())
        own.subtract(" ".join((*FIXED, "system user assistant")))
        named = [("sources", "id", "content"), *((t, "source", "text") for t in self._tables("texts"))]
        for table, column, text in named:
            for batch in store.batches(table, [column, text], AT_ONCE):
                left = batch.filter(pc.invert(pc.is_in(batch[column], value_set=gone)))
                for id, said in zip(left[column].to_pylist(), left[text].to_pylist(), strict=True):
                    if runs := own.subtract(said or ""):
                        self.alike[id] = max(runs, self.alike.get(id, 0))
                    shared |= {p for p in passages if p in (said or "")}
        for batch in store.batches("questions", ["id", "text", "body"], AT_ONCE):
            for row in batch.to_pylist():
                if row["id"] not in self.target.questions:
                    own.subtract(f"{row['text']} {row['body']}")
        for batch in store.batches("golds", ["question", "answers"], AT_ONCE):
            for row in batch.to_pylist():
                if row["question"] not in self.target.questions:
                    own.subtract(" ".join(row["answers"]))
        for recipe in (*(r.recipe for r in self.kept.runs), *(r.recipe for r in self.kept.releases)):
            own.subtract(json.dumps(to_json(recipe), ensure_ascii=False))  # prompts are in it
        return shared

    def subtract_answers(self, own: OwnWords) -> None:
        """Takes out what is said in answers that stay."""
        for batch in self.store.batches("answers", ["key", "answer", "replies"], AT_ONCE):
            for row in batch.to_pylist():
                if row["key"] not in self.answers:
                    own.subtract(" ".join([row["answer"], *(reply["text"] for _, reply in row["replies"])]))

    def ingested(self) -> None:
        """What was read from files and made of that, but for answers."""
        target, store = self.target, self.store
        self.add("sources", "id", target.sources)
        self.add("questions", "id", target.questions)
        for table in ("documents", "layouts"):
            if store.has(table):
                self.add(table, "source", target.sources)
        for table in ("golds", "relevance", "annotations"):
            if store.has(table):
                self.add(table, "question", target.questions)
        for version in self._versions("questions") if target.sources or target.urls else ():
            for batch in store.batches("questions", ["id", "citations"], AT_ONCE, version):
                self.cited |= {row["id"] for row in batch.to_pylist() if self._cites(row)}
        self.cited -= set(target.questions)
        places = {*target.sources, *target.questions, *target.documents, *target.urls}
        faults = store.scan("faults", ["id", "detail"]).to_pylist()
        self.add("faults", "id", {f["id"] for f in faults if any(_names(f, x) for x in places)})
        for table in (t for t in tables(store) if t.startswith(OF_SOURCES)):
            if any(held(store, Rows(table, "source", target.sources), v) for v in self._versions(table)):
                self.add(table, "source", target.sources)

    def _cites(self, row: dict[str, Any]) -> bool:
        urls, gone = self.target.urls, self.target.sources
        cited = row["citations"] or ()
        return any(c["url"] in urls or any(c[part] in gone for part in PARTS) for c in cited)

    def answered(self, told: Mentions) -> set[str]:
        """Finds answers that were given to it, or that rest on it: they cite it, found it or quote it. The
        texts of their questions. `told`: what no other source says."""
        gone, asked = set(self.target.sources), set[str]()
        for version in self._versions("answers"):
            for batch in self.store.batches("answers", None, AT_ONCE, version):
                table = pa.Table.from_batches([batch])
                for row, q in zip(table.to_pylist(), arrow.question.records(table), strict=True):
                    replies = q.replies.values()
                    found = {h.source for h in q.hits} | {x.source for r in replies for x in r.quotes}
                    if q.id in self.target.questions or self._cites(row) or not gone.isdisjoint(found):
                        self.answers[row["key"]] = q.id
                        asked.add(q.text)
                    elif told(q.answer) or any(told(r.text) for r in replies):
                        self.doubtful[row["key"]] = q.id
        return asked

    def decision(self, given: str, reason: str, told: Mentions) -> ForgetDecision:
        store, target, cited = self.store, self.target, tuple(sorted(self.cited))
        some = [Rows(t, column, tuple(sorted(values))) for t, (column, values) in sorted(self.rows.items())]
        edited = [*some, *([Rows("questions", "id", cited)] if cited else [])]
        here = [r for r in edited if any(held(store, r, v) for v in self._versions(r.table))]
        dirty: dict[str, set[int]] = {}
        for r in here:
            now = store.version(r.table)
            older = {v for v in self.pinned[r.table] if v != now and held(store, r, v)}
            dirty.setdefault(r.table, set()).update(older)
        newest = {t: store.version(t) for t in dirty}
        touched = {t: {*versions, newest[t]} for t, versions in dirty.items()}
        releases = [r for r in self.kept.releases if any(r.tables.get(t) in vs for t, vs in touched.items())]
        stone = Tombstone(
            FORMAT, digest("forgotten", target.kind, target.name), target.kind, reason, time.time(),
            target.addresses, target.sources, tuple(digest(q) for q in target.questions),
        )  # fmt: skip
        notes = reads_with(store, {*target.questions, *cited}, bool(target.documents))
        return ForgetDecision(
            target, given, stone, tuple(r for r in some if r in here), cited, newest,
            {t: tuple(sorted(v)) for t, v in dirty.items()}, tuple(r.id for r in releases), (), notes, (),
            (), (), tuple(sorted(told.runs)), tuple(sorted(told.rare)),
        )  # fmt: skip

    def going(self, decision: ForgetDecision) -> Iterator[Holding]:
        """What goes, for people."""
        for some in decision.rows:
            of_memo = some.column == "key" and some.table != "answers"
            kind = "memo" if of_memo else "answers" if some.table == "answers" else "table"
            older = len(decision.pinned.get(some.table, ()))
            also = f", and of {older} older versions that are named" if older else ""
            does = f"rows go{also}; its indexes are built again"
            yield Holding(kind, some.table, held(self.store, some), does)
        if decision.cited:
            yield Holding("table", "questions", len(decision.cited), "lose the citation")
        live = {r.id: r for r in self.kept.releases}
        for id in decision.releases:
            does = f"ends; a release without it takes its place ({live[id].name})"
            yield Holding("release", id, len(live[id].tables), does)
        for name, lines in held_segments(self.store.files, decision.target, decision.mentions).items():
            yield Holding("captured", name, lines, "lines go, and what users said of these answers")
        for note in decision.notes:
            yield Holding("note", note, 1, "the files are read again when they are given again")
        for other in decision.target.also:
            yield Holding("table", f"citation or document {other}", 1, "has the same page, and loses it")

    def staying_too(self, followed: Followed) -> Iterator[Holding]:
        """What stays although it says the same, and what is not known, for people."""
        for source in self.target.shared:
            yield Holding("kept", f"source {source}", 0, "a name or snippet of other addresses, too")
        alike = sorted(self.alike.items(), key=lambda s: (-s[1], s[0]))
        for source, runs in alike[:LISTED]:
            does = f"says {runs} of its runs of {RUN} words, too, and stays; forget it by this id"
            yield Holding("kept", f"source {source}", 0, does)
        if len(alike) > LISTED:
            yield Holding("kept", "sources", len(alike) - LISTED, "more say some of it, too, and stay")
        if doubtful := sorted(set(self.doubtful.values())):
            named = ", ".join(doubtful[:LISTED]) + (", ..." if len(doubtful) > LISTED else "")
            does = f"stay: they say what no other source says, and rest on none of it; of questions {named}"
            yield Holding("kept", "answers", len(self.doubtful), does)
        for why, keys in followed.unfollowed.items():
            does = (
                f"{len(keys)} answers could not be followed ({why}): of their replies those go that quote it"
            )
            yield Holding("memo", "replies", 0, does)


def _names(fault: dict[str, str], name: str) -> bool:
    """Whether a fault is of a thing, or of a part of it (`ID#2`), or its detail names it as a whole."""
    if name in (fault["id"].partition("#")[0], fault["id"]):
        return True
    return bool(re.search(rf"(?<!\w){re.escape(name)}(?![\w/?=&%-])", fault["detail"]))
