"""The question half of a plan: what each stage may ask about the rows that have no answer yet.

What a stage asks about a row follows from the row and the stages before it (`stage_records.chains`). So
nothing is asked about a row that any finished run answered with the same chain, as long as the memo still has
what was asked then (`standing`). Where no earlier run says how much a stage asks, its own bounds do, at what
the sources look like: no further than a question's sources have passages.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from raypipe.core import arrow
from raypipe.core.protocols import Bound, Reach, Step
from raypipe.core.records import Question, digest
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.recipes.step_contract import asked_models, bound_of
from raypipe.runs.pipeline.recipe_tables import answer_key
from raypipe.runs.plan.costs import PlanContext, calls_seen, expected_calls
from raypipe.runs.plan.records import (
    ExpectedCalls,
    StageBound,
    StepPlan,
    kept_bytes,
    likely_tokens,
    may_fault,
    stage_bounds,
    stored_bytes,
)
from raypipe.runs.plan.standing import Standing, StoredAnswers, behind_index, kept_inputs, overlap, unanswered
from raypipe.store.ids import Ids
from raypipe.store.memo.disk import FRESH_BYTES
from raypipe.store.memo.lookup import first_request, lookup
from raypipe.store.memo.memo import MemoTable
from raypipe.store.sources import corpus_sum


class QuestionPlanner:
    """Plans the stages of the question half, in recipe order."""

    def __init__(
        self, context: PlanContext, old: frozenset[str], wanted: Ids, reach: Reach,
        likely: LikelyCalls,
    ) -> None:  # fmt: skip
        """`old`: ids of questions whose answers are to be worked out again. `wanted`: sources that are
        searched. `reach`: before the first stage, at most; `likely`: what stages are likely to ask."""
        self._context, self._pipeline, self._store = context, context.pipeline, context.pipeline.store
        self._old, self._wanted, self._reach, self._likely = old, wanted, reach, likely
        self._standing = Standing(context.pipeline)
        self._bounds: list[StageBound] = []
        self._kept = False  # whether one process remembers all that it asks about the questions
        self._by_id: dict[str, Question] = {}
        self._evidence: dict[str, tuple[str, str]] = {}  # question id -> its row key, and what is absent
        self._pending, self._again = frozenset[str](), frozenset[str]()  # `unanswered.Unanswered`
        self._searching = behind_index(self._pipeline.recipe)
        self._answerers = {self._pipeline.recipe.digest(): tuple(context.stages.values())}
        """Digest -> stages of the recipes by which rows may have a stored answer."""
        for run in context.runs:
            self._answerers.setdefault(run.digest, run.stages)
        self._moved: dict[str, dict[str, str]] = {}  # id -> fields that may come out otherwise -> why

    def plans(self, questions: Sequence[Question]) -> Iterable[StepPlan]:
        context, pipe = self._context, self._pipeline
        coming = context.coming.kinds
        snapshot = digest(corpus_sum(self._store, coming)) if coming else pipe.snapshot()
        found = unanswered(pipe, questions, self._wanted, snapshot, context.fresh)
        self._pending, self._again = found.pending, found.again
        by_id = {q.id: q for q in questions}
        ids = list(dict.fromkeys([*found.ids, *(i for i in by_id if i in self._old)]))
        more = [i for i in ids if i not in by_id]
        by_id |= {q.id: q for q in arrow.question.records(self._store.rows("questions", "id", more))}
        todo = [by_id[i] for i in ids if i in by_id]
        self._by_id = by_id
        self._likely.about(todo)
        self._evidence = {q.id: (found.sources.row(q), found.sources.absent(q)) for q in todo}
        answered = StoredAnswers(self._store, self._evidence)
        last = answered.by(context.last.digest, any_fault=True) if context.last else set()
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
        """One question stage: what rows may ask that no run answered with the same chain, and those whose
        requests the memo does not answer any more."""
        stage = bound.stage
        settled, again = self._settled(bound, answered)
        unsettled = [q for q in todo if q.id not in settled]
        calls = {q.id: bound_of(stage.step, q, bound.before).calls for q in unsettled}
        exact = not any(calls.values())
        if bound.each.from_question and not exact:
            calls, exact = self._told(stage, unsettled)
            exact = exact and sure and not stage.when
            exact = exact and self._again.isdisjoint(self._pending & calls.keys())
        asking = {i: n for i, n in calls.items() if n}
        whys = {i: again.get(i) or self._why(stage.name, i, i in last) for i in asking}
        reasons: dict[str, float] = {}
        for i, n in asking.items():
            reasons[whys[i]] = reasons.get(whys[i], 0) + n
        guess = None
        if not exact:
            seen = calls_seen(self._context.stages[stage.name], self._context.runs)
            guess = expected_calls(seen, len(asking), sum(asking.values()))
            guess = guess or self._likely.of(stage, asking)
        stored = functools.partial(stored_bytes, bound.each, questions=len(asking))
        tokens = functools.partial(likely_tokens, bound.each, questions=len(asking))
        return self._context.step(
            stage.name, rows, rows - len(asking), reasons, len(todo), exact, guess, stored, tokens
        )

    def _why(self, name: str, id: str, last: bool) -> str:
        """Why a stage is to do a question. `last`: the last finished run answered it from the same
        evidence."""
        again = id in self._again
        found = self._context.why(name, last or again)
        return "evidence" if again and found == "row" else found

    def _settled(self, bound: StageBound, answered: StoredAnswers) -> tuple[set[str], dict[str, str]]:
        """Ids of the rows about which nothing is asked, and of those about which something may be asked
        again, with the reason."""
        found: dict[str, str] = {}  # id -> digest of the recipe
        chain = self._context.stages[bound.stage.name].chain
        for by, stages in self._answerers.items() if not self._context.fresh else ():
            if any(s.chain == chain for s in stages):
                found |= {i: by for i in answered.by(by) if i not in found}
        if bound.stage.name in self._searching:  # a source may fail, and what is asked then is not known
            found = {i: by for i, by in found.items() if i not in self._pending}
        again = {i: why for i in found if (why := self._reads_moved(bound.stage, i))}
        rest = {i: by for i, by in found.items() if i not in again}
        if rest and bound.calls and self._standing.in_doubt(bound.stage.step):
            again |= self._asked_again(bound, rest)
        for i, why in again.items():
            self._moved.setdefault(i, {}).update(dict.fromkeys(bound.stage.step.writes(), why))
        return set(found) - set(again), again

    def _reads_moved(self, stage: Stage[Step], id: str) -> str:
        """Why what the stage reads about a row may come out otherwise; "" where it does not."""
        moved = self._moved.get(id)
        reads = (stage.step.reads() | stage.gate_reads()) if moved else ()
        return next((w for name, w in (moved or {}).items() if any(overlap(name, r) for r in reads)), "")

    def _asked_again(self, bound: StageBound, rows: Mapping[str, str]) -> dict[str, str]:
        """Of answered rows (id -> by what), those about which the stage may ask again, and why. Where the
        stored answer does not tell what was asked, that is all of them."""
        if bound.each.from_question:
            table, keys = self._requests(bound.stage.step, [self._by_id[i] for i in rows])
            here = lookup(self._store, table, list(keys.values())) if table else set()
            return {i: "lost" for i, key in keys.items() if key not in here}
        again: dict[str, str] = {}
        chain = self._context.stages[bound.stage.name].chain
        for by in dict.fromkeys(rows.values()):
            ids, stages = [i for i, b in rows.items() if b == by], self._answerers[by]
            at = next(n for n, s in enumerate(stages) if s.chain == chain)
            if kept_inputs(bound.stage, (s.writes for s in stages[at:])):
                keys = {answer_key(by, i, *self._evidence[i]): i for i in ids}
                again |= self._standing.lacking(bound.stage, keys)
            else:
                again |= dict.fromkeys(ids, "lost")
        return again

    def _told(self, stage: Stage[Step], todo: Sequence[Question]) -> tuple[dict[str, float], bool]:
        """Question id -> 1 where what the stage asks about it was never asked, and whether that is exactly
        what will be asked."""
        table, keys = self._requests(stage.step, todo)
        new = set(keys.values())
        if table is not None and not (self._context.fresh and table.replies):
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


class LikelyCalls:
    """What the stages of the question half are likely to ask; worked out when it is first asked."""

    def __init__(self, recipe: Recipe, scope: Callable[[Question], Reach | None]) -> None:
        """`scope`: how far the ranking of a question can grow, about; None where nothing says."""
        self._recipe, self._scope = recipe, scope
        self._todo: Sequence[Question] = ()
        self._bounds: dict[str, dict[str, Bound]] | None = None  # stage -> question id

    def about(self, questions: Sequence[Question]) -> None:
        self._todo, self._bounds = questions, None

    def of(self, stage: Stage[Step], most: Mapping[str, float]) -> ExpectedCalls | None:
        """Calls about some questions, each at `most` (by id): a range, from 0 where a gate decides. None
        where nothing says."""
        if self._bounds is None:
            self._bounds = self._expected()
        bounds = self._bounds.get(stage.name, {})
        if not most or not most.keys() <= bounds.keys():
            return None
        some = [(bounds[i], n) for i, n in most.items()]
        calls = sum(min(_likely(b), n) for b, n in some) + max(b.shared for b, _ in some)
        if math.isinf(calls):
            return None
        return ExpectedCalls((0 if stage.when else round(calls), round(calls)), 0)

    def _expected(self) -> dict[str, dict[str, Bound]]:
        found: dict[str, dict[str, Bound]] = {s.name: {} for s in self._recipe.question}
        for question in self._todo:
            if (scope := self._scope(question)) is None:
                continue
            reach = replace(scope, hits=0, order=0)
            for stage in self._recipe.question:
                bound = bound_of(stage.step, question, reach)
                found[stage.name][question.id] = bound
                hits, order = (min(a, scope.hits) for a in (bound.reach.hits, bound.reach.order))
                reach = replace(bound.reach, hits=hits, order=order)
        return found


def _likely(bound: Bound) -> float:
    return bound.calls if bound.likely is None else bound.likely
