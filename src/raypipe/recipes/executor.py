"""A recipe in one process: the corpus half over a table of sources, the question half over questions.

Applies the gates, keeps the rows in order, counts what each stage did. Jobs, the endpoint and tests all run a
recipe through this module; none of Ray, LanceDB or a model library is known here.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core.arrow import SPANS
from raypipe.core.calls import SingleFlight, about
from raypipe.core.errors import LawBroken, OutOfMemory, RaypipeError
from raypipe.core.protocols import Ask, Build, CorpusStep, Kit, Model, Step
from raypipe.core.records import SKIPPED_REPLY, Question
from raypipe.recipes.deadlines import decided, goes_on, limited
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.recipes.step_contract import decides, embedder_of, named, table_of
from raypipe.store.memo.cached import Asking, CallCounts, add_up, cached
from raypipe.store.memo.memo import Memo

S = TypeVar("S", Step, CorpusStep)
T = TypeVar("T")


class StageError(Exception):
    """An unexpected exception in a stage: a defect there or in a library. `__cause__` is the original.

    What is known to be no row's fault is a RaypipeError, classed where the call was made, and stays as it is.
    """

    def __init__(self, stage: str) -> None:
        super().__init__(stage)
        self.stage = stage

    def __str__(self) -> str:
        return f"stage {self.stage} raised {type(self.__cause__).__name__}: {self.__cause__}"


async def _watched(stage: str, work: Awaitable[T]) -> T:
    try:
        return await work
    except OutOfMemory as e:  # fewer rows may fit
        raise StageError(stage) from e
    except RaypipeError:
        raise
    except (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as e:  # a panic of Rust is no Exception
        raise StageError(stage) from e


OnStage: TypeAlias = Callable[[str, float | None], None]
"""A stage's name, and the seconds that it took; None: it begins."""


@dataclass(slots=True)
class StageCounters:
    """Counters of a stage, over all batches of this process."""

    rows: int = 0  # that reached the stage, let in or not
    skipped: int = 0  # kept out by the gate, or by a fault of an earlier stage
    faults: int = 0  # that this stage added
    seconds: float = 0.0  # wall time inside the stage, without loading models
    loading: float = 0.0  # wall time of loading the models that it was the first to ask
    calls: CallCounts = field(default_factory=CallCounts)  # model calls computed and cached
    differ: int = 0  # replies that differ when they are asked again; counted where that is asked

    def take(self) -> StageCounters:
        """Returns the counts since the last `take`, and resets them to zero."""
        taken = copy.deepcopy(self)
        add_up(self, taken, -1)
        return taken

    def in_vain(self, before: StageCounters) -> None:
        """Takes back what an attempt that failed counted since `before`, but not what it cost: its calls that
        were computed, their tokens, and its seconds stay."""
        self.rows, self.skipped, self.faults = before.rows, before.skipped, before.faults
        self.calls.in_vain(before.calls)

    def add(self, other: StageCounters) -> None:
        """Adds what another process counted."""
        add_up(self, other)

    def spend(self, seconds: float, loading: float) -> None:
        """Adds a pass. `seconds`: of all of it; `loading`: of these, in which models were loaded."""
        loaded = min(loading, seconds)  # several passes at once may wait for the same model
        self.seconds += seconds - loaded
        self.loading += loaded


LoadingS: TypeAlias = Callable[[], float]
"""Seconds that the kit has loaded models so far, which are not the stages' own."""


