"""Single pass over all answers of a run, which fills the table of results and collects values for scoring.

The values are predictions with golds (correct answers), faults, citations, places where golds were lost, and
counts of replies. Answers are read in batches: memory holds all values, but never all answers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import tee
from typing import Any

from raypipe.core.bounded_rows import batches
from raypipe.core.errors import ConfError, ModelMissing
from raypipe.core.index import Index
from raypipe.core.llm import STEP, Chat, Generated, Generator, Sampling
from raypipe.core.protocols import Ask, ForwardingKit, Kit, Model, Step
from raypipe.core.records import (
    ABSTAINED,
    ANSWERED,
    FAULT,
    SKIPPED,
    Fault,
    Gold,
    Question,
    Quote,
    answer_of,
    quotes_of,
)
from raypipe.evaluation.fault_budget import AnswerFaults
from raypipe.evaluation.golds import FINAL, documents_of, golds_of, ranked_documents
from raypipe.evaluation.losses import LossFinder, RankingLossFinder, RoutingCheck
from raypipe.evaluation.result_table import ResultTable, needed_texts, row
from raypipe.metrics.kinds import GoldForm
from raypipe.metrics.losses import LostAt, PromptInjection, Routing, followed
from raypipe.metrics.ranking import ranked
from raypipe.metrics.verdict_rules import Prediction, pair
from raypipe.models.kit import LocalKit
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.recipes.serialize import description
from raypipe.recipes.step_contract import models_of, named, of_turns
from raypipe.recipes.wiring import fits_of, has_seen
from raypipe.runs.pipeline.driver import Pipeline
from raypipe.runs.pipeline.recipe_tables import AnswerSources, searched, searched_at
from raypipe.runs.record import find
from raypipe.steps.generate import Generate
from raypipe.store import Store
from raypipe.store.fields import layouts_at, layouts_of
from raypipe.store.index import LanceIndex, folder_roots
from raypipe.store.memo.cached import CallCounts, cached
from raypipe.store.memo.disk import StoreMemo, memo_versions
from raypipe.store.memo.lookup import ChatRecorder
from raypipe.store.memo.memo import Memo

AT_ONCE = 100  # answers in memory: some 40 kB each with fifty citations and twenty hits
HEADINGS = ("title", "heading")


@dataclass(slots=True)
class CollectedAnswers:
    """Values collected from all answers of a run, for scoring and for the run's record."""

    faults: AnswerFaults
    rows: list[Prediction] = field(default_factory=list)  # answers with a gold of the kind, in order
    texts: dict[str, str] = field(default_factory=dict)  # question id -> question, of the questions in `rows`
    stated: dict[str, float | None] = field(default_factory=dict)
    """Question id -> stated confidence of its answer; None: its step states none. Only answered questions
    with a gold that no fit has seen."""
    without_truth: int = 0  # questions without a gold of the kind
    answered_by: Counter[str] = field(default_factory=Counter)  # reply name -> answers taken from it
    citations: int = 0
    empty_pages: int = 0  # citations without a page
    pages: set[str] = field(default_factory=set)  # ids of the cited pages
    sources: set[str] = field(default_factory=set)  # ids of all cited sources
    everything: bool = False  # True: some question may search the whole store
    lost: dict[str, LostAt] = field(default_factory=dict)  # question id -> place of its loss, if wrong
    routing: Routing | None = None  # scores of routers and calls; None: not computed yet
    loss_notes: tuple[str, ...] = ()  # losses that cannot be located, for people
    prompt_injection: PromptInjection | None = None  # injected instructions; None: no language model answers
    replies: Counter[str] = field(default_factory=Counter)  # reply name -> language model replies in the memo
    cut: Counter[str] = field(default_factory=Counter)  # reply name -> replies cut at the length limit
    kept: dict[str, str] = field(default_factory=dict)  # question id -> earlier run that gave its answer

    def count_citations(self, question: Question) -> None:
        """Counts the citations of a question as asked, before any step narrowed them."""
        self.everything |= question.citations is None
        cited = question.citations or ()
        self.citations += len(cited)
        self.empty_pages += sum(c.page is None for c in cited)
        self.pages.update(c.page for c in cited if c.page)
        self.sources.update(s for c in cited for s in c.sources())

    def count_answer(
        self, answered: Question, prompts: Mapping[str, Mapping[str, Any]], states: bool
    ) -> None:
        """Counts the faults and replies of an answer by this recipe, and the reply that became the answer.
        `prompts` maps reply names to the columns of results.parquet on their prompts. If `states` is True,
        also keeps the confidence that the answer states."""
        self.faults.add(answered)
        if answered.origin:
            self.answered_by[answered.origin] += 1
        self.replies.update(prompts.keys())
        self.cut.update(name for name, p in prompts.items() if p["finish"] == "length")
        if states and answered.outcome == ANSWERED and answered.origin in answered.replies:
            self.stated[answered.id] = answered.replies[answered.origin].confidence


