"""Output of readers (rows and counts of normalisations), and the limits on their input.

Depends on the records only, not on files or formats. A reader turns every line into one `Row` or adds it to
one count. The caller that stores the rows can therefore prove that no line was lost:

    lines == blank_lines + rows + faults + repeated_rows + empty_documents + dropped_rows + older_pages

A read stores the ids of its earlier rows on disk, so their number is not bounded by memory. The ids of other
reads are passed in as plain values (`Seen`): shards that are read separately then give the rows of one read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from raypipe.core.bounded_rows import DiskMap, key_of
from raypipe.core.errors import DataError, RaypipeError
from raypipe.core.records import (
    CAPTURED_ID,
    Document,
    Fault,
    Gold,
    Layout,
    Question,
    Source,
    SourceKind,
    digest,
    source_id,
)

STEP = "read"  # `Fault.step` of all faults of readers


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """Caps that keep hostile input from filling memory or disk."""

    # Bytes of a line. Fifty real pages have 16 MB on average (319 KB each); a line of 200 MB is refused.
    line_bytes: int = 128 << 20
    # Unpacked bytes of a file. All of CRAG task 3 is some 50 GB of JSON.
    inflated_bytes: int = 256 << 30
    # Unpacked bytes per packed byte. Under bz2 real pages shrink 7-fold and repetitive made-up ones some
    # 50-fold; gzip cannot exceed 1,032.
    ratio: int = 200
    # Unpacked bytes below which any ratio is accepted: a small file of equal rows is no bomb.
    ratio_free_bytes: int = 64 << 20


LIMITS = ReaderLimits()


@dataclass(frozen=True, slots=True)
class DocumentLimits:
    """Caps that confine the damage of a hostile or broken file to that file. docs/files.md gives the source
    of each number."""

    file_bytes: int = 256 << 20  # of any file: the child process that reads a PDF holds all of it
    text_bytes: int = 20_000_000  # of txt, md, html and csv: the step `parse` refuses longer pages
    file_s: float = 120.0  # wall time of one file
    page_wall_s: float = 20.0  # wall time of one page: a busy machine takes ten times as long
    page_cpu_s: float = 2.0  # text pages took .005 to .04 s
    whole_wall_s: float = 60.0  # wall time of a docx, which is read in one request
    whole_cpu_s: float = 30.0  # CPU time of a docx
    memory_bytes: int = 1 << 30  # in addition to the child's memory at its start
    ocr_cpu_s: float = 60.0  # CPU time of text recognition on one page; a full page took 15 s
    ocr_wall_s: float = 300.0
    ocr_memory_bytes: int = 3 << 29
    pixels: int = 100_000_000  # most pixels of an image: A3 at 600 dots per inch has 70 million
    pages: int = 5_000
    page_chars: int = 2_000_000
    file_chars: int = 20_000_000
    lost_pages: int = 20  # most pages that may end the child before the file's other pages are given up
    zip_member_bytes: int = 64 << 20  # unpacked
    zip_ratio: int = 200  # unpacked bytes per packed byte, of a member larger than zip_ratio_free_bytes
    zip_ratio_free_bytes: int = 1 << 20
    zip_members: int = 10_000
    zip_bytes: int = 256 << 20  # of all members together, unpacked


DOCUMENT_LIMITS = DocumentLimits()


@dataclass(slots=True)
class ReadCounts:
    """Counts of lines, rows, faults and normalisations. The reader fills them while its rows are taken."""

    files: int = 0  # archives and plain files; a split file counts once
    bytes_read: int = 0  # as stored on disk; divided by `readers.size` it gives the progress
    other_files: int = 0  # files of a kind that no reader takes, in the folders of the data
    empty_files: int = 0  # files of 0 bytes
    lines: int = 0  # lines of all files, including blank ones
    rows: int = 0  # rows yielded with a question or a document
    faults: int = 0  # lines that gave neither a question nor a document
    judgements: int = 0  # lines of relevance judgements; not included in `lines`
    unknown_golds: int = 0  # papers named by questions of OAG-QA but missing from its files of papers
    repeated_rows: int = 0  # rows with the id and the content of an earlier row
    empty_documents: int = 0  # documents with a blank title and text
    dropped_rows: int = 0  # questions that a reviewer marked as drop
    older_pages: int = 0  # pages of a crawl that it fetched again later
    other_records: int = 0  # records of a crawl that are no page (redirects, images, ...); not in `lines`
    page_faults: int = 0  # pages, or lines of a table, omitted from a row that was yielded
    blank_lines: int = 0
    byte_order_marks: int = 0
    crlf_lines: int = 0
    nul_lines: int = 0  # lines whose texts had U+0000, which was removed
    null_fields: int = 0  # nulls in text fields that may be empty, read as ""
    number_golds: int = 0  # gold answers that were numbers, read as text
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
    """Records of one line, one field per table. A row of an unusable line has only its fault."""

    where: str  # file:line, the row's name among dead letters
    question: Question | None = None
    gold: Gold | None = None
    document: Document | None = None
    layout: Layout | None = None  # pages and sections of the document, for citations
    sources: tuple[Source, ...] = ()  # distinct within the row; `unseen` drops repeats between rows
    faults: tuple[Fault, ...] = ()  # of the unusable line, or of the pages that were omitted from the row

    @property
    def used(self) -> bool:
        return self.question is not None or self.document is not None


@dataclass(frozen=True, slots=True)
class BadLine:
    """Report of a line that cannot be read, or that lost a page."""

    where: str  # file:line
    reason: str  # of the fault: missing_field, bad_json, ...
    detail: str  # field, expected value and found value

    def __str__(self) -> str:
        return f"{self.where}: {self.reason.replace('_', ' ')}: {self.detail}"


def require_rows(paths: Iterable[object], counts: ReadCounts, first: Iterable[BadLine]) -> None:
    """Raises DataError if files gave no row at all. The message shows the lines `first`."""
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
    """Error of a line that cannot become a row. The reader catches it and stores it as the row's fault."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.fault = Fault(STEP, reason, detail, transient=False)


