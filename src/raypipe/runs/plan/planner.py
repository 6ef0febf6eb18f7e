"""The plan: what an eval may have to ask, step by step, before anything runs, and why it has to.

Exact where that can be known beforehand (sources to parse, texts of an unchanged split, questions to embed),
else an upper bound: no run makes a call that its plan did not name. Changes nothing in the store. What a
stage asks about a row follows from the row and the stages before it (`manifest.chains`), so a row that any
finished run answered with the same chain is not asked about again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raypipe.core import arrow
from raypipe.core.protocols import Model, Step
from raypipe.core.records import Question, digest
from raypipe.memo.disk import FRESH_BYTES
from raypipe.memo.lookup import first_request, lookup, vector_key
from raypipe.memo.memo import ENTRY_BYTES, MemoTable, replies_of, vectors_of
from raypipe.pipeline.driver import Pipeline
from raypipe.pipeline.tasks import chunks_of, key_of_row
from raypipe.recipes.recipe import Stage, row_key
from raypipe.runs.manifest import Manifest, describe, differences, reason, recent
from raypipe.runs.plan.bounds import (
    Reach,
    asks_plainly,
    calls_at_most,
    chunks_at_most,
    kept_bytes,
    may_fault,
    models_of,
    passage_chars_at_most,
    reach_after,
)
from raypipe.runs.plan.costs import Cost, ExpectedCalls, cost, expected_calls
from raypipe.runs.plan.expiring import behind
from raypipe.runs.plan.rates import calls_seen, embedded, rate
from raypipe.runs.plan.store_state import Chunks, StoredAnswers, left
from raypipe.steps.embed import Embed
from raypipe.steps.generate import Generate
from raypipe.steps.parse import Parse
from raypipe.steps.split import Split
from raypipe.store.sizes import sizes
from raypipe.text.template import query_renderer

LOOKED_AT = 200_000  # chunks whose texts a plan reads to know exactly what is new: about 5 s
LOOKED_BACK = 20  # finished runs whose answers and rates count
PER_READ = 500  # sources whose texts are in memory at once


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step may have to do."""

    step: str  # its name in the recipe
    rows: int  # in all: sources; chunks, for embed; questions
    cached: int  # rows for which nothing is asked
    max_calls: int  # calls; for parse and split: sources to work on
    exact: bool  # False: max_calls is an upper bound
    reasons: Mapping[str, int]
    """row, model, prompt, parameter, version, upstream, expired -> calls; they add up"""
    expected_calls: (
        ExpectedCalls | None
    )  # calls by what earlier runs asked; None: `exact`, or no earlier run says
    cost: Cost

    def estimate(self) -> dict[str, Any]:
        """What is likely, as JSON: each a range, or null where no earlier run says. `runs`: how many say how
        many calls; 0 where that is exact or nobody says."""
        exact = [self.max_calls, self.max_calls] if self.exact else None
        took = self.cost.seconds
        return {
            "calls": list(self.expected_calls.calls) if self.expected_calls else exact,
            "runs": self.expected_calls.runs if self.expected_calls else 0,
            "seconds": None if took is None else [round(x, 3) for x in took],
            "tokens": list(self.cost.tokens),
            "bytes": list(self.cost.nbytes),
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """What an eval may have to do."""

    steps: tuple[StepPlan, ...]  # corpus steps, then question steps, in recipe order

    def planned(self) -> dict[str, int]:
        """Step -> calls that may be made."""
        return {s.step: s.max_calls for s in self.steps}

    def bytes_at_least(self) -> int:
        """That the store will grow by, whatever the texts are: nothing that is only likely."""
        return sum(s.cost.nbytes[0] for s in self.steps if s.exact)

    def to_json(self) -> dict[str, Any]:
        return {
            "steps": [
                {
                    "step": s.step,
                    "rows": s.rows,
                    "cached": s.cached,
                    "max_calls": s.max_calls,
                    "exact": s.exact,
                    "reasons": dict(s.reasons),
                    "estimate": s.estimate(),
                }
                for s in self.steps
            ]
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
    """What an eval of these questions may have to do on this store. `fresh`: every question is answered anew
    and no reply counts as remembered. `old`: ids of questions whose answers are to be worked out again, since
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
        self._old, self._behind = old, behind(pipeline.recipe) if old else frozenset[str]()
        self._last = runs[0] if runs else None
        self._stages = {s.name: s for s in describe(pipeline.recipe)}
        self._steps = {s.name: s.step for s in (*pipeline.recipe.corpus, *pipeline.recipe.question)}
        self._own = differences(self._last.stages, list(self._stages.values())) if self._last else {}
        self._reach = Reach()
        self._kept = False  # whether one process remembers all that it asks about the questions

    # --- the corpus half

    def corpus(self, questions: Sequence[Question]) -> Iterable[StepPlan]:
        pipe, recipe = self._pipeline, self._pipeline.recipe
        wanted = self._wanted(questions)
        missing = pipe.missing(pipe.texts_table, wanted)
        texts = self._left(pipe.texts_table, missing)
        gone = {*missing, *texts, *pipe.lost(pipe.texts_table)}
        done = [s for s in wanted if s not in gone]
        passages = self._left(pipe.passages_table, pipe.missing(pipe.passages_table, done))
        unsplit = [*passages, *(s for s in texts if s not in set(passages))]
        chars = {**sizes(self._store, unsplit), **self._coming.chars}
        counts = Chunks(self._store, pipe.passages_table, set(unsplit))
        for stage in recipe.corpus:
            if isinstance(stage.step, Embed):
                yield self._embed(stage.name, stage.step.model, wanted, unsplit, counts, chars)
            elif isinstance(stage.step, Split):
                yield self._work(stage.name, wanted, unsplit, exact=not texts)
            else:
                yield self._work(stage.name, wanted, texts, exact=True)
        self._reach = Reach(0, 0, self._longest_passage(unsplit, counts, chars))

    def _wanted(self, questions: Sequence[Question]) -> list[str]:
        """Sources that the corpus half must hold, those to come included."""
        stored = self._pipeline.sources(questions)
        if not self._coming.kinds:
            return stored
        kinds = next(s.step.kinds for s in self._pipeline.recipe.corpus if isinstance(s.step, Parse))
        new = [s for s, kind in self._coming.kinds.items() if kind in kinds]
        cited = {s for q in questions for s in q.sources() or ()}
        whole = any(q.citations is None for q in questions)
        return list(dict.fromkeys([*stored, *(s for s in new if whole or s in cited)]))

    def _left(self, what: str, missing: Sequence[str]) -> list[str]:
        """Rows to do: what a killed run has left of its own, then the others that are missing."""
        return left(self._store, what, what, missing)

    def _work(self, name: str, wanted: Sequence[str], todo: Sequence[str], exact: bool) -> StepPlan:
        """A stage that works on each source without asking a model."""
        every = len(set(wanted) | set(todo))
        before = self._known_sources(name, todo)
        calls = [(1, self._why(name, s in before)) for s in todo]
        guess = (
            None
            if exact
            else expected_calls(calls_seen(self._stages[name], self._runs), len(todo), len(todo))
        )
        return self._step(name, every, every - len(todo), calls, len(todo), exact, guess)

    def _embed(
        self, name: str, model: Model, wanted: Sequence[str], unsplit: Sequence[str],
        counts: Chunks, chars: Mapping[str, int],
    ) -> StepPlan:  # fmt: skip
        """Exact by the digests of texts where they are there; else bounded by the sizes of sources."""
        table = self._pipeline.vectors_table(model)
        todo = set(unsplit)
        here = [s for s in wanted if s not in todo and counts.of(s)]
        lacking = self._left(table, self._pipeline.missing(table, here))
        lacking = [s for s in lacking if s not in todo]
        fresh, same = self._texts_to_embed(model, lacking, counts)
        split, split_name = next(
            (s.step, s.name) for s in self._pipeline.recipe.corpus if isinstance(s.step, Split)
        )
        bounds = {s: chunks_at_most(split, chars.get(s, 0)) for s in unsplit}
        before = self._known_sources(name, [*lacking, *unsplit])
        calls = [(n, self._why(name, s in before)) for s, n in {**fresh, **bounds}.items() if n]
        rows = sum(counts.of(s) for s in {*here, *lacking}) + sum(bounds.values())
        max_calls = sum(n for n, _ in calls)
        exact, guess = same and not unsplit, None
        if not exact:
            others = embedded(self._stages[name], self._stages[split_name], self._runs)
            unknown = len(unsplit) + (0 if same else len(lacking))
            guess = expected_calls(others, unknown, max_calls, sum(fresh.values()) if same else 0)
        texts = guess.calls[1] if guess else max_calls
        return self._step(name, rows, rows - max_calls, calls, texts, exact, guess)

    def _texts_to_embed(
        self, model: Model, todo: Sequence[str], counts: Chunks
    ) -> tuple[dict[str, int], bool]:
        """Source -> texts of it that no run embedded, and whether these are exactly what will be asked."""
        if (total := sum(counts.of(s) for s in todo)) > LOOKED_AT:
            return {s: counts.of(s) for s in todo}, False
        first: dict[str, int] = {}  # source -> texts that none before it has
        each: dict[str, int] = {}  # source -> texts, whatever others have
        seen: set[str] = set()
        for at in range(0, len(todo), PER_READ):
            keys = self._passage_keys(model, todo[at : at + PER_READ])
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

    def _passage_keys(self, model: Model, sources: Sequence[str]) -> dict[str, set[str]]:
        pipe = self._pipeline
        chunks = chunks_of(self._store, pipe.texts_table, pipe.passages_table, tuple(sources))
        keys: dict[str, set[str]] = {}
        for source, text in zip(chunks["source"].to_pylist(), chunks["chunk_text"].to_pylist(), strict=True):
            keys.setdefault(source, set()).add(vector_key(model, "passage", text))
        return {s: keys[s] for s in sources if s in keys}

    def _longest_passage(self, unsplit: Sequence[str], counts: Chunks, chars: Mapping[str, int]) -> int:
        split = next(s.step for s in self._pipeline.recipe.corpus if isinstance(s.step, Split))
        longest = max((chars.get(s, 0) for s in unsplit), default=0)
        return max(counts.longest, passage_chars_at_most(split, longest))

    def _known_sources(self, name: str, sources: Sequence[str]) -> set[str]:
        """Those that the last finished run's table of this stage had."""
        old = self._last.stage(name) if self._last else None
        if self._last is None or old is None:
            return set()
        kind = {"Split": "passages-", "Embed": "vectors-"}.get(old.step, "texts-")
        tables = [t for t in self._last.tables if t.startswith(kind) and self._store.has(t)]
        missing = set(sources)
        for table in tables:
            missing &= set(self._store.missing(table, "source", list(sources)))
        return set(sources) - missing

    # --- the question half

    def questions(self, questions: Sequence[Question]) -> Iterable[StepPlan]:
        pipe = self._pipeline
        snapshot = self._snapshot()
        what = pipe.answers_run(snapshot)
        by_id = {q.id: q for q in questions}
        rows = {q.id: row_key(q, snapshot) for q in questions}
        ids = list(by_id)
        if not self._fresh:
            recipe = pipe.recipe.digest()
            keys = {key_of_row(recipe, id, row): id for id, row in rows.items()}
            ids = left(self._store, what, "answers", pipe.unanswered_of(keys))
            ids += [i for i in rows if i in self._old and i not in set(ids)]
        more = [i for i in ids if i not in by_id]
        by_id |= {q.id: q for q in arrow.question.records(self._store.rows("questions", "id", more))}
        todo = [by_id[i] for i in ids if i in by_id]
        answered = StoredAnswers(self._store, {q.id: rows.get(q.id) or row_key(q, snapshot) for q in todo})
        last = answered.by(self._last.digest, any_fault=True) if self._last else set()
        stages = list(self._reached())
        held = sum(kept_bytes(s.step, calls_at_most(s.step, q, reach)) for s, reach in stages for q in todo)
        self._kept = held <= FRESH_BYTES
        sure = True  # no row is kept from the stages to come
        for stage, reach in stages:
            asks = self._ask(stage, len(by_id), todo, answered, last, sure, reach)
            yield asks
            sure = sure and not may_fault(stage.step, asks.max_calls)

    def _reached(self) -> Iterable[tuple[Stage[Step], Reach]]:
        """Each question stage, and how far a ranking can have grown before it."""
        reach = self._reach
        for stage in self._pipeline.recipe.question:
            yield stage, reach
            after = reach_after(stage.step, reach)
            if stage.when:
                after = Reach(max(after.hits, reach.hits), max(after.order, reach.order), reach.passage_chars)
            reach = after

    def _ask(
        self, stage: Stage[Step], rows: int, todo: Sequence[Question], answered: StoredAnswers,
        last: set[str], sure: bool, reach: Reach,
    ) -> StepPlan:  # fmt: skip
        """One question stage: what rows that no run answered with the same chain may ask."""
        chain = self._stages[stage.name].chain
        same = {r.digest for r in self._runs if any(s.chain == chain for s in r.stages) and not self._fresh}
        settled = set().union(*(answered.by(d) for d in same))
        old = self._old if stage.name in self._behind else frozenset[str]()
        settled -= old
        calls = {q.id: calls_at_most(stage.step, q, reach) for q in todo if q.id not in settled}
        exact = not any(calls.values())
        if asks_plainly(stage.step) and not exact:
            calls, exact = self._told(stage, [q for q in todo if q.id not in settled])
            exact = exact and sure and not stage.when
        asking = {i: n for i, n in calls.items() if n}
        listed = [(n, "expired" if i in old else self._why(stage.name, i in last)) for i, n in asking.items()]
        guess = None
        if not exact:
            guess = expected_calls(
                calls_seen(self._stages[stage.name], self._runs), len(asking), sum(asking.values())
            )
        return self._step(stage.name, rows, rows - len(asking), listed, len(todo), exact, guess)

    def _told(self, stage: Stage[Any], todo: Sequence[Question]) -> tuple[dict[str, int], bool]:
        """Question id -> 1 where what the stage asks about it was never asked, and whether that is exactly
        what will be asked."""
        model, table, keys = stage.step.model, *self._requests(stage.step, todo)
        new = set(keys.values())
        if not (self._fresh and table.replies):
            new -= lookup(self._store, table, list(keys.values()))
        each = {i: int(k in new) for i, k in keys.items()}
        first = {i: n for i, n in each.items()}
        seen: set[str] = set()
        for i, k in keys.items():
            first[i] = 0 if k in seen else each[i]
            seen.add(k)
        same = first == each
        alone = not same and self._pipeline.workers("answer").count == 1 and self._kept
        plain = all(
            asks_plainly(s.step) and new.isdisjoint(self._requests(s.step, todo)[1].values())
            for s in self._before(stage)
            if model in models_of(s.step)
        )
        return (first if alone else each), plain and (alone or same)

    def _requests(self, step: Any, todo: Sequence[Question]) -> tuple[MemoTable, dict[str, str]]:
        """The memo table that a step asks of, and the key of its request about each question."""
        if isinstance(step, Generate):
            kit = self._pipeline.place.kit(None)
            heard = asyncio.run(first_request(step, kit, todo))
            return replies_of(step.model), {
                q.id: a.keys[0] for q, a in zip(todo, heard, strict=True) if a is not None
            }
        render = query_renderer(step.query)
        return vectors_of(step.model), {q.id: vector_key(step.model, "query", render(q)) for q in todo}

    def _before(self, stage: Stage[Any]) -> Iterable[Stage[Step]]:
        for s in self._pipeline.recipe.question:
            if s.name == stage.name:
                return
            yield s

    def _snapshot(self) -> str:
        if not self._coming.kinds:
            return self._pipeline.snapshot()
        ids = self._store.dataset("sources").to_table(columns=["id"])["id"].to_pylist()
        return digest(*sorted({*ids, *self._coming.kinds}))

    # --- both

    def _step(
        self, name: str, rows: int, cached: int, calls: Sequence[tuple[int, str]], todo: int,
        exact: bool, guess: ExpectedCalls | None = None,
    ) -> StepPlan:  # fmt: skip
        """`calls`: how many, and why. `todo`: rows to pass the step, as many as is likely."""
        stage = self._stages[name]
        max_calls = sum(n for n, _ in calls)
        reasons: Counter[str] = Counter()
        for n, why in calls:
            reasons[why] += n
        place = self._pipeline.place
        measured = rate(stage, self._runs, place.engine, place.device)
        costs = cost(self._steps[name], measured, todo, max_calls, exact, guess)
        return StepPlan(name, rows, cached, max_calls, exact, dict(reasons), guess, costs)

    def _why(self, name: str, had: bool) -> str:
        """Why a step is to do a row; `had`: the last finished run had it."""
        return reason(self._last, self._stages[name], self._own) if had else "row"
