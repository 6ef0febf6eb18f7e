"""Parts of a docx other than its text: relations, styles, and the numbers of paragraphs.

Parts are found as Word finds them, by the relations of the package and of its parts, since their names differ
between programs ("word/document2.xml", "Word\\Document.xml"). Paragraphs are numbered as Word counts them. A
list is an abstractNum of numbering.xml, with up to nine levels. A paragraph names a num; a num refers to a
list and may restart its levels. Bullets have no number. Formats unknown to `formatted` become digits.
"""

from __future__ import annotations

import posixpath
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import IO, Any, NamedTuple
from urllib.parse import unquote

from lxml import etree

from raypipe.readers.rows import DocumentLimits, UnusableLine

MAIN, CORE = "word/document.xml", "docProps/core.xml"  # names to try if no relation names these parts
W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
DC = "{http://purl.org/dc/elements/1.1/}"
HEADING_LEVELS = 9  # outline levels of headings are 0 to 8; 9 is body text
RELATIONS_BYTES = 16 << 20  # most bytes of a file of relations; 10,000 relations have 2 MB
LEVELS = 9  # levels of a list
_PLACE = re.compile(r"%([1-9])")
_SIZES, _SIGNS = (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1), "m cm d cd c xc l xl x ix v iv i"
_ROMAN = tuple(zip(_SIZES, _SIGNS.split(), strict=True))
_CHINESE, _LEGAL = "〇一二三四五六七八九", "零壹贰叁肆伍陆柒捌玖"
_TENS = "chineseCounting chineseCountingThousand taiwaneseCounting taiwaneseCountingThousand japaneseCounting"
_COUNTED = dict.fromkeys(_TENS.split(), (_CHINESE, "十百千")) | {"chineseLegalSimplified": (_LEGAL, "拾佰仟")}
"""Format of a number -> (digits, signs for ten, hundred and thousand)."""
_SERIES = {
    "ideographTraditional": "甲乙丙丁戊己庚辛壬癸",
    "ideographZodiac": "子丑寅卯辰巳午未申酉戌亥",
    "decimalEnclosedCircle": "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳",
    "ganada": "가나다라마바사아자차카타파하",
    "decimalEnclosedCircleChinese": "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳",
    "russianLower": "абвгдежзиклмнопрстуфхцчшщыэюя",
    "russianUpper": "АБВГДЕЖЗИКЛМНОПРСТУФХЦЧШЩЫЭЮЯ",
}
MOST = 10_000  # numbers from here on are shown in digits: a million as a roman number has a thousand letters


class PartRelation(NamedTuple):
    kind: str  # last segment of its type: officeDocument, styles, aFChunk, ...
    target: str  # name of a part, or an external address
    outside: bool  # whether the target is an external address


