"""Reader of the format `rows`: a user's own rows, under any field names, as questions and documents.

`RowFormat(fields)` is passed in place of a format's name; `fields` are the fields that the user named.
Before a file is read, its first rows show which field has which role (`field_map`).

One record with common field names:

    {"qid": 17, "question": "who directed velora?", "answers": ["Anna Lindqvist", "A. Lindqvist"],
     "contexts": [{"url": "https://example.org/velora", "title": "Velora", "html": "<p>..."}]}

`turns` are earlier messages of the conversation: objects with `role` and `text`. An answer is a text, a
number, a list of them, or an object with `text` or `value` and `aliases` (SQuAD, TriviaQA). A document
is a text, an object, a pair of title and sentences, or the path of a file next to the data. If a file has no
field of documents, its questions search the whole store. A row without a question is a document.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from raypipe.core.errors import DataError
from raypipe.core.records import Citation, Document, Fault, Gold, Layout, Mark, Question, Source, digest
from raypipe.core.textfile import written
from raypipe.readers import row_files
from raypipe.readers.conversation import number_of, turns_of
from raypipe.readers.documents import DocumentReader
from raypipe.readers.documents.reader import FileText, inside, read_named
from raypipe.readers.field_map import CONTENT, OF_DOCUMENT, FieldMap, by_name, find, listed, missing
from raypipe.readers.fields import fields_of, order_of
from raypipe.readers.files import Input
from raypipe.readers.lines import JsonLine
from raypipe.readers.rows import (
    LIMITS,
    BadLine,
    FileRead,
    ReadCounts,
    ReaderLimits,
    Row,
    UnusableLine,
    blamed,
    kind,
    require_rows,
    source_of,
)
from raypipe.text.filters import ConditionError, Filters

NAME = "rows"
SCALARS = (str, int, float, Decimal, date, datetime)
ANSWER_FIELDS = ("text", "value", "answer", "answers", "aliases")  # of an answer that is an object, in order
LABELS = ("domain", "question_type", "made_by", "review")
TURN = "turn"  # label with the question's number in its conversation
DROP = "drop"  # value of `review` that omits the question
ReadNamed: TypeAlias = Callable[[str, str], FileText]  # (name of a file, place in the row that names it)
_FILE = re.compile(r"\A[^\n\r]{1,500}\.(?:html?|xhtml|txt|md|markdown|pdf|docx)", re.IGNORECASE)
_HTML = re.compile(r"\A\s*+(?:<\?xml[^>]*>\s*+)?<(?:!doctype\s+html|html[\s>])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RowFormat:
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # role -> fields that the user named

    def id(self) -> str:
        named = json.dumps({role: list(names) for role, names in sorted(self.fields.items())})
        return f"{NAME} {named}" if self.fields else NAME


@dataclass(frozen=True, slots=True)
class MappedFile:
    file: Input
    fields: FieldMap
    first: Sequence[Mapping[str, Any]]  # first rows, from which the fields were inferred


def mapped(paths: Iterable[str | Path], format: RowFormat, limits: ReaderLimits = LIMITS) -> list[MappedFile]:
    """Lists the files under `paths`, each with the map of its fields. Raises ConfError if no file has a field
    that the user named. Raises DataError if a file is damaged at its beginning, and DataError if none of its
    fields has a question or a document."""
    files = row_files.find(paths)
    first = {f.name: row_files.first(f, limits) for f in files}
    if not any(first.values()):
        counts = ReadCounts()
        lines = (r for f in files for r in row_files.rows(f, counts, limits))
        bad = [BadLine(r.where, r.fault.reason, r.fault.detail) for r in lines if r.fault is not None]
        require_rows(first, counts, bad[:3])
        raise DataError(f"{', '.join(first)}: none of the first {row_files.PEEKED} rows can be read")
    missing(format.fields, first)
    known = ((file, seen) for file in files if (seen := first[file.name]))
    return [MappedFile(file, find(file.name, seen, format.fields), seen) for file, seen in known]


def files_of(paths: Iterable[str | Path]) -> list[Path]:
    return [file.parts[0] for file in row_files.find(paths)]


def rows(format: RowFormat, paths: Iterable[str | Path], read: FileRead) -> Iterator[Row]:
    counts, limits, newest = read.counts, read.limits, read.seen.newest
    files = [replace(m, file=replace(m.file, span=read.span)) for m in mapped(paths, format, limits)]
    for m in files:
        if not m.fields.asks() and "modified" in m.fields.fields:  # a crawl is read twice
            for line in row_files.rows(m.file, ReadCounts(), limits):
                with suppress(UnusableLine), blamed():  # the second reading reports the fault
                    if (fetch := _fetch(line.value or {}, m.fields)) is not None:
                        newest.note(*fetch, line.where)
    with closing(DocumentReader()) as documents:
        for m in files:
            fields, named = m.fields, partial(read_named, m.file.parts[0].parent, documents)
            make = _question if fields.asks() else _document
            for line in row_files.rows(m.file, counts, limits):
                value = line.value or {}
                review, made_by = (_said(fields.get(value, role)) for role in ("review", "made_by"))
                try:
                    with blamed():
                        fetch = _fetch(value, fields)
                except UnusableLine as e:
                    yield read.refused(line.where, e)
                    continue
                if review.lower() == DROP:
                    counts.dropped_rows += 1
                elif fetch is not None and not newest.has(*fetch, line.where):
                    counts.older_pages += 1
                else:
                    for row in read.settled(line.where, partial(make, line, fields, named, counts)):
                        if row.used:
                            counts.page_faults += len(row.faults)
                            counts.made_questions += bool(made_by)
                            counts.unreviewed_questions += bool(made_by) and not review
                        yield row


def referenced(paths: Iterable[str | Path], format: RowFormat) -> list[Path]:
    """Lists the files that rows name as documents, without repeats. A data file whose first rows name no file
    is not read further."""
    found: dict[Path, None] = {}
    for m in mapped(paths, format):

        def named(value: Mapping[str, Any], m: MappedFile = m) -> Iterator[Path]:
            """Yields the existing files that a row names; their bytes are part of the data."""
            with suppress(UnusableLine), blamed():  # the row's reader reports the fault
                names = [_path_of(item, m.fields.inner) for item in _items(value, m.fields)]
                files = (inside(m.file.parts[0].parent, name) for name in names if name is not None)
                yield from [file for file in files if isinstance(file, Path)]

        if any(True for value in m.first for _ in named(value)):
            lines = row_files.rows(m.file, ReadCounts())
            found |= dict.fromkeys(path for line in lines for path in named(line.value or {}))
    return list(found)


def check(paths: Iterable[str | Path], format: RowFormat) -> None:
    """Checks files before a read: raises as `mapped` does, and DataError if any part of a CSV is damaged."""
    for m in mapped(paths, format):
        if m.file.kind == "csv":
            deque(row_files.rows(m.file, ReadCounts()), 0)


@dataclass(frozen=True, slots=True)
class Found:
    source: Source
    url: str
    title: str
    modified: str
    name: Source | None = None  # the title of an HTML page, as a separate source
    pages: tuple[Mark, ...] = ()  # spans of a PDF's pages
    sections: tuple[Mark, ...] = ()  # spans of the sections of a PDF or docx
    faults: tuple[Fault, ...] = ()  # one for each page of a PDF that has no text

    def sources(self) -> tuple[Source, ...]:
        return (self.source,) if self.name is None else (self.source, self.name)


def _question(line: JsonLine, fields: FieldMap, read: ReadNamed, counts: ReadCounts) -> Row:
    value, asked = line.unwrap(), fields.fields["query"][0]
    text = _text(fields.get(value, "query"), asked)
    if not text.strip():
        raise UnusableLine("missing_field", f"{asked}: expected text, found a blank one")
    given = (text for answer in fields.all(value, "answer") for text in _flat(_listed(answer), counts))
    answers = tuple(dict.fromkeys(text for text in given if text and not text.isspace()))
    faults, found = list[Fault](), list[Found]()
    for place, item in enumerate(_items(value, fields)):
        try:
            document = _found(item, read, f"documents[{place}]", fields.inner)
        except UnusableLine as e:
            faults.append(e.fault)
            continue
        if document is None:
            counts.empty_pages += 1
        else:
            found.append(document)
            faults += document.faults
    searches_all = fields.fields.keys().isdisjoint(("documents", *CONTENT))
    asked_at, where = (_said(fields.get(value, role)) for role in ("time", "where"))
    try:
        Filters(where=where)
    except ConditionError as e:
        raise UnusableLine("wrong_type", str(e)) from e
    turns = None
    if "turns" in fields.fields:
        name, listing = fields.fields["turns"][0], _listed(fields.get(value, "turns"))
        # If the user did not name the field, a number in it is a count of turns and holds no messages.
        count = isinstance(listing, int | float) and "turns" not in fields.named
        turns = () if listing is None or listing == "" or count else turns_of(listing, name)
    said = (part for t in turns or () for part in (t.role, t.text))
    named = digest(text, asked_at, *(d.source.id for d in found), *filter(None, [where]), *said)[:16]
    id = _said(fields.get(value, "id")) or named
    cited = (
        Citation(id, rank, d.url, d.modified, d.source.id, None, d.name.id if d.name else None)
        for rank, d in enumerate(found)
    )
    citations = None if searches_all else tuple(cited)
    counts.questions_without_pages += citations == ()
    labels = {n: label for n in LABELS if (label := _said(fields.get(value, n)))}
    labels |= {} if turns is None else {TURN: str(number_of(turns))}
    sources = {s.id: s for d in found for s in d.sources()}
    question = Question(id, text, "", asked_at, citations, where=where, turns=turns or ())
    gold = Gold(id, answers, labels) if answers else None
    return Row(line.where, question, gold, sources=tuple(sources.values()), faults=tuple(faults))


def _document(line: JsonLine, fields: FieldMap, read: ReadNamed, counts: ReadCounts) -> Row | None:
    value = line.unwrap()
    found = _found(_own(value, fields), read, "the row", {})
    if found is None:
        return None
    source = found.source.id
    id = _said(fields.get(value, "id")) or found.url or digest(source)[:16]
    layout = Layout(id, source, found.url, found.title, found.pages, found.sections) if found.url else None
    # Fields of the document: the row's columns without a role, and the entries of an object `metadata`.
    used = {name.partition(".")[0] for names in fields.fields.values() for name in names}
    inner = value.get("metadata")
    given = {**(inner if isinstance(inner, Mapping) else {}), **value}
    own = fields_of({name: v for name, v in given.items() if name not in used})
    own = dict(sorted({**fields_of({"date": found.modified}), **own}.items()))
    document = Document(id, found.title, source, own)
    return Row(line.where, document=document, layout=layout, sources=found.sources(), faults=found.faults)


def _fetch(value: Mapping[str, Any], fields: FieldMap) -> tuple[str, str] | None:
    if fields.asks():
        return None
    name, url = (_said(fields.get(value, role)) for role in ("id", "url"))
    date = order_of(fields.get(value, "modified"), ".".join(fields.fields.get("modified", ())))
    return (name or url, date) if (name or url) and date else None


def _items(value: Mapping[str, Any], fields: FieldMap) -> list[Any]:
    if not fields.asks() or "documents" not in fields.fields:
        return [] if fields.fields.keys().isdisjoint(CONTENT) else [_own(value, fields)]
    items = list[Any]()
    for given in map(_listed, fields.all(value, "documents")):
        lists = {k: v for k, v in given.items() if isinstance(v, list)} if isinstance(given, Mapping) else {}
        if len({len(v) for v in lists.values()}) == 1:  # an object of parallel lists
            items += [dict(zip(lists, some, strict=True)) for some in zip(*lists.values(), strict=True)]
        else:
            items += [item for item in given if item is not None] if isinstance(given, list) else [given]
    title, url = (_said(fields.get(value, n)) for n in ("title", "url"))
    if len(items) == 1 and isinstance(items[0], str) and (title or url) and _path_of(items[0], {}) is None:
        return [{"title": title, "url": url, "text": items[0]}]  # the row's title belongs to its one document
    return items


def _own(value: Mapping[str, Any], fields: FieldMap) -> dict[str, Any]:
    return {role: fields.get(value, role) for role in OF_DOCUMENT if role in fields.fields}


def _listed(given: Any) -> Any:
    """Parses a text that is a JSON list, as cells of CSV have it; returns anything else unchanged."""
    if isinstance(given, str) and (said := given.strip()).startswith("[") and said.endswith("]"):
        with suppress(ValueError):
            return json.loads(given)
    return given


def _flat(answer: Any, counts: ReadCounts) -> Iterator[str]:
    if answer is None or (isinstance(answer, float) and math.isnan(answer)):
        return
    if isinstance(answer, str):
        yield answer
    elif isinstance(answer, SCALARS):  # booleans count as numbers too
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
    """Returns a text, number or date as stripped text; "" for any other value."""
    if isinstance(value, float) and math.isnan(value):
        return ""
    return written(value).strip() if isinstance(value, SCALARS) else ""


def _text(value: Any, name: str) -> str:
    if value is None:
        raise UnusableLine("missing_field", f"{name}: expected text, found none")
    if not isinstance(value, str):
        raise UnusableLine("wrong_type", f"{name}: expected text, found {kind(value)}")
    return value


def _found(item: Any, read: ReadNamed, where: str, inner: Mapping[str, str]) -> Found | None:
    """Makes a document from one item of a row; returns None if the item has no text. `inner`: role -> field
    of the item, as the user named it. Raises UnusableLine if the item is no document."""
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
        file = read(named, where)
        if file.kind in ("pdf", "docx"):  # the content is plain text, and the pages are spans of it
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
    """Returns the path in a document's item; None if the item holds the document itself."""
    if isinstance(item, Mapping):
        name = inner.get("path") or by_name("path", [str(n) for n in item])
        given = item.get(name) if name else None
        return given if isinstance(given, str) and given else None
    return item if isinstance(item, str) and _FILE.fullmatch(item) else None
