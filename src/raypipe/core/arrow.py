"""Conversion of records to Arrow tables and back; one schema per record.

Columns of a corpus table, in the order in which the corpus steps add them:

    source, kind, content, fault      input: one row per source
    text, hidden, blocks, parser      parse: drops content
    words_NAME, starts_NAME           tokenize (NAME is the analyzer)
    start, end, parent_start, parent_end, chunk_text      split: one row per chunk; keeps only source, fault
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
    """Returns non-null columns of these types, in this order."""
    return [pa.field(name, kind, nullable=False) for name, kind in columns.items()]


STRING, INT = pa.string(), pa.int32()
DIGEST = pa.binary(16)
"""Type of ids that are digests. In records, files and messages such an id is 32 hex digits."""
SPAN = pa.struct(required(start=INT, end=INT))
BLOCK = pa.struct(required(start=INT, end=INT, kind=STRING))
SPANS = ("source", "start", "end", "parent_start", "parent_end")
"""Columns that locate a chunk: its source, its span in the parsed text, its passage's span."""
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
"""Columns that a recipe's first corpus step returns, besides `fault`: one row per source."""
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
"""Columns added to the schemas of stores in use. An older table lacks them until a driver opens it
(`Store.lease`). Null means the default of the record's field."""

R = TypeVar("R")
Convert = Callable[[Any], Any]


@cache
def _out(kind: pa.DataType) -> Convert:
    """Returns the function that converts a record's value to pyarrow input of this type."""
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
    """Returns the function that converts pyarrow output to a value of this type."""
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
    """Conversion of a record type to rows of a schema, and back. Fields without a column get defaults."""

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
"""Codec of the table that holds the graded documents of golds."""
annotated = Codec(Gold, ANNOTATIONS)
"""Codec of the table that holds annotators' answers to questions about papers."""


def id_column(ids: Iterable[str], kind: pa.DataType = DIGEST) -> pa.Array:
    """Returns ids as a column of a type. Raises ValueError if the type is DIGEST and an id is no digest.

    >>> id_column(["0" * 31 + "a"]).type, id_texts(id_column(["0" * 31 + "a"]))
    (FixedSizeBinaryType(fixed_size_binary[16]), ['0000000000000000000000000000000a'])
    """
    return pa.array(map(bytes.fromhex, ids) if kind == DIGEST else list(ids), kind)


def id_texts(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Returns the values of a column as a list, digests as hex digits."""
    values: list[Any] = column.to_pylist()
    return [v and v.hex() for v in values] if column.type == DIGEST else values


def with_id_texts(value: Any) -> Any:
    """Replaces the binary ids in rows of `to_pylist` by their hex digits."""
    if isinstance(value, dict):
        return {name: with_id_texts(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(with_id_texts, value))
    return value.hex() if isinstance(value, bytes) else value


def file_of(rows: pa.Table, batch: int | None = None) -> pa.Buffer:
    """Serializes a table as an Arrow file. `batch` limits the rows of a batch; None keeps the batches."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=batch)
    return sink.getvalue()


def rows_of(content: bytes) -> pa.Table:
    return pa.ipc.open_file(content).read_all()


def fault_column(faults: Sequence[Fault | None]) -> pa.Array:
    """Returns the `fault` column of a corpus table: null for a row without a fault."""
    return pa.array([None if f is None else dataclasses.asdict(f) for f in faults], type=FAULT)


def corpus_table(sources: Iterable[Source]) -> pa.Table:
    """Returns the input of the first corpus step, one row per source: `source, kind, content, fault`."""
    rows = list(sources)
    columns = {
        "source": id_column(s.id for s in rows),
        "kind": pa.array([s.kind for s in rows], STRING),
        "content": pa.array([s.content for s in rows], pa.large_string()),
    }
    return pa.table({**columns, "fault": fault_column([None] * len(rows))})
