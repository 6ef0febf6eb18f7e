"""What a read knows of rows that came before: which fetch of an address is the newest, which ids are taken.

However many rows there are, it lies on disk. What other reads found comes in as plain values, so that files
can be read apart and give the rows of one read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from raypipe.core.disk_map import DiskMap, key_of
from raypipe.readers.rows import DuplicateCheck, Row


class Newest:
    """First note every page, then ask of each: what it knows lies on disk."""

    def __init__(self, place: int = 0, others: Mapping[bytes, str] = MappingProxyType({})) -> None:
        """`place`: of this read among those of other files; `others`: newer fetches that these found, as
        `notes` of their reads has them."""
        self._last, self._count, self._place, self._others = DiskMap(), 0, place, others

    def note(self, url: str, date: str, where: str) -> None:
        """A page of an address; `date` as ISO 8601 in UTC, so that text order is the order of time. Of two
        with one date the one that is noted last counts."""
        self._count += 1
        self._last.setmax(url, f"{date} {self._place:08d}{self._count:014d} {where}")

    def has(self, url: str, date: str, where: str) -> bool:
        """Whether this is the page of its address that counts."""
        found = max(self._last.get(url, ""), self._others.get(key_of(url), "") if self._others else "")
        return found.partition(" ")[0] == date and found.endswith(f" {where}")

    def notes(self) -> Iterator[tuple[bytes, str]]:
        """(`key_of` address, date, order and where) of the newest page of each address that was read here,
        unless another read has a newer one; of two reads the greater one counts."""
        return ((key, value) for key, value in self._last.items() if value > self._others.get(key, ""))


@dataclass(frozen=True, slots=True)
class Seen:
    """What a read knows of all rows that it must not give again."""

    questions: DuplicateCheck = field(default_factory=DuplicateCheck)
    documents: DuplicateCheck = field(default_factory=DuplicateCheck)
    newest: Newest = field(default_factory=Newest)

    def repeats(self, row: Row) -> bool:
        """Whether the row came before. Raises UnusableLine for an id that came with other content."""
        if row.question is not None:
            return self.questions.repeats(row.question.id, (row.question, row.gold), row.where)
        return row.document is not None and self.documents.repeats(row.document.id, row.document, row.where)
