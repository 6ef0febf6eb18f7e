"""Reader of docx: text and sections, by zipfile and lxml, in the child process with limits.

Reads what Word shows in body and notes: tracked insertions, content controls, text boxes, nested tables,
formulas, numbers of paragraphs, embedded pages. Skips tracked deletions, hidden text, the code of fields,
comments, headers and footers. The texts are parsed as streams, without entities and without libxml2's huge
mode. A docx has no pages.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from email import message_from_bytes
from typing import Any

from lxml import etree

from raypipe.readers.documents.docx_parts import HEADING_LEVELS, Numbering, Package, W, value
from raypipe.readers.documents.page_text import table_row
from raypipe.readers.documents.text_files import decoded
from raypipe.readers.rows import DOCUMENT_LIMITS, DocumentLimits, UnusableLine
from raypipe.text.page_parser import to_text

NOTES = ("footnotes", "endnotes")
_R = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_STRICT = "{http://purl.oclc.org/ooxml/wordprocessingml/main}"
_MIME = re.compile(rb"\A\s*+(?:MIME-Version|From|Subject|Date|Content-Type|Content-Location)\s*+:", re.I)
_TAG = re.compile(rb"<(?:!doctype|html|head|body|p|div|span|table|ul|ol|h[1-6]|br|meta)\b", re.I)
_M = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_MC = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_NAMES = """del moveFrom instrText delText delInstrText rt softHyphen
    rubyPr pPr tblPr trPr tcPr sectPr sdtPr tblGrid"""
_OMITTED = {f"{W}{name}" for name in _NAMES.split()}
_CHARS = {f"{W}tab": "\t", f"{W}br": "\n", f"{W}cr": "\n", f"{W}noBreakHyphen": "-", f"{W}ptab": "\t"}
COLUMNS = 63  # most columns of a table in Word
LABEL = 80  # most characters of a merged cell whose text is repeated in its rows and columns
NESTED = 2  # most levels of docx files in a docx; Word itself writes none


@dataclass(slots=True)
class _Text:
    headings: list[str] = field(default_factory=lambda: [""])
    blocks: list[list[str]] = field(default_factory=lambda: [[]])  # paragraphs and tables of each section
    title: str = ""
    in_cell: bool = False  # whether this is the text of a table's cell, in which a nested table is plain text

    def add(self, text: str) -> None:
        if text.strip():
            self.blocks[-1].append(text.strip())

    def heading(self, text: str) -> None:
        if text.strip():
            self.headings.append(" ".join(text.split()))
            self.blocks.append([text.strip()])


@dataclass(frozen=True, slots=True)
class _Styles:
    """Styles and numbering of the paragraphs, from the parts of the docx other than its text."""

    package: Package
    levels: dict[str, int]  # style -> its level in the outline
    titles: set[str]  # styles of titles
    lists: dict[str, tuple[str, str]]  # style -> (num, level) of its paragraphs (`docx_parts`)
    numbering: Numbering
    depth: int  # number of docx files that enclose this one

    def number(self, properties: etree._Element | None, style: str) -> str:
        num, level = value(properties, "numPr/numId"), value(properties, "numPr/ilvl")
        own = self.lists.get(style, ("", ""))
        return self.numbering.number(num or own[0], level or ("" if num else own[1]), style)


def read(data: bytes, limits: DocumentLimits = DOCUMENT_LIMITS) -> dict[str, Any]:
    """Reads the title, and the heading and text of each section. Raises UnusableLine with the reason broken,
    encrypted, too_large or unsupported."""
    try:
        return _document(data, limits)
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError, ValueError) as e:
        why = f"expected a docx, found a zip file that cannot be read: {e}"
        raise UnusableLine("broken", why) from e
    except etree.XMLSyntaxError as e:
        reason = "too_large" if "limit" in str(e).lower() or "huge" in str(e).lower() else "broken"
        raise UnusableLine(reason, f"expected a docx, found a part that cannot be parsed: {e}") from e


def _document(data: bytes, limits: DocumentLimits, depth: int = 0) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        package, text = Package(archive, limits), _Text()
        styles = _Styles(package, *package.styles(), package.numbering(), depth)
        for part in (package.main, *filter(None, map(package.part, NOTES))):
            if part != package.main and text.blocks[-1]:
                text.headings.append("")
                text.blocks.append([])
            for element in _top_level(package, part):
                _block(element, text, styles)
        parts = zip(text.headings, text.blocks, strict=True)
        sections = [(heading, "\n\n".join(blocks)) for heading, blocks in parts if blocks]
        return {"title": package.title() or text.title, "sections": sections}


def _top_level(package: Package, part: str) -> Iterator[etree._Element]:
    """Yields the elements of a part's body or notes. Holds only one element in memory."""
    parents = {f"{W}body", f"{W}footnote", f"{W}endnote"}
    with package.open(part) as stream:
        events = etree.iterparse(stream, ("end",), resolve_entities=False, no_network=True, load_dtd=False)
        for _, element in events:
            if not isinstance(element.tag, str):
                continue
            if element.tag.startswith(_STRICT):
                found = "a docx in the strict form of its standard: save it as a docx"
                raise UnusableLine("unsupported", found)
            parent = element.getparent()
            if parent is None or parent.tag not in parents:
                continue
            if parent.get(f"{W}type") not in ("separator", "continuationSeparator", "continuationNotice"):
                yield element
            # Cleared from the leaves up: clearing a table of 64,000 cells in one call took 10 s.
            for _, inner in etree.iterwalk(element, ("end",)):
                inner.clear()
            while element.getprevious() is not None:
                del parent[0]


