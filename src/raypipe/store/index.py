"""Searchable snapshots: a store's tables, or a request's own pages in memory. Equal rows give equal hits.

`search` is exact: a score is the inner product of the float32 vectors in double precision, and ties are
ordered by source and span. So hits depend neither on the order of rows nor on where they are stored. In a
store, `near` searches an approximate index instead. A store's snapshot also has layouts of documents (path,
pages and sections), from which citations are made. This module depends on the store and on the columns of the
corpus tables (core/arrow.py).
"""

from __future__ import annotations

import asyncio
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceDataset

from raypipe.core.arrow import SPANS, id_column, id_texts
from raypipe.core.digests import model_identity
from raypipe.core.errors import ConfError
from raypipe.core.index import Approximate, PassageWords, VectorHit
from raypipe.core.protocols import Model
from raypipe.core.records import Block, Citation, Layout, Span, parse_chunk_id
from raypipe.core.single_flight import Gathering
from raypipe.store.database import Store
from raypipe.store.errors import reaching
from raypipe.store.fields import LAYOUTS, NAMED, SourceFields, layouts_at, layouts_of
from raypipe.store.files import FOLDERS
from raypipe.store.ids import rows
from raypipe.store.inverter import passage_words, word_columns
from raypipe.store.postings import LancePostings, PostingsTables
from raypipe.store.vector_search import Product, SnapshotVectors, near, numpy_product
from raypipe.store.vectors import best_within, rows_of
from raypipe.store.vectors import folder as vector_copies
from raypipe.text.filters import Filters

T = TypeVar("T")


class SourceTexts(ABC):
    """The text methods of `core.index.Index`, shared by both snapshots."""

    _texts: Any  # a LanceDataset or pa.Table

    @abstractmethod
    async def _rows(self, sources: Sequence[str], columns: list[str]) -> pa.Table:
        """Reads columns of the rows of these sources; missing sources have no row."""

    async def _source_texts(self, sources: Sequence[str]) -> Mapping[str, str]:
        """Maps these sources, and maybe others, to their texts; missing sources are left out."""
        found = await self._rows(sources, ["source", "text"])
        return dict(zip(id_texts(found["source"]), found["text"].to_pylist(), strict=True))

    async def texts(self, chunks: Sequence[str]) -> list[str]:
        places = [parse_chunk_id(c) for c in chunks]
        texts, out = await self._source_texts([source for source, _ in places]), []
        for chunk, (source, (start, end)) in zip(chunks, places, strict=True):
            if end > len(texts[source]):
                raise KeyError(f"{chunk}: its source has {len(texts[source])} characters")
            out.append(texts[source][start:end])
        return out

    async def source_texts(self, sources: Sequence[str]) -> list[str | None]:
        texts = await self._source_texts(sources)
        return [texts.get(s) for s in sources]

    async def hidden(self, sources: Sequence[str]) -> list[tuple[Span, ...]]:
        return await self._parts("hidden", lambda s: (s["start"], s["end"]), sources)

    async def blocks(self, sources: Sequence[str]) -> list[tuple[Block, ...]]:
        return await self._parts("blocks", lambda b: Block(b["start"], b["end"], b["kind"]), sources)

    async def _parts(
        self, name: str, part: Callable[[dict[str, Any]], T], sources: Sequence[str]
    ) -> list[tuple[T, ...]]:
        """Reads a list column per source, () for a missing source. Raises ConfError without this column."""
        if name not in self._texts.schema.names:
            raise ConfError(
                f"the texts here have no column {name!r}: index again, with `parse` in the corpus half"
            )
        rows = await self._rows(sources, ["source", name])
        values = zip(id_texts(rows["source"]), rows[name].to_pylist(), strict=True)
        found = {source: tuple(map(part, parts)) for source, parts in values}
        return [found.get(s, ()) for s in sources]