def collect(
    pipeline: Pipeline,
    questions: Iterable[Question],
    sources: AnswerSources,
    table: ResultTable,
    form: GoldForm,
    seconds: Mapping[str, Mapping[str, float]],
) -> CollectedAnswers:
    """Writes the answers into the table of results, in order. Returns the collected values.

    `sources` is the evidence that the questions may search. `form` is the form of the golds. `seconds` maps
    ids of questions that this run answered to the seconds of each stage. Of an answer kept from an earlier
    run, faults, origin, prompts, losses and calls are not collected. If the recipe has a language model,
    answers are checked for injected prompts. Raises KeyError if a passage has no text."""
    store, recipe = pipeline.store, pipeline.recipe
    found, index = CollectedAnswers(AnswerFaults(recipe)), LanceIndex(searched(store, recipe))
    found.kept = {id: key.kept for id, key in sources.kept_answers.items()}
    searching = {"": index}  # run that answered -> the index it searched; "": this run
    for past in filter(None, (find(store, id) for id in dict.fromkeys(found.kept.values()))):
        searching[past.run] = LanceIndex(searched_at(store.uri, description(past.recipe), past.tables))
    documents, roots, kit = layouts_at(store), folder_roots(store), LocalKit(index)
    lookup = PromptLookup(recipe, kit, lambda: StoreMemo(store.uri, memo_versions(store)))
    table.about["no_prompts"] = lookup.missing
    fits, routing = fits_of(recipe).values(), RoutingCheck(recipe)
    losses = RankingLossFinder(pipeline) if form == "grades" else LossFinder(pipeline, index, kit)
    if any(m.kind == "generator" for s in recipe.question for m in models_of(s.step)):
        found.prompt_injection = PromptInjection(0, 0)
    with asyncio.Runner() as loop:
        asked, questions = tee(questions)
        for pairs in batches(zip(asked, pipeline.answers(questions, sources), strict=True), AT_ONCE):
            batch = [answered for _, answered in pairs]
            own = [pair for pair in pairs if pair[0].id not in found.kept]
            golds = golds_of(store, [q.id for q in batch], form)
            seen = {q.id: has_seen(fits, q.text) for q in batch}
            text, paragraphs = loop.run(_texts(searching, batch, found.kept, form))
            layouts = layouts_of(documents, {h.source for q in batch for h in q.hits})
            prompts = {**{q.id: {} for q in batch}, **loop.run(lookup.of([q for _, q in own]))}
            for question, _ in pairs:
                found.count_citations(question)
            for _, q in own:
                found.count_answer(q, prompts[q.id], q.id in golds and not seen[q.id])
                if q.id in golds:
                    routing.add(q, golds[q.id])
            cut = {q.id for q in batch if prompts[q.id].get(q.origin, {}).get("finish") == "length"}
            _pair(store, batch, golds, form, found, paragraphs, cut)
            rows = []
            for asked_as, q in pairs:
                shown, gold = replace(q, text=asked_as.text), golds.get(q.id)
                sent = {**_turns_read(recipe, q, asked_as.text), **prompts[q.id]}
                took, of = _seconds(recipe, q, seconds.get(q.id)), paragraphs.get(q.id, ())
                kept = found.kept.get(q.id)
                rows.append(row(shown, gold, text, sent, layouts, seen[q.id], took, roots, of, kept))
            table.add(rows)
            found.lost |= loop.run(losses.of(own, golds))
            if found.prompt_injection is not None:
                found.prompt_injection += followed(([text[c] for c in q.order], q.answer) for _, q in own)
    found.routing = routing.found()
    found.lost |= losses.rest()
    found.loss_notes = tuple(losses.notes)
    return found


def _seconds(recipe: Recipe, q: Question, took: Mapping[str, float] | None) -> Mapping[str, float] | None:
    """Returns the seconds of only the stages whose gate admitted the question; None if `took` is None."""
    if took is None:
        return None
    let_in = {s.name for s in recipe.question if s.admits(q)}
    return {stage: s for stage, s in took.items() if stage in let_in}


def _turns_read(recipe: Recipe, question: Question, text: str) -> dict[str, dict[str, Any]]:
    """Returns reply name -> prompt, for the replies of steps that rewrite a question with earlier turns. The
    prompt has these turns, then the question as asked (`text`). Returns {} if the question has no turns."""
    into = [n for s in recipe.question if of_turns(s.step) for n in named(s.step.writes(), "replies")]
    said = [{"role": t.role, "content": t.text} for t in question.turns]
    return {n: {"prompt": [*said, {"role": "user", "content": text}]} for n in into if said}


def _pair(
    store: Store,
    batch: Sequence[Question],
    golds: Mapping[str, Gold],
    form: GoldForm,
    found: CollectedAnswers,
    paragraphs: Mapping[str, tuple[str, ...]],
    cut: Container[str],
) -> None:
    """Adds each answer with its gold to `found`, as a prediction to score. With form `grades`, predictions
    have ranked and judged documents. `cut` has the ids of questions whose answer hit the length limit."""
    if form != "grades":
        rows, without = pair(batch, golds, {})
        rows = [replace(r, evidence=paragraphs.get(r.question, ()), cut=r.question in cut) for r in rows]
    else:
        judged = [q for q in batch if q.id in golds and golds[q.id].grades]
        sources = {h.source for q in judged for h in q.hits}
        listed, rows = documents_of(store, sorted(sources)), []
        for q in judged:
            gold, scores = golds[q.id], ranked_documents(q, FINAL, listed, len(sources))
            best = None if q.outcome in ("", FAULT) else tuple(ranked(scores))
            rows.append(Prediction(q.id, answer_of(q), gold.answers, None, gold.labels, gold.grades, best))
        without = [q.id for q in batch if q not in judged]
    found.rows += rows
    found.without_truth += len(without)
    text = {q.id: q.text for q in batch}
    found.texts.update((r.question, text[r.question]) for r in rows)


