"""Plan of an eval, made before it runs: the plan that it shows and is held to, and oracle golds.

Knows plans and prices; the golds of a data set only to put them in the place of a stage. Replies of a graph's
domain with a refresh period hold for that period (`Reference.periods`). A stored answer has expired if its
calls, made now, would need a reply that is not cached for the present period. What still holds is cached, so
answering again queries the graph only for expired replies, and a model only where that changed its prompt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from raypipe.core.errors import ConfError
from raypipe.core.records import Question
from raypipe.evaluation.golds import Scoring, StoredQuestions, golds_of
from raypipe.evaluation.judge import Judge, ModelJudge, judge_plan
from raypipe.evaluation.options import EvalOptions
from raypipe.evaluation.oracle import with_oracle
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import requested_by
from raypipe.runs.pipeline.counters import RunCounters
from raypipe.runs.pipeline.driver import Pipeline
from raypipe.runs.plan.costs import priced
from raypipe.runs.plan.planner import plan
from raypipe.runs.plan.records import JudgePlan, Plan
from raypipe.runs.plan.standing import uncached
from raypipe.runs.record import Run
from raypipe.store.files import need


def oracle_recipe(
    pipeline: Pipeline,
    questions: StoredQuestions,
    scoring: Scoring,
    done: RunCounters,
    how: EvalOptions,
    measured: Sequence[Run],
) -> tuple[Recipe, int, Plan | None]:
    """The recipe, with golds in the place of a stage if an oracle is asked for, and for how many questions.
    Golds of passages are looked for in the tables, which are made before: the plan of that is shown first and
    returned. Raises ConfError where no question has a gold text."""
    if how.oracle is None:
        return pipeline.recipe, 0, None
    golds = golds_of(pipeline.store, questions.ids, scoring.golds)
    if not any(g.answers for g in golds.values()):
        raise ConfError(
            f"--oracle {how.oracle}: expected questions with gold answers, found none of {len(questions)} "
            f"with one in {pipeline.store.uri}. Use data that has answers, or leave --oracle out"
        )
    indexed = None
    if how.oracle == "passages":
        indexed = _shown(pipeline, questions, (), replace(how, fresh=False), measured, None)[0]
        pipeline.index(questions, done)
    return *with_oracle(pipeline, how.oracle, questions, golds), indexed


def plan_eval(
    pipeline: Pipeline,
    questions: StoredQuestions,
    scoring: Scoring,
    judge: Judge | None,
    how: EvalOptions,
    measured: Sequence[Run],
    indexed: Plan | None,
) -> tuple[Plan, Collection[str], frozenset[str]]:
    """The plan of a run, shown; the ids of the questions whose answers rest on replies of a graph that no
    longer hold; and of all that are answered again: these, and what an earlier command has left. `measured`
    are runs on other stores that say how fast this machine is; `indexed` is the plan of a corpus half that
    is done already; None: none is. Raises DiskFull where there is no room for what is planned."""
    expired, judging = expired_answers(pipeline, questions) if how.refresh else set[str](), None
    if isinstance(judge, ModelJudge):
        golds = golds_of(pipeline.store, questions.ids, scoring.golds)
        judging = judge_plan(judge.model, judge.rule, golds.values())
    planned, renewed = _shown(pipeline, questions, expired, how, measured, judging)
    if indexed is not None:
        before = (s for s in indexed.steps if s.half == "corpus")
        steps = (*before, *(s for s in planned.steps if s.half == "question"))
        planned = priced(replace(planned, steps=steps), pipeline.caps.prices, pipeline.recipe)
    return planned, expired, renewed


def _shown(
    pipeline: Pipeline,
    questions: StoredQuestions,
    expired: Collection[str],
    how: EvalOptions,
    measured: Sequence[Run],
    judge: JudgePlan | None,
) -> tuple[Plan, frozenset[str]]:
    """The plan, shown, and the ids of the questions that will be answered again."""
    asked, again, fresh = list(questions), set(expired), how.fresh
    if (left := pipeline.renewing()) is not None:
        asked += pipeline.questions([id for id in left.ids if id not in set(questions.ids)])
        again |= set(left.ids)
        fresh = fresh or left.fresh
    planned = plan(pipeline, asked, fresh=fresh, old=again, measured=measured)
    planned = priced(replace(planned, judge=judge), pipeline.caps.prices, pipeline.recipe)
    how.on_plan(planned)
    need(pipeline.store.files, planned.bytes_at_least(), "what is planned")
    return planned, frozenset(again)


def expired_answers(
    pipeline: Pipeline, questions: Iterable[Question], clock: Callable[[], float] = time.time
) -> set[str]:
    """Ids of the questions whose stored answer rests on a reply that no longer holds."""
    stages = [s for s in pipeline.recipe.question if any(ref.periods() for ref in requested_by(s.step))]
    if not stages:
        return set()
    answered = [a for a in pipeline.answers(list(questions)) if a.outcome and a.outcome != "fault"]
    found = (uncached(pipeline, stage, answered, clock).items() for stage in stages if answered)
    return {id for whys in found for id, why in whys if why == "expired"}
