"""Files that are text already: encodings, Markdown's headings, rows of a CSV, an HTML page's title.

Pure and linear in the size of the file, so they need no child. An HTML page stays HTML: `parse` reads it.
"""

from __future__ import annotations

import codecs
import csv
import html
import io
import re

from raypipe.readers.documents.page_text import storable
from raypipe.readers.rows import DOCUMENT_LIMITS, UnusableLine

GUESS_FROM = 200  # bytes beyond ASCII: with fewer a guess of the encoding is often wrong
GUESS_BYTES = 1 << 18  # that the guess looks at
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip
_META = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*+[\"']?\s*+([\w-]{2,40})", re.I)
_TITLE = re.compile(r"<title\b[^>]{0,200}>(.{0,2000}?)</title>", re.I | re.S)
_TAG = re.compile(r"<[^<>]{0,500}>")
_ATX = re.compile(r" {0,3}(#{1,6})[ \t]++(.*)")
_FENCE = re.compile(r" {0,3}(```|~~~)")
_UNDERLINE = re.compile(r" {0,3}(=+|-{2,})[ \t]*")  # of a heading with a line under it
_EMPHASIS = re.compile(r"[*_`]")
_MARKUP = re.compile(r"[*_`]|\[([^\]]*+)(?:\]\([^)]*+(\))?)?")  # without its end a link is none
_SEPARATORS = ",;\t|"
_NUMBER = re.compile(r"[-+]?[\d.,]+%?")


def decoded(data: bytes, is_html: bool = False, named: str = "") -> str:
    """The text of a file: by its byte order mark, by what its server `named`, by what an HTML page says, as
    UTF-8; else by a guess where there is enough to guess from, else as Windows' western encoding."""
    for mark, name in _BOMS:
        if data.startswith(mark):
            return _clean(data.decode(name, "replace"))
    said = _META.search(data[:4096]) if is_html else None
    for name in filter(None, (named, said[1].decode() if said else "", "utf-8")):
        try:
            return _clean(data.decode(name))
        except (UnicodeDecodeError, LookupError):
            continue
    head, guess = data[:GUESS_BYTES], "cp1252"
    if sum(byte > 127 for byte in head) >= GUESS_FROM:
        from charset_normalizer import from_bytes

        if (best := from_bytes(head).best()) is not None:
            guess = best.encoding
    return _clean(data.decode(guess, "replace"))


def _clean(text: str) -> str:
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def html_title(text: str) -> str:
    found = _TITLE.search(text[:100_000])
    return " ".join(storable(html.unescape(_TAG.sub(" ", found[1]))).split()) if found else ""


def markdown(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Title, and heading and text of each section of a Markdown file, the headings in the text."""
    sections: list[tuple[str, list[str]]] = [("", [])]  # heading and lines
    fenced = before = ""
    for line in text.split("\n"):
        if mark := _FENCE.match(line):
            fenced = "" if fenced == mark[1] else fenced or mark[1]
        found = None if fenced else _ATX.match(line)
        if not fenced and before.strip() and _UNDERLINE.fullmatch(line):
            sections.append((before, [sections[-1][1].pop(), line]))
        elif found:
            sections.append((found[2].rstrip(" \t#"), [line]))
        else:
            sections[-1][1].append(line)
        before = line if not found and not line.lstrip().startswith(("-", "|", ">", "*")) else ""
    named = [(" ".join(_MARKUP.sub(_label, h).split()), "\n".join(lines)) for h, lines in sections]
    return next((h for h, _ in named if h), ""), [(h, t) for h, t in named if t.strip()]


def _label(markup: re.Match[str]) -> str:
    return markup[1] if markup[2] else _EMPHASIS.sub("", markup[0])


def table(text: str) -> str:
    """The rows of a CSV file as lines: each cell with the name of its column, where the first row has names.

    Raises UnusableLine for rows of other lengths than the first: ragged_rows.
    """
    rows = _rows(text)
    if not rows:
        raise UnusableLine("empty", "expected rows, found none")
    names = rows[0][1]
    for number, row in rows:
        if len(row) != len(names):
            expected = f"expected {len(names)} cells, as the first row has"
            found = f"found {len(row)}: {', '.join(row)[:80]!r}"
            raise UnusableLine("ragged_rows", f"line {number}: {expected}, {found}")
    # names of columns: all of them other words, and none a number
    header = all(names) and len(set(names)) == len(names) and not any(map(_NUMBER.fullmatch, names))
    if not header or len(rows) == 1:
        return "\n".join(", ".join(c for c in row if c) for _, row in rows)
    return "\n".join(
        "; ".join(f"{name}: {cell}" if name else cell for name, cell in zip(names, row, strict=True) if cell)
        for _, row in rows[1:]
    )


def _rows(text: str) -> list[tuple[int, list[str]]]:
    """The rows that are not blank, each with the number of its last line; white space in cells folded."""
    first = next((line for line in text[: DOCUMENT_LIMITS.text_bytes].split("\n") if line.strip()), "")
    bare = re.sub(r'"[^"]*"', "", first)  # cells are parted by what gives the first row most of them
    separator = max(_SEPARATORS, key=lambda c: (bare.count(c), -_SEPARATORS.index(c)))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    found = []
    try:
        for row in reader:
            cells = [" ".join(storable(cell).split()) for cell in row]
            if any(cells):
                found.append((reader.line_num, cells))
    except csv.Error as e:
        raise UnusableLine("broken", f"line {reader.line_num}: expected rows of a CSV file: {e}") from e
    return found
