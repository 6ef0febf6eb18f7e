"""Execution of a recipe's halves in one process: one takes a table of sources, the other takes questions.

The executors apply gates, keep rows in order, and count the work of each stage. Jobs, the endpoint and tests
run recipes through this module. It needs no Ray, and no store except the memo that a caller may give.
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
from raypipe.core.call_context import about
from raypipe.core.errors import LawBroken, OutOfMemory, RaypipeError
from raypipe.core.protocols import Ask, Build, CorpusStep, Kit, Model, Step
from raypipe.core.records import SKIPPED_REPLY, Question
from raypipe.core.single_flight import SingleFlight
from raypipe.recipes.deadlines import decided, goes_on, limited
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.recipes.step_contract import decides, embedder_of, named, table_of
from raypipe.store.memo.cached import Asking, CallCounts, add_up, cached
from raypipe.store.memo.memo import Memo

S = TypeVar("S", Step, CorpusStep)
T = TypeVar("T")


class StageError(Exception):
    """An unexpected exception of a stage, perhaps caused by a row of its batch; `__cause__` is the original.

    OutOfMemory is wrapped, too. Any other RaypipeError is raised unchanged, since no row caused it."""

    def __init__(self, stage: str) -> None:
        super().__init__(stage)
        self.stage = stage

    def __str__(self) -> str:
        return f"stage {self.stage} raised {type(self.__cause__).__name__}: {self.__cause__}"


async def _watched(stage: str, work: Awaitable[T]) -> T:
    try:
        return await work
    except (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as e:  # a panic in Rust is not an Exception
        if isinstance(e, RaypipeError) and not isinstance(e, OutOfMemory):
            raise
        raise StageError(stage) from e


OnStage: TypeAlias = Callable[[str, float | None], None]
"""Callback: gets (stage name, None) when the stage begins, and (stage name, its seconds) when it ends."""


@dataclass(slots=True)
class StageCounters:
    """Counters of a stage over all batches of this process."""

    rows: int = 0  # rows that reached the stage, including skipped rows
    skipped: int = 0  # rows kept out by the gate or by a fault of an earlier stage
    faults: int = 0  # faults that this stage added
    seconds: float = 0.0  # wall time inside the stage, without loading models
    loading: float = 0.0  # wall time of loading models that this stage used first
    calls: CallCounts = field(default_factory=CallCounts)  # computed and cached model calls
    differ: int = 0  # replies that differed when a chat was repeated; counted by the repeating caller

    def take(self) -> StageCounters:
        """Returns the counts since the last `take`, and resets them to zero."""
        taken = copy.deepcopy(self)
        add_up(self, taken, -1)
        return taken

    def in_vain(self, before: StageCounters) -> None:
        """Resets the counts of rows, faults and cached calls to those in `before`, after a failed attempt.
        The counts of computed calls, tokens and seconds keep the work of the attempt."""
        self.rows, self.skipped, self.faults = before.rows, before.skipped, before.faults
        self.calls.in_vain(before.calls)

    def add(self, other: StageCounters) -> None:
        add_up(self, other)

    def spend(self, seconds: float, loading: float) -> None:
        """Adds the seconds of one pass over a batch. In `loading` of these seconds, models were loaded."""
        loaded = min(loading, seconds)  # several passes at once may wait for, and count, the same model
        self.seconds += seconds - loaded
        self.loading += loaded


LoadingS: TypeAlias = Callable[[], float]
"""Function that returns the seconds that the kit has spent loading models so far."""


class QuestionExecutor:
    """The question half of a recipe, opened with a kit. Call it with any batches, any number of times.

    `counts` maps a stage's name to its counters, which grow with each batch. If `memo` (the table of cached
    model calls) is None, calls are not cached. If `degrades` is true, as at an endpoint, a stage whose
    service is unavailable is omitted; else Unavailable is raised. `on_stage` is called when a stage begins
    (with None) and when it ends (with its seconds). `stages` is the slice of stages to run; rows must have
    passed the stages before it. `clock` returns seconds."""

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
        """Runs the chosen stages. Returns the same questions in the same order, with the stages' results. An
        expected failure of a row becomes a Fault of the row. Raises StageError for an unexpected exception of
        a step, and LawBroken if a step returns other questions."""
        rows = list(questions)
        async for _, after in self.steps(rows):
            rows = after
        return rows

    async def steps(self, questions: Sequence[Question]) -> AsyncIterator[tuple[str, list[Question]]]:
        """Runs one stage after the other. Yields each stage's name, and the questions after it."""
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
        """Removes the citations that do not meet the question's condition `where`, if it has one."""
        if not (question.where and question.citations):
            return question
        cited = await self._kit.index().narrowed(question.citations, question.where)
        return replace(question, citations=cited)


