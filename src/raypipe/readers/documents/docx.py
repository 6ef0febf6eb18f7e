"""A docx to text and sections, over zipfile and lxml; runs in the limited child.

Takes what Word shows: tracked insertions, content controls, text boxes, tables in tables, formulas, notes.
Leaves out what it does not: tracked deletions, hidden text, fields' code, comments, headers and footers. The
parts are parsed as streams, without entities and without libxml2's huge mode. A docx has no pages.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lxml import etree

from raypipe.readers.rows import DOCUMENT_LIMITS, DocumentLimits

MAIN, STYLES, CORE = "word/document.xml", "word/styles.xml", "docProps/core.xml"
NOTES = ("word/footnotes.xml", "word/endnotes.xml")
_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_STRICT = "{http://purl.oclc.org/ooxml/wordprocessingml/main}"
_M = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_MC = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_DC = "{http://purl.org/dc/elements/1.1/}"
_NAMES = """del moveFrom instrText delText delInstrText rt softHyphen
    rubyPr pPr tblPr trPr tcPr sectPr sdtPr tblGrid"""
_OMITTED = {f"{_W}{name}" for name in _NAMES.split()}
_CHARS = {
    f"{_W}tab": "\t", f"{_W}br": "\n", f"{_W}cr": "\n", f"{_W}noBreakHyphen": "-", f"{_W}ptab": "\t",
}  # fmt: skip
HEADING_LEVELS = 9  # an outline level from 0; 9 is body text


class Damaged(Exception):
    """Its arguments: reason, and detail."""


@dataclass(slots=True)
class _Text:
    headings: list[str] = field(default_factory=lambda: [""])
    blocks: list[list[str]] = field(default_factory=lambda: [[]])  # of each section
    title: str = ""

    def add(self, text: str) -> None:
        if text.strip():
            self.blocks[-1].append(text.strip())

    def heading(self, text: str) -> None:
        if text.strip():
            self.headings.append(" ".join(text.split()))
            self.blocks.append([text.strip()])


def read(data: bytes, limits: DocumentLimits = DOCUMENT_LIMITS) -> dict[str, Any]:
    """Title, and heading and text of each section; or a fault: broken, encrypted, too_large."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            _check(archive, limits)
            return _read(archive)
    except Damaged as e:
        return {"fault": e.args}
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError, ValueError) as e:
        return {"fault": ["broken", f"expected a docx, found a zip file that cannot be read: {e}"]}
    except etree.XMLSyntaxError as e:
        reason = "too_large" if "limit" in str(e).lower() or "huge" in str(e).lower() else "broken"
        return {"fault": [reason, f"expected a docx, found a part that cannot be parsed: {e}"]}


def _check(archive: zipfile.ZipFile, limits: DocumentLimits) -> None:
    """Raises Damaged for an archive that unpacks to more than is allowed, as its entries say."""
    members = archive.infolist()
    if MAIN not in archive.namelist():
        raise Damaged("broken", f"expected the part {MAIN}, found none")
    whole = sum(m.file_size for m in members)
    if len(members) > limits.zip_members or whole > limits.zip_bytes:
        most = f"at most {limits.zip_members:,} parts with {limits.zip_bytes:,} bytes"
        raise Damaged("too_large", f"expected {most}, found {len(members):,} with {whole:,}")
    for m in members:
        if m.flag_bits & 1:
            raise Damaged("encrypted", f"a password protects the part {m.filename}")
        packed = limits.zip_ratio * max(m.compress_size, 1)
        if m.file_size > min(limits.zip_member_bytes, max(limits.zip_ratio_free_bytes, packed)):
            raise Damaged(
                "too_large",
                f"{m.filename}: expected at most {limits.zip_member_bytes:,} bytes and {limits.zip_ratio} "
                f"times the packed size, found {m.file_size:,} from {m.compress_size:,}",
            )


def _read(archive: zipfile.ZipFile) -> dict[str, Any]:
    levels, titles = _styles(archive)
    text = _Text()
    for part in (MAIN, *(n for n in NOTES if n in archive.namelist())):
        if part != MAIN and text.blocks[-1]:
            text.headings.append("")
            text.blocks.append([])
        for element in _top_level(archive, part):
            _block(element, text, levels, titles)
    sections = [
        (h, "\n\n".join(blocks)) for h, blocks in zip(text.headings, text.blocks, strict=True) if blocks
    ]
    return {"title": _core_title(archive) or text.title, "sections": sections}


def _top_level(archive: zipfile.ZipFile, part: str) -> Iterator[etree._Element]:
    """Each element right below the body, or below a note, one in memory at a time."""
    parents = {f"{_W}body", f"{_W}footnote", f"{_W}endnote"}
    with archive.open(part) as stream:
        events = etree.iterparse(stream, ("end",), resolve_entities=False, no_network=True, load_dtd=False)
        for _, element in events:
            if not isinstance(element.tag, str):
                continue
            if element.tag.startswith(_STRICT):
                raise Damaged("unsupported", "a docx in the strict form of its standard: save it as a docx")
            parent = element.getparent()
            if parent is None or parent.tag not in parents:
                continue
            if parent.get(f"{_W}type") not in ("separator", "continuationSeparator", "continuationNotice"):
                yield element
            # From the leaves up: clearing a whole table at once took 10 s for one of 64,000 cells.
            for _, inner in etree.iterwalk(element, ("end",)):
                inner.clear()
            while element.getprevious() is not None:
                del parent[0]


