"""The nouns: what is searched, what is asked, what was found and said.

Knows nothing but the standard library. Every record is frozen and slotted, has no behaviour beyond derived
values, and is turned into Arrow only by `arrow.py`. Questions are few and nested, so they travel as lists of
records; chunks are millions and flat, so they have no record and travel as `pa.Table` columns
(`protocols.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

SourceKind: TypeAlias = Literal["page", "snippet", "name", "document"]

Label: TypeAlias = str
"""A reply's class: a class name of the recipe, or one of the five below."""
ANSWERED, ABSTAINED, INVALID, SKIPPED, FAULT = "answered", "abstained", "invalid", "skipped", "fault"
TRACE = "trace"
"""Label of a reply that tells what a step did and how long it took: no evidence, and another in every run."""

Outcome: TypeAlias = Literal["", "answered", "abstained", "false_premise", "ranked", "fault"]
RANKED: Outcome = "ranked"
"""Outcome of a question that a recipe without `decide` is done with: it has a ranking, and no answer is asked
for."""

IDK = "i don't know"
"""The abstention that CRAG's rules recognise: lower case, straight apostrophe."""

INVALID_QUESTION = "invalid question"
"""CRAG's answer to a question with a false premise."""

Span: TypeAlias = tuple[int, int]
"""Half-open character range `[start, end)` in a source's parsed text."""

BlockKind: TypeAlias = Literal["title", "heading", "paragraph", "item", "row", "cell", "menu"]
"""Kinds of a block of a page. title: of the page itself; item: of a list; row: the first cell of a table's
row, or all of a row that has its cells between `|`; cell: another cell; menu: links and controls."""


def digest(*parts: str | bytes) -> str:
    """32 hex digits that name these parts in order; lengths are mixed in, so ("ab","c") != ("a","bc")."""
    pieces: list[bytes] = []
    for part in parts:
        raw = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        pieces += (len(raw).to_bytes(8, "little"), raw)
    return hashlib.blake2b(b"".join(pieces), digest_size=16).hexdigest()


def source_id(kind: SourceKind, content: str) -> str:
    """The id of a source: the digest of its kind and content, so equal pages are one source."""
    return digest(kind, content)


@dataclass(frozen=True, slots=True)
class Source:
    """Something that can be searched. Never updated: changed content is another source."""

    id: str  # source_id(kind, content)
    kind: SourceKind  # page: HTML; the other kinds: plain text
    content: str  # as it came, never empty


@dataclass(frozen=True, slots=True)
class Citation:
    """A search result of a question: where it came from, and the sources it brought (None: none)."""

    question: str  # question id
    rank: int  # from 0, in the order of the search results
    url: str  # as given, may be ""
    modified: str  # as given, may be ""
    page: str | None  # source id
    snippet: str | None  # source id
    name: str | None  # source id

    def sources(self) -> tuple[str, ...]:
        """The sources it brought, page first."""
        return tuple(s for s in (self.page, self.snippet, self.name) if s is not None)


@dataclass(frozen=True, slots=True)
class Document:
    """A named text of a collection. Equal texts share one source and are listed under each id."""

    id: str  # external id: a paper, a BEIR document
    title: str  # may be ""
    source: str  # source id; of a BEIR document the content is the title, a newline, and the text
    fields: Mapping[str, str] = field(default_factory=dict)  # what it says of itself, by name, as text


@dataclass(frozen=True, slots=True)
class Mark:
    """A part of a text that has a name: a page, a section."""

    start: int  # [start, end) in the source's parsed text; equal: nothing of it is there
    end: int
    label: str  # of a page as it is printed: "7", "iv"; of a section its heading


