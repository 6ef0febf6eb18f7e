"""Request, result and progress listener of a question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from raypipe.core.llm import Chat
from raypipe.core.records import Fault, Hit, Layout, Question, Source, Span
from raypipe.text.context import Place, place
from raypipe.text.filters import Filters


@dataclass(frozen=True, slots=True)
class QueryRequest:
    question: Question
    sources: tuple[Source, ...] | None = None  # the request's own documents; None: the store is searched
    faults: tuple[Fault, ...] = ()  # faults of its pages that could not be read
    filters: Filters = field(default_factory=Filters)  # the sources that the request wants searched
    include_prompts: bool = False  # return the chats that language models got
    include_passages: bool = False  # return the texts of the ranking
    answer_id: str | None = None  # id for the captured answer; None: it is not captured
    asker: str = ""  # name of the filter of the request's key: the answer's id is signed for it
    key_filter: Filters = field(default_factory=Filters)  # the sources that the key may search at all

    @property
    def corpus(self) -> str:
        """Prefix of the names under which this request's values are cached: the name of its API key's filter;
        "" without a filter."""
        return self.asker if self.key_filter else ""

    @property
    def nbytes(self) -> int:
        """Size of the request's own documents: their number of characters, as an estimate of their bytes."""
        return sum(len(s.content) for s in self.sources or ())


class Listener:
    """Receiver of one question's progress; this class ignores it."""

    def on_stage(self, stage: str, seconds: float | None) -> None:
        """Reports that a stage began (`seconds` None) or ended."""

    def on_draft(self, piece: str) -> None:
        """Reports a piece of a reply that a language model wrote."""


NULL_LISTENER = Listener()


@dataclass(frozen=True, slots=True)
class SourcePlaces:
    """The urls and layouts of an answer's sources."""

    urls: Mapping[str, str]  # of each source that a hit or a quote names, if known
    layouts: Mapping[str, Layout]  # layout of each source that is a document of a folder

    def of(self, source: str, span: Span) -> tuple[str | None, Place | None]:
        """Returns the url of a span, and its place in a document of a folder. Each is None if unknown."""
        layout = self.layouts.get(source)
        stands = place(layout, span) if layout else None
        return stands.url if stands else self.urls.get(source), stands


@dataclass(frozen=True, slots=True)
class Evidence:
    """A quote of a source. It supports the answer or another value; without an answer, it is the closest text
    that was found."""

    source: str  # source id
    chunk: str | None  # id of the best-ranked passage that contains the whole quote; None: no passage does
    url: str | None  # url of its document of a folder, else of a citation of its source; None: unknown
    quote: str  # the source's parsed text at `span`
    span: Span
    scores: Mapping[str, float]  # scores of the passage, by ranker
    place: Place | None  # its place in a document of a folder; None: the source is no such document
    before: str  # up to CONTEXT_CHARS of the parsed text before the quote
    after: str  # up to CONTEXT_CHARS of the parsed text after the quote


@dataclass(frozen=True, slots=True)
class RankedPassage:
    hit: Hit
    url: str | None
    text: str
    place: Place | None = None  # as in `Evidence`


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The answered question with its evidence, timings and versions."""

    question: Question
    evidence: tuple[Evidence, ...]  # quotes for the answer, best first; for an abstention, the closest found
    faults: tuple[Fault, ...]  # faults of the request's own documents
    recipe: str  # digest of the recipe
    models: Mapping[str, str]  # name -> identity of the weights
    release: str | None  # id of the release that answered; None: a named recipe answered
    places: SourcePlaces
    timings_ms: Mapping[str, float]  # wall time by stage, "total", and "documents" (parsing the request's)
    usage: Mapping[str, int]  # texts embedded, pairs scored, chats answered and tokens, without cached calls
    prompts: tuple[Chat, ...]  # every chat that a language model got, in order; () if not requested
    passages: tuple[RankedPassage, ...] = ()  # the ranking with texts, best first; () if not requested
    others: tuple[Evidence, ...] = ()  # other values that sources state for the answer, newest first
    asked: Question | None = None  # the question with its searched citations; None: no search began in time
    answer_id: str | None = None  # id of the captured answer, for feedback; None: it is not captured
