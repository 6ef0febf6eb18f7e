"""What a name means in a store: a question, a source, a document, or the address of a page.

Knows the tables of what was ingested, and tombstones: what is forgotten has its name there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from raypipe.core.errors import DataError
from raypipe.core.records import digest
from raypipe.runs.pipeline.tombstones import FORMAT, Tombstone, tombstones
from raypipe.store import Store
from raypipe.store.ids import rows
from raypipe.store.keep import versions
from raypipe.store.text_places import PARTS

ROWS = 4096  # questions at a time
KINDS = ("url", "document", "source", "question")


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be forgotten, as the store has it."""

    kind: str  # one of KINDS
    name: str  # the url, or an id
    urls: tuple[str, ...] = ()  # of citations that go
    documents: tuple[str, ...] = ()  # ids
    sources: tuple[str, ...] = ()  # ids
    questions: tuple[str, ...] = ()  # ids

    @property
    def tombstone(self) -> str:
        """The id of its tombstone."""
        return digest("forgotten", self.kind, self.name)

    def buried(self, reason: str) -> Tombstone:
        """Its tombstone, which names addresses, documents and questions by digests."""
        addresses = tuple(digest(x) for x in (*self.urls, *self.documents))
        questions = tuple(digest(q) for q in self.questions)
        return Tombstone(
            FORMAT, self.tombstone, self.kind, reason, time.time(), addresses, self.sources, questions
        )


def find_target(store: Store, given: str) -> Target:
    """Finds what a name means: the id of a question or source, the id or path of a document, or a url. Looks
    through older versions, too, since a release may name them; what is forgotten already has a tombstone.
    Raises DataError for a name that nothing has, and for a path that documents of several folders have."""
    path = [
        given.partition("#")[0],
        quote(os.fsencode(given)),
    ]  # as a citation has it, and as the folder does
    if _row(store, "questions", "id", [given]):
        return Target("question", given, questions=(given,))
    if _row(store, "sources", "id", [given]):
        return Target("source", given, sources=(given,))
    if (row := _row(store, "documents", "id", [given]) or _row(store, "layouts", "url", path)) is not None:
        return Target("document", row["id"], documents=(row["id"],), sources=(row["source"],))
    for version in versions(store, "questions")[::-1]:
        if any(url == given for url, _ in citations(store, version)):
            return _url(store, given, version)
    if (target := _buried(store, given)) is not None:
        return target
    raise DataError(
        f"{store.uri}: expected the url of a page, the path of a document, or the id of a source or "
        f"question, found no such thing as {given!r}. `raypipe why DIR ROW` shows the urls and sources "
        "of an answer"
    )


def _row(store: Store, table: str, column: str, values: list[str]) -> dict[str, Any] | None:
    """Returns the id, and of a document the source, of the row that has one of the values, from the newest
    version with such a row. Raises DataError for several."""
    columns = ["id", "source"] if table in ("documents", "layouts") else ["id"]
    for version in versions(store, table)[::-1]:
        found = rows(store.dataset(table, version), column, values, columns)
        if found.num_rows > 1:
            raise DataError(
                f"{store.uri}: {found.num_rows} folders have a document {values[0]!r}; name one by its id: "
                f"{', '.join(sorted(found['id'].to_pylist()))}"
            )
        if found.num_rows:
            row: dict[str, Any] = found.to_pylist()[0]
            return row
    return None


def _buried(store: Store, given: str) -> Target | None:
    """What a tombstone says of a name: the same forget again takes out what has come in since."""
    stones = {stone.id: stone for stone in tombstones(store)}
    for kind in KINDS:
        if (stone := stones.get(digest("forgotten", kind, given))) is not None:
            own = (given,)
            return Target(
                kind, given, own if kind == "url" else (), own if kind == "document" else (),
                stone.sources, own if kind == "question" else (),
            )  # fmt: skip
    return None


def _url(store: Store, url: str, version: int) -> Target:
    """A page by its address. Its name and snippet stay where other addresses have the same ones."""
    own: dict[str, str] = {}
    others = set(store.scan("documents", ["source"])["source"].to_pylist())
    for found, parts in citations(store, version):
        if found == url:
            own |= parts
        else:
            others |= {s for s, part in parts.items() if part != "page"}
    gone = {s for s, part in own.items() if part == "page" or s not in others}
    return Target("url", url, urls=(url,), sources=tuple(sorted(gone)))


def citations(store: Store, version: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields the url of each citation of stored questions, and its sources: id -> page, snippet or name."""
    for batch in store.batches("questions", ["citations"], ROWS, version):
        for c in (c for cited in batch["citations"].to_pylist() for c in cited or ()):
            yield c["url"], {c[part]: part for part in PARTS if c[part] is not None}
