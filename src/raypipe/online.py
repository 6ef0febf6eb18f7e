"""One question at a time, any number at once: a recipe over a store, or over the pages that a request brings.

What the endpoint computes, as `run` computes it for a job: the same steps on a batch of one. Knows neither
HTTP nor Ray; where models compute is the kit's matter.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from raypipe import arrow
from raypipe.identity import model_identity
from raypipe.index import LanceIndex, MemoryIndex, index_spec
from raypipe.memo import Tally
from raypipe.recipe import Recipe
from raypipe.records import Fault, Question, Source, Span
from raypipe.report.report import ranking, urls
from raypipe.run import Corpora, Questions, fine
from raypipe.step import Index, Kit
from raypipe.store import Store, StoreError

T = TypeVar("T")


class NotReady(Exception):
    """What is needed to answer is not here now. The message is for the log: it names places."""


class SharedKit(Kit, Protocol):
    """A kit whose models serve many requests, each with an index of its own."""

    def with_index(self, index: Index) -> Kit: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    question: Question
    sources: tuple[Source, ...] | None = None  # the pages it brings; None: it is asked of the store
    faults: tuple[Fault, ...] = ()  # of pages that could not be read


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
    timings_ms: Mapping[str, float]  # wall time by stage, "documents" for the pages it brought, and "total"
    embedded: int  # texts that a model was asked to embed
    scored: int  # pairs that a model was asked to score


class Online:
    """A recipe, ready for requests over one store. Tables are opened when they are first needed and stay as
    they were then: later commits do not show."""

    def __init__(self, recipe: Recipe, kit: SharedKit, store: str) -> None:
        self._recipe, self._kit, self._uri = recipe, kit, store
        self._digest = recipe.digest()
        self._models = {m.name: m.weights for m in recipe.models()}
        self._pages = Corpora(recipe, kit)  # keeps the parser's child process
        self._searched: Searched | None = None
        self._opening = asyncio.Lock()

    async def ready(self) -> None:
        """Returns once a question can be asked of the store. Raises NotReady."""
        await self._open()

    async def answer(self, asked: Asked) -> Answered:
        """The question, answered. Raises NotReady, and what a step raises: that is a defect."""
        start = time.perf_counter()
        timings: dict[str, float] = {}
        used, lost = Tally(), asked.faults
        if asked.sources is None:
            searched = await self._open()
            question = await asyncio.to_thread(searched.known, asked.question)
            index: Index = searched.index
        else:
            question = asked.question
            index, unread = await self._brought(asked.sources, used)
            lost += unread
            timings["documents"] = _ms(start)
        ask = Questions(self._recipe, self._kit.with_index(index))  # its own: it counts this request alone
        [answered] = await ask([question])
        for name, count in ask.counts.items():
            timings[name] = round(count.seconds * 1000, 1)
            used.add(count.tally)
        evidence = await _evidence(answered, index)
        timings["total"] = _ms(start)
        asked_models = used.vectors.asked, used.scores.asked
        return Answered(answered, evidence, lost, self._digest, self._models, timings, *asked_models)

    async def _open(self) -> Searched:
        async with self._opening:
            if self._searched is None:
                try:
                    self._searched = await asyncio.to_thread(Searched, self._recipe, self._uri)
                except StoreError as e:
                    raise NotReady(str(e)) from e
            return self._searched

    async def _brought(self, sources: Sequence[Source], used: Tally) -> tuple[Index, tuple[Fault, ...]]:
        """An index over a request's own pages, and why some are not in it."""
        # Tokenising fifty pages takes a second of this process: on a thread with a loop of its own, so that
        # other requests go on.
        texts, chunks = await asyncio.to_thread(_alone, self._split(arrow.corpus_table(sources)))
        embed = Corpora(self._recipe, self._kit)  # its own: it counts this request alone
        vectors = {m: await embed.vectors(chunks, m) for m in self._recipe.embedders()}
        for count in embed.counts.values():
            used.add(count.tally)
        index = MemoryIndex(
            fine(texts), fine(chunks), {model_identity(m): fine(table) for m, table in vectors.items()}
        )
        return index, _faults([chunks, *vectors.values()])

    async def _split(self, sources: pa.Table) -> tuple[pa.Table, pa.Table]:
        texts = await self._pages.texts(sources)
        return texts, await self._pages.passages(texts)


class Searched:
    """A store at one moment: what can be searched in it, and the questions that it knows."""

    def __init__(self, recipe: Recipe, uri: str) -> None:
        """Raises StoreError if the store, a table of the recipe or an index of one is not there."""
        self._store = Store.open(uri)
        vectors = {model_identity(m): f"vectors-{recipe.vectors_digest(m)}" for m in recipe.embedders()}
        texts, passages = f"texts-{recipe.texts_digest()}", f"passages-{recipe.passages_digest()}"
        self.index = LanceIndex(index_spec(self._store, texts, passages, vectors))

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


def _faults(tables: Sequence[pa.Table]) -> tuple[Fault, ...]:
    """Why some sources are not whole: the first fault of each."""
    first: dict[str, Fault] = {}
    for table in tables:
        for row in table.filter(pc.is_valid(table["fault"])).select(["source", "fault"]).to_pylist():
            first.setdefault(row["source"], Fault(**row["fault"]))
    return tuple(first.values())


def _alone(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end in this thread."""
    return asyncio.run(work)


def _ms(start: float) -> float:
    return round((time.perf_counter() - start) * 1000, 1)
