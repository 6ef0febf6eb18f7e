"""Files into a store: every line read once, equal sources stored once, all or nothing.

Questions, golds and documents are small and are put at the end; sources are written in parts as they come and
committed with them. A damaged file raises before anything is committed, so no half of it is ever searched.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from raypipe import readers
from raypipe.core import arrow
from raypipe.core.records import Document, Fault, Gold, Question, Source, digest
from raypipe.pipeline.dead_letters import faults_table
from raypipe.readers import BadLine, Format, ReadCounts, Row
from raypipe.report.progress import Progress, ProgressTask
from raypipe.store import Store, commit, put, write_part
from raypipe.store.disk_space import need
from raypipe.store.layout import INGESTED
from raypipe.store.sizes import write_sizes

PART_BYTES = 16 << 20  # of source content per part, one Lance fragment: it takes three times as much memory
BAD_SHOWN = 3  # lines that could not be read, in messages; the table of faults has all
READER = "2"  # raised when the readers make other rows of the same bytes


@dataclass(frozen=True, slots=True)
class IngestSummary:
    """Counts of one read of files, kept in the store so that the same bytes are read once."""

    fingerprint: str  # of the files; the digest of their faults
    questions: tuple[str, ...]  # ids, in file order
    counts: dict[str, int]  # readers.ReadCounts
    reasons: dict[str, int]  # why lines and pages were skipped -> how many
    again: bool = False  # True: the same bytes had been read before


@dataclass(slots=True)
class _Kept:
    questions: list[Question] = field(default_factory=list)
    golds: list[Gold] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    faults: list[tuple[str, Fault]] = field(default_factory=list)  # id, trouble


def ingest(
    store: Store,
    paths: Sequence[Path],
    format: Format,
    progress: Progress,
    before: Callable[[], object] = lambda: None,
) -> IngestSummary:
    """Reads files into a store. The same bytes again change nothing and are not decoded. `before` is called
    ahead of the first line that is read.

    Raises ConfError for an unknown format and DataError for a missing, truncated or mislabelled file, and
    where no line of the files can be read; then the store is as it was.
    """
    of = fingerprint(paths, format)
    name = f"{INGESTED}/{of}.json"
    if (raw := store.files.read(name)) is not None:
        tree = json.loads(raw)
        return IngestSummary(of, tuple(tree["questions"]), tree["counts"], tree["reasons"], again=True)
    before()
    counts, kept = ReadCounts(), _Kept()
    with store.lease("driver", f"ingest {paths[0]}"):
        need(store, 0, "reading files")
        run = uuid.uuid4().hex
        with progress.task("read", "MB", readers.size(paths, format) >> 20) as task:
            rows = _watched(readers.open(paths, format, counts), counts, task)
            parts = [_write(store, run, i, some) for i, some in enumerate(_sources(rows, kept))]
        readers.require_rows(paths, counts, [_bad_line(id, asdict(f)) for id, f in kept.faults[:BAD_SHOWN]])
        commit(store, "sources", run, parts)
        replaced = _put(store, kept, of)
        if replaced:  # records of other files may name rows that were replaced just now
            store.files.remove_folder(INGESTED)
        ids = tuple(q.id for q in kept.questions)
        reasons = dict(sorted(Counter(fault.reason for _, fault in kept.faults).items()))
        body = {"questions": ids, "counts": asdict(counts), "reasons": reasons}
        store.files.write(name, json.dumps(body).encode())
    return IngestSummary(of, ids, asdict(counts), reasons)


def fingerprint(paths: Sequence[Path], format: Format) -> str:
    """Names the bytes of the files and the reader of them."""
    parts = [readers.reader_id(format), READER]
    for file in readers.files_of(paths, format):
        with file.open("rb") as stream:
            parts += [file.name, hashlib.file_digest(stream, "blake2b").hexdigest()]
    return digest(*parts)


def _watched(rows: Iterator[Row], counts: ReadCounts, task: ProgressTask) -> Iterator[Row]:
    for row in rows:
        task.advance((counts.bytes_read >> 20) - task.done)
        yield row
    task.advance((counts.bytes_read >> 20) - task.done)


def _sources(rows: Iterator[Row], kept: _Kept) -> Iterator[list[Source]]:
    """Batches of about PART_BYTES of sources, each source once; the rest of each row goes to `kept`."""
    seen: set[str] = set()
    batch: list[Source] = []
    size = 0
    for row in rows:
        kept.questions += [row.question] if row.question else []
        kept.golds += [row.gold] if row.gold else []
        kept.documents += [row.document] if row.document else []
        kept.faults += [(_fault_id(row.where, i, f), f) for i, f in enumerate(row.faults)]
        fresh = readers.unseen(row.sources, seen)
        batch += fresh
        size += sum(len(s.content) for s in fresh)
        if size >= PART_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _fault_id(where: str, number: int, fault: Fault) -> str:
    """Names one trouble of one line: another trouble at the same place, after an edit, is another row."""
    return f"{where}#{digest(str(number), fault.reason, fault.detail)[:8]}"


def bad_lines(store: Store, of: str) -> list[BadLine]:
    """The first lines of files (`of`: their fingerprint) that could not be read, or lost a page."""
    found = store.dataset("faults").to_table(filter=f"digest = '{of}'", limit=BAD_SHOWN)
    return [_bad_line(r["id"], r) for r in found.to_pylist()]


def _bad_line(id: str, fault: Mapping[str, Any]) -> BadLine:
    return BadLine(id.rpartition("#")[0], fault["reason"], fault["detail"])


def _write(store: Store, run: str, number: int, sources: list[Source]) -> str:
    missing = set(store.missing("sources", "id", [s.id for s in sources]))
    part = f"{number:06d}"
    table = arrow.source.table(s for s in sources if s.id in missing)
    write_sizes(store, f"{run}-{part}", table)
    write_part(store, "sources", run, part, table, {})
    return part


def _put(store: Store, kept: _Kept, of: str) -> int:
    """Puts everything but the sources; says how many rows replaced other rows of the same id."""
    done = [
        put(store, "questions", arrow.question.table(kept.questions)),
        put(store, "golds", arrow.gold.table(kept.golds)),
        put(store, "documents", arrow.document.table(kept.documents)),
    ]
    _put_faults(store, kept.faults, of)
    return sum(d.replaced for d in done)


def _put_faults(store: Store, faults: list[tuple[str, Fault]], of: str) -> None:
    """Adds the troubles of files (`of`: their fingerprint) that a killed ingest has not added already."""
    there = set(store.rows("faults", "digest", [of], ["id"])["id"].to_pylist())
    rows = faults_table([(id, asdict(fault), 1, of) for id, fault in faults if id not in there], "ingest")
    if rows.num_rows:
        run = uuid.uuid4().hex
        write_part(store, "faults", run, "0", rows, {})
        commit(store, "faults", run, ["0"])
