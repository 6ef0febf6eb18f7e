"""The output of readers: rows, counts of what was normalised, and limits on the input.

Knows the records, nothing of files or formats. A reader turns every line into one `Row` or into a count, so
that the caller that stores the rows can prove that nothing was lost:

    lines == blank_lines + rows + faults + repeated_rows + empty_documents + dropped_rows + older_pages

What a read knows of rows that came before lies on disk, however many there are. What other reads found comes
in as plain values, so that files can be read apart and give the rows of one read (`Seen`).
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

STEP = "read"  # `Fault.step` of everything found here


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """Caps that keep hostile input from filling memory or disk."""

    # Fifty real pages are 16 MB on average (319 KB each); 200 MB is refused.
    line_bytes: int = 128 << 20
    # All of CRAG task 3 is some 50 GB of JSON.
    inflated_bytes: int = 256 << 30
    # Real pages shrink 7-fold under bz2, repetitive made-up ones some 50-fold; gzip cannot pass 1,032.
    ratio: int = 200
    # Below this a high ratio is harmless: a small file of equal rows is no bomb.
    ratio_free_bytes: int = 64 << 20


LIMITS = ReaderLimits()


@dataclass(frozen=True, slots=True)
class DocumentLimits:
    """Caps that keep a hostile or broken file from costing more than itself. docs/files.md says where each
    number comes from."""

    file_bytes: int = 256 << 20  # of any file: a PDF is held whole by the child that reads it
    text_bytes: int = 20_000_000  # of txt, md, html and csv: `parse` reads no longer page
    file_s: float = 120.0  # wall time of one file
    page_wall_s: float = 20.0  # of one page: a machine with much else to do takes ten times as long
    page_cpu_s: float = 2.0  # text pages took .005 to .04 s
    whole_wall_s: float = 60.0  # of a docx, which is read as one
    whole_cpu_s: float = 30.0
    memory_bytes: int = 1 << 30  # on top of what the child has when it starts
    ocr_cpu_s: float = 60.0  # of a page that is read from its picture; a full one took 15 s
    ocr_wall_s: float = 300.0
    ocr_memory_bytes: int = 3 << 29
    pixels: int = 100_000_000  # of an image: A3 at 600 dots per inch has 70 million
    pages: int = 5_000
    page_chars: int = 2_000_000
    file_chars: int = 20_000_000
    lost_pages: int = 20  # pages that may kill the child before the rest of a file is given up
    zip_member_bytes: int = 64 << 20  # unpacked
    zip_ratio: int = 200  # of a member that is larger than zip_ratio_free_bytes
    zip_ratio_free_bytes: int = 1 << 20
    zip_members: int = 10_000
    zip_bytes: int = 256 << 20  # of all members, unpacked


DOCUMENT_LIMITS = DocumentLimits()


@dataclass(slots=True)
class ReadCounts:
    """Counts of lines, rows, faults and normalisations. The reader fills them while its rows are taken."""

    files: int = 0  # archives and plain files; the parts of a split one count once
    bytes_read: int = 0  # as they lie on disk; against `readers.size` this is the progress
    other_files: int = 0  # next to the data, of a kind no reader takes
    empty_files: int = 0  # 0 bytes
    lines: int = 0  # in all files, blank ones too
    rows: int = 0  # handed out with a question or a document
    faults: int = 0  # lines that made neither
    judgements: int = 0  # lines of relevance judgements; they are not among `lines`
    unknown_golds: int = 0  # papers that a question of OAG-QA names and that its files of papers lack
    repeated_rows: int = 0  # same id and same content as an earlier row
    empty_documents: int = 0  # title and text blank
    dropped_rows: int = 0  # questions that a reviewer marked as drop
    older_pages: int = 0  # of a crawl: the same address was fetched later
    other_records: int = 0  # of a crawl: redirects, images and others that are no page; not among `lines`
    page_faults: int = 0  # pages, or lines of a table, omitted of a row that was handed out
    blank_lines: int = 0
    byte_order_marks: int = 0
    crlf_lines: int = 0
    nul_lines: int = 0  # lines whose texts had U+0000, which was taken out
    null_fields: int = 0  # null where text may be empty: read as ""
    number_golds: int = 0  # gold answers that were numbers: read as text
    empty_pages: int = 0  # page_result empty or white space: no source
    questions_without_pages: int = 0
    made_questions: int = 0  # that a model made (`raypipe questions`)
    unreviewed_questions: int = 0  # of these, how many no person has marked
    unchanged_files: int = 0  # of a folder: not read again
    removed_files: int = 0  # of a folder: there at the read before, and not now
    protected_files: int = 0  # PDFs that an owner's password restricts, read all the same
    reordered_pages: int = 0  # of PDFs: two columns that the file has row by row
    recognised_pages: int = 0  # of PDFs and images: read by text recognition


@dataclass(frozen=True, slots=True)
class Row:
    """The records of one line, by table. An unusable line has its fault and nothing else."""

    where: str  # file:line, names the row among dead letters
    question: Question | None = None
    gold: Gold | None = None
    document: Document | None = None
    layout: Layout | None = None  # of the document: what citations say of its pages and sections
    sources: tuple[Source, ...] = ()  # distinct within the row; see `unseen`
    faults: tuple[Fault, ...] = ()  # of the line, or of pages omitted of a question that is here

    @property
    def used(self) -> bool:
        return self.question is not None or self.document is not None


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that could not be read, or that lost a page."""

    where: str  # file:line
    reason: str  # of its fault: missing_field, bad_json, ...
    detail: str  # the field, what was expected there, what was found

    def __str__(self) -> str:
        return f"{self.where}: {self.reason.replace('_', ' ')}: {self.detail}"


