"""The plan: what an eval may have to ask, step by step, before anything runs, and why it has to.

Exact where that can be known beforehand (sources to parse, texts of an unchanged split, questions to embed),
else an upper bound, with what is likely next to it: no run makes a call that its plan did not name. Changes
nothing in the store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from raypipe.core.records import Question
from raypipe.runs.manifest import Manifest, recent
from raypipe.runs.pipeline.driver import Pipeline
from raypipe.runs.pipeline.recipe_tables import ann_states
from raypipe.runs.plan.context import PlanContext
from raypipe.runs.plan.corpus import CorpusPlanner
from raypipe.runs.plan.questions import LikelyCalls, QuestionPlanner
from raypipe.runs.plan.records import NewSources, Plan

LOOKED_BACK = 20  # finished runs whose answers and rates count


def plan(
    pipeline: Pipeline,
    questions: Iterable[Question],
    coming: NewSources | None = None,
    fresh: bool = False,
    old: Collection[str] = (),
    measured: Sequence[Manifest] = (),
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
    return Plan(steps, ann=tuple(ann_states(pipeline.store, pipeline.recipe)))
