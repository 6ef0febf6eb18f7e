"""Text of a document from the texts of its pages: drops headers, resolves hyphens, records spans.

PDFium gives the text of a page as lines, with U+FFFE instead of a hyphen at the end of a line. A span is a
range of characters in the text that the step `parse` will make, in which white space is folded. All functions
are pure. What they return is part of the reader's identity: raise READER in `reader` with each change.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from raypipe.core.records import Mark
from raypipe.text.page_parser import shown

EDGE = 2  # lines at the top and at the bottom of a page that may be a header or a footer
HEADER_PAGES = 3  # least pages that share a header; half of the pages with text must share it, too
RUNNING_WORDS = 3  # least words of a header with its page's number; "Letter 2" on page 2 is no header
OFFSET_WORDS = 4  # least words if the number differs; "Certificate of conformity 881" on page 1 is no header
SHORT = 0.75  # share of a full line's length; a line shorter than this ends its paragraph
_BREAK = re.compile(r"[\ufffe\u00ad]\s*|[-\u2010][ \t]*\n\s*")
WORD = 60  # most characters on each side of a hyphen that are examined
_LEFT, _RIGHT = re.compile(rf"\w{{1,{WORD}}}\Z"), re.compile(rf"\w{{1,{WORD}}}")
_AT_END = re.compile(r"(?<!\S)(\S*\w)(?:\ufffe|\u00ad|[-\u2010])\s*$")
_WORD = re.compile(r"[\w\ufffe]+(?:[-\u2010][\w\ufffe]+)*")
_LETTERS = re.compile(r"[^\W\d_]+")
_PAGE_NUMBER = re.compile(r"(?<![\d.,])\d{1,6}(?![.,]?\d)")
_NAMES = """page pages pg pp seite página pagina pág pag sida side sivu strona страница стр 第 页 頁
    ページ 페이지"""
_PAGE_NAMES = frozenset(_NAMES.split())
_JOINTS = "p of s von de di sur av af str z ze из 共"
_PAGE_WORDS = _PAGE_NAMES.union(_JOINTS.split())  # words of a line that holds only page numbers
_COUNTED = frozenset(("no", "nr", "num", "number", "nummer", "numero", "número", "numéro", "id", "ref"))
_UNSTORABLE = re.compile("[\0-\x08\x0e-\x1f\ufdd0-\ufdef\ufffe\uffff\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Joined:
    content: str  # paragraphs and short lines end in newlines; an empty line separates pages or sections
    pages: tuple[Mark, ...]


def joined(pages: Sequence[str], labels: Sequence[str]) -> Joined:
    """Joins pages, without repeated headers and line-end hyphens; records each page's span and label."""
    lines = [p.replace("\r\n", "\n").replace("\r", "\n").split("\n") for p in pages]
    kept = _without_headers([[x for x in p if x.strip()] for p in lines], labels)
    texts = ["\n".join(page) for page in kept]
    for i in range(len(texts) - 1):  # a word that the end of a page cuts moves to the next page
        cut = _AT_END.search(texts[i][-200:])
        if cut and texts[i + 1][:1].islower():
            texts[i] = texts[i][: len(texts[i]) - len(cut[0])]
            texts[i + 1] = f"{cut[1]}\ufffe{texts[i + 1]}"
    texts = [storable(_reflowed(t)) for t in dehyphenated(texts)]
    return with_marks(texts, labels)


def with_marks(texts: Sequence[str], labels: Sequence[str]) -> Joined:
    """Joins texts and records the span of each in the joined, folded text; empty texts have empty spans."""
    sizes = [len(" ".join(text.split())) for text in texts]
    whole = max(sum(n + 1 for n in sizes if n) - 1, 0)
    marks, at = [], 0
    for size, label in zip(sizes, labels, strict=True):
        start = min(at, whole)
        marks.append(Mark(start, start + size, label))
        at += size + 1 if size else 0
    return Joined("\n\n".join(t for t, n in zip(texts, sizes, strict=True) if n), tuple(marks))


def table_row(cells: Sequence[str]) -> str:
    """Formats a row of a table as a line of Markdown, which `text.candidates` parses; "" if no cell has text.

    >>> table_row(["Weight", "17 kg"])
    '| Weight | 17 kg |'
    """
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |" if any(cells) else ""


def storable(text: str) -> str:
    """Removes noncharacters, lone surrogates, zero-width characters, and control characters that are no white
    space. The step `parse` removes the same characters, so spans agree with its text."""
    return shown(_UNSTORABLE.sub("", text))


def _without_headers(pages: list[list[str]], labels: Sequence[str]) -> list[list[str]]:
    """Drops headers and footers: lines at the edges of half of the pages with text, and of at least three
    pages. Such lines are all dropped if they differ only in the page's number; of equal lines the first is
    kept. Lines that differ in another number, such as that of an invoice, are no headers."""
    edges = ([*page[:EDGE], *page[-EDGE:]] for page in pages)
    seen = Counter(
        key for n, lines in enumerate(edges) for key in set().union(*(_keys(x, n, labels[n]) for x in lines))
    )
    enough = max(HEADER_PAGES, (sum(map(bool, pages)) + 1) // 2)
    common = {key for key, count in seen.items() if count >= enough}
    shown = set[str]()

    def is_header(line: str, page: int) -> bool:
        """Returns whether to drop a line. The first of equal lines is kept, so that no words are lost."""
        keys = _keys(line, page, labels[page]) & common
        first = _folded(line) in keys - shown
        shown.update(keys)
        return bool(keys) and not first

    return [
        [x for i, x in enumerate(page) if EDGE <= i < len(page) - EDGE or not is_header(x, n)]
        for n, page in enumerate(pages)
    ]


def _keys(line: str, page: int, label: str) -> set[str]:
    """Returns the keys of a line; lines of two pages with a common key may be one header. One key is the line
    itself. For each number that may be the page's, another key is the line with the number minus the page's
    index, because pages may count from any number. A number may be the page's if it follows a word for pages,
    if the line has no other words, or if it begins or ends a line of enough words."""
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
    """Resolves hyphens at line ends by the other words of the document.

    A hyphen is dropped if the joined word occurs. Else it is kept if the compound or both halves occur as
    words. Otherwise it is dropped. Over 12 files this gave 62 wrong tokens; always dropping the hyphen gave
    85, and always keeping it 630.
    """
    whole = (w for t in texts for w in _WORD.findall(_BREAK.sub("\ufffe", t)) if "\ufffe" not in w)
    known = {w.lower() for w in whole}
    return [_decided(t, known) for t in texts]


def _decided(text: str, known: Collection[str]) -> str:
    """Resolves the hyphens at line ends of one text, given the document's words in lower case, `known`."""
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
    """Joins the lines of each paragraph, which ends after a short line, `.` or `:`, and at a table's row."""
    lines = [" ".join(line.split()) for line in text.split("\n")]
    lengths = sorted(len(line) for line in lines)
    full = lengths[int(0.8 * (len(lengths) - 1))] if lengths else 0
    out = []
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        ends = len(line) < SHORT * full or line.endswith((".", ":")) or "|" in (line[:1], after[:1])
        out += [line, "\n" if ends else " "]
    return "".join(out).strip()
