"""Data: files into a store, HTML to text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raypipe.api.results import Result, as_json
from raypipe.api.session import Place, Session
from raypipe.core.errors import ConfError, DataError
from raypipe.core.records import Fault

if TYPE_CHECKING:
    from raypipe.api.paths import Data
    from raypipe.pipeline.ingest_log import IngestSummary
    from raypipe.readers import BadLine, Format
    from raypipe.readers.field_map import Fields
    from raypipe.text.html import Parser


@dataclass(frozen=True, slots=True)
class IngestResult(Result):
    """Counts of the files read: what was counted, then why lines and pages were omitted."""

    SCHEMA = "what rows:int64"
    store: str  # URI
    summary: IngestSummary
    sources: int  # in the store, these and earlier ones
    bad: tuple[BadLine, ...]  # the first lines that could not be read, or lost a page

    @property
    def title(self) -> str:
        read = "read before: " if self.summary.again else ""
        found = f"{len(self.summary.questions)} questions"
        if self.summary.counts.get("unchanged_files") or not self.summary.questions:
            found = f"{self.summary.documents} documents"
        by = f", read by {self.summary.read_by}" if self.summary.read_by and not self.summary.again else ""
        return f"{self.store}: {read}{found}, {self.sources} sources in all{by}"

    def rows(self) -> Iterator[Mapping[str, Any]]:
        for what, count in (*self.summary.counts.items(), *self.summary.reasons.items()):
            yield {"what": what, "rows": count}

    def to_json(self) -> dict[str, Any]:
        s = self.summary
        return as_json(
            store=self.store, again=s.again, questions=len(s.questions), kind=s.kind, read_by=s.read_by,
            **s.counts, reasons=s.reasons, replaced=s.replaced, bad_lines=self.bad,
        )  # fmt: skip


def ingest(
    paths: Data, store: Place = None, format: Format | None = None, session: Session | None = None,
    fields: Fields | None = None, globs: Sequence[str] = (), kind: str | None = None,
) -> IngestResult:  # fmt: skip
    """Reads files into a store, each line once; the same bytes again change nothing.

    `paths` are files, folders of files, or URIs. `format` None: by their looks; files: folders of txt, md,
    html, csv, pdf and docx, of which `globs` choose. `kind` says which golds the data brings and how it is
    scored: crag, qa, qasper, ranking or MODULE:NAME; None: the format's. `fields` names the fields of rows,
    where common names do not find them: `{"query": "prompt"}`. The store is made where there is none. Raises
    ConfError for no kind and for a named field that is not there, DataError for a missing or damaged file,
    and where no line can be read; then the store is unchanged.
    """
    from raypipe import readers
    from raypipe.api.paths import documents_alone, format_for, inputs
    from raypipe.api.pipelines import open_reading
    from raypipe.metrics.named_kinds import open_kind
    from raypipe.pipeline import ingest as ingesting
    from raypipe.pipeline.ingest_folder import ingest_folder
    from raypipe.pipeline.ingest_log import merged
    from raypipe.pipeline.ingest_staging import BAD_SHOWN

    session = session or Session()
    if kind is not None:
        open_kind(kind)
    files = inputs(paths, session.settings)
    found = (
        "files"
        if format is None and not fields and documents_alone(files)
        else format_for(format, files, fields)
    )
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
            with open_reading(session, filled) as reading:
                reads = [ingesting.ingest(filled, files, found, progress, kind=kind, reading=reading)]
    bad = [b for read in reads for b in ingesting.bad_lines(filled, read.fingerprint)]
    return IngestResult(filled.uri, merged(reads), filled.count("sources"), tuple(bad[:BAD_SHOWN]))


def documents_store(folder: str | Path, session: Session | None = None) -> str:
    """The store that a folder of documents has of its own, under $RAYPIPE_HOME; made or not."""
    from raypipe.api.paths import inputs
    from raypipe.pipeline.ingest_folder import folder_id

    session = session or Session()
    [place] = inputs([folder], session.settings)
    return str(session.settings.stores / f"docs-{folder_id(place)[:12]}")


def ingest_documents(
    folder: str | Path, store: Place = None, globs: Sequence[str] = (), session: Session | None = None
) -> IngestResult:
    """Reads a folder of txt, md, html, csv, pdf and docx files: those that changed since it was read last.

    `store` None: the one that the folder has of its own (`documents_store`). What a question about the whole
    store searches is then the folder as it is now, and answers cite its pages. Files that cannot be read are
    dead letters. `globs`: patterns of paths, with `!` before those to leave out.
    Raises DataError where no file of the folder can be read.
    """
    session = session or Session()
    return ingest(
        [folder], documents_store(folder, session) if store is None else store, "files", session, globs=globs
    )


@dataclass(frozen=True, slots=True)
class ParsedFile(Result):
    """One HTML file as text: a line of `raypipe parse --json`."""

    file: str
    text: str | None  # None: it could not be parsed
    fault: Fault | None


def parse_html(files: Iterable[str | Path], parser: Parser = "lxml") -> Iterator[ParsedFile]:
    """HTML files as text, in order, as the pipeline parses them: in a limited child process.

    Raises DataError for a file that cannot be read; a page that cannot be parsed has a fault.
    """
    from raypipe.text.page_parser import SandboxedParser

    with SandboxedParser() as limited:
        for file in files:
            try:
                html = Path(file).read_bytes().decode("utf-8", "replace")
            except OSError as e:
                found = f"found none that can be read: {e.strerror}"
                raise DataError(f"{file}: expected an HTML file, {found}") from e
            text, fault = limited.parse(html, parser)
            yield ParsedFile(str(file), text, fault)