def _block(element: etree._Element, text: _Text, styles: _Styles) -> None:
    tag = element.tag
    if not isinstance(tag, str) or tag in _OMITTED:
        return
    if tag == f"{W}p":
        boxes: list[etree._Element] = []
        said = "".join(_inline(element, boxes))
        properties = element.find(f"{W}pPr")
        style, level = value(properties, "pStyle"), value(properties, "outlineLvl")
        if (number := styles.number(properties, style)) and said.strip():
            said = f"{number} {said.strip()}"
        if (int(level) if level.isdigit() else styles.levels.get(style, HEADING_LEVELS)) < HEADING_LEVELS:
            text.heading(said)
        else:
            text.add(said)
        if style in styles.titles and not text.title:
            text.title = " ".join(said.split())
        for box in boxes:
            _blocks(box, text, styles)
    elif tag == f"{W}tbl":
        text.add("\n".join(map(" ".join if text.in_cell else table_row, _rows(element, styles))))
    elif tag in (f"{W}altChunk", f"{W}subDoc"):
        text.add(_embedded(element.get(f"{_R}id", ""), styles))
    else:
        _blocks(element, text, styles)


def _blocks(element: etree._Element, text: _Text, styles: _Styles) -> None:
    for child in _shown(element):
        _block(child, text, styles)


def _embedded(id: str, styles: _Styles) -> str:
    """Reads a page or document that is embedded as a separate part. Raises UnusableLine if the part is
    missing or of a kind that is not read: otherwise its text would be lost silently."""
    relation = styles.package.relations(styles.package.main).get(id)
    if relation is None or relation.outside or relation.target not in styles.package:
        raise UnusableLine("broken", f"expected an embedded page (altChunk or subDoc {id!r}), found none")
    with styles.package.open(relation.target) as stream:
        data = stream.read()
    if data.startswith(b"PK\x03\x04") and styles.depth < NESTED:
        inner = _document(data, styles.package.limits, styles.depth + 1)
        return "\n\n".join(text for _, text in inner["sections"])
    if data.startswith((b"PK\x03\x04", b"{\\rtf", b"\xd0\xcf\x11\xe0")) or b"<pkg:package" in data[:2_000]:
        found = f"an embedded page (altChunk {relation.target}) that is no HTML, text or docx"
        raise UnusableLine("unsupported", found)
    charset, is_html = "", _TAG.search(data) is not None
    if _MIME.match(data):
        parts = [p for p in message_from_bytes(data).walk() if p.get_content_maintype() == "text"]
        if not parts:
            return ""
        best = max(parts, key=lambda part: part.get_content_subtype() == "html")
        data = bytes(best.get_payload(decode=True))  # no multipart, so bytes
        charset, is_html = best.get_content_charset(""), best.get_content_subtype() == "html"
    text = decoded(data, is_html, charset)
    return to_text(text).text if is_html else text


