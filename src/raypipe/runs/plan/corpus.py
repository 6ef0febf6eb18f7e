"""Corpus half of a plan: sources to parse, texts to split, chunks to embed.

Requests of chunks whose text is stored, or that the plan has split itself (`sample`), are looked up in the
memo (the cache). If more than LOOKED_AT stored chunks lack vectors, all of them count as new. Requests of
other chunks are bounded by the sizes of their sources, and estimated from the sample.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core import arrow
from raypipe.core.bounded_rows import batches
from raypipe.core.llm import Chat
from raypipe.core.protocols import CorpusStep, Model, Reach
from raypipe.core.records import Question, Source
from raypipe.recipes import step_contract
from raypipe.recipes.recipe import Stage
from raypipe.recipes.step_contract import corpus_bound_of, is_bounded
from raypipe.runs.pipeline.corpus_builds import failed_ids
from raypipe.runs.pipeline.corpus_operators import chunks_of
from raypipe.runs.pipeline.recipe_tables import whole_corpus
from raypipe.runs.plan.costs import PlanContext, asked_before
from raypipe.runs.plan.records import Range, SourceBounds, StepPlan, calls_each, embedded_bytes, times
from raypipe.runs.plan.sample import CHARS, NONE, SOURCES, Sample, look
from raypipe.runs.plan.staleness import unfinished_ids
from raypipe.steps.prompts import CHARS_PER_TOKEN
from raypipe.store.ids import Ids, looked_up, present, stand_in
from raypipe.store.memo.disk import FRESH_BYTES
from raypipe.store.memo.lookup import first_chats, first_requests, lookup
from raypipe.store.memo.memo import ENTRY_BYTES, vectors_of
from raypipe.store.sources import Chunks, sizes

LOOKED_AT = 200_000  # most stored chunks whose texts a plan reads to count new ones exactly: about 5 s
PER_READ = 500  # sources with texts in memory at a time
AT_ONCE = 20  # sources read for a sample before its size is checked again
PROMPTS = 100  # prompts written for sampled chunks, to measure their length
FEW = 48  # most sources of a sample if all sources are split: it only measures sentences per passage


class CorpusPlanner:
    """Planner of the corpus half. Also estimates the passages that questions can find (`scope`)."""

    def __init__(self, context: PlanContext, questions: Sequence[Question]) -> None:
        self._context, self._pipeline, self._store = context, context.pipeline, context.pipeline.store
        pipe, recipe = self._pipeline, self._pipeline.recipe
        coming = context.coming
        wanted = pipe.sources(questions).without(coming.gone)
        if coming.kinds:
            new = [s for s, kind in coming.kinds.items() if kind in recipe.source_kinds()]
            cited = {s for q in questions for s in q.sources() or ()}
            whole = recipe.searches_all() or any(q.citations is None for q in questions)
            wanted = wanted.joined(Ids.of(s for s in new if whole or s in cited))
        self.wanted = wanted  # sources that the corpus half must hold, new ones included
        missing = pipe.corpus.missing(recipe.texts_table, wanted)
        work_id, tables = whole_corpus(recipe)
        texts, passages = recipe.texts_table, recipe.passages_table
        missing = unfinished_ids(self._store, work_id, tables[-1], missing)
        self._texts = unfinished_ids(self._store, texts, texts, missing)
        # Parts of a killed run are in no table yet, so their rows are still missing for later stages.
        textless = self._texts.joined(missing)
        failed = failed_ids(self._store, {recipe.texts_table})
        missing = pipe.corpus.missing(recipe.passages_table, wanted).without(textless).without(failed)
        self._passages = unfinished_ids(self._store, passages, passages, missing).joined(textless)
        self._parsed = not textless  # True: all texts are stored
        self._unsplit = self._passages.joined(missing)
        self._cited = Ids.of(dict.fromkeys(s for q in questions for s in q.sources() or ()))
        self._counts = Chunks(self._store, recipe.passages_table)
        self._bounds = SourceBounds(recipe, self._chars)

    def plans(self) -> Iterator[StepPlan]:
        for stage in self._pipeline.recipe.corpus:
            match step_contract.table_of(stage.step):
                case "vectors":
                    yield self._embed(stage)
                case "passages":
                    yield self._work(stage, self._passages, self._parsed)
                case "texts":
                    yield self._work(stage, self._texts, True)

    @property
    def longest(self) -> float:
        """Characters of the longest passage, at most."""
        return max(self._counts.longest, self._bounds.longest)

    @functools.cached_property
    def _chars(self) -> np.ndarray:
        """(unsplit sources,) integers: characters of each; 0: not known."""
        coming = self._context.coming.chars
        chars = sizes(self._store, self._unsplit)
        if coming:
            numbers = np.fromiter(coming.values(), np.int64, len(coming))
            new = looked_up(self._unsplit.array, [(Ids.of(coming).array, numbers)])
            chars = np.where(new >= 0, new, chars)
        return chars.clip(0)

    def _work(self, stage: Stage[CorpusStep], todo: Ids, exact: bool) -> StepPlan:
        """Plans a stage that processes source by source. Counts its sources, or its calls if it calls models;
        math.inf if the step states no bound. `todo`: sources to process. `exact` False: some of these may
        fail before, in parsing."""
        name, every = stage.name, len(self.wanted.joined(todo))
        works, known = not step_contract.asked_models(stage.step), is_bounded(stage.step)
        mine, before = _among(self._unsplit, todo), self._had(name, self._unsplit)

        def calls(mask: np.ndarray) -> float:
            sources = times(int(mask.sum()), 1 if known else math.inf)
            return sources if works else self._bounds.calls(name, mask)

        reasons = self._context.reasons(name, calls(mine & before), calls(mine & ~before))
        exact = (exact and works and known) or not reasons
        record, most = self._context.stages[name], sum(reasons.values())
        expected = asked_before(record, self._context.runs, len(todo), most)
        if works and known:
            expected = len(todo), len(todo)  # with sources that must be parsed first
        stored = functools.partial(embedded_bytes, 0) if not works else lambda asked: 0
        return self._context.step(name, every, every - len(todo), reasons, len(todo), exact, expected, stored)

    def _embed(self, stage: Stage[CorpusStep]) -> StepPlan:
        """Plans an embedding stage: looks up chunks with known texts, bounds the number of other chunks."""
        name, model = stage.name, step_contract.embedder_of(stage.step)
        table, unsplit, counts = self._pipeline.recipe.vectors_table(model), self._unsplit, self._counts
        split = self.wanted.without(unsplit)
        there = split if self._store.has(self._pipeline.recipe.passages_table) else Ids.of(())
        lacking = self._pipeline.corpus.unembedded(table, there) if there else there
        lacking = unfinished_ids(self._store, table, table, lacking).without(unsplit)
        look = self._look if unsplit else NONE
        seen = self._seen if unsplit else unsplit
        fresh, same = self._texts_to_embed(stage.step, model, lacking, seen)
        had, before = functools.partial(self._had, name), self._had(name, unsplit)
        rest = ~_among(unsplit, self._seen) if unsplit else np.zeros(0, bool)
        known = sum(fresh(ids.where(pa.array(had(ids)))) for ids in (lacking, seen))
        others = fresh(lacking) + fresh(seen) - known
        asks = corpus_bound_of(stage.step, self.longest)
        each, prompt_tokens = calls_each(stage.step), self._prompt_tokens(stage.step)
        calls = functools.partial(self._bounds.calls, name)
        had_calls, other_calls = calls(before & rest), calls(~before & rest)
        reasons = self._context.reasons(name, known * each + had_calls, others * each + other_calls)
        expected = None
        if look.known or not rest.any():
            new = fresh(seen) / max(1, len(look.chunks)) if seen else 1.0  # share that is not cached
            likely = known + others + new * self._expected[rest].sum()
            expected = (round(min(likely * each, sum(reasons.values()))),) * 2
        stored_chunks = counts.total(split.joined(lacking))
        rows = stored_chunks + sum(look.each[s] for s in seen) + self._bounds.chunks(rest)
        todo = (expected[1] if expected else sum(reasons.values())) / each

        def tokens(low: float, high: float) -> Range:
            return times(low / each, prompt_tokens), times(high / each, prompt_tokens + asks.reply_tokens)

        return self._context.step(
            name,
            rows,
            stored_chunks - fresh(lacking),
            reasons,
            todo,
            same and not unsplit,
            expected,
            lambda asked: embedded_bytes(model.dim, asked / each),
            tokens,
        )

    def _prompt_tokens(self, step: CorpusStep) -> float:
        """Estimates the tokens of a prompt about a chunk, from prompts for some sampled chunks. Returns the
        step's own estimate if there are none, or if the step calls no language model."""
        chats = list[Chat]()
        writes = any(m.kind == "generator" for m in step_contract.asked_models(step))
        if writes and (chunks := self._look.chunks).num_rows:
            some = chunks.take(np.linspace(0, len(chunks) - 1, PROMPTS).astype(int))
            chats = asyncio.run(first_chats(step, self._pipeline.worker.kit(None), some))
        if not chats:
            return corpus_bound_of(step, self.longest).prompt_tokens
        return sum(len(turn.content) for chat in chats for turn in chat) / len(chats) / CHARS_PER_TOKEN

    @functools.cached_property
    def _look(self) -> Sample:
        """Sample of the unsplit sources, or of the wanted ones if all are split. Lacks sources to be ingested
        whose text the plan has not kept."""
        coming = self._context.coming
        unread = Ids.of(s for s in coming.kinds if s not in coming.some)
        pool = (self._unsplit or self.wanted).without(unread)
        # Ids are digests, so the smallest are a random sample. `Sampler` keeps the texts of the same ones.
        smallest = pc.select_k_unstable(pool.array, SOURCES if self._unsplit else FEW, [("", "ascending")])
        sources: list[Source] = []
        for some in batches(Ids(pool.array.take(smallest)), AT_ONCE):
            if sum(len(s.content) for s in sources) < CHARS:
                sources += [coming.some[i] for i in some if i in coming.some]
                stored = [i for i in some if i not in coming.some]
                sources += arrow.source.records(self._store.rows("sources", "id", stored))
        return look(self._pipeline.recipe, self._pipeline.worker.kit(None), sources)

    @functools.cached_property
    def _seen(self) -> Ids:
        """Unsplit sources whose chunks are known exactly, from the sample."""
        return Ids.of(self._look.each if self._look.exact else ())

    @functools.cached_property
    def _expected(self) -> np.ndarray:
        """(unsplit sources,) chunks of each, counted in the sample or estimated."""
        if not self._unsplit:
            return np.zeros(0)
        each = self._look.each
        counts = np.fromiter(each.values(), np.int64, len(each))
        found = looked_up(self._unsplit.array, [(Ids.of(each).array, counts)])
        return np.where(found >= 0, found, self._look.expected(self._chars))

    def scope(self, questions: Sequence[Question]) -> dict[str, Reach]:
        """Estimates the most passages of each question, by its id; infinite if the sample is empty."""
        look, split = self._look, self.wanted.without(self._unsplit)
        if not look.known:
            return dict.fromkeys((q.id for q in questions), Reach(math.inf, math.inf, self.longest))
        passages = look.passages / look.chunks.num_rows  # per chunk
        sentences = look.sentences / look.passages  # per passage
        unsplit = self._expected[_among(self._unsplit, self.wanted)]
        everything = self._counts.total(split) + unsplit.sum()
        chunks: dict[str, float] = dict(self._counts.each(self._cited))
        places = [(self._unsplit.array, np.arange(len(self._unsplit)))]
        for source, at in zip(self._cited, looked_up(self._cited.array, places).tolist(), strict=True):
            if at >= 0:
                chunks[source] = self._expected[at]
        reaches: dict[str, Reach] = {}
        for q in questions:
            own = q.sources()
            n = passages * (everything if own is None else sum(chunks.get(s, 0) for s in own))
            reaches[q.id] = Reach(n, n, self.longest, sentences)
        return reaches

    def _texts_to_embed(
        self, step: CorpusStep, model: Model, todo: Ids, seen: Ids
    ) -> tuple[Callable[[Ids], int], bool]:
        """Returns a function that counts the new texts of given sources, and whether its counts are exact.
        `todo`: split sources; `seen`: sampled sources. All texts count as new if a language model writes a
        part of them; those of `todo` also if they are more than LOOKED_AT."""
        if any(m.kind == "generator" for m in step_contract.asked_models(step)):
            each_seen = self._look.each if seen else {}
            return lambda some: self._counts.total(some) or sum(each_seen.get(s, 0) for s in some), False
        many = self._counts.total(todo) > LOOKED_AT
        first: dict[str, int] = {}  # source -> new texts that no source before it has
        each: dict[str, int] = {}  # source -> new texts, even if other sources have them
        met: set[str] = set()
        stored = range(0, 0 if many else len(todo), PER_READ)
        recipe = self._pipeline.recipe
        read = (chunks_of(self._store, recipe, tuple(todo[at : at + PER_READ])) for at in stored)
        for chunks in itertools.chain(read, [self._look.chunks] if seen else ()):
            keys = self._keys(step, chunks)
            every = {k for some in keys.values() for k in some}
            new = every - lookup(self._store, vectors_of(model), list(every))
            for source, some in keys.items():
                each[source] = len(some & new)
                first[source] = len((some & new) - met)
                met |= some & new
        kept = sum(each.values()) * (ENTRY_BYTES + 4 * model.dim) <= FRESH_BYTES
        once = first == each or (self._pipeline.workers("embed").count == 1 and kept)
        asked = first if once else each
        ids, numbers = Ids.of(asked), np.fromiter(asked.values(), np.int64, len(asked))

        def count(some: Ids) -> int:
            return int(numbers[_among(ids, some)].sum()) + (self._counts.total(some) if many else 0)

        return count, once and not many

    def _keys(self, step: CorpusStep, chunks: pa.Table) -> dict[str, set[str]]:
        """Maps each source to the keys of the step's requests to its embedder about the source's chunks."""
        runs = pc.run_end_encode(chunks["source"].combine_chunks())  # chunks of a source are adjacent
        ends = [0, *runs.run_ends.to_pylist()]
        tables = [chunks.slice(a, b - a) for a, b in itertools.pairwise(ends)]
        found = asyncio.run(first_requests(step, self._pipeline.worker.kit(None), tables))
        asked = dict(zip(arrow.id_texts(runs.values), found, strict=True))
        return {s: set(a.keys) for s, a in asked.items() if a is not None}

    def _had(self, name: str, sources: Ids) -> np.ndarray:
        """Marks sources with rows in tables of the stage's kind that the last run named: (sources,) bool."""
        had, last = np.zeros(len(sources), bool), self._context.last
        old = last.stage(name) if last else None
        if last is None or old is None or not sources:
            return had
        kind = f"{step_contract.table_with(old.writes)}-"
        for table in (t for t in last.tables if t.startswith(kind) and self._store.has(t)):
            had |= present(self._store.dataset(table), "source", sources.array).to_numpy(zero_copy_only=False)
        return had


def _among(ids: Ids, some: Ids) -> np.ndarray:
    """Marks the ids that are among `some`: (ids,) bool."""
    if ids is some:
        return np.ones(len(ids), bool)
    mask: np.ndarray = stand_in(ids.array, some.array).to_numpy(zero_copy_only=False)
    return mask
