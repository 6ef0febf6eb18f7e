"""Ways to split a text: into words for BM25 (hashes and offsets), into windows, and into sentences.

There are two analyzers. `plain` lower-cases and splits at white space, as users of rank_bm25 do. `stems`
takes runs of letters and digits in lower case, drops accents and English stop words, and reduces words to
Snowball stems. In scripts without spaces between words, and in Korean, it takes all pairs of adjacent letters
as words, as Lucene's CJK analyzer does.

`character_windows` splits folded text as LangChain's `CharacterTextSplitter(separator=" ")` does, the
splitter of the system db3. Words are joined while the window has at most `size` characters. The next window
begins with as many of the last words as fit into `overlap`. A window exceeds `size` only if it is one longer
word. Two rules differ from LangChain's: in scripts without spaces each letter is a word, and a word longer
than `LONGEST_WORD` is cut, so that ten megabytes without a space are not one chunk. Sentences are split as in
the official CRAG baseline (blingfire).
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from types import MappingProxyType
from typing import Literal, TypeAlias

import numpy as np
import Stemmer

from raypipe.core.errors import ConfError
from raypipe.core.records import Span


def _ranges(text: str) -> tuple[tuple[int, int], ...]:
    """Parses ranges of characters, such as "0e01-0e3a 3005". Returns (first, last) of each range."""
    pairs = (part.partition("-") for part in text.split())
    return tuple((int(first, 16), int(last or first, 16)) for first, _, last in pairs)


SPACELESS = _ranges(
    "0e01-0e3a 0e40-0e4e "  # Thai
    "0e81-0ece 1000-103f 1050-108f 1780-17d3 "  # Lao, Burmese, Khmer
    "2e80-2fdf 3005-3007 3021-3035 3041-309f 30a1-30fa 30fc-30ff 3105-312f 31a0-31ff 3400-4dbf 4e00-9fff "
    "f900-faff ff66-ff9f 1b000-1b16f 20000-3ffff"  # Chinese and Japanese
)
"""Letters of scripts without spaces between words: first and last of each range, ascending."""
HANGUL = _ranges("1100-11ff 3131-318e a960-a97f ac00-d7ff")
"""Korean letters. Korean has spaces, but endings are part of its words, so it is searched like SPACELESS."""
_ATTACHED = _ranges(  # parts of the letter before: vowel signs, tones, marks of length and repetition
    "0e30-0e3a 0e45-0e4e 0eb0-0ebc 0ec8-0ece 102b-103e 1056-1059 17b4-17d3 3005 3099-309c 30fc-30fe ff70 "
    "ff9e-ff9f"
)
_PARTING = ((0x0F0B, 0x0F0E), (0x1361, 0x1361))  # marks after a Tibetan word, and between Ethiopic words
_ASCII = ((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A))  # letters and digits


def character_class(*ranges: tuple[int, int]) -> str:
    """Formats ranges of characters as the inside of a regular expression's class `[...]`."""
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


def word_starts(codes: np.ndarray) -> np.ndarray:
    """Marks the characters that begin a word without a space before it, (len,) bool. They are letters of
    SPACELESS scripts, an ASCII letter or digit directly after such a letter, and a character after a mark
    between words. Punctuation belongs to the word before it. `codes` (len,) uint32 are characters."""
    starts = np.zeros(len(codes), bool)
    high = np.flatnonzero(codes >= SPACELESS[0][0])  # most texts have few of them
    letters = high[_within(codes[high], SPACELESS)]
    starts[letters[~_within(codes[letters], _ATTACHED)]] = True
    behind = letters[letters + 1 < len(codes)] + 1
    starts[behind[_within(codes[behind], _ASCII)]] = True
    marks = high[_within(codes[high], _PARTING)] + 1
    starts[marks[marks < len(codes)]] = True
    return starts


def _within(codes: np.ndarray, ranges: Sequence[tuple[int, int]]) -> np.ndarray:
    borders = np.array([border for first, last in ranges for border in (first, last + 1)], codes.dtype)
    inside: np.ndarray = np.searchsorted(borders, codes, side="right") % 2 == 1
    return inside


