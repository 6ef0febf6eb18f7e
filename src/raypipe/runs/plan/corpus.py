"""The corpus half of a plan: sources to parse, texts to split, chunks to embed.

Exact where texts are stored; else bounded by the sizes of sources, and estimated from a sample of them.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core.arrow import id_texts
from raypipe.core.protocols import CorpusStep, Model, Reach
from raypipe.core.records import Question
from raypipe.recipes.recipe import Stage
from raypipe.recipes.step_contract import asked_models, embedder_of, is_bounded, table_of, table_with
from raypipe.runs.pipeline.corpus_builds import failed_ids
from raypipe.runs.pipeline.corpus_operators import chunks_of
from raypipe.runs.pipeline.recipe_tables import whole_corpus
from raypipe.runs.plan.costs import PlanContext, calls_seen, embedded, expected_calls
from raypipe.runs.plan.expected_corpus import CorpusSample, SourceKinds, smallest
from raypipe.runs.plan.records import ExpectedCalls, SourceBounds, StepPlan, embedded_bytes, times
from raypipe.runs.plan.standing import left
from raypipe.store.ids import Ids, looked_up, present, stand_in
from raypipe.store.memo.disk import FRESH_BYTES
from raypipe.store.memo.lookup import first_corpus_requests, lookup
from raypipe.store.memo.memo import ENTRY_BYTES, vectors_of
from raypipe.store.sources import Chunks, sizes

LOOKED_AT = 200_000  # chunks whose texts a plan reads to know exactly what is new: about 5 s
PER_READ = 500  # sources whose texts are in memory at once


class CorpusPlanner:
    """Plans the stages of the corpus half, in recipe order, and says what the question half may find."""

    def __init__(self, context: PlanContext) -> None:
        self._context, self._pipeline, self._store = context, context.pipeline, context.pipeline.store
        self.wanted = Ids.of(())  # sources that the corpus half must hold, once `plans` is through
        self.reach = Reach()  # of the ranking before the question half, once `plans` is through

    def plans(self, questions: Sequence[Question]) -> Iterable[StepPlan]:
        pipe, recipe = self._pipeline, self._pipeline.recipe
        wanted = self._wanted(questions)
        missing = pipe.corpus.missing(pipe.recipe.texts_table, wanted)
        work_id, tables = whole_corpus(recipe)
        texts = self._left(pipe.recipe.texts_table, left(self._store, work_id, tables[-1], missing))
        # A killed run's parts are in no table yet: what they hold is still to come for the stages after them.
        textless = texts.joined(missing)
        failed = failed_ids(self._store, {pipe.recipe.texts_table})
        missing = pipe.corpus.missing(pipe.recipe.passages_table, wanted).without(textless).without(failed)
        passages = self._left(pipe.recipe.passages_table, missing).joined(textless)
        unsplit = passages.joined(missing)
        self.wanted, self._unsplit = wanted, unsplit
        self._cited = Ids.of(dict.fromkeys(s for q in questions for s in q.sources() or ()))
        self._counts = Chunks(self._store, pipe.recipe.passages_table)
        self._looks = CorpusSample(pipe, self._looked_at, self._context.coming.some)
        bounds = SourceBounds(recipe, self._chars)
        for stage in recipe.corpus:
            match table_of(stage.step):
                case "vectors":
                    yield self._embed(stage, bounds)
                case "passages":
                    yield self._work(stage, passages, not textless, bounds)
                case "texts":
                    yield self._work(stage, texts, True, bounds)
        self.reach = Reach(0, 0, max(self._counts.longest, bounds.longest))

    def _wanted(self, questions: Sequence[Question]) -> Ids:
        """Sources that the corpus half must hold, those to come included."""
        stored, coming = self._pipeline.sources(questions), self._context.coming
        if not coming.kinds:
            return stored
        kinds = self._pipeline.recipe.source_kinds()
        new = [s for s, kind in coming.kinds.items() if kind in kinds]
        cited = {s for q in questions for s in q.sources() or ()}
        whole = self._pipeline.recipe.searches_all() or any(q.citations is None for q in questions)
        return stored.joined(Ids.of(s for s in new if whole or s in cited))

    def _left(self, what: str, missing: Ids) -> Ids:
        """Rows to do: what a killed run has left of its own, then the others that are missing."""
        return left(self._store, what, what, missing)

    @functools.cached_property
    def _chars(self) -> np.ndarray:
        """(sources that are not split,) int32: characters of each, 0 where nothing says."""
        coming = self._context.coming.chars
        chars = sizes(self._store, self._unsplit)
        if coming:
            numbers = np.fromiter(coming.values(), np.int64, len(coming))
            new = looked_up(self._unsplit.array, [(Ids.of(coming).array, numbers)])
            chars = np.where(new >= 0, new, chars)
        return chars.clip(0)

    def _work(self, stage: Stage[CorpusStep], todo: Ids, exact: bool, bounds: SourceBounds) -> StepPlan:
        """A stage that works on each source; most ask no model, and their work is counted in sources."""
        name, every = stage.name, len(self.wanted.joined(todo))
        works, known = not asked_models(stage.step), is_bounded(stage.step)
        mine, before = self._mask(self._unsplit, todo), self._had(name, self._unsplit)

        def calls(mask: np.ndarray) -> float:
            return times(int(mask.sum()), 1 if known else math.inf) if works else bounds.calls(name, mask)

        reasons = self._context.reasons(name, calls(mine & before), calls(mine & ~before))
        max_calls = sum(reasons.values())
        exact = (exact and works and known) or not max_calls
        guess = None
        if not exact:
            seen = calls_seen(self._context.stages[name], self._context.runs)
            guess = expected_calls(seen, len(todo), max_calls)
            if guess is None and works and known:
                guess = ExpectedCalls((len(todo), len(todo)), 0)  # of those that are parsed first

        stored = functools.partial(embedded_bytes, 0) if not works else lambda asked: 0
        return self._context.step(name, every, every - len(todo), reasons, len(todo), exact, guess, stored)

    def _embed(self, stage: Stage[CorpusStep], bounds: SourceBounds) -> StepPlan:
        """Exact by the digests of texts where they are there; else bounded by the sizes of sources."""
        name, model = stage.name, embedder_of(stage.step)
        table, unsplit, counts = self._pipeline.recipe.vectors_table(model), self._unsplit, self._counts
        split = self.wanted.without(unsplit)
        there = split if self._store.has(self._pipeline.recipe.passages_table) else Ids.of(())
        lacking = self._pipeline.corpus.unembedded(table, there) if there else there
        lacking = self._left(table, lacking).without(unsplit)
        fresh, same = self._texts_to_embed(stage.step, model, lacking)
        had = self._had(name, lacking)
        known = fresh(lacking.where(pa.array(had)))
        others = fresh(lacking) - known
        before = self._had(name, unsplit)
        reasons = self._context.reasons(
            name, known + bounds.calls(name, before), others + bounds.calls(name, ~before)
        )
        stored_chunks = counts.total(split.joined(lacking))
        max_calls = sum(reasons.values())
        exact, guess = same and not unsplit, None
        if not exact:
            cut = next(s.name for s in self._pipeline.recipe.corpus if table_of(s.step) == "passages")
            seen = embedded(self._context.stages[name], self._context.stages[cut], self._context.runs)
            unknown = len(unsplit) + (0 if same else len(lacking))
            guess = expected_calls(seen, unknown, max_calls, known + others if same else 0)
            if guess is None and (not unsplit or self._looks.known):  # by the look of some sources
                chunks = known + others + self._expected(np.ones(len(unsplit), bool))
                guess = ExpectedCalls((round(min(chunks, max_calls)),) * 2, 0)
        texts = guess.calls[1] if guess else max_calls
        return self._context.step(
            name, stored_chunks + bounds.chunks, stored_chunks - known - others, reasons, texts, exact, guess,
            functools.partial(embedded_bytes, model.dim),
        )  # fmt: skip

    def _mask(self, ids: Ids, some: Ids) -> np.ndarray:
        """(ids,) bool: which of the ids are among some."""
        if ids is some:
            return np.ones(len(ids), bool)
        mask: np.ndarray = stand_in(ids.array, some.array).to_numpy(zero_copy_only=False)
        return mask

    def _expected(self, mask: np.ndarray) -> float:
        """Chunks to expect of the sources that are not split, where `mask` is true."""
        kinds = self._kinds.masks() if mask.any() else ()
        return sum(self._looks.chunks(kind, int(self._chars[mask & of].sum())) for kind, of in kinds)

    @functools.cached_property
    def _kinds(self) -> SourceKinds:
        return SourceKinds(self._store, self._unsplit, self._context.coming.kinds)

    def _looked_at(self) -> Mapping[str, Sequence[str]]:
        """Kind -> the sources that stand for all of it."""
        coming = self._context.coming
        if self.wanted.all_of:
            return smallest(self._store)
        every = self.wanted.joined(Ids.of(coming.some))
        return SourceKinds(self._store, every, coming.kinds).chosen(coming.kinds.keys() - coming.some.keys())

    def scope(self, question: Question) -> Reach | None:
        """How far the ranking of a question can grow, about, once `plans` is through; None where nothing
        says."""
        if not self._looks.known:
            return None
        sources = question.sources()
        passages, said = self._looks.per_chunk()
        chunks = self._all_chunks if sources is None else sum(self._chunks.get(s, 0) for s in sources)
        return Reach(chunks * passages, chunks * passages, self.reach.passage_chars, said)

    @functools.cached_property
    def _chunks(self) -> dict[str, float]:
        """Chunks of each source that a question cites, counted or to be expected."""
        found: dict[str, float] = dict(self._counts.each(self._cited))
        unsplit = self._kinds.of(self._cited) if self._unsplit else {}
        return found | {
            s: self._looks.chunks(kind, int(self._chars[at])) for s, (at, kind) in unsplit.items()
        }

    @functools.cached_property
    def _all_chunks(self) -> float:
        """Chunks of all sources that are wanted, counted or to be expected."""
        split = self._counts.total(self.wanted.without(self._unsplit))
        return split + self._expected(self._mask(self._unsplit, self.wanted))

    def _texts_to_embed(self, step: CorpusStep, model: Model, todo: Ids) -> tuple[Callable[[Ids], int], bool]:
        """Counts the texts of some of these sources that no run embedded, and says whether those are exactly
        what will be asked."""
        if (total := self._counts.total(todo)) > LOOKED_AT:
            return self._counts.total, False
        first: dict[str, int] = {}  # source -> texts that none before it has
        each: dict[str, int] = {}  # source -> texts, whatever others have
        seen: set[str] = set()
        for at in range(0, len(todo), PER_READ):
            keys = self._passage_keys(step, tuple(todo[at : at + PER_READ]))
            every = {k for some in keys.values() for k in some}
            new = every - lookup(self._store, vectors_of(model), list(every))
            for source, some in keys.items():
                each[source] = len(some & new)
                first[source] = len((some & new) - seen)
                seen |= some & new
        kept = total * (ENTRY_BYTES + 4 * model.dim) <= FRESH_BYTES
        same = first == each
        alone = same or (self._pipeline.workers("embed").count == 1 and kept)
        asked = first if alone else each
        return lambda some: sum(asked.get(s, 0) for s in some), alone

    def _passage_keys(self, step: CorpusStep, sources: tuple[str, ...]) -> dict[str, set[str]]:
        """Source -> keys of what the step asks its embedder about the source's chunks."""
        pipe = self._pipeline
        chunks = chunks_of(self._store, pipe.recipe, sources)
        runs = pc.run_end_encode(chunks["source"].combine_chunks())  # chunks of a source stand together
        ends = [0, *runs.run_ends.to_pylist()]
        tables = [chunks.slice(a, b - a) for a, b in itertools.pairwise(ends)]
        found = asyncio.run(first_corpus_requests(step, pipe.worker.kit(None), tables))
        asked = dict(zip(id_texts(runs.values), found, strict=True))
        return {s: set(a.keys) for s in sources if (a := asked.get(s)) is not None}

    def _had(self, name: str, sources: Ids) -> np.ndarray:
        """(sources,) bool: which of them the last finished run's table of this stage had."""
        had, last = np.zeros(len(sources), bool), self._context.last
        old = last.stage(name) if last else None
        if last is None or old is None or not sources:
            return had
        kind = f"{table_with(old.writes)}-"
        for table in (t for t in last.tables if t.startswith(kind) and self._store.has(t)):
            there = present(self._store.dataset(table), "source", sources.array)
            had |= there.to_numpy(zero_copy_only=False)
        return had
