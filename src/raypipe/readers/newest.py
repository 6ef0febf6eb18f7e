"""Which of several fetches of one address is the newest, however many addresses there are."""

from __future__ import annotations

from raypipe.core.disk_map import DiskMap


class Newest:
    """First note every page, then ask of each: what it knows lies on disk."""

    def __init__(self) -> None:
        self._last, self._count = DiskMap(), 0

    def note(self, url: str, date: str, where: str) -> None:
        """A page of an address; `date` as ISO 8601 in UTC, so that text order is the order of time. Of two
        with one date the one that is noted last counts."""
        self._count += 1
        self._last.setmax(url, f"{date} {self._count:020d} {where}")

    def has(self, url: str, date: str, where: str) -> bool:
        """Whether this is the page of its address that counts."""
        found = self._last.get(url, "")
        return found.partition(" ")[0] == date and found.endswith(f" {where}")
