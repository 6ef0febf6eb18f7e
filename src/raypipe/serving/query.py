"""A query: the request, its result, the listener that follows it, and what the routes need of whatever
answers. Plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from raypipe.core.llm import Chat
from raypipe.core.records import Fault, Hit, Layout, Question, Source, Span
from raypipe.text.context import Place, place
from raypipe.text.filters import Filters

if TYPE_CHECKING:
    from raypipe.recipes.recipe import Recipe
    from raypipe.serving.store_snapshot import StoreSnapshot


@dataclass(frozen=True, slots=True)
class QueryRequest:
    question: Question
    sources: tuple[Source, ...] | None = None  # documents of its own; None: the store is searched
    faults: tuple[Fault, ...] = ()  # of pages that could not be read
    filters: Filters = field(default_factory=Filters)  # which sources may be searched
    include_prompts: bool = False  # return the chats that language models got
    include_passages: bool = False  # return the texts of the ranking
    answer_id: str | None = None  # that a captured answer gets; None: it is not captured
    asker: str = ""  # name of the filter of the key that asks: the answer's id is signed for it
    key_filter: Filters = field(default_factory=Filters)  # what may be searched, whatever `filters` say

    @property
    def corpus(self) -> str:
        """Whose cached values are looked up and kept; "": those of the whole store."""
        return self.asker if self.key_filter else ""

    @property
    def nbytes(self) -> int:
        """Bytes, about, of the documents that it brought."""
        return sum(len(s.content) for s in self.sources or ())


class Listener:
    """Receives the progress of one question; this one ignores it."""

    def on_stage(self, stage: str, seconds: float | None) -> None:
        """A stage began (`seconds` None) or ended."""

    def on_draft(self, piece: str) -> None:
        """A language model wrote a piece of a reply."""


NULL_LISTENER = Listener()


@dataclass(frozen=True, slots=True)
class SourcePlaces:
    """The places of an answer's sources."""

    urls: Mapping[str, str]  # of each source that a hit or a quote names, if known
    layouts: Mapping[str, Layout]  # of each that is a document of a folder

    def of(self, source: str, span: Span) -> tuple[str | None, Place | None]:
        """The url of a span, and its place in a document of a folder; None where there is none."""
        layout = self.layouts.get(source)
        stands = place(layout, span) if layout else None
        return stands.url if stands else self.urls.get(source), stands


@dataclass(frozen=True, slots=True)
class Evidence:
    """A quote that supports the answer."""

    source: str  # source id
    chunk: str | None  # the best-ranked passage that holds it whole; None: no passage does
    url: str | None  # of the best-ranked citation of its source; None: no citation has it
    quote: str  # the source's parsed text at `span`
    span: Span
    scores: Mapping[str, float]  # of the passage, by ranker
    place: Place | None  # in a document of a folder; None: its source is of none
    before: str  # up to CONTEXT_CHARS of the parsed text before the quote
    after: str  # up to CONTEXT_CHARS after it


@dataclass(frozen=True, slots=True)
class RankedPassage:
    hit: Hit
    url: str | None
    text: str
    place: Place | None = None  # as of Evidence


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The answered question with its evidence, timings and versions."""

    question: Question
    evidence: tuple[Evidence, ...]  # of the answer, best first; of an abstention the closest that was found
    faults: tuple[Fault, ...]  # of the request's pages
    recipe: str  # digest
    models: Mapping[str, str]  # name -> identity of the weights
    release: str | None  # id of the release that answered; None: a named recipe did
    places: SourcePlaces
    timings_ms: Mapping[str, float]  # wall time by stage, "documents" for its own documents, and "total"
    usage: Mapping[str, int]  # texts embedded, pairs scored, chats answered, and their tokens
    prompts: tuple[Chat, ...]  # every chat that a language model got, in order; () unless included
    passages: tuple[RankedPassage, ...] = ()  # the ranking with its texts, best first; () unless included
    others: tuple[Evidence, ...] = ()  # values that other sources state for the answer, newest first
    asked: Question | None = None  # with what was searched, filters applied; None: nothing was, in time
    answer_id: str | None = None  # of a captured answer, for feedback; None: it is not captured


class AnswererProtocol(Protocol):
    """Answers questions: what `serving.answerer.Answerer` gives the routes."""

    @property
    def recipe(self) -> Recipe: ...
    @property
    def release(self) -> str | None: ...
    async def ready(self) -> list[str]: ...
    async def snapshot(self) -> StoreSnapshot: ...
    async def answer(self, request: QueryRequest, listener: Listener = NULL_LISTENER) -> QueryResult: ...
    async def retrieve(self, request: QueryRequest) -> QueryResult: ...


class ReleaseRouter(Protocol):
    """Picks the answerer of each request, which then answers all of it."""

    async def current(self) -> AnswererProtocol: ...
