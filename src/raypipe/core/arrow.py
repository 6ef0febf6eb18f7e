"""Records to Arrow and back; one schema per record. Knows pyarrow and the records, nothing of storage.

Corpus columns, in the order in which the corpus steps add them (one row per source, then one row per chunk):

    source, kind, content, fault      what comes in
    text, hidden, blocks              parse
    words_NAME, starts_NAME           tokenize (NAME is the analyzer)
    start, end, parent_start, parent_end, chunk_text      split (one row per chunk; text ... starts_NAME end)
    vector                            embed
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from raypipe.core.records import (
    AnnotatorAnswer,
    Citation,
    Document,
    Fault,
    Gold,
    Hit,
    Layout,
    Mark,
    Question,
    Quote,
    Reply,
    Source,
)

SPAN = pa.struct([pa.field("start", pa.int32(), nullable=False), pa.field("end", pa.int32(), nullable=False)])
BLOCK = pa.struct(
    [
        pa.field("start", pa.int32(), nullable=False),
        pa.field("end", pa.int32(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
    ]
)
SPANS = ("source", "start", "end", "parent_start", "parent_end")
"""Columns that name a chunk: where it is in its source's parsed text, and where the passage around it."""
PARSED = pa.schema(
    [
        pa.field("source", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("text", pa.large_string()),
        pa.field("hidden", pa.list_(SPAN)),
        pa.field("blocks", pa.list_(BLOCK)),
        pa.field("parser", pa.string()),
    ]
)
"""What the first corpus step of a recipe gives, but for its faults: one row per source."""
SCORES = pa.map_(pa.string(), pa.float64())
STRINGS = pa.list_(pa.string())

FAULT = pa.struct(
    [
        pa.field("step", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
        pa.field("transient", pa.bool_(), nullable=False),
    ]
)
HIT = pa.struct(
    [
        pa.field("chunk", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("span", SPAN, nullable=False),
        pa.field("scores", SCORES, nullable=False),
    ]
)
QUOTE = pa.struct([pa.field("source", pa.string(), nullable=False), pa.field("span", SPAN, nullable=False)])
REPLY = pa.struct(
    [
        pa.field("text", pa.string(), nullable=False),
        pa.field("label", pa.string(), nullable=False),
        pa.field("confidence", pa.float64()),
        pa.field("logprob", pa.float64()),
        pa.field("quotes", pa.list_(QUOTE), nullable=False),
        pa.field("fault", FAULT),
    ]
)
_CITATION_FIELDS = [
    pa.field("question", pa.string(), nullable=False),
    pa.field("rank", pa.int32(), nullable=False),
    pa.field("url", pa.string(), nullable=False),
    pa.field("modified", pa.string(), nullable=False),
    pa.field("page", pa.string()),
    pa.field("snippet", pa.string()),
    pa.field("name", pa.string()),
]

SOURCES = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("content", pa.large_string(), nullable=False),
    ]
)
CITATIONS = pa.schema(_CITATION_FIELDS)
DOCUMENTS = pa.schema([pa.field(n, pa.string(), nullable=False) for n in ("id", "title", "source")])
_MARK_FIELDS = [
    pa.field("start", pa.int32(), nullable=False),
    pa.field("end", pa.int32(), nullable=False),
    pa.field("label", pa.string(), nullable=False),
]
LAYOUTS = pa.schema(
    [
        *(pa.field(n, pa.string(), nullable=False) for n in ("id", "source", "url", "title")),
        *(pa.field(n, pa.list_(pa.struct(_MARK_FIELDS)), nullable=False) for n in ("pages", "sections")),
    ]
)
GOLDS = pa.schema(
    [
        pa.field("question", pa.string(), nullable=False),
        pa.field("answers", STRINGS, nullable=False),
        pa.field("labels", pa.map_(pa.string(), pa.string()), nullable=False),
    ]
)
RELEVANCE = pa.schema(
    [
        pa.field("question", pa.string(), nullable=False),
        pa.field("grades", pa.map_(pa.string(), pa.int32()), nullable=False),
    ]
)
ANNOTATOR = pa.struct(
    [
        pa.field("answer", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("evidence", STRINGS, nullable=False),
    ]
)
ANNOTATIONS = pa.schema(
    [
        pa.field("question", pa.string(), nullable=False),
        pa.field("annotators", pa.list_(ANNOTATOR), nullable=False),
    ]
)
QUESTIONS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("body", pa.string(), nullable=False),
        pa.field("asked_at", pa.string(), nullable=False),
        pa.field("citations", pa.list_(pa.struct(_CITATION_FIELDS))),
        pa.field("replies", pa.map_(pa.string(), REPLY), nullable=False),
        pa.field("hits", pa.list_(HIT), nullable=False),
        pa.field("order", STRINGS, nullable=False),
        pa.field("answer", pa.string(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("faults", pa.list_(FAULT), nullable=False),
        pa.field("degraded", STRINGS, nullable=False),
        pa.field("due", pa.float64()),
    ]
)

R = TypeVar("R")


def _pairs(mapping: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return list(mapping.items())


def _plain(record: Any, names: Sequence[str]) -> dict[str, Any]:
    return {n: getattr(record, n) for n in names}


def _span(span: tuple[int, int]) -> dict[str, int]:
    return {"start": span[0], "end": span[1]}


def _hit_out(h: Hit) -> dict[str, Any]:
    return {"chunk": h.chunk, "source": h.source, "span": _span(h.span), "scores": _pairs(h.scores)}


def _hit_in(d: dict[str, Any]) -> Hit:
    return Hit(d["chunk"], d["source"], (d["span"]["start"], d["span"]["end"]), dict(d["scores"]))


_CITATION = [f.name for f in _CITATION_FIELDS]
_FAULT = [f.name for f in FAULT]


def _reply_out(r: Reply) -> dict[str, Any]:
    quotes = [{"source": x.source, "span": _span(x.span)} for x in r.quotes]
    fault = None if r.fault is None else _plain(r.fault, _FAULT)
    return {**_plain(r, ("text", "label", "confidence", "logprob")), "quotes": quotes, "fault": fault}


def _reply_in(d: dict[str, Any]) -> Reply:
    quotes = tuple(Quote(x["source"], (x["span"]["start"], x["span"]["end"])) for x in d["quotes"])
    fault = None if d["fault"] is None else Fault(**d["fault"])
    return Reply(d["text"], d["label"], d["confidence"], d["logprob"], quotes, fault)


def _question_out(q: Question) -> dict[str, Any]:
    cites = None if q.citations is None else [_plain(c, _CITATION) for c in q.citations]
    return {
        **_plain(q, ("id", "text", "body", "asked_at", "answer", "outcome", "origin", "due")),
        "citations": cites,
        "replies": [(k, _reply_out(r)) for k, r in q.replies.items()],
        "hits": [_hit_out(h) for h in q.hits],
        "order": list(q.order),
        "faults": [_plain(f, _FAULT) for f in q.faults],
        "degraded": list(q.degraded),
    }


def _question_in(d: dict[str, Any]) -> Question:
    return Question(
        **{n: d[n] for n in ("id", "text", "body", "asked_at", "answer", "outcome", "origin", "due")},
        citations=None if d["citations"] is None else tuple(Citation(**c) for c in d["citations"]),
        replies={k: _reply_in(r) for k, r in d["replies"]},
        hits=tuple(_hit_in(h) for h in d["hits"]),
        order=tuple(d["order"]),
        faults=tuple(Fault(**f) for f in d["faults"]),
        degraded=tuple(d["degraded"]),
    )


_MARK = [f.name for f in _MARK_FIELDS]
_NAMED = ("id", "source", "url", "title")


def _layout_out(x: Layout) -> dict[str, Any]:
    marks = {name: [_plain(m, _MARK) for m in getattr(x, name)] for name in ("pages", "sections")}
    return {**_plain(x, _NAMED), **marks}


def _layout_in(d: dict[str, Any]) -> Layout:
    pages, sections = (tuple(Mark(**m) for m in d[name]) for name in ("pages", "sections"))
    return Layout(**{n: d[n] for n in _NAMED}, pages=pages, sections=sections)


def _gold_out(g: Gold) -> dict[str, Any]:
    return {"question": g.question, "answers": list(g.answers), "labels": _pairs(g.labels)}


def _gold_in(d: dict[str, Any]) -> Gold:
    return Gold(d["question"], tuple(d["answers"]), dict(d["labels"]))


def _relevance_out(g: Gold) -> dict[str, Any]:
    return {"question": g.question, "grades": _pairs(g.grades)}


def _relevance_in(d: dict[str, Any]) -> Gold:
    return Gold(d["question"], (), {}, dict(d["grades"]))


def _annotated_out(g: Gold) -> dict[str, Any]:
    said = [{"answer": a.answer, "kind": a.kind, "evidence": list(a.evidence)} for a in g.annotators]
    return {"question": g.question, "annotators": said}


def _annotated_in(d: dict[str, Any]) -> Gold:
    said = tuple(AnnotatorAnswer(a["answer"], a["kind"], tuple(a["evidence"])) for a in d["annotators"])
    return Gold(d["question"], (), annotators=said)


@dataclass(frozen=True, slots=True)
class Codec(Generic[R]):
    """How one record type becomes rows of one schema, and back."""

    schema: pa.Schema
    out: Callable[[R], dict[str, Any]]
    into: Callable[[dict[str, Any]], R]

    def table(self, records: Iterable[R]) -> pa.Table:
        return pa.Table.from_pylist([self.out(r) for r in records], schema=self.schema)

    def records(self, table: pa.Table) -> list[R]:
        return [self.into(d) for d in table.select(self.schema.names).to_pylist()]


def _flat(record: type[R], schema: pa.Schema) -> Codec[R]:
    names = schema.names
    return Codec(schema, lambda r: _plain(r, names), lambda d: record(**d))


source = _flat(Source, SOURCES)
citation = _flat(Citation, CITATIONS)
document = _flat(Document, DOCUMENTS)
layout: Codec[Layout] = Codec(LAYOUTS, _layout_out, _layout_in)
question: Codec[Question] = Codec(QUESTIONS, _question_out, _question_in)
gold: Codec[Gold] = Codec(GOLDS, _gold_out, _gold_in)
relevance: Codec[Gold] = Codec(RELEVANCE, _relevance_out, _relevance_in)
"""The other half of a gold, in a table of its own that only a store with judged documents has."""
annotated: Codec[Gold] = Codec(ANNOTATIONS, _annotated_out, _annotated_in)
"""What annotators say, in a table of its own that only a store with questions about papers has."""


def fault_column(faults: Sequence[Fault | None]) -> pa.Array:
    """The `fault` column of a corpus table: null where the row is fine."""
    return pa.array([None if f is None else _plain(f, _FAULT) for f in faults], type=FAULT)


def corpus_table(sources: Iterable[Source]) -> pa.Table:
    """What the first corpus step gets: `source, kind, content, fault`, one row per source."""
    rows = list(sources)
    return pa.table(
        {
            "source": pa.array([s.id for s in rows], pa.string()),
            "kind": pa.array([s.kind for s in rows], pa.string()),
            "content": pa.array([s.content for s in rows], pa.large_string()),
            "fault": fault_column([None] * len(rows)),
        }
    )
