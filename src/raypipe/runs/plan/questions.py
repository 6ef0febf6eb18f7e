"""The question half of a plan: what each stage may ask about the rows that have no answer yet.

What a stage asks about a row follows from the row and the stages before it (`stage_records.chains`). So
nothing is asked about a row that any finished run answered with the same chain, as long as the memo still has
what was asked then (`standing`). Where no earlier run says how much a stage asks, its own bounds do, at what
the sources look like: no further than a question's sources have passages.
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
from raypipe.runs.plan import standing
from raypipe.runs.plan.corpus import CorpusPlanner
from raypipe.runs.plan.costs import PlanContext, asked_before
from raypipe.runs.plan.records import StepPlan, likely_tokens, stage_bounds, stored_bytes
from raypipe.runs.record import answer_keys
from raypipe.store.memo.lookup import first_requests, lookup
from raypipe.store.memo.memo import MemoTable
from raypipe.store.sources import corpus_sum


class QuestionPlanner:
    """Plans the stages of the question half, in recipe order."""

    def __init__(
        self, context: PlanContext, corpus: CorpusPlanner, questions: Sequence[Question], old: frozenset[str]
    ) -> None:
        """`old`: ids of questions whose answers are to be worked out again."""
        self._context, self._pipeline, self._store = context, context.pipeline, context.pipeline.store
        self._corpus = corpus
        self._moved: dict[str, dict[str, str]] = {}  # id -> fields that may come out otherwise -> why
        self._searching = standing.behind_index(self._pipeline.recipe)
        self._answerers = {self._pipeline.recipe.digest(): tuple(context.stages.values())}
        """Digest -> stages of the recipes by which rows may have a stored answer."""
        for run in context.runs:
            self._answerers.setdefault(run.digest, run.stages)
        coming = context.coming.kinds
        snapshot = digest(corpus_sum(self._store, coming)) if coming else self._pipeline.snapshot()
        found = standing.unanswered(self._pipeline, questions, corpus.wanted, snapshot, context.fresh)
        self._pending, self._again = found.pending, found.again
        by_id = {q.id: q for q in questions}
        ids = list(dict.fromkeys([*found.ids, *(i for i in by_id if i in old)]))
        more = [i for i in ids if i not in by_id]
        by_id |= {q.id: q for q in arrow.question.records(self._store.rows("questions", "id", more))}
        self._rows, self._todo = len(by_id), {i: by_id[i] for i in ids if i in by_id}
        self._evidence = {i: (found.sources.row(q), found.sources.absent(q)) for i, q in self._todo.items()}
        """Question id -> its row key, and what is absent."""
        leaning = any(q.turns for q in self._todo.values())
        self._untold = leaning and any(of_turns(s.step) for s in self._pipeline.recipe.question)
        """Whether the text of a question may be another one by the time that later steps ask about it."""
        self._before: list[tuple[Stage[Step], bool]] = []
        """Stages before the one that is planned; True: what it asks follows from the question alone."""

        self._answered = functools.cache(
            functools.partial(standing.answered_by, self._store, evidence=self._evidence)
        )

    def plans(self) -> Iterator[StepPlan]:
        last = self._context.last
        had = self._answered(last.digest)[0] if last else set[str]()
        sure = True  # no row is kept from the stages to come
        reach = Reach(passage_chars=self._corpus.longest)
        for stage, bounds in stage_bounds(self._pipeline.recipe, [*self._todo.values()], reach):
            untold = self._untold and not of_turns(stage.step)
            plain = not untold and all(b.from_question for b in bounds.values())
            asks = self._ask(stage, bounds, plain, had, sure)
            yield asks
            self._before.append((stage, plain))
            faults = {b.faults for b in bounds.values()}
            sure = sure and not ("any" in faults or ("asking" in faults and asks.max_calls))

    def _ask(
        self, stage: Stage[Step], bounds: Mapping[str, Bound], plain: bool, had: set[str], sure: bool
    ) -> StepPlan:
        """Plans a question stage: what rows may ask that no run answered with the same chain, and those
        whose requests the memo does not answer any more."""
        settled, again = self._settled(stage, bounds, plain)
        calls = {i: b.calls for i, b in bounds.items() if i not in settled}
        exact, distinct = not any(calls.values()), 0
        if plain and not exact:
            calls, exact, distinct = self._told(stage, [self._todo[i] for i in calls])
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
            len(self._todo),
            exact,
            expected,
            stored,
            tokens,
        )

    def _likely(self, stage: Stage[Step], most: Mapping[str, float]) -> tuple[int, int] | None:
        """Calls about some questions, each at `most` (by id): a range, from 0 where a gate decides. None
        where nothing says."""
        bounds = self._ordinary[stage.name]
        some = [(b.calls if (b := bounds[i]).likely is None else b.likely, n) for i, n in most.items()]
        calls = sum(map(min, some)) + max((bounds[i].shared for i in most), default=0)
        return None if math.isinf(calls) else (0 if stage.when else round(calls), round(calls))

    @functools.cached_property
    def _ordinary(self) -> dict[str, dict[str, Bound]]:
        """Stage -> question id -> its bound for a ranking as long as the question's sources make it."""
        todo = list(self._todo.values())
        scope = self._corpus.scope(todo)
        return {s.name: b for s, b in stage_bounds(self._pipeline.recipe, todo, Reach(), scope)}

    @functools.cached_property
    def _kept(self) -> set[str]:
        """Ids of the questions whose answers the last finished run kept of an earlier one."""
        last = self._context.last
        return {id for id, k in answer_keys(self._store, last.run).items() if k.kept} if last else set()

    def _settled(
        self, stage: Stage[Step], bounds: Mapping[str, Bound], plain: bool
    ) -> tuple[set[str], dict[str, str]]:
        """Ids of the rows about which nothing is asked, and of those about which something may be asked
        again, with the reason."""
        found: dict[str, str] = {}  # id -> digest of the recipe
        chain = self._context.stages[stage.name].chain
        for by, stages in self._answerers.items() if not self._context.fresh else ():
            if any(s.chain == chain for s in stages):
                found |= {i: by for i in self._answered(by)[1] if i not in found}
        if stage.name in self._searching:  # a source may fail, and what is asked then is not known
            found = {i: by for i, by in found.items() if i not in self._pending}
        reads = stage.step.reads() | stage.gate_reads()
        again = dict[str, str]()
        for i in found:  # what the stage reads about a row may come out otherwise
            moved = self._moved.get(i, {}).items()
            if why := next((why for name, why in moved if any(standing.overlap(name, r) for r in reads)), ""):
                again[i] = why
        rest = {i: by for i, by in found.items() if i not in again}
        if rest and any(b.calls for b in bounds.values()) and standing.in_doubt(self._store, stage.step):
            again |= self._asked_again(stage, rest, plain)
        for i, why in again.items():
            self._moved.setdefault(i, {}).update(dict.fromkeys(stage.step.writes(), why))
        return set(found) - set(again), again

    def _asked_again(self, stage: Stage[Step], rows: Mapping[str, str], plain: bool) -> dict[str, str]:
        """Of answered rows (id -> by what), those about which the stage may ask again, and why. Where the
        stored answer does not tell what was asked, that is all of them."""
        if plain:
            table, keys = self._requests(stage.step, [self._todo[i] for i in rows])
            here = lookup(self._store, table, list(keys.values())) if table else set()
            return {i: "lost" for i, key in keys.items() if key not in here}
        again: dict[str, str] = {}
        chain = self._context.stages[stage.name].chain
        for by in dict.fromkeys(rows.values()):
            ids, stages = [i for i, b in rows.items() if b == by], self._answerers[by]
            at = next(n for n, s in enumerate(stages) if s.chain == chain)
            if standing.kept_inputs(stage, (s.writes for s in stages[at:])):
                stored = [answer_key(by, i, *self._evidence[i]) for i in ids]
                again |= standing.lost_answers(self._pipeline, stage, stored)
            else:
                again |= dict.fromkeys(ids, "lost")
        return again

    def _told(self, stage: Stage[Step], todo: Sequence[Question]) -> tuple[dict[str, float], bool, int]:
        """Question id -> 1 where what the stage asks about it was never asked, whether that is exactly what
        will be asked (no two ask the same, and no stage before it with the same model does), and how much of
        it is distinct."""
        table, keys = self._requests(stage.step, todo)
        new = set(keys.values())
        if table is not None and not (self._context.fresh and table.replies):
            new -= lookup(self._store, table, list(keys.values()))
        each, models = {i: float(k in new) for i, k in keys.items()}, asked_models(stage.step)
        same = [(s, p) for s, p in self._before if any(m in models for m in asked_models(s.step))]
        alone = all(p and new.isdisjoint(self._requests(s.step, todo)[1].values()) for s, p in same)
        return each, alone and len(new) == sum(each.values()), len(new)

    def _requests(self, step: Step, todo: Sequence[Question]) -> tuple[MemoTable | None, dict[str, str]]:
        """The memo table that a step asks of, and the key of its request about each question; None if it asks
        nothing."""
        found = asyncio.run(first_requests(step, self._pipeline.worker.kit(None), [[q] for q in todo]))
        asked = {q.id: a for q, a in zip(todo, found, strict=True) if a is not None}
        table = next((a.table for a in asked.values()), None)
        return table, {i: a.keys[0] for i, a in asked.items()}
