"""State of one read: its counts and limits, the ids it has read, and the newest pages of a crawl.

The ids of the rows are stored on disk, so their number is not bounded by memory. The ids of other reads are
passed in as plain values (`Seen`): shards that are read separately then give the rows of one read.
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
    """Check of ids, on disk. It tells repeated rows from rows of one id with different contents."""

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
            found = f"id {id!r} was read before with other content, at {at}; that row is kept"
            raise UnusableLine("conflicting_id", found)
        return at != where

    def knows(self, id: str) -> bool:
        return id in self._first

    def firsts(self) -> Iterator[tuple[bytes, str]]:
        """Yields (`key_of` the id, "DIGEST WHERE") of the first row of each id."""
        return self._first.items()


class Newest:
    """Newest page of each address of a crawl, on disk. Call `note` for every page first, then `has`."""

    def __init__(self, place: int = 0, others: Mapping[bytes, str] = MappingProxyType({})) -> None:
        """Starts without pages. `place`: number of this read among all reads. `others`: merged `notes` of
        the other reads."""
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
        """Yields (`key_of` the address, "DATE ORDER WHERE") of the newest page of each address. Leaves out an
        address with a newer page in `others`. Several reads are merged by the greatest value per address."""
        return ((key, value) for key, value in self._last.items() if value > self._others.get(key, ""))


@dataclass(frozen=True, slots=True)
class Seen:
    """Ids and addresses that were read. A read omits repeated rows and older pages by them."""

    questions: DuplicateCheck = field(default_factory=DuplicateCheck)
    documents: DuplicateCheck = field(default_factory=DuplicateCheck)
    newest: Newest = field(default_factory=Newest)
    captured: bool = False  # whether the read's questions were captured at an endpoint

    def repeats(self, row: Row) -> bool:
        """Returns whether an earlier row equals this one. Raises UnusableLine if the contents of two rows of
        one id differ, or if a question that was not captured has an id of captured questions."""
        if row.question is not None:
            if row.question.id.startswith(CAPTURED_ID) and not self.captured:
                found = f"id: {CAPTURED_ID!r} marks captured questions; expected another beginning. Rename it"
                raise UnusableLine("reserved_id", found)
            return self.questions.repeats(row.question.id, (row.question, row.gold), row.where)
        return row.document is not None and self.documents.repeats(row.document.id, row.document, row.where)


@dataclass(frozen=True, slots=True)
class FileRead:
    """State of one read of files: its counts, its limits, and the rows that it and other reads have seen."""

    counts: ReadCounts
    limits: ReaderLimits = LIMITS
    seen: Seen = field(default_factory=Seen)
    span: Span | None = None  # range of the only file to read; None: read the files whole

    def settled(self, where: str, make: Callable[[], Row | None], once: bool = False) -> Iterator[Row]:
        """Yields the row that `make` returns, or a row with only the fault of its UnusableLine. Counts it.
        Yields nothing if `make` returns None (an empty document), or if the row repeats an earlier row.
        `once` skips the check for repeats."""
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
