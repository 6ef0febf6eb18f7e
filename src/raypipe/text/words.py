"""Words of a text for BM25, as hashes and offsets; and cuts of texts: windows of words, tokens, sentences.

Two analyzers. `plain`: lower case, split at white space, as users of rank_bm25 do it. `stems`: runs of
letters and digits after lower-casing, without accents and English stop words, cut to their Snowball stems.
Where a script puts no space between words, and in Korean, words are all pairs of neighbouring letters, as
Lucene's CJK analyzer has them.

`character_windows` is LangChain's `CharacterTextSplitter(separator=" ")`, the splitter that db3 names, on a
white-space folded text: words are joined as long as the window is at most `size` characters long, and the
next window begins with as many of the last words as fit into `overlap`. So a window begins and ends at a
word, and is longer than `size` only if it is one longer word. Two departures: in scripts without spaces each
letter is a word, and a word beyond `LONGEST_WORD` is cut, so that ten megabytes without a space do not become
one chunk. Sentences are split as the official CRAG baseline does it (blingfire).
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

SPACELESS = (
    (0x0E01, 0x0E3A),
    (0x0E40, 0x0E4E),  # Thai
    (0x0E81, 0x0ECE),
    (0x1000, 0x103F),
    (0x1050, 0x108F),
    (0x1780, 0x17D3),  # Lao, Burmese, Khmer
    (0x2E80, 0x2FDF),
    (0x3005, 0x3007),
    (0x3021, 0x3035),
    (0x3041, 0x309F),
    (0x30A1, 0x30FA),
    (0x30FC, 0x30FF),
    (0x3105, 0x312F),
    (0x31A0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),
    (0x1B000, 0x1B16F),
    (0x20000, 0x3FFFF),  # Chinese and Japanese
)
"""First and last letters of each range, ascending."""
HANGUL = ((0x1100, 0x11FF), (0x3131, 0x318E), (0xA960, 0xA97F), (0xAC00, 0xD7FF))
"""Korean has spaces, but its endings are part of a word: it is searched as the scripts above are."""
_ATTACHED = (  # letters that stand with the one before: vowel signs, tones, marks of length and repetition
    (0x0E30, 0x0E3A),
    (0x0E45, 0x0E4E),
    (0x0EB0, 0x0EBC),
    (0x0EC8, 0x0ECE),
    (0x102B, 0x103E),
    (0x1056, 0x1059),
    (0x17B4, 0x17D3),
    (0x3005, 0x3005),
    (0x3099, 0x309C),
    (0x30FC, 0x30FE),
    (0xFF70, 0xFF70),
    (0xFF9E, 0xFF9F),
)
_PARTING = ((0x0F0B, 0x0F0E), (0x1361, 0x1361))  # marks behind a word of Tibetan, and between Ethiopic words
_ASCII = ((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A))  # letters and digits


def character_class(*ranges: tuple[int, int]) -> str:
    """The ranges as they stand in a class of a pattern."""
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


def word_starts(codes: np.ndarray) -> np.ndarray:
    """(len,) bool: where a letter of such a script begins a word of its own, and where one of another script
    that follows it does, and what follows a mark between words. `codes` (len,) uint32: the characters of a
    text. Punctuation stands with the word before it."""
    starts = np.zeros(len(codes), bool)
    high = np.flatnonzero(codes >= SPACELESS[0][0])  # few in most texts
    letters = high[_within(codes[high], SPACELESS)]
    starts[letters[~_within(codes[letters], _ATTACHED)]] = True
    behind = letters[letters + 1 < len(codes)] + 1
    starts[behind[_within(codes[behind], _ASCII)]] = True
    marks = high[_within(codes[high], _PARTING)] + 1
    starts[marks[marks < len(codes)]] = True
    return starts


def _within(codes: np.ndarray, ranges: tuple[tuple[int, int], ...]) -> np.ndarray:
    borders = np.array([border for first, last in ranges for border in (first, last + 1)], codes.dtype)
    inside: np.ndarray = np.searchsorted(borders, codes, side="right") % 2 == 1
    return inside


Analyzer: TypeAlias = Literal["plain", "stems"]

_STOP_WORDS = """
    a an and are as at be but by for if in into is it no not of on or such
    that the their then there these they this to was will with
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""The 33 words that Lucene's English analysis has always dropped."""

_PAIRED = character_class(*SPACELESS, *HANGUL)
_LATIN = "a-z0-9\u00df-\u00f6\u00f8-\u024f\u1e00-\u1eff\ufb00-\ufb06\uff10-\uff19\uff41-\uff5a"  # and wide
_OTHER = rf"[^\W_{_LATIN}{_PAIRED}]"
# Of no letters, but of words: accents, vowels of Hebrew, Arabic and the scripts of India, joiners.
_JOINED = "\u0300-\u036f\u00ad\u200b-\u200d"
_SIGNS = f"{_JOINED}\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff"
# A single letter of another script is no word: the Greek ones of chemistry cost .002 of nDCG@10 on SciFact.
_RUNS = re.compile(
    rf"[{_LATIN}][{_LATIN}{_JOINED}]*|{_OTHER}(?:{_OTHER}|(?!{_OTHER})[{_SIGNS}])+"
    rf"|(?=([{_PAIRED}]{{2}}))|(?<![{_PAIRED}])[{_PAIRED}](?![{_PAIRED}])"
)
_ACCENTS = re.compile(r"[\u0300-\u036f\u00ad\u200b-\u200f\u2060]")
_VISIBLE = re.compile(r"\S+")
_STEMMER = Stemmer.Stemmer("english")
_DISTINCT = 1 << 16  # words whose hashes are kept, 12 MB: a page has 1,500, and rare ones come back rarely


