"""The plan: what an eval may have to ask, step by step, before anything runs, and why it has to.

Exact where that can be known beforehand (sources to parse, texts of an unchanged split, questions to embed),
else an upper bound: no run makes a call that its plan did not name. Changes nothing in the store. What a
stage asks about a row follows from the row and the stages before it (`manifest.chains`), so a row that any
finished run answered with the same chain is not asked about again.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc

from raypipe.core import arrow
from raypipe.core.protocols import CorpusStep, Model, Reach, Step
from raypipe.core.records import Question, digest
from raypipe.memo.disk import FRESH_BYTES
from raypipe.memo.lookup import first_corpus_requests, first_request, lookup
from raypipe.memo.memo import ENTRY_BYTES, MemoTable, vectors_of
from raypipe.pipeline.driver import Pipeline
from raypipe.pipeline.tasks import chunks_of
from raypipe.recipes.default_bounds import bound_of, is_bounded
from raypipe.recipes.recipe import Stage
from raypipe.recipes.step_contract import asked_models, embedder_of, table_of, table_with
from raypipe.report.report import JSON_FORMAT
from raypipe.runs.manifest import Manifest, describe, differences, reason, recent
from raypipe.runs.plan.costs import Cost, ExpectedCalls, cost, expected_calls
from raypipe.runs.plan.expiring import behind_graph, behind_index
from raypipe.runs.plan.rates import calls_seen, embedded, rate
from raypipe.runs.plan.stage_bounds import (
    SourceBound,
    StageBound,
    embedded_bytes,
    kept_bytes,
    may_fault,
    source_bound,
    stage_bounds,
    stored_bytes,
)
from raypipe.runs.plan.store_state import Chunks, StoredAnswers, left
from raypipe.runs.plan.unanswered import unanswered
from raypipe.store.sizes import sizes

LOOKED_AT = 200_000  # chunks whose texts a plan reads to know exactly what is new: about 5 s
LOOKED_BACK = 20  # finished runs whose answers and rates count
PER_READ = 500  # sources whose texts are in memory at once


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step may have to do."""

    step: str  # its name in the recipe
    rows: float  # in all: sources; chunks, for embed; questions; math.inf: not known
    cached: int  # rows for which nothing is asked
    max_calls: float  # calls; for parse and split: sources to work on; math.inf: not known
    exact: bool  # False: max_calls is an upper bound
    reasons: Mapping[str, float]
    """row, evidence, model, prompt, parameter, version, upstream, expired -> calls; they add up"""
    expected_calls: (
        ExpectedCalls | None
    )  # calls by what earlier runs asked; None: `exact`, or no earlier run says
    cost: Cost

    def estimate(self) -> dict[str, Any]:
        """What is likely, as JSON: each a range, or null where no earlier run says. `runs`: how many say how
        many calls; 0 where that is exact or not known."""
        exact = [_known(self.max_calls)] * 2 if self.exact else None
        took = self.cost.seconds
        return {
            "calls": list(self.expected_calls.calls) if self.expected_calls else exact,
            "runs": self.expected_calls.runs if self.expected_calls else 0,
            "seconds": None if took is None else [round(x, 3) for x in took],
            "tokens": [_known(x) for x in self.cost.tokens],
            "bytes": [_known(x) for x in self.cost.nbytes],
        }


def _known(number: float) -> int | None:
    """As JSON has it: null where it is not known."""
    return None if math.isinf(number) else int(number)


@dataclass(frozen=True, slots=True)
class Plan:
    """What an eval may have to do."""

    steps: tuple[StepPlan, ...]  # corpus steps, then question steps, in recipe order

    def planned(self) -> dict[str, int | None]:
        """Step -> calls that may be made; None where that is not known."""
        return {s.step: _known(s.max_calls) for s in self.steps}

    def bytes_at_least(self) -> int:
        """That the store will grow by, whatever the texts are: nothing that is only likely."""
        return int(sum(s.cost.nbytes[0] for s in self.steps if s.exact))

    def to_json(self) -> dict[str, Any]:
        return {
            "format": JSON_FORMAT,
            "steps": [
                {
                    "step": s.step,
                    "rows": _known(s.rows),
                    "cached": s.cached,
                    "max_calls": _known(s.max_calls),
                    "exact": s.exact,
                    "reasons": {why: _known(n) for why, n in s.reasons.items()},
                    "estimate": s.estimate(),
                }
                for s in self.steps
            ],
        }


