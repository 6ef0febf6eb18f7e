"""One question at a time, any number at once: a recipe over a store, or over documents of its own.

What the endpoint computes, as `run` computes it for a job: the same steps on a batch of one. Knows neither
HTTP nor Ray; where models compute is the kit's matter.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from raypipe.core import arrow
from raypipe.core.errors import Unavailable
from raypipe.core.llm import Chat
from raypipe.core.protocols import Index
from raypipe.core.records import IDK, Fault, Hit, Question, Quote, Source, Span
from raypipe.memo.memo import CallCounts, Memo
from raypipe.models.kit import held
from raypipe.pipeline.driver import searched
from raypipe.recipes.deadlines import DegradePolicy
from raypipe.recipes.executor import CorpusExecutor, QuestionExecutor, StageCounters
from raypipe.recipes.recipe import Recipe, ranking_of
from raypipe.report.report import ranking, urls
from raypipe.runs.release import Release
from raypipe.serving.filters import CitationCatalog, Filters, narrow
from raypipe.serving.recording_kit import PromptRecorder
from raypipe.serving.request import SharedKit, answer_over
from raypipe.store import Reading, Store, StoreError
from raypipe.store.index import LanceIndex

log = logging.getLogger("raypipe.serving.answerer")

AROUND = 300
"""Characters of a page that are shown before and after a quote: two or three sentences."""


GRACE_S = 0.1
"""Beyond the deadline, for reading the evidence of an answer that was decided in time: some milliseconds."""


class NotReady(Unavailable):
    """What is needed to answer is not here now. The message is for the log: it names places."""


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """One request. Its deadline is `Question.due`."""

    question: Question
    sources: tuple[Source, ...] | None = None  # documents of its own; None: it is asked of the store
    faults: tuple[Fault, ...] = ()  # of pages that could not be read
    filters: Filters = field(default_factory=Filters)  # what of its sources may be searched
    prompts: bool = False  # whether what language models were asked is wanted
    passages: bool = False  # whether the texts of its ranking are


class Listener(Protocol):
    """Who listens while a question is answered."""

    def stage(self, stage: str, seconds: float | None) -> None: ...
    def draft(self, piece: str) -> None: ...


class NullListener:
    """Nobody listens."""

    def stage(self, stage: str, seconds: float | None) -> None:
        """Nothing."""

    def draft(self, piece: str) -> None:
        """Nothing."""


NULL_LISTENER = NullListener()


@dataclass(frozen=True, slots=True)
class Evidence:
    """One quote that the answer rests on."""

    source: str  # source id
    chunk: str | None  # the best-ranked passage that holds it whole; None: no passage does
    url: str | None  # of the best-ranked citation of its source; None: no citation brought it
    quote: str  # the source's parsed text at `span`
    span: Span
    scores: Mapping[str, float]  # of the passage, by ranker
    before: str  # up to AROUND characters of the parsed text before the quote
    after: str  # and after it


@dataclass(frozen=True, slots=True)
class RankedPassage:
    """One passage of a ranking."""

    hit: Hit
    url: str | None
    text: str


@dataclass(frozen=True, slots=True)
class QueryResult:
    """What became of one request."""

    question: Question
    evidence: tuple[Evidence, ...]  # best first; of the reply that is the answer
    faults: tuple[Fault, ...]  # of its pages
    recipe: str  # digest
    models: Mapping[str, str]  # name -> identity of the weights
    release: str | None  # the release that was asked; None: a recipe that was named
    url: Mapping[str, str]  # of each source that a hit or a quote names, where it is known
    timings_ms: Mapping[str, float]  # wall time by stage, "documents" for its own, and "total"
    usage: Mapping[str, int]  # texts embedded, pairs scored, chats answered, and the tokens of these
    prompts: tuple[Chat, ...]  # every chat that a language model was asked, in order, where that was wanted
    passages: tuple[
        RankedPassage, ...
    ] = ()  # the ranking with its texts, best first; () where nobody asked for it


class Answerer:
    """A recipe, ready for requests over one store. Tables are opened when they are first needed and stay as
    they were then: later commits do not show. With `memo`, what a model was asked before about the store is
    not asked again. With `release` its tables are searched, at its versions. `rules` are for what is away."""

    def __init__(
        self, recipe: Recipe, kit: SharedKit, store: str, memo: Memo | None = None,
        release: Release | None = None, rules: DegradePolicy | None = None,
    ) -> None:  # fmt: skip
        self.recipe, self.release = recipe, release.id if release else None
        self._kit, self._memo, self._rules = kit, memo, rules
        self._digest = recipe.digest()
        self._models = {m.name: m.weights for m in recipe.models()}
        self._asking = {stage.name for stage in recipe.question}
        self._parser = CorpusExecutor(recipe, kit)
        self._make = lambda: StoreSnapshot(recipe, store, release)
        self._snapshot: StoreSnapshot | None = None
        self._opening = asyncio.Lock()

    async def current(self) -> Answerer:
        """Itself: a recipe that was named does not change."""
        return self

    async def ready(self) -> list[str]:
        """Returns once a question can be asked of the store, with what is away meanwhile and will be left
        out. Raises NotReady."""
        await self.opened()
        return await self._kit.away()

    async def check(self) -> None:
        """Returns once its models are loaded. Raises NotReady, Unavailable or Overloaded where one is away
        now, and ConfError or ModelMissing for a step that the models here cannot do."""
        kit = self._kit.with_index((await self.opened()).index)
        QuestionExecutor(self.recipe, kit, rules=self._rules)
        await held(kit, self.recipe.models())

    async def answer(self, asked: QueryRequest, heard: Listener = NULL_LISTENER) -> QueryResult:
        """The question, answered in its time. Raises NotReady, Unavailable where nothing can be left out,
        Overloaded, and what a step raises: that is a defect."""
        return await self._in_time(self.recipe, asked, heard)

    async def retrieve(self, asked: QueryRequest, heard: Listener = NULL_LISTENER) -> QueryResult:
        """The question's ranking with its texts; no answer. Raises as `answer`, and ConfError for a recipe
        that ranks nothing."""
        return await self._in_time(ranking_of(self.recipe), replace(asked, passages=True), heard)

    async def _in_time(self, recipe: Recipe, asked: QueryRequest, heard: Listener) -> QueryResult:
        start, due = time.perf_counter(), asked.question.due
        left = None if due is None else max(0.0, due - time.time()) + GRACE_S
        try:
            async with asyncio.timeout(left) as limit:
                return await self._asked(recipe, asked, heard, start)
        except TimeoutError:
            if not limit.expired():
                raise
        # Stages keep to their shares; what is left is opening tables, and the pages that a request brings.
        what = "store" if asked.sources is None else "documents"
        late = Fault(what, "late", "the question's time was over before it could be searched", transient=True)
        question = replace(asked.question, answer=IDK, outcome="abstained", degraded=(what,), faults=(late,))
        return await self._done(question, None, asked, start)

    async def _asked(self, recipe: Recipe, asked: QueryRequest, heard: Listener, start: float) -> QueryResult:
        chats = list[Chat]()
        kit = self._kit.with_sink(heard.draft)
        kit = PromptRecorder(kit, chats) if asked.prompts else kit
        if asked.sources is None:
            snapshot = await self.opened()
            question = await asyncio.to_thread(snapshot.known, asked.question, asked.filters)
            counted = kit.with_index(snapshot.index)  # counts this request alone
            ask = QuestionExecutor(recipe, counted, self._memo, self._rules, heard.stage)
            [answered] = await ask([question])
            return await self._done(answered, snapshot, asked, start, ask.counts, chats=chats)
        question = narrow(asked.question, asked.filters)
        over = await answer_over(recipe, kit, question, asked.sources, self._parser, self._rules, heard.stage)
        asking = sum(c.seconds for name, c in over.counts.items() if name in self._asking)
        documents = {"documents": time.perf_counter() - start - asking}
        return await self._done(over.question, over, asked, start, over.counts, documents, chats, over.faults)

    async def _done(
        self,
        answered: Question,
        over: Searched | None,  # None: it came to nothing before anything was searched
        asked: QueryRequest,
        start: float,
        counts: Mapping[str, StageCounters] = {},
        seconds: Mapping[str, float] = {},  # by what is no stage of the question half
        chats: Sequence[Chat] = (),
        faults: tuple[Fault, ...] = (),  # of its pages, beside those that `asked` brought
    ) -> QueryResult:
        evidence: tuple[Evidence, ...] = ()
        shown: tuple[RankedPassage, ...] = ()
        url = urls(answered)
        if over is not None:
            if answered.citations is None and isinstance(over, StoreSnapshot):
                named = {h.source for h in answered.hits} | {q.source for q in _quotes(answered)}
                url = await asyncio.to_thread(over.urls, named)
            evidence = await _evidence(answered, over.index, url)
            shown = await _passages(answered, over.index, url) if asked.passages else ()
        used = CallCounts()
        for count in counts.values():
            used.add(count.calls)
        stages = {name: c.seconds for name, c in counts.items() if name in self._asking}
        whole = {**seconds, **stages, "total": time.perf_counter() - start}
        timings = {name: round(s * 1000, 1) for name, s in whole.items()}
        return QueryResult(
            answered, evidence, asked.faults + faults, self._digest, self._models, self.release, url, timings,
            _usage(used), tuple(chats), shown,
        )  # fmt: skip

    async def opened(self) -> StoreSnapshot:
        """The tables. Raises NotReady."""
        async with self._opening:
            if self._snapshot is None:
                try:
                    self._snapshot = await asyncio.to_thread(self._make)
                except StoreError as e:
                    raise NotReady(str(e)) from e
            return self._snapshot


def _usage(used: CallCounts) -> dict[str, int]:
    tokens = used.tokens
    return {
        "embedded": used.vectors.computed,
        "scored": used.scores.computed,
        "chats": used.replies.computed,
        "prompt_tokens": tokens.prompt,
        "cached_tokens": tokens.cached,
        "generated_tokens": tokens.generated,
    }


class Searched(Protocol):
    """Something with an index that a question was asked of."""

    @property
    def index(self) -> Index: ...


class StoreSnapshot:
    """A store at one moment: what can be searched in it, and the questions that it knows.

    The tables of a release are protected by its tags. Any others are protected by a sign that this process
    reads them, for as long as this object lives; on a store that it may not write it reads without.
    """

    def __init__(self, recipe: Recipe, uri: str, release: Release | None) -> None:
        """Raises StoreError if the store, a table of the recipe or an index of one is not there."""
        self._store = Store.open(uri)
        self.spec = release.opened(self._store)[1] if release else searched(self._store, recipe)
        if release is None:
            self._protect(f"questions to {recipe.name}")
        self.index = LanceIndex(self.spec)
        self._catalogue = CitationCatalog(self._store)

    def _protect(self, owner: str) -> None:
        """Before the tables are opened: one that was dropped till then is found missing there."""
        reads = {p.table: p.version for p in self.spec.pinned()}
        reading = Reading(self._store.files, owner, reads)
        try:
            reading.begin()
        except OSError as e:
            log.warning("no lease on what is read at %s, it cannot be written: %s", self._store.uri, e)
        else:
            weakref.finalize(self, reading.end)

    def known(self, question: Question, filters: Filters) -> Question:
        """The stored question with this id or these words, which has pages of its own; else the question as
        it is, about the whole store. A time that is given counts more than the stored one."""
        for column in ("id", "text"):
            found = arrow.question.records(self._store.rows("questions", column, [question.text]))
            if found:
                first = min(found, key=lambda q: q.id)
                asked_at = question.asked_at or first.asked_at
                question = replace(first, asked_at=asked_at, due=question.due)
                break
        if question.citations is None and filters:
            question = replace(question, citations=self._catalogue.citations(question.id, filters))
        return narrow(question, filters)

    def urls(self, sources: set[str]) -> dict[str, str]:
        """Where these sources came from, as far as any stored question says."""
        return self._catalogue.urls(sources)

    def rows(self) -> dict[str, int]:
        """Rows of each table that is searched, by what it holds."""
        pinned = {"texts": self.spec.texts, "passages": self.spec.passages}
        pinned |= {f"vectors:{identity}": p for identity, p in self.spec.vectors}
        return {name: self._store.dataset(p.table, p.version).count_rows() for name, p in pinned.items()}


def _quotes(question: Question) -> tuple[Quote, ...]:
    """The evidence of the reply that is the answer; an abstention has none."""
    said = question.replies.get(question.origin)
    return said.quotes if said else ()


async def _evidence(question: Question, index: Index, url: Mapping[str, str]) -> tuple[Evidence, ...]:
    """The quotes with their text."""
    quotes = _quotes(question)
    texts = await index.source_texts([q.source for q in quotes])
    hits = ranking(question)
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
                dict(hit.scores) if hit else {}, text[max(0, start - AROUND) : start],
                text[end : end + AROUND],
            )
        )  # fmt: skip
    return tuple(found)


async def _passages(question: Question, index: Index, url: Mapping[str, str]) -> tuple[RankedPassage, ...]:
    """The ranking with its texts, best first."""
    chosen = set(question.order)
    hits = [h for h in ranking(question) if h.chunk in chosen]
    texts = await index.texts([h.chunk for h in hits])
    return tuple(RankedPassage(h, url.get(h.source), t) for h, t in zip(hits, texts, strict=True))
