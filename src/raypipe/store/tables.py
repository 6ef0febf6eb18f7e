"""The tables of a store: names, columns, keys and indexes, and the checks that rows must pass.

Imports Arrow and the records' schemas, but not Lance. Rows are written elsewhere (parts: `store.parts`).

| table | one row per | written by |
|---|---|---|
| `sources documents layouts questions golds` | ingested record | `commit.stage`; `sources`: parts, too |
| `relevance annotations` | question with judged documents, with annotators' answers | `commit.stage` |
| `faults` | failed row, step and work | parts |
| `texts-D passages-D vectors-D` | source, chunk, chunk; D: digest of the stages up to there | parts |
| `postings-D lengths-D` | word of a segment, passage; D: digest of the split and an analyzer | parts |
| `answers` | question, row key and recipe | parts |
| `embeddings-M scores-M replies-M` | cached request; M: identity of the model | `store.memo.disk.fold` |
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core import arrow
from raypipe.core.errors import ConfError, DataError

DIGEST, STRING, INT, LONG = arrow.DIGEST, pa.string(), pa.int32(), pa.int64()
PASSAGES = pa.schema(arrow.required(source=DIGEST, **dict.fromkeys(arrow.SPANS[1:], INT)))
FAULTS = pa.schema(
    arrow.required(
        id=STRING,  # the failed row: a source, a question or a line of a file
        step=STRING,
        reason=STRING,
        detail=STRING,
        transient=pa.bool_(),
        attempts=INT,  # failed tries of the row
        digest=STRING,  # of the failed work: a table of sources, the key of an answer, the files of a line
        run=STRING,
    )
)
LENGTHS = pa.schema(
    arrow.required(
        source=DIGEST,
        parent_start=INT,
        parent_end=INT,
        segment=LONG,
        passage=INT,  # its number in the segment; -1 in the row of a source without passages
        words=INT,
    )
)
POSTINGS = pa.schema(
    arrow.required(
        word=LONG,  # the bits of its hash (`text.words.word_hash`)
        segment=LONG,
        size=INT,  # passages of the segment
        found=INT,  # passages that hold the word
        passages=pa.list_(INT),  # their numbers, ascending
        counts=pa.list_(INT),  # occurrences of the word in each of them
    )
)
ANSWERS = pa.schema([*arrow.required(key=DIGEST, recipe=DIGEST, row=DIGEST), *arrow.QUESTIONS])
"""The key is the digest of recipe digest, question id and row key, so one anti-join finds missing answers."""


def vectors_schema(dim: int, half: bool = False) -> pa.Schema:
    """Returns the columns of a table of vectors: a chunk's span and its unit vector, float16 if `half`."""
    number = pa.float16() if half else pa.float32()
    return PASSAGES.append(pa.field("vector", pa.list_(number, dim), nullable=False))


def embeddings_schema(dim: int) -> pa.Schema:
    """Returns the columns of a memo of vectors, all of size `dim`: each model has its own table."""
    return pa.schema(arrow.required(key=DIGEST, vector=pa.list_(pa.float32(), dim)))


SCORES = pa.schema(arrow.required(key=DIGEST, score=pa.float32()))
REPLIES = pa.schema(
    [
        *arrow.required(
            key=STRING,  # for a server's reply that expires, with its refresh period (`memo.request_key`)
            text=STRING,
            finish=STRING,
            prompt_tokens=INT,
            cached_tokens=INT,
            generated_tokens=INT,
        ),
        pa.field("logprob", pa.float64()),
        *arrow.required(
            recipe=STRING,  # digest of the recipe that sent the request; "": unknown
            questions=pa.list_(STRING),  # ids of the questions for which it was sent; []: unknown
        ),
    ]
)
"""Keys are digests, so only `recipe` and `questions` lead from a reply back to the texts in its prompt."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Properties of every table of a kind."""

    columns: pa.Schema  # columns that every such table has
    more: bool  # True: a table may have further columns, fixed when it is made
    key: tuple[str, ...]  # unique together: no two rows agree on all of these columns
    unit: str | None  # column; all rows with one value of it are in one part of one run. None: no such column
    indexes: tuple[str, ...]  # columns with a BTREE


_ID = ("id",)
KINDS: dict[str, Kind] = {
    "sources": Kind(arrow.SOURCES, False, _ID, "id", _ID),
    "documents": Kind(arrow.DOCUMENTS, False, _ID, "id", _ID),
    "layouts": Kind(arrow.LAYOUTS, False, _ID, "id", ("id", "source")),
    "questions": Kind(arrow.QUESTIONS, False, _ID, "id", _ID),
    "golds": Kind(arrow.GOLDS, False, ("question",), "question", ("question",)),
    "relevance": Kind(arrow.RELEVANCE, False, ("question",), "question", ("question",)),
    "annotations": Kind(arrow.ANNOTATIONS, False, ("question",), "question", ("question",)),
    "faults": Kind(FAULTS, False, ("id", "step", "digest"), None, _ID),
    "answers": Kind(ANSWERS, False, ("key",), "key", ("key", "id")),
    "texts": Kind(pa.schema(arrow.required(source=DIGEST)), True, ("source",), "source", ("source",)),
    "passages": Kind(PASSAGES, False, tuple(PASSAGES.names), "source", ("source",)),
    "vectors": Kind(PASSAGES, True, tuple(PASSAGES.names), "source", ("source",)),
    "postings": Kind(POSTINGS, False, ("word", "segment"), None, ("word",)),
    "lengths": Kind(LENGTHS, False, ("source", "parent_start", "parent_end"), "source", ("source",)),
    "embeddings": Kind(pa.schema(arrow.required(key=DIGEST)), True, ("key",), "key", ("key",)),
    "scores": Kind(SCORES, False, ("key",), "key", ("key",)),
    "replies": Kind(REPLIES, False, ("key",), "key", ("key",)),
}
INGEST_TABLES = ("sources", "documents", "layouts", "questions", "golds", "relevance", "annotations")
BASE = (*INGEST_TABLES, "faults", "answers")
"""Tables without a digest in their name. Every store has them, except those in ON_DEMAND."""
ON_DEMAND = ("layouts", "relevance", "annotations")
"""Tables that the first ingest with such data makes: a folder or papers, judged documents, annotators'
answers."""