@dataclass(frozen=True, slots=True)
class Layout:
    """Place of a document of a folder, and its pages and sections: what a citation says of a quote."""

    id: str  # of the document
    source: str  # source id
    url: str  # path from the folder, as a relative URL
    title: str
    pages: tuple[Mark, ...]  # the first page of the file first, one for each; () where it has none
    sections: tuple[Mark, ...]  # ascending; each ends where the next begins
    modified: str = ""
    """The day that the document gives itself, as 2025-03-01, else the time of its file when it was read, as
    2025-03-01T09:30:00, UTC; "": it is no file."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that may answer. It has no text: text is fetched by id where it is read.

    A passage is the parent where the split makes parents, else the chunk. Rankers add scores under their own
    names and never overwrite one another's, so the row says why a passage is there.
    """

    chunk: str  # passage id: chunk_id(source, span)
    source: str  # source id
    span: Span  # of the passage in the source's parsed text
    scores: Mapping[str, float] = field(default_factory=dict)  # ranker -> score, bigger is better


def chunk_id(source: str, span: Span) -> str:
    """The id of a passage, which says where its text is: `source:start-end`."""
    return f"{source}:{span[0]}-{span[1]}"


def parse_chunk_id(chunk: str) -> tuple[str, Span]:
    """The source and span that a passage id names. Raises ValueError for anything else."""
    source, _, span = chunk.rpartition(":")
    start, _, end = span.partition("-")
    if not source:
        raise ValueError(f"{chunk!r} is not a passage id: expected source:start-end")
    return source, (int(start), int(end))


@dataclass(frozen=True, slots=True)
class Block:
    """A run of a source's parsed text with a border before and after it: no sentence crosses one."""

    start: int  # in the source's parsed text
    end: int
    kind: BlockKind


@dataclass(frozen=True, slots=True)
class Quote:
    """Place of a reply's evidence, to the character."""

    source: str  # source id
    span: Span  # in the source's parsed text


@dataclass(frozen=True, slots=True)
class Reply:
    """A step's reply about a question."""

    text: str  # "" only where the label is skipped or fault; what could not be read is kept
    label: Label
    confidence: float | None = None  # 0..1, where the step states one
    logprob: float | None = None  # sum over the reply's tokens, where the model gave one
    quotes: tuple[Quote, ...] = ()  # its evidence, best first, where the step knows it
    fault: Fault | None = None  # what went wrong, where the label is fault, or kept, and the step knows


UNREADABLE: Final = "unreadable"
"""Reason of a fault where a model replied, and its step cannot read what it said."""

SKIPPED_REPLY = Reply(text="", label=SKIPPED)


@dataclass(frozen=True, slots=True)
class Fault:
    """Expected trouble with one row: data on the row, never an empty answer, never a block that dies."""

    step: str  # name of the step in the recipe
    reason: str  # a short fixed word: too_large, not_html, timeout, ...
    detail: str  # for people: what was expected and what was found
    transient: bool  # True: caused by time, load or a dead service; never stored, asked again


