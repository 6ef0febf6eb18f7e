"""Log of ingests in the store: a note of each finished read of files, and decisions that are not finished.

A decision is one small file that lists the staged parts of a read. It is written before the parts are
committed, so that after a kill the next driver can finish the commits (`driving`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any

from raypipe.core import config
from raypipe.core.config import Where
from raypipe.runs.pipeline.counters import forget_runs
from raypipe.runs.run_parts import ReplacedRows
from raypipe.store import AddedMeanwhile, Store, commit
from raypipe.store.files import INGESTED, RUNS
from raypipe.store.housekeeping import abandon, tables, unfinished
from raypipe.store.parts import begun, sealed, unsealed
from raypipe.store.tables import INGEST_TABLES, OF_SOURCES

_DECISION = "ingest-"
_OUTDATED = ".outdated.json"
LOOKING_S = 20.0
"""Wait for another command that reads the same folder. If the folder is unchanged, that command ends in a
second or two, on a busy machine in ten."""


@dataclass(frozen=True, slots=True)
class IngestSummary:
    """Summary of one read of files. The store keeps it as a note, so that equal bytes are not read twice."""

    fingerprint: str  # of the files, or id of the folder; also the `digest` of their faults
    questions: tuple[str, ...]  # ids, in file order
    counts: Mapping[str, int]  # fields of readers.ReadCounts
    reasons: Mapping[str, int]  # reason -> number of lines and pages skipped for it
    again: bool = False  # True: the read stored nothing, since the same bytes were read before
    replaced: tuple[ReplacedRows, ...] = ()  # older rows that this read replaced
    files: tuple[str, ...] = ()  # names
    documents: int = 0  # documents read
    kind: str = "crag"  # kind of the data
    read_by: str = ""  # "one process", or a number of tasks


@dataclass(frozen=True, slots=True)
class Decision:
    """Changes that an ingest is about to commit. Its parts are staged; no table shows them yet."""

    run: str
    parts: Mapping[str, tuple[str, ...]]  # table -> parts with rows
    outdated: tuple[str, ...]  # fingerprints of earlier reads, some of whose rows are replaced
    summary: IngestSummary
    gone: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Table -> ids of rows to delete, of removed files and replaced documents. All rows made of a deleted
    source are deleted, too, so that no search finds it. Releases keep the versions that they name."""
    state: tuple[str, str] | None = None  # (name, content) of a small file to write; None: no file


@contextmanager
def driving(store: Store, owner: str, wait_s: float = 0.0) -> Iterator[None]:
    """Holds the driver's lease (one driver per store) during the block. Waits for the lease up to `wait_s`
    seconds. Before the block, finishes the decisions of killed ingests."""
    with store.lease("driver", owner, wait_s=wait_s):
        for name in _decisions(store):
            _finish(store, name)
        yield


def merged(reads: Sequence[IngestSummary]) -> IngestSummary:
    """Merges several reads into one summary, with the fingerprint and kind of the first."""
    counts, reasons = Counter[str](), Counter[str]()
    for read in reads:
        counts.update(read.counts)
        reasons.update(read.reasons)
    return replace(
        reads[0],
        questions=tuple(chain.from_iterable(read.questions for read in reads)),
        counts=dict(counts),
        reasons=dict(sorted(reasons.items())),
        again=all(read.again for read in reads),
        replaced=tuple(chain.from_iterable(read.replaced for read in reads)),
        files=tuple(chain.from_iterable(read.files for read in reads)),
        documents=sum(read.documents for read in reads),
    )


def noted(store: Store, fingerprint: str, kind: str | None = None) -> IngestSummary | None:
    """Returns the note of the files with this fingerprint, and stores a new `kind` in it. Returns None if the
    files were not read, if the note is outdated, or while any decision of the store is unfinished."""
    name = f"{INGESTED}/{fingerprint}.json"
    if _decisions(store) or (raw := store.files.read(name)) is None:
        return None
    tree = json.loads(raw)
    if kind is not None and tree.get("kind") != kind:
        tree["kind"] = kind
        store.files.write(name, json.dumps(tree).encode())
    return _summary(fingerprint, tree)