class Package:
    """Parts of an open docx by name; names ignore case and the direction of slashes."""

    def __init__(self, archive: zipfile.ZipFile, limits: DocumentLimits) -> None:
        """Opens a package. Raises UnusableLine if it has no main part, has a password or is too large."""
        self._archive = archive
        self.limits = limits
        self._check(limits)
        self._names = {_plain(name): name for name in archive.namelist()}
        found = (r.target for r in self.relations("").values() if r.kind == "officeDocument")
        self.main = next(found, MAIN)
        if self.main not in self:
            raise UnusableLine("broken", f"expected the part {self.main}, found none")

    def __contains__(self, part: str) -> bool:
        return _plain(part) in self._names

    def open(self, part: str) -> IO[bytes]:
        return self._archive.open(self._names[_plain(part)])

    def part(self, kind: str) -> str | None:
        """Returns the name of the main part's related part of a kind (styles, footnotes, ...), or None."""
        usual = posixpath.join(posixpath.dirname(self.main), f"{kind}.xml")
        related = (r.target for r in self.relations(self.main).values() if r.kind == kind)
        return next((part for part in (*related, usual) if part in self), None)

    @cache  # noqa: B019, a package lives as long as one read
    def relations(self, part: str) -> dict[str, PartRelation]:
        """Returns the relations of a part by id. The part "" means the package."""
        folder, base = posixpath.split(part)
        name = posixpath.join(folder, "_rels", f"{base}.rels")
        if name not in self:
            return {}
        with self.open(name) as stream:
            tree = etree.fromstring(stream.read(RELATIONS_BYTES), etree.XMLParser(resolve_entities=False))
        found = {}
        for element in tree.iter("{*}Relationship"):
            target, outside = element.get("Target", ""), element.get("TargetMode") == "External"
            inner = posixpath.join("/", folder, unquote(target).replace("\\", "/"))
            path = target if outside else posixpath.normpath(inner)
            kind = element.get("Type", "").rpartition("/")[2]
            found[element.get("Id", "")] = PartRelation(kind, path.lstrip("/"), outside)
        return found

    def elements(self, part: str | None, *tags: str) -> Iterator[etree._Element]:
        """Yields the elements of a part with these tags, from a stream. Yields nothing if `part` is None."""
        if part is not None:
            with self.open(part) as stream:
                for _, element in etree.iterparse(stream, ("end",), tag=tags, resolve_entities=False):
                    yield element
                    element.clear()

    def title(self) -> str:
        related = (r.target for r in self.relations("").values() if r.kind == "core-properties")
        part = next((part for part in (*related, CORE) if part in self), None)
        return next((" ".join((e.text or "").split()) for e in self.elements(part, f"{DC}title")), "")

    def styles(self) -> tuple[dict[str, int], set[str], dict[str, tuple[str, str]]]:
        """Returns three values: each style's outline level, the styles of titles, and each style's list as
        (num, level). A style inherits its outline level and list from the style that it is based on."""
        own: dict[str, int] = {}
        base: dict[str, str] = {}
        titles = set[str]()
        lists: dict[str, tuple[str, str]] = {}
        for style in self.elements(self.part("styles"), f"{W}style"):
            id = style.get(f"{W}styleId", "")
            named, based = style.find(f"{W}name"), style.find(f"{W}basedOn")
            name = "" if named is None else named.get(f"{W}val", "").lower()
            level, number = value(style, "pPr/outlineLvl"), name.removeprefix("heading ")
            if num := value(style, "pPr/numPr/numId"):
                lists[id] = num, value(style, "pPr/numPr/ilvl")
            if level.isdigit():
                own[id] = int(level)
            elif number != name and number.isdigit():
                own[id] = int(number) - 1
            if based is not None:
                base[id] = based.get(f"{W}val", "")
            if name == "title":
                titles.add(id)
        for id in base:
            tables: tuple[dict[str, Any], ...] = (own, lists)
            for table in tables:
                at, steps = id, 0
                while at not in table and at in base and steps < HEADING_LEVELS:
                    at, steps = base[at], steps + 1
                if at in table:
                    table.setdefault(id, table[at])
        return own, titles, lists

    def numbering(self) -> Numbering:
        """Returns the lists of the document, with counters that have counted no paragraph yet."""
        found = Numbering()
        lists: dict[str, dict[int, _Level]] = {}  # abstractNum -> its levels by number
        styles: dict[str, str] = {}  # style of a list -> its abstractNum
        linked: dict[str, str] = {}  # abstractNum -> style whose list has its levels
        tags = f"{W}abstractNum", f"{W}num"
        for element in self.elements(self.part("numbering"), *tags):
            if element.tag == tags[0]:
                id = element.get(f"{W}abstractNumId", "")
                lists[id] = _levels(element)
                if own := value(element, "styleLink"):
                    styles[own] = id
                if of := value(element, "numStyleLink"):
                    linked[id] = of
            else:
                num = _Num(value(element, "abstractNumId"), {}, {})
                for change in element.iterfind(f"{W}lvlOverride"):
                    level, start = change.get(f"{W}ilvl", ""), value(change, "startOverride")
                    num.levels |= _levels(change)
                    if level.isdigit() and start.isdigit():
                        num.starts[int(level)] = int(start)
                found.nums[element.get(f"{W}numId", "")] = num
        for num in found.nums.values():
            num.of = styles.get(linked.get(num.of, ""), num.of)
            num.levels = lists.get(num.of, {}) | num.levels
        return found

    def _check(self, limits: DocumentLimits) -> None:
        """Raises UnusableLine if the archive exceeds the limits or a part has a password."""
        members = self._archive.infolist()
        whole = sum(m.file_size for m in members)
        if len(members) > limits.zip_members or whole > limits.zip_bytes:
            most = f"at most {limits.zip_members:,} parts with {limits.zip_bytes:,} bytes"
            raise UnusableLine("too_large", f"expected {most}, found {len(members):,} with {whole:,}")
        for m in members:
            if m.flag_bits & 1:
                raise UnusableLine("encrypted", f"a password protects the part {m.filename}")
            packed = limits.zip_ratio * max(m.compress_size, 1)
            if m.file_size > min(limits.zip_member_bytes, max(limits.zip_ratio_free_bytes, packed)):
                most = f"{limits.zip_member_bytes:,} bytes and {limits.zip_ratio} times the packed size"
                found = f"found {m.file_size:,} from {m.compress_size:,}"
                raise UnusableLine("too_large", f"{m.filename}: expected at most {most}, {found}")


def _plain(name: str) -> str:
    return name.replace("\\", "/").lstrip("/").lower()


