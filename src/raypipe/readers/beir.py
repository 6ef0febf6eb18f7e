"""BEIR's corpus and queries to documents with their sources, and questions over the whole collection.

One record of corpus.jsonl and one of queries.jsonl (other fields are not read):

    {"_id": "4983", "title": "Microstructural development of human newborn cerebral white matter ...",
     "text": "Alterations of the architecture of cerebral white matter in the developing human brain ..."}
    {"_id": "1", "text": "0-dimensional biomaterials show inductive properties."}

A document's source is its title, a newline and its text; documents of equal content share it. A question has
no citations: it may search everything. Relevance judgements (`qrels`) are its gold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from raypipe.core.records import Document, Gold, Question, Source, source_id
from raypipe.readers.lines import JsonLine
from raypipe.readers.rows import DuplicateCheck, ReadCounts, Row, UnusableLine, field, filled


def documents(lines: Iterable[JsonLine], counts: ReadCounts, seen: DuplicateCheck) -> Iterator[Row]:
    """A row for each line of a corpus; a document with blank title and text is counted and omitted."""
    return _rows(lines, counts, seen, _document)


def queries(
    lines: Iterable[JsonLine],
    counts: ReadCounts,
    seen: DuplicateCheck,
    grades: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
) -> Iterator[Row]:
    """A row for each line of queries. `grades`: query -> judged document -> relevance."""

    def judged(where: str, value: Mapping[str, Any]) -> Row:
        row = _question(where, value)
        of = grades.get(_id(value))
        return row if of is None else replace(row, gold=Gold(_id(value), (), {}, of))

    return _rows(lines, counts, seen, judged)


def _rows(
    lines: Iterable[JsonLine], counts: ReadCounts, seen: DuplicateCheck,
    make: Callable[[str, Mapping[str, Any]], Row | None],
) -> Iterator[Row]:  # fmt: skip
    for line in lines:
        try:
            value = line.unwrap()
            row = make(line.where, value)
            if row is None:
                counts.empty_documents += 1
                continue
            if seen.repeats(_id(value), (row.document, row.question), line.where):
                counts.repeated_rows += 1
                continue
            counts.rows += 1
        except UnusableLine as e:
            row = Row(line.where, faults=(e.fault,))
            counts.faults += 1
        yield row


def _document(where: str, value: Mapping[str, Any]) -> Row | None:
    id, title, text = _id(value), _title(value), field(value, "text", str)
    content = f"{title}\n{text}"
    if content.isspace():
        return None
    source = Source(source_id("document", content), "document", content)
    return Row(where, document=Document(id, title, source.id), sources=(source,))


def _question(where: str, value: Mapping[str, Any]) -> Row:
    return Row(where, question=Question(id=_id(value), text=filled(value, "text")))


def _id(value: Mapping[str, Any]) -> str:
    if "_id" in value and value["_id"] in (None, ""):
        raise UnusableLine("no_id", f"_id: expected text, found {value['_id']!r}")
    return filled(value, "_id")


def _title(value: Mapping[str, Any]) -> str:
    title: str = field(value, "title", str) if "title" in value else ""
    return title