@dataclass(frozen=True, slots=True)
class Pinned:
    """A table at one version."""

    table: str
    version: int


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """Plain values from which any process opens the same index."""

    store: str  # address
    texts: Pinned
    passages: Pinned
    vectors: tuple[tuple[str, Pinned], ...]  # model identity, its table of vectors
    words: tuple[tuple[str, Pinned, Pinned], ...] = ()  # analyzer, its tables of postings and lengths
    layouts: Pinned | None = None  # None: the store has no layouts
    named: tuple[Pinned, ...] = ()  # documents and questions, whose fields conditions test; (): no conditions

    def pinned(self) -> tuple[Pinned, ...]:
        """Lists every pinned table: the searched ones, layouts, documents and questions."""
        words = [table for _, *tables in self.words for table in tables]
        layouts = [self.layouts] if self.layouts else []
        vectors = (table for _, table in self.vectors)
        return (self.texts, self.passages, *vectors, *words, *layouts, *self.named)


def index_spec(
    store: Store,
    texts: str,
    passages: str,
    vectors: Mapping[str, str],
    words: Mapping[str, tuple[str, str]] = MappingProxyType({}),
) -> IndexSpec:
    """Pins tables at their newest versions. `vectors` maps model identities to tables, `words` maps analyzers
    to their tables of postings and lengths. Raises StoreError if a table or a scalar index is missing."""

    def pin(table: str) -> Pinned:
        version = store.version(table)
        store.check_indexes(table, version)
        return Pinned(table, version)

    searched = tuple((identity, pin(table)) for identity, table in sorted(vectors.items()))
    looked_up = list[tuple[str, Pinned, Pinned]]()
    for name, (postings, lengths) in sorted(words.items()):
        # `lengths` first: it is committed last, and only segments that it names are read.
        named, found = pin(lengths), pin(postings)
        while store.version(lengths) != named.version:  # segments may have been merged in between
            named, found = pin(lengths), pin(postings)
        looked_up.append((name, found, named))
    layouts = Pinned(LAYOUTS, store.version(LAYOUTS)) if store.has(LAYOUTS) else None
    whose = tuple(Pinned(table, store.version(table)) for table in NAMED)
    return IndexSpec(store.uri, pin(texts), pin(passages), searched, tuple(looked_up), layouts, whose)