@dataclass(frozen=True, slots=True)
class NewSources:
    """Sources that are to be ingested: what is known of them before they are in the store."""

    kinds: Mapping[str, str] = field(default_factory=dict)  # source id -> kind
    chars: Mapping[str, int] = field(default_factory=dict)  # source id -> characters


def plan(
    pipeline: Pipeline,
    questions: Iterable[Question],
    coming: NewSources | None = None,
    fresh: bool = False,
    old: Collection[str] = (),
) -> Plan:
    """What an eval of these questions may have to do on this store. `fresh`: every question is answered again
    and no reply counts as cached. `old`: ids of questions whose answers are to be worked out again, since
    a graph's replies no longer hold (`evaluation.expiry`)."""
    questions = list(questions)  # gone through several times
    runs = recent(pipeline.store, LOOKED_BACK)
    planner = _Planner(pipeline, runs, coming or NewSources(), fresh, frozenset(old))
    return Plan((*planner.corpus(questions), *planner.questions(questions)))


class _Planner:
    """One plan in the making."""

    def __init__(
        self,
        pipeline: Pipeline,
        runs: Sequence[Manifest],
        coming: NewSources,
        fresh: bool,
        old: frozenset[str],
    ) -> None:
        self._pipeline, self._store, self._coming = pipeline, pipeline.store, coming
        self._runs, self._fresh = runs, fresh
        self._old, self._behind = old, behind_graph(pipeline.recipe) if old else frozenset[str]()
        self._searching = behind_index(pipeline.recipe)
        self._pending, self._again = frozenset[str](), frozenset[str]()  # `unanswered.Unanswered`
        self._last = runs[0] if runs else None
        self._stages = {s.name: s for s in describe(pipeline.recipe)}
        self._bounds: list[StageBound] = []
        self._own = differences(self._last.stages, list(self._stages.values())) if self._last else {}
        self._reach = Reach()
        self._kept = False  # whether one process remembers all that it asks about the questions

    # --- the corpus half

    def corpus(self, questions: Sequence[Question]) -> Iterable[StepPlan]:
        pipe, recipe = self._pipeline, self._pipeline.recipe
        wanted = self._wanted(questions)
        missing = pipe.missing(pipe.texts_table, wanted)
        texts = self._left(pipe.texts_table, missing)
        gone = {*missing, *texts, *pipe.failed(pipe.texts_table)}
        done = [s for s in wanted if s not in gone]
        passages = self._left(pipe.passages_table, pipe.missing(pipe.passages_table, done))
        unsplit = [*passages, *(s for s in texts if s not in set(passages))]
        chars = {**sizes(self._store, unsplit), **self._coming.chars}
        counts = Chunks(self._store, pipe.passages_table, set(unsplit))
        of_length = functools.cache(functools.partial(source_bound, recipe))
        bounds = {s: of_length(chars.get(s, 0)) for s in unsplit}
        for stage in recipe.corpus:
            match table_of(stage.step):
                case "vectors":
                    yield self._embed(stage, wanted, unsplit, counts, bounds)
                case "passages":
                    yield self._work(stage, wanted, unsplit, not texts, bounds)
                case "texts":
                    yield self._work(stage, wanted, texts, True, bounds)
        longest = max((b.passage_chars for b in bounds.values()), default=0)
        self._reach = Reach(0, 0, max(counts.longest, longest))

    def _wanted(self, questions: Sequence[Question]) -> list[str]:
        """Sources that the corpus half must hold, those to come included."""
        stored = self._pipeline.sources(questions)
        if not self._coming.kinds:
            return stored
        kinds = self._pipeline.recipe.source_kinds()
        new = [s for s, kind in self._coming.kinds.items() if kind in kinds]
        cited = {s for q in questions for s in q.sources() or ()}
        whole = any(q.citations is None for q in questions)
        return list(dict.fromkeys([*stored, *(s for s in new if whole or s in cited)]))

    def _left(self, what: str, missing: Sequence[str]) -> list[str]:
        """Rows to do: what a killed run has left of its own, then the others that are missing."""
        return left(self._store, what, what, missing)

    def _work(
        self, stage: Stage[CorpusStep], wanted: Sequence[str], todo: Sequence[str], exact: bool,
        bounds: Mapping[str, SourceBound],
    ) -> StepPlan:  # fmt: skip
        """A stage that works on each source; most ask no model, and their work is counted in sources."""
        name, every = stage.name, len(set(wanted) | set(todo))
        before = self._known_sources(name, todo)
        works, known = not asked_models(stage.step), is_bounded(stage.step)
        each = 1 if known else math.inf
        calls = [(each if works else bounds[s].calls[name], self._why(name, s in before)) for s in todo]
        exact = (exact and works and known) or not any(n for n, _ in calls)
        guess = None
        if not exact:
            guess = expected_calls(calls_seen(self._stages[name], self._runs), len(todo), self._sum(calls))

        def stored(asked: float) -> float:
            return 0 if works else embedded_bytes(0, asked)

        return self._step(name, every, every - len(todo), calls, len(todo), exact, guess, 0, stored)

    def _embed(
        self, stage: Stage[CorpusStep], wanted: Sequence[str], unsplit: Sequence[str], counts: Chunks,
        bounds: Mapping[str, SourceBound],
    ) -> StepPlan:  # fmt: skip
        """Exact by the digests of texts where they are there; else bounded by the sizes of sources."""
        name, model = stage.name, embedder_of(stage.step)
        table = self._pipeline.vectors_table(model)
        todo = set(unsplit)
        here = [s for s in wanted if s not in todo and counts.of(s)]
        lacking = self._left(table, self._pipeline.missing(table, here))
        lacking = [s for s in lacking if s not in todo]
        fresh, same = self._texts_to_embed(stage.step, model, lacking, counts)
        before = self._known_sources(name, [*lacking, *unsplit])
        asks: dict[str, float] = {**fresh, **{s: b.calls[name] for s, b in bounds.items()}}
        calls = [(n, self._why(name, s in before)) for s, n in asks.items() if n]
        stored_chunks = sum(counts.of(s) for s in {*here, *lacking})
        rows = stored_chunks + sum(b.chunks for b in bounds.values())
        max_calls = self._sum(calls)
        exact, guess = same and not unsplit, None
        if not exact:
            split = next(s.name for s in self._pipeline.recipe.corpus if table_of(s.step) == "passages")
            others = embedded(self._stages[name], self._stages[split], self._runs)
            unknown = len(unsplit) + (0 if same else len(lacking))
            guess = expected_calls(others, unknown, max_calls, sum(fresh.values()) if same else 0)
        texts = guess.calls[1] if guess else max_calls

        def stored(texts: float) -> float:
            return embedded_bytes(model.dim, texts)

        return self._step(
            name, rows, stored_chunks - sum(fresh.values()), calls, texts, exact, guess, 0, stored
        )

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
        old = self._last.stage(name) if self._last else None
        if self._last is None or old is None:
            return set()
        kind = f"{table_with(old.writes)}-"
        tables = [t for t in self._last.tables if t.startswith(kind) and self._store.has(t)]
        missing = set(sources)
        for table in tables:
            missing &= set(self._store.missing(table, "source", list(sources)))
        return set(sources) - missing

    # --- the question half

    def questions(self, questions: Sequence[Question]) -> Iterable[StepPlan]:
        pipe = self._pipeline
        found = unanswered(pipe, questions, self._wanted(questions), self._snapshot(), self._fresh)
        sources, self._pending, self._again = found.sources, found.pending, found.again
        by_id = {q.id: q for q in questions}
        ids = list(dict.fromkeys([*found.ids, *(i for i in by_id if i in self._old)]))
        more = [i for i in ids if i not in by_id]
        by_id |= {q.id: q for q in arrow.question.records(self._store.rows("questions", "id", more))}
        todo = [by_id[i] for i in ids if i in by_id]
        evidence = {q.id: (sources.row(q), sources.absent(q)) for q in todo}
        answered = StoredAnswers(self._store, evidence)
        last = answered.by(self._last.digest, any_fault=True) if self._last else set()
        self._bounds = stage_bounds(pipe.recipe, todo, self._reach)
        self._kept = sum(kept_bytes(b.stage.step, b.each, b.calls) for b in self._bounds) <= FRESH_BYTES
        sure = True  # no row is kept from the stages to come
        for bound in self._bounds:
            asks = self._ask(bound, len(by_id), todo, answered, last, sure)
            yield asks
            sure = sure and not may_fault(bound.each, asks.max_calls)

    def _ask(
        self, bound: StageBound, rows: int, todo: Sequence[Question], answered: StoredAnswers,
        last: set[str], sure: bool,
    ) -> StepPlan:  # fmt: skip
        """One question stage: what rows that no run answered with the same chain may ask."""
        stage = bound.stage
        chain = self._stages[stage.name].chain
        same = {r.digest for r in self._runs if any(s.chain == chain for s in r.stages) and not self._fresh}
        settled = set().union(*(answered.by(d) for d in same))
        old = self._old if stage.name in self._behind else frozenset[str]()
        settled -= old
        if stage.name in self._searching:
            settled -= self._pending  # a source of theirs may fail, and what is asked then is not known
        unsettled = [q for q in todo if q.id not in settled]
        calls = {q.id: bound_of(stage.step, q, bound.before).calls for q in unsettled}
        exact = not any(calls.values())
        if bound.each.from_question and not exact:
            calls, exact = self._told(stage, unsettled)
            exact = exact and sure and not stage.when
            exact = exact and self._again.isdisjoint(self._pending & calls.keys())
        asking = {i: n for i, n in calls.items() if n}
        listed = [(n, self._why_answer(stage.name, i, i in last, i in old)) for i, n in asking.items()]
        guess = None
        if not exact:
            guess = expected_calls(
                calls_seen(self._stages[stage.name], self._runs), len(asking), sum(asking.values())
            )
        stored = functools.partial(stored_bytes, bound.each)
        return self._step(
            stage.name, rows, rows - len(asking), listed, len(todo), exact, guess, bound.each.tokens, stored
        )

    def _why_answer(self, name: str, id: str, last: bool, old: bool) -> str:
        """Why a stage is to do a question. `last`: the last finished run answered it from the same evidence;
        `old`: a reply of a graph does not hold any more."""
        if old:
            return "expired"
        again = id in self._again
        found = self._why(name, last or again)
        return "evidence" if again and found == "row" else found

    def _told(self, stage: Stage[Step], todo: Sequence[Question]) -> tuple[dict[str, float], bool]:
        """Question id -> 1 where what the stage asks about it was never asked, and whether that is exactly
        what will be asked."""
        table, keys = self._requests(stage.step, todo)
        new = set(keys.values())
        if table is not None and not (self._fresh and table.replies):
            new -= lookup(self._store, table, list(keys.values()))
        each = {i: float(k in new) for i, k in keys.items()}
        first = {i: n for i, n in each.items()}
        seen: set[str] = set()
        for i, k in keys.items():
            first[i] = 0 if k in seen else each[i]
            seen.add(k)
        same = first == each
        alone = not same and self._pipeline.workers("answer").count == 1 and self._kept
        models = asked_models(stage.step)
        plain = all(
            b.each.from_question and new.isdisjoint(self._requests(b.stage.step, todo)[1].values())
            for b in itertools.takewhile(lambda b: b.stage is not stage, self._bounds)
            if any(m in models for m in asked_models(b.stage.step))
        )
        return (first if alone else each), plain and (alone or same)

    def _requests(self, step: Step, todo: Sequence[Question]) -> tuple[MemoTable | None, dict[str, str]]:
        """The memo table that a step asks of, and the key of its request about each question; None if it asks
        nothing."""
        found = asyncio.run(first_request(step, self._pipeline.worker.kit(None), todo))
        asked = {q.id: a for q, a in zip(todo, found, strict=True) if a is not None}
        table = next((a.table for a in asked.values()), None)
        return table, {i: a.keys[0] for i, a in asked.items()}

    def _snapshot(self) -> str:
        if not self._coming.kinds:
            return self._pipeline.snapshot()
        ids = self._store.dataset("sources").to_table(columns=["id"])["id"].to_pylist()
        return digest(*sorted({*ids, *self._coming.kinds}))

    # --- both

    def _step(
        self, name: str, rows: float, cached: int, calls: Sequence[tuple[float, str]], todo: float,
        exact: bool, guess: ExpectedCalls | None, tokens: float, stored: Callable[[float], float],
    ) -> StepPlan:  # fmt: skip
        """`calls`: how many, and why. `todo`: rows to pass the step, as many as is likely. `tokens`: of a
        call, at most; `stored`: calls -> bytes."""
        stage = self._stages[name]
        max_calls = self._sum(calls)
        reasons: dict[str, float] = {}
        for n, why in calls:
            reasons[why] = reasons.get(why, 0) + n
        place = self._pipeline.worker
        measured = rate(stage, self._runs, place.backend, place.device)
        costs = cost(tokens, stored, measured, todo, max_calls, exact, guess)
        return StepPlan(name, rows, cached, max_calls, exact, reasons, guess, costs)

    @staticmethod
    def _sum(calls: Sequence[tuple[float, str]]) -> float:
        return sum(n for n, _ in calls)

    def _why(self, name: str, had: bool) -> str:
        """Why a step is to do a row; `had`: the last finished run had it."""
        return reason(self._last, self._stages[name], self._own) if had else "row"
