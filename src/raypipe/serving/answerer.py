"""Answering of single questions, any number concurrently: a recipe over a store or a request's documents.

A request runs the same steps as a job (`recipes.executor`), on a batch of one. The module depends neither on
HTTP nor on Ray; the kit decides where models compute.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

import numpy as np

from raypipe.core.errors import Unavailable
from raypipe.core.index import Index
from raypipe.core.llm import Chat
from raypipe.core.records import (
    IDK,
    Citation,
    Fault,
    Question,
    Quote,
    Source,
    digest,
    other_values,
    parse_chunk_id,
    quotes_of,
    ranking,
    source_id,
    urls,
)
from raypipe.models.kit import warm_up
from raypipe.recipes.executor import CorpusExecutor, QuestionExecutor, StageCounters
from raypipe.recipes.recipe import Recipe, ranking_of
from raypipe.runs.release import Release
from raypipe.serving.documents import DocumentsResult, answer_over_documents
from raypipe.serving.query import (
    NULL_LISTENER,
    Evidence,
    Listener,
    QueryRequest,
    QueryResult,
    RankedPassage,
    SourcePlaces,
)
from raypipe.serving.serve_kit import PromptRecorder, SharedKit, WithoutGenerators
from raypipe.serving.store_snapshot import StoreSnapshot
from raypipe.store import StoreError
from raypipe.store.fields import SourceFields
from raypipe.store.memo.cached import CallCounts
from raypipe.store.memo.memo import Memo, MemoTable, Values
from raypipe.text.context import context, heading_sections, lined

CONTEXT_CHARS = 300
"""Most characters of a page shown before a quote, and after it: two or three sentences each."""

Texts: TypeAlias = Mapping[str, tuple[str, str]]
"""Source -> its parsed text, and this text with one line per block if blocks were read."""

GRACE_S = 0.1
"""Seconds beyond the deadline for reading the evidence of a timely answer, which takes some milliseconds."""

_READY = "<p>The page is ready since 9 May 2024.</p>"  # the page for the question of `Answerer.warm`


class NotReady(Unavailable):
    """Error of a store that lacks something, such as tables. Its message has paths: only the log shows it."""


class Answerer:
    """A recipe, ready for requests over one store.

    The first use opens the tables; later commits stay invisible until `reopen`. `memo` caches model calls of
    questions over the store. `release` names the table versions to search; None means the newest. If
    `degrades` is true, a stage whose model is unavailable is omitted; else Unavailable is raised.
    """

    def __init__(
        self,
        recipe: Recipe,
        kit: SharedKit,
        store: str,
        memo: Memo | None = None,
        release: Release | None = None,
        degrades: bool = False,
    ) -> None:
        self.recipe, self.release = recipe, release.id if release else None
        self._kit, self._memo, self._degrades = kit, memo, degrades
        self._digest = recipe.digest()
        self._models = {m.name: m.weights for m in recipe.models()}
        self._parser = CorpusExecutor(recipe, kit)
        self._open_snapshot = lambda: StoreSnapshot(recipe, store, release)
        self._snapshot: StoreSnapshot | None = None
        self._snapshot_lock = asyncio.Lock()

    async def current(self) -> Answerer:
        """Returns itself, since this answerer's recipe does not change. Implements `ReleaseRouter`."""
        return self

    async def ready(self) -> list[str]:
        """Checks that the store can be searched. Returns the unavailable deployments, whose stages are
        omitted now. Raises NotReady, and StoreError or Unavailable if the store is gone or out of reach."""
        await asyncio.to_thread((await self.snapshot()).require_store)
        return await self._kit.unavailable()

    async def check(self) -> None:
        """Checks that the recipe can run: its conditions fit the store's fields, and its models load. Raises
        NotReady; Unavailable or Overloaded if a model is unavailable now; ModelMissing or ConfError if a step
        cannot run with these models; and ConfError if a condition does not fit."""
        index = (await self.snapshot()).index
        for where in self.recipe.conditions().values():
            (await asyncio.to_thread(index.fields)).check(where)
        kit = self._kit.with_index(index)
        QuestionExecutor(self.recipe, kit, degrades=self._degrades)
        await warm_up(kit, self.recipe.models())

    async def warm(self, within_s: float) -> None:
        """Answers two questions without language models, so that no user waits for imports, processes and
        tables. The first question brings its own page. The second is a stored question, searched over the
        store; if none is stored, it repeats the text of the first. Raises as `answer` does."""
        other = copy.copy(self)
        other._kit, other._memo, other._degrades = WithoutGenerators(self._kit), None, True
        asked = Question(digest("warm"), "when is the page ready?", due=time.time() + within_s)
        page = Source(source_id("page", _READY), "page", _READY)
        citations = (Citation(asked.id, 0, "", "", page.id, None, None),)
        await other.answer(QueryRequest(replace(asked, citations=citations), (page,)))
        other._snapshot = snapshot = await self.snapshot()
        stored = await asyncio.to_thread(snapshot.examples)
        await other.answer(QueryRequest(replace(asked, text=stored[0] if stored else asked.text)))

    async def answer(self, request: QueryRequest, listener: Listener = NULL_LISTENER) -> QueryResult:
        """Answers the question by its deadline, if it has one. Raises NotReady; Overloaded; Unavailable if a
        model is unavailable and its stage cannot be omitted; and ConditionError if a filter does not fit the
        fields of the sources. Any other exception of a step is a defect."""
        return await self._by_deadline(self.recipe, request, listener)

    async def retrieve(self, request: QueryRequest) -> QueryResult:
        """Ranks passages and returns them with their texts, without an answer. Raises as `answer` does, and
        ConfError for a recipe that ranks nothing."""
        request = replace(request, include_passages=True)
        return await self._by_deadline(ranking_of(self.recipe), request, NULL_LISTENER)

    async def _by_deadline(self, recipe: Recipe, request: QueryRequest, listener: Listener) -> QueryResult:
        start, due = time.perf_counter(), request.question.due
        left = None if due is None else max(0.0, due - time.time()) + GRACE_S
        try:
            async with asyncio.timeout(left) as limit:
                return await self._run(recipe, request, listener, start)
        except TimeoutError:
            if not limit.expired():
                raise
        # Stages stop in time by themselves, so the time went to opening tables or to the request's documents.
        stage = "store" if request.sources is None else "documents"
        late = Fault(stage, "late", "the question's deadline passed before it could be searched", True)
        question = replace(
            request.question, answer=IDK, outcome="abstained", degraded=(stage,), faults=(late,)
        )
        return await self._result(question, None, request, start, {})

    async def _run(
        self, recipe: Recipe, request: QueryRequest, listener: Listener, start: float
    ) -> QueryResult:
        prompts = list[Chat]()
        kit = self._kit.with_sink(listener.on_draft)
        kit = PromptRecorder(kit, prompts) if request.include_prompts else kit
        over: StoreSnapshot | DocumentsResult
        if request.sources is None:
            over = await self.snapshot()
            filters = request.filters, request.key_filter
            question = await asyncio.to_thread(over.resolve, request.question, *filters)
            counting = kit.with_index(over.index)  # the executor below counts this request's calls
            memo = None if request.include_prompts else self._memo  # a cached reply shows no prompt
            if memo is not None and request.corpus:
                memo = CorpusMemo(memo, request.corpus)
            execute = QuestionExecutor(recipe, counting, memo, self._degrades, listener.on_stage)
            [answered] = await execute([question])
            counts: Mapping[str, StageCounters] = execute.counts
        else:
            cited = request.question.citations or ()
            given = SourceFields.of(cited)
            given.check(request.filters.where)
            question = replace(request.question, citations=given.narrowed(cited, request.filters))
            over = await answer_over_documents(
                recipe, kit, question, request.sources, self._parser, self._degrades, listener.on_stage
            )
            answered, counts = over.question, over.counts
        result = await self._result(answered, over, request, start, counts)
        return replace(result, asked=question, prompts=tuple(prompts))

    async def _result(
        self,
        answered: Question,
        over: StoreSnapshot | DocumentsResult | None,
        request: QueryRequest,
        start: float,
        counts: Mapping[str, StageCounters],
    ) -> QueryResult:
        """Builds the result. If `over` is None, time ran out before anything was searched."""
        took = time.perf_counter() - start
        stages = {s.name: counts[s.name].seconds for s in self.recipe.question if s.name in counts}
        faults, seconds = request.faults, stages
        if isinstance(over, DocumentsResult):
            faults += over.faults
            seconds = {"documents": took - sum(stages.values()), **stages}
        evidence, others = tuple[Evidence, ...](), tuple[Evidence, ...]()
        passages, places = tuple[RankedPassage, ...](), SourcePlaces(urls(answered), {})
        if isinstance(over, StoreSnapshot):
            places = await _places(answered, over, bool(request.key_filter))
        if over is not None:
            texts = await _texts(answered, over.index, request.include_passages)
            evidence = _evidence(answered, quotes_of(answered), texts, places)
            others = _evidence(answered, other_values(answered), texts, places)
            if request.include_passages:
                passages = _passages(answered, texts, places)
        used = CallCounts()
        for count in counts.values():
            used.add(count.calls)
        usage = {
            "embedded": used.vectors.computed,
            "scored": used.scores.computed,
            "chats": used.replies.computed,
            "prompt_tokens": used.tokens.prompt,
            "cached_tokens": used.tokens.cached,
            "generated_tokens": used.tokens.generated,
        }
        wall = {**seconds, "total": time.perf_counter() - start}
        timings = {name: round(s * 1000, 1) for name, s in wall.items()}
        return QueryResult(
            answered,
            evidence,
            faults,
            self._digest,
            self._models,
            self.release,
            places,
            timings,
            usage,
            (),
            passages,
            others,
        )

    async def snapshot(self) -> StoreSnapshot:
        async with self._snapshot_lock:
            if self._snapshot is None:
                self._snapshot = await self._opened()
            return self._snapshot

    async def reopen(self) -> None:
        """Opens the newest tables for later requests; requests in flight keep theirs. Raises NotReady."""
        self._snapshot = await self._opened()

    async def _opened(self) -> StoreSnapshot:
        try:
            return await asyncio.to_thread(self._open_snapshot)
        except StoreError as e:
            raise NotReady(str(e)) from e


