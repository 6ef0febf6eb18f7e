"""Stored questions and golds (correct answers), the kind of their data, and rankings of documents.

A kind of data (`metrics.kinds`) has measures and the form of gold that they need. `scoring_of` chooses the
kind of a run, and checks that golds, recipe and labels fit it. Recipes rank passages; `ranked_documents`
makes rankings of documents from them. Nothing is scored here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path

from raypipe.core import arrow
from raypipe.core.bounded_rows import batches
from raypipe.core.errors import ConfError, DataError
from raypipe.core.records import CAPTURED_ID, Gold, Question
from raypipe.evaluation.judged_run import PersonLabels
from raypipe.metrics.kinds import DataKind, GoldForm, gold_form, open_kind, rule_of
from raypipe.metrics.verdict_rules import Rule
from raypipe.recipes.step_contract import decides
from raypipe.runs.changes import earlier_run
from raypipe.runs.pipeline.driver import Pipeline
from raypipe.runs.pipeline.ingest_log import IngestSummary, kinds_of
from raypipe.runs.record import AnswerKey, answer_keys, find
from raypipe.store import Store

FINAL = "final"  # name of the recipe's final ranking, used like the name of a score
LOOKED_AT = 1000  # most judged documents that are looked up in the store before a run

FROM: dict[GoldForm, str] = {
    "answers": "answers. A line of CRAG's format has an `answer`; other files need a field of answers",
    "grades": "judged documents. BEIR's format reads them from qrels/test.tsv, or a file named qrels.trec",
    "annotators": "answers of annotators with their evidence. Format qasper reads them",
}


@dataclass(frozen=True, slots=True)
class Scoring:
    """The way in which a run is scored."""

    name: str  # name of the kind
    kind: DataKind
    golds: GoldForm  # form of gold that the kind needs


def scoring_of(
    pipeline: Pipeline,
    read: IngestSummary | None,
    questions: Sequence[str],
    kind: str | None,
    rule: Rule | None,
    judged: bool,
    labels: PersonLabels | None,
) -> Scoring:
    """Chooses how to score these questions: by `kind`, or if it is None, by the kind that they were read as.
    `judged` says whether a judge is given. Raises ConfError if the kind cannot use the rule, the judge or
    `labels`, and if a given `kind` scores answers but the recipe only ranks. Raises DataError if no question
    has a gold that a given `kind` needs, and if none of the first LOOKED_AT judged documents is stored."""
    store, recipe = pipeline.store, pipeline.recipe
    name = kind or kind_of_data(store, read, questions)
    opened = open_kind(name, rule, judged)
    form = gold_form(opened)
    answers = any(decides(s.step) for s in recipe.question)
    if kind is not None and form != "grades" and not answers:
        raise ConfError(
            f"kind {name} scores answers, and recipe {recipe.name} ends without decide: it ranks. Name a "
            "recipe that answers, or score it with --kind ranking"
        )
    if kind is not None or form == "grades":
        golds = golds_of(store, questions, form).values()
        if kind is not None:
            require_golds(golds, len(questions), name, form, store.uri)
        judged_ids = sorted({d for g in golds for d in g.grades})[:LOOKED_AT]
        if judged_ids and len(store.missing("documents", "id", judged_ids)) == len(judged_ids):
            raise DataError(
                f"{store.uri}: expected the judged documents, found none of "
                f"{', '.join(judged_ids[:3])} among {store.count('documents')} documents. Ingest the corpus "
                "that was judged"
            )
    if labels is not None and rule_of(opened) is None:
        raise ConfError(
            f"--labels {labels.file}: expected data whose answers have verdicts, found kind {name}. Score it "
            "with --kind crag, or leave --labels out"
        )
    return Scoring(name, opened, form)


def golds_of(store: Store, questions: Sequence[str], form: GoldForm) -> dict[str, Gold]:
    """Maps question ids to golds. Only with form `grades` do golds have judged documents, and only with form
    `annotators` the annotators' answers."""
    stored = {g.question: g for g in arrow.gold.records(store.rows("golds", "question", questions))}
    if form == "grades" and store.has("relevance"):
        found = store.rows("relevance", "question", questions)
        for g in arrow.relevance.records(found):
            other = stored.get(g.question)
            answers, labels = (other.answers, other.labels) if other else ((), {})
            stored[g.question] = Gold(g.question, answers, labels, g.grades)
    if form == "annotators" and store.has("annotations"):
        for g in arrow.annotated.records(store.rows("annotations", "question", questions)):
            if (other := stored.get(g.question)) is not None:
                stored[g.question] = replace(other, annotators=g.annotators)
    return stored


