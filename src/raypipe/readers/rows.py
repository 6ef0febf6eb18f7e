"""Data types of readers: rows, counts, limits, faults, and `Fields`, which checks the fields of a row.

This module opens no files. A "line" may also be a record of a file without lines: a paper, a page, a row of
Parquet. A reader yields each line as a `Row`, or only counts it, such as a blank line. The counts let a
caller that stores the rows prove that no line was lost:

    lines == blank_lines + rows + faults + repeated_rows + empty_documents + dropped_rows + older_pages
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from raypipe.core.bounded_rows import DiskMap
from raypipe.core.errors import DataError, RaypipeError
from raypipe.core.records import Document, Fault, Gold, Layout, Question, Source, SourceKind, source_id

STEP = "read"  # `Fault.step` of all faults of readers


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """Caps that keep hostile input from filling memory or disk."""

    # Most bytes of a line. A line of CRAG with fifty real pages, of 319 KB each, has 16 MB on average.
    line_bytes: int = 128 << 20
    # Most unpacked bytes of a packed file. All of CRAG task 3 is some 50 GB of JSON.
    inflated_bytes: int = 256 << 30
    # Most unpacked bytes per packed byte. Under bz2 real pages shrink 7-fold, and repetitive made-up pages
    # some 50-fold. Under gzip nothing shrinks more than 1,032-fold.
    ratio: int = 200
    # Unpacked bytes up to which any ratio is accepted: a small file of equal rows is no bomb.
    ratio_free_bytes: int = 64 << 20


LIMITS = ReaderLimits()


@dataclass(frozen=True, slots=True)
class DocumentLimits:
    """Caps that confine the damage of a bad file to that file. docs/files.md explains them."""

    file_bytes: int = 256 << 20  # most bytes of any file: a child process holds a whole PDF
    text_bytes: int = 20_000_000  # of txt, md, html, csv: the step `parse` refuses longer pages
    file_s: float = 120.0  # wall time of a PDF's pages, tested every 64 pages; without OCR
    page_wall_s: float = 20.0  # wall time of one page: on a busy machine ten times its CPU time
    page_cpu_s: float = 2.0  # CPU time of one page; pages of text took .005 to .04 s
    whole_wall_s: float = 60.0  # wall time of a docx, which is read in one request
    whole_cpu_s: float = 30.0  # CPU time of a docx
    memory_bytes: int = 1 << 30  # of a child process, in addition to its memory at its start
    ocr_cpu_s: float = 60.0  # CPU time of text recognition on one page; a full page took 15 s
    ocr_wall_s: float = 300.0
    ocr_memory_bytes: int = 3 << 29  # of the child that recognises text, as `memory_bytes`
    pixels: int = 100_000_000  # most pixels of an image: A3 at 600 dots per inch has 70 million
    pages: int = 5_000  # of a PDF; a longer one is refused
    page_chars: int = 2_000_000  # of a PDF's page; a longer one is a fault
    file_chars: int = 20_000_000  # of a PDF; after that, its other pages are given up
    lost_pages: int = 20  # most pages that may end the child; after more, the others are given up
    zip_member_bytes: int = 64 << 20  # most unpacked bytes of one member
    zip_ratio: int = 200  # unpacked bytes per packed byte, of a member larger than zip_ratio_free_bytes
    zip_ratio_free_bytes: int = 1 << 20
    zip_members: int = 10_000
    zip_bytes: int = 256 << 20  # most unpacked bytes of all members together


DOCUMENT_LIMITS = DocumentLimits()


@dataclass(slots=True)
class ReadCounts:
    """Counts of lines, rows, faults and normalisations, which grow while rows are read."""

    files: int = 0  # archives and plain files; a split file counts once
    bytes_read: int = 0  # as stored on disk; divided by `readers.size` it gives the progress
    other_files: int = 0  # files in folders and archives that the format does not read; not counted by all
    empty_files: int = 0  # files of 0 bytes
    lines: int = 0  # lines and records of all files, including blank lines
    rows: int = 0  # rows yielded with a question or a document
    faults: int = 0  # rows yielded with neither: unusable lines
    judgements: int = 0  # lines of relevance judgements; not included in `lines`
    unknown_golds: int = 0  # papers in golds of OAG-QA that its files of papers lack, once per gold
    repeated_rows: int = 0  # rows with the id and the content of an earlier row
    empty_documents: int = 0  # documents without content; they are left out
    dropped_rows: int = 0  # questions that a reviewer marked as drop
    older_pages: int = 0  # pages that were fetched again later, by a crawl or by dated rows
    other_records: int = 0  # records of a crawl other than pages (redirects, ...); not in `lines`
    page_faults: int = 0  # pages, or lines of a table, that a yielded row lacks
    blank_lines: int = 0
    byte_order_marks: int = 0
    crlf_lines: int = 0
    nul_lines: int = 0  # lines whose texts had U+0000, which was removed
    null_fields: int = 0  # nulls in text fields that may be empty, read as "" (in OAG-QA missing fields, too)
    number_golds: int = 0  # gold answers that were no text, such as numbers; read as text
    empty_pages: int = 0  # pages that are empty or white space, and so give no source
    questions_without_pages: int = 0
    made_questions: int = 0  # questions that a model made (`raypipe questions`)
    unreviewed_questions: int = 0  # made questions that no person has reviewed
    unchanged_files: int = 0  # files of a folder that are unchanged, and not read again
    removed_files: int = 0  # files of a folder that existed at the last read and are missing now
    protected_files: int = 0  # PDFs with an owner's password that restricts their use; they are read
    reordered_pages: int = 0  # pages of PDFs whose two columns were stored row by row
    recognised_pages: int = 0  # pages of PDFs and images that text recognition read


@dataclass(frozen=True, slots=True)
class Row:
    """Records that one line gives: question, gold, document, layout, sources. An unusable line has only a
    fault (the reason why it cannot be read)."""

    where: str  # file:line, or file:id; it names the row among dead letters
    question: Question | None = None
    gold: Gold | None = None
    document: Document | None = None
    layout: Layout | None = None  # pages and sections of the document, for citations
    sources: tuple[Source, ...] = ()  # distinct within the row; `unseen` drops repeats from other rows
    faults: tuple[Fault, ...] = ()  # of the unusable line, or one for each page that the row lacks

    @property
    def used(self) -> bool:
        return self.question is not None or self.document is not None


@dataclass(frozen=True, slots=True)
class BadLine:
    """Report of a line that cannot be read, or that lacks one of its pages."""

    where: str  # file:line
    reason: str  # of the fault: missing_field, bad_json, ...
    detail: str  # field, expected value and found value

    def __str__(self) -> str:
        return f"{self.where}: {self.reason.replace('_', ' ')}: {self.detail}"


def require_rows(paths: Iterable[object], counts: ReadCounts, first: Iterable[BadLine]) -> None:
    """Raises DataError if no line gave a question or a document. The message shows the bad lines `first`.
    Files with only relevance judgements are accepted."""
    files, lines = ", ".join(map(str, paths)), counts.lines - counts.blank_lines
    if counts.rows or (counts.judgements and not lines):
        return
    if not lines:
        raise DataError(f"{files}: expected questions or documents, found no lines")
    shown = "".join(f"\n  {bad}" for bad in first)
    raise DataError(
        f"{files}: none of {lines} lines could be read{':' if shown else ''}{shown}\n"
        "docs/formats.md shows a line of each format, docs/extend.md a reader of your own (--format)"
    )


class UnusableLine(Exception):
    """Error of a line that cannot become a row. Readers store it as the row's fault."""

    def __init__(self, reason: str, detail: str, transient: bool = False) -> None:
        super().__init__(f"{reason}: {detail}")
        self.fault = Fault(STEP, reason, detail, transient)