class ReleaseRouter(Protocol):
    """Interface that chooses an answerer for each request. The chosen answerer answers the whole request."""

    async def current(self) -> Answerer: ...


async def _places(answered: Question, over: StoreSnapshot, only_cited: bool) -> SourcePlaces:
    """Collects the urls and layouts (pages and sections) of an answer's sources. If `only_cited` is true,
    keeps a layout only if its url is the cited one, since another document may have an equal text. Computes
    the sections of quoted and ranked HTML pages from their parsed headings."""
    quotes = *quotes_of(answered), *other_values(answered)
    shown = {q.source for q in quotes} | {parse_chunk_id(c)[0] for c in answered.order}
    named, index = {h.source for h in answered.hits} | shown, over.index
    whole = answered.citations is None
    cited = await asyncio.to_thread(over.urls, named) if whole else urls(answered)
    sources = sorted(named)
    layouts = {s: x for s, x in zip(sources, await index.layouts(sources), strict=True) if x is not None}
    if only_cited:
        layouts = {s: x for s, x in layouts.items() if cited.get(s) == x.url}
    pages = [s for s in sorted(shown & layouts.keys()) if not layouts[s].pages and not layouts[s].sections]
    blocks = dict(zip(pages, await index.blocks(pages), strict=True))
    headed = [s for s in pages if any(b.kind == "heading" for b in blocks[s])]
    texts = await index.source_texts(headed)
    sections = {s: heading_sections(text or "", blocks[s]) for s, text in zip(headed, texts, strict=True)}
    layouts |= {s: replace(layouts[s], sections=marks) for s, marks in sections.items()}
    return SourcePlaces(cited, layouts)


