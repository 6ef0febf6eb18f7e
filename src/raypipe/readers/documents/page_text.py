"""The text of a document from the text of its pages: headers dropped, hyphens decided, spans kept.

Pure. A page comes as PDFium gives it: lines, and U+FFFE in the place of a hyphen at a line's end. Spans are
made from the pieces that are joined here, in characters of the text that `parse` will give: white space
folded. These rules are identity: raise READER in `reader` with each change.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from raypipe.core.records import Mark
from raypipe.text.html import shown

EDGE = 2  # lines at the top and at the bottom of a page that may be a header or a footer
HEADER_PAGES = 3  # that must have it, and half of all pages
RUNNING_WORDS = 3  # of a header next to its page's number; a "Letter 2" on page 2 is none
OFFSET_WORDS = 4  # of one next to an offset number; a "Certificate of conformity 881" on page 1 is none
SHORT = 0.75  # of a full line: a line below it ends its paragraph
_BREAK = re.compile(r"[\ufffe\u00ad]\s*|[-\u2010][ \t]*\n\s*")
WORD = 60  # characters on each side of a hyphen that are looked at
_LEFT, _RIGHT = re.compile(rf"\w{{1,{WORD}}}\Z"), re.compile(rf"\w{{1,{WORD}}}")
_AT_END = re.compile(r"(?<!\S)(\S*\w)(?:\ufffe|\u00ad|[-\u2010])\s*$")
_WORD = re.compile(r"[\w\ufffe]+(?:[-\u2010][\w\ufffe]+)*")
_LETTERS = re.compile(r"[^\W\d_]+")
_PAGE_NUMBER = re.compile(r"(?<![\d.,])\d{1,6}(?![.,]?\d)")
_NAMES = """page pages pg pp seite página pagina pág pag sida side sivu strona страница стр 第 页 頁
    ページ 페이지"""
_PAGE_NAMES = frozenset(_NAMES.split())
_JOINTS = "p of s von de di sur av af str z ze из 共"
_PAGE_WORDS = _PAGE_NAMES.union(_JOINTS.split())  # of a line of page numbers alone
_COUNTED = frozenset(("no", "nr", "num", "number", "nummer", "numero", "número", "numéro", "id", "ref"))
_UNSTORABLE = re.compile("[\0-\x08\x0e-\x1f\ufdd0-\ufdef\ufffe\uffff\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Joined:
    content: str  # paragraphs and short lines end in newlines; pages and parts are apart by an empty line
    pages: tuple[Mark, ...]


def joined(pages: Sequence[str], labels: Sequence[str]) -> Joined:
    """The pages as one text. Each has its label; one without text has an empty span."""
    lines = [p.replace("\r\n", "\n").replace("\r", "\n").split("\n") for p in pages]
    kept = _without_headers([[x for x in p if x.strip()] for p in lines], labels)
    texts = ["\n".join(page) for page in kept]
    for i in range(len(texts) - 1):  # the begin of a word that a page's end cuts goes where it ends
        cut = _AT_END.search(texts[i][-200:])
        if cut and texts[i + 1][:1].islower():
            texts[i] = texts[i][: len(texts[i]) - len(cut[0])]
            texts[i + 1] = f"{cut[1]}\ufffe{texts[i + 1]}"
    texts = [storable(_reflowed(t)) for t in dehyphenated(texts)]
    return with_marks(texts, labels)


def with_marks(texts: Sequence[str], labels: Sequence[str]) -> Joined:
    """Texts joined, with the span of each in the folded whole; an empty one stands where it would begin."""
    sizes = [len(" ".join(text.split())) for text in texts]
    whole = max(sum(n + 1 for n in sizes if n) - 1, 0)
    marks, at = [], 0
    for size, label in zip(sizes, labels, strict=True):
        start = min(at, whole)
        marks.append(Mark(start, start + size, label))
        at += size + 1 if size else 0
    return Joined("\n\n".join(t for t, n in zip(texts, sizes, strict=True) if n), tuple(marks))


def table_row(cells: Sequence[str]) -> str:
    """The row of a table as a line of Markdown, which `text.candidates` reads again.

    >>> table_row(["Weight", "17 kg"])
    '| Weight | 17 kg |'
    """
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |" if any(cells) else ""


def storable(text: str) -> str:
    """The text without control characters, noncharacters, lone surrogates and what has no width: as `parse`
    gives it, so that spans agree."""
    return shown(_UNSTORABLE.sub("", text))


def _without_headers(pages: list[list[str]], labels: Sequence[str]) -> list[list[str]]:
    """Drops lines at the edges that stand on half of the pages and on three: with the page's number all of
    them, equal ones but for the first. A line with another number, such as an invoice's, is no header."""
    edges = ([*page[:EDGE], *page[-EDGE:]] for page in pages)
    seen = Counter(
        key for n, lines in enumerate(edges) for key in set().union(*(_keys(x, n, labels[n]) for x in lines))
    )
    enough = max(HEADER_PAGES, (sum(map(bool, pages)) + 1) // 2)
    common = {key for key, count in seen.items() if count >= enough}
    shown = set[str]()

    def is_header(line: str, page: int) -> bool:
        """Returns whether to drop a line; the first of equal ones stays, so that no word is lost."""
        keys = _keys(line, page, labels[page]) & common
        first = _folded(line) in keys - shown
        shown.update(keys)
        return bool(keys) and not first

    return [
        [x for i, x in enumerate(page) if EDGE <= i < len(page) - EDGE or not is_header(x, n)]
        for n, page in enumerate(pages)
    ]


def _keys(line: str, page: int, label: str) -> set[str]:
    """The line itself, and a form of it that is one for all pages if its number counts them, from 1 or from
    another number, as the pages of a chapter or an article."""
    text = _folded(line).strip(" |")
    words = _LETTERS.findall(text.lower())
    bare = _PAGE_WORDS.issuperset(words)

    def counts(number: re.Match[str]) -> bool:
        before = _LETTERS.findall(text[: number.start()].lower())[-1:]
        if bare or _PAGE_NAMES.intersection(before):
            return True
        if _COUNTED.intersection(before) or (number.start() > 0 and number.end() < len(text)):
            return False
        return len(words) >= (RUNNING_WORDS if number[0] in (str(page + 1), label) else OFFSET_WORDS)

    return {text} | {
        f"{text[: m.start()]}\0{int(m[0]) - page}\0{text[m.end() :]}"
        for m in _PAGE_NUMBER.finditer(text)
        if counts(m)
    }


def _folded(line: str) -> str:
    return " ".join(line.split())


def dehyphenated(texts: Sequence[str]) -> list[str]:
    """Hyphens at line ends, decided by what else the document says: joined where the joined word occurs, kept
    where the compound does, or where both halves are words of it; else joined. Measured over 12 files: 62
    wrong tokens; always joining 85, always keeping 630."""
    whole = (w for t in texts for w in _WORD.findall(_BREAK.sub("\ufffe", t)) if "\ufffe" not in w)
    known = {w.lower() for w in whole}
    return [_decided(t, known) for t in texts]


def _decided(text: str, known: Collection[str]) -> str:
    """The text with its hyphens at line ends decided by what words are known."""
    out, at = [], 0
    for found in _BREAK.finditer(text):
        before = _LEFT.search(text, max(at, found.start() - WORD), found.start())
        behind = _RIGHT.match(text, found.end())
        out.append(text[at : found.start()])
        at = found.end()
        if not before or not behind:
            out.append("-\n" if found[0][0] in "-\u2010" else "")
            continue
        left, right = before[0].lower(), behind[0].lower()
        compound = f"{left}-{right}" in known or (left in known and right in known)
        out.append("-" if compound and left + right not in known else "")
    return "".join([*out, text[at:]])


def _reflowed(text: str) -> str:
    """Lines of a paragraph joined: a line that is short, and a row of a table, ends one."""
    lines = [" ".join(line.split()) for line in text.split("\n")]
    lengths = sorted(len(line) for line in lines)
    full = lengths[int(0.8 * (len(lengths) - 1))] if lengths else 0
    out = []
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        ends = len(line) < SHORT * full or line.endswith((".", ":")) or "|" in (line[:1], after[:1])
        out += [line, "\n" if ends else " "]
    return "".join(out).strip()