@contextmanager
def blamed() -> Iterator[None]:
    """Turns exceptions raised in its block into UnusableLine, so that a bad value costs only its row.
    OSError, MemoryError and raypipe's own errors pass unchanged."""
    try:
        yield
    except (UnusableLine, RaypipeError, OSError, MemoryError):
        raise
    except RecursionError as e:
        raise UnusableLine("too_deep", TOO_DEEP) from e
    except Exception as e:
        raise UnusableLine("unreadable", f"{type(e).__name__}: {e}"[:300]) from e


TOO_DEEP = "expected a few levels of nesting, found hundreds"


def source_of(kind: SourceKind, content: str) -> Source:
    """Makes a source from a text; the digest of kind and content is its id."""
    return Source(source_id(kind, content), kind, content)


def unseen(sources: tuple[Source, ...], seen: set[str] | DiskMap) -> list[Source]:
    """Returns the sources whose ids are not in `seen`, and adds their ids to `seen`."""
    fresh = [s for s in sources if s.id not in seen]
    seen.update(s.id for s in fresh)
    return fresh


@dataclass(frozen=True, slots=True)
class Fields:
    """Fields of a row, or of an object in it. Methods raise UnusableLine if a field is not as expected."""

    value: Mapping[str, Any]
    path: str = ""  # path of the object within the row, for messages: "citations[0]."

    def get(self, name: str, expected: type = str) -> Any:
        wanted = f"{self.path}{name}: expected {KINDS[expected]}"
        if name not in self.value:
            raise UnusableLine("missing_field", f"{wanted}, found no such field")
        found = self.value[name]
        if type(found) is not expected:
            raise UnusableLine("wrong_type", f"{wanted}, found {kind(found)}")
        return found

    def listed(self, name: str, expected: type | None = None) -> list[Any]:
        """Returns a list field whose entries have the type `expected`; [] if it is null or missing."""
        found: list[Any] = [] if self.value.get(name) is None else self.get(name, list)
        for n, entry in enumerate(found):
            if expected is not None and type(entry) is not expected:
                path, wanted = f"{self.path}{name}[{n}]", KINDS[expected]
                reason = "not_object" if expected is dict else "wrong_type"
                raise UnusableLine(reason, f"{path}: expected {wanted}, found {kind(entry)}")
        return found

    def objects(self, name: str) -> list[Fields]:
        """Returns the objects in a list field; [] if it is null or missing."""
        found = enumerate(self.listed(name, dict))
        return [Fields(entry, f"{self.path}{name}[{n}].") for n, entry in found]

    def filled(self, name: str) -> str:
        text: str = self.get(name)
        if not text or text.isspace():
            raise UnusableLine("missing_field", f"{self.path}{name}: expected text, found a blank one")
        return text

    def identifier(self, name: str) -> str:
        """Returns an id as text; a whole number becomes its digits."""
        found = self.value.get(name, "")
        if name in self.value and found in (None, ""):
            raise UnusableLine("no_id", f"{name}: expected text, found {found!r}")
        return str(found) if type(found) is int else self.filled(name)


KINDS: dict[type, str] = {
    str: "text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def kind(value: object) -> str:
    return KINDS.get(type(value), type(value).__name__)
