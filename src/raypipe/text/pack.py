"""Passages to one text of a prompt: in order, each once, cut to a budget, every fence closed.

Pure functions; a budget is counted by whatever splits a text into spans: a model's own tokenizer, or
characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from raypipe.records import Span
from raypipe.step import Tokenize

Layout: TypeAlias = Literal["docs", "list"]
"""docs: each passage between <DOC> and </DOC> on lines of their own; list: one line each, after "- "."""

OPEN, CLOSE = "<DOC>\n", "\n</DOC>\n"
ITEM = "- "


def characters(text: str) -> Sequence[Span]:
    """The span of each character: a tokenizer that makes a budget one of characters."""
    return [(i, i + 1) for i in range(len(text))]


def pack(
    passages: Sequence[str], layout: Layout, budget: int | None, tokenize: Tokenize, most: int | None = None
) -> str:
    """The passages as one text of at most `budget` tokens, as `tokenize` counts that text alone.

    Passages without text, and those equal to an earlier one, are left out. What does not fit is cut: the last
    document may be a part of its passage, and is closed after the cut. `budget` None: no budget. `most`: the
    first so many distinct passages alone.

    >>> import re
    >>> pack(["one two three", "four"], "docs", 4, lambda t: [m.span() for m in re.finditer(r"\\S+", t)])
    '<DOC>\\none two\\n</DOC>\\n'
    """
    texts = list(dict.fromkeys(text for p in passages if (text := _one(p, layout))))[:most]
    head, tail = (OPEN, CLOSE) if layout == "docs" else (ITEM, "\n")
    whole = "".join(head + t + tail for t in texts)
    if budget is None or len(spans := tokenize(whole)) <= budget:
        return whole
    keep = budget
    while keep > 0:
        text = _cut(texts, head, tail, spans[keep - 1][1])
        if (over := len(tokenize(text)) - budget) <= 0:
            return text
        keep -= over  # what closes the cut counts too, and pieces may count otherwise than in the whole
    return ""


def cut(text: str, budget: int, tokenize: Tokenize) -> str:
    """The text's beginning of at most `budget` tokens, as `tokenize` counts it alone.

    >>> import re
    >>> cut("one two three", 2, lambda t: [m.span() for m in re.finditer(r"\\S+", t)])
    'one two'
    """
    spans = tokenize(text)
    keep = budget
    whole = text
    while len(tokenize(text)) > budget:
        text = whole[: spans[keep - 1][1]].rstrip() if keep > 0 else ""
        keep -= 1  # a beginning may count otherwise than in the whole
    return text


def _one(passage: str, layout: Layout) -> str:
    return " ".join(passage.split()) if layout == "list" else passage.strip()


def _cut(texts: Sequence[str], head: str, tail: str, end: int) -> str:
    """The laid out texts up to a character, the last one closed; without one that would be empty."""
    out: list[str] = []
    at = 0
    for text in texts:
        whole = head + text + tail
        if at + len(whole) > end:
            part = text[: max(0, end - at - len(head))].rstrip()
            return "".join(out) + (head + part + tail if part else "")
        out.append(whole)
        at += len(whole)
    return "".join(out)
