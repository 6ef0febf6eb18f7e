"""Log of ingests: a note for each read of files, and the decision that a kill leaves behind.

Knows parts, commits and small files of a store; knows no reader.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from raypipe.core import config
from raypipe.core.config import Where
from raypipe.runs.pipeline.counters import forget_runs
from raypipe.runs.run_parts import ReplacedRows
from raypipe.store import AddedMeanwhile, Store, commit
from raypipe.store.files import INGESTED, RUNS
from raypipe.store.keep import abandon, tables, unfinished
from raypipe.store.parts import begun, sealed, unsealed
from raypipe.store.tables import INGEST_TABLES, OF_SOURCES

_DECISION = "ingest-"
_OUTDATED = ".outdated.json"
LOOKING_S = 20.0
"""Wait for another command that looks at the same folder: one that finds it unchanged ends in a second or
two, on a busy machine in ten."""
TABLES = (*INGEST_TABLES, "faults")  # in the order in which they are committed
REPLACING = tuple(t for t in INGEST_TABLES if t != "sources")


@dataclass(frozen=True, slots=True)
class IngestSummary:
    """Counts of one read of files, kept in the store so that the same bytes are read once."""

    fingerprint: str  # of the files; the digest of their faults
    questions: tuple[str, ...]  # ids, in file order
    counts: Mapping[str, int]  # readers.ReadCounts
    reasons: Mapping[str, int]  # why lines and pages were skipped -> how many
    again: bool = False  # True: the same bytes had been read before
    replaced: tuple[ReplacedRows, ...] = ()
    files: tuple[str, ...] = ()  # names
    documents: int = 0
    kind: str = "crag"  # of the data
    read_by: str = ""  # one process, or how many tasks


@dataclass(frozen=True, slots=True)
class Decision:
    """All that an ingest will put in: its parts are staged, and nothing of it is in a table yet."""

    run: str
    parts: Mapping[str, tuple[str, ...]]  # table -> parts that have rows
    outdated: tuple[str, ...]  # fingerprints of files some of whose rows are replaced
    summary: IngestSummary
    gone: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Table -> ids of rows that go: of files that a folder has no longer. With a source goes all that was
    made of it, so that it is not found any more; releases keep the versions that they name."""
    state: tuple[str, str] | None = None  # a small file of the store and what it says then; None: none


@contextmanager
def driving(store: Store, owner: str, wait_s: float = 0.0) -> Iterator[None]:
    """The driver's lease, once another gives it back within `wait_s`. What an ingest had decided when it was
    killed is done first."""
    with store.lease("driver", owner, wait_s=wait_s):
        for name in _decisions(store):
            _finish(store, name)
        yield


def merged(reads: Sequence[IngestSummary]) -> IngestSummary:
    """Several reads as one, under the fingerprint of the first."""
    counts, reasons = Counter[str](), Counter[str]()
    for read in reads:
        counts.update(read.counts)
        reasons.update(read.reasons)
    return replace(
        reads[0],
        questions=tuple(id for read in reads for id in read.questions),
        counts=dict(counts),
        reasons=dict(sorted(reasons.items())),
        again=all(read.again for read in reads),
        replaced=tuple(r for read in reads for r in read.replaced),
        files=tuple(name for read in reads for name in read.files),
        documents=sum(read.documents for read in reads),
    )


def noted(store: Store, fingerprint: str, kind: str | None = None) -> IngestSummary | None:
    """Returns what these files contained, if the store has read them and all of their rows are as they had
    them. Another `kind` of theirs is written down."""
    name = f"{INGESTED}/{fingerprint}.json"
    if _decisions(store) or (raw := store.files.read(name)) is None:
        return None
    tree = json.loads(raw)
    if kind is not None and tree.get("kind") != kind:
        tree["kind"] = kind
        store.files.write(name, json.dumps(tree).encode())
    return _summary(fingerprint, tree)


def notes(store: Store, outdated: bool) -> Iterator[IngestSummary]:
    """Yields what was noted of each read, of those that are outdated, or of the others."""
    for name in store.files.names(INGESTED):
        if name.endswith(_OUTDATED) == outdated:
            raw = store.files.read(f"{INGESTED}/{name}")
            if raw is not None:
                yield _summary(name.partition(".")[0], json.loads(raw))


