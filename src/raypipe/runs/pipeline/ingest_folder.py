"""A folder of files into a store: only what changed is read, what was removed goes.

The store keeps what each file was when it was read: size, time, inode, digest, the identity of its reader,
and what became of it. A file whose state is equal is not opened; one whose bytes are equal is not read.
Documents of files that changed are replaced, those of removed files go with all that was made of them, in one
decision (`ingest_log`). So questions about the whole store search the folder as it was read last.
"""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path, PurePosixPath

from raypipe.core.errors import DataError
from raypipe.core.progress import Progress
from raypipe.core.records import Document, Fault, Layout, Source, digest, source_id
from raypipe.readers.documents import DOCUMENT_LIMITS, DocumentReader, FileText, FoundFile, plain, walk
from raypipe.readers.documents.reader import UNREAD, reader_of, reads_as
from raypipe.readers.documents.walk import content_digest, fresh_bytes
from raypipe.readers.field_map import by_name
from raypipe.readers.fields import fields_of, of_path
from raypipe.readers.rows import BadLine, ReadCounts, UnusableLine
from raypipe.runs.pipeline.ingest import PART_BYTES, ROW_BYTES, StagedFiles, decision
from raypipe.runs.pipeline.ingest_log import IngestSummary, decide, driving, noted
from raypipe.runs.pipeline.ingest_staging import (
    REASON,
    IngestBatch,
    Staging,
    Tombstones,
    fault_id,
    named_elsewhere,
    tombstones,
)
from raypipe.store import Store
from raypipe.store.files import FOLDERS, need

LAST_S = 253_402_300_799  # of the year 9999: a file may bear any time
METADATA = "metadata.csv"  # name of a table of fields


@dataclass(frozen=True, slots=True)
class FileState:
    """A file as it was when it was read, and what became of it."""

    seen: tuple[int, int, int]  # size in bytes, mtime in ns, inode
    content: str  # digest of its bytes; "": it was not opened
    reader: str  # identity
    document: str = ""  # id; "": there is none
    source: str = ""
    faults: tuple[str, ...] = ()  # their ids
    transient: bool = False  # True: it is read again, whatever it is
    given: str = ""  # digest of the fields that a metadata.csv gives it; "": none


_FIELDS = tuple(f.name for f in fields(FileState))


