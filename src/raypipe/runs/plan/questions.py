"""Question half of a plan: the requests that each stage may make about rows without an answer.

A row is a question with its evidence, the sources that it may search. The requests of a stage about a row
depend on the row and the stage's chain, a digest of the stage and all stages upstream
(`stage_records.chains`). So a row needs no request if a finished run answered it without a fault and with the
same chain, and the memo (the cache) still holds the replies (`staleness`). Expected calls come from earlier
runs, else from the stage's bounds, with at most all passages of the question's sources in a ranking.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Iterator, Mapping, Sequence

from raypipe.core import arrow
from raypipe.core.protocols import Bound, Reach, Step
from raypipe.core.records import Question, digest
from raypipe.recipes.recipe import Stage
from raypipe.recipes.step_contract import asked_models, of_turns
from raypipe.runs.pipeline.recipe_tables import answer_key
from raypipe.runs.plan import staleness
from raypipe.runs.plan.corpus import CorpusPlanner
from raypipe.runs.plan.costs import PlanContext, asked_before
from raypipe.runs.plan.records import StepPlan, likely_tokens, stage_bounds, stored_bytes
from raypipe.runs.record import answer_keys
from raypipe.store.memo.lookup import first_requests, lookup
from raypipe.store.memo.memo import MemoTable
from raypipe.store.sources import corpus_sum


class QuestionPlanner:
    """Planner of the question half, stage by stage in recipe order."""

    def __init__(
        self, context: PlanContext, corpus: CorpusPlanner, questions: Sequence[Question], old: frozenset[str]
    ) -> None:
        """Finds the questions to answer, and their evidence. `old`: ids of questions to answer again."""
        self._context, self._pipeline, self._store = context, context.pipeline, context.pipeline.store
        self._corpus = corpus
        self._moved: dict[str, dict[str, str]] = {}  # id -> fields that may change -> reason
        self._searching = staleness.behind_index(self._pipeline.recipe)
        self._answerers = {self._pipeline.recipe.digest(): tuple(context.stages.values())}
        """Digest -> stages, of each recipe that may have given stored answers."""
        for run in context.runs:
            self._answerers.setdefault(run.digest, run.stages)
        coming = context.coming.kinds
        snapshot = digest(corpus_sum(self._store, coming)) if coming else self._pipeline.snapshot()
        todo = staleness.unanswered(self._pipeline, questions, corpus.wanted, snapshot, context.fresh)
        self._pending, self._again = todo.pending, todo.again
        by_id = {q.id: q for q in questions}
        ids = list(dict.fromkeys([*todo.ids, *(i for i in by_id if i in old)]))
        more = [i for i in ids if i not in by_id]
        by_id |= {q.id: q for q in arrow.question.records(self._store.rows("questions", "id", more))}
        self._rows, self._todo = len(by_id), {i: by_id[i] for i in ids if i in by_id}
        self._evidence = {i: (todo.sources.row(q), todo.sources.absent(q)) for i, q in self._todo.items()}
        """Question id -> its row key, and a digest of its missing evidence."""
        with_turns = any(q.turns for q in self._todo.values())
        self._rewritten = with_turns and any(of_turns(s.step) for s in self._pipeline.recipe.question)
        """True: a step may rewrite a question with earlier turns before later steps make requests."""
        self._before: list[tuple[Stage[Step], bool]] = []
        """Stages before the planned one, each with True if its request follows from the question only."""
        answered = functools.partial(staleness.answered_by, self._store, evidence=self._evidence)
        self._answered = functools.cache(answered)

    def plans(self) -> Iterator[StepPlan]:
        last = self._context.last
        had = self._answered(last.digest)[0] if last else set[str]()
        sure = True  # so far, no fault can keep a row from later stages
        reach = Reach(passage_chars=self._corpus.longest)
        for stage, bounds in stage_bounds(self._pipeline.recipe, [*self._todo.values()], reach):
            rewritten = self._rewritten and not of_turns(stage.step)
            plain = not rewritten and all(b.from_question for b in bounds.values())
            planned = self._plan(stage, bounds, plain, had, sure)
            yield planned
            self._before.append((stage, plain))
            faults = {b.faults for b in bounds.values()}
            sure = sure and not ("any" in faults or ("asking" in faults and planned.max_calls))

    def _plan(
        self, stage: Stage[Step], bounds: Mapping[str, Bound], plain: bool, had: set[str], sure: bool
    ) -> StepPlan:
        """Plans a question stage. A row can need calls if no run answered it with the same chain, or if the
        stage requests it again. `plain`: each request follows from the question only. `had`: ids of questions
        that the last run answered. `sure`: no earlier fault can keep a row out."""
        done, again = self._without_requests(stage, bounds, plain)
        calls = {i: b.calls for i, b in bounds.items() if i not in done}
        exact, distinct = not any(calls.values()), 0
        if plain and not exact:
            calls, exact, distinct = self._new_requests(stage, [self._todo[i] for i in calls])
            exact = exact and sure and not stage.when
            exact = exact and self._again.isdisjoint(self._pending & calls.keys())
        asking = {i: n for i, n in calls.items() if n}
        reasons: dict[str, float] = {}
        for i, n in asking.items():
            if (why := again.get(i, "")) == "":
                why = self._context.why(stage.name, i in had or i in self._again)
                if why == "row" and (i in self._kept or i in self._again):
                    why = "kept" if i in self._kept else "evidence"
            reasons[why] = reasons.get(why, 0) + n
        expected = None
        if not exact:
            record, runs = self._context.stages[stage.name], self._context.runs
            expected = asked_before(record, runs, len(asking), sum(asking.values()))
            if plain:
                expected = 0 if stage.when else distinct, distinct
            expected = expected or self._likely(stage, asking)
        one = max(bounds.values(), key=lambda b: (b.tokens, b.prompt_tokens), default=Bound(0, Reach()))
        stored = functools.partial(stored_bytes, one, questions=len(asking))
        tokens = functools.partial(likely_tokens, one, questions=len(asking))
        return self._context.step(
            stage.name,
            self._rows,
            self._rows - len(asking),
            reasons,
            len(self._todo) if asking or not of_turns(stage.step) else 0,  # without calls it takes no time
            exact,
            expected,
            stored,
            tokens,
        )

    def _likely(self, stage: Stage[Step], most: Mapping[str, float]) -> tuple[int, int] | None:
        """Returns the range of likely calls; None: not known. `most`: question id -> most calls."""
        bounds = self._ordinary[stage.name]
        some = [(b.calls if (b := bounds[i]).likely is None else b.likely, n) for i, n in most.items()]
        calls = sum(map(min, some)) + max((bounds[i].shared for i in most), default=0)
        return None if math.isinf(calls) else (0 if stage.when else round(calls), round(calls))

    @functools.cached_property
    def _ordinary(self) -> dict[str, dict[str, Bound]]:
        """Stage -> question id -> bound on the work, for rankings of the question's own sources."""
        todo = list(self._todo.values())
        scope = self._corpus.scope(todo)
        return {s.name: b for s, b in stage_bounds(self._pipeline.recipe, todo, Reach(), scope)}

    @functools.cached_property
    def _kept(self) -> set[str]:
        """Ids of the questions whose answers the last finished run kept from an earlier one."""
        last = self._context.last
        return {id for id, k in answer_keys(self._store, last.run).items() if k.kept} if last else set()

    def _without_requests(
        self, stage: Stage[Step], bounds: Mapping[str, Bound], plain: bool
    ) -> tuple[set[str], dict[str, str]]:
        """Divides the rows that a run answered with the same chain. Returns the ids of rows without requests,
        and id -> reason of each other row: lost or expired, for a cached value of this stage or of an earlier
        stage whose result this stage reads."""
        found: dict[str, str] = {}  # id -> digest of the recipe
        chain = self._context.stages[stage.name].chain
        for by, stages in self._answerers.items() if not self._context.fresh else ():
            if any(s.chain == chain for s in stages):
                found |= {i: by for i in self._answered(by)[1] if i not in found}
        if stage.name in self._searching:  # a pending source may fail, which changes the requests
            found = {i: by for i, by in found.items() if i not in self._pending}
        reads = stage.step.reads() | stage.gate_reads()
        again = dict[str, str]()
        for i in found:  # a field that the stage reads may have changed
            moved = self._moved.get(i, {}).items()
            whys = (why for name, why in moved if any(staleness.overlap(name, r) for r in reads))
            if why := next(whys, ""):
                again[i] = why
        rest = {i: by for i, by in found.items() if i not in again}
        if rest and any(b.calls for b in bounds.values()) and staleness.in_doubt(self._store, stage.step):
            again |= self._asked_again(stage, rest, plain)
        for i, why in again.items():
            self._moved.setdefault(i, {}).update(dict.fromkeys(stage.step.writes(), why))
        return set(found) - set(again), again

    def _asked_again(self, stage: Stage[Step], rows: Mapping[str, str], plain: bool) -> dict[str, str]:
        """Maps answered rows with lost or expired values to the reason. `rows`: id -> digest of the answering
        recipe. If the answers of a recipe do not show the stage's inputs, all its rows count as lost."""
        if plain:
            table, keys = self._requests(stage.step, [self._todo[i] for i in rows])
            here = lookup(self._store, table, list(keys.values())) if table else set()
            return {i: "lost" for i, key in keys.items() if key not in here}
        again: dict[str, str] = {}
        chain = self._context.stages[stage.name].chain
        for by in dict.fromkeys(rows.values()):
            ids, stages = [i for i, b in rows.items() if b == by], self._answerers[by]
            at = next(n for n, s in enumerate(stages) if s.chain == chain)
            if staleness.kept_inputs(stage, (s.writes for s in stages[at:])):
                stored = [answer_key(by, i, *self._evidence[i]) for i in ids]
                again |= staleness.lost_answers(self._pipeline, stage, stored)
            else:
                again |= dict.fromkeys(ids, "lost")
        return again

    def _new_requests(
        self, stage: Stage[Step], todo: Sequence[Question]
    ) -> tuple[dict[str, float], bool, int]:
        """Finds the new requests of a stage that makes one request per question, from the question only.
        Returns question id -> 1 if its request is not cached, else 0; whether these counts are exact; and the
        number of distinct new requests. Counts are exact if this and earlier stages repeat no new request."""
        table, keys = self._requests(stage.step, todo)
        new = set(keys.values())
        if table is not None and not (self._context.fresh and table.replies):
            new -= lookup(self._store, table, list(keys.values()))
        each, models = {i: float(k in new) for i, k in keys.items()}, asked_models(stage.step)
        same = [(s, p) for s, p in self._before if any(m in models for m in asked_models(s.step))]
        alone = all(p and new.isdisjoint(self._requests(s.step, todo)[1].values()) for s, p in same)
        return each, alone and len(new) == sum(each.values()), len(new)

    def _requests(self, step: Step, todo: Sequence[Question]) -> tuple[MemoTable | None, dict[str, str]]:
        """Returns the memo table of a step's requests (None: no request), and question id -> key."""
        found = asyncio.run(first_requests(step, self._pipeline.worker.kit(None), [[q] for q in todo]))
        asked = {q.id: a for q, a in zip(todo, found, strict=True) if a is not None}
        return next((a.table for a in asked.values()), None), {i: a.keys[0] for i, a in asked.items()}
