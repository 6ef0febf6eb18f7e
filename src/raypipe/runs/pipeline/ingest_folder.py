"""Ingest of a folder into a store: reads new and changed files, deletes the documents of removed files.

The store keeps the state of each file at its last read: size, time, inode, digest, reader, and the rows made
of it. A file with the same size, time and inode is not opened; a file with the same bytes is not parsed. An
unchanged file is still read again after a transient fault, or if its reader or its fields in metadata.csv
changed. Documents of changed files are replaced. Documents of removed files are deleted with everything made
of them. All changes of a read are committed together, even if the process is killed (`ingest_log`).
"""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePosixPath

from pydantic import TypeAdapter

from raypipe.core.errors import DataError
from raypipe.core.progress import Progress
from raypipe.core.records import Document, Fault, Layout, Source, digest, source_id
from raypipe.readers.documents import DOCUMENT_LIMITS, DocumentReader, FileText, FoundFile, text_files, walk
from raypipe.readers.documents.reader import UNREAD, reader_of, reads_as
from raypipe.readers.documents.walk import content_digest, file_kind, fresh_bytes, wanted
from raypipe.readers.field_map import by_name
from raypipe.readers.fields import fields_of, of_path
from raypipe.readers.rows import STEP, BadLine, ReadCounts, UnusableLine
from raypipe.runs.pipeline import ingest_staging
from raypipe.runs.pipeline.ingest import PART_BYTES, ROW_BYTES, StagedFiles, decision
from raypipe.runs.pipeline.ingest_log import LOOKING_S, IngestSummary, decide, driving, noted
from raypipe.store import Store
from raypipe.store.files import FOLDERS, need

LAST_S = 253_402_300_799  # last second of the year 9999: the time of a file can be any number
METADATA = "metadata.csv"  # name of a table with fields of files
MOST_NAMED = 10  # names of skipped front matter that a message shows


@dataclass(frozen=True, slots=True)
class FileState:
    """State of a file at its last read, and ids of the rows made of it."""

    seen: tuple[int, int, int]  # size in bytes, mtime in ns, inode
    content: str  # digest of the bytes; "": it could not be opened
    reader: str  # identity of the reader
    document: str = ""  # id; "": no document was made
    source: str = ""  # id
    faults: tuple[str, ...] = ()  # ids
    transient: bool = False  # True: a fault was transient, so the file is read again even if unchanged
    given: str = ""  # digest of its fields in metadata.csv files; "": none
    fields: str = ""  # digest of all its fields; "": none


_STATES = TypeAdapter(dict[str, FileState])


