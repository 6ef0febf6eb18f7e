"""Files into a store: every line read once, equal sources stored once, all or nothing.

What is read is staged in parts as it comes, so memory holds a part and the ids of questions, however large
the files are. A damaged file raises before anything is committed. When all of it is staged, one small file
says so (`ingest_log`): from then on the new state holds, and the next driver does what a killed process has
left. So a kill leaves the old rows of all tables or the new ones of all tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from raypipe import readers
from raypipe.core.bounded_rows import DiskMap
from raypipe.core.environment import cores
from raypipe.core.errors import DataError
from raypipe.core.progress import Progress
from raypipe.core.records import digest
from raypipe.readers import BadLine, Format, ReadCounts, Row
from raypipe.readers.documents.reader import read_by
from raypipe.readers.formats import OWN_KIND, kind_of
from raypipe.runs.pipeline import ingest_log, ingest_staging
from raypipe.runs.run_parts import ReplacedRows
from raypipe.store import Store
from raypipe.store.files import need

PART_BYTES = 16 << 20  # of records per part, one Lance fragment: it takes three times as much memory
ROW_BYTES = 500  # of a record on top of its content, about
READER = "5"  # raised when the readers make other rows of the same bytes


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """Files whose rows are staged, all of them sound."""

    run: str  # names the parts
    rows: ingest_staging.StagedRows
    counts: ReadCounts
    left: Mapping[str, tuple[str, ...]]  # table -> ids of rows that go
    read_by: str = "one process"  # what read them, for people; "": nothing is said of it
    end: Callable[[], object] = lambda: None  # called once the rows are in the tables


FileReading: TypeAlias = Callable[[Store, str, Sequence[Path], Format, Progress], StagedFiles]
"""Reads files (the second: their fingerprint) and stages their rows."""


def ingest(
    store: Store,
    paths: Sequence[Path],
    format: Format,
    progress: Progress,
    before: Callable[[], object] = lambda: None,
    kind: str | None = None,
    reading: FileReading | None = None,
) -> ingest_log.IngestSummary:
    """Reads files into a store. The same bytes again change nothing and are not decoded. `before` is called
    ahead of the first line that is read. `kind` of the data is noted with it; None: as noted, else the
    format's. `reading` stages the rows; None: `read_here`.

    Rows take the place of older rows with their ids, and the summary says of which. Raises ConfError for an
    unknown format and DataError for a missing, truncated or mislabelled file, and where no line of the files
    can be read; then the store is as it was.
    """
    of = fingerprint(paths, format)
    if (known := ingest_log.noted(store, of, kind)) is not None:
        return known
    with ingest_log.driving(store, f"ingest {paths[0]}"):
        if (known := ingest_log.noted(store, of, kind)) is not None:  # a killed process had read them
            return known
        before()
        need(store.files, 0, "reading files")
        read = read_here if reading is None else reading
        found = read(store, of, paths, format, progress)
        readers.require_rows(paths, found.counts, found.rows.bad_lines())
        if found.rows.refused and not found.rows.kept:
            refused = "; ".join(found.rows.refused)
            raise DataError(f"{paths[0]}: nothing of it may be stored: {refused}")
        names = tuple(file.name for file in readers.files_of(paths, format))
        decided = decision(store, of, found, names, kind=kind or kind_of(format))
        ingest_log.decide(store, decided)
        found.end()
    return decided.summary


def read_here(
    store: Store, of: str, paths: Sequence[Path], format: Format, progress: Progress
) -> StagedFiles:
    """Reads files in this process, one after the other."""
    counts, staging = ReadCounts(), ingest_staging.Staging(store, of)
    with progress.task("read", "MB", mib(readers.size(paths, format))) as task:

        def watched() -> Iterator[Row]:
            for row in readers.open(paths, format, counts):
                task.reach(counts.bytes_read >> 20)
                yield row
            task.reach(mib(counts.bytes_read))

        for batch in batches(watched()):
            staging.add(batch)
    return StagedFiles(staging.run, staging.rows, counts, staging.left())


def fingerprint(paths: Sequence[Path], format: Format) -> str:
    """Names the bytes of the files, of those that their rows name, and the reader of them."""

    def blake2b(file: Path) -> str:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "blake2b").hexdigest()

    named = readers.referenced(paths, format)
    found = [*readers.files_of(paths, format), *named]
    with ThreadPoolExecutor(cores()) as pool:  # the digest of a block holds no lock of the interpreter
        digests = pool.map(blake2b, found)
        parts = [part for file, bytes_ in zip(found, digests, strict=True) for part in (file.name, bytes_)]
    builds = sorted(set(filter(None, map(read_by, named))))
    return digest(readers.reader_id(format), READER, *builds, *parts)


def mib(size: int) -> int:
    """Bytes as MiB, begun ones counted, so that a small file is no file of 0 MB."""
    return -(-size >> 20)


def batches(rows: Iterator[Row]) -> Iterator[ingest_staging.IngestBatch]:
    """Batches of about PART_BYTES, each source once in all of them."""
    seen = DiskMap()
    batch, size = ingest_staging.IngestBatch(), 0
    for row in rows:
        fresh = readers.unseen(row.sources, seen)
        batch.sources += fresh
        batch.questions += [row.question] if row.question else []
        batch.golds += [row.gold] if row.gold else []
        batch.documents += [row.document] if row.document else []
        batch.layouts += [row.layout] if row.layout else []
        batch.faults += [(ingest_staging.fault_id(row.where, i, f), f) for i, f in enumerate(row.faults)]
        cited = len(row.question.citations or ()) if row.question else 0
        size += sum(len(s.content) for s in fresh) + ROW_BYTES * (1 + len(fresh) + cited)
        if size >= PART_BYTES:
            yield batch
            batch, size = ingest_staging.IngestBatch(), 0
    yield batch


def bad_lines(store: Store, of: str) -> list[BadLine]:
    """The first lines of files (`of`: their fingerprint) that could not be read, or lost a page."""
    found = store.scan("faults", filter=f"digest = '{of}'", limit=ingest_staging.BAD_SHOWN)
    return [ingest_staging.bad_line(r["id"], r) for r in found.to_pylist()]


def decision(
    store: Store,
    of: str,
    found: StagedFiles,
    files: tuple[str, ...],
    kind: str = OWN_KIND,
) -> ingest_log.Decision:
    """All that was read under a fingerprint (`of`) and what becomes of it. `kind`: of the data."""
    rows = found.rows
    ids, documents = tuple(rows.replaced), rows.documents_replaced
    asked = {n.fingerprint: n.files for n in ingest_log.with_questions(store, ids, of)}
    # No note is kept of the ids of documents: each read that had some counts.
    read = ingest_log.notes(store, outdated=False) if documents else ()
    had = {n.fingerprint: n.files for n in read if n.documents and n.fingerprint != of}
    of_asked, of_had = (tuple(dict.fromkeys(chain(*by.values()))) for by in (asked, had))
    replaced = (
        ReplacedRows("questions", len(ids), ids[: ingest_staging.SHOWN], of_asked),
        ReplacedRows("documents", documents, tuple(rows.first_documents), of_had),
    )
    summary = ingest_log.IngestSummary(
        of,
        tuple(rows.questions),
        asdict(found.counts),
        dict(sorted(rows.reasons.items())),
        False,
        tuple(r for r in replaced if r.rows),
        files,
        rows.documents,
        kind,
        found.read_by,
    )
    parts = {table: tuple(names) for table, names in rows.parts.items()}
    return ingest_log.Decision(found.run, parts, tuple({**asked, **had}), summary, found.left)
