"""What some sources say about all: a few of each kind are parsed and split, so that a plan can expect.

A bound holds for any text and is far from most. How many chunks, and how many sentences a passage, depends on
the pages; so the plan looks at some. Their ids are digests, so the smallest ones are a random choice that
every plan makes alike. No model is asked and nothing is stored.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core import arrow
from raypipe.core.records import Source
from raypipe.recipes.executor import CorpusExecutor, fine
from raypipe.recipes.step_contract import asked_models, table_of
from raypipe.runs.pipeline.driver import Pipeline
from raypipe.store import Store
from raypipe.store.ids import HASHED, Ids, looked_up, slabs, stand_in
from raypipe.text.windows import sentences

EACH = 24  # sources of a kind: 36 real pages of 10 MB in all take .1 s to parse, and half a second to begin


def chosen(ids: Iterable[str]) -> list[str]:
    """The ids whose sources are looked at, of all of one kind."""
    return heapq.nsmallest(EACH, ids)


def smallest(store: Store) -> dict[str, list[str]]:
    """Kind -> the sources of it that are looked at, of all that a store has."""
    kept: dict[str, list[str]] = {}
    for batch in store.batches("sources", ["id", "kind"]):
        for kind in batch["kind"].unique().to_pylist():
            kept[kind] = _smallest(batch["id"].filter(pc.equal(batch["kind"], kind)), kept.get(kind, ()))
    return kept


def _smallest(ids: pa.Array, more: Iterable[str] = ()) -> list[str]:
    first = pc.select_k_unstable(ids, EACH, sort_keys=[("ids", "ascending")])
    return chosen([*more, *ids.take(first).to_pylist()])


class SourceKinds:
    """The kind of each of some sources: those that a store has, and those that are to come."""

    def __init__(self, store: Store, ids: Ids, coming: Mapping[str, str]) -> None:
        """`coming`: source id -> kind."""
        self._codes: dict[str, int] = {}
        self._ids, self._of = ids, looked_up(ids.array, self._stored(store)) if ids else np.empty(0, np.int32)
        codes = np.array([self._code(kind) for kind in coming.values()], np.int64)
        if coming:
            new = looked_up(ids.array, [(Ids.of(coming).array, codes)])
            self._of = np.where(new >= 0, new, self._of)

    def _code(self, kind: str) -> int:
        return self._codes.setdefault(kind, len(self._codes))

    def _stored(self, store: Store) -> Iterator[tuple[pa.Array, np.ndarray]]:
        return map(self._coded, slabs(store.batches("sources", ["id", "kind"])))

    def _coded(self, held: list[pa.RecordBatch]) -> tuple[pa.Array, np.ndarray]:
        rows = pa.Table.from_batches(held)
        kinds = rows["kind"].combine_chunks().dictionary_encode()
        codes = np.array([self._code(kind) for kind in kinds.dictionary.to_pylist()], np.int64)
        return rows["id"].combine_chunks(), codes[kinds.indices.to_numpy()]

    def masks(self) -> Iterator[tuple[str, np.ndarray]]:
        """Each kind, and which of the sources are of it: (sources,) bool."""
        for kind, code in self._codes.items():
            yield kind, self._of == code

    def of(self, sources: Iterable[str]) -> dict[str, tuple[int, str]]:
        """Source -> its place among all, and its kind, for those of these that are there."""
        named, kinds = Ids.of(sources), {code: kind for kind, code in self._codes.items()}
        places = ((self._ids.array, np.arange(len(self._ids))),)
        at = looked_up(named.array, places).tolist()
        found = {s: i for s, i in zip(named, at, strict=True) if i >= 0}
        return {s: (i, kinds.get(int(self._of[i]), "")) for s, i in found.items()}

    def chosen(self, unread: Iterable[str]) -> dict[str, list[str]]:
        """Kind -> the sources of it that are looked at. `unread`: those that cannot be."""
        can = ~stand_in(self._ids.array, Ids.of(unread).array).to_numpy(zero_copy_only=False)
        found: dict[str, list[str]] = {}
        for kind, mask in self.masks():
            for some in Ids(self._ids.array.filter(pa.array(mask & can))).texts(HASHED):
                found[kind] = _smallest(some, found.get(kind, ()))
        return found


class Sampler:
    """Keeps some sources of each kind while all pass by."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, Source]] = {}  # kind -> id -> source

    def add(self, source: Source) -> None:
        kept = self._kept.setdefault(source.kind, {})
        kept[source.id] = source
        if len(kept) > EACH:
            del kept[max(kept)]

    def sources(self) -> dict[str, Source]:
        return {id: source for kept in self._kept.values() for id, source in kept.items()}