def _below(element: etree._Element, tag: str) -> Iterator[etree._Element]:
    """Yields the nearest descendants with a tag, also within content controls and tracked insertions."""
    for child in _shown(element):
        if child.tag == tag:
            yield child
        elif child.tag not in _OMITTED and child.tag not in (f"{W}p", f"{W}tbl"):
            yield from _below(child, tag)


def _rows(table: etree._Element, styles: _Styles) -> Iterator[list[str]]:
    """Yields the texts of the cells of each row. The text of a merged cell is repeated in all rows and
    columns of the cell if it has at most LABEL characters; in the columns only if the row has other cells."""
    above: dict[int, str] = {}  # column -> text of the merged cell over it
    inside = replace(styles, levels={}, titles=set())  # paragraphs in cells are neither headings nor titles
    for row in _below(table, f"{W}tr"):
        said, at = list[str](), _count(row, "trPr/gridBefore")
        cells = list(_below(row, f"{W}tc"))
        for cell in cells:
            wide, down, across = 1, None, None
            if (properties := cell.find(f"{W}tcPr")) is not None:
                wide = _count(properties, "gridSpan") or 1
                down, across = (properties.find(f"{W}{way}") for way in ("vMerge", "hMerge"))
            if down is not None and down.get(f"{W}val") != "restart":
                text = above.get(at, "")
            elif across is not None and across.get(f"{W}val") != "restart":
                text = said[-1] if said and len(said[-1]) <= LABEL else ""
            else:
                inner = _Text(in_cell=True)
                _blocks(cell, inner, inside)
                text = " ".join(" ".join(block for blocks in inner.blocks for block in blocks).split())
            again = text if len(text) <= LABEL else ""
            above[at] = again if down is not None else ""
            said += [text, *[again] * (wide - 1 if len(cells) > 1 else 0)]
            at += wide
        yield said


def _count(element: etree._Element, path: str) -> int:
    number = value(element, path)
    return min(int(number), COLUMNS) if number.isdigit() else 0


def _inline(element: etree._Element, boxes: list[etree._Element]) -> Iterator[str]:
    """Yields a paragraph's shown text. Adds its text boxes to `boxes`, since they contain paragraphs."""
    for child in _shown(element):
        tag = child.tag
        vanish = child.find(f"{W}rPr/{W}vanish") if tag == f"{W}r" else None
        if tag in _OMITTED or (vanish is not None and vanish.get(f"{W}val") not in ("0", "false", "off")):
            continue
        if tag == f"{W}txbxContent":
            boxes.append(child)
        elif tag in (f"{W}t", f"{_M}t"):
            yield child.text or ""
        elif tag in _CHARS:
            yield _CHARS[tag]
        elif tag == f"{W}sym":
            with suppress(ValueError):
                code = int(child.get(f"{W}char", ""), 16)
                # A private-use character has no meaning without its font.
                if 0 < code < 0xE000 or 0xF8FF < code < 0x110000:
                    yield chr(code)
        else:
            yield from _inline(child, boxes)


def _shown(element: etree._Element) -> Iterator[etree._Element]:
    """Yields the child elements; for an AlternateContent, those of its first Choice, else its Fallback."""
    for child in element:
        if not isinstance(child.tag, str):
            continue
        if child.tag == f"{_MC}AlternateContent":
            for chosen in sorted(child, key=lambda c: c.tag != f"{_MC}Choice")[:1]:
                yield from _shown(chosen)
        else:
            yield child
