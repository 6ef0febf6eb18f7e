"""Documents of a user's rows: texts, objects, and the files that rows name.

A row's field of documents holds items. An item is a text, an object, a pair of title and sentences, or the
path of a file next to the data. In a file without such a field, each row itself is an item.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path, PurePath
from typing import Any, TypeAlias
from urllib.parse import quote

from raypipe.core.records import Fault, Mark, Source
from raypipe.core.textfile import written
from raypipe.readers.documents import DOCUMENT_LIMITS, DocumentReader, FileText
from raypipe.readers.documents.reader import MARKED
from raypipe.readers.field_map import CONTENT, OF_DOCUMENT, FieldMap, by_name, listed
from raypipe.readers.rows import LIMITS, UnusableLine, kind, source_of

SCALARS = (str, int, float, Decimal, date, datetime)
PAGES, TEXTS = (".html", ".htm", ".xhtml"), (".txt", ".md", ".markdown")  # endings of files that are decoded
ReadNamed: TypeAlias = Callable[[str, str], FileText]  # (name of a file, place in the row that names it)
_FILE = re.compile(r"\A[^\n\r]{1,500}\.(?:html?|xhtml|txt|md|markdown|pdf|docx)", re.IGNORECASE)
_HTML = re.compile(r"\A\s*+(?:<\?xml[^>]*>\s*+)?<(?:!doctype\s+html|html[\s>])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RowDocument:
    """Document of a row: in the row itself, or in a file that the row names."""

    source: Source
    url: str
    title: str
    modified: str
    name: Source | None = None  # the title of an HTML page, as a separate source
    pages: tuple[Mark, ...] = ()  # spans of a PDF's pages
    sections: tuple[Mark, ...] = ()  # spans of the sections of a PDF or docx
    faults: tuple[Fault, ...] = ()  # one for each page of a PDF that cannot be read

    def sources(self) -> tuple[Source, ...]:
        return tuple(filter(None, (self.source, self.name)))


def items_of(value: Mapping[str, Any], fields: FieldMap) -> list[Any]:
    """Lists the documents of a row: the items in its field of documents, if the file has that field and one
    of questions. Otherwise the row itself is one document, if the file has a field for content."""
    if not fields.asks() or "documents" not in fields.fields:
        own = {role: fields.get(value, role) for role in OF_DOCUMENT if role in fields.fields}
        return [] if own.keys().isdisjoint(CONTENT) else [own]
    items = list[Any]()
    for given in map(json_list, fields.all(value, "documents")):
        lists = {k: v for k, v in given.items() if isinstance(v, list)} if isinstance(given, Mapping) else {}
        if len({len(v) for v in lists.values()}) == 1:  # an object of parallel lists, one entry per item
            items += [dict(zip(lists, some, strict=True)) for some in zip(*lists.values(), strict=True)]
        else:
            items += [item for item in given if item is not None] if isinstance(given, list) else [given]
    title, url = (scalar_text(fields.get(value, n)) for n in ("title", "url"))
    if len(items) == 1 and isinstance(items[0], str) and (title or url) and path_of(items[0], {}) is None:
        return [{"title": title, "url": url, "text": items[0]}]  # the row's title belongs to its one document
    return items


def json_list(given: Any) -> Any:
    """Parses a text that holds a JSON list, such as a cell of CSV; returns other values unchanged."""
    if isinstance(given, str) and (said := given.strip()).startswith("[") and said.endswith("]"):
        with suppress(ValueError):
            return json.loads(given)
    return given


def document_of(item: Any, read: ReadNamed, where: str, inner: Mapping[str, str]) -> RowDocument | None:
    """Makes the document of an item; None if it has no text. `inner` maps a role to the item's field that the
    user named. Raises UnusableLine if the item is no document, or `read` cannot read the file it names."""
    if isinstance(item, list) and len(item) == 2 and isinstance(item[0], str):
        item = {"title": item[0], "text": item[1]}  # HotpotQA's pairs of title and sentences
    if isinstance(item, str):
        item = {"path" if path_of(item, {}) is not None else "text": item}
    if not isinstance(item, Mapping):
        raise UnusableLine("wrong_type", f"{where}: expected text or an object, found {kind(item)}")
    seen = [str(name) for name in item]
    names = {r: n for r in OF_DOCUMENT if (n := inner.get(r) or by_name(r, seen))}
    if not any(role in names for role in CONTENT):
        expected = f"expected one of the fields {', '.join(CONTENT)}"
        raise UnusableLine("missing_field", f"{where}: {expected}; found {listed(seen)}")
    values = {role: item.get(name) for role, name in names.items()}
    url, title, modified = (scalar_text(values.get(n)) for n in ("url", "title", "modified"))
    html, text = (_joined(values.get(n), where) for n in ("html", "text"))
    named = values.get("path")
    if not html and not text and isinstance(named, str) and named:
        file = read(named, where)
        if file.kind in ("pdf", "docx"):  # the content is plain text, and the pages are spans of it
            source, lost = source_of("document", file.content), tuple(f for _, f in file.faults)
            url, title = url or quote(named), title or file.title
            return RowDocument(source, url, title, modified, None, file.pages, file.sections, lost)
        url = url or named
        html, text = (file.content, "") if file.kind == "html" else ("", file.content)
    if not html and _HTML.match(text):
        html = text
    if html and not html.isspace():
        name = source_of("name", title) if title else None
        return RowDocument(source_of("page", html), url, title, modified, name)
    if not text or text.isspace():
        return None
    return RowDocument(source_of("document", f"{title}\n{text}" if title else text), url, title, modified)


def _joined(value: Any, where: str) -> str:
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return " ".join(v.strip() for v in value)
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as e:
            raise UnusableLine("not_utf8", f"{where}: byte {e.start}; expected UTF-8") from e
    return "" if value is None or isinstance(value, float) else required_text(value, where)


def path_of(item: Any, inner: Mapping[str, str]) -> str | None:
    """Returns the path that an item names, or None. A text is a path if it ends in .pdf, .txt or the like."""
    if isinstance(item, Mapping):
        name = inner.get("path") or by_name("path", [str(n) for n in item])
        given = item.get(name) if name else None
        return given if isinstance(given, str) and given else None
    return item if isinstance(item, str) and _FILE.fullmatch(item) else None


def read_named(folder: Path, documents: DocumentReader, named: str, where: str) -> FileText:
    """Reads the file below `folder` that a row names as its document. HTML pages and texts are only decoded;
    a PDF or docx is read as in a folder of documents. `where` is the place in the row, for messages. Raises
    UnusableLine if the file is missing, too large, of another kind or cannot be read."""
    file = inside(folder, named, where)
    ending, endings = file.suffix.lower(), (*PAGES, *TEXTS, *MARKED)
    if ending not in endings:
        raise UnusableLine("file_kind", f"{where}: expected {', '.join(endings)}, found {named!r}")
    most = DOCUMENT_LIMITS.file_bytes if ending in MARKED else LIMITS.line_bytes
    if (size := file.stat().st_size) > most:
        raise UnusableLine("too_long", f"{where}: {named!r}: expected at most {most:,} bytes, found {size:,}")
    try:
        data = file.read_bytes()
    except OSError as e:
        raise UnusableLine("no_file", f"{where}: {named!r} cannot be read: {e.strerror}") from e
    if ending in MARKED:
        try:
            found = documents.read(named, data)
        except UnusableLine as e:
            e.fault = replace(e.fault, detail=f"{where}: {named!r}: {e.fault.detail}")
            raise
        lost = [(n, replace(f, detail=f"{where}: {named!r}, page {n}: {f.detail}")) for n, f in found.faults]
        return replace(found, title=found.title or PurePath(named).stem, faults=tuple(lost))
    is_page = ending in PAGES
    try:  # as `raypipe parse` reads a page
        content = data.decode("utf-8-sig", "replace" if is_page else "strict").replace("\0", "")
    except UnicodeDecodeError as e:
        raise UnusableLine("not_utf8", f"{where}: {named!r}: byte {e.start}; expected UTF-8") from e
    return FileText("html", "", content, "page") if is_page else FileText("txt", "", content, "document")


def inside(folder: Path, named: str, where: str) -> Path:
    """Resolves the path of a file below a folder. Raises UnusableLine if the file is missing or outside."""
    root = folder.resolve()
    try:
        file = (root / named).resolve()
        if file.is_relative_to(root) and file.is_file():
            return file
        found = "a text itself belongs in an object, as text"
    except (OSError, ValueError) as e:
        found = f"it cannot be a path: {e}"
    raise UnusableLine("no_file", f"{where}: no file {named[:200]!r} inside {folder}; {found}")


def scalar_text(value: Any) -> str:
    """Returns a text, number, boolean or date as stripped text; "" for NaN and all other values."""
    if isinstance(value, float) and math.isnan(value):
        return ""
    return written(value).strip() if isinstance(value, SCALARS) else ""


def required_text(value: Any, name: str) -> str:
    if value is None:
        raise UnusableLine("missing_field", f"{name}: expected text, found none")
    if not isinstance(value, str):
        raise UnusableLine("wrong_type", f"{name}: expected text, found {kind(value)}")
    return value
