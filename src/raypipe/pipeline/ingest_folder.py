"""A folder of files into a store: only what changed is read, what was removed goes.

The store keeps what each file was when it was read: size, time, inode, digest, the identity of its reader,
and what became of it. A file whose state is equal is not opened; one whose bytes are equal is not read.
Documents of files that changed are replaced, those of removed files go with all that was made of them, in one
decision (`ingest_log`). So questions about the whole store search the folder as it was read last.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

from raypipe.core.errors import DataError
from raypipe.core.records import Document, Fault, Layout, Source, digest, source_id
from raypipe.pipeline.ingest import PART_BYTES, ROW_BYTES, StagedFiles, decision
from raypipe.pipeline.ingest_log import IngestSummary, decide, driving
from raypipe.pipeline.ingest_staging import IngestBatch, Staging, fault_id, named_elsewhere
from raypipe.pipeline.tombstones import REASON, Tombstones, tombstones
from raypipe.readers.documents import DOCUMENT_LIMITS, DocumentReader, FileText, FoundFile, reader_of, walk
from raypipe.readers.documents.walk import content_digest, fresh_bytes
from raypipe.readers.rows import ReadCounts, UnusableLine
from raypipe.report.progress import Progress
from raypipe.store import Store
from raypipe.store.files import need
from raypipe.store.layout import FOLDERS

UNREAD = "none"  # kind of a file that no reader takes


@dataclass(frozen=True, slots=True)
class FileState:
    """What a file was when it was read, and what became of it."""

    seen: tuple[int, int, int]  # size in bytes, mtime in ns, inode
    content: str  # digest of its bytes; "": it was not opened
    reader: str  # identity
    document: str = ""  # id; "": there is none
    source: str = ""
    faults: tuple[str, ...] = ()  # their ids
    transient: bool = False  # True: it is read again, whatever it is


@dataclass(slots=True)
class _Read:
    """One read of a folder."""

    of: str  # names the folder; the digest of its faults
    root: Path
    before: dict[str, FileState]
    tombstones: Tombstones
    counts: ReadCounts = field(default_factory=ReadCounts)
    now: dict[str, FileState] = field(default_factory=dict)


def folder_id(root: Path) -> str:
    """Names a folder, or a file that is given alone."""
    return digest("files", str(root.absolute()))


def ingest_folder(store: Store, root: Path, globs: Sequence[str], progress: Progress) -> IngestSummary:
    """Reads the files of a folder that are new or changed, and takes out those that are gone.

    `globs` as in `readers.documents.walk`. Raises DataError for a folder that is not there, and where no file
    of it can be read; then the store is as it was.
    """
    of = folder_id(root)
    with driving(store, f"ingest {root}"):
        need(store.files, 0, "reading files")
        read = _Read(of, root, _known(store, of), Tombstones(tombstones(store)))
        files = list(walk(root, globs, DOCUMENT_LIMITS))
        staging = Staging(store, of, "files")
        for batch in _batches(read, files, progress):
            staging.add(batch)
        read.counts.removed_files = len(read.before.keys() - read.now.keys())
        _require_documents(root, read, staging)
        state = json.dumps(
            {"root": str(root.absolute()), "files": {n: asdict(f) for n, f in read.now.items()}}
        )
        found = StagedFiles(staging.run, staging.rows, read.counts, _gone(store, read), read_by="")
        decided = decision(store, of, found, (root.name,), (_state_file(of), state))
        # What a changed file replaces is its own: no other read lost anything.
        again = not (decided.parts or decided.gone)
        documents = sum(bool(f.document) for f in read.now.values())
        summary = replace(decided.summary, replaced=(), again=again, documents=documents)
        decide(store, replace(decided, outdated=(), summary=summary))
    return summary


def _state_file(of: str) -> str:
    return f"{FOLDERS}/{of}.json"


def _known(store: Store, of: str) -> dict[str, FileState]:
    """The files of a folder as they were read last."""
    raw = store.files.read(_state_file(of))
    files = json.loads(raw)["files"] if raw else {}
    return {
        n: FileState(**{**f, "seen": tuple(f["seen"]), "faults": tuple(f["faults"])})
        for n, f in files.items()
    }


def _batches(read: _Read, files: Sequence[FoundFile], progress: Progress) -> Iterator[IngestBatch]:
    batch, size, sources = IngestBatch(), 0, set[str]()
    reader = DocumentReader()
    try:
        with progress.task("read", "files", len(files)) as task:
            for file in files:
                read.counts.files += 1
                size += _file(read, file, reader, batch, sources)
                task.advance(1)
                if size >= PART_BYTES:
                    yield batch
                    batch, size = IngestBatch(), 0
        yield batch
    finally:
        reader.close()


def _file(read: _Read, file: FoundFile, reader: DocumentReader, batch: IngestBatch, sources: set[str]) -> int:
    """Puts a file into the batch, unless it is as it was; the bytes that it takes there."""
    old = read.before.get(file.name)
    if old is not None and file.trouble is None and old.seen == file.state and _holds(old):
        return _unchanged(read, file, old)
    content = ""
    try:
        if file.trouble is not None:
            raise file.trouble
        data = fresh_bytes(file)
        content = content_digest(data)
        if old is not None and old.content == content and _holds(old):
            return _unchanged(read, file, old)
        text = reader.read(file.name, data)
        _require_allowed(read, file, text)
    except UnusableLine as e:
        return _refused(read, file, content, e.fault, batch)
    read.counts.bytes_read += file.size
    return _document(read, file, content, text, batch, sources)


def _holds(old: FileState) -> bool:
    """Whether the same bytes would be read as they were then."""
    return not old.transient and old.reader == reader_of(old.reader.partition("/")[0])


def _unchanged(read: _Read, file: FoundFile, old: FileState) -> int:
    read.counts.unchanged_files += 1
    read.now[file.name] = replace(old, seen=file.state)
    return 0


def _refused(read: _Read, file: FoundFile, content: str, fault: Fault, batch: IngestBatch) -> int:
    """Records a file that has no document."""
    id = fault_id(_where(read, file), 0, fault)
    old = read.before.get(file.name)
    now = FileState(file.state, content, reader_of(UNREAD), "", "", (id,), fault.transient)
    if old == now:
        return _unchanged(read, file, old)
    read.now[file.name] = now
    read.counts.lines += 1
    read.counts.faults += 1
    batch.faults.append((id, fault))
    return ROW_BYTES


def _require_allowed(read: _Read, file: FoundFile, text: FileText) -> None:
    """Raises UnusableLine for a file that a tombstone refuses, by its place or by its text."""
    stone = read.tombstones.address(_document_id(read, file))
    stone = stone or read.tombstones.source(source_id(text.source_kind, text.content))
    if stone is not None:
        raise UnusableLine(REASON, stone.says())


def _document_id(read: _Read, file: FoundFile) -> str:
    return f"{read.of[:8]}/{quote(file.name)}"


def _document(
    read: _Read, file: FoundFile, content: str, text: FileText, batch: IngestBatch, sources: set[str]
) -> int:
    id = _document_id(read, file)
    title = text.title or Path(file.name).stem
    source = Source(source_id(text.source_kind, text.content), text.source_kind, text.content)
    faults = [(fault_id(f"{_where(read, file)}#page={n}", n, fault), fault) for n, fault in text.faults]
    read.now[file.name] = FileState(
        file.state, content, reader_of(text.kind), id, source.id, tuple(i for i, _ in faults),
        any(fault.transient for _, fault in faults),
    )  # fmt: skip
    read.counts.lines += 1
    read.counts.rows += 1
    read.counts.page_faults += len(faults)
    read.counts.protected_files += text.protected
    read.counts.reordered_pages += text.repaired
    batch.documents.append(Document(id, title, source.id))
    batch.layouts.append(Layout(id, source.id, quote(file.name), title, text.pages, text.sections))
    batch.faults += faults
    if source.id in sources:
        return ROW_BYTES
    sources.add(source.id)
    batch.sources.append(source)
    return len(text.content) + ROW_BYTES * (2 + len(text.pages) // 8)


def _where(read: _Read, file: FoundFile) -> str:
    """Names a file among dead letters."""
    return f"{read.root.name}/{file.name}" if read.root.is_dir() else file.name


def _require_documents(root: Path, read: _Read, staging: Staging) -> None:
    """Raises DataError where a folder has no file that can be read."""
    if any(f.document for f in read.now.values()):
        return
    shown = "".join(f"\n  {bad}" for bad in staging.rows.bad_lines())
    found = f"none of {len(read.now)} files could be read:{shown}" if read.now else "found no files"
    raise DataError(f"{root}: expected txt, md, html, csv, pdf or docx files; {found}")


def _gone(store: Store, read: _Read) -> dict[str, tuple[str, ...]]:
    """Rows that go: of files that were removed, changed or can no longer be read."""
    then, now = read.before.values(), read.now.values()
    documents = {f.document for f in then} - {f.document for f in now} - {""}
    faults = {id for f in then for id in f.faults} - {id for f in now for id in f.faults}
    sources = {f.source for f in then} - {f.source for f in now} - {""}
    sources -= named_elsewhere(store, sources, {f.document for f in then} | documents)
    gone = {"documents": documents, "layouts": documents, "faults": faults, "sources": sources}
    return {table: tuple(sorted(ids)) for table, ids in gone.items() if ids}
