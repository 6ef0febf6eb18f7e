"""Previews of data: how files are read, and what becomes of their first row. Stores nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from raypipe import readers
from raypipe.api.paths import Data, documents_alone, format_for, inputs
from raypipe.api.results import Result
from raypipe.api.session import Session
from raypipe.core.errors import ConfError
from raypipe.core.records import Document, Question
from raypipe.readers import BadLine, ReadCounts, Row, RowFormat, row_format
from raypipe.readers.field_map import Fields

LOOKED_AT = 50  # rows in which the first question and the first document are looked for
CHARS = 300  # of a text that is shown


@dataclass(frozen=True, slots=True)
class FileFields:
    """The fields of one file of rows."""

    file: str
    fields: Mapping[str, tuple[str, ...]]  # role -> fields
    named: tuple[str, ...]  # roles that the user named; the others were found by common names
    unused: tuple[str, ...]  # other fields


@dataclass(frozen=True, slots=True)
class ShownText:
    """A text that a question may be answered from."""

    kind: str  # page: HTML; snippet, name, document: plain text
    url: str  # may be ""
    title: str  # may be ""
    chars: int
    text: str  # its beginning


@dataclass(frozen=True, slots=True)
class FirstQuestion:
    """The first question of some files, as a store would have it."""

    id: str
    query: str
    asked_at: str  # may be ""
    answers: tuple[str, ...]
    labels: Mapping[str, str]
    documents: tuple[ShownText, ...]
    searches_store: bool  # True: it names no documents, so all that the store holds may be searched


@dataclass(frozen=True, slots=True)
class FirstDocument:
    """The first document of some files, as a store would have it."""

    id: str
    title: str
    chars: int
    text: str  # its beginning


@dataclass(frozen=True, slots=True)
class Preview(Result):
    """How files are read; its rows are the fields that were found."""

    SCHEMA = "file role field"
    data_format: str  # what --format calls it
    files: tuple[FileFields, ...]  # of rows; other formats have fixed fields
    question: FirstQuestion | None
    document: FirstDocument | None
    bad_lines: tuple[BadLine, ...]  # among the first rows

    def rows(self) -> Iterator[Mapping[str, Any]]:
        for file in self.files:
            for role, names in file.fields.items():
                yield {"file": file.file, "role": role, "field": "+".join(names)}


def preview(
    paths: Data,
    format: readers.Format | None = None,
    fields: Fields | None = None,
    session: Session | None = None,
) -> Preview:
    """How `ingest` would read some files: their format, their fields, and the first row. Stores nothing.

    Takes what `ingest` takes. Raises DataError for files that cannot be read, and ConfError for a field that
    none of them has.
    """
    session = session or Session()
    files = inputs(paths, session.settings)
    if format == "files" or (format is None and not fields and documents_alone(files)):
        raise ConfError(f"{files[0]}: a dry run shows fields and rows, and a folder of documents has none")
    found = format_for(format, files, fields)
    readers.check(files, found)
    name = readers.format_name(found)
    named = found if isinstance(found, RowFormat) else RowFormat()
    mapped = row_format.mapped(files, named) if name == row_format.NAME else []
    counts = ReadCounts()
    first = list(islice(readers.open(files, found, counts), LOOKED_AT))
    bad = [BadLine(r.where, f.reason, f.detail) for r in first for f in r.faults]
    readers.require_rows(files, counts, bad[:3])
    question = next((_question(r, r.question) for r in first if r.question is not None), None)
    document = next((_document(r, r.document) for r in first if r.document is not None), None)
    return Preview(name, tuple(_fields(m) for m in mapped), question, document, tuple(bad[:3]))


def _fields(mapped: row_format.MappedFile) -> FileFields:
    found = {**mapped.fields.fields, **{r: (f"documents: {n}",) for r, n in mapped.fields.inner.items()}}
    used = {name.partition(".")[0] for names in found.values() for name in names}
    used |= {name for names in found.values() for name in names}
    other = tuple(n for n in mapped.columns() if n not in used)
    return FileFields(mapped.file.name, found, tuple(sorted(mapped.fields.named)), other)


def _question(row: Row, asked: Question) -> FirstQuestion:
    content = {s.id: s for s in row.sources}
    shown = []
    for c in asked.citations or ():
        source = content.get(c.page or c.snippet or c.name or "")
        title = content[c.name].content if c.name and c.page else ""
        if source is not None:
            shown.append(ShownText(source.kind, c.url, title, len(source.content), source.content[:CHARS]))
    answers, labels = (row.gold.answers, row.gold.labels) if row.gold else ((), {})
    return FirstQuestion(
        asked.id, asked.text, asked.asked_at, answers, dict(labels), tuple(shown), asked.citations is None
    )


def _document(row: Row, found: Document) -> FirstDocument:
    content = next(s.content for s in row.sources if s.id == found.source)
    return FirstDocument(found.id, found.title, len(content), content[:CHARS])