def _block(element: etree._Element, text: _Text, levels: dict[str, int], titles: set[str]) -> None:
    tag = element.tag
    if not isinstance(tag, str) or tag in _OMITTED:
        return
    if tag == f"{_W}p":
        boxes: list[etree._Element] = []
        said = "".join(_inline(element, boxes))
        style, level = _value(element, "pStyle"), _value(element, "outlineLvl")
        if (int(level) if level.isdigit() else levels.get(style, HEADING_LEVELS)) < HEADING_LEVELS:
            text.heading(said)
        else:
            text.add(said)
        if style in titles and not text.title:
            text.title = " ".join(said.split())
        for box in boxes:
            _blocks(box, text, levels, titles)
    elif tag == f"{_W}tbl":
        rows = ([_cell(cell) for cell in _below(row, f"{_W}tc")] for row in _below(element, f"{_W}tr"))
        text.add("\n".join("\t".join(cells) for cells in rows))
    else:
        _blocks(element, text, levels, titles)


def _blocks(element: etree._Element, text: _Text, levels: dict[str, int], titles: set[str]) -> None:
    for child in _shown(element):
        _block(child, text, levels, titles)


def _below(element: etree._Element, tag: str) -> Iterator[etree._Element]:
    """The nearest elements of a tag below, through content controls and tracked insertions."""
    for child in _shown(element):
        if child.tag == tag:
            yield child
        elif child.tag not in _OMITTED and child.tag not in (f"{_W}p", f"{_W}tbl"):
            yield from _below(child, tag)


def _cell(cell: etree._Element) -> str:
    inner = _Text()
    _blocks(cell, inner, {}, set())
    return " ".join(word for blocks in inner.blocks for block in blocks for word in block.split())


def _inline(element: etree._Element, boxes: list[etree._Element]) -> Iterator[str]:
    """The text of a paragraph. Text boxes in it are put into `boxes`: they have paragraphs of their own."""
    for child in _shown(element):
        tag = child.tag
        vanish = child.find(f"{_W}rPr/{_W}vanish") if tag == f"{_W}r" else None
        if tag in _OMITTED or (vanish is not None and vanish.get(f"{_W}val") not in ("0", "false", "off")):
            continue
        if tag == f"{_W}txbxContent":
            boxes.append(child)
        elif tag in (f"{_W}t", f"{_M}t"):
            yield child.text or ""
        elif tag in _CHARS:
            yield _CHARS[tag]
        elif tag == f"{_W}sym":
            yield _symbol(child)
        else:
            yield from _inline(child, boxes)


def _shown(element: etree._Element) -> Iterator[etree._Element]:
    """The children that count: of alternatives the first."""
    for child in element:
        if not isinstance(child.tag, str):
            continue
        if child.tag == f"{_MC}AlternateContent":
            for chosen in sorted(child, key=lambda c: c.tag != f"{_MC}Choice")[:1]:
                yield from _shown(chosen)
        else:
            yield child


def _symbol(element: etree._Element) -> str:
    """A character of a symbol font; those in the private area mean nothing without it."""
    try:
        code = int(element.get(f"{_W}char", ""), 16)
    except ValueError:
        return ""
    return "" if 0xE000 <= code <= 0xF8FF or not 0 < code < 0x110000 else chr(code)


def _value(paragraph: etree._Element, name: str) -> str:
    found = paragraph.find(f"{_W}pPr/{_W}{name}")
    return "" if found is None else found.get(f"{_W}val", "")


def _styles(archive: zipfile.ZipFile) -> tuple[dict[str, int], set[str]]:
    """Outline level of each style that has one, or whose base has one; and the styles of titles."""
    if STYLES not in archive.namelist():
        return {}, set()
    own: dict[str, int] = {}
    base: dict[str, str] = {}
    titles = set[str]()
    with archive.open(STYLES) as stream:
        for _, style in etree.iterparse(stream, ("end",), tag=f"{_W}style", resolve_entities=False):
            id = style.get(f"{_W}styleId", "")
            named, based = style.find(f"{_W}name"), style.find(f"{_W}basedOn")
            name = "" if named is None else named.get(f"{_W}val", "").lower()
            level, number = _value(style, "outlineLvl"), name.removeprefix("heading ")
            if level.isdigit():
                own[id] = int(level)
            elif number != name and number.isdigit():
                own[id] = int(number) - 1
            if based is not None:
                base[id] = based.get(f"{_W}val", "")
            if name == "title":
                titles.add(id)
            style.clear()
    for id in base:
        at, steps = id, 0
        while at not in own and at in base and steps < HEADING_LEVELS:
            at, steps = base[at], steps + 1
        if at in own:
            own.setdefault(id, own[at])
    return own, titles


def _core_title(archive: zipfile.ZipFile) -> str:
    if CORE not in archive.namelist():
        return ""
    with archive.open(CORE) as stream:
        for _, element in etree.iterparse(stream, ("end",), tag=f"{_DC}title", resolve_entities=False):
            return " ".join((element.text or "").split())
    return ""