@dataclass(frozen=True, slots=True)
class _Level:
    start: int  # first number
    form: str  # format of the number: decimal, lowerLetter, ...
    text: str  # template of the shown text, such as "%1.%2"; "" for a bullet
    style: str  # style whose paragraphs have this level; "" if there is none
    restarts: bool  # whether its count restarts after each number of a higher level
    legal: bool  # whether all numbers in its text are shown in digits


@dataclass(slots=True)
class _Num:
    of: str  # id of its abstractNum
    levels: dict[int, _Level]  # levels of the abstractNum, or those that override them
    starts: dict[int, int]  # level -> number at which this num restarts it; removed after the restart


@dataclass(slots=True)
class Numbering:
    """Counters of all lists of one document. Call `number` for its paragraphs in their order."""

    nums: dict[str, _Num] = field(default_factory=dict)
    counts: dict[str, dict[int, int]] = field(default_factory=dict)  # abstractNum -> level -> number

    def number(self, num: str, level: str, style: str) -> str:
        """Counts a paragraph; returns the number that it shows, or "" if it has none. If `level` is "", the
        paragraph has the level of its `style`, or else level 0."""
        if (used := self.nums.get(num)) is None:
            return ""
        levels = used.levels
        styled = (n for n, found in levels.items() if style and found.style == style)
        at = int(level) if level.isdigit() else next(styled, 0)
        if (own := levels.get(at)) is None:
            return ""
        counts = self.counts.setdefault(used.of, {})
        counts[at] = used.starts.pop(at, counts.get(at, own.start - 1) + 1)
        for below in [n for n in counts if n > at and levels[n].restarts]:
            del counts[below]

        def shown(place: re.Match[str]) -> str:
            of = levels.get(int(place[1]) - 1)
            number = counts.get(int(place[1]) - 1, of.start if of else 1)
            return formatted(number, "decimal" if own.legal or of is None else of.form)

        return _PLACE.sub(shown, own.text).strip()


def _levels(element: etree._Element) -> dict[int, _Level]:
    found = {}
    for level in element.iterfind(f"{W}lvl"):
        at, start = level.get(f"{W}ilvl", ""), value(level, "start")
        form = value(level, "numFmt") or "decimal"
        if at.isdigit() and int(at) < LEVELS:
            text = "" if form == "bullet" else value(level, "lvlText")
            found[int(at)] = _Level(
                int(start) if start.isdigit() else 0,
                form,
                text,
                value(level, "pStyle"),
                value(level, "lvlRestart") != "0",
                level.find(f"{W}isLgl") is not None,
            )
    return found


def value(element: etree._Element | None, path: str) -> str:
    """Returns the attribute w:val of the descendant at `path`; "" if there is none."""
    found = None if element is None else element.find(_named(path))
    return "" if found is None else found.get(f"{W}val", "")


@cache
def _named(path: str) -> str:
    return "/".join(f"{W}{name}" for name in path.split("/"))


def formatted(number: int, form: str) -> str:
    """Formats a number in one of Word's number formats.

    >>> [formatted(28, form) for form in ("decimal", "lowerLetter", "upperRoman", "ordinal", "decimalZero")]
    ['28', 'bb', 'XXVIII', '28th', '28']
    >>> [formatted(n, "chineseCounting") for n in (1, 10, 12, 20, 105, 2010)]
    ['一', '十', '十二', '二十', '一百〇五', '二千〇一十']
    """
    if form == "none":
        return ""
    if form in _COUNTED and 0 < number < MOST:
        return _counted(number, *_COUNTED[form])
    if form == "ideographDigital":
        return "".join(_CHINESE[int(digit)] for digit in str(number))
    if 0 < number <= len(series := _SERIES.get(form, "")):
        return series[number - 1]
    if form.endswith("Letter") and 0 < number < MOST:
        letters = chr(ord("a") + (number - 1) % 26) * ((number - 1) // 26 + 1)
        return letters.upper() if form.startswith("upper") else letters
    if form.endswith("Roman") and 0 < number < MOST:
        roman, rest = "", number
        for size, sign in _ROMAN:
            roman, rest = roman + sign * (rest // size), rest % size
        return roman.upper() if form.startswith("upper") else roman
    if form == "ordinal":
        teen = 10 < number % 100 < 14
        return f"{number}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
    return f"{number:02d}" if form == "decimalZero" else str(number)


def _counted(number: int, digits: str, tens: str) -> str:
    """Formats a number in Chinese. A run of inner zeros becomes one zero. 10 to 19 begin with ten, except in
    legal digits, where a one precedes the ten."""
    out, zeros = "", ""
    for place, digit in zip(range(len(str(number)) - 1, -1, -1), map(int, str(number)), strict=True):
        if digit:
            bare = digit == 1 and place == 1 and not out and digits is _CHINESE
            out += zeros + ("" if bare else digits[digit]) + (tens[place - 1] if place else "")
        zeros = "" if digit else digits[0]
    return out