@dataclass(frozen=True, slots=True)
class Turn:
    """An earlier message of a conversation. Of either role it is a text of strangers."""

    role: Literal["user", "assistant"]
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question on its way through a recipe. Gold answers and labels are not here: see `Gold`."""

    id: str
    text: str  # as it was asked; behind a step `stand_alone` as it stands without its earlier turns
    body: str = ""  # longer description, where the dataset has one
    asked_at: str = ""  # as the dataset writes it: "MM/DD/YYYY, HH:MM:SS PT" in CRAG
    citations: tuple[Citation, ...] | None = None  # what may be searched; None: the whole named snapshot
    replies: Mapping[str, Reply] = field(default_factory=dict)  # by the `into` name of the step that wrote it
    hits: tuple[Hit, ...] = ()  # candidate passages, each once
    order: tuple[str, ...] = ()  # chunk ids of the ranking, best first; a subset of the hits
    answer: str = ""  # set by decide; "" before
    outcome: Outcome = ""  # set by decide, or at the end of a recipe that ranks; "" before
    origin: str = ""  # name of the reply that the answer came from
    faults: tuple[Fault, ...] = ()
    degraded: tuple[str, ...] = ()  # stages omitted because of time or a dead service
    due: float | None = None  # deadline, seconds since the epoch; in no digest
    where: str = ""  # condition on the fields of what may be searched (`text.filters`); "": none
    turns: tuple[Turn, ...] = ()  # earlier ones of its conversation, oldest first

    def sources(self) -> tuple[str, ...] | None:
        """Distinct source ids that may be searched, in citation order; None: the whole snapshot."""
        if self.citations is None:
            return None
        return tuple(dict.fromkeys(s for c in self.citations for s in c.sources()))


def faults_of(question: Question) -> list[Fault]:
    """The faults of a question and of its replies, each once."""
    replies = (r.fault for r in question.replies.values() if r.fault is not None)
    return list(dict.fromkeys((*question.faults, *replies)))


def quotes_of(question: Question) -> tuple[Quote, ...]:
    """Returns what the answer rests on, best first; of an abstention the closest that was found: the quote of
    a reply that did not dare to answer, else the first passage of the ranking."""
    if (reply := question.replies.get(question.origin)) is not None:
        return reply.quotes
    if question.outcome != ABSTAINED:
        return ()
    near = next((r.quotes for r in question.replies.values() if r.quotes), ())
    return near[:1] or tuple(Quote(*parse_chunk_id(chunk)) for chunk in question.order[:1])


def ranking(question: Question) -> list[Hit]:
    """The hits of a question: its ranking, best first, then the candidates that did not make it."""
    by_chunk = {h.chunk: h for h in question.hits}
    chosen = dict.fromkeys(question.order)
    return [by_chunk[c] for c in chosen] + [h for h in question.hits if h.chunk not in chosen]


def urls(question: Question) -> dict[str, str]:
    """Source id -> url of the question's best-ranked citation with this source."""
    found: dict[str, str] = {}
    for citation in sorted(question.citations or (), key=lambda c: c.rank):
        for source in citation.sources():
            found.setdefault(source, citation.url)
    return found


def answer_of(question: Question) -> str | None:
    """Returns what was answered; None: the question failed, was never answered, or was only ranked."""
    return None if question.outcome in ("", FAULT, RANKED) else question.answer


OTHERS: Final = "_others"
"""Ending of the name of a reply that quotes other values for the answer of the reply that it is named
after."""


def other_values(question: Question) -> tuple[Quote, ...]:
    """Returns where other sources state another value than the answer's: each is that value, newest first."""
    reply = question.replies.get(question.origin + OTHERS)
    return reply.quotes if reply else ()


AnswerKind: TypeAlias = Literal["extractive", "abstractive", "boolean", "none"]
"""Forms of an annotator's answer: with spans of the paper, in own words, yes or no, or that it has no
answer."""


@dataclass(frozen=True, slots=True)
class AnnotatorAnswer:
    """An annotator's answer to a question about a paper."""

    answer: str  # spans joined by ", ", own words, "Yes", "No" or "Unanswerable"
    kind: AnswerKind
    evidence: tuple[str, ...] = ()  # paragraphs it rests on; a figure or table begins with FLOAT SELECTED


@dataclass(frozen=True, slots=True)
class Gold:
    """The right answers of a question, by the dataset. Only scoring, fitting and judging read it."""

    question: str  # question id
    answers: tuple[str, ...] = ()  # the answer, then its alternatives; (): documents are judged alone
    labels: Mapping[str, str] = field(default_factory=dict)  # domain, question_type, static_or_dynamic, ...
    grades: Mapping[str, int] = field(default_factory=dict)  # document id -> relevance, relevant from 1 on
    annotators: tuple[AnnotatorAnswer, ...] = ()  # of a paper's question, in the order of the file


CAPTURED_ID: Final = "captured-"
"""The begin of ids of captured questions. No row of a data set may have such an id: what users asked is shown
to no one."""
PAPER: Final = "paper"
"""Label of a question about a paper: the paper's id."""
UNANSWERABLE: Final = "Unanswerable"
FLOAT: Final = "FLOAT SELECTED"
"""Prefix of evidence that is a figure or a table; its caption follows."""
_CAPTION = f"{FLOAT}: "


def paragraph(evidence: str) -> str:
    """A paragraph as the parsed text of its paper has it: white space folded, of a float its caption.

    >>> paragraph("FLOAT SELECTED: Table 1:  Sizes.")
    'Table 1: Sizes.'
    """
    return " ".join(evidence.removeprefix(_CAPTION).split())
