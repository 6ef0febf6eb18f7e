"""The plan: what an eval may have to ask, step by step, before anything runs, and why it has to.

Exact where that can be known beforehand (sources to parse, texts of an unchanged split, questions to embed),
else an upper bound, with what is likely next to it: no run makes a call that its plan did not name. Changes
nothing in the store.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from raypipe.core.records import Question
from raypipe.recipes.step_contract import table_of
from raypipe.runs.flips import chats_twice
from raypipe.runs.pipeline.driver import Pipeline
from raypipe.runs.pipeline.recipe_tables import ann_states
from raypipe.runs.plan.context import PlanContext
from raypipe.runs.plan.corpus import CorpusPlanner
from raypipe.runs.plan.questions import LikelyCalls, QuestionPlanner
from raypipe.runs.plan.records import NewSources, Plan
from raypipe.runs.record import Run, recent

LOOKED_BACK = 20  # finished runs whose answers and rates count


def plan(
    pipeline: Pipeline,
    questions: Iterable[Question],
    coming: NewSources | None = None,
    fresh: bool = False,
    old: Collection[str] = (),
    measured: Sequence[Run] = (),
) -> Plan:
    """What an eval of these questions may have to do on this store. `fresh`: every question is answered again
    and no reply counts as cached. `old`: ids of questions whose answers are to be worked out again, since a
    graph's replies no longer hold. `measured`: runs on other stores that say how fast this machine is."""
    questions = list(questions)  # gone through several times
    runs = recent(pipeline.store, LOOKED_BACK)
    context = PlanContext(pipeline, runs, measured, coming or NewSources(), fresh)
    corpus = CorpusPlanner(context)
    sources = tuple(corpus.plans(questions))
    likely = LikelyCalls(pipeline.recipe, corpus.scope)
    answers = QuestionPlanner(context, frozenset(old), corpus.wanted, corpus.reach, likely)
    steps = (*sources, *answers.plans(questions))
    twice = chats_twice(pipeline.recipe, pipeline.worker, measured, steps)
    ann = tuple(ann_states(pipeline.store, pipeline.recipe))
    return Plan(steps, changed=context.changed(), ann=ann, twice=twice)


def plan_embedding(pipeline: Pipeline, measured: Sequence[Run] = ()) -> tuple[int, float | None]:
    """Estimates the passages of the whole store that are to be embedded (0: not known, too), and the seconds
    that they take; None: no run of this machine says."""
    runs = recent(pipeline.store, LOOKED_BACK)
    context = PlanContext(pipeline, runs, measured, NewSources(), False)
    steps = CorpusPlanner(context).plans([Question("", "")])
    names = {stage.name for stage in pipeline.recipe.corpus if table_of(stage.step) == "vectors"}
    mine = [step for step in steps if step.step in names]
    calls = sum(s.expected_calls.calls[1] if s.expected_calls else s.max_calls for s in mine)
    seconds = [s.cost.seconds[1] for s in mine if s.cost.seconds is not None]
    if math.isinf(calls) or not calls:
        return 0, None
    if len(seconds) < len(mine):
        return int(calls), None
    return int(calls), sum(seconds) / (pipeline.workers("embed").count * pipeline.worker.threads)
