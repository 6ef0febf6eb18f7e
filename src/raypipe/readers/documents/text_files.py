"""Readers of text files: encodings, headings of Markdown, rows of CSV, titles of HTML pages.

All functions take time linear in the file's size, so they need no child process. They are pure, except for
a global limit of the library `csv`. An HTML page remains HTML; the step `parse` reads it.
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
    """Makes a strict `csv.reader` of lines and detects its separator. Malformed rows raise csv.Error.

    The separator is the character of `separators` that is most frequent in the first line that is not blank.
    Quoted text is not counted; if two are equally frequent, the earlier in `separators` wins. If `titled`,
    lines without any separator are skipped for this. A line such as `sep=;` above, as Excel writes it, names
    the separator instead; the reader gives a blank row for this line.
    """
    # The library's default is 131,072 characters. The limit is global, so all callers set the same value.
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


GUESS_BYTES = 1 << 18  # first bytes of a file from which its encoding is guessed: .05 s
HEAD_BYTES = 1 << 16  # first bytes of a page that may name its encoding; browsers, too, read more than 1,024
UNREAD = 20  # least non-ASCII characters per undecodable one (U+FFFD) in a correct decoding
_BOMS = {  # UTF-32 before UTF-16, since a mark of UTF-32 begins with one of UTF-16
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
_UNDERLINE = re.compile(r" {0,3}(=+|-{2,})[ \t]*")  # the line under a heading
_EMPHASIS = re.compile(r"[*_`]")
_MARKUP = re.compile(r"[*_`]|\[([^\]]*+)(?:\]\([^)]*+(\))?)?")  # an unclosed link is kept as text
_NUMBER = re.compile(r"[-+]?[\d.,]+%?")
_WHOLE = re.compile(r"[0-9]{1,9}")
_YEAR = re.compile(r"1[0-9]{3}|20[0-9]{2}")


def decoded(data: bytes, is_html: bool = False, named: str = "") -> str:
    """Decodes a file as browsers do, by the WHATWG's labels of encodings. All line ends become newlines.

    A byte order mark decides. Without one, three encodings are tried: the one that the server `named`, the
    one that an HTML page declares, and UTF-8. The first that decodes all characters wins, else the first with
    few errors. If all have many errors, the named or declared encoding is taken unless it is UTF-8, else a
    guess. Raises UnusableLine for an encoding that browsers refuse.
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
    # Texts in which nearly all non-ASCII characters are good: a file may be cut within a character.
    nearly = (t for t in readings if t.count("\ufffd") * UNREAD <= sum(char > "\x7f" for char in t))
    if (text := next(chain(whole, nearly), None)) is None:
        name = detect(_META.sub(b"<", data[:GUESS_BYTES])).encoding or "windows-1252"
        text = data.decode(f"whatwg-{next((n for n in names if n != 'UTF-8'), name)}")
    return _clean(text)


def _by_label(label: str) -> str:
    """Returns the name of the encoding with this label; "" if the label is unknown."""
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
    """Splits Markdown into sections. Returns its first heading, and (heading, text) of each section; a
    section's text includes its heading."""
    sections: list[tuple[str, list[str]]] = [("", [])]  # (heading, lines) of each section
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
    """Converts a CSV file to table rows. If there is a header, each cell follows its column's name.

    Lines of one cell at the start are titles. The next row is the header if its names differ and do not look
    like data; a later header replaces it (`_heads`). Empty cells are left out. A row with more cells than the
    first row is left out and returned as (line, fault). Raises UnusableLine if the text is no CSV.

    >>> table("part,days\\nIM-60,21\\nIM-90\\n")[0].split("\\n")
    ['| part: IM-60 | days: 21 |', '| part: IM-90 |']
    """
    rows = list[tuple[int, list[str]]]()  # (number of the row's last line, cells) of rows that are not blank
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
        titles = []  # the table has one column and no titles
    rows = rows[len(titles) :]
    names, faults, kept = rows[0][1], list[tuple[int, Fault]](), list[list[str]]()
    for number, row in rows:
        while len(row) > len(names) and not row[-1]:
            row.pop()  # a separator at the end of the line
        if len(row) > len(names):
            expected = f"line {number}: expected at most {len(names)} cells, as the first row has"
            detail = f"{expected}, found {len(row)}: {', '.join(row)[:80]!r}"
            faults.append((number, Fault(STEP, "ragged_rows", detail, transient=False)))
        else:
            kept.append(row)
    above = [table_row(row[:1]) for _, row in titles]
    # Column names must differ. The first may be empty, as above the names of rows, and so may the last names.
    labels = names[: max((n for n, name in enumerate(names, 1) if name), default=0)]
    header = all(labels[1:]) and len(set(labels)) == len(labels)
    if header and any(numbers := [_NUMBER.fullmatch(name) is not None for name in labels]):
        # Numbers among the names must be years or evenly spaced. Even these are data if the row has no other
        # cells, or if half of the rows have such numbers.
        header = not all(numbers) and _is_series(labels) and 2 * sum(map(_is_series, kept[1:])) < len(kept)
    if not header or len(kept) == 1:
        return "\n".join([*above, *(table_row([c for c in row if c]) for row in kept)]), faults
    named: list[list[str]] = []
    numeric = 2 * sum(map(_has_number, kept[1:])) >= len(kept) - 1
    for row in kept[1:]:
        if _heads(row, names, numeric):
            names = row
        else:
            pairs = zip(names, row, strict=False)
            named.append([f"{name}: {cell}" if name else cell for name, cell in pairs if cell])
    return "\n".join([*above, *map(table_row, named)]), faults


def _heads(row: list[str], names: list[str], numeric: bool) -> bool:
    """Returns whether a row is a header for the rows below it: `names` repeated, or another header. Another
    header has the same first cell as `names`. If it has numbers, they are years or a series, and so are those
    of `names`. A header without numbers counts only in a table of numbers (`numeric`)."""
    if row[0] != names[0] or len(row) < 2:
        return False
    if row == names:
        return True
    if _has_number(row):
        return _is_series(row) and _is_series(names)
    return numeric and bool(row[0])


def _has_number(row: list[str]) -> bool:
    return any(map(_NUMBER.fullmatch, row))


def _is_series(cells: list[str]) -> bool:
    numbers = [cell for cell in cells if _NUMBER.fullmatch(cell)]
    if not numbers or not all(map(_WHOLE.fullmatch, numbers)):
        return False
    steps = {int(b) - int(a) for a, b in pairwise(numbers)}
    return len(steps) < 2 and 0 not in steps and (len(numbers) > 2 or all(map(_YEAR.fullmatch, numbers)))
