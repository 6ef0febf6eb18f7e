"""What a corpus may be expected to take: by the look of some of its sources, or before there is one at all.

A bound holds for any text and is far from most. How many chunks, and how many sentences a passage, depends on
the pages; so a plan parses and splits a few of each kind. Their ids are digests, so the smallest ones are a
random choice that every plan makes alike. No model is asked and nothing is stored.

Of a corpus that is only assumed, tasks, bytes, requests, hours and money are arithmetic over the cluster
file, what a real page is, and the rates of finished runs of the same steps on the same kind of machine. Work
is spread evenly over a pool, so hours are the least that it takes. What no run has measured is not known, and
stays so.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core import arrow
from raypipe.core.config import Where, build
from raypipe.core.errors import ConfError
from raypipe.core.llm import HOUR_S, Prices
from raypipe.core.records import Source
from raypipe.recipes.executor import CorpusExecutor, fine
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import asked_models, embedder_of, table_of
from raypipe.runs.pipeline.driver import Pipeline
from raypipe.runs.pipeline.ingest_tasks import SHARD_BYTES
from raypipe.runs.pipeline.tasks import Verb, Workers
from raypipe.runs.plan.costs import rate
from raypipe.runs.plan.records import KEY_BYTES, Range, embedded_bytes
from raypipe.runs.record import Run
from raypipe.runs.stage_records import describe
from raypipe.store import Store
from raypipe.store.ids import Ids, looked_up, slabs, stand_in
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
    return chosen([*more, *arrow.id_texts(ids.take(first))])


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
        masks = ((kind, mask & can) for kind, mask in self.masks())
        return {kind: _smallest(self._ids.array.filter(pa.array(mask))) for kind, mask in masks if mask.any()}


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
    text_of = dict(zip(*(texts[name].to_pylist() for name in ("source", "text")), strict=True))
    places = (chunks[name].to_pylist() for name in ("source", "parent_start", "parent_end"))
    spans = set(zip(*places, strict=True))
    found = sum(len(sentences(text_of[source][start:end])) for source, start, end in spans)
    chars = sum(len(s.content) for s in sources)
    return KindSample(chars, chunks.num_rows, len(spans), found)


ZSTD = 0.163  # bytes of the table of sources for each of HTML: 11.5 MB of real pages are 1.87 MB there
READ_BYTES_S = 30e6  # JSON to rows of tables, by one core (bench: `ingest_bz2` without its unpacking)
# Of an object store, for each part: the rows, the completion record and that of its faults.
PUTS = 3
# For each part the driver reads both records, asks for the size of the rows' file, and reads their units.
GETS = 5


@dataclass(frozen=True, slots=True)
class Assumed:
    """A corpus that is not there. A page is like one of CRAG's, on average of 36 real ones."""

    pages: float
    html_bytes: float = 319_000
    text_chars: float = 22_000
    chunks: float = 31  # of 700 characters

    def __post_init__(self) -> None:
        for field, number in asdict(self).items():
            if not 1 <= number < math.inf:
                raise ValueError(f"{field}: expected a number of at least 1, found {number:g}")

    @classmethod
    def parse(cls, text: str, name: str) -> Assumed:
        """From `pages=1e8,html_bytes=20000`; `name` of the argument. Raises ConfError."""
        given: dict[str, float] = {}
        for part in text.split(","):
            field, _, value = part.partition("=")
            try:
                given[field.strip()] = float(value)
            except ValueError as e:
                raise ConfError(f"{name}: expected FIELD=NUMBER as in pages=1e8, found {part!r}") from e
        return build(cls, given, Where(name))


@dataclass(frozen=True, slots=True)
class AssumedStep:
    """What one kind of work takes."""

    step: str  # ingest, or a step of the corpus half
    rows: float  # pages, or chunks
    tasks: int  # 0: those of an earlier step do it
    bytes: float  # that the store grows by
    requests: float  # to an object store, at least
    hours: Range | None  # on the clock; None: no run has measured it here


@dataclass(frozen=True, slots=True)
class AssumedPlan:
    """What all of it takes."""

    assumed: Assumed
    cluster: str  # name or path of the file
    steps: tuple[AssumedStep, ...]
    hours: Range | None  # on the clock, one step after the other; None: a step was measured by no run
    usd: Range | None  # of the machines; None: not known


def assumed_plan(
    recipe: Recipe, assumed: Assumed, cluster: str, per_task: int, workers: Callable[[Verb], Workers],
    place: tuple[str, str], runs: Sequence[Run], prices: Prices,
) -> AssumedPlan:  # fmt: skip
    """`per_task`: sources of a task, at most; `workers` of a verb; `place`: backend and device; `runs` whose
    rates count."""
    steps = [_ingest(assumed, workers("parse"))]
    stages, filled = {s.name: s for s in describe(recipe)}, set[str]()
    for stage in recipe.corpus:
        table = table_of(stage.step)
        verb: Verb = "embed" if table == "vectors" else "parse"
        pool = workers(verb)
        tasks = math.ceil(assumed.pages / pool.per_task(math.ceil(assumed.pages), per_task))
        rows, grows = _rows_and_bytes(stage.step, assumed)
        if table in filled and table != "vectors":  # a table is filled by the tasks of its first step
            tasks, grows = 0, 0.0
        filled.add(table)
        calls = (rows, rows) if asked_models(stage.step) else None
        took = rate(stages[stage.name], runs, *place).seconds(rows, calls)
        hours = None if took is None else (took[0] / pool.count / HOUR_S, took[1] / pool.count / HOUR_S)
        steps.append(AssumedStep(stage.name, rows, tasks, grows, tasks * (PUTS + GETS), hours))
    known = [s.hours for s in steps if s.hours is not None]
    summed = sum(h[0] for h in known), sum(h[1] for h in known)
    clock = summed if len(known) == len(steps) else None
    each = prices.machines
    usd = None if clock is None or each is None else (clock[0] * each, clock[1] * each)
    return AssumedPlan(assumed, cluster, tuple(steps), clock, usd)


def _ingest(assumed: Assumed, pool: Workers) -> AssumedStep:
    whole = assumed.pages * assumed.html_bytes
    hours, tasks = whole / READ_BYTES_S / pool.count / HOUR_S, math.ceil(whole / SHARD_BYTES)
    requests = tasks * 3 * (PUTS + GETS)  # sources, documents and layouts
    return AssumedStep("ingest", assumed.pages, tasks, whole * ZSTD, requests, (hours, hours))


def _rows_and_bytes(step: Any, assumed: Assumed) -> tuple[float, float]:
    """Rows that pass a step, and bytes that the store grows by."""
    chunks = assumed.pages * assumed.chunks
    match table_of(step):
        case "vectors":
            return chunks, embedded_bytes(embedder_of(step).dim, chunks)
        case "passages":
            return assumed.pages, chunks * KEY_BYTES
        case _:
            return assumed.pages, assumed.pages * assumed.text_chars
