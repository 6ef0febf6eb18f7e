"""What a name means in a store: a question, a source, a document, or the address of a page.

Knows the tables of what was ingested.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core.errors import DataError
from raypipe.core.records import digest
from raypipe.runs.pipeline.tombstones import PARTS
from raypipe.store import Store
from raypipe.store.ids import rows
from raypipe.store.rewrite import versions

ROWS = 4096  # questions at a time


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be forgotten, as the store has it."""

    kind: str  # url, document, source or question
    name: str  # the url, or an id
    urls: tuple[str, ...] = ()  # of citations that go
    documents: tuple[str, ...] = ()  # ids
    sources: tuple[str, ...] = ()  # ids of what goes
    shared: tuple[str, ...] = ()  # ids of names and snippets that stay, since other addresses have them, too
    questions: tuple[str, ...] = ()  # ids of questions that go
    also: tuple[str, ...] = ()  # other addresses and documents that lose their page, since it is the same

    @property
    def addresses(self) -> tuple[str, ...]:
        """What a tombstone refuses by name: digests."""
        return tuple(digest(x) for x in (*self.urls, *self.documents))


def find_target(store: Store, given: str) -> Target:
    """What a name means: the id of a question or source, the id or path of a document, or a url. What older
    versions alone have is found there, since a release may name them. Raises DataError for a name that
    nothing has, and for a path that documents of several folders have."""
    if _with_value(store, "questions", "id", given) is not None:
        return Target("question", given, questions=(given,))
    if _with_value(store, "sources", "id", given) is not None:
        return _with_others(store, Target("source", given, sources=(given,)))
    if (found := _document(store, given)) is not None:
        return _with_others(store, Target("document", found[0], documents=(found[0],), sources=(found[1],)))
    for version in _newest_first(store, "questions"):
        if any(url == given for url, _ in citations(store, version)):
            return _with_others(store, _url(store, given, version))
    raise DataError(
        f"{store.uri}: expected the url of a page, the path of a document, or the id of a source or "
        f"question, found no such thing as {given!r}. `raypipe why DIR ROW` shows the urls and sources "
        "of an answer"
    )


def _newest_first(store: Store, table: str) -> list[int]:
    return versions(store, table)[::-1] if store.has(table) else []


def _with_value(store: Store, table: str, column: str, value: str) -> int | None:
    """The newest version of a table in which a column has a value."""
    for version in _newest_first(store, table):
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
    shared = {s for s, part in own.items() if part != "page"} & others
    sources = tuple(sorted(own.keys() - shared))
    return Target("url", url, urls=(url,), sources=sources, shared=tuple(sorted(shared)))


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
    for at in _newest_first(store, "layouts"):
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


def _with_others(store: Store, target: Target) -> Target:
    """The target with the other addresses of its pages: equal texts are one source."""
    gone = set(target.sources)
    urls = {url for url, parts in citations(store) if url not in target.urls and not gone.isdisjoint(parts)}
    same = store.rows("documents", "source", target.sources, ["id"])
    documents = set(same["id"].to_pylist()) - set(target.documents)
    return Target(
        target.kind, target.name, target.urls, tuple(sorted({*target.documents, *documents})),
        target.sources, target.shared, target.questions, tuple(sorted(urls | documents)),
    )  # fmt: skip
