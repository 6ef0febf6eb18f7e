"""Fields of sources (url, title, date, ...), and the sources that a filter on them matches.

A source has a row for each place of its text: each document with this text, and each citation of it in a
stored question. It matches a filter if one of its rows does. Any row may have the fields `url`, `host`,
`folder`, `title` and `date`; a document also has the fields that its reader found. Values are texts; a
field's type is the strictest type that all its values have.

pyarrow evaluates conditions on columns: no field value and no request text ever becomes part of a query. This
module reads the tables of documents, layouts (a document's path, pages and sections) and questions.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from email.utils import parsedate_to_datetime
from functools import cached_property, reduce
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceDataset

from raypipe.core import arrow
from raypipe.core.arrow import id_column, id_texts
from raypipe.core.config import did_you_mean
from raypipe.core.records import Citation, Layout
from raypipe.store.database import Store
from raypipe.store.errors import reaching
from raypipe.store.ids import HEX, rows
from raypipe.text.filters import ConditionError, Filters, Node, Test, host_matches, parse, tests_of
from raypipe.text.typed_answers import DAY_IN_NAME

LAYOUTS = "layouts"  # the table of layouts
NAMED = ("documents", "questions")
"""Tables that, together with `layouts`, record the places of sources and their fields."""
FieldType: TypeAlias = Literal["text", "number", "boolean", "date"]
PARTS: Final = ("page", "snippet", "name")  # the parts of a citation that are sources
OF_ALL: Final = ("url", "host", "folder", "title", "date")  # fields that any row may have
KEPT = 32  # most filters whose matching rows are cached
SHOWN = 200  # most fields of documents that a list shows
_NAMED = ("id", "source", "title", "fields")
_FIELDS = pa.map_(pa.string(), pa.string())
_SCHEMA = pa.schema(
    {
        "source": arrow.DIGEST,
        "url": pa.string(),
        "modified": pa.string(),
        "title": pa.string(),
        "fields": _FIELDS,
    }
)
_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?$"
_DAY = r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$"
_TRUTHS = pa.array(["true", "false"])
_COMPARE: Mapping[str, Any] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "like": pc.match_like,
}


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a store's documents, as the list of fields shows it."""

    name: str
    type: FieldType
    rows: int  # rows with this field, of documents and of citations
    example: str


