"""Files that are text already: encodings, Markdown's headings, rows of a CSV, an HTML page's title.

Pure and linear in the size of the file, so they need no child. An HTML page stays HTML: `parse` reads it.
Cells of a CSV are parted by what its first line says: Excel's `sep=;`, else what it has most of.
"""

from __future__ import annotations

import codecs
import csv
import html
import io
import re
from collections.abc import Iterable
from functools import partial
from itertools import chain, pairwise, takewhile
from typing import Any

import turbohtml
from turbohtml.detect import detect

from raypipe.core.records import Fault
from raypipe.readers.documents.page_text import storable, table_row
from raypipe.readers.rows import LIMITS, STEP, UnusableLine

_NAMED = re.compile(r"\"?sep=(.)\"?\s*", re.IGNORECASE)


def csv_reader(lines: Iterable[str], separators: str, titled: bool = False) -> Any:
    """The `csv.reader` of these lines; it raises csv.Error. A line `sep=` is a blank row of it.

    Of `separators` the one counts that the first line has most of, outside of quotes; of equals the first.
    `titled`: lines without any may stand above it.
    """
    # The library's own limit is 131,072 characters. It is one for the process, so all set the same.
    csv.field_size_limit(LIMITS.line_bytes)
    given, before, named = iter(lines), list[str](), None
    for first in given:
        named = named or _NAMED.fullmatch(first)
        if first.strip() and not _NAMED.fullmatch(first) and (not titled or set(first) & set(separators)):
            break
        before.append("\n" if _NAMED.fullmatch(first) else first)
    else:
        first = ""
    bare = re.sub(r'"[^"]*"', "", first)
    separator = named[1] if named else max(separators, key=lambda c: (bare.count(c), -separators.index(c)))
    return csv.reader(chain(before, [first], given), delimiter=separator, strict=True)


GUESS_BYTES = 1 << 18  # that the guess of an encoding looks at: .05 s
HEAD_BYTES = 1 << 16  # in which a page may name its encoding: browsers look on behind the first 1,024
UNREAD = 20  # characters beyond ASCII for each U+FFFD of a text that was read rightly
_BOMS = {  # those of UTF-32 first: one begins as UTF-16's
    "utf-8": (codecs.BOM_UTF8,),
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}
_META = re.compile(rb"<meta\b", re.I)
_XML = re.compile(rb"\A\s*+<\?xml[^>]{0,200}?\bencoding\s*+=\s*+[\"']([\w.:-]{2,40})")
_TITLE = re.compile(r"<title\b[^>]{0,200}>(.{0,2000}?)</title>", re.I | re.S)
_TAG = re.compile(r"<[^<>]{0,500}>")
_ATX = re.compile(r" {0,3}(#{1,6})[ \t]++(.*)")
_FENCE = re.compile(r" {0,3}(```|~~~)")
_UNDERLINE = re.compile(r" {0,3}(=+|-{2,})[ \t]*")  # of a heading with a line under it
_EMPHASIS = re.compile(r"[*_`]")
_MARKUP = re.compile(r"[*_`]|\[([^\]]*+)(?:\]\([^)]*+(\))?)?")  # without its end a link is none
_NUMBER = re.compile(r"[-+]?[\d.,]+%?")
_WHOLE = re.compile(r"[0-9]{1,9}")
_YEAR = re.compile(r"1[0-9]{3}|20[0-9]{2}")


def decoded(data: bytes, is_html: bool = False, named: str = "") -> str:
    """Decodes a file as browsers do, by the WHATWG's labels of encodings.

    By its byte order mark, by what its server `named`, by what an HTML page says, as UTF-8; else by a guess.
    A reading that mostly fails gives way to the next. Raises UnusableLine: an encoding that no browser reads.
    """
    for name, marks in _BOMS.items():
        if data.startswith(marks):
            return _clean(data.decode(name, "replace"))
    names, head = [_by_label(named)], data[:HEAD_BYTES]
    if is_html and (xml := _XML.match(head)):
        names.append(_by_label(xml[1].decode()))
    elif is_html and (page := turbohtml.parse(head, positions=False)).encoding_confidence == "certain":
        names.append(page.encoding or "")
    names = [name for name in names if name]
    if "replacement" in names:
        raise UnusableLine("unsupported", "an encoding that browsers do not read, such as ISO-2022-KR or HZ")
    readings = [data.decode(f"whatwg-{name}") for name in (*names, "UTF-8")]
    whole = (text for text in readings if "\ufffd" not in text)
    # Nearly all characters beyond ASCII were read: a file may be cut within one.
    nearly = (t for t in readings if t.count("\ufffd") * UNREAD <= sum(char > "\x7f" for char in t))
    if (text := next(chain(whole, nearly), None)) is None:
        name = detect(_META.sub(b"<", data[:GUESS_BYTES])).encoding or "windows-1252"
        text = data.decode(f"whatwg-{next((n for n in names if n != 'UTF-8'), name)}")
    return _clean(text)


