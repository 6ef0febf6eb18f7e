"""Records of the data: sources, questions, hits, replies and golds.

Only `arrow.py` converts records to Arrow. Questions are few and nested, so they travel as lists of records.
Chunks are millions and flat, so they have no record and travel as columns of a `pa.Table`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

SourceKind: TypeAlias = Literal["page", "snippet", "name", "document"]

Label: TypeAlias = str
"""A reply's class: a class name of the recipe, one of the five below, or another fixed word of a step."""
ANSWERED, ABSTAINED, INVALID, SKIPPED, FAULT = "answered", "abstained", "invalid", "skipped", "fault"
TRACE = "trace"
"""Label of a reply that records a step's work and duration. It varies by run and is no evidence."""

Outcome: TypeAlias = Literal["", "answered", "abstained", "false_premise", "ranked", "fault"]
RANKED: Outcome = "ranked"
"""Outcome of a question after a recipe without `decide`. It has a ranking, and no answer is wanted."""

IDK = "i don't know"
"""The abstention that CRAG's rules recognise: lower case, straight apostrophe."""

INVALID_QUESTION = "invalid question"
"""CRAG's answer to a question with a false premise."""

Span: TypeAlias = tuple[int, int]
"""Half-open character range `[start, end)` in a source's parsed text."""

BlockKind: TypeAlias = Literal["title", "heading", "paragraph", "item", "row", "cell", "menu"]
"""Kinds of a page's blocks. title: the page's title; item: an item of a list; row: the first cell of a
table's row, or a whole row with `|` between its cells; cell: another cell; menu: links and controls."""


def digest(*parts: str | bytes) -> str:
    """Returns 32 hex digits for these parts in order; their borders count: ("ab","c") != ("a","bc")."""
    pieces: list[bytes] = []
    for part in parts:
        raw = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        pieces += (len(raw).to_bytes(8, "little"), raw)
    return hashlib.blake2b(b"".join(pieces), digest_size=16).hexdigest()


def source_id(kind: SourceKind, content: str) -> str:
    """Returns the id of a source: the digest of its kind and content. Equal pages are one source."""
    return digest(kind, content)


@dataclass(frozen=True, slots=True)
class Source:
    """A text that can be searched. It is never updated: changed content is another source."""

    id: str  # source_id(kind, content)
    kind: SourceKind  # page: HTML; the other kinds: plain text
    content: str  # as it came, never empty


@dataclass(frozen=True, slots=True)
class Citation:
    """A search result of a question: an address, and the sources found there (None: missing)."""

    question: str  # question id
    rank: int  # from 0, in the order of the search results
    url: str  # as given, may be ""
    modified: str  # as given, may be ""
    page: str | None  # source id
    snippet: str | None  # source id
    name: str | None  # source id

    def sources(self) -> tuple[str, ...]:
        """Returns the ids of the citation's sources: page, snippet, name; without missing ones."""
        return tuple(s for s in (self.page, self.snippet, self.name) if s is not None)


@dataclass(frozen=True, slots=True)
class Document:
    """A named text of a collection. Documents with equal texts share one source."""

    id: str  # external id: a paper, a BEIR document
    title: str  # may be ""
    source: str  # source id; of a BEIR document the content is the title, a newline, and the text
    fields: Mapping[str, str] = field(default_factory=dict)  # its metadata: name -> value as text


@dataclass(frozen=True, slots=True)
class Mark:
    """A named part of a text: a page or a section."""

    start: int  # [start, end) in the source's parsed text; start = end: no text
    end: int
    label: str  # printed number of a page ("7", "iv"), or heading of a section


