"""State of one read of files: counts, limits, the ids that it has read, and the newest pages of a crawl.

The ids are stored on disk, so memory does not limit their number. If a data set is cut into shards, each
shard is a read of its own. A read then gets, as mappings, the ids that it shares with other reads. All reads
together thus give the rows of a single read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from raypipe.core.bounded_rows import DiskMap, key_of
from raypipe.core.records import CAPTURED_ID, digest
from raypipe.readers.files import Span
from raypipe.readers.rows import LIMITS, ReadCounts, ReaderLimits, Row, UnusableLine, blamed


class DuplicateCheck:
    """Check of ids, on disk. It distinguishes a repeated row from another row with the same id."""

    def __init__(self, before: Mapping[bytes, str] = MappingProxyType({})) -> None:
        """Starts the check. `before` has the first row of each id that another read has, too (`firsts`)."""
        self._first = DiskMap()  # id -> "DIGEST WHERE" of its first row
        self._before = before

    def repeats(self, id: str, content: object, where: str) -> bool:
        """Returns whether an earlier row has this id and this content. Raises UnusableLine if an earlier row
        has this id with other content."""
        now = digest(repr(content))
        first = self._before.get(key_of(id)) if self._before else None
        before, _, at = (first or self._first.setdefault(id, f"{now} {where}")).partition(" ")
        if before != now:
            found = f"id {id!r} was read before with other content, at {at}; that row is kept"
            raise UnusableLine("conflicting_id", found)
        return at != where

    def knows(self, id: str) -> bool:
        return id in self._first

    def firsts(self) -> Iterator[tuple[bytes, str]]:
        """Yields (hash of the id, "DIGEST WHERE") for the first row of each id, except the ids in `before`.
        DIGEST is the digest of the row, and WHERE its place."""
        return self._first.items()


class Newest:
    """Newest page of each address or id of a crawl, on disk. Call `note` for every page first, then `has`."""

    def __init__(self, place: int = 0, others: Mapping[bytes, str] = MappingProxyType({})) -> None:
        """Starts without pages. `place` is the number of this read among all reads: of pages with equal
        dates, the one in the read with the greatest number wins. `others` has the newest pages of all reads,
        for the addresses of which another read has a newer page."""
        self._last, self._count, self._place, self._others = DiskMap(), 0, place, others

    def note(self, url: str, date: str, where: str) -> None:
        """Records a page of an address. `date` is a text that `fields.order_of` made. If two pages of an
        address have the same date, the later call wins."""
        self._count += 1
        self._last.setmax(url, f"{date} {self._place:08d}{self._count:014d} {where}")

    def has(self, url: str, date: str, where: str) -> bool:
        """Returns whether the page at `where` is the newest of its address in all reads."""
        found = max(self._last.get(url, ""), self._others.get(key_of(url), "") if self._others else "")
        return found.partition(" ")[0] == date and found.endswith(f" {where}")

    def notes(self) -> Iterator[tuple[bytes, str]]:
        """Yields (hash of the address, "DATE ORDER WHERE") of this read's newest page of each address. ORDER
        decides between equal dates. Leaves out an address with a newer page in `others`. If several reads
        yield an address, the greatest of their values is its newest page."""
        return ((key, value) for key, value in self._last.items() if value > self._others.get(key, ""))


@dataclass(frozen=True, slots=True)
class Seen:
    """Ids and newest pages, by which a read leaves out repeated rows and older pages."""

    questions: DuplicateCheck = field(default_factory=DuplicateCheck)
    documents: DuplicateCheck = field(default_factory=DuplicateCheck)
    newest: Newest = field(default_factory=Newest)
    captured: bool = False  # whether the read's questions were captured at an endpoint

    def repeats(self, row: Row) -> bool:
        """Returns whether an earlier row has this question and gold, or this document. Raises UnusableLine if
        an earlier row has the same id with other content. Also raises it if a question was not captured but
        has an id that is reserved for captured questions."""
        if row.question is not None:
            if row.question.id.startswith(CAPTURED_ID) and not self.captured:
                found = f"id: {CAPTURED_ID!r} marks captured questions; expected another beginning. Rename it"
                raise UnusableLine("reserved_id", found)
            return self.questions.repeats(row.question.id, (row.question, row.gold), row.where)
        return row.document is not None and self.documents.repeats(row.document.id, row.document, row.where)


@dataclass(frozen=True, slots=True)
class FileRead:
    """State of one read of files: its counts, its limits, and the ids that were read."""

    counts: ReadCounts
    limits: ReaderLimits = LIMITS
    seen: Seen = field(default_factory=Seen)
    span: Span | None = None  # range of the only file to read; None: read the files whole

    def settled(self, where: str, make: Callable[[], Row | None], once: bool = False) -> Iterator[Row]:
        """Yields the row that `make` returns, and counts it. If `make` raises, yields a row with only the
        fault (see `blamed`). Yields nothing if `make` returns None (an empty document), or if the row repeats
        an earlier row. `once` skips the check for repeats."""
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
        """Counts an unusable line and returns a row with only its fault."""
        self.counts.faults += 1
        return Row(where, faults=(error.fault,))