def notes(store: Store, outdated: bool) -> Iterator[IngestSummary]:
    """Yields the notes of all outdated reads, or with `outdated` False of all current reads."""
    for name in (n for n in store.files.names(INGESTED) if n.endswith(_OUTDATED) == outdated):
        if (raw := store.files.read(f"{INGESTED}/{name}")) is not None:
            yield _summary(name.partition(".")[0], json.loads(raw))


def kinds_of(store: Store, questions: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Maps each kind of data to the names of its files, for the reads that had some of these questions."""
    files: dict[str, tuple[str, ...]] = {}
    for note in with_questions(store, questions):
        files[note.kind] = (*files.get(note.kind, ()), *note.files)
    return files


def with_questions(store: Store, questions: Collection[str], but: str = "") -> Iterator[IngestSummary]:
    """Yields the notes of reads that had some of these questions, except the read with fingerprint `but`. An
    outdated read is included only for questions that no current read had."""
    unseen = set(questions)
    for outdated in (False, True):
        read = notes(store, outdated) if unseen else ()
        had = [n for n in read if n.fingerprint != but and not unseen.isdisjoint(n.questions)]
        yield from had
        unseen = unseen.difference(*(note.questions for note in had))


def reads_with(store: Store, questions: Collection[str], documents: bool) -> tuple[str, ...]:
    """Returns the fingerprints of current reads that had some of these questions. With `documents`, reads
    that had any document are included."""
    wanted, read = set(questions), notes(store, outdated=False)
    some = (n for n in read if (documents and n.documents) or not wanted.isdisjoint(n.questions))
    return tuple(n.fingerprint for n in some)


def decide(store: Store, decision: Decision) -> None:
    """Writes a decision to the store, then carries it out. After a kill, `driving` finishes it."""
    name = f"{RUNS}/{_DECISION}{decision.summary.fingerprint}.json"
    store.files.write(name, sealed(json.dumps(asdict(decision))))
    _finish(store, name)


def _decisions(store: Store) -> list[str]:
    return [f"{RUNS}/{n}" for n in store.files.names(RUNS) if n.startswith(_DECISION)]


def _finish(store: Store, name: str) -> None:
    """Carries out what is left of a decision. Drops a damaged decision; its files will be read again. If
    another run has added rows of the decision meanwhile, drops the decision and raises AddedMeanwhile."""
    if (text := unsealed(store.files.read(name) or b"")) is not None:
        tree = json.loads(text)
        for fingerprint in tree["outdated"]:
            outdate(store, fingerprint)
        try:
            for table in (*INGEST_TABLES, "faults"):  # in the order of their commits
                if table in tree["parts"]:
                    replaces = table not in ("sources", "faults")
                    commit(store, table, tree["run"], tree["parts"][table], replace=replaces)
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
    """Deletes rows in `gone` (table -> ids) in the newest versions, rows made of deleted sources first."""
    if sources := gone.get("sources"):
        # Abandons killed runs with these sources, since their commits would bring the sources back. The other
        # rows of these runs are planned again.
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
    """Marks a read as outdated: some of its rows were replaced, so its files are read again when given."""
    place = f"{INGESTED}/{fingerprint}"
    if (raw := store.files.read(f"{place}.json")) is not None:
        store.files.write(f"{place}{_OUTDATED}", raw)
        store.files.remove(f"{place}.json")


def _summary(fingerprint: str, tree: Mapping[str, Any]) -> IngestSummary:
    whole = {**tree, "fingerprint": fingerprint, "again": True}
    return config.build(IngestSummary, whole, Where(f"{INGESTED}/{fingerprint}.json"))