@dataclass(frozen=True, slots=True)
class Layout:
    """Path, pages and sections of a document in a folder. Citations use them to locate a quote."""

    id: str  # id of the document
    source: str  # source id
    url: str  # path from the folder, as a relative URL
    title: str
    pages: tuple[Mark, ...]  # one for each page of the file, in order; () without pages
    sections: tuple[Mark, ...]  # ascending; each ends where the next begins
    modified: str = ""
    """Date that the document states, as 2025-03-01. Without one: the time of its file when it was read, as
    2025-03-01T09:30:00, UTC. "": it has no file."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that may answer a question; its text is fetched by id when it is needed.

    The passage is a chunk, or the chunk's parent if the split makes parents. Each ranker adds a score under a
    name of its own, so a hit shows by which rankers it was found.
    """

    chunk: str  # passage id: chunk_id(source, span)
    source: str  # source id
    span: Span  # span of the passage in the source's parsed text
    scores: Mapping[str, float] = field(default_factory=dict)  # ranker -> score, bigger is better


def chunk_id(source: str, span: Span) -> str:
    """Returns the id of a passage, which locates its text: `source:start-end`."""
    return f"{source}:{span[0]}-{span[1]}"


def parse_chunk_id(chunk: str) -> tuple[str, Span]:
    """Splits a passage id into source and span. Raises ValueError if the text is no passage id."""
    source, _, span = chunk.rpartition(":")
    start, _, end = span.partition("-")
    if not source:
        raise ValueError(f"{chunk!r} is not a passage id: expected source:start-end")
    return source, (int(start), int(end))


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of a source's parsed text, such as a paragraph. No sentence crosses its borders."""

    start: int  # in the source's parsed text
    end: int
    kind: BlockKind


@dataclass(frozen=True, slots=True)
class Quote:
    """Place of a reply's evidence in the text of a source."""

    source: str  # source id
    span: Span  # in the source's parsed text


@dataclass(frozen=True, slots=True)
class Reply:
    text: str  # may be "", such as with label skipped; with label fault an unreadable text is kept
    label: Label
    confidence: float | None = None  # 0..1, if the step states one
    logprob: float | None = None  # sum over the reply's tokens, if the model gives it
    quotes: tuple[Quote, ...] = ()  # its evidence, best first, if the step gives it
    fault: Fault | None = None  # what went wrong; with another label than fault, the text is a substitute


UNREADABLE: Final = "unreadable"
"""Reason of a fault: the model replied, but the step cannot read the reply."""

SKIPPED_REPLY = Reply(text="", label=SKIPPED)


@dataclass(frozen=True, slots=True)
class Fault:
    """An expected failure of one row, kept as data. It becomes no empty answer and stops no other row."""

    step: str  # name of the step in the recipe
    reason: str  # a short fixed word: too_large, not_html, timeout, ...
    detail: str  # for people: what was expected and what was found
    transient: bool  # True: caused by time, load or a dead service; the row is not stored but tried again


