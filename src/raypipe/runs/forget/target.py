"""What a name means in a store: a question, a source, a document, or the address of a page.

Knows the tables of what was ingested, and tombstones: what is forgotten has its name there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

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
    """What a name means: the id of a question or source, the id or path of a document, or a url. What older
    versions alone have is found there, since a release may name them; what is forgotten already by its
    tombstone. Raises DataError for a name that nothing has, and for a path that documents of several folders
    have."""
    if _with_value(store, "questions", "id", given) is not None:
        return Target("question", given, questions=(given,))
    if _with_value(store, "sources", "id", given) is not None:
        return Target("source", given, sources=(given,))
    if (found := _document(store, given)) is not None:
        return Target("document", found[0], documents=(found[0],), sources=(found[1],))
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


def _with_value(store: Store, table: str, column: str, value: str) -> int | None:
    """The newest version of a table in which a column has a value."""
    for version in versions(store, table)[::-1]:
        if rows(store.dataset(table, version), column, [value], [column]).num_rows:
            return version
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


def citations(store: Store, version: int | None = None) -> Iterator[tuple[str, dict[str, str]]]:
    """The url of each citation of stored questions, and its sources: id -> page, snippet or name."""
    for batch in store.batches("questions", ["citations"], ROWS, version):
        flat = pc.list_flatten(batch["citations"])
        names = [pc.struct_field(flat, part).to_pylist() for part in PARTS]
        for url, *ids in zip(pc.struct_field(flat, "url").to_pylist(), *names, strict=True):
            yield url, {s: part for s, part in zip(ids, PARTS, strict=True) if s is not None}


def _document(store: Store, given: str) -> tuple[str, str] | None:
    """Id and source of the document with this id or path."""
    version = _with_value(store, "documents", "id", given)
    if version is not None:
        found = rows(store.dataset("documents", version), "id", [given], ["source"])
        return given, found["source"][0].as_py()
    place = given.partition("#")[0]
    addresses = pa.array([place, quote(os.fsencode(given))])  # as a citation has it, and as the folder does
    for at in versions(store, "layouts")[::-1]:
        layouts = store.scan("layouts", ["id", "url", "source"], version=at)
        named = layouts.filter(pc.is_in(layouts["url"], value_set=addresses)).to_pylist()
        if len(named) > 1:
            raise DataError(
                f"{store.uri}: {len(named)} folders have a document {place!r}; name one by its id: "
                f"{', '.join(sorted(r['id'] for r in named))}"
            )
        if named:
            return named[0]["id"], named[0]["source"]
    return None
