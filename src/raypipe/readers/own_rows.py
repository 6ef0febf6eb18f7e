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
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

from raypipe.core.records import (
    Citation,
    Document,
    Fault,
    Gold,
    Layout,
    Question,
    Source,
    SourceKind,
    digest,
    source_id,
)
from raypipe.readers.field_map import CONTENT, OF_DOCUMENT, FieldMap, by_name, listed
from raypipe.readers.newest import Seen
from raypipe.readers.row_files import PlainRow
from raypipe.readers.rows import KINDS, LIMITS, ReadCounts, Row, UnusableLine

NUMBERS = (int, float, Decimal)
SCALARS = (str, *NUMBERS, date, datetime)
ANSWER_FIELDS = ("text", "value", "answer", "answers", "aliases")  # of an object that is an answer, in order
LABELS = ("domain", "question_type", "made_by", "review")
DROP = "drop"  # of `review`: the question is left out
PAGES, TEXTS = (".html", ".htm", ".xhtml"), (".txt", ".md", ".markdown")
_FILE = re.compile(r"[^\n\r]{1,500}\.(?:html?|xhtml|txt|md|markdown|pdf|docx)", re.IGNORECASE)
_HTML = re.compile(r"\s*(?:<\?xml[^>]*>\s*)?<(?:!doctype\s+html|html[\s>])", re.IGNORECASE)
_LIST = re.compile(r"\s*\[.*\]\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Found:
    """One document of a row."""

    source: Source
    url: str
    title: str
    modified: str
    name: Source | None = None  # the title of a page of HTML, as a source of its own


def rows(
    plain: Iterable[PlainRow],
    fields: FieldMap,
    folder: Path,
    counts: ReadCounts,
    seen: Seen,
) -> Iterator[Row]:
    """A row for each line: a question, a document, or the line's fault. `folder`: where paths begin;
    `seen`: which ids came before, and which fetch of a document counts."""
    for line in plain:
        try:
            if line.fault is not None or line.value is None:
                raise UnusableLine(line.fault.reason, line.fault.detail) if line.fault else _blank()
            if _optional(fields.get(line.value, "review")).lower() == DROP:
                counts.dropped_rows += 1
                continue
            fetch = _fetch(line.value, fields)
            if fetch is not None and not seen.newest.has(*fetch, line.where):
                counts.older_pages += 1
                continue
            make = _question if fields.asks() else _document
            row = make(line.where, line.value, fields, folder, counts)
            if row is None:
                counts.empty_documents += 1
                continue
            if seen.repeats(row):
                counts.repeated_rows += 1
                continue
            counts.rows += 1
            counts.page_faults += len(row.faults)
            made = _optional(fields.get(line.value, "made_by"))
            counts.made_questions += bool(made)
            counts.unreviewed_questions += bool(made) and not _optional(fields.get(line.value, "review"))
        except UnusableLine as e:
            row = Row(line.where, faults=(e.fault,))
            counts.faults += 1
        yield row


def paths_in(plain: Iterable[PlainRow], fields: FieldMap, folder: Path) -> Iterator[Path]:
    """The files that rows name as documents and that are there: their bytes are part of the data."""
    for line in plain:
        for item in _items(line.value or {}, fields):
            named = _path_of(item, fields.inner)
            if named is not None:
                file, _ = _inside(folder, named)
                if file is not None:
                    yield file


def _blank() -> UnusableLine:
    return UnusableLine("not_object", "expected an object, found none")


def _question(
    where: str, value: Mapping[str, Any], fields: FieldMap, folder: Path, counts: ReadCounts
) -> Row:
    text = _text(fields.get(value, "query"), fields.fields["query"][0])
    if text.isspace() or not text:
        raise UnusableLine("missing_field", f"{fields.fields['query'][0]}: expected text, found none in it")
    answers = _answers(fields.all(value, "answer"), counts)
    faults: list[Fault] = []
    found: list[Found] = []
    for place, item in enumerate(_items(value, fields)):
        try:
            document = _found(item, folder, f"documents[{place}]", fields.inner)
        except UnusableLine as e:
            faults.append(e.fault)
            continue
        if document is None:
            counts.empty_pages += 1
        else:
            found.append(document)
    searches_all = "documents" not in fields.fields and not _own_content(fields)
    asked_at = _optional(fields.get(value, "time"))
    id = _optional(fields.get(value, "id")) or digest(text, asked_at, *(d.source.id for d in found))[:16]
    citations = tuple(
        Citation(id, rank, d.url, d.modified, d.source.id, None, d.name.id if d.name else None)
        for rank, d in enumerate(found)
    )
    counts.questions_without_pages += not found and not searches_all
    labels = {n: label for n in LABELS if (label := _optional(fields.get(value, n)))}
    sources = {s.id: s for d in found for s in (d.source, d.name) if s is not None}
    question = Question(id, text, asked_at=asked_at, citations=None if searches_all else citations)
    gold = Gold(id, answers, labels) if answers else None
    return Row(where, question, gold, sources=tuple(sources.values()), faults=tuple(faults))


def _document(
    where: str, value: Mapping[str, Any], fields: FieldMap, folder: Path, counts: ReadCounts
) -> Row | None:
    item = _own(value, fields)
    found = _found(item, folder, "the row", {})
    if found is None:
        return None
    id = _optional(fields.get(value, "id")) or found.url or digest(found.source.id)[:16]
    sources = (found.source, found.name) if found.name else (found.source,)
    layout = Layout(id, found.source.id, found.url, found.title, (), ()) if found.url else None
    return Row(where, document=Document(id, found.title, found.source.id), layout=layout, sources=sources)


def fetches(plain: Iterable[PlainRow], fields: FieldMap) -> Iterator[tuple[str, str, str]]:
    """Name, date and place of each document that says when it was fetched."""
    for line in plain:
        if line.value is not None and (fetch := _fetch(line.value, fields)) is not None:
            yield *fetch, line.where


def _fetch(value: Mapping[str, Any], fields: FieldMap) -> tuple[str, str] | None:
    """Name and date of a document that says both, else None."""
    if fields.asks():
        return None
    name = _optional(fields.get(value, "id")) or _optional(fields.get(value, "url"))
    date = _optional(fields.get(value, "modified"))
    return (name, date) if name and date else None


def _items(value: Mapping[str, Any], fields: FieldMap) -> list[Any]:
    """The documents of a row, as they came."""
    if not fields.asks() or "documents" not in fields.fields:
        return [_own(value, fields)] if _own_content(fields) else []
    items = [item for given in fields.all(value, "documents") for item in _several(_listed(given))]
    title, url = (_optional(fields.get(value, n)) for n in ("title", "url"))
    if len(items) == 1 and isinstance(items[0], str) and (title or url) and _path_of(items[0]) is None:
        return [{"title": title, "url": url, "text": items[0]}]  # the row's own title is that of its document
    return items


def _own_content(fields: FieldMap) -> bool:
    return any(role in fields.fields for role in CONTENT)


def _own(value: Mapping[str, Any], fields: FieldMap) -> dict[str, Any]:
    """The row as a document, under the common names."""
    return {role: fields.get(value, role) for role in OF_DOCUMENT if role in fields.fields}


def _several(given: Any) -> list[Any]:
    """Documents: those of a list, of an object of parallel lists, or one alone."""
    if isinstance(given, Mapping):
        lists = {k: v for k, v in given.items() if isinstance(v, list)}
        if lists and len({len(v) for v in lists.values()}) == 1:
            size = len(next(iter(lists.values())))
            return [{k: v[i] for k, v in lists.items()} for i in range(size)]
    if isinstance(given, list):
        return [item for item in given if item is not None]
    return [given]


def _listed(given: Any) -> Any:
    """A list that stands as JSON in a text, as in a cell of CSV; anything else as it is."""
    if isinstance(given, str) and _LIST.fullmatch(given):
        try:
            found = json.loads(given)
        except ValueError:
            return given
        return found if isinstance(found, list) else given
    return given


def _answers(given: list[Any], counts: ReadCounts) -> tuple[str, ...]:
    """All answers, each once, in order."""
    found: dict[str, None] = {}
    for answer in given:
        for text in _flat(_listed(answer), counts):
            if text and not text.isspace():
                found[text] = None
    return tuple(found)


def _flat(answer: Any, counts: ReadCounts) -> Iterator[str]:
    if answer is None or (isinstance(answer, float) and math.isnan(answer)):
        return
    if isinstance(answer, str):
        yield answer
    elif isinstance(answer, SCALARS):  # true and false are numbers, too
        counts.number_golds += 1
        yield _said(answer)
    elif isinstance(answer, list):
        for one in answer:
            yield from _flat(one, counts)
    elif isinstance(answer, Mapping):
        named = [answer[n] for n in ANSWER_FIELDS if n in answer]
        if not named:
            raise UnusableLine(
                "wrong_type",
                f"answer: expected an object with {', '.join(ANSWER_FIELDS)}; found {_names(answer)}",
            )
        for one in named:
            yield from _flat(one, counts)
    else:
        raise UnusableLine("wrong_type", f"answer: expected text, found {_kind(answer)}")


def _said(value: Any) -> str:
    """A number, a date or true as a person writes it: 5.0 is 5."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _text(value: Any, name: str) -> str:
    if value is None:
        raise UnusableLine("missing_field", f"{name}: expected text, found none")
    if not isinstance(value, str):
        raise UnusableLine("wrong_type", f"{name}: expected text, found {_kind(value)}")
    return value


def _optional(value: Any) -> str:
    """A text, number or date as text; anything else is none."""
    if isinstance(value, float) and math.isnan(value):
        return ""
    return _said(value).strip() if isinstance(value, SCALARS) else ""


def _kind(value: object) -> str:
    return KINDS.get(type(value), type(value).__name__)


def _names(value: Mapping[str, Any]) -> str:
    return listed([str(name) for name in value])


def _found(item: Any, folder: Path, where: str, inner: Mapping[str, str]) -> Found | None:
    """A document; None for one without any text. `inner`: role -> field of its object, as the user named it.
    Raises UnusableLine for what is none."""
    if isinstance(item, list) and len(item) == 2 and isinstance(item[0], str):
        item = {"title": item[0], "text": item[1]}  # HotpotQA's pairs of title and sentences
    if isinstance(item, str):
        item = {"path": item} if _path_of(item) is not None else {"text": item}
    if not isinstance(item, Mapping):
        raise UnusableLine("wrong_type", f"{where}: expected text or an object, found {_kind(item)}")
    names = {r: n for r in OF_DOCUMENT if (n := inner.get(r) or by_name(r, [str(name) for name in item]))}
    if not any(role in names for role in CONTENT):
        raise UnusableLine(
            "missing_field", f"{where}: expected one of the fields html, text and path; found {_names(item)}"
        )
    values = {role: item.get(name) for role, name in names.items()}
    url, title, modified = (_optional(values.get(n)) for n in ("url", "title", "modified"))
    html, text = _joined(values.get("html"), where), _joined(values.get("text"), where)
    named = values.get("path")
    if not html and not text and isinstance(named, str) and named:
        html, text = _read(folder, named, where)
        url = url or named
    if not html and _HTML.match(text):
        html = text
    if html and not html.isspace():
        return Found(_source("page", html), url, title, modified, _source("name", title) if title else None)
    if not text or text.isspace():
        return None
    return Found(_source("document", f"{title}\n{text}" if title else text), url, title, modified)


def _source(kind: SourceKind, content: str) -> Source:
    return Source(source_id(kind, content), kind, content)


def _joined(value: Any, where: str) -> str:
    """A text, or sentences as one."""
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return " ".join(v.strip() for v in value)
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as e:
            raise UnusableLine("not_utf8", f"{where}: byte {e.start}; expected UTF-8") from e
    return "" if value is None or isinstance(value, float) else _text(value, where)


def _path_of(item: Any, inner: Mapping[str, str] = MappingProxyType({})) -> str | None:
    """The path that a document is given by, if it is."""
    if isinstance(item, Mapping):
        name = inner.get("path") or by_name("path", [str(n) for n in item])
        given = item.get(name) if name else None
        return given if isinstance(given, str) and given else None
    return item if isinstance(item, str) and _FILE.fullmatch(item) else None


def _inside(folder: Path, named: str) -> tuple[Path | None, str]:
    """The file of this relative path in the folder of the data, or why it is none."""
    root = folder.resolve()
    try:
        file = (root / named).resolve()
        if not file.is_relative_to(root):
            return None, f"expected a path inside {folder}, found {named[:200]!r}"
        if not file.is_file():
            return (
                None,
                f"no file {named[:200]!r} in {folder}; a text of its own stands in an object, as text",
            )
    except (OSError, ValueError) as e:
        return None, f"{named[:200]!r} cannot be a path: {e}"
    return file, ""


def _read(folder: Path, named: str, where: str) -> tuple[str, str]:
    """The HTML and the text of a file: one of them is empty."""
    file, why = _inside(folder, named)
    if file is None:
        raise UnusableLine("no_file", f"{where}: {why}")
    ending = file.suffix.lower()
    if ending not in (*PAGES, *TEXTS):
        raise UnusableLine("file_kind", f"{where}: expected {', '.join((*PAGES, *TEXTS))}, found {named!r}")
    if (size := file.stat().st_size) > LIMITS.line_bytes:
        raise UnusableLine(
            "too_long", f"{where}: expected at most {LIMITS.line_bytes:,} bytes in {named!r}, found {size:,}"
        )
    try:
        content = file.read_bytes().decode("utf-8-sig")
    except OSError as e:
        raise UnusableLine("no_file", f"{where}: {named!r} cannot be read: {e.strerror}") from e
    except UnicodeDecodeError as e:
        if ending in TEXTS:
            raise UnusableLine("not_utf8", f"{where}: {named!r}: byte {e.start}; expected UTF-8") from e
        content = e.object.decode("utf-8", "replace")  # as `raypipe parse` reads a page
    content = content.replace("\0", "")
    return (content, "") if ending in PAGES else ("", content)