@lru_cache(maxsize=_DISTINCT)
def word_hash(word: str) -> int:
    """A stable uint64 hash of the word."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


def analyse(text: str, analyzer: str) -> tuple[np.ndarray, np.ndarray]:
    """The words of a text: hashes (words,) uint64 in text order, and the offsets in `text` at which they
    start, (words,) int32. Raises ValueError for an unknown analyzer."""
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
    """Lower case of the same length: the Turkish dotted capital is the one letter that would become two."""
    return text.replace("\u0130", "i").lower()


@lru_cache(maxsize=_DISTINCT)
def _stem_hash(word: str) -> int | None:
    if not word.isascii():
        word = _without_accents(word)
    return None if word in STOP_WORDS else word_hash(_STEMMER.stemWord(word))


def _without_accents(word: str) -> str:
    """The word in the letters that are searched: wide and narrow forms, accents and ligatures are folded.

    >>> [_without_accents(word) for word in ("café", "straße", "ﬁlm")]
    ['cafe', 'strasse', 'film']
    """
    parted = _ACCENTS.sub("", unicodedata.normalize("NFKD", word))
    return unicodedata.normalize("NFKC", parted).casefold()


ANALYZERS: Mapping[str, tuple[re.Pattern[str], Callable[[str], int | None]]] = MappingProxyType(
    {"plain": (_VISIBLE, word_hash), "stems": (_RUNS, _stem_hash)}
)


LONGEST_WORD = 10_000
"""Characters. The longest word of the real pages' texts has 81."""


class WordSpans:
    """The positions of the words in a folded text: ascending `starts` and `ends`."""

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
        """LangChain's merge over the words `first` to `stop`."""
        starts, ends = self.starts, self.ends
        i, j = first, first  # the window holds the words i..j
        while j < stop:
            j = max(bisect_right(ends, starts[i] + size, j, stop) - 1, j)
            yield starts[i], ends[j]
            j += 1  # the word that did not fit begins the next window, after what overlaps
            if j < stop:
                i = min(bisect_left(starts, max(ends[j - 1] - overlap, ends[j] - size), i, stop), j)


def character_windows(text: str, size: int, overlap: int) -> list[Span]:
    """Windows of at most `size` characters, `overlap` of them shared with the window before."""
    words = WordSpans(text)
    return list(words.windows(0, len(words.starts), size, overlap))


def nested_windows(
    text: str, parent_chars: int, parent_overlap: int, child_chars: int, child_overlap: int
) -> list[tuple[Span, Span]]:
    """(child, parent) spans: the text cut into parents, each parent cut into children by itself.

    As LangChain's ParentDocumentRetriever stores them: where parents overlap, a child inside both occurs
    twice, once for each parent.
    """
    words = WordSpans(text)
    parents = words.windows(0, len(words.starts), parent_chars, parent_overlap)
    return [
        (child, parent)
        for parent in parents
        for child in words.windows(*words.within(parent), child_chars, child_overlap)
    ]


def token_windows(tokens: Sequence[Span], size: int, overlap: int) -> list[Span]:
    """Windows of `size` tokens, `overlap` of them shared with the one before; the last may be shorter.

    With overlap 0 there are ceil(n / size), and they hold every token once. A span runs from its first
    token's start to its last token's end in the text, so nothing is decoded.
    """
    step = size - overlap
    stops = range(size, max(size + 1, len(tokens) + step), step) if tokens else range(0)
    return [(tokens[stop - size][0], tokens[min(stop, len(tokens)) - 1][1]) for stop in stops]


def sentence_windows(text: str, longest: int) -> list[Span]:
    """The sentences of a text, each cut after `longest` characters (1000 in the official baseline)."""
    return [(start, min(end, start + longest)) for start, end in sentences(text)]


def require_splitter() -> None:
    """Raises ConfError where the library that splits is not installed. Called before work that needs it."""
    if find_spec("blingfire") is None:
        raise ConfError(
            "sentences are split by the package blingfire, which is not installed. Get it with: "
            "pip install 'raypipe[local]'"
        )


def sentences(text: str) -> list[Span]:
    """The sentences of a text in order, without the white space between them.

    >>> [("Dr. Ho left. Who stayed?")[a:b] for a, b in sentences("Dr. Ho left. Who stayed?")]
    ['Dr. Ho left.', 'Who stayed?']
    """
    if not text.strip():  # blingfire fails on it
        return []
    try:
        import blingfire  # 40 ms that who only reads about a recipe does without
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