def require_rows(paths: Iterable[object], counts: ReadCounts, first: Iterable[BadLine]) -> None:
    """Raises DataError where nothing could be read of some files, with the first lines that are no rows."""
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
    """A line that cannot become a row. The reader catches it and makes it the row's fault."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.fault = Fault(STEP, reason, detail, transient=False)


@contextmanager
def blamed() -> Iterator[None]:
    """Turns whatever a row's values raise into UnusableLine: one value never ends the read of all.

    What is no row's doing goes on as it is: trouble of a file, a service, a disk or memory.
    """
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
    """Tells repeated rows from conflicting ones. What it knows of each id is on disk."""

    def __init__(self, before: Mapping[bytes, str] = MappingProxyType({})) -> None:
        """`before`: rows that came ahead of all that is read here, as `firsts` of their reads has them."""
        self._first = DiskMap()  # id -> content digest, where
        self._before = before

    def repeats(self, id: str, content: object, where: str) -> bool:
        """Returns whether this id occurred before with this content. Raises UnusableLine for other
        content."""
        now = digest(repr(content))
        first = self._before.get(key_of(id)) if self._before else None
        before, _, at = (first or self._first.setdefault(id, f"{now} {where}")).partition(" ")
        if before != now:
            raise UnusableLine("conflicting_id", f"id {id!r} has other content than at {at}, which is kept")
        return at != where

    def knows(self, id: str) -> bool:
        return id in self._first

    def firsts(self) -> Iterator[tuple[bytes, str]]:
        """(`key_of` id, content digest and where) of the first row of each id that was read here."""
        return self._first.items()


def source_of(kind: SourceKind, content: str) -> Source:
    """A text that can be searched, by the digest of its content."""
    return Source(source_id(kind, content), kind, content)


def unseen(sources: tuple[Source, ...], seen: set[str] | DiskMap) -> list[Source]:
    """The sources whose ids are not in `seen`, which then has them: pages repeat in and between questions."""
    fresh = [s for s in sources if s.id not in seen]
    seen.update(s.id for s in fresh)
    return fresh


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of a row. What gives its fields raises UnusableLine for one that is not as expected."""

    value: Mapping[str, Any]
    path: str = ""  # to it from the row, for messages: "citations[0]."

    def get(self, name: str, expected: type = str) -> Any:
        path, wanted = f"{self.path}{name}", KINDS[expected]
        if name not in self.value:
            raise UnusableLine("missing_field", f"{path}: expected {wanted}, found no such field")
        found = self.value[name]
        if type(found) is not expected:
            raise UnusableLine("wrong_type", f"{path}: expected {wanted}, found {kind(found)}")
        return found

    def listed(self, name: str, expected: type | None = None) -> list[Any]:
        """A list, whose entries are of a type; null, or none there: an empty one."""
        found: list[Any] = [] if self.value.get(name) is None else self.get(name, list)
        for n, entry in enumerate(found):
            if expected is not None and type(entry) is not expected:
                path, wanted = f"{self.path}{name}[{n}]", KINDS[expected]
                reason = "not_object" if expected is dict else "wrong_type"
                raise UnusableLine(reason, f"{path}: expected {wanted}, found {kind(entry)}")
        return found

    def objects(self, name: str) -> list[Fields]:
        """The objects of such a list."""
        found = enumerate(self.listed(name, dict))
        return [Fields(entry, f"{self.path}{name}[{n}].") for n, entry in found]

    def filled(self, name: str) -> str:
        text: str = self.get(name)
        if not text or text.isspace():
            raise UnusableLine("missing_field", f"{self.path}{name}: expected text, found none in it")
        return text

    def identifier(self, name: str) -> str:
        """An id; a whole number is its digits."""
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
    """First note every page, then ask of each: what it knows lies on disk."""

    def __init__(self, place: int = 0, others: Mapping[bytes, str] = MappingProxyType({})) -> None:
        """`place`: of this read among those of other files; `others`: newer fetches that these found, as
        `notes` of their reads has them."""
        self._last, self._count, self._place, self._others = DiskMap(), 0, place, others

    def note(self, url: str, date: str, where: str) -> None:
        """A page of an address; `date` as `fields.order_of` has it. Of two with one date the one that is
        noted last counts."""
        self._count += 1
        self._last.setmax(url, f"{date} {self._place:08d}{self._count:014d} {where}")

    def has(self, url: str, date: str, where: str) -> bool:
        found = max(self._last.get(url, ""), self._others.get(key_of(url), "") if self._others else "")
        return found.partition(" ")[0] == date and found.endswith(f" {where}")

    def notes(self) -> Iterator[tuple[bytes, str]]:
        """(`key_of` address, date, order and where) of the newest page of each address that was read here,
        unless another read has a newer one; of two reads the greater one counts."""
        return ((key, value) for key, value in self._last.items() if value > self._others.get(key, ""))