def kinds_of(store: Store, questions: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Kind -> names of the files with that kind, of the reads that had these questions."""
    found: dict[str, tuple[str, ...]] = {}
    for note in with_questions(store, questions):
        found[note.kind] = (*found.get(note.kind, ()), *note.files)
    return found


def with_questions(store: Store, questions: Collection[str], but: str = "") -> Iterator[IngestSummary]:
    """The reads that had some of these questions, without that of fingerprint `but`. A read that is outdated
    counts for questions that no later one had."""
    left = set(questions)
    for outdated in (False, True):
        read = notes(store, outdated) if left else ()
        had = [n for n in read if n.fingerprint != but and not left.isdisjoint(n.questions)]
        yield from had
        left = left.difference(*(note.questions for note in had))


def reads_with(store: Store, questions: Collection[str], documents: bool) -> tuple[str, ...]:
    """Fingerprints of the reads that had some of these questions, or any documents."""
    asked = set(questions)
    read = notes(store, outdated=False)
    some = (n for n in read if (documents and n.documents) or not asked.isdisjoint(n.questions))
    return tuple(n.fingerprint for n in some)


def decide(store: Store, decision: Decision) -> None:
    """Writes a decision down, and does it. After a kill, `driving` does what is left."""
    name = f"{RUNS}/{_DECISION}{decision.summary.fingerprint}.json"
    store.files.write(name, sealed(json.dumps(asdict(decision))))
    _finish(store, name)


def _decisions(store: Store) -> list[str]:
    return [f"{RUNS}/{n}" for n in store.files.names(RUNS) if n.startswith(_DECISION)]


def _finish(store: Store, name: str) -> None:
    """Does what is left of a decision. One that is damaged is dropped: its files are read again."""
    if (text := unsealed(store.files.read(name) or b"")) is not None:
        tree = json.loads(text)
        for fingerprint in tree["outdated"]:
            outdate(store, fingerprint)
        try:
            for table in (t for t in TABLES if t in tree["parts"]):
                commit(store, table, tree["run"], tree["parts"][table], replace=table in REPLACING)
        except AddedMeanwhile:
            store.files.remove(name)
            raise
        _remove(store, tree.get("gone", {}))
        if state := tree.get("state"):
            store.files.write(state[0], state[1].encode())
        note = {k: v for k, v in tree["summary"].items() if k not in ("fingerprint", "again")}
        place = f"{INGESTED}/{tree['summary']['fingerprint']}"
        store.files.write(f"{place}.json", json.dumps(note).encode())
        store.files.remove(f"{place}{_OUTDATED}")
    store.files.remove(name)


def _remove(store: Store, gone: Mapping[str, list[str]]) -> None:
    """Takes rows out of the newest versions. Sources go last: what a kill leaves is found by them."""
    if sources := gone.get("sources"):
        # Work of killed runs that these are part of is given up: its commit would bring them back. What else
        # it had is planned again.
        for name in (n for n in unfinished(store) if not n.startswith(_DECISION)):
            run = begun(store, name)
            if run is not None and not set(sources).isdisjoint(run.ids):
                abandon(store, name)
                forget_runs(store, [run.name])
        for table in (t for t in tables(store) if t.startswith(OF_SOURCES)):
            store.forget(table, "source", sources)
    for table in sorted(gone, reverse=True):
        store.forget(table, "id", gone[table])


def outdate(store: Store, fingerprint: str) -> None:
    """Some rows of these files are replaced: the same bytes are read again when they are asked for."""
    place = f"{INGESTED}/{fingerprint}"
    if (raw := store.files.read(f"{place}.json")) is not None:
        store.files.write(f"{place}{_OUTDATED}", raw)
        store.files.remove(f"{place}.json")


def _summary(fingerprint: str, tree: Mapping[str, Any]) -> IngestSummary:
    whole = {**tree, "fingerprint": fingerprint, "again": True}
    return config.build(IngestSummary, whole, Where(f"{INGESTED}/{fingerprint}.json"))