async def _texts(
    searching: Mapping[str, Index], batch: Sequence[Question], kept: Mapping[str, str], form: GoldForm
) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Returns chunk id -> text for the table. For form `annotators`, also returns question id -> paragraphs
    of papers. Texts are read from the index that the answering run searched. `searching` maps run ids to
    indexes; "" is this run. `kept` maps question ids to earlier runs; other questions are of this run."""
    text, paragraphs = dict[str, str](), dict[str, tuple[str, ...]]()
    for run, index in searching.items():
        some = [q for q in batch if kept.get(q.id, "") == run]
        chunks = list(dict.fromkeys(c for q in some for c in needed_texts(q)))
        text |= zip(chunks, await index.texts(chunks), strict=True)
        if form == "annotators":
            paragraphs |= await _evidence_paragraphs(index, some)
    return text, paragraphs


async def _evidence_paragraphs(index: Index, batch: Sequence[Question]) -> dict[str, tuple[str, ...]]:
    """Maps question ids to the paragraphs that overlap the first quote of the answer, without headings. If
    the answer quotes nothing, the best passage of the ranking is used. Omits failed and abstained answers."""
    best: dict[str, Quote] = {}
    for q in batch:
        hits, quotes = {h.chunk: h for h in q.hits}, quotes_of(q)
        first = next((hits[c] for c in q.order if c in hits), None)
        if q.outcome not in ("", FAULT, ABSTAINED) and (quotes or first is not None):
            best[q.id] = quotes[0] if quotes or first is None else Quote(first.source, first.span)
    sources = list(dict.fromkeys(p.source for p in best.values()))
    texts = dict(zip(sources, await index.source_texts(sources), strict=True))
    blocks = dict(zip(sources, await index.blocks(sources), strict=True))
    return {
        id: tuple(
            (texts[p.source] or "")[b.start : b.end]
            for b in blocks[p.source]
            if b.start < p.span[1] and p.span[0] < b.end and b.kind not in HEADINGS
        )
        for id, p in best.items()
    }


_NOT_CACHED = Fault(STEP, "not_cached", "the memo holds no reply to this chat", transient=True)


class NoReplyKit(ForwardingKit[Kit]):
    """A kit (a step's access to models) whose language models return a fault for every chat."""

    def generator(self, model: Model) -> Generator:
        async def generate(
            chats: Sequence[Chat], sampling: Sampling, adapter: str | None = None
        ) -> list[Generated | Fault]:
            return [_NOT_CACHED] * len(chats)

        return generate


class PromptLookup:
    """Lookup of the prompts and token counts behind stored replies, without a call to a model. It runs each
    `generate` step on the stored question; the memo (the table of cached model calls) replaces the model. If
    the step makes the stored reply again, its chat is the prompt that was sent; else the prompt is unknown.
    `missing` is the reason why a step cannot be opened, such as a missing tokenizer; "" if all can."""

    def __init__(self, recipe: Recipe, kit: Kit, memo: Callable[[], Memo]) -> None:
        self.missing = ""
        self._stages: list[tuple[Stage[Step], Generate, ChatRecorder, Ask]] = []
        for stage in recipe.question:
            if not isinstance(step := stage.step, Generate):
                continue
            recorder = ChatRecorder(cached(NoReplyKit(kit), memo(), CallCounts()))
            try:
                ask = step.open(recorder)
            except (ConfError, ModelMissing) as e:
                self.missing = f"{stage.name}: {e}"
                continue
            self._stages.append((stage, step, recorder, ask))

    async def of(self, batch: Sequence[Question]) -> dict[str, dict[str, dict[str, Any]]]:
        """Returns question id -> reply name -> prompt and token counts, as columns of results.parquet."""
        found: dict[str, dict[str, dict[str, Any]]] = {q.id: {} for q in batch}
        for stage, step, recorder, ask in self._stages:
            into = step.into
            asked = [q for q in batch if into in q.replies and q.replies[into].label != SKIPPED]
            asked = [q for q in asked if stage.admits(q)]
            recorder.calls.clear()
            for question, made in zip(asked, await ask(asked) if asked else (), strict=True):
                chat, reply = recorder.calls[step.adapter.of(question)].pop(0)
                if isinstance(reply, Generated) and made.replies[into] == question.replies[into]:
                    found[question.id][into] = {
                        "prompt": [{"role": m.role, "content": m.content} for m in chat],
                        "prompt_tokens": reply.prompt_tokens,
                        "generated_tokens": reply.generated_tokens,
                        "finish": reply.finish,
                    }
        return found