@contextmanager
def blamed() -> Iterator[None]:
    """Turns an exception that a row's values cause into UnusableLine, so that it costs only that row. Errors
    that no row causes pass unchanged: those of a file, a service, a disk or memory."""
    try:
        yield
    except (UnusableLine, RaypipeError, OSError, MemoryError):
        raise
    except RecursionError as e:
        raise UnusableLine("too_deep", TOO_DEEP) from e
    except Exception as e:
        raise UnusableLine("unreadable", f"{type(e).__name__}: {e}"[:300]) from e


TOO_DEEP = "expected a few levels of nesting, found hundreds"


class DuplicateCheck:
    """Check of ids, which tells repeated rows from conflicting ones. It stores the ids on disk."""

    def __init__(self, before: Mapping[bytes, str] = MappingProxyType({})) -> None:
        """Starts the check. `before`: first rows of earlier reads, as `firsts` yields them."""
        self._first = DiskMap()  # id -> content digest, where
        self._before = before

    def repeats(self, id: str, content: object, where: str) -> bool:
        """Returns whether an earlier row has this id and this content. Raises UnusableLine if an earlier row
        has this id with other content."""
        now = digest(repr(content))
        first = self._before.get(key_of(id)) if self._before else None
        before, _, at = (first or self._first.setdefault(id, f"{now} {where}")).partition(" ")
        if before != now:
            raise UnusableLine(
                "conflicting_id", f"id {id!r} was read before with other content, at {at}; that row is kept"
            )
        return at != where

    def knows(self, id: str) -> bool:
        return id in self._first

    def firsts(self) -> Iterator[tuple[bytes, str]]:
        """Yields, for the first row of each id read here, `key_of` the id and its "DIGEST WHERE"."""
        return self._first.items()


def source_of(kind: SourceKind, content: str) -> Source:
    """Makes a source from a text; the digest of kind and content is its id."""
    return Source(source_id(kind, content), kind, content)


