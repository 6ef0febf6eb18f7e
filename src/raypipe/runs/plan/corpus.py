"""The corpus half of a plan: sources to parse, texts to split, chunks to embed.

Exact where texts are stored; else bounded by the sizes of sources, and estimated from a sample of them.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import pyarrow.compute as pc

from raypipe.core.protocols import CorpusStep, Model, Reach
from raypipe.core.records import Question
from raypipe.memo.disk import FRESH_BYTES
from raypipe.memo.lookup import first_corpus_requests, lookup
from raypipe.memo.memo import ENTRY_BYTES, vectors_of
from raypipe.pipeline.corpus_builds import failed_ids
from raypipe.pipeline.corpus_tasks import chunks_of
from raypipe.pipeline.recipe_tables import whole_corpus
from raypipe.recipes.default_bounds import is_bounded
from raypipe.recipes.recipe import Stage
from raypipe.recipes.step_contract import asked_models, embedder_of, table_of, table_with
from raypipe.runs.plan.context import PlanContext, total
from raypipe.runs.plan.costs import ExpectedCalls, expected_calls
from raypipe.runs.plan.rates import calls_seen, embedded
from raypipe.runs.plan.records import StepPlan
from raypipe.runs.plan.sample import CorpusSample, kinds_of, smallest
from raypipe.runs.plan.stage_bounds import SourceBound, embedded_bytes, source_bound
from raypipe.runs.plan.store_state import Chunks, left
from raypipe.store.sizes import sizes
from raypipe.store.source_ids import SourceIds

LOOKED_AT = 200_000  # chunks whose texts a plan reads to know exactly what is new: about 5 s
PER_READ = 500  # sources whose texts are in memory at once


class CorpusPlanner:
    """Plans the stages of the corpus half, in recipe order, and says what the question half may find."""

    def __init__(self, context: PlanContext) -> None:
        self._context, self._pipeline, self._store = context, context.pipeline, context.pipeline.store
        self.wanted: Sequence[str] = []  # sources that the corpus half must hold, once `plans` is through
        self.reach = Reach()  # of the ranking before the question half, once `plans` is through

    def plans(self, questions: Sequence[Question]) -> Iterable[StepPlan]:
        """The plan of each stage."""
        pipe, recipe, coming = self._pipeline, self._pipeline.recipe, self._context.coming
        wanted = self._wanted(questions)
        missing = pipe.corpus.missing(pipe.texts_table, wanted)
        work_id, tables = whole_corpus(recipe)
        texts = self._left(pipe.texts_table, left(self._store, work_id, tables[-1], missing))
        # A killed run's parts are in no table yet: what they hold is still to come for the stages after them.
        textless = list(dict.fromkeys([*texts, *missing]))
        gone = {*textless, *failed_ids(self._store, {pipe.texts_table})}
        there = [s for s in wanted if s not in gone] if gone else wanted
        missing = pipe.corpus.missing(pipe.passages_table, there)
        passages = list(dict.fromkeys([*self._left(pipe.passages_table, missing), *textless]))
        unsplit = list(dict.fromkeys([*passages, *missing]))
        self._chars = {**sizes(self._store, unsplit), **coming.chars}
        self.wanted, self._unsplit = wanted, set(unsplit)
        self._looks = self._sample(wanted)
        self._counts = counts = Chunks(self._store, pipe.passages_table, set(unsplit))
        of_length = functools.cache(functools.partial(source_bound, recipe))
        bounds = {s: of_length(self._chars.get(s, 0)) for s in unsplit}
        for stage in recipe.corpus:
            match table_of(stage.step):
                case "vectors":
                    yield self._embed(stage, wanted, unsplit, counts, bounds)
                case "passages":
                    yield self._work(stage, wanted, passages, not textless, bounds)
                case "texts":
                    yield self._work(stage, wanted, texts, True, bounds)
        longest = max((b.passage_chars for b in bounds.values()), default=0)
        self.reach = Reach(0, 0, max(counts.longest, longest))

    def _wanted(self, questions: Sequence[Question]) -> Sequence[str]:
        """Sources that the corpus half must hold, those to come included."""
        stored, coming = self._pipeline.sources(questions), self._context.coming
        if not coming.kinds:
            return stored
        kinds = self._pipeline.recipe.source_kinds()
        new = [s for s, kind in coming.kinds.items() if kind in kinds]
        cited = {s for q in questions for s in q.sources() or ()}
        whole = self._pipeline.recipe.searches_all() or any(q.citations is None for q in questions)
        return list(dict.fromkeys([*stored, *(s for s in new if whole or s in cited)]))

    def _left(self, what: str, missing: Sequence[str]) -> list[str]:
        """Rows to do: what a killed run has left of its own, then the others that are missing."""
        return left(self._store, what, what, missing)

    def _work(
        self, stage: Stage[CorpusStep], wanted: Sequence[str], todo: Sequence[str], exact: bool,
        bounds: Mapping[str, SourceBound],
    ) -> StepPlan:  # fmt: skip
        """A stage that works on each source; most ask no model, and their work is counted in sources."""
        name, every = stage.name, len(set(wanted) | set(todo)) if todo else len(wanted)
        before = self._known_sources(name, todo)
        works, known = not asked_models(stage.step), is_bounded(stage.step)
        each = 1 if known else math.inf
        calls = [
            (each if works else bounds[s].calls[name], self._context.why(name, s in before)) for s in todo
        ]
        exact = (exact and works and known) or not any(n for n, _ in calls)
        guess = None
        if not exact:
            seen = calls_seen(self._context.stages[name], self._context.runs)
            guess = expected_calls(seen, len(todo), total(calls))
            if guess is None and works and known:
                guess = ExpectedCalls((len(todo), len(todo)), 0)  # of those that are parsed first

        def stored(asked: float) -> float:
            return 0 if works else embedded_bytes(0, asked)

        return self._context.step(
            name, every, every - len(todo), calls, len(todo), exact, guess, _no_tokens, stored
        )

    def _embed(
        self, stage: Stage[CorpusStep], wanted: Sequence[str], unsplit: Sequence[str], counts: Chunks,
        bounds: Mapping[str, SourceBound],
    ) -> StepPlan:  # fmt: skip
        """Exact by the digests of texts where they are there; else bounded by the sizes of sources."""
        name, model = stage.name, embedder_of(stage.step)
        table = self._pipeline.vectors_table(model)
        todo = set(unsplit)
        here = counts.having([s for s in wanted if s not in todo] if todo else wanted)
        lacking = self._left(table, self._pipeline.corpus.missing(table, here))
        lacking = [s for s in lacking if s not in todo]
        fresh, same = self._texts_to_embed(stage.step, model, lacking, counts)
        before = self._known_sources(name, [*lacking, *unsplit])
        asks: dict[str, float] = {**fresh, **{s: b.calls[name] for s, b in bounds.items()}}
        calls = [(n, self._context.why(name, s in before)) for s, n in asks.items() if n]
        stored_chunks = counts.total(list({*here, *lacking}) if lacking else here)
        rows = stored_chunks + sum(b.chunks for b in bounds.values())
        max_calls = total(calls)
        exact, guess = same and not unsplit, None
        if not exact:
            split = next(s.name for s in self._pipeline.recipe.corpus if table_of(s.step) == "passages")
            others = embedded(self._context.stages[name], self._context.stages[split], self._context.runs)
            unknown = len(unsplit) + (0 if same else len(lacking))
            guess = expected_calls(others, unknown, max_calls, sum(fresh.values()) if same else 0)
            guess = guess or self._sampled(unsplit, sum(fresh.values()), max_calls)
        texts = guess.calls[1] if guess else max_calls

        def stored(texts: float) -> float:
            return embedded_bytes(model.dim, texts)

        return self._context.step(
            name, rows, stored_chunks - sum(fresh.values()), calls, texts, exact, guess, _no_tokens, stored
        )

    def _sampled(self, unsplit: Sequence[str], others: float, most: float) -> ExpectedCalls | None:
        """Texts of sources that are not split, by the look of some, and those of `others`."""
        if unsplit and not self._looks.known:
            return None
        texts = round(min(others + sum(map(self._chunks, unsplit)), most))
        return ExpectedCalls((texts, texts), 0)

    def _chunks(self, source: str) -> float:
        """Chunks of a source, counted or to be expected."""
        if source in self._unsplit:
            return self._looks.chunks(source, self._chars.get(source, 0))
        return self._counts.of(source)

    def scope(self, question: Question) -> Reach | None:
        """How far the ranking of a question can grow, about, once `plans` is through; None where nothing
        says."""
        if not self._looks.known:
            return None
        sources = question.sources()
        passages, said = self._looks.per_chunk()
        chunks = self._all_chunks if sources is None else sum(map(self._chunks, sources))
        return Reach(chunks * passages, chunks * passages, self.reach.passage_chars, said)

    @functools.cached_property
    def _all_chunks(self) -> float:
        """Chunks of all sources that are wanted, counted or to be expected."""
        if not self._unsplit:
            return self._counts.total(self.wanted)
        return sum(map(self._chunks, self.wanted))

    def _sample(self, wanted: Sequence[str]) -> CorpusSample:
        coming = self._context.coming
        if isinstance(wanted, SourceIds):  # all that the store has
            kinds = {**smallest(self._store), **kinds_of(self._store, self._unsplit)}
        else:
            every = {**kinds_of(self._store, set(wanted)), **coming.kinds}
            kinds = {s: every[s] for s in (*wanted, *coming.some)}
        return CorpusSample(self._pipeline, kinds, coming.kinds.keys() - coming.some.keys(), coming.some)

    def _texts_to_embed(
        self, step: CorpusStep, model: Model, todo: Sequence[str], counts: Chunks
    ) -> tuple[dict[str, int], bool]:
        """Source -> texts of it that no run embedded, and whether these are exactly what will be asked."""
        if (total := sum(counts.of(s) for s in todo)) > LOOKED_AT:
            return {s: counts.of(s) for s in todo}, False
        first: dict[str, int] = {}  # source -> texts that none before it has
        each: dict[str, int] = {}  # source -> texts, whatever others have
        seen: set[str] = set()
        for at in range(0, len(todo), PER_READ):
            keys = self._passage_keys(step, todo[at : at + PER_READ])
            every = {k for some in keys.values() for k in some}
            new = every - lookup(self._store, vectors_of(model), list(every))
            for source, some in keys.items():
                each[source] = len(some & new)
                first[source] = len((some & new) - seen)
                seen |= some & new
        kept = total * (ENTRY_BYTES + 4 * model.dim) <= FRESH_BYTES
        if first == each:
            return each, True
        alone = self._pipeline.workers("embed").count == 1 and kept
        return (first if alone else each), alone

    def _passage_keys(self, step: CorpusStep, sources: Sequence[str]) -> dict[str, set[str]]:
        """Source -> keys of what the step asks its embedder about the source's chunks."""
        pipe = self._pipeline
        chunks = chunks_of(self._store, pipe.texts_table, pipe.passages_table, tuple(sources))
        runs = pc.run_end_encode(chunks["source"].combine_chunks())  # chunks of a source stand together
        ends = [0, *runs.run_ends.to_pylist()]
        tables = [chunks.slice(a, b - a) for a, b in itertools.pairwise(ends)]
        found = asyncio.run(first_corpus_requests(step, pipe.worker.kit(None), tables))
        asked = dict(zip(runs.values.to_pylist(), found, strict=True))
        return {s: set(a.keys) for s in sources if (a := asked.get(s)) is not None}

    def _known_sources(self, name: str, sources: Sequence[str]) -> set[str]:
        """Those that the last finished run's table of this stage had."""
        old = self._context.last.stage(name) if self._context.last else None
        if self._context.last is None or old is None:
            return set()
        kind = f"{table_with(old.writes)}-"
        tables = [t for t in self._context.last.tables if t.startswith(kind) and self._store.has(t)]
        missing = set(sources)
        for table in tables:
            missing &= set(self._store.missing(table, "source", list(sources)))
        return set(sources) - missing


def _no_tokens(calls: float) -> float:
    """Of an embedder: none has a price by tokens."""
    return 0