def kind_of_data(store: Store, read: IngestSummary | None, questions: Collection[str]) -> str:
    """Returns the kind that these questions were read as, or crag if that is unknown. `read`, the summary of
    this command's files, decides if it is given. Raises DataError if the questions are of several kinds."""
    if read is not None:
        return read.kind
    found = kinds_of(store, questions)
    if len(found) > 1:
        each = "; ".join(f"{kind} ({', '.join(files[:2])})" for kind, files in sorted(found.items()))
        raise DataError(
            f"{store.uri}: expected questions of one kind of data, found {each}. Name the files with --data, "
            "or the kind to score by with --kind"
        )
    return next(iter(found), "crag")


def require_golds(golds: Iterable[Gold], questions: int, kind: str, form: GoldForm, where: str) -> None:
    """Raises DataError if no gold of the questions has this form. `where` names the store in the message."""
    if not any(getattr(g, form) for g in golds):
        raise DataError(
            f"{where}: kind {kind} scores by golds, and none of {questions} questions has one: expected "
            f"{FROM[form]}"
        )


def documents_of(store: Store, sources: Sequence[str] | None = None) -> dict[str, list[str]]:
    """Maps source ids to the ids of the documents with that text. Covers all sources if `sources` is None."""
    listed: dict[str, list[str]] = {}
    if sources is None:
        rows = store.scan("documents", ["id", "source"])
    else:
        rows = store.rows("documents", "source", sources, ["id", "source"])
    for id, source in zip(*map(arrow.id_texts, rows.columns), strict=True):
        listed.setdefault(source, []).append(id)
    return listed


def ranked_documents(
    question: Question, by: str, listed: Mapping[str, Sequence[str]], top: int
) -> dict[str, float]:
    """Returns the best `top` documents with their scores. A document has the score of its best passage. `by`
    names a score of the hits. `final` stands for the recipe's final order instead: the first passage gets the
    highest score. `listed` maps source ids to the ids of their documents."""
    best: dict[str, float] = {}
    scores = {h.chunk: h.scores[by] for h in question.hits if by in h.scores}
    if by == FINAL:
        scores = {c: float(len(question.order) - i) for i, c in enumerate(question.order)}
    for hit in question.hits:
        for id in listed.get(hit.source, ()) if hit.chunk in scores else ():
            best[id] = max(scores[hit.chunk], best.get(id, -math.inf))
    return dict(sorted(best.items(), key=lambda item: (-item[1], item[0]))[:top])


AT_ONCE = 100  # questions in memory together: some 20 kB each with fifty citations


@dataclass(frozen=True, slots=True)
class StoredQuestions:
    """Stored questions in the order of `ids`. Every iteration reads them again, a batch at a time."""

    store: Store
    ids: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Question]:
        for some in batches(self.ids, AT_ONCE):
            found = self.store.rows("questions", "id", some)
            by_id = {q.id: q for q in arrow.question.records(found)}
            yield from (by_id[id] for id in some)


def questions_of(pipeline: Pipeline, ids: Sequence[str] | None, limit: int | None) -> StoredQuestions:
    """Returns the first `limit` questions of `ids`, in this order. `ids` None means `stored_questions`."""
    ids = stored_questions(pipeline.store).ids if ids is None else ids
    return StoredQuestions(pipeline.store, tuple(ids[:limit]))


def stored_questions(store: Store) -> StoredQuestions:
    """Returns all questions of a store, sorted by id, without those that an endpoint captured."""
    ids = sorted(store.scan("questions", ["id"])["id"].to_pylist())
    return StoredQuestions(store, tuple(id for id in ids if not id.startswith(CAPTURED_ID)))


def kept_answers(store: Store, questions: Iterable[Question]) -> dict[str, AnswerKey]:
    """Maps question ids to the keys of their answers in the last run that answered some of these questions.
    Omits answers that are not stored, such as failed ones, and answers whose run has no record. Omits
    questions whose text, body or time has changed. Raises ConfError if there is no such run."""
    by_id = {q.id: q for q in questions}
    if (before := earlier_run(store, by_id)) is None:
        raise ConfError(
            f"--only-new: expected a finished run in {store.uri} that answered some of these "
            f"{len(by_id)} questions, found none. Leave --only-new out"
        )
    keys = {k.key: k for id, k in answer_keys(store, before.run).items() if id in by_id}
    found = {}
    for some in batches(list(keys), AT_ONCE):
        rows = store.rows("answers", "key", some, ["key", "text", "body", "asked_at"])
        for key, *said in zip(*map(arrow.id_texts, rows.columns), strict=True):
            question = by_id[keys[key].question]
            run = keys[key].kept or before.run
            if tuple(said) == (question.text, question.body, question.asked_at) and find(store, run):
                found[question.id] = replace(keys[key], kept=run, reused=True)
    return found


def require_questions(questions: Sized, data: Sequence[Path], store: Store) -> None:
    """Raises DataError if there are no questions."""
    if not len(questions):
        where = ", ".join(map(str, data)) or store.uri
        raise DataError(f"{where}: no questions. `raypipe ingest PATH` reads some into a store")
