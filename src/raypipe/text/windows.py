"""Splits a text into spans: windows of characters, of tokens, and sentences.

`character_windows` is LangChain's `CharacterTextSplitter(separator=" ")`, the splitter that db3 names, on a
white-space folded text: words are joined as long as the window is at most `size` characters long, and the
next window begins with as many of the last words as fit into `overlap`. So a window begins and ends at a
word, and is longer than `size` only if it is one longer word. Two departures: in scripts without spaces each
letter is a word (`text.words`), and a word beyond `LONGEST_WORD` is cut, so that ten megabytes without a
space do not become one chunk.

Sentences are split as the official CRAG baseline does it (blingfire).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

import numpy as np

from raypipe.core.errors import ConfError
from raypipe.core.records import Span
from raypipe.text.words import word_starts

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