def unseen(sources: tuple[Source, ...], seen: set[str] | DiskMap) -> list[Source]:
    """Returns the sources whose ids are not in `seen`, and adds their ids to it. Pages repeat within a
    question and between questions."""
    fresh = [s for s in sources if s.id not in seen]
    seen.update(s.id for s in fresh)
    return fresh


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of a row. Its methods return fields, and raise UnusableLine if a field is not as expected."""

    value: Mapping[str, Any]
    path: str = ""  # path of the object within the row, for messages: "citations[0]."

    def get(self, name: str, expected: type = str) -> Any:
        path, wanted = f"{self.path}{name}", KINDS[expected]
        if name not in self.value:
            raise UnusableLine("missing_field", f"{path}: expected {wanted}, found no such field")
        found = self.value[name]
        if type(found) is not expected:
            raise UnusableLine("wrong_type", f"{path}: expected {wanted}, found {kind(found)}")
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


class Newest:
    """Newest pages of the addresses of a crawl, stored on disk. Call `note` for every page first, then
    `has` for each."""

    def __init__(self, place: int = 0, others: Mapping[bytes, str] = MappingProxyType({})) -> None:
        """Starts without pages. `place`: number of this read among the reads of all files. `others`: newest
        pages of the other reads, as their `notes` yields them."""
        self._last, self._count, self._place, self._others = DiskMap(), 0, place, others

    def note(self, url: str, date: str, where: str) -> None:
        """Records a page of an address. `date` is a text of `fields.order_of`. If two pages of an address
        have the same date, the later call wins."""
        self._count += 1
        self._last.setmax(url, f"{date} {self._place:08d}{self._count:014d} {where}")

    def has(self, url: str, date: str, where: str) -> bool:
        found = max(self._last.get(url, ""), self._others.get(key_of(url), "") if self._others else "")
        return found.partition(" ")[0] == date and found.endswith(f" {where}")

    def notes(self) -> Iterator[tuple[bytes, str]]:
        """Yields, for the newest page of each address read here, `key_of` the address and "DATE ORDER WHERE".
        An address with a newer page in another read is left out. To merge the notes of several reads, keep
        the greatest value of each address."""
        return ((key, value) for key, value in self._last.items() if value > self._others.get(key, ""))


@dataclass(frozen=True, slots=True)
class Seen:
    """Ids and addresses of the rows that were read, by which a read omits repeats and older pages."""

    questions: DuplicateCheck = dataclasses.field(default_factory=DuplicateCheck)
    documents: DuplicateCheck = dataclasses.field(default_factory=DuplicateCheck)
    newest: Newest = dataclasses.field(default_factory=Newest)
    captured: bool = False  # whether the read's questions were captured at an endpoint

    def repeats(self, row: Row) -> bool:
        """Returns whether an earlier row equals this one. Raises UnusableLine if an earlier row has the same
        id with other content. Raises UnusableLine if the id begins as the ids of captured questions do, and
        the read is not of captured questions."""
        if row.question is not None:
            if row.question.id.startswith(CAPTURED_ID) and not self.captured:
                raise UnusableLine(
                    "reserved_id",
                    f"id: expected no id that begins with {CAPTURED_ID!r}, which marks captured questions. "
                    "Rename it",
                )
            return self.questions.repeats(row.question.id, (row.question, row.gold), row.where)
        return row.document is not None and self.documents.repeats(row.document.id, row.document, row.where)


@dataclass(frozen=True, slots=True)
class Span:
    """Range of a file that is read separately: bytes of whole lines, or row groups of Parquet."""

    start: int  # first byte or row group
    stop: int  # end of the range, exclusive
    first: int  # number of the range's first line or row in the file, from 1


@dataclass(frozen=True, slots=True)
class FileRead:
    """State of one read of files: its counts, its limits, and the rows that it and other reads have seen."""

    counts: ReadCounts
    limits: ReaderLimits = LIMITS
    seen: Seen = dataclasses.field(default_factory=Seen)
    span: Span | None = None  # range of the only file to read; None: read the files whole

    def settled(self, where: str, make: Callable[[], Row | None], once: bool = False) -> Iterator[Row]:
        """Yields the row that `make` returns, and adds it to the counts. If `make` raises UnusableLine,
        yields a row with only that fault. Yields nothing if `make` returns None (an empty document), or if
        the row repeats an earlier one. `once` skips the check for repeats."""
        try:
            with blamed():
                row = make()
            if row is None:
                self.counts.empty_documents += 1
                return
            if not once and self.seen.repeats(row):
                self.counts.repeated_rows += 1
                return
        except UnusableLine as e:
            row = Row(where, faults=(e.fault,))
        self.counts.rows += row.used
        self.counts.faults += not row.used
        yield row

    def refused(self, where: str, error: UnusableLine) -> Row:
        """Returns a row with only the fault of an unusable line, and adds it to the counts."""
        self.counts.faults += 1
        return Row(where, faults=(error.fault,))