@dataclass(frozen=True, slots=True)
class Turn:
    """An earlier message of a conversation. A client sends the texts of both roles, so trust neither."""

    role: Literal["user", "assistant"]
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question on its way through a recipe. It holds no gold answers or labels: see `Gold`."""

    id: str
    text: str  # as asked; after a step `stand_alone`, rewritten to need no earlier turns
    body: str = ""  # longer description, if the dataset has one
    asked_at: str = ""  # time, as the dataset writes it: "MM/DD/YYYY, HH:MM:SS PT" in CRAG
    citations: tuple[Citation, ...] | None = None  # results to search in; None: the whole snapshot
    replies: Mapping[str, Reply] = field(default_factory=dict)  # `into` of a step -> reply
    hits: tuple[Hit, ...] = ()  # candidate passages, each once
    order: tuple[str, ...] = ()  # chunk ids of the ranking, best first; a subset of the hits
    answer: str = ""  # set by decide; "" before
    outcome: Outcome = ""  # set by decide, or at the end of a recipe that ranks; "" before
    origin: str = ""  # name of the reply that the answer came from
    faults: tuple[Fault, ...] = ()
    degraded: tuple[str, ...] = ()  # stages omitted because of time or a dead service
    due: float | None = None  # deadline, seconds since the epoch; in no digest
    where: str = ""  # condition on fields of documents to search (`text.filters`); "": none
    turns: tuple[Turn, ...] = ()  # earlier turns of its conversation, oldest first

    def sources(self) -> tuple[str, ...] | None:
        """Returns the distinct source ids to search, in citation order; None: the whole snapshot."""
        if self.citations is None:
            return None
        return tuple(dict.fromkeys(s for c in self.citations for s in c.sources()))


def faults_of(question: Question) -> list[Fault]:
    """Returns the distinct faults of a question and its replies."""
    replies = (r.fault for r in question.replies.values() if r.fault is not None)
    return list(dict.fromkeys((*question.faults, *replies)))


def quotes_of(question: Question) -> tuple[Quote, ...]:
    """Returns the quotes of the reply that became the answer, best first. For an abstention without such a
    reply, returns at most one quote: of the first reply that has any, or else the first ranked passage."""
    if (reply := question.replies.get(question.origin)) is not None:
        return reply.quotes
    if question.outcome != ABSTAINED:
        return ()
    near = next((r.quotes for r in question.replies.values() if r.quotes), ())
    return near[:1] or tuple(Quote(*parse_chunk_id(chunk)) for chunk in question.order[:1])


def ranking(question: Question) -> list[Hit]:
    """Returns the hits of a question: its ranking, best first, then the unranked candidates."""
    by_chunk = {h.chunk: h for h in question.hits}
    chosen = dict.fromkeys(question.order)
    return [by_chunk[c] for c in chosen] + [h for h in question.hits if h.chunk not in chosen]


def urls(question: Question) -> dict[str, str]:
    """Returns source id -> URL of the best-ranked citation that has the source."""
    found: dict[str, str] = {}
    for citation in sorted(question.citations or (), key=lambda c: c.rank):
        for source in citation.sources():
            found.setdefault(source, citation.url)
    return found


def answer_of(question: Question) -> str | None:
    """Returns the answer, maybe an abstention; None if the question failed, is unanswered or only ranked."""
    return None if question.outcome in ("", FAULT, RANKED) else question.answer


OTHERS: Final = "_others"
"""Suffix of the name of a second reply, which quotes other values than the first reply states."""


def other_values(question: Question) -> tuple[Quote, ...]:
    """Returns quotes from other sources that state another value than the answer, newest first."""
    reply = question.replies.get(question.origin + OTHERS)
    return reply.quotes if reply else ()


AnswerKind: TypeAlias = Literal["extractive", "abstractive", "boolean", "none"]
"""Forms of an annotator's answer, in order: spans of the paper; own words; yes or no; not in the paper."""


@dataclass(frozen=True, slots=True)
class AnnotatorAnswer:
    answer: str  # spans joined by ", ", own words, "Yes", "No" or "Unanswerable"
    kind: AnswerKind
    evidence: tuple[str, ...] = ()  # paragraphs it rests on; a figure or table begins with FLOAT SELECTED


@dataclass(frozen=True, slots=True)
class Gold:
    """Right answers of a question, from the dataset. Only scoring, fitting and judging read them."""

    question: str  # question id
    answers: tuple[str, ...] = ()  # the answer, then its alternatives; (): only documents are judged
    labels: Mapping[str, str] = field(default_factory=dict)  # domain, question_type, static_or_dynamic, ...
    grades: Mapping[str, int] = field(default_factory=dict)  # document id -> relevance, relevant from 1 on
    annotators: tuple[AnnotatorAnswer, ...] = ()  # annotators of a paper's question, in file order


CAPTURED_ID: Final = "captured-"
"""Prefix of the ids of captured questions, which stay secret. So other datasets must not use it."""
PAPER: Final = "paper"
"""Name of the gold label that holds the paper's id, for a question about a paper."""
UNANSWERABLE: Final = "Unanswerable"
FLOAT: Final = "FLOAT SELECTED"
"""Prefix of evidence that is a figure or a table. The caption follows it."""
_CAPTION = f"{FLOAT}: "


def paragraph(evidence: str) -> str:
    """Returns evidence in the form of parsed text, with white space folded to single spaces. Of a figure or
    table, only the caption is kept.

    >>> paragraph("FLOAT SELECTED: Table 1:  Sizes.")
    'Table 1: Sizes.'
    """
    return " ".join(evidence.removeprefix(_CAPTION).split())