Analyzer: TypeAlias = Literal["plain", "stems"]

_STOP_WORDS = """
    a an and are as at be but by for if in into is it no not of on or such
    that the their then there these they this to was will with
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""The 33 stop words of Lucene's English analyzer."""

_PAIRED = character_class(*SPACELESS, *HANGUL)
_LATIN = "a-z0-9\u00df-\u00f6\u00f8-\u024f\u1e00-\u1eff\ufb00-\ufb06\uff10-\uff19\uff41-\uff5a"  # wide, too
_OTHER = rf"[^\W_{_LATIN}{_PAIRED}]"
# Characters within words that are no letters: accents, vowel signs (Hebrew, Arabic, Indian), joiners.
_JOINED = "\u0300-\u036f\u00ad\u200b-\u200d"
_SIGNS = f"{_JOINED}\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff"
# A single letter of another script is no word: Greek letters of chemistry cost .002 of nDCG@10 on SciFact.
_RUNS = re.compile(
    rf"[{_LATIN}][{_LATIN}{_JOINED}]*|{_OTHER}(?:{_OTHER}|(?!{_OTHER})[{_SIGNS}])+"
    rf"|(?=([{_PAIRED}]{{2}}))|(?<![{_PAIRED}])[{_PAIRED}](?![{_PAIRED}])"
)
_ACCENTS = re.compile(r"[\u0300-\u036f\u00ad\u200b-\u200f\u2060]")
_VISIBLE = re.compile(r"\S+")
_STEMMER = Stemmer.Stemmer("english")
_DISTINCT = 1 << 16  # words in the cache of hashes, 12 MB: a page has 1,500, and rare words seldom repeat


@lru_cache(maxsize=_DISTINCT)
def word_hash(word: str) -> int:
    """Returns a stable uint64 hash of a word."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


def analyse(text: str, analyzer: str) -> tuple[np.ndarray, np.ndarray]:
    """Splits a text into words: hashes (words,) uint64 in text order, and start offsets (words,) int32.
    Raises ValueError if the analyzer is unknown."""
    if analyzer not in ANALYZERS:
        raise ValueError(f"unknown analyzer {analyzer!r}; known: {', '.join(ANALYZERS)}")
    pattern, named = ANALYZERS[analyzer]
    hashes: list[int] = []
    starts: list[int] = []
    for word in pattern.finditer(_lower(text)):
        if (name := named(word[word.lastindex or 0])) is not None:
            hashes.append(name)
            starts.append(word.start())
    return np.array(hashes, np.uint64), np.array(starts, np.int32)


def _lower(text: str) -> str:
    """Lower-cases a text and keeps its length: only the Turkish dotted capital I would become two letters."""
    return text.replace("\u0130", "i").lower()


@lru_cache(maxsize=_DISTINCT)
def _stem_hash(word: str) -> int | None:
    if not word.isascii():
        word = _without_accents(word)
    return None if word in STOP_WORDS else word_hash(_STEMMER.stemWord(word))


def _without_accents(word: str) -> str:
    """Folds the letters of a word for search: wide and narrow forms, accents and ligatures.

    >>> [_without_accents(word) for word in ("café", "straße", "ﬁlm")]
    ['cafe', 'strasse', 'film']
    """
    parted = _ACCENTS.sub("", unicodedata.normalize("NFKD", word))
    return unicodedata.normalize("NFKC", parted).casefold()


ANALYZERS: Mapping[str, tuple[re.Pattern[str], Callable[[str], int | None]]] = MappingProxyType(
    {"plain": (_VISIBLE, word_hash), "stems": (_RUNS, _stem_hash)}
)


LONGEST_WORD = 10_000
"""Most characters of a word in windows. The longest word in the texts of the real pages has 81."""


class WordSpans:
    """Positions of the words in a text with folded white space: ascending `starts` and `ends`."""

    def __init__(self, text: str) -> None:
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)  # (len(text),)
        space = np.concatenate([[True], codes == 0x20, [True]])
        breaks = np.concatenate([[False], word_starts(codes), [False]])
        begins = ~space & (np.concatenate([[False], space[:-1]]) | breaks)
        ends_behind = ~space & np.concatenate([space[1:] | breaks[1:], [False]])
        self.starts: list[int] = (np.flatnonzero(begins) - 1).tolist()
        self.ends: list[int] = np.flatnonzero(ends_behind).tolist()
        if max(map(int.__sub__, self.ends, self.starts), default=0) > LONGEST_WORD:
            words = list(zip(self.starts, self.ends, strict=True))
            parts = [(s, e) for start, e in words for s in range(start, e, LONGEST_WORD)]
            self.starts, self.ends = [s for s, _ in parts], [min(s + LONGEST_WORD, e) for s, e in parts]

    def within(self, span: Span) -> tuple[int, int]:
        return bisect_left(self.starts, span[0]), bisect_right(self.ends, span[1])

    def windows(self, first: int, stop: int, size: int, overlap: int) -> Iterator[Span]:
        """Yields windows over the words from `first` to before `stop`, made as LangChain makes them."""
        starts, ends = self.starts, self.ends
        i, j = first, first  # the window has the words i..j
        while j < stop:
            j = max(bisect_right(ends, starts[i] + size, j, stop) - 1, j)
            yield starts[i], ends[j]
            j += 1  # the word that did not fit follows the overlap in the next window
            if j < stop:
                i = min(bisect_left(starts, max(ends[j - 1] - overlap, ends[j] - size), i, stop), j)


def character_windows(text: str, size: int, overlap: int) -> list[Span]:
    """Splits a text into windows of at most `size` characters, which share up to `overlap` characters."""
    words = WordSpans(text)
    return list(words.windows(0, len(words.starts), size, overlap))


def nested_windows(
    text: str, parent_chars: int, parent_overlap: int, child_chars: int, child_overlap: int
) -> list[tuple[Span, Span]]:
    """Splits a text into parent windows, and each parent into children. Returns (child, parent) spans. As in
    LangChain's ParentDocumentRetriever, a child in the overlap of two parents is returned once for each."""
    words = WordSpans(text)
    parents = words.windows(0, len(words.starts), parent_chars, parent_overlap)
    return [
        (child, parent)
        for parent in parents
        for child in words.windows(*words.within(parent), child_chars, child_overlap)
    ]


