"""Texts to chunks: one row in per text, one row out per chunk. Knows splitting through `text.windows`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pyarrow as pa

from raypipe.core.arrow import SPANS
from raypipe.core.protocols import Build, CorpusBound, Kit, Model
from raypipe.core.records import Span
from raypipe.text import windows
from raypipe.text.windows import require_splitter

_SPANS = SPANS[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Cuts each text in one of three ways (`text.windows`):

    - characters: `child_chars` with `child_overlap`, inside parents of `parent_chars` with `parent_overlap`
      where that is given. The passage of a chunk is then its parent, and a chunk that stands in two
      overlapping parents is a row for each, as in LangChain's ParentDocumentRetriever;
    - tokens: `tokens` with `overlap`, as `tokenizer` counts them;
    - `by: sentence`, each cut after `sentence_chars`; what is beyond is in no chunk.

    Without parents the passage is the chunk itself. A text without a word gives no chunk, and nor does what
    stands in a text after its first `text_tokens`, as `tokenizer` counts them.
    """

    child_chars: int | None = None
    child_overlap: int = 0
    parent_chars: int | None = None
    parent_overlap: int = 0
    tokens: int | None = None
    overlap: int = 0
    text_tokens: int | None = None
    tokenizer: Model | None = None  # of tokens and of text_tokens
    by: Literal["sentence"] | None = None
    sentence_chars: int = 1000

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
            raise ValueError(
                f"child_chars: expected at most parent_chars ({self.parent_chars}), found {self.child_chars}"
            )
        _window("text_tokens", self.text_tokens, "overlap", 0)
        if (self.tokens is None and self.text_tokens is None) != (self.tokenizer is None):
            raise ValueError("tokens or text_tokens, and tokenizer: expected both or neither, found one")

    def reads(self) -> frozenset[str]:
        return frozenset({"source", "text", "fault"})

    def writes(self) -> frozenset[str]:
        return frozenset({*_SPANS, "chunk_text"})

    def bound(self, chars: float) -> CorpusBound:
        return CorpusBound(self._most_chunks(chars), self._most_chars(chars))

    def _most_chunks(self, chars: float) -> float:
        """Chunks that a text of `chars` characters can have."""
        if self.child_chars is not None and self.parent_chars is not None:
            each = _most_windows(min(self.parent_chars, chars), self.child_chars, self.child_overlap)
            return each * _most_windows(chars, self.parent_chars, self.parent_overlap)
        if self.child_chars is not None:
            return _most_windows(chars, self.child_chars, self.child_overlap)
        if self.tokens is not None:
            return math.ceil(chars / (self.tokens - self.overlap)) + 1
        return chars  # sentences: some scripts end one after every character

    def _most_chars(self, chars: float) -> float:
        """Characters of the longest passage of a text of `chars` characters."""
        size = self.parent_chars or self.child_chars
        if size is not None:  # a window is longer than its size if it is one long word
            return min(chars, max(size, windows.LONGEST_WORD))
        return min(chars, self.sentence_chars) if self.tokens is None else chars

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
            columns_out = {"source": table["source"].take(of)}
            for i, name in enumerate(_SPANS):
                columns_out[name] = pa.array([s[i] for s in spans], pa.int32())
            columns_out["chunk_text"] = pa.array(texts, pa.large_string())
            columns_out["fault"] = table["fault"].take(of)
            return pa.table(columns_out)

        return build

    def _end(self, kit: Kit) -> Callable[[str], int]:
        """text -> where its first `text_tokens` end."""
        if (most := self.text_tokens) is None or self.tokenizer is None:
            return len
        tokenize = kit.tokenizer(self.tokenizer)

        def end(text: str) -> int:
            # a token is at least a byte
            spans = tokenize(text) if len(text.encode()) > most else ()
            return len(text) if len(spans) <= most else spans[most - 1][1]

        return end

    def _cutter(self, kit: Kit) -> Callable[[str], list[tuple[Span, Span]]]:
        """text -> (chunk, passage) spans."""
        if self.child_chars is not None and self.parent_chars is not None:
            parent, child = (self.parent_chars, self.parent_overlap), (self.child_chars, self.child_overlap)
            return lambda text: windows.nested_windows(text, *parent, *child)
        flat = self._flat_cutter(kit)
        return lambda text: [(span, span) for span in flat(text)]

    def _flat_cutter(self, kit: Kit) -> Callable[[str], list[Span]]:
        if (chars := self.child_chars) is not None:
            return lambda text: windows.character_windows(text, chars, self.child_overlap)
        if (size := self.tokens) is not None and self.tokenizer is not None:
            tokenize = kit.tokenizer(self.tokenizer)
            return lambda text: windows.token_windows(tokenize(text), size, self.overlap)
        require_splitter()
        return lambda text: windows.sentence_windows(text, self.sentence_chars)


def _window(name: str, size: int | None, overlap_name: str, overlap: int) -> None:
    if size is None:
        if overlap:
            raise ValueError(f"{overlap_name}: expected {name} with it, found none")
    elif size < 1:
        raise ValueError(f"{name}: expected at least 1, found {size}")
    elif not 0 <= overlap < size:
        raise ValueError(f"{overlap_name}: expected 0 to less than {name} ({size}), found {overlap}")


def _most_windows(chars: float, size: int, overlap: int) -> float:
    """Windows of `text.windows.WordSpans`: of two neighbours, the second ends `size - overlap`
    characters or more after the end of the one before the first."""
    return min(chars, 1) if chars <= size else 2 * math.ceil(chars / (size - overlap)) + 2