class QuestionExecutor:
    """The question half of a recipe, opened with a kit: call it with any batches, any number of times.

    `counts` grows by stage name as batches pass. With `memo` None nothing is cached between calls. An
    endpoint `degrades`: a stage whose service is unavailable is omitted. `on_stage` is called when a stage
    begins and when it ends. `stages`: those that are run, of rows for which those before them were. `clock`
    (seconds) times them.
    """

    def __init__(
        self,
        recipe: Recipe,
        kit: Kit,
        memo: Memo | None = None,
        degrades: bool = False,
        on_stage: OnStage = lambda stage, seconds: None,
        loading_s: LoadingS = lambda: 0.0,
        stages: slice = slice(None),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        chosen = range(len(recipe.question))[stages]
        self.counts = {recipe.question[i].name: StageCounters() for i in chosen}
        self._on_stage, self._loading_s, self._clock = on_stage, loading_s, clock
        self._digest, self._kit = recipe.digest(), kit
        self._ranks = not any(decides(s.step) for s in recipe.question)
        self._last = recipe.question[-1].name
        asking: Asking = SingleFlight()
        self._stages: list[tuple[Stage[Step], Ask]] = []
        for i in chosen:
            stage = recipe.question[i]
            within = cached(kit, memo, self.counts[stage.name].calls, asking)
            ask = stage.step.open(within)
            if decides(stage.step):
                ask = decided(ask)
            else:
                last = any(decides(s.step) for s in recipe.question[i + 1 : i + 2])
                ask = limited(stage, ask, last, degrades)
            self._stages.append((stage, ask))

    async def __call__(self, questions: Sequence[Question]) -> list[Question]:
        """The same questions in the same order, answered. Raises what a step raises: expected trouble with
        one row is a Fault on the row, anything else is a defect."""
        rows = list(questions)
        async for _, after in self.steps(rows):
            rows = after
        return rows

    async def steps(self, questions: Sequence[Question]) -> AsyncIterator[tuple[str, list[Question]]]:
        """The same, a stage at a time: its name, and the questions after it."""
        rows = [await self._narrowed(q) for q in questions]
        for stage, ask in self._stages:
            self._on_stage(stage.name, None)
            start, loaded = self._clock(), self._loading_s()
            with about(recipe=self._digest):
                rows = await _pass(stage, ask, rows, self.counts[stage.name])
            took = self._clock() - start
            self.counts[stage.name].spend(took, self._loading_s() - loaded)
            self._on_stage(stage.name, took)
            if self._ranks and stage.name == self._last:
                rows = [replace(q, outcome="ranked" if goes_on(q) else "fault") for q in rows]
            yield stage.name, rows

    async def _narrowed(self, question: Question) -> Question:
        """The question with those of its citations alone for which its condition holds."""
        if not (question.where and question.citations):
            return question
        cited = await self._kit.index().narrowed(question.citations, question.where)
        return replace(question, citations=cited)


async def _pass(stage: Stage[Step], ask: Ask, rows: list[Question], count: StageCounters) -> list[Question]:
    """Runs a stage over a batch: rows that pass its gate go through the step, the others bypass it."""
    # A row with a fault has no honest evidence: only the deciding stage still runs. One whose faults are only
    # stages omitted by a deadline or an outage continues with what it has.
    broken = [not goes_on(q) and not decides(stage.step) for q in rows]
    chosen = [i for i, q in enumerate(rows) if not broken[i] and stage.admits(q)]
    with about([rows[i].id for i in chosen]):
        out = await _watched(stage.name, ask([rows[i] for i in chosen])) if chosen else []
    if [q.id for q in out] != [rows[i].id for i in chosen]:
        raise LawBroken(
            f"{stage.name} must return exactly the questions it was given, in their order; it returned others"
        )
    # Of a row that a stage does not see, replies that it would have written look skipped, even where an old
    # one is stored; everything else stays.
    skipped = dict.fromkeys(named(stage.step.writes(), "replies"), SKIPPED_REPLY)
    result = [replace(q, replies={**q.replies, **skipped}) if skipped else q for q in rows]
    for i, q in zip(chosen, out, strict=True):
        result[i] = q
        broke = sum(r.label == "fault" and rows[i].replies.get(n) != r for n, r in q.replies.items())
        # A transient fault of a reply stands in both places.
        count.faults += max(broke, len(q.faults) - len(rows[i].faults))
    count.rows += len(rows)
    count.skipped += len(rows) - len(chosen)
    return result


@dataclass(frozen=True, slots=True)
class CorpusTables:
    """Runs the corpus half over a table of sources. Column contracts: arrow.py."""

    texts: pa.Table  # one row per source that parse kept: source, kind, text, hidden, words, fault
    passages: pa.Table  # one row per chunk: source, start, end, parent_start, parent_end
    vectors: Mapping[str, pa.Table]  # by model name: the columns of passages, and vector
    faults: pa.Table  # source, fault: each source that could not be done in a stage, its first fault


class CorpusExecutor:
    """The corpus half of a recipe, opened with a kit: call it with tables of sources (arrow.corpus_table)."""

    def __init__(
        self, recipe: Recipe, kit: Kit, memo: Memo | None = None, loading_s: LoadingS = lambda: 0.0
    ) -> None:
        self._recipe, self._loading_s = recipe, loading_s
        self.counts = {s.name: StageCounters() for s in recipe.corpus}
        asking: Asking = SingleFlight()
        self._stages: list[tuple[Stage[CorpusStep], Build]] = [
            (s, s.step.open(cached(kit, memo, self.counts[s.name].calls, asking))) for s in recipe.corpus
        ]

    async def texts(self, sources: pa.Table) -> pa.Table:
        """The stages before the split: one row per source."""
        return await self._through(sources, lambda s: table_of(s) == "texts")

    async def passages(self, texts: pa.Table) -> pa.Table:
        """The split: one row per chunk, with its text, and that of its source where a later step reads it."""
        chunks = await self._through(texts, lambda s: table_of(s) == "passages")
        return with_texts(chunks, texts) if self._recipe.embeds_from_texts else chunks

    async def vectors(self, chunks: pa.Table, model: Model) -> pa.Table:
        """Runs one embedder over the chunks."""
        return await self._through(chunks, lambda s: table_of(s) == "vectors" and embedder_of(s) == model)

    async def __call__(self, sources: pa.Table) -> CorpusTables:
        """All stages."""
        texts = await self.texts(sources)
        chunks = await self.passages(texts)
        vectors = {m.name: await self.vectors(chunks, m) for m in self._recipe.embedders()}
        stages = (t.select(["source", "fault"]) for t in (chunks, *vectors.values()))
        faulty = pa.concat_tables([t.filter(pc.is_valid(t["fault"])) for t in stages])
        first = {source: i for i, source in reversed(list(enumerate(faulty["source"].to_pylist())))}
        return CorpusTables(
            fine(texts),
            fine(chunks).select(SPANS),
            {name: fine(t).select([*SPANS, "vector"]) for name, t in vectors.items()},
            faulty.take(pa.array(sorted(first.values()), pa.int64())),
        )

    async def _through(self, table: pa.Table, chosen: Callable[[CorpusStep], bool]) -> pa.Table:
        for stage, build in self._stages:
            if chosen(stage.step):
                table = await self._one(stage, build, table)
        return table

    async def _one(self, stage: Stage[CorpusStep], build: Build, table: pa.Table) -> pa.Table:
        start, loaded = time.perf_counter(), self._loading_s()
        out = await _watched(stage.name, build(table))
        count = self.counts[stage.name]
        faults = [t.num_rows - t["fault"].null_count for t in (table, out)]
        count.rows += table.num_rows
        count.skipped += faults[0]
        count.faults += faults[1] - faults[0]
        count.spend(time.perf_counter() - start, self._loading_s() - loaded)
        return out


def with_texts(chunks: pa.Table, texts: pa.Table) -> pa.Table:
    """The chunks with the column `text`: that of the source of each, whole."""
    text_of = dict(zip(*(texts[c].to_pylist() for c in ("source", "text")), strict=True))
    whole = [text_of[source] for source in chunks["source"].to_pylist()]
    return chunks.append_column("text", pa.array(whole, pa.large_string()))


def fine(table: pa.Table) -> pa.Table:
    return table.filter(pc.is_null(table["fault"]))