def token_windows(tokens: Sequence[Span], size: int, overlap: int) -> list[Span]:
    """Makes windows of `size` tokens that share `overlap` tokens with the previous window. The last window
    may be shorter. With overlap 0 each token is in one window. A span is from the start of its first token to
    the end of its last token in the text, so no token is decoded."""
    step = size - overlap
    stops = range(size, max(size + 1, len(tokens) + step), step) if tokens else range(0)
    return [(tokens[stop - size][0], tokens[min(stop, len(tokens)) - 1][1]) for stop in stops]


def sentence_windows(text: str, longest: int) -> list[Span]:
    """Splits a text into sentences, each cut after `longest` characters (1000 in CRAG's baseline). The text
    after a cut is in no window."""
    return [(start, min(end, start + longest)) for start, end in sentences(text)]


def require_splitter() -> None:
    """Raises ConfError if blingfire is not installed. Call it before work that splits sentences."""
    if find_spec("blingfire") is None:
        raise ConfError("blingfire, which splits sentences, is not installed: pip install 'raypipe[local]'")


def sentences(text: str) -> list[Span]:
    """Splits a text into sentences, in order, without the white space between them. Raises ConfError if
    blingfire is not installed.

    >>> [("Dr. Ho left. Who stayed?")[a:b] for a, b in sentences("Dr. Ho left. Who stayed?")]
    ['Dr. Ho left.', 'Who stayed?']
    """
    if not text.strip():  # blingfire fails on blank text
        return []
    try:
        import blingfire  # imported here: it takes 40 ms, and inspecting a recipe does not need it
    except ModuleNotFoundError:
        require_splitter()
        raise
    _, offsets = blingfire.text_to_sentences_and_offsets(text)
    pieces = ((start, text[start:end]) for start, end in offsets)
    return [
        (start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip()))
        for start, piece in pieces
        if piece.strip()
    ]