class FolderRead:
    """Reader of a folder's new and changed files, which writes nothing. `batches` and `sources` raise
    DataError if the folder does not exist, or if a metadata.csv cannot be read."""

    def __init__(self, store: Store, root: Path) -> None:
        self.store, self.root = store, root
        self.of = folder_id(root)  # also in the ids of the folder's faults
        self.before = states_of(store, self.of)  # file -> state at the last read
        self.now: dict[str, FileState] = {}  # file -> state at this read
        self.counts = ReadCounts()
        self._tombstones = ingest_staging.Tombstones(ingest_staging.tombstones(store))
        self._given: dict[str, dict[str, str]] = {}  # file -> its fields in metadata.csv files
        self._batch = ingest_staging.IngestBatch()  # files read since the last batch was yielded
        self._size = 0  # approximate bytes of the batch
        self._batched: set[str] = set()  # ids of the sources in all batches
        self._skipped: dict[str, str] = {}  # name in front matter without a field -> a file

    def sources(self, progress: Progress) -> Iterator[Source]:
        """Yields the texts of new and changed files. Raises DataError also if no file is readable."""
        for batch in self.batches((), progress):
            yield from batch.sources
        if refused := self.without_documents(()):
            raise refused
        if changes := self.changes():
            progress.say(changes)

    def batches(self, globs: Sequence[str], progress: Progress) -> Iterator[ingest_staging.IngestBatch]:
        everything = list(walk(self.root, (), DOCUMENT_LIMITS))
        self._tables(everything, wanted([g for g in globs if g.startswith("!")]))
        chosen = walk(self.root, globs, DOCUMENT_LIMITS) if globs else everything
        files = [f for f in chosen if not self._is_table(f.name)]
        with closing(DocumentReader()) as reader, progress.task("checked", "files", len(files)) as task:
            for file in files:
                self.counts.files += 1
                self._file(file, reader)
                task.advance(1)
                if self._size >= PART_BYTES:
                    yield self._batch
                    self._batch, self._size = ingest_staging.IngestBatch(), 0
        if self._size:
            yield self._batch

    def _is_table(self, name: str) -> bool:
        return PurePosixPath(name).name == METADATA and self.root.is_dir()

    def _tables(self, files: Sequence[FoundFile], is_wanted: Callable[[str], bool]) -> None:
        """Reads all metadata.csv files. Each gives fields to files of its folder and of the folders below. If
        two give a file the same field, the one in the nearer folder counts. Adds a fault for each row that
        names no file. Raises DataError for an unreadable table: no document may be searched without
        fields."""
        names = {f.name for f in files}
        tables = (f for f in files if self._is_table(f.name) and is_wanted(f.name))
        for table in sorted(tables, key=lambda f: f.name.count("/")):
            try:
                if table.trouble is not None:
                    raise table.trouble
                data = fresh_bytes(table)
                file_kind(table.name, data)
                rows = _table_rows(PurePosixPath(table.name).parent, text_files.decoded(data))
            except UnusableLine as e:
                mend = "Correct the table. If it does not describe files, give it another name"
                raise DataError(f"{self.root / table.shown}: {e}. {mend}") from e
            faults = []
            for line, name, values in rows:
                if name in names:
                    self._given[name] = {**self._given.get(name, {}), **values}
                    continue
                expected = f"line {line}: expected a file that is read here, found {name[:200]!r}"
                detail = f"{expected}. Correct the name, or delete the line"
                faults.append((line, Fault(STEP, "metadata", detail, transient=False)))
            with_ids = self._with_ids(table, "line", faults)
            ids = tuple(id for id, _ in with_ids)
            now = FileState(table.state, content_digest(data), "metadata", faults=ids)
            if faults and now != self.before.get(table.name):
                self.counts.page_faults += len(faults)
                self._batch.faults += with_ids
                self._size += ROW_BYTES * len(faults)
            self.now[table.name] = now

    def _file(self, file: FoundFile, reader: DocumentReader) -> None:
        """Adds a new or changed file to the batch, or a fault if it cannot be stored."""
        old, content = self.before.get(file.name), ""
        if old and (old.transient or not reads_as(old.reader) or old.given != self._given_digest(file)):
            old = None  # a read of the same bytes may give other rows
        try:
            # A file that could not be opened (no `content`) is retried: its state has no permissions.
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
            if (stone := self._tombstones.address(id) or self._tombstones.source(source.id)) is not None:
                raise UnusableLine(ingest_staging.REASON, stone.fault().detail)
        except UnusableLine as e:
            return self._refused(file, content, e.fault)
        self._document(file, content, text, id, source)

    def _unchanged(self, file: FoundFile, old: FileState) -> None:
        self.counts.unchanged_files += 1
        self.now[file.name] = old if old.seen == file.state else replace(old, seen=file.state)

    def _refused(self, file: FoundFile, content: str, fault: Fault) -> None:
        """Records that a file has no document. Adds the reason, `fault`, to the batch unless it is known."""
        id = ingest_staging.fault_id(self._where(file), 0, fault, self.of)
        now = FileState(file.state, content, reader_of(UNREAD), "", "", (id,), fault.transient)
        if now == self.before.get(file.name):
            return self._unchanged(file, now)
        self.now[file.name] = now
        self.counts.lines += 1
        self.counts.faults += 1
        self._batch.faults.append((id, fault))
        self._size += ROW_BYTES

    def _document(self, file: FoundFile, content: str, text: FileText, id: str, source: Source) -> None:
        """Adds the document of a file to the batch, and the faults of its pages."""
        values = {**text.fields, **of_path(file.name), **self._given.get(file.name, {})}
        self._skipped |= dict.fromkeys(text.skipped, file.shown)
        title = values.get("title") or text.title or Path(file.shown).stem
        faults = self._with_ids(file, "line" if text.kind == "csv" else "page", text.faults)
        self.now[file.name] = FileState(
            file.state,
            content,
            reader_of(text.kind, text.scans),
            id,
            source.id,
            tuple(i for i, _ in faults),
            any(fault.transient for _, fault in faults),
            self._given_digest(file),
            _digest(values),
        )
        self.counts.lines += 1
        self.counts.rows += 1
        self.counts.bytes_read += file.size
        self.counts.page_faults += len(faults)
        self.counts.protected_files += text.protected
        self.counts.reordered_pages += text.repaired
        self.counts.recognised_pages += text.recognised
        second = sorted((0, file.mtime_ns // 10**9, LAST_S))[1]
        modified = values.get("date") or time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        layout = Layout(id, source.id, file.url, title, text.pages, text.sections, modified)
        self._batch.documents.append(Document(id, title, source.id, dict(sorted(values.items()))))
        self._batch.layouts.append(layout)
        self._batch.faults += faults
        self._size += ROW_BYTES
        if source.id not in self._batched:
            self._batched.add(source.id)
            self._batch.sources.append(source)
            self._size += len(text.content) + ROW_BYTES * (1 + len(text.pages) // 8)

    def _given_digest(self, file: FoundFile) -> str:
        return _digest(self._given.get(file.name, {}))

    def _where(self, file: FoundFile) -> str:
        """Returns the place of a file for its faults: FOLDER/PATH, or the name of a single file."""
        return f"{self.root.name}/{file.shown}" if self.root.is_dir() else file.shown

    def _with_ids(
        self, file: FoundFile, part: str, faults: Iterable[tuple[int, Fault]]
    ) -> list[tuple[str, Fault]]:
        """Gives each fault of a file an id. `part` is the word for the fault's number: `page` or `line`."""
        where = f"{self._where(file)}#{part}="
        return [(ingest_staging.fault_id(f"{where}{n}", n, fault, self.of), fault) for n, fault in faults]

    def changes(self) -> str:
        """Returns a message for people; "" if there is nothing to say. It counts files that are new, changed,
        removed or read again, except at the first read. It names front matter that became no field."""
        both = [(self.before[name], self.now[name]) for name in self.before.keys() & self.now.keys()]
        same = [(old, new) for old, new in both if old.content == new.content]
        counts = {
            "new": len(self.now) - len(both),
            "changed": len(both) - len(same),
            "read again, since their reader changed": sum(old.reader != new.reader for old, new in same),
            "removed": len(self.before) - len(both),
        }
        changed = ", ".join(f"{n} {what}" for what, n in counts.items() if n) if self.before else ""
        names = ", ".join(f"{name[:60]} ({file})" for name, file in islice(self._skipped.items(), MOST_NAMED))
        no_field = names and f"front matter that is no field, such as a list of several values: {names}"
        return "; ".join(filter(None, (changed, no_field)))

    def without_documents(self, bad_lines: Iterable[BadLine]) -> DataError | None:
        """Returns the error of a folder without readable files; None if at least one file has a document."""
        if any(f.document for f in self.now.values()):
            return None
        shown = "".join(f"\n  {bad}" for bad in bad_lines)
        shown = f":{shown}" if shown else ""
        found = f"none of {len(self.now)} files could be read{shown}" if self.now else "found no files"
        before = sum(bool(f.document) for f in self.before.values())
        gone = f". The folder has no documents now; its {before} earlier ones are no longer searched"
        expected = "txt, md, html, csv, pdf, docx or image files"
        return DataError(f"{self.root}: expected {expected}; {found}{gone if before else ''}")

    def gone(self) -> dict[str, tuple[str, ...]]:
        """Returns table -> ids of the rows to delete. They were made of files that are removed, changed or
        unreadable, and are not made again."""
        then, now = self.before.values(), self.now.values()
        documents = {f.document for f in then} - {f.document for f in now} - {""}
        faults = {id for f in then for id in f.faults} - {id for f in now for id in f.faults}
        sources = {f.source for f in then} - {f.source for f in now} - {""}
        sources -= ingest_staging.named_elsewhere(self.store, sources, {f.document for f in then} | documents)
        gone = {"documents": documents, "layouts": documents, "faults": faults, "sources": sources}
        return {table: tuple(sorted(ids)) for table, ids in gone.items() if ids}


def _digest(values: Mapping[str, str]) -> str:
    return digest(json.dumps(values, sort_keys=True)) if values else ""


def states_of(store: Store, of: str) -> dict[str, FileState]:
    """Loads the state of each file of a folder at its last read. `of` is the id of the folder."""
    raw = store.files.read(f"{FOLDERS}/{of}.json")
    # Not by pydantic's own JSON, which refuses the surrogates in names that are no UTF-8.
    return _STATES.validate_python(json.loads(raw)["files"]) if raw else {}


def withdrawn(before: Mapping[str, FileState], now: Mapping[str, FileState]) -> bool:
    """Returns whether a document of `before` is removed or has other fields. Searches must see such a change
    immediately. Only a changed text may wait: its old text is searched until the new text is embedded."""
    kept = {f.document: f.fields for f in now.values()}
    return any(f.document and kept.get(f.document) != f.fields for f in before.values())


def folder_id(root: Path) -> str:
    """Returns the id of a folder or a single file: a digest of its absolute path."""
    return digest("files", str(root.absolute()))


def ingest_folder(store: Store, root: Path, globs: Sequence[str], progress: Progress) -> IngestSummary:
    """Reads the new and changed files of a folder, and deletes the documents of removed files. `globs` select
    the files as in `readers.documents.walk`. Raises DataError if the folder does not exist, if a metadata.csv
    cannot be read, or if no file is readable. In the last case it first deletes the earlier documents."""
    of = folder_id(root)
    with driving(store, f"ingest {root}", LOOKING_S):
        need(store.files, 0, "reading files")
        read, staging = FolderRead(store, root), ingest_staging.Staging(store, of, "files")
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
        # A changed file replaces only its own document, so no other read is outdated.
        again = not (decided.parts or decided.gone)
        documents = sum(bool(f.document) for f in read.now.values())
        summary = replace(decided.summary, replaced=(), again=again, documents=documents)
        if again and read.now == read.before and noted(store, of):
            return summary  # the store has all of it already
        state = json.dumps({"root": str(root.absolute()), "files": _STATES.dump_python(read.now)})
        decide(store, replace(decided, outdated=(), summary=summary, state=(f"{FOLDERS}/{of}.json", state)))
    if refused:
        raise refused
    return summary


def _table_rows(folder: PurePosixPath, text: str) -> list[tuple[int, str, dict[str, str]]]:
    """Returns (line, file, its fields) for each row of a metadata.csv. Raises UnusableLine if the text is no
    CSV, no column names files, a row has more cells than columns, or two rows name the same file."""
    rows, lines = text_files.csv_reader(io.StringIO(text, newline=""), ",;\t|"), dict[str, int]()
    table = list[tuple[int, str, dict[str, str]]]()
    try:
        names: list[str] = next((row for row in rows if any(row)), [])
        if (named := by_name("path", names)) is None:
            expected = "expected a column `file` or `path` with the name of a file in each row"
            raise UnusableLine("metadata", f"{expected}, found {', '.join(names)[:200]!r}")
        for row in filter(any, rows):
            line, values = rows.line_num, dict(zip(names, row, strict=False))
            if any(row[len(names) :]):
                expected = f"expected at most {len(names)} cells, as the first row has"
                raise UnusableLine("metadata", f"line {line}: {expected}, found {len(row)}")
            if file := values.pop(named, "").strip():
                file = str(folder / file)
                if (first := lines.setdefault(file, line)) != line:
                    raise UnusableLine("metadata", f"line {line}: {file!r} stands in line {first}, too")
            table.append((line, file, fields_of(values)))
    except csv.Error as e:
        raise UnusableLine("broken", f"line {rows.line_num}: expected rows of a CSV file: {e}") from e
    return table