OF_SOURCES = ("texts-", "passages-", "vectors-", "lengths-")
"""Prefixes of tables whose rows belong to sources, by their column `source`."""
OF_MEMO = ("embeddings-", "scores-", "replies-")
"""Prefixes of tables with cached values."""

_NAME = re.compile(r"([a-z]+)(-[0-9a-f]{32})?")
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


def kind_of(table: str) -> Kind:
    """Returns the kind of a table. Raises ConfError for a name that no table can have."""
    match = _NAME.fullmatch(table)
    if match and match[1] in KINDS and (match[1] in BASE) == (match[2] is None):
        return KINDS[match[1]]
    raise ConfError(
        f"{table!r} is not the name of a table: expected one of {', '.join(BASE)}, or one of "
        f"{', '.join(k for k in KINDS if k not in BASE)} with - and 32 hex digits"
    )


def check_run(name: str) -> str:
    """Returns `name` unchanged. Raises ConfError if it cannot name a run, part or lease in a path."""
    if not _RUN.fullmatch(name):
        raise ConfError(
            f"{name!r} cannot name a run, part or lease: expected 1 to 100 letters, digits, - or _, and a "
            "letter or digit first"
        )
    return name


def table_schema(table: str, schema: pa.Schema) -> pa.Schema:
    """Returns the schema of a new table: `schema` with Lance's metadata, its fields replaced by those of the
    table's kind where they exist. Raises DataError for a missing, wrong or unexpected column."""
    kind = kind_of(table)
    fixed = {f.name: f for f in kind.columns}
    for f in kind.columns:
        if f.name not in schema.names or schema.field(f.name).type != f.type:
            found = schema.field(f.name).type if f.name in schema.names else "no such column"
            raise DataError(f"{table}: column {f.name} must be {f.type}, found {found}")
    if not kind.more and len(schema) > len(fixed):
        raise DataError(f"{table}: unexpected columns {sorted(set(schema.names) - set(fixed))}")
    fields = list[pa.Field]()
    for field in (fixed.get(f.name, f) for f in schema):
        if table in INGEST_TABLES and field.name in kind.key:
            # Lets Lance detect that two writers insert the same key; without it both rows stay, silently.
            field = field.with_metadata({"lance-schema:unenforced-primary-key": "true"})
        elif field.name == "content":
            # 11.5 MB of real pages become 1.87 MB, as small as with zstd by hand, and read as fast.
            field = field.with_metadata({"lance-encoding:compression": "zstd"})
        fields.append(field)
    return pa.schema(fields)


def checked(table: str, schema: pa.Schema, data: pa.Table) -> pa.Table:
    """Returns the rows in the column order of the table's schema. Raises DataError with the first problem: an
    unknown, missing or wrongly typed column, a null where none may be, bad UTF-8, an invalid vector, or a
    duplicate key."""
    extra, missing = set(data.schema.names) - set(schema.names), set(schema.names) - set(data.schema.names)
    if extra or missing:
        raise DataError(f"{table}: unexpected columns: {sorted(extra)}, missing: {sorted(missing)}")
    columns = [data[f.name].combine_chunks() for f in schema]
    for field, column in zip(schema, columns, strict=True):
        if column.type != field.type:
            raise DataError(f"{table}.{field.name}: expected {field.type}, found {column.type}")
        if column.null_count and not field.nullable:
            raise DataError(f"{table}.{field.name}: expected no null, found {column.null_count}")
        if field.name == "vector":
            shape = (len(column), column.type.list_size)  # (rows, dim); no rows if no source has a chunk
            numbers = column.flatten().to_numpy(zero_copy_only=False).reshape(shape)  # a null becomes nan
            bad = ~np.isfinite(numbers).all(axis=1) | ~numbers.any(axis=1)
            if bad.any():
                count, first = int(bad.sum()), int(bad.argmax())
                raise DataError(f"{table}: {count} vectors are not finite or all zero, first in row {first}")
    try:
        rows = pa.Table.from_arrays(columns, schema=schema)
        rows.validate(full=True)
    except pa.ArrowInvalid as e:
        raise DataError(f"{table}: {e}; a table with such a value could not be read") from e
    key = list(kind_of(table).key)
    counts = rows.group_by(key).aggregate([([], "count_all")])
    if counts.num_rows < rows.num_rows:
        first = counts.filter(pc.greater(counts["count_all"], 1)).slice(0, 1).select(key)
        twice = arrow.with_id_texts(first.to_pylist()[0])
        raise DataError(f"{table}: {rows.num_rows - counts.num_rows} rows are duplicates, such as {twice}")
    return rows


def with_chunkless(passages: pa.Table, sources: pa.Array) -> pa.Table:
    """Adds a row of zeros to a part's `passages` rows for each source without chunks.

    Without it, such a source would always look like missing work. Readers of passages skip these rows.
    """
    bare = sources.filter(pc.invert(pc.is_in(sources, value_set=passages["source"].combine_chunks())))
    zeros = [pa.array(np.zeros(len(bare), np.int32))] * len(arrow.SPANS[1:])
    rows = pa.Table.from_arrays([bare, *zeros], schema=PASSAGES)
    return pa.concat_tables([passages.select(PASSAGES.names).cast(PASSAGES), rows])