@dataclass(slots=True)
class _Read:
    """A read of a folder."""

    of: str  # names the folder; the digest of its faults
    root: Path
    before: dict[str, FileState]
    tombstones: Tombstones
    given: dict[str, dict[str, str]] = field(default_factory=dict)  # file -> its fields in a metadata.csv
    counts: ReadCounts = field(default_factory=ReadCounts)
    now: dict[str, FileState] = field(default_factory=dict)
    sources: set[str] = field(default_factory=set)  # ids of those that are in a batch
    batch: IngestBatch = field(default_factory=IngestBatch)  # of the files that were read last
    size: int = 0  # bytes of the batch, about

    def batches(self, files: Sequence[FoundFile], progress: Progress) -> Iterator[IngestBatch]:
        reader = DocumentReader()
        self.given, tables = _given_fields(self.root)
        files = [f for f in files if f.name not in tables]
        try:
            with progress.task("checked", "files", len(files)) as task:
                for file in files:
                    self.counts.files += 1
                    self._file(file, reader)
                    task.advance(1)
                    if self.size >= PART_BYTES:
                        yield self.batch
                        self.batch, self.size = IngestBatch(), 0
            if self.size:
                yield self.batch
        finally:
            reader.close()

    def _file(self, file: FoundFile, reader: DocumentReader) -> None:
        """Puts a file into the batch, unless it is as it was."""
        old, content = self.before.get(file.name), ""
        # Whether the same bytes would be read as they were then.
        holds = old and not old.transient and reads_as(old.reader)
        holds = holds and old is not None and old.given == self._given(file)
        try:
            # A file that could not be opened has no digest: with permission it has the same state.
            if old and holds and old.content and old.seen == file.state:
                return self._unchanged(file, old)
            if file.trouble is not None:
                raise file.trouble
            data = fresh_bytes(file)
            content = content_digest(data)
            if old and holds and old.content == content:
                return self._unchanged(file, old)
            text = reader.read(file.name, data)
            id = f"{self.of[:8]}/{file.url}"
            source = Source(source_id(text.source_kind, text.content), text.source_kind, text.content)
            if (stone := self.tombstones.address(id) or self.tombstones.source(source.id)) is not None:
                raise UnusableLine(REASON, stone.says())
        except UnusableLine as e:
            return self._refused(file, content, e.fault)
        self._document(file, content, text, id, source)

    def _unchanged(self, file: FoundFile, old: FileState) -> None:
        self.counts.unchanged_files += 1
        self.now[file.name] = old if old.seen == file.state else replace(old, seen=file.state)

    def _refused(self, file: FoundFile, content: str, fault: Fault) -> None:
        """Records a file that has no document."""
        id = fault_id(self._where(file), 0, fault, self.of)
        now = FileState(file.state, content, reader_of(UNREAD), "", "", (id,), fault.transient)
        if now == self.before.get(file.name):
            return self._unchanged(file, now)
        self.now[file.name] = now
        self.counts.lines += 1
        self.counts.faults += 1
        self.batch.faults.append((id, fault))
        self.size += ROW_BYTES

    def _document(self, file: FoundFile, content: str, text: FileText, id: str, source: Source) -> None:
        title = text.title or Path(file.shown).stem
        where = self._where(file)
        part = "line" if text.kind == "csv" else "page"
        faults = [(fault_id(f"{where}#{part}={n}", n, fault, self.of), fault) for n, fault in text.faults]
        self.now[file.name] = FileState(
            file.state,
            content,
            reader_of(text.kind, text.scans),
            id,
            source.id,
            tuple(i for i, _ in faults),
            any(fault.transient for _, fault in faults),
            self._given(file),
        )
        self.counts.lines += 1
        self.counts.rows += 1
        self.counts.bytes_read += file.size
        self.counts.page_faults += len(faults)
        self.counts.protected_files += text.protected
        self.counts.reordered_pages += text.repaired
        self.counts.recognised_pages += text.recognised
        said = {**text.fields, **of_path(file.name), **self.given.get(file.name, {})}
        self.batch.documents.append(Document(id, title, source.id, dict(sorted(said.items()))))
        second = sorted((0, file.mtime_ns // 10**9, LAST_S))[1]
        modified = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        layout = Layout(id, source.id, file.url, title, text.pages, text.sections, modified)
        self.batch.layouts.append(layout)
        self.batch.faults += faults
        self.size += ROW_BYTES
        if source.id not in self.sources:
            self.sources.add(source.id)
            self.batch.sources.append(source)
            self.size += len(text.content) + ROW_BYTES * (1 + len(text.pages) // 8)

    def _given(self, file: FoundFile) -> str:
        given = self.given.get(file.name)
        return digest(json.dumps(given, sort_keys=True)) if given else ""

    def _where(self, file: FoundFile) -> str:
        """Names a file among dead letters."""
        return f"{self.root.name}/{file.shown}" if self.root.is_dir() else file.shown

    def changes(self) -> str:
        """Says which files are not as they were read last; "" at the first read, and where all are."""
        both = self.before.keys() & self.now.keys()
        counts = {
            "new": len(self.now.keys() - self.before.keys()),
            "changed": sum(self.now[name].content != self.before[name].content for name in both),
            "removed": len(self.before.keys() - self.now.keys()),
        }
        return ", ".join(f"{n} {what}" for what, n in counts.items() if n) if self.before else ""


def folder_id(root: Path) -> str:
    """Names a folder, or a file that is given alone."""
    return digest("files", str(root.absolute()))


def ingest_folder(store: Store, root: Path, globs: Sequence[str], progress: Progress) -> IngestSummary:
    """Reads the files of a folder that are new or changed, and takes out those that are gone.

    `globs` as in `readers.documents.walk`. Raises DataError for a folder that is not there, and where no file
    of it can be read; what it held before is out of the store then.
    """
    of = folder_id(root)
    with driving(store, f"ingest {root}"):
        need(store.files, 0, "reading files")
        read = _Read(of, root, _known(store, of), Tombstones(tombstones(store)))
        files = list(walk(root, globs, DOCUMENT_LIMITS))
        staging = Staging(store, of, "files")
        for batch in read.batches(files, progress):
            staging.add(batch)
        read.counts.removed_files = len(read.before.keys() - read.now.keys())
        refused = _without_documents(root, read, staging.rows.bad_lines())
        if refused and not any(f.document for f in read.before.values()):
            raise refused
        if changes := read.changes():
            progress.say(changes)
        found = StagedFiles(staging.run, staging.rows, read.counts, _gone(store, read), read_by="")
        decided = decision(store, of, found, (root.name,))
        # What a changed file replaces is its own: no other read lost anything.
        again = not (decided.parts or decided.gone)
        documents = sum(bool(f.document) for f in read.now.values())
        summary = replace(decided.summary, replaced=(), again=again, documents=documents)
        if again and read.now == read.before and noted(store, of):
            return summary  # the store says all of it already
        # `dataclasses.asdict` copies all that is in a field, ten times as long
        states = {n: {name: getattr(f, name) for name in _FIELDS} for n, f in read.now.items()}
        state = json.dumps({"root": str(root.absolute()), "files": states})
        decide(store, replace(decided, outdated=(), summary=summary, state=(_state_file(of), state)))
    if refused:
        raise refused
    return summary


class FolderChanges:
    """Sources that `ingest_folder` would store of a folder and take out. Writes nothing.

    Raises DataError where that would: for a folder that is not there, or without a file that can be read.
    """

    def __init__(self, store: Store, root: Path, progress: Progress) -> None:
        self._store, self._root, self._progress = store, root, progress
        of = folder_id(root)
        self._read = _Read(of, root, _known(store, of), Tombstones(tombstones(store)))

    def sources(self) -> Iterator[Source]:
        """Yields the texts of files that are new or changed."""
        for batch in self._read.batches(list(walk(self._root, (), DOCUMENT_LIMITS)), self._progress):
            yield from batch.sources
        if refused := _without_documents(self._root, self._read, ()):
            raise refused

    def gone(self) -> tuple[str, ...]:
        """Ids of the sources that go; known when `sources` has ended."""
        return _gone(self._store, self._read).get("sources", ())


def _given_fields(root: Path) -> tuple[dict[str, dict[str, str]], set[str]]:
    """File below a folder -> its fields, by each metadata.csv next to it or in a folder above; and the names
    of these. One has a column `file` or `path`, from its own folder; the nearest counts most. One that cannot
    be read is none: its reader says why."""
    given, tables = dict[str, dict[str, str]](), set[str]()
    found = walk(root, [METADATA, f"*/{METADATA}"], DOCUMENT_LIMITS) if root.is_dir() else ()
    for file in sorted(found, key=lambda f: f.name.count("/")):
        with suppress(UnusableLine, csv.Error):
            if file.trouble is None and file.size <= DOCUMENT_LIMITS.text_bytes:
                rows = dict(_table_rows(PurePosixPath(file.name).parent, plain.decoded(fresh_bytes(file))))
                given |= {name: {**given.get(name, {}), **own} for name, own in rows.items()}
                tables |= {file.name} if rows else set()
    return given, tables


def _table_rows(folder: PurePosixPath, text: str) -> Iterator[tuple[str, dict[str, str]]]:
    rows = plain.csv_reader(io.StringIO(text, newline=""), ",;\t|")
    names: list[str] = next((row for row in rows if any(row)), [])
    if (named := by_name("path", names)) is None:
        return
    for row in rows:
        values = dict(zip(names, row, strict=False))
        if file := values.pop(named, "").strip():
            yield str(folder / file), fields_of(values)


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


def _without_documents(root: Path, read: _Read, bad_lines: Iterable[BadLine]) -> DataError | None:
    """Says that a folder has no file that can be read; None where it has one."""
    if any(f.document for f in read.now.values()):
        return None
    shown = "".join(f"\n  {bad}" for bad in bad_lines)
    shown = f":{shown}" if shown else ""
    found = f"none of {len(read.now)} files could be read{shown}" if read.now else "found no files"
    before = sum(bool(f.document) for f in read.before.values())
    gone = (
        f". It holds no document now; the {before} that it held are not searched any more" if before else ""
    )
    return DataError(f"{root}: expected txt, md, html, csv, pdf, docx or image files; {found}{gone}")


def _gone(store: Store, read: _Read) -> dict[str, tuple[str, ...]]:
    """Rows that go: of files that were removed, changed or can no longer be read."""
    then, now = read.before.values(), read.now.values()
    documents = {f.document for f in then} - {f.document for f in now} - {""}
    faults = {id for f in then for id in f.faults} - {id for f in now for id in f.faults}
    sources = {f.source for f in then} - {f.source for f in now} - {""}
    sources -= named_elsewhere(store, sources, {f.document for f in then} | documents)
    gone = {"documents": documents, "layouts": documents, "faults": faults, "sources": sources}
    return {table: tuple(sorted(ids)) for table, ids in gone.items() if ids}