@dataclass(frozen=True, slots=True)
class KindSample:
    """The sum over the sources of one kind that were looked at."""

    chars: int = 0
    chunks: int = 0
    passages: int = 0
    sentences: int = 0  # of these passages


class CorpusSample:
    """What to expect of the sources that a recipe searches; they are looked at when it is first asked."""

    def __init__(
        self, pipeline: Pipeline, looked: Callable[[], Mapping[str, Sequence[str]]],
        new: Mapping[str, Source],
    ) -> None:  # fmt: skip
        """`looked`: says kind -> sources that are looked at; `new`: those that the store does not have."""
        self._pipeline, self._looked, self._new = pipeline, looked, new

    def chunks(self, kind: str, chars: float) -> float:
        """Chunks to expect of sources of a kind; 0 for a kind of which none could be read."""
        found = self._found.get(kind)
        return found.chunks / found.chars * chars if found and found.chars else 0.0

    @property
    def known(self) -> bool:
        """Whether any source could be read: else there is nothing to expect from."""
        return any(k.chunks for k in self._found.values())

    def per_chunk(self) -> tuple[float, float]:
        """Passages for each chunk, and sentences for each passage. (1, 0) where nothing is known."""
        looked = list(self._found.values())
        passages, found = sum(k.passages for k in looked), sum(k.sentences for k in looked)
        return (passages / sum(k.chunks for k in looked), found / passages) if passages else (1.0, 0.0)

    @functools.cached_property
    def _found(self) -> dict[str, KindSample]:
        before = [s.step for s in self._pipeline.recipe.corpus if table_of(s.step) != "vectors"]
        if any(asked_models(step) for step in before):
            return {}  # to look at a source would ask a model
        wanted = self._pipeline.recipe.source_kinds()
        looked = self._looked().items()
        by_kind: dict[str, Sequence[str]] = {kind: ids for kind, ids in looked if kind in wanted and ids}
        return asyncio.run(self._look(by_kind)) if by_kind else {}

    async def _look(self, by_kind: Mapping[str, Sequence[str]]) -> dict[str, KindSample]:
        """Parses and splits some sources of each kind, in this process and with one parser's child."""
        corpus = CorpusExecutor(self._pipeline.recipe, self._pipeline.worker.kit(None))
        return {kind: await _split(corpus, self._read(ids)) for kind, ids in by_kind.items()}

    def _read(self, ids: Sequence[str]) -> list[Source]:
        here = [self._new[i] for i in ids if i in self._new]
        stored = self._pipeline.store.rows("sources", "id", [i for i in ids if i not in self._new])
        return [*here, *arrow.source.records(stored)]


async def _split(corpus: CorpusExecutor, sources: Sequence[Source]) -> KindSample:
    if not sources:
        return KindSample()
    texts = await corpus.texts(arrow.corpus_table(sources))
    chunks = fine(await corpus.passages(texts))
    text_of = dict(zip(texts["source"].to_pylist(), texts["text"].to_pylist(), strict=True))
    places = (chunks[name].to_pylist() for name in ("source", "parent_start", "parent_end"))
    spans = set(zip(*places, strict=True))
    found = sum(len(sentences(text_of[source][start:end])) for source, start, end in spans)
    chars = sum(len(s.content) for s in sources)
    return KindSample(chars, chunks.num_rows, len(spans), found)
