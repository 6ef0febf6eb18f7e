"""One question at a time, any number at once: a recipe over a store, or over documents of its own.

What the endpoint computes, as `run` computes it for a job: the same steps on a batch of one. Knows neither
HTTP nor Ray; where models compute is the kit's matter.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from raypipe import arrow
from raypipe.chat import Chat, Generate, Generated, Sampling
from raypipe.index import LanceIndex
from raypipe.knowledge import Facts, FactsRef, Graph, GraphRef
from raypipe.memo import Memo, Tally
from raypipe.pipeline import searched
from raypipe.recipe import Recipe
from raypipe.records import Fault, Question, Source, Span
from raypipe.release import Release
from raypipe.report.report import ranking, urls
from raypipe.request import SharedKit, answer_over
from raypipe.run import Corpora, Questions, StageCount
from raypipe.step import Embed, Index, Model, Score, Tokenize
from raypipe.store import Store, StoreError


class NotReady(Exception):
    """What is needed to answer is not here now. The message is for the log: it names places."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    question: Question
    sources: tuple[Source, ...] | None = None  # documents of its own; None: it is asked of the store
    faults: tuple[Fault, ...] = ()  # of pages that could not be read
    prompts: bool = False  # whether what language models were asked is wanted


@dataclass(frozen=True, slots=True)
class Evidence:
    """One quote that the answer rests on."""

    source: str  # source id
    chunk: str | None  # the best-ranked passage that holds it whole; None: no passage does
    url: str | None  # of the best-ranked citation of its source; None: no citation brought it
    quote: str  # the source's parsed text at `span`
    span: Span
    scores: Mapping[str, float]  # of the passage, by ranker


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of one request."""

    question: Question
    evidence: tuple[Evidence, ...]  # best first; of the reply that is the answer
    faults: tuple[Fault, ...]  # of its pages
    recipe: str  # digest
    models: Mapping[str, str]  # name -> identity of the weights
    timings_ms: Mapping[str, float]  # wall time by stage, "documents" for its own, and "total"
    prompts: tuple[Chat, ...]  # every chat that a language model was asked, in order, where that was wanted
    usage: Mapping[str, int]  # texts embedded, pairs scored, chats answered, and the tokens of these
    index: Index  # what was searched
    release: str | None  # id


class Overhearing:
    """A kit that notes every chat that a language model is asked."""

    def __init__(self, kit: SharedKit, heard: list[Chat]) -> None:
        self._kit, self._heard = kit, heard

    def with_index(self, index: Index) -> Overhearing:
        return Overhearing(self._kit.with_index(index), self._heard)

    def embedder(self, model: Model) -> Embed:
        return self._kit.embedder(model)

    def reranker(self, model: Model) -> Score:
        return self._kit.reranker(model)

    def tokenizer(self, model: Model) -> Tokenize:
        return self._kit.tokenizer(model)

    def index(self) -> Index:
        return self._kit.index()

    def graph(self, ref: GraphRef) -> Graph:
        return self._kit.graph(ref)

    def facts(self, ref: FactsRef) -> Facts:
        return self._kit.facts(ref)

    def generator(self, model: Model) -> Generate:
        generate = self._kit.generator(model)

        async def ask(
            chats: Sequence[Chat], sampling: Sampling, adapter: str | None = None
        ) -> list[Generated | Fault]:
            self._heard.extend(chats)
            return await generate(chats, sampling, adapter)

        return ask


class Online:
    """A recipe, ready for requests over one store. Tables are opened when they are first needed and stay as
    they were then: later commits do not show. With `memo`, what a model was asked before about the store is
    not asked again. With `release` its tables are searched, at its versions."""

    def __init__(
        self, recipe: Recipe, kit: SharedKit, store: str, memo: Memo | None = None,
        release: Release | None = None,
    ) -> None:  # fmt: skip
        self._recipe, self._kit, self._uri = recipe, kit, store
        self._memo, self._release = memo, release
        self._digest = recipe.digest()
        self._models = {m.name: m.weights for m in recipe.models()}
        self._asking = {stage.name for stage in recipe.question}
        self._parser = Corpora(recipe, kit)
        self._snapshot: Snapshot | None = None
        self._opening = asyncio.Lock()

    async def ready(self) -> None:
        """Returns once a question can be asked of the store. Raises NotReady."""
        await self._open()

    async def answer(self, asked: Asked) -> Answered:
        """The question, answered. Raises NotReady, and what a step raises: that is a defect."""
        start, heard = time.perf_counter(), list[Chat]()
        kit = Overhearing(self._kit, heard) if asked.prompts else self._kit
        if asked.sources is None:
            snapshot = await self._open()
            question = await asyncio.to_thread(snapshot.known, asked.question)
            # Opened for this request alone: it counts.
            ask = Questions(self._recipe, kit.with_index(snapshot.index), self._memo)
            [answered] = await ask([question])
            evidence = await _evidence(answered, snapshot.index)
            return self._done(answered, evidence, (), ask.counts, {}, heard, start, snapshot.index)
        over = await answer_over(self._recipe, kit, asked.question, asked.sources, self._parser)
        evidence = await _evidence(over.question, over.index)
        asking = sum(c.seconds for name, c in over.counts.items() if name in self._asking)
        documents = {"documents": time.perf_counter() - start - asking}
        faults = asked.faults + over.faults
        return self._done(over.question, evidence, faults, over.counts, documents, heard, start, over.index)

    def _done(
        self,
        question: Question,
        evidence: tuple[Evidence, ...],
        faults: tuple[Fault, ...],
        counts: Mapping[str, StageCount],
        seconds: Mapping[str, float],  # by what is no stage of the question half
        heard: Sequence[Chat],
        start: float,
        index: Index,
    ) -> Answered:
        used = Tally()
        for count in counts.values():
            used.add(count.tally)
        stages = {name: c.seconds for name, c in counts.items() if name in self._asking}
        whole = {**seconds, **stages, "total": time.perf_counter() - start}
        timings = {name: round(s * 1000, 1) for name, s in whole.items()}
        release = self._release.id if self._release else None
        return Answered(
            question, evidence, faults, self._digest, self._models, timings, tuple(heard), _usage(used),
            index, release,
        )  # fmt: skip

    async def _open(self) -> Snapshot:
        async with self._opening:
            if self._snapshot is None:
                try:
                    self._snapshot = await asyncio.to_thread(Snapshot, self._recipe, self._uri, self._release)
                except StoreError as e:
                    raise NotReady(str(e)) from e
            return self._snapshot


def _usage(used: Tally) -> dict[str, int]:
    tokens = used.tokens
    return {
        "embedded": used.vectors.asked,
        "scored": used.scores.asked,
        "chats": used.replies.asked,
        "prompt_tokens": tokens.prompt,
        "cached_tokens": tokens.cached,
        "generated_tokens": tokens.generated,
    }


class Snapshot:
    """A store at one moment: what can be searched in it, and the questions that it knows."""

    def __init__(self, recipe: Recipe, uri: str, release: Release | None) -> None:
        """Raises StoreError if the store, a table of the recipe or an index of one is not there."""
        self._store = Store.open(uri)
        self.index = LanceIndex(release.opened(self._store)[1] if release else searched(self._store, recipe))

    def known(self, question: Question) -> Question:
        """The stored question with this id or these words, which has pages of its own; else the question as
        it is, about the whole store. A time that is given counts more than the stored one."""
        for column in ("id", "text"):
            found = arrow.question.records(self._store.rows("questions", column, [question.text]))
            if found:
                first = min(found, key=lambda q: q.id)
                return replace(first, asked_at=question.asked_at or first.asked_at)
        return question


async def _evidence(question: Question, index: Index) -> tuple[Evidence, ...]:
    """The quotes of the reply that is the answer, with their text; an abstention has none."""
    said = question.replies.get(question.origin)
    quotes = said.quotes if said else ()
    texts = await index.source_texts([q.source for q in quotes])
    hits, url = ranking(question), urls(question)
    found = []
    for quote, text in zip(quotes, texts, strict=True):
        if text is None:
            raise AssertionError(f"{question.origin} quotes source {quote.source}, which was not searched")
        start, end = quote.span
        holds = (h for h in hits if h.source == quote.source and h.span[0] <= start and end <= h.span[1])
        hit = next(holds, None)
        found.append(
            Evidence(
                quote.source, hit.chunk if hit else None, url.get(quote.source), text[start:end], quote.span,
                dict(hit.scores) if hit else {},
            )
        )  # fmt: skip
    return tuple(found)