class SourceFields:
    """Places of some sources, with the fields of each place."""

    def __init__(self, rows: pa.Table) -> None:
        """Keeps the places, one in each of `rows`, with columns source, url, modified, title, fields. If a
        source has several places, the first url that is given is the source's url."""
        self._rows = rows
        self._columns: dict[str, pa.Array] = {}
        self._within: dict[Filters, SourceFields] = {}
        self._lock = threading.RLock()

    @classmethod
    def cited(cls, questions: LanceDataset) -> SourceFields:
        """Reads the citations of stored questions. CRAG's 135,000 citations take seconds and 70 MB."""
        with reaching(questions.uri):
            asked = questions.to_table(["id", "citations"]).sort_by("id")["citations"]
        return cls(_of_citations(pc.list_flatten(asked).combine_chunks()))

    @classmethod
    def read(
        cls, documents: LanceDataset, layouts: LanceDataset | None, questions: LanceDataset
    ) -> SourceFields:
        """Reads all documents and citations from tables that are open at their versions."""
        with reaching(documents.uri):
            kept = [name for name in _NAMED if name in documents.schema.names]  # old tables lack `fields`
            named = documents.to_table(kept).sort_by("id")
            placed = layouts.to_table(["id", "url", "modified"]) if layouts else arrow.layout.table(())
        at = pc.index_in(named["id"].combine_chunks(), value_set=placed["id"].combine_chunks())
        place = placed.select(["url", "modified"]).take(at)
        fields = named["fields"] if "fields" in kept else pa.nulls(len(at), _FIELDS)
        held = pa.table([named["source"], *place.columns, named["title"], fields], schema=_SCHEMA)
        return cls(pa.concat_tables([cls.cited(questions)._rows, held]))

    @classmethod
    def of(cls, citations: Sequence[Citation]) -> SourceFields:
        """Builds the places from citations only, such as those of a request."""
        return cls(_of_citations(arrow.citation.table(citations).to_struct_array().combine_chunks()))

    def none(self) -> SourceFields:
        return SourceFields(self._rows.slice(0, 0))

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Ids of the sources, ascending."""
        return tuple(sorted(id_texts(self._rows["source"].unique())))

    def urls(self, sources: Sequence[str]) -> dict[str, str]:
        """Maps sources to their urls, the first of several; a source without a url is left out."""
        found = self._rows.filter(pc.is_in(self._rows["source"], value_set=id_column(sources)))
        pairs = zip(id_texts(found["source"]), found["url"].to_pylist(), strict=True)
        return {source: url for source, url in reversed(list(pairs)) if url is not None}

    def citations(self, question: str) -> tuple[Citation, ...]:
        """Makes a citation per source, ordered by id: the scope of a question about the whole store."""
        urls = self.urls(self.ids)
        cited = ((n, s, urls.get(s, "")) for n, s in enumerate(self.ids))
        return tuple(Citation(question, n, url, "", source, None, None) for n, source, url in cited)

    def within(self, filters: Filters) -> SourceFields:
        """Returns the places whose fields match. `check` must have accepted the conditions before, for the
        fields of all sources."""
        if not filters:
            return self
        with self._lock:
            if (matching := self._within.get(filters)) is None:
                while len(self._within) >= KEPT:
                    self._within.pop(next(iter(self._within)))
                matching = self._within[filters] = SourceFields(self._rows.filter(self._mask(filters)))
            return matching

    def narrowed(self, citations: Sequence[Citation], filters: Filters) -> tuple[Citation, ...]:
        """Keeps matching parts (page, snippet, name) of citations; drops citations without a part. A part
        matches by the citation's own fields, or by those of a stored place with the same text and url."""
        if not filters or not citations:
            return tuple(citations)
        own, here = SourceFields.of(citations)._rows, self._rows
        for name in ("source", "url"):
            here = here.filter(pc.is_in(here[name], value_set=own[name].combine_chunks()))
        rows = pa.concat_tables([own, here])
        rows = rows.filter(SourceFields(rows)._mask(filters))
        kept = set(zip(id_texts(rows["source"]), (u or "" for u in rows["url"].to_pylist()), strict=True))

        def part(c: Citation, source: str | None) -> str | None:
            return source if (source, c.url) in kept else None

        cited = (
            replace(c, page=part(c, c.page), snippet=part(c, c.snippet), name=part(c, c.name))
            for c in citations
        )
        return tuple(c for c in cited if c.sources())

    def fields(self) -> list[Field]:
        """Lists the fields with a value, by name: those in `OF_ALL`, and the 200 most frequent others."""
        given = pc.value_counts(self._rows["fields"].combine_chunks().keys).to_pylist()
        most = sorted(given, key=lambda x: (-x["counts"], x["values"]))[:SHOWN]
        found = (self.field(name) for name in sorted({*(x["values"] for x in most), *OF_ALL}))
        return [f for f in found if f is not None]

    def field(self, name: str) -> Field | None:
        """Describes a field; None if no place has it."""
        values = pc.drop_null(self.column(name))
        return Field(name, _type_of(values), len(values), values[0].as_py()) if len(values) else None

    def check(self, where: str) -> None:
        """Raises ConditionError for a malformed condition, an unknown field (with a list of the fields), or a
        value of another type. "" is valid."""
        for test in tests_of(parse(where)) if where else ():
            if (field := self.field(test.field)) is None:
                fields = self.fields()
                known = ", ".join(f"{f.name} ({f.type})" for f in fields) or "none"
                near = did_you_mean(test.field, (f.name for f in fields))
                meant = f"; {near}" if near.endswith("?") else ""
                raise ConditionError(f"where: expected a field that documents here have: {known}{meant}")
            types: set[FieldType] = {_TYPES.get(type(value), "text") for value in test.values}
            day = all(re.match(_DAY, str(value)) for value in test.values)
            if field.type == "date" and (day or test.op == "like"):
                types -= {"text"}
            if types - {field.type}:
                expected = f"expected {_EXPECTED[field.type]}, since its type is {field.type}"
                raise ConditionError(f"where: {test.field}: {expected}")

    def column(self, name: str) -> pa.Array:
        """Returns the values of a field as texts, (rows,); null for a place without it."""
        if (values := self._columns.get(name)) is not None:
            return values
        rows, urls = self._rows, self._rows["url"].to_pylist() if name in (*OF_ALL, *_PLACE) else ()
        if (place := _PLACE.get(name)) is not None:
            values = pa.array([place(url) if url else None for url in urls], pa.string())
        else:
            values = pc.map_lookup(rows["fields"].combine_chunks(), name, "first")
        if name == "title":
            titles = rows["title"].combine_chunks()
            values = pc.coalesce(values, pc.if_else(pc.equal(titles, ""), None, titles))
        elif name == "date":
            named = (DAY_IN_NAME.search(unquote(url or "")) for url in urls)
            days = (day_of_time("-".join(day.groups())) if day else "" for day in named)
            both = zip(days, rows["modified"].to_pylist(), strict=True)
            values = pc.coalesce(
                values, pa.array([d or day_of_time(t or "") or None for d, t in both], pa.string())
            )
        return self._columns.setdefault(name, values)

    def _mask(self, filters: Filters) -> pa.Array:
        """Marks the places that match: (rows,) bool."""
        masks = [pa.array([True] * self._rows.num_rows, pa.bool_())]
        if filters.where:
            masks.append(pc.fill_null(self.evaluate(parse(filters.where)), False))
        if filters.sources:
            known = [s for s in filters.sources if HEX.fullmatch(s)]
            masks.append(pc.is_in(self._rows["source"].combine_chunks(), value_set=id_column(known)))
        if filters.hosts:
            urls = self._rows["url"].to_pylist()
            masks.append(pa.array([host_matches(url or "", filters.hosts) for url in urls], pa.bool_()))
        return reduce(pc.and_, masks)

    def evaluate(self, node: Node) -> pa.Array:
        """Evaluates a condition: (rows,) bool, null if it is neither true nor false for a row."""
        if isinstance(node, Test):
            return self._test(node)
        parts = [self.evaluate(part) for part in node.parts]
        if node.op == "not":
            return pc.invert(parts[0])
        return reduce(pc.and_kleene if node.op == "and" else pc.or_kleene, parts)

    def _test(self, test: Test) -> pa.Array:
        column = self.column(test.field)
        if test.op == "null":
            return pc.is_null(column)
        if (encoded := f"{test.field} encoded") not in _PLACE:
            return self._compared(column, test)
        both = (self._compared(form, test) for form in (column, self.column(encoded)))
        return (pc.and_kleene if test.op == "!=" else pc.or_kleene)(*both)

    def _compared(self, column: pa.Array, test: Test) -> pa.Array:
        if isinstance(test.values[0], bool):
            column = pc.if_else(pc.is_in(column, value_set=_TRUTHS), pc.equal(column, "true"), None)
        elif isinstance(test.values[0], float):
            column = pc.if_else(pc.match_substring_regex(column, _NUMBER), column, None).cast(pa.float64())
        if test.op == "in":
            among = pc.is_in(column, value_set=pa.array(test.values, column.type))
            return pc.if_else(pc.is_valid(column), among, None)
        return _COMPARE[test.op](column, test.values[0])