class LanceIndex(SourceTexts):
    """The tables of a store at pinned versions (`core.index.Index`); later commits are not visible."""

    def __init__(self, spec: IndexSpec, product: Product = numpy_product, copies: Path | None = None) -> None:
        """Opens the tables. `product` multiplies a batch of questions with the vectors. `copies` is the
        folder for local copies of vectors; None means `vectors.folder`. Raises StoreError if a table, its
        pinned version or a scalar index is missing."""
        store = Store.open(spec.store)

        def open_pinned(pinned: Pinned) -> LanceDataset:
            store.check_indexes(pinned.table, pinned.version)
            return store.dataset(pinned.table, pinned.version)

        self._texts, self._passages = open_pinned(spec.texts), open_pinned(spec.passages)
        self._vectors = {
            identity: SnapshotVectors(open_pinned(pinned), copies or vector_copies(), product=product)
            for identity, pinned in spec.vectors
        }
        self._products = {identity: Gathering(vectors.best) for identity, vectors in self._vectors.items()}
        self._postings = {name: PostingsTables(open_pinned(p), open_pinned(q)) for name, p, q in spec.words}
        self._layouts = layouts_at(store, spec.layouts.version if spec.layouts else 0)
        self._named = [store.dataset(pinned.table, pinned.version) for pinned in spec.named]
        self._whole: dict[str, PassageWords] = {}  # analyzer -> words of the whole snapshot
        self._fields: SourceFields | None = None
        self._gathering = threading.Lock()

    def fields(self) -> SourceFields:
        """Returns the fields of the sources; reads them at the first call."""
        with self._gathering:
            if self._fields is None:
                documents, questions = self._named
                self._fields = SourceFields.read(documents, self._layouts, questions)
            return self._fields

    async def matching(self, wheres: tuple[str, ...]) -> tuple[str, ...]:
        def found() -> tuple[str, ...]:
            places = self.fields()
            for where in wheres:
                places.check(where)
            return reduce(SourceFields.within, [Filters(where=w) for w in wheres], places).ids

        return await asyncio.to_thread(found)

    async def narrowed(self, citations: tuple[Citation, ...], where: str) -> tuple[Citation, ...]:
        return await asyncio.to_thread(lambda: self.fields().narrowed(citations, Filters(where=where)))

    async def search(
        self, model: Model, vectors: np.ndarray, scopes: Sequence[tuple[str, ...] | None], top: int
    ) -> list[list[VectorHit]]:
        held = _of_model(self._vectors, model)
        queries = _checked(vectors, scopes, held.dim, top)
        if not queries:
            return []
        whole = {i: query for i, (query, scope) in enumerate(queries) if scope is None}
        pages = {i: (query, scope) for i, (query, scope) in enumerate(queries) if scope is not None}

        searches = list[Awaitable[list[list[VectorHit]]]]()
        if whole:
            searches.append(self._products[model_identity(model)]((np.stack(list(whole.values())), top)))
        if pages:
            searches.append(asyncio.to_thread(held.within, list(pages.values()), top))
        results = [hits for some in await asyncio.gather(*searches) for hits in some]
        hits = dict(zip([*whole, *pages], results, strict=True))
        return [hits[i] for i in range(len(queries))]

    async def near(
        self, model: Model, vectors: np.ndarray, top: int, how: Approximate
    ) -> list[list[VectorHit]]:
        held = _of_model(self._vectors, model)
        _checked(vectors, [None] * len(vectors), held.dim, top)
        return await asyncio.to_thread(near, held.dataset, np.asarray(vectors, np.float32), top, how)

    async def _rows(self, sources: Sequence[str], columns: list[str]) -> pa.Table:
        return await asyncio.to_thread(rows, self._texts, "source", sources, columns)

    async def layouts(self, sources: Sequence[str]) -> list[Layout | None]:
        found = await asyncio.to_thread(layouts_of, self._layouts, sources)
        return [found.get(s) for s in sources]

    async def words(self, analyzer: str, scope: tuple[str, ...] | None) -> PassageWords:
        return await asyncio.to_thread(self._words, analyzer, scope)

    async def postings(self, analyzer: str, words: np.ndarray) -> LancePostings | None:
        tables = self._postings.get(analyzer)
        return None if tables is None else await asyncio.to_thread(tables.found, words)

    def _words(self, analyzer: str, scope: tuple[str, ...] | None) -> PassageWords:
        columns = word_columns(analyzer, self._texts.schema)
        if scope is not None:
            texts = rows(self._texts, "source", scope, columns)
            return passage_words(texts, rows(self._passages, "source", scope, SPANS), scope)
        with self._gathering:
            if analyzer not in self._whole:
                with reaching(self._texts.uri):
                    texts = self._texts.to_table(columns=columns)
                with reaching(self._passages.uri):
                    passages = self._passages.to_table(columns=list(SPANS))
                self._whole[analyzer] = passage_words(texts, passages, None)
            return self._whole[analyzer]