async def _pass(stage: Stage[Step], ask: Ask, rows: list[Question], count: StageCounters) -> list[Question]:
    """Runs a stage over the rows that its gate admits and no fault stops; other rows bypass it."""
    # A row with a fault lacks evidence, so only the deciding stage still runs for it. But if all its faults
    # come from stages omitted by a deadline or an outage, the row continues without their output.
    broken = [not goes_on(q) and not decides(stage.step) for q in rows]
    chosen = [i for i, q in enumerate(rows) if not broken[i] and stage.admits(q)]
    with about([rows[i].id for i in chosen]):
        out = await _watched(stage.name, ask([rows[i] for i in chosen])) if chosen else []
    if [q.id for q in out] != [rows[i].id for i in chosen]:
        raise LawBroken(
            f"{stage.name} must return exactly the questions it was given, in their order; it returned others"
        )
    # If a row bypasses the stage, the replies that the stage would write are set to skipped, even if the row
    # has an older reply of that name. Its other fields do not change.
    skipped = dict.fromkeys(named(stage.step.writes(), "replies"), SKIPPED_REPLY)
    result = [replace(q, replies={**q.replies, **skipped}) if skipped else q for q in rows]
    for i, q in zip(chosen, out, strict=True):
        result[i] = q
        broke = sum(r.label == "fault" and rows[i].replies.get(n) != r for n, r in q.replies.items())
        # A transient fault of a reply is both in the reply and in the question's faults: count it once.
        count.faults += max(broke, len(q.faults) - len(rows[i].faults))
    count.rows += len(rows)
    count.skipped += len(rows) - len(chosen)
    return result


@dataclass(frozen=True, slots=True)
class CorpusTables:
    """Tables that the corpus half makes from a table of sources. For the columns see core/arrow.py."""

    texts: pa.Table  # one row per source parsed without a fault: source, kind, text, hidden, words, fault
    passages: pa.Table  # one row per chunk: source, start, end, parent_start, parent_end
    vectors: Mapping[str, pa.Table]  # model name -> the columns of passages, and vector
    faults: pa.Table  # source, fault: one row per source that failed in some stage, with its first fault


class CorpusExecutor:
    """The corpus half of a recipe, opened with a kit. Call it with tables of `arrow.corpus_table`."""

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
        """Runs the stages before the split. Returns one row per source, if the recipe parses its kind."""
        return await self._through(sources, lambda s: table_of(s) == "texts")

    async def passages(self, texts: pa.Table) -> pa.Table:
        """Runs the split. Returns one row per chunk, or one row for a source with a fault. If an embedding
        step reads whole texts, each row also has its source's text."""
        chunks = await self._through(texts, lambda s: table_of(s) == "passages")
        return with_texts(chunks, texts) if self._recipe.embeds_from_texts else chunks

    async def vectors(self, chunks: pa.Table, model: Model) -> pa.Table:
        return await self._through(chunks, lambda s: table_of(s) == "vectors" and embedder_of(s) == model)

    async def __call__(self, sources: pa.Table) -> CorpusTables:
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
            if not chosen(stage.step):
                continue
            start, loaded = time.perf_counter(), self._loading_s()
            out = await _watched(stage.name, build(table))
            count = self.counts[stage.name]
            faults = [t.num_rows - t["fault"].null_count for t in (table, out)]
            count.rows += table.num_rows
            count.skipped += faults[0]
            count.faults += faults[1] - faults[0]
            count.spend(time.perf_counter() - start, self._loading_s() - loaded)
            table = out
        return table


def with_texts(chunks: pa.Table, texts: pa.Table) -> pa.Table:
    """Adds the column `text` with the whole text of each chunk's source."""
    text_of = dict(zip(*(texts[c].to_pylist() for c in ("source", "text")), strict=True))
    whole = [text_of[source] for source in chunks["source"].to_pylist()]
    return chunks.append_column("text", pa.array(whole, pa.large_string()))


def fine(table: pa.Table) -> pa.Table:
    return table.filter(pc.is_null(table["fault"]))
