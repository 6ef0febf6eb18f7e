"""A user's own rows, with a map of their fields, to questions, golds, documents and sources.

One record, as its fields map may find it:

    {"qid": 17, "question": "who directed velora?", "answers": ["Anna Lindqvist", "A. Lindqvist"],
     "contexts": [{"url": "https://example.org/velora", "title": "Velora", "html": "<p>..."}]}

Answers are a text, a number, a list of them, or an object with `text` or `value` and `aliases` (SQuAD,
TriviaQA). Documents are texts, objects, pairs of title and sentences, or paths of files next to the data. A
question without a field of documents may search the whole store. A row without a question is a document.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from raypipe.core.records import Citation, Document, Fault, Gold, Layout, Mark, Question, Source, digest
from raypipe.core.textfile import written
from raypipe.readers.field_map import CONTENT, OF_DOCUMENT, FieldMap, by_name, listed
from raypipe.readers.lines import JsonLine
from raypipe.readers.named_files import NamedFiles, inside
from raypipe.readers.page_dates import order_of
from raypipe.readers.rows import (
    ReadCounts,
    Row,
    Seen,
    UnusableLine,
    blamed,
    kind,
    refused,
    settled,
    source_of,
)

SCALARS = (str, int, float, Decimal, date, datetime)
ANSWER_FIELDS = ("text", "value", "answer", "answers", "aliases")  # of an object that is an answer, in order
LABELS = ("domain", "question_type", "made_by", "review")
DROP = "drop"  # of `review`: the question is left out
_FILE = re.compile(r"\A[^\n\r]{1,500}\.(?:html?|xhtml|txt|md|markdown|pdf|docx)", re.IGNORECASE)
_HTML = re.compile(r"\A\s*+(?:<\?xml[^>]*>\s*+)?<(?:!doctype\s+html|html[\s>])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Found:
    source: Source
    url: str
    title: str
    modified: str
    name: Source | None = None  # the title of a page of HTML, as a source of its own
    pages: tuple[Mark, ...] = ()  # of a PDF
    sections: tuple[Mark, ...] = ()  # of a PDF or docx
    faults: tuple[Fault, ...] = ()  # of pages of a PDF that have no text

    def sources(self) -> tuple[Source, ...]:
        return (self.source,) if self.name is None else (self.source, self.name)


def rows(
    plain: Iterable[JsonLine], fields: FieldMap, files: NamedFiles, counts: ReadCounts, seen: Seen
) -> Iterator[Row]:
    """A row for each line: a question, a document, or the line's fault. `files`: those that rows may name;
    `seen`: which ids came before, and which fetch of a document counts."""
    make = _question if fields.asks() else _document
    for line in plain:
        value = line.value or {}
        review = _said(fields.get(value, "review"))
        try:
            with blamed():
                fetch = _fetch(value, fields)
        except UnusableLine as e:
            yield refused(line.where, e, counts)
            continue
        if review.lower() == DROP:
            counts.dropped_rows += 1
        elif fetch is not None and not seen.newest.has(*fetch, line.where):
            counts.older_pages += 1
        else:
            for row in settled(line.where, partial(make, line, fields, files, counts), counts, seen.repeats):
                if row.used:
                    made = bool(_said(fields.get(value, "made_by")))
                    counts.page_faults += len(row.faults)
                    counts.made_questions += made
                    counts.unreviewed_questions += made and not review
                yield row


def paths_in(plain: Iterable[JsonLine], fields: FieldMap, folder: Path) -> Iterator[Path]:
    """The files that rows name as documents and that are there: their bytes are part of the data."""
    for line in plain:
        named = list[str | None]()
        with suppress(UnusableLine), blamed():  # its reader says what is wrong
            named = [_path_of(item, fields.inner) for item in _items(line.value or {}, fields)]
        yield from (file for n in named if n is not None and isinstance(file := inside(folder, n), Path))


def _question(line: JsonLine, fields: FieldMap, files: NamedFiles, counts: ReadCounts) -> Row:
    value, asked = line.unwrap(), fields.fields["query"][0]
    text = _text(fields.get(value, "query"), asked)
    if not text.strip():
        raise UnusableLine("missing_field", f"{asked}: expected text, found none in it")
    given = (text for answer in fields.all(value, "answer") for text in _flat(_listed(answer), counts))
    answers = tuple(dict.fromkeys(text for text in given if text and not text.isspace()))
    faults, found = list[Fault](), list[Found]()
    for place, item in enumerate(_items(value, fields)):
        try:
            document = _found(item, files, f"documents[{place}]", fields.inner)
        except UnusableLine as e:
            faults.append(e.fault)
            continue
        if document is None:
            counts.empty_pages += 1
        else:
            found.append(document)
            faults += document.faults
    searches_all = "documents" not in fields.fields and not _own_content(fields)
    asked_at = _said(fields.get(value, "time"))
    id = _said(fields.get(value, "id")) or digest(text, asked_at, *(d.source.id for d in found))[:16]
    citations = tuple(
        Citation(id, rank, d.url, d.modified, d.source.id, None, d.name.id if d.name else None)
        for rank, d in enumerate(found)
    )
    counts.questions_without_pages += not found and not searches_all
    labels = {n: label for n in LABELS if (label := _said(fields.get(value, n)))}
    sources = {s.id: s for d in found for s in d.sources()}
    question = Question(id, text, asked_at=asked_at, citations=None if searches_all else citations)
    gold = Gold(id, answers, labels) if answers else None
    return Row(line.where, question, gold, sources=tuple(sources.values()), faults=tuple(faults))


def _document(line: JsonLine, fields: FieldMap, files: NamedFiles, counts: ReadCounts) -> Row | None:
    value = line.unwrap()
    found = _found(_own(value, fields), files, "the row", {})
    if found is None:
        return None
    source = found.source.id
    id = _said(fields.get(value, "id")) or found.url or digest(source)[:16]
    marks = found.pages, found.sections
    layout = Layout(id, source, found.url, found.title, *marks) if found.url else None
    document = Document(id, found.title, source)
    return Row(line.where, document=document, layout=layout, sources=found.sources(), faults=found.faults)


def fetches(plain: Iterable[JsonLine], fields: FieldMap) -> Iterator[tuple[str, str, str]]:
    """Address, date and place of each row that has both; `rows` says what is wrong with the others."""
    for line in plain:
        fetch = None
        with suppress(UnusableLine), blamed():
            fetch = _fetch(line.value or {}, fields)
        if fetch is not None:
            yield *fetch, line.where


def _fetch(value: Mapping[str, Any], fields: FieldMap) -> tuple[str, str] | None:
    if fields.asks():
        return None
    name, url = (_said(fields.get(value, role)) for role in ("id", "url"))
    date = order_of(fields.get(value, "modified"), ".".join(fields.fields.get("modified", ())))
    return (name or url, date) if (name or url) and date else None


def _items(value: Mapping[str, Any], fields: FieldMap) -> list[Any]:
    if not fields.asks() or "documents" not in fields.fields:
        return [_own(value, fields)] if _own_content(fields) else []
    items = [item for given in fields.all(value, "documents") for item in _several(_listed(given))]
    title, url = (_said(fields.get(value, n)) for n in ("title", "url"))
    if len(items) == 1 and isinstance(items[0], str) and (title or url) and _path_of(items[0], {}) is None:
        return [{"title": title, "url": url, "text": items[0]}]  # the row's own title is that of its document
    return items


def _own_content(fields: FieldMap) -> bool:
    return any(role in fields.fields for role in CONTENT)


def _own(value: Mapping[str, Any], fields: FieldMap) -> dict[str, Any]:
    return {role: fields.get(value, role) for role in OF_DOCUMENT if role in fields.fields}


def _several(given: Any) -> list[Any]:
    """Documents: those of a list, of an object of parallel lists, or one alone."""
    if isinstance(given, Mapping):
        lists = {k: v for k, v in given.items() if isinstance(v, list)}
        if len({len(v) for v in lists.values()}) == 1:
            return [dict(zip(lists, items, strict=True)) for items in zip(*lists.values(), strict=True)]
    if isinstance(given, list):
        return [item for item in given if item is not None]
    return [given]


def _listed(given: Any) -> Any:
    """A list that stands as JSON in a text, as in a cell of CSV; anything else as it is."""
    if isinstance(given, str) and (said := given.strip()).startswith("[") and said.endswith("]"):
        with suppress(ValueError):
            return json.loads(given)
    return given


def _flat(answer: Any, counts: ReadCounts) -> Iterator[str]:
    if answer is None or (isinstance(answer, float) and math.isnan(answer)):
        return
    if isinstance(answer, str):
        yield answer
    elif isinstance(answer, SCALARS):  # true and false are numbers, too
        counts.number_golds += 1
        yield written(answer)
    elif isinstance(answer, list | Mapping):
        inner = answer if isinstance(answer, list) else [answer[n] for n in ANSWER_FIELDS if n in answer]
        if isinstance(answer, Mapping) and not inner:
            expected = f"expected an object with {', '.join(ANSWER_FIELDS)}"
            raise UnusableLine("wrong_type", f"answer: {expected}; found {listed([*map(str, answer)])}")
        for one in inner:
            yield from _flat(one, counts)
    else:
        raise UnusableLine("wrong_type", f"answer: expected text, found {kind(answer)}")


def _said(value: Any) -> str:
    """A text, number or date as text; anything else is none."""
    if isinstance(value, float) and math.isnan(value):
        return ""
    return written(value).strip() if isinstance(value, SCALARS) else ""


def _text(value: Any, name: str) -> str:
    if value is None:
        raise UnusableLine("missing_field", f"{name}: expected text, found none")
    if not isinstance(value, str):
        raise UnusableLine("wrong_type", f"{name}: expected text, found {kind(value)}")
    return value


def _found(item: Any, files: NamedFiles, where: str, inner: Mapping[str, str]) -> Found | None:
    """A document; None for one without any text. `inner`: role -> field of its object, as the user named it.
    Raises UnusableLine for what is none."""
    if isinstance(item, list) and len(item) == 2 and isinstance(item[0], str):
        item = {"title": item[0], "text": item[1]}  # HotpotQA's pairs of title and sentences
    if isinstance(item, str):
        item = {"path" if _path_of(item, {}) is not None else "text": item}
    if not isinstance(item, Mapping):
        raise UnusableLine("wrong_type", f"{where}: expected text or an object, found {kind(item)}")
    seen = [str(name) for name in item]
    names = {r: n for r in OF_DOCUMENT if (n := inner.get(r) or by_name(r, seen))}
    if not any(role in names for role in CONTENT):
        expected = "expected one of the fields html, text and path"
        raise UnusableLine("missing_field", f"{where}: {expected}; found {listed(seen)}")
    values = {role: item.get(name) for role, name in names.items()}
    url, title, modified = (_said(values.get(n)) for n in ("url", "title", "modified"))
    html, text = (_joined(values.get(n), where) for n in ("html", "text"))
    named = values.get("path")
    if not html and not text and isinstance(named, str) and named:
        file = files.read(named, where)
        if file.kind in ("pdf", "docx"):  # its content is its text alone, in which its pages are spans
            source, lost = source_of("document", file.content), tuple(f for _, f in file.faults)
            url, title = url or quote(named), title or file.title
            return Found(source, url, title, modified, None, file.pages, file.sections, lost)
        url = url or named
        html, text = (file.content, "") if file.kind == "html" else ("", file.content)
    if not html and _HTML.match(text):
        html = text
    if html and not html.isspace():
        name = source_of("name", title) if title else None
        return Found(source_of("page", html), url, title, modified, name)
    if not text or text.isspace():
        return None
    return Found(source_of("document", f"{title}\n{text}" if title else text), url, title, modified)


def _joined(value: Any, where: str) -> str:
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return " ".join(v.strip() for v in value)
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as e:
            raise UnusableLine("not_utf8", f"{where}: byte {e.start}; expected UTF-8") from e
    return "" if value is None or isinstance(value, float) else _text(value, where)


def _path_of(item: Any, inner: Mapping[str, str]) -> str | None:
    """The path that a document is given by, if it is."""
    if isinstance(item, Mapping):
        name = inner.get("path") or by_name("path", [str(n) for n in item])
        given = item.get(name) if name else None
        return given if isinstance(given, str) and given else None
    return item if isinstance(item, str) and _FILE.fullmatch(item) else None