class MemoryIndex(SourceTexts):
    """Corpus tables in memory (`core.index.Index`). Each table must have these columns, and may have more:

    `texts`: source, text, hidden, blocks, and words_NAME, starts_NAME per analyzer. `passages`: source,
    start, end, parent_start, parent_end. `vectors` has a table per model identity: as `passages`, and vector.
    """

    def __init__(self, texts: pa.Table, passages: pa.Table, vectors: Mapping[str, pa.Table]) -> None:
        self._texts, self._passages = texts, passages.select(SPANS)
        columns = [*SPANS, "vector"]
        self._vectors = {name: rows_of(t.select(columns)) for name, t in vectors.items()}
        self._by_source = dict(zip(id_texts(texts["source"]), texts["text"].to_pylist(), strict=True))

    async def matching(self, wheres: tuple[str, ...]) -> tuple[str, ...]:
        return ()  # these tables have no places of sources; only a question's citations have

    async def narrowed(self, citations: tuple[Citation, ...], where: str) -> tuple[Citation, ...]:
        return SourceFields.of(citations).narrowed(citations, Filters(where=where))

    async def search(
        self, model: Model, vectors: np.ndarray, scopes: Sequence[tuple[str, ...] | None], top: int
    ) -> list[list[VectorHit]]:
        pages = _of_model(self._vectors, model)
        queries = _checked(vectors, scopes, pages.dim, top)
        return best_within([pages], queries, top)

    async def near(
        self, model: Model, vectors: np.ndarray, top: int, how: Approximate
    ) -> list[list[VectorHit]]:
        return await self.search(model, vectors, [None] * len(vectors), top)

    async def _rows(self, sources: Sequence[str], columns: list[str]) -> pa.Table:
        inside = pc.is_in(self._texts["source"], value_set=id_column(sources))
        return self._texts.select(columns).filter(inside)

    async def _source_texts(self, sources: Sequence[str]) -> Mapping[str, str]:
        return self._by_source

    async def layouts(self, sources: Sequence[str]) -> list[Layout | None]:
        return [None] * len(sources)

    async def words(self, analyzer: str, scope: tuple[str, ...] | None) -> PassageWords:
        texts, passages = self._texts.select(word_columns(analyzer, self._texts.schema)), self._passages
        if scope is not None:
            names = id_column(scope)
            texts = texts.filter(pc.is_in(texts["source"], value_set=names))
            passages = passages.filter(pc.is_in(passages["source"], value_set=names))
        return passage_words(texts, passages, scope)

    async def postings(self, analyzer: str, words: np.ndarray) -> None:
        return None


def _of_model(vectors: Mapping[str, T], model: Model) -> T:
    """Returns a model's vectors. Raises ConfError if there are none: vectors of another model are never
    compared, even if the dimensions agree."""
    try:
        return vectors[model_identity(model)]
    except KeyError:
        raise ConfError(
            f"no vectors of model {model.name} are here (identity {model_identity(model)}; there are "
            f"{sorted(vectors)}): add `embed: {{model: {model.name}}}` to the corpus half, or index again"
        ) from None


def _checked(
    vectors: np.ndarray, scopes: Sequence[tuple[str, ...] | None], dim: int, top: int
) -> list[tuple[np.ndarray, tuple[str, ...] | None]]:
    """Pairs each query with its scope. Raises ValueError for mistakes that only the calling code can make."""
    if vectors.shape != (len(scopes), dim):
        raise ValueError(f"expected query vectors of shape ({len(scopes)}, {dim}), found {vectors.shape}")
    if not np.isfinite(vectors).all():
        raise ValueError("a query vector is not finite")
    if top < 1:
        raise ValueError(f"top must be at least 1, found {top}")
    return list(zip(np.asarray(vectors, np.float32), scopes, strict=True))


def folder_roots(store: Store) -> dict[str, str]:
    """Maps the id prefix of each ingested folder to the path that the folder had when it was read. A
    document's id begins with the prefix (8 characters) of its folder."""
    notes = {n: json.loads(store.files.read(f"{FOLDERS}/{n}") or b"{}") for n in store.files.names(FOLDERS)}
    return {name[:8]: note["root"] for name, note in notes.items() if "root" in note}


def file_address(layout: Layout, roots: Mapping[str, str]) -> str | None:
    """Returns the `file:///...` address of a document on this machine; None if its folder is unknown."""
    if (root := roots.get(layout.id.partition("/")[0])) is None:
        return None
    place = Path(root)
    return (place if place.is_file() else place / unquote(layout.url)).as_uri()