async def _texts(question: Question, index: Index, passages: bool) -> Texts:
    """Reads the texts of quoted sources. `passages` adds the texts of ranked sources, and a version of each
    text in which every block (such as a paragraph), except a table cell, begins a line."""
    sources = {q.source for q in (*quotes_of(question), *other_values(question))}
    sources |= {parse_chunk_id(c)[0] for c in question.order if passages}
    named = sorted(sources)
    blocks = await index.blocks(named) if passages else [()] * len(named)
    texts = zip(named, await index.source_texts(named), blocks, strict=True)
    return {source: (text, lined(text, of)) for source, text, of in texts if text is not None}


def _evidence(
    question: Question, quotes: Sequence[Quote], texts: Texts, places: SourcePlaces
) -> tuple[Evidence, ...]:
    hits = ranking(question)
    evidence = []
    for quote in quotes:
        (text, lines), (start, end) = texts[quote.source], quote.span
        holding = (h for h in hits if h.source == quote.source and h.span[0] <= start and end <= h.span[1])
        hit = next(holding, None)
        link, stands = places.of(quote.source, quote.span)
        before, after = context(text, quote.span, CONTEXT_CHARS)
        before, after = lines[start - len(before) : start], lines[end : end + len(after)]
        chunk, scores = (hit.chunk, dict(hit.scores)) if hit else (None, {})
        evidence.append(
            Evidence(quote.source, chunk, link, text[start:end], quote.span, scores, stands, before, after)
        )
    return tuple(evidence)


def _passages(question: Question, texts: Texts, places: SourcePlaces) -> tuple[RankedPassage, ...]:
    chosen = set(question.order)
    hits = [h for h in ranking(question) if h.chunk in chosen]
    found = [(h, texts[h.source][1][slice(*h.span)], *places.of(h.source, h.span)) for h in hits]
    return tuple(RankedPassage(hit, url, text, at) for hit, text, url, at in found)


class CorpusMemo:
    """A memo (cache of model calls) whose keys begin with the name of a corpus, so that no other corpus finds
    its values."""

    def __init__(self, memo: Memo, corpus: str) -> None:
        self._memo, self._corpus = memo, corpus

    async def get_many(self, table: MemoTable, keys: Sequence[str]) -> tuple[np.ndarray, Values]:
        return await self._memo.get_many(table, self._own(keys))

    async def put_many(self, table: MemoTable, keys: Sequence[str], values: Values) -> None:
        await self._memo.put_many(table, self._own(keys), values)

    def _own(self, keys: Sequence[str]) -> list[str]:
        return [f"{self._corpus}/{key}" for key in keys]
