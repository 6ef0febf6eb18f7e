"""Ingest of files into a store, previews of an ingest, and conversion of HTML to text.

Modules for an ingest are imported by the calls that need them; `parse_html` needs none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raypipe import readers
from raypipe.api.paths import Data, ingested_as, inputs
from raypipe.api.results import Result
from raypipe.api.session import Place, Session
from raypipe.core.errors import ConfError, DataError
from raypipe.core.records import Fault, Gold, Question
from raypipe.readers import BadLine, Format, ReadCounts, Row, RowFormat, field_map, own_rows
from raypipe.readers.field_map import Fields
from raypipe.readers.object_store import is_remote
from raypipe.text.page_parser import SandboxedParser

if TYPE_CHECKING:
    from raypipe.runs.pipeline.ingest_log import IngestSummary


@dataclass(frozen=True, slots=True, repr=False)
class IngestResult(Result):
    """Counts of an ingest. Each count is a row; each reason for omitted lines and pages is a further row."""

    store: str  # URI
    summary: IngestSummary
    sources: int  # sources in the store, those of earlier ingests included
    bad: tuple[BadLine, ...]  # the first lines that could not be read, or of which a page was omitted

    @property
    def title(self) -> str:
        s = self.summary
        read = "read before: " if s.again else ""
        found = f"{len(s.questions)} questions"
        if s.counts.get("unchanged_files") or not s.questions:
            found = f"{s.documents} documents"
        by = f", read by {s.read_by}" if s.read_by and not s.again else ""
        return f"{self.store}: {read}{found}, {self.sources} sources in all{by}"

    def rows(self) -> Sequence[Mapping[str, Any]]:
        counts = {**self.summary.counts, **self.summary.reasons}
        return [{"what": what, "rows": count} for what, count in counts.items()]

    def record(self) -> Mapping[str, Any]:
        s = self.summary
        read = {"store": self.store, "again": s.again, "questions": len(s.questions), "kind": s.kind}
        rest = {"reasons": s.reasons, "replaced": s.replaced, "bad_lines": self.bad}
        return {**read, "read_by": s.read_by, **s.counts, **rest}


def ingest(
    paths: Data,
    store: Place = None,
    format: Format | None = None,
    session: Session | None = None,
    fields: Fields | None = None,
    globs: Sequence[str] = (),
    kind: str | None = None,
) -> IngestResult:
    """Reads files into a store. A row replaces an older row with the same id.

    A file with the same bytes as before is skipped, unless later files replaced some of its rows. `paths` are
    files, folders of files, or URIs. `format` None detects the format. The format `files` is for folders of
    txt, md, html, csv, pdf, docx and images; `globs` chooses some of their files, and documents whose file is
    gone are deleted. `kind` decides how the golds are scored: crag, qa, qasper, ranking or MODULE:NAME; None
    is the kind of the format. `fields` names fields of rows that have no common name: `{"query": "prompt"}`.
    A missing store is created. Raises ConfError for an unknown kind, and for a named field that does not
    exist. Raises DataError for a missing or damaged file, and if no line can be read. The store is then
    unchanged, but a folder of `files` that has no readable file loses its documents.
    """
    from raypipe.api.pipelines import open_reading
    from raypipe.metrics.kinds import open_kind
    from raypipe.runs.pipeline import ingest as ingesting
    from raypipe.runs.pipeline.ingest_folder import ingest_folder
    from raypipe.runs.pipeline.ingest_log import merged
    from raypipe.runs.pipeline.ingest_staging import BAD_SHOWN

    session = session or Session()
    if kind is not None:
        open_kind(kind)
    files = inputs(paths, session.settings)
    found = ingested_as(format, files, fields)
    if globs and found != "files":
        raise ConfError("--glob chooses among the files of a folder: expected --format files")
    if kind is not None and found == "files":
        raise ConfError(f"--kind {kind}: a folder of documents brings no golds; expected a file of questions")
    if found != "files":
        readers.check(files, found)
    filled = session.store_to_fill(store)
    with session.shown() as progress:
        if found == "files":
            reads = [ingest_folder(filled, folder, globs, progress) for folder in files]
        else:
            reading = open_reading(session, filled)
            reads = [ingesting.ingest(filled, files, found, progress, kind=kind, reading=reading)]
    bad = [b for read in reads for b in ingesting.bad_lines(filled, read.fingerprint)]
    return IngestResult(filled.uri, merged(reads), filled.count("sources"), tuple(bad[:BAD_SHOWN]))


NAME_CHARS = 40  # characters of a folder's name in the name of its store


def documents_store(folder: str | Path, session: Session | None = None) -> str:
    """Returns the address of a folder's own store under $RAYPIPE_HOME, which need not exist. The store is
    named by the folder's name and the beginning of its path's digest: docs-manuals-c56e80. Raises ConfError
    for a missing folder."""
    from raypipe.runs.pipeline.ingest_folder import folder_id

    session = session or Session()
    place = documents_folder(folder, session)
    name = re.sub(r"[^a-z0-9]+", "-", place.name.lower())[:NAME_CHARS].strip("-")
    return str(session.settings.stores / "-".join(filter(None, ("docs", name, folder_id(place)[:6]))))


def documents_folder(folder: str | Path, session: Session) -> Path:
    """Returns the absolute path of a folder of documents. Raises ConfError if it does not exist."""
    path = Path(session.settings.place(str(folder), "--docs"))
    if not path.exists():
        raise ConfError(f"--docs: expected a folder of documents, or a file, found nothing at {path}")
    return path


def docs_store(
    docs: str | Path | None,
    store: Place,
    session: Session,
    out: str | Path | None = None,
    read: bool = False,
) -> Place:
    """Returns the store that a call uses. It is `store`, or else the own store of the folder `docs`. With
    `read`, changed files of `docs` are first read into it. Raises ConfError if `docs` is missing or contains
    `out`. Without `docs`, only returns `store`."""
    if docs is None:
        return store
    folder = documents_folder(docs, session)
    if out is not None and not is_remote(str(out)) and Path(out).resolve().is_relative_to(folder.resolve()):
        raise ConfError(f"--out {out}: expected a folder outside of --docs {docs}, whose files are read")
    if read:
        return ingest_documents(folder, store, session).store
    return store or documents_store(folder, session)


def ingest_documents(folder: str | Path, store: Place = None, session: Session | None = None) -> IngestResult:
    """Reads the changed files of a folder into a store: txt, md, html, csv, pdf, docx and images.

    `store` None means the folder's own store (`documents_store`). Documents of removed files are deleted. New
    texts must be indexed before a search. A file that cannot be read becomes a dead letter (a recorded
    failure). Raises ConfError for a missing folder, and DataError if none of its files can be read; this also
    deletes all documents of the folder.
    """
    session = session or Session()
    path = documents_folder(folder, session)
    return ingest([path], documents_store(path, session) if store is None else store, "files", session)


@dataclass(frozen=True, slots=True, repr=False)
class ParsedFile(Result):
    """Text of an HTML file: a line of `raypipe parse --json`."""

    file: str
    text: str | None  # None: parsing failed
    fault: Fault | None


def parse_html(files: Iterable[str | Path]) -> Iterator[ParsedFile]:
    """Converts HTML files to text with lxml, in order. Like a pipeline, it parses in a child process with
    limits. A page that cannot be parsed gets a fault. Raises DataError for a file that cannot be read."""
    with SandboxedParser() as limited:
        for file in files:
            try:
                html = Path(file).read_bytes().decode("utf-8", "replace")
            except OSError as e:
                raise DataError(f"{file}: expected an HTML file, found none to read: {e.strerror}") from e
            text, fault = limited.parse(html)
            yield ParsedFile(str(file), text, fault)


LOOKED_AT = 50  # rows searched for the first question and the first document
CHARS = 300  # characters shown of a text


@dataclass(frozen=True, slots=True)
class FileFields:
    """Fields of one file of rows."""

    file: str
    fields: Mapping[str, tuple[str, ...]]  # role -> fields
    named: tuple[str, ...]  # roles that the user named; common names matched the others
    unused: tuple[str, ...]  # fields that are not read


@dataclass(frozen=True, slots=True)
class ShownText:
    """A text of a question's own documents, as a preview shows it."""

    kind: str  # page: HTML; snippet, name, document: plain text
    url: str  # may be ""
    title: str  # may be ""
    chars: int
    text: str  # its beginning