_TYPES: Mapping[type, FieldType] = {bool: "boolean", float: "number"}
_EXPECTED: Mapping[FieldType, str] = {
    "text": "a text in single quotes",
    "number": "a number without quotes",
    "boolean": "true or false",
    "date": "a day, such as '2025-01-31'",
}


def _type_of(values: pa.Array) -> FieldType:
    """Returns the strictest type that all texts have."""
    if pc.all(pc.is_in(values, value_set=_TRUTHS)).as_py():
        return "boolean"
    if pc.all(pc.match_substring_regex(values, _NUMBER)).as_py():
        return "number"
    return "date" if pc.all(pc.match_substring_regex(values, _DAY)).as_py() else "text"


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:  # a page may cite anything
        return None


def _folder(url: str) -> str | None:
    return None if "://" in url else url.rpartition("/")[0] or None


_PLACE: Mapping[str, Any] = {
    "url": unquote,
    "host": _host,
    "folder": lambda url: _folder(unquote(url)),
    "url encoded": str,  # as in replies; a condition on `url` or `folder` takes both forms
    "folder encoded": _folder,
}


def day_of_time(text: str) -> str:
    """Extracts the day from a time as files, servers and search engines write it; "" for any other text.

    >>> day_of_time("2025-03-01T09:30:00"), day_of_time("Fri, 01 Mar 2024 10:00:00 GMT"), day_of_time("soon")
    ('2025-03-01', '2024-03-01', '')
    """
    with suppress(ValueError, IndexError):
        return date.fromisoformat(text[:10]).isoformat()
    with suppress(ValueError, TypeError, IndexError):
        return parsedate_to_datetime(text[:80]).date().isoformat()
    return ""


def _of_citations(cited: pa.Array) -> pa.Table:
    """Makes rows from citations (a struct array): one for each part that is a source."""
    parts = []
    for part in PARTS:
        here = cited.filter(pc.is_valid(pc.struct_field(cited, part)))
        source, url, modified = (pc.struct_field(here, name) for name in (part, "url", "modified"))
        none = pa.nulls(len(here), pa.string())
        url = pc.if_else(pc.equal(url, ""), None, url)
        fields = pa.nulls(len(here), _FIELDS)
        parts.append(pa.table([source, url, modified, none, fields], _SCHEMA))
    return pa.concat_tables(parts)


def layouts_at(store: Store, version: int | None = None) -> LanceDataset | None:
    """Opens the layouts at a version (None: the newest). Returns None without a table, and for version 0."""
    return store.dataset(LAYOUTS, version) if version != 0 and store.has(LAYOUTS) else None


def layouts_of(dataset: LanceDataset | None, sources: Collection[str]) -> dict[str, Layout]:
    """Maps sources to their layouts. Of several documents with the same text, the first by id counts."""
    if dataset is None or not sources:
        return {}
    found = arrow.layout.records(rows(dataset, "source", sorted(sources)))
    return {x.source: x for x in sorted(found, key=lambda x: x.id, reverse=True)}


def fields_now(store: Store) -> SourceFields:
    """Reads the fields of all documents and citations that a store has now."""
    documents, questions = map(store.dataset, NAMED)
    return SourceFields.read(documents, layouts_at(store), questions)
