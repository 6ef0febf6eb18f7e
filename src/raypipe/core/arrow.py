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


def required(**columns: pa.DataType) -> list[pa.Field]:
    """Columns of these types that are never null, in this order."""
    return [pa.field(name, kind, nullable=False) for name, kind in columns.items()]


STRING, INT = pa.string(), pa.int32()
DIGEST = pa.binary(16)
"""Ids that are digests. Records, files and people have the 32 hex digits that say the same."""
SPAN = pa.struct(required(start=INT, end=INT))
BLOCK = pa.struct(required(start=INT, end=INT, kind=STRING))
SPANS = ("source", "start", "end", "parent_start", "parent_end")
"""Columns that name a chunk: where it is in its source's parsed text, and where the passage around it."""
PARSED = pa.schema(
    {
        "source": DIGEST,
        "kind": STRING,
        "text": pa.large_string(),
        "hidden": pa.list_(SPAN),
        "blocks": pa.list_(BLOCK),
        "parser": STRING,
    }
)
"""Columns that the first corpus step of a recipe gives, but for its faults: one row per source."""
SCORES = pa.map_(STRING, pa.float64())
STRINGS = pa.list_(STRING)

FAULT = pa.struct(required(step=STRING, reason=STRING, detail=STRING, transient=pa.bool_()))
HIT = pa.struct(required(chunk=STRING, source=DIGEST, span=SPAN, scores=SCORES))
QUOTE = pa.struct(required(source=DIGEST, span=SPAN))
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
    *(pa.field(n, DIGEST) for n in ("page", "snippet", "name")),
]

SOURCES = pa.schema(required(id=DIGEST, kind=STRING, content=pa.large_string()))
CITATIONS = pa.schema(_CITATION_FIELDS)
DOCUMENTS = pa.schema(
    [*required(id=STRING, title=STRING, source=DIGEST), pa.field("fields", pa.map_(STRING, STRING))]
)
_MARK_FIELDS = required(start=INT, end=INT, label=STRING)
_MARKS = pa.list_(pa.struct(_MARK_FIELDS))
LAYOUTS = pa.schema(
    required(
        id=STRING, source=DIGEST, url=STRING, title=STRING, pages=_MARKS, sections=_MARKS, modified=STRING
    )
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
            replies=pa.map_(STRING, REPLY),
            hits=pa.list_(HIT),
            order=STRINGS,
            answer=STRING,
            outcome=STRING,
            origin=STRING,
            faults=pa.list_(FAULT),
            degraded=STRINGS,
        ),
        pa.field("due", pa.float64()),
        pa.field("where", STRING),
        pa.field("turns", pa.list_(pa.struct(required(role=STRING, text=STRING)))),
    ]
)
ADDED = frozenset({"fields", "turns", "where"})
"""Columns that came after stores were in use. A table of before lacks them until a driver opens it
(`Store.lease`); null stands for the default of the record's field."""

R = TypeVar("R")
Convert = Callable[[Any], Any]


@cache
def _out(kind: pa.DataType) -> Convert:
    """Returns how a record's value becomes what pyarrow takes as this type."""
    if pa.types.is_map(kind):
        inner = _out(kind.item_type)
        return lambda mapping: [(key, inner(value)) for key, value in mapping.items()]
    if pa.types.is_list(kind):
        item = _out(kind.value_type)
        return lambda values: None if values is None else [item(value) for value in values]
    if kind == DIGEST:
        return lambda id: id and bytes.fromhex(id)
    if kind == SPAN:
        return lambda span: {"start": span[0], "end": span[1]}
    if pa.types.is_struct(kind):
        fields = [(f.name, _out(f.type)) for f in kind]
        return lambda record: None if record is None else {n: _value(record, n, out) for n, out in fields}
    return lambda value: value


def _value(record: Any, name: str, out: Convert) -> Any:
    value = getattr(record, name)
    return None if name in ADDED and not value else out(value)


