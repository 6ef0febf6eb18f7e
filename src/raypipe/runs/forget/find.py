"""What of a store holds a page, a document or a question, or rests on it. Reads, and changes nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence

import pyarrow as pa

from raypipe.core import arrow
from raypipe.core.records import Question, digest
from raypipe.pipeline.ingest_log import reads_with
from raypipe.pipeline.tombstones import FORMAT, Tombstone
from raypipe.runs.forget.memo_rows import follow, memo_rows
from raypipe.runs.forget.mentions import Mentions, OwnWords
from raypipe.runs.forget.records import ForgetDecision, FoundRows, Holding, Shared
from raypipe.runs.forget.segments import held_segments
from raypipe.runs.forget.staying import kept_holdings, parsed_tables, staying
from raypipe.runs.forget.target import Target
from raypipe.runs.roots import Roots, roots
from raypipe.runs.trials import trials
from raypipe.store import Store
from raypipe.store.keep import tables
from raypipe.store.lookups import rows
from raypipe.store.rewrite import Rows, held, pinned_versions
from raypipe.store.tables import OF_SOURCES

AT_ONCE = 256  # rows with texts in memory


def find(store: Store, target: Target, given: str, reason: str) -> tuple[ForgetDecision, list[Holding]]:
    """What a forget of the target does, and what it finds, for people."""
    kept = roots(store)
    pinned = pinned_versions(store, tables(store), [r.tables for r in kept.last])
    texts, passages = _texts(store, target, pinned)
    own = OwnWords(texts)
    shared = staying(store, target, kept, own, passages)
    found = FoundRows()
    _ingested(store, target, pinned, found)
    _answers(store, target, own.mentions(), shared, pinned, found)
    followed = follow(store, target, kept.runs, found.answers.keys() | found.doubtful.keys())
    for key in followed.resting & found.doubtful.keys():
        found.answers[key] = found.doubtful.pop(key)
    found.add("answers", "key", found.answers)
    for text in _other_answers(store, found):
        own.subtract(text)
    told = own.mentions()
    _corpus(store, target, pinned, found)
    for table, keys in memo_rows(store, passages - shared.passages, found.asked, followed, told).items():
        found.add(table, "key", keys)
    decision = _decision(store, target, given, reason, found, told, kept, pinned)
    also = kept_holdings(store, target, texts, shared, followed, found)
    return decision, [*_holdings(store, decision, kept), *also]


def _texts(store: Store, target: Target, pinned: dict[str, set[int]]) -> tuple[list[str], set[str]]:
    """The texts of a target, as they came and as they were parsed, and its passages."""
    found, passages = set[str](), set[str]()
    for q in _records(store, "questions", "id", target.questions, pinned):
        found |= {q["text"], q["body"]}
    for gold in _records(store, "golds", "question", target.questions, pinned):
        found |= set(gold["answers"])
    for source in _records(store, "sources", "id", target.sources, pinned):
        found.add(source["content"])
    parsed: dict[str, set[str]] = {}
    for table in parsed_tables(store):
        for row in _records(store, table, "source", target.sources, pinned):
            parsed.setdefault(row["source"], set()).add(row["text"] or "")
    for table in (t for t in tables(store) if t.startswith("passages-")):
        for row in _records(store, table, "source", target.sources, pinned):
            for text in parsed.get(row["source"], ()):
                passages |= {text[row["start"] : row["end"]], text[row["parent_start"] : row["parent_end"]]}
    found |= {text for texts in parsed.values() for text in texts}
    return sorted(found - {""}), passages - {""}


def _records(
    store: Store, table: str, column: str, values: Sequence[str], pinned: dict[str, set[int]]
) -> Iterator[dict]:  # type: ignore[type-arg]
    """The rows with these values in any version of a table that is named."""
    for version in _versions(store, table, pinned) if values else ():
        yield from rows(store.dataset(table, version), column, values).to_pylist()


def _versions(store: Store, table: str, pinned: dict[str, set[int]]) -> list[int]:
    return sorted({*pinned.get(table, ()), store.version(table)}) if store.has(table) else []


def _other_answers(store: Store, found: FoundRows) -> Iterator[str]:
    """What is said in answers that stay."""
    for batch in store.batches("answers", ["key", "answer", "replies"], AT_ONCE):
        for row in batch.to_pylist():
            if row["key"] not in found.answers:
                yield " ".join([row["answer"], *(reply["text"] for _, reply in row["replies"])])


def _ingested(store: Store, target: Target, pinned: dict[str, set[int]], found: FoundRows) -> None:
    found.add("sources", "id", set(target.sources))
    found.add("questions", "id", set(target.questions))
    for table in ("documents", "layouts"):
        if store.has(table):
            found.add(table, "id", set(target.documents))
    for table in ("golds", "relevance", "annotations"):
        if store.has(table):
            found.add(table, "question", set(target.questions))
    for version in _versions(store, "questions", pinned):
        found.cited |= _citing(store, version, target)
    named = {*target.sources, *target.questions, *target.documents}
    faults = store.scan("faults", ["id", "detail"]).to_pylist()
    places = {*named, *target.urls}
    found.add("faults", "id", {f["id"] for f in faults if any(_names(f, x) for x in places)})


def _names(fault: dict[str, str], name: str) -> bool:
    """Whether a fault is of a thing, or of a part of it (`ID#2`), or its detail names it as a whole."""
    of = fault["id"].partition("#")[0]
    return name in (of, fault["id"]) or bool(
        re.search(rf"(?<!\w){re.escape(name)}(?![\w/?=&%-])", fault["detail"])
    )


def _citing(store: Store, version: int, target: Target) -> set[str]:
    """Questions that cite what goes, and stay."""
    gone, found = set(target.sources), set[str]()
    if not (gone or target.urls):
        return found
    for batch in store.batches("questions", ["id", "citations"], AT_ONCE, version):
        for row in batch.to_pylist():
            if any(_cites(c, gone, target.urls) for c in row["citations"] or ()):
                found.add(row["id"])
    return found - set(target.questions)


def _cites(citation: dict[str, str], gone: set[str], urls: Sequence[str]) -> bool:
    named = (citation["page"], citation["snippet"], citation["name"])
    return citation["url"] in urls or any(s in gone for s in named)


def _answers(
    store: Store,
    target: Target,
    told: Mentions,
    shared: Shared,
    pinned: dict[str, set[int]],
    found: FoundRows,
) -> None:
    """Answers that were given to it, or that rest on it: they cite it, found it or quote it. `told`: what no
    other source says."""
    gone = set(target.sources)

    def rests(row: dict, question: Question) -> bool:  # type: ignore[type-arg]
        if question.id in target.questions:
            return True
        if any(_cites(c, gone, target.urls) for c in row["citations"] or ()):
            return True
        if any(h.source in gone for h in question.hits):
            return True
        return any(q.source in gone for r in question.replies.values() for q in r.quotes)

    for version in _versions(store, "answers", pinned):
        for batch in store.batches("answers", None, AT_ONCE, version):
            table = pa.Table.from_batches([batch])
            for row, question in zip(table.to_pylist(), arrow.question.records(table), strict=True):
                replies = question.replies.values()
                if rests(row, question):
                    found.answers[row["key"]] = question.id
                    found.asked.add(question.text)
                    continue
                if told(question.answer) or any(told(r.text) for r in replies):
                    found.doubtful[row["key"]] = question.id
                for quote in (q for r in replies for q in r.quotes if q.source in shared.sources):
                    spans = found.quoted.setdefault(quote.source, {})
                    spans.setdefault(quote.span, set()).add(row["key"])


def _corpus(store: Store, target: Target, pinned: dict[str, set[int]], found: FoundRows) -> None:
    for table in (t for t in tables(store) if t.startswith(OF_SOURCES)):
        some = Rows(table, "source", target.sources)
        if any(held(store, some, v) for v in _versions(store, table, pinned)):
            found.add(table, "source", set(target.sources))


def _decision(
    store: Store, target: Target, given: str, reason: str, found: FoundRows, told: Mentions, kept: Roots,
    pinned: dict[str, set[int]],
) -> ForgetDecision:  # fmt: skip
    some = [Rows(t, column, tuple(sorted(values))) for t, (column, values) in sorted(found.rows.items())]
    edited = [*some, *([Rows("questions", "id", tuple(sorted(found.cited)))] if found.cited else [])]
    here = [r for r in edited if any(held(store, r, v) for v in _versions(store, r.table, pinned))]
    dirty: dict[str, set[int]] = {}
    for r in here:
        now = store.version(r.table)
        older = {v for v in pinned[r.table] if v != now and held(store, r, v)}
        dirty.setdefault(r.table, set()).update(older)
    newest = {t: store.version(t) for t in dirty}
    touched = {t: {*versions, newest[t]} for t, versions in dirty.items()}
    releases = [r for r in kept.releases if any(r.tables.get(t) in vs for t, vs in touched.items())]
    stone = Tombstone(
        FORMAT, digest("forgotten", target.kind, target.name), target.kind, reason, time.time(),
        target.addresses, target.sources, tuple(digest(q) for q in target.questions),
    )  # fmt: skip
    notes = reads_with(store, {*target.questions, *found.cited}, bool(target.documents))
    return ForgetDecision(
        target, given, stone, tuple(r for r in some if r in here), tuple(sorted(found.cited)), newest,
        {t: tuple(sorted(v)) for t, v in dirty.items()}, tuple(r.id for r in releases), (), notes, (), (), (),
        tuple(sorted(told.runs)), tuple(sorted(told.rare)),
    )  # fmt: skip


def _holdings(store: Store, decision: ForgetDecision, kept: Roots) -> list[Holding]:
    """What goes, for people."""
    out = []
    for some in decision.rows:
        kind = "memo" if some.column == "key" and some.table != "answers" else "table"
        kind = "answers" if some.table == "answers" else kind
        older = len(decision.pinned.get(some.table, ()))
        also = f", and of {older} older versions that are named" if older else ""
        out.append(
            Holding(kind, some.table, held(store, some), f"rows go{also}; its indexes are built again")
        )
    if decision.cited:
        out.append(Holding("table", "questions", len(decision.cited), "lose the citation"))
    live = {r.id: r for r in kept.releases}
    for id in decision.releases:
        what = "ends" if id in decision.ended else "ends; a release without it takes its place"
        out.append(Holding("release", id, len(live[id].tables), f"{what} ({live[id].name})"))
    for trial in trials(store):
        if not {trial.release, trial.live}.isdisjoint(decision.releases):
            out.append(Holding("trial", trial.role, 1, f"ends: release {trial.release} or {trial.live} does"))
    for name, lines in held_segments(store.files, decision.target, decision.mentions).items():
        out.append(Holding("captured", name, lines, "lines go, and what users said of these answers"))
    for note in decision.notes:
        out.append(Holding("note", note, 1, "the files are read again when they are given again"))
    for other in decision.target.also:
        out.append(Holding("table", f"citation or document {other}", 1, "has the same page, and loses it"))
    return out
