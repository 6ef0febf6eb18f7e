"""Which questions an eval has to answer, as far as a plan can know: from the evidence after indexing.

A source that is parsed, split or embedded before the questions are answered may fail again, and then an
answer that was made without it still stands. So such questions are planned whether or not they have one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from raypipe.core.records import Question
from raypipe.pipeline.answer_sources import AnswerSources, answer_sources
from raypipe.pipeline.corpus_builds import failed_ids
from raypipe.pipeline.driver import Pipeline
from raypipe.pipeline.recipe_tables import lacking, table_labels
from raypipe.runs.plan.store_state import left_answers
from raypipe.store.coverage import by_source
from raypipe.store.ids import Ids, stand_in


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The questions that an eval may have to answer."""

    sources: AnswerSources  # what they are answered from, if no source fails that did not fail for good
    ids: tuple[str, ...]
    pending: frozenset[str]  # questions some of whose sources are still to be parsed, split or embedded
    again: frozenset[str]  # of `ids`: answered before by this recipe, from other evidence


def unanswered(
    pipeline: Pipeline, questions: Sequence[Question], wanted: Ids, snapshot: str, fresh: bool
) -> Unanswered:
    """`wanted`: the sources that these questions may search, those to be ingested included. `fresh`: every
    question is answered again."""
    work_id = pipeline.answers_work_id(snapshot)
    lacks = lacking(pipeline.store, pipeline.recipe, wanted, {}, pipeline.searches_all(questions))
    for_good, coming = _for_good(pipeline, lacks)
    everything = pipeline.recipe.searches_all()
    sources = answer_sources(snapshot, by_source(for_good), everything)
    pending = _pending(questions, coming, everything)
    ids = [q.id for q in questions]
    if not fresh:
        keys = pipeline.keys(questions, sources)
        due = left_answers(pipeline.store, work_id, keys, pipeline.unanswered(keys))
        ids = list(dict.fromkeys([*due, *(i for i in ids if i in pending)]))
    return Unanswered(sources, tuple(ids), pending, _again(pipeline, questions, ids, sources))


def _for_good(pipeline: Pipeline, lacks: Mapping[str, Ids]) -> tuple[dict[str, Ids], list[Ids]]:
    """What will be lacking still, since it failed for good, and the sources that will have more."""
    tables = table_labels(pipeline.recipe)
    stays: dict[str, Ids] = {}
    coming: list[Ids] = []
    for label, ids in lacks.items():
        failed = Ids.of(failed_ids(pipeline.store, {tables[label]}))
        if len(mine := ids.where(stand_in(ids.array, failed.array))):
            stays[label] = mine
        if len(more := ids.without(failed)):
            coming.append(more)
    return stays, coming


def _pending(questions: Sequence[Question], coming: Sequence[Ids], everything: bool) -> frozenset[str]:
    """Ids of the questions that may search a source that will have more."""
    cited = {q.id: None if everything else q.sources() for q in questions}
    named = Ids.of(dict.fromkeys(s for sources in cited.values() for s in sources or ()))
    soon = {s for ids in coming for s in named.where(stand_in(named.array, ids.array))}
    return frozenset(id for id, own in cited.items() if (coming if own is None else not soon.isdisjoint(own)))


def _again(
    pipeline: Pipeline, questions: Iterable[Question], ids: Sequence[str], sources: AnswerSources
) -> frozenset[str]:
    store, recipe = pipeline.store, pipeline.recipe.digest()
    if not ids or not store.count("answers", f"recipe = '{recipe}'"):
        return frozenset()
    found = store.rows("answers", "id", ids, ["id", "row", "recipe"]).to_pylist()
    before = {(r["id"], r["row"]) for r in found if r["recipe"] == recipe}
    return frozenset(q.id for q in questions if (q.id, sources.row(q)) in before)
