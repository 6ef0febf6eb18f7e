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


def required(**columns: pa.DataType) -> list[pa.Field]:
    """Columns of these types that are never null, in this order."""
    return [pa.field(name, kind, nullable=False) for name, kind in columns.items()]


STRING, INT = pa.string(), pa.int32()
SPAN = pa.struct(required(start=INT, end=INT))
BLOCK = pa.struct(required(start=INT, end=INT, kind=STRING))
SPANS = ("source", "start", "end", "parent_start", "parent_end")
"""Columns that name a chunk: where it is in its source's parsed text, and where the passage around it."""
PARSED = pa.schema(
    {
        "source": STRING, "kind": STRING, "text": pa.large_string(), "hidden": pa.list_(SPAN),
        "blocks": pa.list_(BLOCK), "parser": STRING,
    }
)  # fmt: skip
"""What the first corpus step of a recipe gives, but for its faults: one row per source."""
SCORES = pa.map_(STRING, pa.float64())
STRINGS = pa.list_(STRING)

FAULT = pa.struct(required(step=STRING, reason=STRING, detail=STRING, transient=pa.bool_()))
HIT = pa.struct(required(chunk=STRING, source=STRING, span=SPAN, scores=SCORES))
QUOTE = pa.struct(required(source=STRING, span=SPAN))
REPLY = pa.struct(
    [
        *required(text=STRING, label=STRING),
        pa.field("confidence", pa.float64()),
        pa.field("logprob", pa.float64()),
        *required(quotes=pa.list_(QUOTE)),
        pa.field("fault", FAULT),
    ]
)
_CITATION_FIELDS = [
    *required(question=STRING, rank=INT, url=STRING, modified=STRING),
    *(pa.field(n, STRING) for n in ("page", "snippet", "name")),
]

SOURCES = pa.schema(required(id=STRING, kind=STRING, content=pa.large_string()))
CITATIONS = pa.schema(_CITATION_FIELDS)
DOCUMENTS = pa.schema(required(id=STRING, title=STRING, source=STRING))
_MARK_FIELDS = required(start=INT, end=INT, label=STRING)
_MARKS = pa.list_(pa.struct(_MARK_FIELDS))
LAYOUTS = pa.schema(
    required(id=STRING, source=STRING, url=STRING, title=STRING, pages=_MARKS, sections=_MARKS)
)
GOLDS = pa.schema(required(question=STRING, answers=STRINGS, labels=pa.map_(STRING, STRING)))
RELEVANCE = pa.schema(required(question=STRING, grades=pa.map_(STRING, INT)))
ANNOTATOR = pa.struct(required(answer=STRING, kind=STRING, evidence=STRINGS))
ANNOTATIONS = pa.schema(required(question=STRING, annotators=pa.list_(ANNOTATOR)))
QUESTIONS = pa.schema(
    [
        *required(id=STRING, text=STRING, body=STRING, asked_at=STRING),
        pa.field("citations", pa.list_(pa.struct(_CITATION_FIELDS))),
        *required(
            replies=pa.map_(STRING, REPLY), hits=pa.list_(HIT), order=STRINGS, answer=STRING, outcome=STRING,
            origin=STRING, faults=pa.list_(FAULT), degraded=STRINGS,
        ),
        pa.field("due", pa.float64()),
    ]
)  # fmt: skip

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


def file_of(rows: pa.Table, batch: int | None = None) -> pa.Buffer:
    """A table as the content of one file. `batch`: rows that can be read at a time; None: as they are."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=batch)
    return sink.getvalue()


def rows_of(content: bytes) -> pa.Table:
    """The table in such a file."""
    return pa.ipc.open_file(content).read_all()


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
