"""Records to Arrow and back; one schema per record. Knows pyarrow and the records, nothing of storage.

Corpus columns, in the order in which the corpus steps add them (one row per source, then one row per chunk):

    source, kind, content, fault      what comes in
    text, hidden, blocks              parse
    words_NAME, starts_NAME           tokenize (NAME is the analyzer)
    start, end, parent_start, parent_end, chunk_text      split (one row per chunk; text ... starts_NAME end)
    vector                            embed
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Any, Generic, TypeVar

import pyarrow as pa

from raypipe.core.records import Citation, Document, Fault, Gold, Layout, Question, Source, Span

TEXT, LONG_TEXT, INT, FLOAT = pa.string(), pa.large_string(), pa.int32(), pa.float64()


def _fields(nullable: bool = False, **types: pa.DataType) -> list[pa.Field]:
    return [pa.field(name, kind, nullable) for name, kind in types.items()]


STRINGS = pa.list_(TEXT)
SPAN = pa.struct(_fields(start=INT, end=INT))
BLOCK = pa.struct(_fields(start=INT, end=INT, kind=TEXT))
SPANS = ("source", "start", "end", "parent_start", "parent_end")
"""Columns that name a chunk: where it is in its source's parsed text, and where the passage around it."""
PARSED = pa.schema(
    _fields(
        True,
        source=TEXT,
        kind=TEXT,
        text=LONG_TEXT,
        hidden=pa.list_(SPAN),
        blocks=pa.list_(BLOCK),
        parser=TEXT,
    )
)
"""What the first corpus step of a recipe gives, but for its faults: one row per source."""

FAULT = pa.struct(_fields(step=TEXT, reason=TEXT, detail=TEXT, transient=pa.bool_()))
HIT = pa.struct(_fields(chunk=TEXT, source=TEXT, span=SPAN, scores=pa.map_(TEXT, FLOAT)))
QUOTE = pa.struct(_fields(source=TEXT, span=SPAN))
REPLY = pa.struct(
    [
        *_fields(text=TEXT, label=TEXT),
        *_fields(True, confidence=FLOAT, logprob=FLOAT),
        *_fields(quotes=pa.list_(QUOTE)),
        *_fields(True, fault=FAULT),
    ]
)
CITATIONS = pa.schema(
    [
        *_fields(question=TEXT, rank=INT, url=TEXT, modified=TEXT),
        *_fields(True, page=TEXT, snippet=TEXT, name=TEXT),
    ]
)
MARKS = pa.list_(pa.struct(_fields(start=INT, end=INT, label=TEXT)))
ANNOTATOR = pa.struct(_fields(answer=TEXT, kind=TEXT, evidence=STRINGS))

SOURCES = pa.schema(_fields(id=TEXT, kind=TEXT, content=LONG_TEXT))
DOCUMENTS = pa.schema(_fields(id=TEXT, title=TEXT, source=TEXT))
LAYOUTS = pa.schema(_fields(id=TEXT, source=TEXT, url=TEXT, title=TEXT, pages=MARKS, sections=MARKS))
GOLDS = pa.schema(_fields(question=TEXT, answers=STRINGS, labels=pa.map_(TEXT, TEXT)))
RELEVANCE = pa.schema(_fields(question=TEXT, grades=pa.map_(TEXT, INT)))
ANNOTATIONS = pa.schema(_fields(question=TEXT, annotators=pa.list_(ANNOTATOR)))
QUESTIONS = pa.schema(
    [
        *_fields(id=TEXT, text=TEXT, body=TEXT, asked_at=TEXT),
        *_fields(True, citations=pa.list_(pa.struct(list(CITATIONS)))),
        *_fields(replies=pa.map_(TEXT, REPLY), hits=pa.list_(HIT), order=STRINGS),
        *_fields(answer=TEXT, outcome=TEXT, origin=TEXT, faults=pa.list_(FAULT), degraded=STRINGS),
        *_fields(True, due=FLOAT),
    ]
)

R = TypeVar("R")
Convert = Callable[[Any], Any]


@cache
def _out(kind: pa.DataType) -> Convert:
    """How a record's value becomes what pyarrow takes as this type."""
    if pa.types.is_map(kind):
        inner = _out(kind.item_type)
        return lambda mapping: [(key, inner(value)) for key, value in mapping.items()]
    if pa.types.is_list(kind):
        item = _out(kind.value_type)
        return lambda values: None if values is None else [item(value) for value in values]
    if kind == SPAN:
        return lambda span: {"start": span[0], "end": span[1]}
    if pa.types.is_struct(kind):
        fields = [(f.name, _out(f.type)) for f in kind]
        return lambda record: None if record is None else {n: out(getattr(record, n)) for n, out in fields}
    return lambda value: value


@cache
def _into(hint: Any) -> Convert:
    """How what pyarrow gives becomes a value of this type."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint == Span:
        return lambda span: (span["start"], span["end"])
    if dataclasses.is_dataclass(hint):
        cls: Any = hint
        fields = {name: _into(kind) for name, kind in typing.get_type_hints(cls).items()}
        return lambda row: cls(**{name: fields[name](value) for name, value in row.items()})
    if origin in (typing.Union, UnionType):
        some = _into(args[0])
        return lambda value: None if value is None else some(value)
    if origin is tuple:
        item = _into(args[0])
        return lambda values: tuple(map(item, values))
    if origin is Mapping:
        inner = _into(args[1])
        return lambda pairs: {key: inner(value) for key, value in pairs}
    return lambda value: value


@dataclass(frozen=True, slots=True)
class Codec(Generic[R]):
    """How one record type becomes rows of one schema, and back. Fields that it lacks have their defaults."""

    record: Callable[..., R]  # the class
    schema: pa.Schema

    def table(self, records: Iterable[R]) -> pa.Table:
        out = _out(pa.struct(list(self.schema)))
        return pa.Table.from_pylist([out(r) for r in records], schema=self.schema)

    def records(self, table: pa.Table) -> list[R]:
        return list(map(_into(self.record), table.select(self.schema.names).to_pylist()))


source = Codec(Source, SOURCES)
citation = Codec(Citation, CITATIONS)
document = Codec(Document, DOCUMENTS)
layout = Codec(Layout, LAYOUTS)
question = Codec(Question, QUESTIONS)
gold = Codec(Gold, GOLDS)
relevance = Codec(Gold, RELEVANCE)
"""The other half of a gold, in a table of its own that only a store with judged documents has."""
annotated = Codec(Gold, ANNOTATIONS)
"""What annotators say, in a table of its own that only a store with questions about papers has."""


def fault_column(faults: Sequence[Fault | None]) -> pa.Array:
    """The `fault` column of a corpus table: null where the row is fine."""
    return pa.array([None if f is None else dataclasses.asdict(f) for f in faults], type=FAULT)


def corpus_table(sources: Iterable[Source]) -> pa.Table:
    """What the first corpus step gets: `source, kind, content, fault`, one row per source."""
    rows = list(sources)
    columns = {
        "source": pa.array([s.id for s in rows], TEXT),
        "kind": pa.array([s.kind for s in rows], TEXT),
        "content": pa.array([s.content for s in rows], LONG_TEXT),
    }
    return pa.table({**columns, "fault": fault_column([None] * len(rows))})
