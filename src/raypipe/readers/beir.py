"""BEIR's corpus and queries to documents with their sources, and questions over the whole collection.

One record of corpus.jsonl and one of queries.jsonl (other fields are not read):

    {"_id": "4983", "title": "Microstructural development of human newborn cerebral white matter ...",
     "text": "Alterations of the architecture of cerebral white matter in the developing human brain ..."}
    {"_id": "1", "text": "0-dimensional biomaterials show inductive properties."}

A document's source is its title, a newline and its text; documents of equal content share it. A question has
no citations: it may search everything. Relevance judgements (`qrels`) are its gold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType

from raypipe.core.records import Document, Gold, Question
from raypipe.readers.lines import JsonLine
from raypipe.readers.newest import Seen
from raypipe.readers.rows import ReadCounts, Row, field, filled, identifier, settled, source_of


def documents(lines: Iterable[JsonLine], counts: ReadCounts, seen: Seen) -> Iterator[Row]:
    """A row for each line of a corpus; a document with blank title and text is counted and omitted."""
    for line in lines:
        if row := settled(line.where, partial(_document, line), counts, seen.repeats):
            yield row


def queries(
    lines: Iterable[JsonLine],
    counts: ReadCounts,
    seen: Seen,
    grades: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
) -> Iterator[Row]:
    """A row for each line of queries. `grades`: query -> judged document -> relevance."""
    for line in lines:
        if row := settled(line.where, partial(_question, line, grades), counts, seen.repeats):
            yield row


def _document(line: JsonLine) -> Row | None:
    value = line.unwrap()
    id, title = identifier(value, "_id"), field(value, "title", str) if "title" in value else ""
    content = f"{title}\n{field(value, 'text', str)}"
    if content.isspace():
        return None
    source = source_of("document", content)
    return Row(line.where, document=Document(id, title, source.id), sources=(source,))


def _question(line: JsonLine, grades: Mapping[str, Mapping[str, int]]) -> Row:
    value = line.unwrap()
    id = identifier(value, "_id")
    gold = Gold(id, (), {}, grades[id]) if id in grades else None
    return Row(line.where, Question(id=id, text=filled(value, "text")), gold)
