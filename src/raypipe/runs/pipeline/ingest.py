"""Ingest of files into a store, all or nothing: stores equal sources once.

Rows are staged in parts while files are read, so memory holds one part and the ids of questions. A damaged
file raises before anything is committed. Once all rows are staged, one small file records the decision to
commit them (`ingest_log`). A kill before the decision leaves the old rows in all tables. After a later kill,
the next driver finishes the commits, so all tables get the new rows.
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

PART_BYTES = 16 << 20  # of records per part (one Lance fragment), which takes three times as much memory
ROW_BYTES = 500  # approximate size of a record besides its content
READER = "5"  # version of the readers; raise it if they make different rows of the same bytes


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """Files that were read without an error, and whose rows are staged."""

    run: str  # names the parts
    rows: ingest_staging.StagedRows
    counts: ReadCounts
    left: Mapping[str, tuple[str, ...]]  # table -> ids of rows to delete
    read_by: str = "one process"  # reader of the files, for summaries; "": not mentioned
    end: Callable[[], object] = lambda: None  # called once the rows are committed


FileReading: TypeAlias = Callable[[Store, str, Sequence[Path], Format, Progress], StagedFiles]
"""(store, fingerprint of the files, their paths, format, progress) -> the files with their rows staged."""


def ingest(
    store: Store,
    paths: Sequence[Path],
    format: Format,
    progress: Progress,
    before: Callable[[], object] = lambda: None,
    kind: str | None = None,
    reading: FileReading | None = None,
) -> ingest_log.IngestSummary:
    """Reads files into a store, and returns a summary. Files with the same names and bytes as in an earlier
    read are not decoded, unless other files have replaced some of their rows since. A row replaces a stored
    row with the same id, and the summary reports it.

    `before` is called before the first line is read. `kind` is the kind of the data, for the note of the
    read; None: the kind noted before, else the format's. `reading` stages the rows; None: `read_here`. Raises
    ConfError for an unknown format, and DataError if a file is missing, truncated or mislabelled, if no line
    can be read, or if tombstones refuse all rows. After these errors no row is stored."""
    of = fingerprint(paths, format)
    if (known := ingest_log.noted(store, of, kind)) is not None:
        return known
    with ingest_log.driving(store, f"ingest {paths[0]}"):
        if (known := ingest_log.noted(store, of, kind)) is not None:  # `driving` finished a killed read
            return known
        before()
        need(store.files, 0, "reading files")
        found = (reading or read_here)(store, of, paths, format, progress)
        readers.require_rows(paths, found.counts, found.rows.bad_lines())
        if found.rows.refused and not found.rows.kept:
            refused = "; ".join(found.rows.refused)
            raise DataError(f"{paths[0]}: nothing was stored, since all of it is refused: {refused}")
        names = tuple(file.name for file in readers.files_of(paths, format))
        decided = decision(store, of, found, names, kind=kind or kind_of(format))
        ingest_log.decide(store, decided)
        found.end()
    return decided.summary


def read_here(
    store: Store, of: str, paths: Sequence[Path], format: Format, progress: Progress
) -> StagedFiles:
    """Reads files in this process, one after the other, and stages their rows."""
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
    """Returns a digest of the readers and of the names and bytes of files, also of files named in rows."""

    def blake2b(file: Path) -> str:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "blake2b").hexdigest()

    named = readers.referenced(paths, format)
    found = [*readers.files_of(paths, format), *named]
    with ThreadPoolExecutor(cores()) as pool:  # hashing a block releases the interpreter's lock
        digests = pool.map(blake2b, found)
        parts = [part for file, bytes_ in zip(found, digests, strict=True) for part in (file.name, bytes_)]
    builds = sorted(set(filter(None, map(read_by, named))))
    return digest(readers.reader_id(format), READER, *builds, *parts)


def mib(size: int) -> int:
    """Converts bytes to MiB, rounded up, so that a small file has at least 1."""
    return -(-size >> 20)


def batches(rows: Iterator[Row]) -> Iterator[ingest_staging.IngestBatch]:
    """Yields batches of about PART_BYTES. Each source is in one batch only."""
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
    """Returns the first BAD_SHOWN faulty lines and pages of the read with the fingerprint `of`."""
    rows = store.scan("faults", filter=f"digest = '{of}'", limit=ingest_staging.BAD_SHOWN)
    return [ingest_staging.bad_line(r["id"], r) for r in rows.to_pylist()]


def decision(
    store: Store, of: str, found: StagedFiles, files: tuple[str, ...], kind: str = OWN_KIND
) -> ingest_log.Decision:
    """Makes the record of what the commit of some read files will change. `of` is the files' fingerprint,
    `kind` the kind of their data."""
    rows = found.rows
    ids, documents = tuple(rows.replaced), rows.documents_replaced
    asked = {n.fingerprint: n.files for n in ingest_log.with_questions(store, ids, of)}
    # Notes do not contain ids of documents, so every read with documents may have had the replaced documents.
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
        replaced=tuple(r for r in replaced if r.rows),
        files=files,
        documents=rows.documents,
        kind=kind,
        read_by=found.read_by,
    )
    parts = {table: tuple(names) for table, names in rows.parts.items()}
    return ingest_log.Decision(found.run, parts, tuple({**asked, **had}), summary, found.left)
