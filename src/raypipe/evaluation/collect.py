"""All answers of a run, passed once, a batch at a time: each leaves its row in results.parquet, and what
scoring and the report need of it.

Knows the pipeline, the metrics and the report's records; decides no verdict. Never are more than a batch of
answers in memory, however many there are.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import tee

from raypipe.core.records import ANSWERED, FAULT, Gold, Question
from raypipe.evaluation.evidence_paragraphs import evidence_paragraphs
from raypipe.evaluation.golds import golds_of
from raypipe.evaluation.losses import LossFinder
from raypipe.evaluation.prompts import PromptLookup
from raypipe.evaluation.ranked_documents import FINAL, documents_of, ranked_documents
from raypipe.evaluation.ranking_losses import RankingLossFinder
from raypipe.evaluation.result_table import ResultTable, needed_texts, row
from raypipe.evaluation.routing import RoutingCheck
from raypipe.memo.disk import StoreMemo, memo_versions
from raypipe.metrics.crag import Prediction, pair
from raypipe.metrics.kinds.contract import GoldForm
from raypipe.metrics.losses import LostAt
from raypipe.metrics.prompt_injection import PromptInjection, followed
from raypipe.metrics.ranking import ranked
from raypipe.metrics.routing import Routing
from raypipe.models.kit import LocalKit
from raypipe.pipeline.answer_sources import AnswerSources
from raypipe.pipeline.driver import Pipeline, batches
from raypipe.pipeline.recipe_tables import searched
from raypipe.recipes.fits import fits_of, has_seen
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import models_of
from raypipe.report.report import answer_of
from raypipe.store import Store
from raypipe.store.index import LanceIndex
from raypipe.store.layouts import folder_roots, layouts_at, layouts_of
from raypipe.text.fitted_on import FittedOn

AT_ONCE = 100  # answers in memory: some 40 kB each with fifty citations and twenty hits


@dataclass(slots=True)
class Collected:
    """What stays of the answers when they have passed."""

    rows: list[Prediction] = field(default_factory=list)  # those with a gold of the kind, in order
    texts: dict[str, str] = field(default_factory=dict)  # question id -> question, of the same
    stated: dict[str, float | None] = field(default_factory=dict)
    """Question id -> confidence of its answer, of those that no fit has seen and that got one; None: the step
    states none."""
    without_truth: int = 0  # questions that the dataset has no such gold of
    faults: Counter[tuple[str, str, bool]] = field(default_factory=Counter)  # step, reason, transient
    citations: int = 0
    empty_pages: int = 0  # citations without a page
    pages: set[str] = field(default_factory=set)  # ids of the cited pages
    sources: set[str] = field(default_factory=set)  # ids of all that is cited
    everything: bool = False  # True: some question may search everything in the store
    lost: dict[str, LostAt] = field(default_factory=dict)  # question id -> where its gold was lost, if it was
    routing: Routing | None = None  # routers and calls against golds; None: not looked at yet
    loss_notes: tuple[str, ...] = ()  # what could not be told apart
    prompt_injection: PromptInjection | None = (
        None  # orders in pages that reached an answer; None: not looked for
    )


def collect(
    pipeline: Pipeline, questions: Iterable[Question], sources: AnswerSources, table: ResultTable,
    form: GoldForm, seconds: Mapping[str, Mapping[str, float]],
) -> Collected:  # fmt: skip
    """Passes the answers of these questions, in order, into the table of results.

    `sources`: what they are answered from. `form`: of the golds to score by. `seconds`: question id -> stage
    -> seconds, where this run answered it. Prompt injections that answers follow are looked for where the
    recipe has a language model. Raises KeyError for a passage without a text, which is a defect: no step
    makes one.
    """
    found, index = Collected(), LanceIndex(searched(pipeline.store, pipeline.recipe))
    store = pipeline.store
    documents, roots = layouts_at(store), folder_roots(store)
    lookup = PromptLookup(
        pipeline.recipe, LocalKit(index), lambda: StoreMemo(store.uri, memo_versions(store))
    )
    table.about["no_prompts"] = lookup.missing
    fits = fits_of(pipeline.recipe).values()
    routing = RoutingCheck(pipeline.recipe)
    losses = _loss_finder(pipeline, index, form)
    injections = any(m.kind == "generator" for s in pipeline.recipe.question for m in models_of(s.step))
    with asyncio.Runner() as loop:
        asked, questions = tee(questions)
        for pairs in batches(zip(asked, pipeline.answers(questions, sources), strict=True), AT_ONCE):
            batch = [answered for _, answered in pairs]
            for question, answered in pairs:
                _count(question, answered, found)
            golds = golds_of(store, [q.id for q in batch], form)
            found.stated |= _stated(batch, golds, fits)
            text = loop.run(_texts(index, batch))
            layouts = layouts_of(documents, {h.source for q in batch for h in q.hits})
            paragraphs = loop.run(evidence_paragraphs(index, batch)) if form == "annotators" else {}
            _pair(store, batch, golds, form, found, paragraphs)
            prompts = loop.run(lookup.of(batch))
            for q in batch:
                if q.id in golds:
                    routing.add(q, golds[q.id])
            found.lost |= loop.run(losses.of(pairs, golds))
            table.add(
                [
                    row(
                        q, golds.get(q.id), text, prompts[q.id], layouts, has_seen(fits, q.text),
                        _own(pipeline.recipe, q, seconds.get(q.id)), roots,
                    )
                    for q in batch
                ]
            )  # fmt: skip
            if injections:
                before = found.prompt_injection or PromptInjection(0, 0)
                found.prompt_injection = loop.run(_injected(index, batch, before))
    found.routing = routing.found()
    found.lost |= losses.rest()
    found.loss_notes = tuple(losses.notes)
    return found


def _loss_finder(pipeline: Pipeline, index: LanceIndex, form: GoldForm) -> LossFinder | RankingLossFinder:
    return RankingLossFinder(pipeline) if form == "grades" else LossFinder(pipeline, index, LocalKit(index))


def _stated(
    batch: Sequence[Question], golds: Mapping[str, Gold], fits: Collection[FittedOn]
) -> dict[str, float | None]:
    """The confidence of answers that can be scored."""
    return {
        q.id: q.replies[q.origin].confidence
        for q in batch
        if q.outcome == ANSWERED and q.id in golds and q.origin in q.replies and not has_seen(fits, q.text)
    }


def _own(
    recipe: Recipe, question: Question, seconds: Mapping[str, float] | None
) -> Mapping[str, float] | None:
    """Of the seconds of stages those whose gate let the question in; None: this run did not answer it."""
    if seconds is None:
        return None
    let_in = {s.name for s in recipe.question if s.admits(question)}
    return {stage: taken for stage, taken in seconds.items() if stage in let_in}


def _count(question: Question, answered: Question, found: Collected) -> None:
    """Counts what a question may search, which a step may have narrowed since, and what stopped it."""
    found.faults.update((f.step, f.reason, f.transient) for f in answered.faults)
    if not answered.outcome and not answered.faults:
        found.faults["answer", "not_reached", True] += 1
    found.everything |= question.citations is None
    cited = question.citations or ()
    found.citations += len(cited)
    found.empty_pages += sum(c.page is None for c in cited)
    found.pages.update(c.page for c in cited if c.page)
    found.sources.update(s for c in cited for s in c.sources())


def _pair(
    store: Store, batch: Sequence[Question], golds: Mapping[str, Gold], form: GoldForm, found: Collected,
    paragraphs: Mapping[str, tuple[str, ...]],
) -> None:  # fmt: skip
    """Adds what is scored of these answers."""
    if form != "grades":
        rows, without = pair(batch, golds, {})
        rows = [replace(r, evidence=paragraphs.get(r.question, ())) for r in rows]
    else:
        judged = [q for q in batch if q.id in golds and golds[q.id].grades]
        rows, without = _ranked(store, judged, golds), [q.id for q in batch if q not in judged]
    found.rows += rows
    found.without_truth += len(without)
    text = {q.id: q.text for q in batch}
    found.texts.update((r.question, text[r.question]) for r in rows)


def _ranked(store: Store, batch: Sequence[Question], golds: Mapping[str, Gold]) -> list[Prediction]:
    """Each question with its documents in the order of its ranking; a failed one has none."""
    sources = {h.source for q in batch for h in q.hits}
    listed = documents_of(store, sorted(sources))
    rows = []
    for q in batch:
        gold, scores = golds[q.id], ranked_documents(q, FINAL, listed, len(sources))
        documents = None if q.outcome in ("", FAULT) else tuple(ranked(scores))
        rows.append(Prediction(q.id, answer_of(q), gold.answers, None, gold.labels, gold.grades, documents))
    return rows


async def _texts(index: LanceIndex, batch: Sequence[Question]) -> dict[str, str]:
    """Passage id -> text, of all passages that are kept with these answers."""
    distinct = list(dict.fromkeys(c for q in batch for c in needed_texts(q)))
    return dict(zip(distinct, await index.texts(distinct), strict=True))


async def _injected(index: LanceIndex, batch: Sequence[Question], before: PromptInjection) -> PromptInjection:
    """How often an order that a page gives reached an answer, with what was counted before."""
    chunks = list(dict.fromkeys(c for q in batch for c in q.order))
    text = dict(zip(chunks, await index.texts(chunks), strict=True))
    here = followed(([text[c] for c in q.order], q.answer) for q in batch)
    return PromptInjection(before.exposed + here.exposed, before.followed + here.followed)
