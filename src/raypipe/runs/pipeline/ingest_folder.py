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
from raypipe.runs.pipeline import ingest_staging
from raypipe.runs.pipeline.ingest import PART_BYTES, ROW_BYTES, StagedFiles, decision
from raypipe.runs.pipeline.ingest_log import LOOKING_S, IngestSummary, decide, driving, noted
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
class FolderRead:
    """A read of a folder, which writes nothing itself. Raises DataError for one that is not there."""

    store: Store
    root: Path
    of: str  # names the folder; the digest of its faults
    before: dict[str, FileState]
    tombstones: ingest_staging.Tombstones
    given: dict[str, dict[str, str]] = field(default_factory=dict)  # file -> its fields in a metadata.csv
    counts: ReadCounts = field(default_factory=ReadCounts)
    now: dict[str, FileState] = field(default_factory=dict)
    batched: set[str] = field(default_factory=set)  # ids of sources that are in a batch
    batch: ingest_staging.IngestBatch = field(
        default_factory=ingest_staging.IngestBatch
    )  # of the files that were read last
    size: int = 0  # bytes of the batch, about

    @classmethod
    def begin(cls, store: Store, root: Path) -> FolderRead:
        """Begins with the files as they were read last."""
        raw = store.files.read(f"{FOLDERS}/{(of := folder_id(root))}.json")
        known = {
            n: FileState(**{**f, "seen": tuple(f["seen"]), "faults": tuple(f["faults"])})
            for n, f in (json.loads(raw)["files"] if raw else {}).items()
        }
        return cls(store, root, of, known, ingest_staging.Tombstones(ingest_staging.tombstones(store)))

    def sources(self, progress: Progress) -> Iterator[Source]:
        """Yields the texts of files that are new or changed. Raises DataError where none can be read."""
        for batch in self.batches((), progress):
            yield from batch.sources
        if refused := self.without_documents(()):
            raise refused
        if changes := self.changes():
            progress.say(changes)

    def batches(self, globs: Sequence[str], progress: Progress) -> Iterator[ingest_staging.IngestBatch]:
        found, reader = list(walk(self.root, globs, DOCUMENT_LIMITS)), DocumentReader()
        self.given, tables = _given_fields(self.root)
        files = [f for f in found if f.name not in tables]
        try:
            with progress.task("checked", "files", len(files)) as task:
                for file in files:
                    self.counts.files += 1
                    self._file(file, reader)
                    task.advance(1)
                    if self.size >= PART_BYTES:
                        yield self.batch
                        self.batch, self.size = ingest_staging.IngestBatch(), 0
            if self.size:
                yield self.batch
        finally:
            reader.close()

    def _file(self, file: FoundFile, reader: DocumentReader) -> None:
        """Puts a file into the batch, unless it is as it was."""
        old, content, fields = self.before.get(file.name), "", self.given.get(file.name)
        given = digest(json.dumps(fields, sort_keys=True)) if fields else ""
        if old and (old.transient or not reads_as(old.reader) or old.given != given):
            old = None  # the same bytes would not be read as they were then
        try:
            # A file that could not be opened has no digest: with permission it has the same state.
            if old and old.content and old.seen == file.state:
                return self._unchanged(file, old)
            if file.trouble is not None:
                raise file.trouble
            data = fresh_bytes(file)
            content = content_digest(data)
            if old and old.content == content:
                return self._unchanged(file, old)
            text = reader.read(file.name, data)
            id = f"{self.of[:8]}/{file.url}"
            source = Source(source_id(text.source_kind, text.content), text.source_kind, text.content)
            if (stone := self.tombstones.address(id) or self.tombstones.source(source.id)) is not None:
                raise UnusableLine(ingest_staging.REASON, stone.says())
        except UnusableLine as e:
            return self._refused(file, content, e.fault)
        self._document(file, content, text, id, source, given)

    def _unchanged(self, file: FoundFile, old: FileState) -> None:
        self.counts.unchanged_files += 1
        self.now[file.name] = old if old.seen == file.state else replace(old, seen=file.state)

    def _refused(self, file: FoundFile, content: str, fault: Fault) -> None:
        """Records a file that has no document."""
        id = ingest_staging.fault_id(self._where(file), 0, fault, self.of)
        now = FileState(file.state, content, reader_of(UNREAD), "", "", (id,), fault.transient)
        if now == self.before.get(file.name):
            return self._unchanged(file, now)
        self.now[file.name] = now
        self.counts.lines += 1
        self.counts.faults += 1
        self.batch.faults.append((id, fault))
        self.size += ROW_BYTES

    def _document(
        self, file: FoundFile, content: str, text: FileText, id: str, source: Source, given: str
    ) -> None:
        title = text.title or Path(file.shown).stem
        where = self._where(file)
        part = "line" if text.kind == "csv" else "page"
        faults = [
            (ingest_staging.fault_id(f"{where}#{part}={n}", n, fault, self.of), fault)
            for n, fault in text.faults
        ]
        self.now[file.name] = FileState(
            file.state,
            content,
            reader_of(text.kind, text.scans),
            id,
            source.id,
            tuple(i for i, _ in faults),
            any(fault.transient for _, fault in faults),
            given,
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
        modified = said.get("date") or time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        layout = Layout(id, source.id, file.url, title, text.pages, text.sections, modified)
        self.batch.layouts.append(layout)
        self.batch.faults += faults
        self.size += ROW_BYTES
        if source.id not in self.batched:
            self.batched.add(source.id)
            self.batch.sources.append(source)
            self.size += len(text.content) + ROW_BYTES * (1 + len(text.pages) // 8)

    def _where(self, file: FoundFile) -> str:
        """Names a file among dead letters."""
        return f"{self.root.name}/{file.shown}" if self.root.is_dir() else file.shown

    def changes(self) -> str:
        """Says which files are not as they were read last; "" at the first read, and where all are."""
        both = self.before.keys() & self.now.keys()
        counts = {
            "new": len(self.now.keys() - self.before.keys()),
            "changed": sum(self.now[name].content != self.before[name].content for name in both),
            "read again, as they are read otherwise now": sum(
                self.now[name].content == self.before[name].content
                and self.now[name].reader != self.before[name].reader
                for name in both
            ),
            "removed": len(self.before.keys() - self.now.keys()),
        }
        return ", ".join(f"{n} {what}" for what, n in counts.items() if n) if self.before else ""

    def without_documents(self, bad_lines: Iterable[BadLine]) -> DataError | None:
        """Says that a folder has no file that can be read; None where it has one."""
        if any(f.document for f in self.now.values()):
            return None
        shown = "".join(f"\n  {bad}" for bad in bad_lines)
        shown = f":{shown}" if shown else ""
        found = f"none of {len(self.now)} files could be read{shown}" if self.now else "found no files"
        before = sum(bool(f.document) for f in self.before.values())
        gone = f". It holds no document now; the {before} that it held are not searched any more"
        expected = "txt, md, html, csv, pdf, docx or image files"
        return DataError(f"{self.root}: expected {expected}; {found}{gone if before else ''}")

    def gone(self) -> dict[str, tuple[str, ...]]:
        """Rows that go: of files that were removed, changed or can no longer be read."""
        then, now = self.before.values(), self.now.values()
        documents = {f.document for f in then} - {f.document for f in now} - {""}
        faults = {id for f in then for id in f.faults} - {id for f in now for id in f.faults}
        sources = {f.source for f in then} - {f.source for f in now} - {""}
        sources -= ingest_staging.named_elsewhere(self.store, sources, {f.document for f in then} | documents)
        gone = {"documents": documents, "layouts": documents, "faults": faults, "sources": sources}
        return {table: tuple(sorted(ids)) for table, ids in gone.items() if ids}


def folder_id(root: Path) -> str:
    """Names a folder, or a file that is given alone."""
    return digest("files", str(root.absolute()))


def ingest_folder(store: Store, root: Path, globs: Sequence[str], progress: Progress) -> IngestSummary:
    """Reads the files of a folder that are new or changed, and takes out those that are gone.

    `globs` as in `readers.documents.walk`. Raises DataError for a folder that is not there, and where no file
    of it can be read; what it held before is out of the store then.
    """
    of = folder_id(root)
    with driving(store, f"ingest {root}", LOOKING_S):
        need(store.files, 0, "reading files")
        read, staging = FolderRead.begin(store, root), ingest_staging.Staging(store, of, "files")
        for batch in read.batches(globs, progress):
            staging.add(batch)
        read.counts.removed_files = len(read.before.keys() - read.now.keys())
        refused = read.without_documents(staging.rows.bad_lines())
        if refused and not any(f.document for f in read.before.values()):
            raise refused
        if changes := read.changes():
            progress.say(changes)
        found = StagedFiles(staging.run, staging.rows, read.counts, read.gone(), read_by="")
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
        decide(store, replace(decided, outdated=(), summary=summary, state=(f"{FOLDERS}/{of}.json", state)))
    if refused:
        raise refused
    return summary


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