def _by_label(label: str) -> str:
    """The name of the encoding that has this label; "" for a label that is none."""
    try:
        return turbohtml.parse(b"", encoding=label.lower()).encoding or ""
    except LookupError:
        return ""


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

    label = partial(_MARKUP.sub, lambda markup: markup[1] if markup[2] else _EMPHASIS.sub("", markup[0]))
    named = [(" ".join(label(h).split()), "\n".join(lines)) for h, lines in sections]
    return next((h for h, _ in named if h), ""), [(h, t) for h, t in named if t.strip()]


def table(text: str) -> tuple[str, list[tuple[int, Fault]]]:
    """The rows of a CSV file as rows of a table: each cell with the name of its column, where the first row
    has names; and line and fault of each row with more cells than the first, which is left out. The last
    cells of a shorter one are empty. Lines of a single cell above the first row are titles.

    >>> table("part,days\\nIM-60,21\\nIM-90\\n")[0].split("\\n")
    ['| part: IM-60 | days: 21 |', '| part: IM-90 |']
    """
    rows = list[tuple[int, list[str]]]()  # those that are not blank, with the number of their last line
    reader = csv_reader(io.StringIO(text, newline=""), ",;\t|", titled=True)
    try:
        for row in reader:
            cells = [" ".join(storable(cell).split()) for cell in row]
            if any(cells):
                rows.append((reader.line_num, cells))
    except csv.Error as e:
        raise UnusableLine("broken", f"line {reader.line_num}: expected rows of a CSV file: {e}") from e
    if not rows:
        raise UnusableLine("empty", "expected rows, found none")
    titles = list(takewhile(lambda row: not any(row[1][1:]), rows))
    if len(titles) == len(rows):
        titles = []  # a table of one column
    rows = rows[len(titles) :]
    names, faults, kept = rows[0][1], list[tuple[int, Fault]](), list[list[str]]()
    for number, row in rows:
        while len(row) > len(names) and not row[-1]:
            row.pop()  # a separator at the line's end
        if len(row) > len(names):
            expected = f"expected at most {len(names)} cells, as the first row has"
            found = f"found {len(row)}: {', '.join(row)[:80]!r}"
            faults.append((number, Fault(STEP, "ragged_rows", f"line {number}: {expected}, {found}", False)))
        else:
            kept.append(row)
    above = [table_row(row[:1]) for _, row in titles]
    # names of columns: all of them others; the first may lack, as above the rows' own names, and the last
    labels = names[: max((n for n, name in enumerate(names, 1) if name), default=0)]
    header = all(labels[1:]) and len(set(labels)) == len(labels)
    if header and any(numbers := [_NUMBER.fullmatch(name) is not None for name in labels]):
        # years or evenly spaced, as the numbers of most rows below are not
        header = not all(numbers) and _is_series(labels) and 2 * sum(map(_is_series, kept[1:])) < len(kept)
    if not header or len(kept) == 1:
        return "\n".join([*above, *(table_row([c for c in row if c]) for row in kept)]), faults
    named, numeric = (
        list[list[str]](),
        2 * sum(any(map(_NUMBER.fullmatch, row)) for row in kept[1:]) >= len(kept) - 1,
    )
    for row in kept[1:]:
        if _heads(row, names, numeric):
            names = row
        else:
            pairs = zip(names, row, strict=False)
            named.append([f"{name}: {cell}" if name else cell for name, cell in pairs if cell])
    return "\n".join([*above, *map(table_row, named)]), faults


def _heads(row: list[str], names: list[str], numeric: bool) -> bool:
    """Returns whether a row names the columns of those below it: the header again, or another one with the
    same first cell, whose other cells are years as there, or texts in a table of numbers."""
    if row[0] != names[0] or len(row) < 2:
        return False
    numbers = any(map(_NUMBER.fullmatch, row))
    return row == names or (_is_series(row) and _is_series(names) if numbers else numeric and bool(row[0]))


def _is_series(cells: list[str]) -> bool:
    numbers = [cell for cell in cells if _NUMBER.fullmatch(cell)]
    if not numbers or not all(map(_WHOLE.fullmatch, numbers)):
        return False
    steps = {int(b) - int(a) for a, b in pairwise(numbers)}
    return len(steps) < 2 and 0 not in steps and (len(numbers) > 2 or all(map(_YEAR.fullmatch, numbers)))
