"""Which questions an eval has to answer, as far as a plan can know: from the evidence after indexing.

A source that is parsed, split or embedded before the questions are answered may fail again, and then an
answer that was made without it still stands. So such questions are planned whether or not they have one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from raypipe.core.records import Question
from raypipe.pipeline.answer_sources import AnswerSources, Lacks, answer_sources
from raypipe.pipeline.corpus_builds import failed_ids
from raypipe.pipeline.driver import Pipeline
from raypipe.pipeline.recipe_tables import lacking, table_labels
from raypipe.runs.plan.store_state import left_answers


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The questions that an eval may have to answer."""

    sources: AnswerSources  # what they are answered from, if no source fails that did not fail for good
    ids: tuple[str, ...]
    pending: frozenset[str]  # questions some of whose sources are still to be parsed, split or embedded
    again: frozenset[str]  # of `ids`: answered before by this recipe, from other evidence


def unanswered(
    pipeline: Pipeline, questions: Sequence[Question], wanted: Sequence[str], snapshot: str, fresh: bool
) -> Unanswered:
    """`wanted`: the sources that these questions may search, those to be ingested included. `fresh`: every
    question is answered again."""
    work_id = pipeline.answers_work_id(snapshot)
    lacks = lacking(pipeline.store, pipeline.recipe, wanted, {}, pipeline.searches_all(questions))
    for_good = _for_good(pipeline, lacks)
    coming = {s for s, labels in lacks.items() if labels != for_good.get(s)}
    everything = pipeline.recipe.searches_all()
    sources = answer_sources(snapshot, for_good, everything)
    pending = frozenset(q.id for q in questions if (everything and coming) or _needs(q, coming))
    ids = [q.id for q in questions]
    if not fresh:
        keys = pipeline.keys(questions, sources)
        due = left_answers(pipeline.store, work_id, keys, pipeline.unanswered(keys))
        ids = list(dict.fromkeys([*due, *(i for i in ids if i in pending)]))
    return Unanswered(sources, tuple(ids), pending, _again(pipeline, questions, ids, sources))


def _for_good(pipeline: Pipeline, lacks: Lacks) -> Lacks:
    """What will be lacking still, since it failed for good."""
    if not lacks:
        return {}
    failed = {
        label: failed_ids(pipeline.store, {table}) for label, table in table_labels(pipeline.recipe).items()
    }
    stays = {s: tuple(x for x in labels if s in failed[x]) for s, labels in lacks.items()}
    return {s: labels for s, labels in stays.items() if labels}


def _needs(question: Question, coming: set[str]) -> bool:
    cited = question.sources()
    return bool(coming) if cited is None else not coming.isdisjoint(cited)


def _again(
    pipeline: Pipeline, questions: Iterable[Question], ids: Sequence[str], sources: AnswerSources
) -> frozenset[str]:
    store, recipe = pipeline.store, pipeline.recipe.digest()
    if not ids or not store.count("answers", f"recipe = '{recipe}'"):
        return frozenset()
    found = store.rows("answers", "id", ids, ["id", "row", "recipe"]).to_pylist()
    before = {(r["id"], r["row"]) for r in found if r["recipe"] == recipe}
    return frozenset(q.id for q in questions if (q.id, sources.row(q)) in before)