@dataclass(frozen=True, slots=True)
class FirstQuestion:
    """First question of the previewed files, in the form in which a store would hold it."""

    id: str
    query: str
    asked_at: str  # may be ""
    answers: tuple[str, ...]
    labels: Mapping[str, str]
    documents: tuple[ShownText, ...]
    searches_store: bool  # True: the question names no documents, so it searches the whole store


@dataclass(frozen=True, slots=True)
class FirstDocument:
    """First document of the previewed files, in the form in which a store would hold it."""

    id: str
    title: str
    chars: int
    text: str  # its beginning


@dataclass(frozen=True, slots=True, repr=False)
class Preview(Result):
    """Preview of an ingest. Each role that a file's fields play, such as query, is a row."""

    data_format: str  # value of --format
    files: tuple[FileFields, ...]  # only files of rows; other formats have fixed fields
    question: FirstQuestion | None
    document: FirstDocument | None
    bad_lines: tuple[BadLine, ...]  # at most three unreadable lines among the first rows

    def rows(self) -> Sequence[Mapping[str, Any]]:
        roles = ((f.file, role, names) for f in self.files for role, names in f.fields.items())
        return [{"file": file, "role": role, "field": "+".join(names)} for file, role, names in roles]


def preview(
    paths: Data, format: Format | None = None, fields: Fields | None = None, session: Session | None = None
) -> Preview:
    """Shows how `ingest` would read some files: format, fields, and the first rows. Stores nothing.

    Takes the arguments of `ingest`. Raises DataError for files that cannot be read. Raises ConfError for a
    folder of documents, which has no fields, and for a named field that no file has.
    """
    files = inputs(paths, (session or Session()).settings)
    if (found := ingested_as(format, files, fields)) == "files":
        raise ConfError(f"{files[0]}: a dry run shows fields and rows, and a folder of documents has none")
    readers.check(files, found)
    name = readers.format_name(found)
    named = found if isinstance(found, RowFormat) else RowFormat()
    mapped = own_rows.mapped(files, named) if name == own_rows.NAME else []
    counts = ReadCounts()
    first = list(islice(readers.open(files, found, counts), LOOKED_AT))
    bad = [BadLine(r.where, f.reason, f.detail) for r in first for f in r.faults]
    readers.require_rows(files, counts, bad[:3])
    question = next((_question(r, r.question) for r in first if r.question is not None), None)
    document = None
    if (row := next((r for r in first if r.document is not None), None)) and (d := row.document):
        content = next(s.content for s in row.sources if s.id == d.source)
        document = FirstDocument(d.id, d.title, len(content), content[:CHARS])
    return Preview(name, tuple(_fields(m) for m in mapped), question, document, tuple(bad[:3]))


def _fields(mapped: own_rows.MappedFile) -> FileFields:
    found = {**mapped.fields.fields, **{r: (f"documents: {n}",) for r, n in mapped.fields.inner.items()}}
    every = [name for names in found.values() for name in names]
    used = {*every, *(name.partition(".")[0] for name in every)}
    other = tuple(n for n in field_map.columns(mapped.first) if n not in used)
    return FileFields(mapped.file.name, found, tuple(sorted(mapped.fields.named)), other)


def _question(row: Row, asked: Question) -> FirstQuestion:
    content = {s.id: s for s in row.sources}
    shown = []
    for c in asked.citations or ():
        source = content.get(c.page or c.snippet or c.name or "")
        title = content[c.name].content if c.name and c.page else ""
        if source is not None:
            shown.append(ShownText(source.kind, c.url, title, len(source.content), source.content[:CHARS]))
    gold, whole = row.gold or Gold(asked.id, ()), asked.citations is None
    labels = dict(gold.labels)
    return FirstQuestion(asked.id, asked.text, asked.asked_at, gold.answers, labels, tuple(shown), whole)