@dataclass(frozen=True, slots=True)
class Seen:
    """Rows that a read has given and must not give again."""

    questions: DuplicateCheck = dataclasses.field(default_factory=DuplicateCheck)
    documents: DuplicateCheck = dataclasses.field(default_factory=DuplicateCheck)
    newest: Newest = dataclasses.field(default_factory=Newest)
    captured: bool = False  # its questions are captured ones

    def repeats(self, row: Row) -> bool:
        """Returns whether the row came before. Raises UnusableLine for an id that came with other content,
        and for one that captured questions have."""
        if row.question is not None:
            if row.question.id.startswith(CAPTURED_ID) and not self.captured:
                raise UnusableLine(
                    "reserved_id",
                    f"id: expected another begin than {CAPTURED_ID!r}, which names what users of an endpoint "
                    "asked. Rename it",
                )
            return self.questions.repeats(row.question.id, (row.question, row.gold), row.where)
        return row.document is not None and self.documents.repeats(row.document.id, row.document, row.where)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a file that is read apart: bytes of whole lines, or row groups of Parquet."""

    start: int  # first byte or row group
    stop: int  # the one behind the last
    first: int  # number of its first line or row in the file, from 1


@dataclass(frozen=True, slots=True)
class FileRead:
    """A read of files by a format: its counts and limits, and what it and other reads found."""

    counts: ReadCounts
    limits: ReaderLimits = LIMITS
    seen: Seen = dataclasses.field(default_factory=Seen)
    span: Span | None = None  # of the one file that is read; None: all of it

    def settled(self, where: str, make: Callable[[], Row | None], once: bool = False) -> Iterator[Row]:
        """The row that `make` gives, or the fault of a line that cannot be used; nothing for a row that came
        before, or where there is nothing in it. Counts which of them it was. `once`: it came not before."""
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
        """The row of a line that cannot be used, counted."""
        self.counts.faults += 1
        return Row(where, faults=(error.fault,))