@cache
def _into(hint: Any) -> Convert:
    """Returns how what pyarrow gives becomes a value of this type."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint == Span:
        return lambda span: (span["start"], span["end"])
    if dataclasses.is_dataclass(hint):
        cls: Any = hint
        fields = {name: _into(kind) for name, kind in typing.get_type_hints(cls).items()}
        return lambda row: cls(
            **{n: fields[n](value) for n, value in row.items() if n not in ADDED or value is not None}
        )
    if origin in (typing.Union, UnionType):
        some = _into(args[0])
        return lambda value: None if value is None else some(value)
    if origin is tuple:
        item = _into(args[0])
        return lambda values: tuple(map(item, values))
    if origin is Mapping:
        inner = _into(args[1])
        return lambda pairs: {key: inner(value) for key, value in pairs}
    return lambda value: value.hex() if isinstance(value, bytes) else value


@dataclass(frozen=True, slots=True)
class Codec(Generic[R]):
    """Conversion of a record type to rows of a schema, and back. Fields that it lacks have their defaults."""

    record: Callable[..., R]  # the class
    schema: pa.Schema

    def table(self, records: Iterable[R]) -> pa.Table:
        out = _out(pa.struct(list(self.schema)))
        return pa.Table.from_pylist([out(r) for r in records], schema=self.schema)

    def records(self, table: pa.Table) -> list[R]:
        names = [n for n in self.schema.names if n not in ADDED or n in table.schema.names]
        return list(map(_into(self.record), table.select(names).to_pylist()))


source = Codec(Source, SOURCES)
citation = Codec(Citation, CITATIONS)
document = Codec(Document, DOCUMENTS)
layout = Codec(Layout, LAYOUTS)
question = Codec(Question, QUESTIONS)
gold = Codec(Gold, GOLDS)
relevance = Codec(Gold, RELEVANCE)
"""The other half of a gold, in a table of its own that only a store with judged documents has."""
annotated = Codec(Gold, ANNOTATIONS)
"""Answers of annotators, in a table of its own that only a store with questions about papers has."""


def id_column(ids: Iterable[str], kind: pa.DataType = DIGEST) -> pa.Array:
    """Ids as a column. Raises ValueError where one of digests is none.

    >>> id_column(["0" * 31 + "a"]).type, id_texts(id_column(["0" * 31 + "a"]))
    (FixedSizeBinaryType(fixed_size_binary[16]), ['0000000000000000000000000000000a'])
    """
    return pa.array(map(bytes.fromhex, ids) if kind == DIGEST else list(ids), kind)


def id_texts(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column; of ids that are digests the hex digits."""
    values: list[Any] = column.to_pylist()
    return [v and v.hex() for v in values] if column.type == DIGEST else values


def with_id_texts(value: Any) -> Any:
    """Puts the hex digits of each id that is a digest into rows of `to_pylist`."""
    if isinstance(value, dict):
        return {name: with_id_texts(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(with_id_texts, value))
    return value.hex() if isinstance(value, bytes) else value


def file_of(rows: pa.Table, batch: int | None = None) -> pa.Buffer:
    """A table as the content of one file. `batch`: rows that can be read at a time; None: as they are."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=batch)
    return sink.getvalue()


def rows_of(content: bytes) -> pa.Table:
    return pa.ipc.open_file(content).read_all()


def fault_column(faults: Sequence[Fault | None]) -> pa.Array:
    """The `fault` column of a corpus table: null where the row is fine."""
    return pa.array([None if f is None else dataclasses.asdict(f) for f in faults], type=FAULT)


def corpus_table(sources: Iterable[Source]) -> pa.Table:
    """Returns what the first corpus step gets: `source, kind, content, fault`, one row per source."""
    rows = list(sources)
    columns = {
        "source": id_column(s.id for s in rows),
        "kind": pa.array([s.kind for s in rows], STRING),
        "content": pa.array([s.content for s in rows], pa.large_string()),
    }
    return pa.table({**columns, "fault": fault_column([None] * len(rows))})
