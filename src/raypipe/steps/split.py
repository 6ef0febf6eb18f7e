"""Splitting of texts into chunks: a table with a row per text becomes a table with a row per chunk."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pyarrow as pa

from raypipe.core.arrow import SPANS
from raypipe.core.protocols import Build, CorpusBound, Kit, Model
from raypipe.core.records import Span
from raypipe.text.words import (
    LONGEST_WORD,
    character_windows,
    nested_windows,
    require_splitter,
    sentence_windows,
    token_windows,
)

_SPANS = SPANS[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Cuts each text into chunks in one of three ways (`text.words`).

    - Characters: chunks of at most `child_chars` (or one longer word), which overlap by at most
      `child_overlap`. With `parent_chars` they are cut inside parents, and a chunk's passage is its parent. A
      chunk in two overlapping parents gives a row for each, as in LangChain's ParentDocumentRetriever.
    - Tokens: chunks of `tokens` tokens that share `overlap` tokens, counted by `tokenizer`.
    - `by: sentence`: each sentence is a chunk, cut after `sentence_chars`; the part after the cut is lost.

    Without parents the passage is the chunk itself. A text without words gives no row; a row with a fault
    remains. With `text_tokens`, text after that many tokens, counted by `tokenizer`, is ignored.
    """

    child_chars: int | None = None  # most characters of a chunk
    child_overlap: int = 0  # characters that neighbouring chunks share
    parent_chars: int | None = None  # most characters of a parent; None: no parents
    parent_overlap: int = 0  # characters that neighbouring parents share
    tokens: int | None = None  # tokens of a chunk
    overlap: int = 0  # tokens that neighbouring chunks share
    text_tokens: int | None = None  # number of first tokens of a text that are cut; None: all
    tokenizer: Model | None = None  # counts tokens and text_tokens
    by: Literal["sentence"] | None = None
    sentence_chars: int = 1000  # most characters of a chunk that is a sentence

    version: ClassVar[int] = 2

    def __post_init__(self) -> None:
        ways = {"child_chars": self.child_chars, "tokens": self.tokens, "by: sentence": self.by}
        chosen = [name for name, value in ways.items() if value is not None]
        if len(chosen) != 1:
            raise ValueError(f"expected one of {', '.join(ways)}, found {' and '.join(chosen) or 'none'}")
        _window("child_chars", self.child_chars, "child_overlap", self.child_overlap)
        _window("parent_chars", self.parent_chars, "parent_overlap", self.parent_overlap)
        _window("tokens", self.tokens, "overlap", self.overlap)
        _window("sentence_chars", self.sentence_chars, "overlap", 0)
        if self.child_chars is None and self.parent_chars is not None:
            raise ValueError("parent_chars: expected child_chars with it, found none")
        if self.child_chars and self.parent_chars and self.child_chars > self.parent_chars:
            most = f"parent_chars ({self.parent_chars})"
            raise ValueError(f"child_chars: expected at most {most}, found {self.child_chars}")
        _window("text_tokens", self.text_tokens, "overlap", 0)
        if (self.tokens is None and self.text_tokens is None) != (self.tokenizer is None):
            raise ValueError("tokens or text_tokens, and tokenizer: expected both or neither, found one")

    def reads(self) -> frozenset[str]:
        return frozenset({"source", "text", "fault"})

    def writes(self) -> frozenset[str]:
        return frozenset({*_SPANS, "chunk_text"})

    def bound(self, chars: float) -> CorpusBound:
        chunks, size = chars, self.parent_chars or self.child_chars
        longest = min(chars, self.sentence_chars) if self.tokens is None else chars
        if self.child_chars is not None and self.parent_chars is not None:
            chunks = _most_windows(min(self.parent_chars, chars), self.child_chars, self.child_overlap)
            chunks *= _most_windows(chars, self.parent_chars, self.parent_overlap)
        elif self.child_chars is not None:
            chunks = _most_windows(chars, self.child_chars, self.child_overlap)
        elif self.tokens is not None:
            chunks = math.ceil(chars / (self.tokens - self.overlap)) + 1
        # Else by sentence: in some scripts every character may be a sentence.
        if size is not None:  # a window is longer than its size if it is one long word
            longest = min(chars, max(size, LONGEST_WORD))
        return CorpusBound(chunks, longest)

    def open(self, kit: Kit) -> Build:
        cut, end = self._cutter(kit), self._end(kit)

        async def build(table: pa.Table) -> pa.Table:
            rows, spans, texts = [], [], []
            columns = (table[n].to_pylist() for n in ("text", "fault"))
            for row, (text, fault) in enumerate(zip(*columns, strict=True)):
                pairs: list[Any] = [None] if fault is not None else cut(text[: end(text)])
                rows += [row] * len(pairs)
                spans += [(None,) * 4 if p is None else (*p[0], *p[1]) for p in pairs]
                texts += [None if p is None else text[slice(*p[0])] for p in pairs]
            of = pa.array(rows, pa.int64())
            out = {"source": table["source"].take(of)}
            out |= {name: pa.array([s[i] for s in spans], pa.int32()) for i, name in enumerate(_SPANS)}
            out["chunk_text"] = pa.array(texts, pa.large_string())
            return pa.table({**out, "fault": table["fault"].take(of)})

        return build

    def _end(self, kit: Kit) -> Callable[[str], int]:
        """Returns a function that finds the end of the part of a text to cut: its first `text_tokens` tokens,
        or all of it if `text_tokens` is None."""
        if (most := self.text_tokens) is None or self.tokenizer is None:
            return len
        tokenize = kit.tokenizer(self.tokenizer)

        def end(text: str) -> int:
            # A token has at least one byte, so a shorter text need not be tokenized.
            spans = tokenize(text) if len(text.encode()) > most else ()
            return len(text) if len(spans) <= most else spans[most - 1][1]

        return end

    def _cutter(self, kit: Kit) -> Callable[[str], list[tuple[Span, Span]]]:
        """Returns a function that cuts a text to chunks, each as (span of the chunk, span of the passage)."""
        flat: Callable[[str], list[Span]]
        if (chars := self.child_chars) is not None and self.parent_chars is not None:
            parent, child = (self.parent_chars, self.parent_overlap), (chars, self.child_overlap)
            return lambda text: nested_windows(text, *parent, *child)
        if chars is not None:
            flat = lambda text: character_windows(text, chars, self.child_overlap)  # noqa: E731
        elif (size := self.tokens) is not None and self.tokenizer is not None:
            tokenize = kit.tokenizer(self.tokenizer)
            flat = lambda text: token_windows(tokenize(text), size, self.overlap)  # noqa: E731
        else:
            require_splitter()
            flat = lambda text: sentence_windows(text, self.sentence_chars)  # noqa: E731
        return lambda text: [(span, span) for span in flat(text)]


def _window(name: str, size: int | None, overlap_name: str, overlap: int) -> None:
    if size is None:
        if overlap:
            raise ValueError(f"{overlap_name}: expected {name} with it, found none")
    elif size < 1:
        raise ValueError(f"{name}: expected at least 1, found {size}")
    elif not 0 <= overlap < size:
        raise ValueError(f"{overlap_name}: expected 0 to less than {name} ({size}), found {overlap}")


def _most_windows(chars: float, size: int, overlap: int) -> float:
    """Returns the largest number of windows that `text.words.WordSpans` may cut from `chars` characters. A
    window ends at least `size - overlap` characters after the end of the last but one before it."""
    return min(chars, 1) if chars <= size else 2 * math.ceil(chars / (size - overlap)) + 2
