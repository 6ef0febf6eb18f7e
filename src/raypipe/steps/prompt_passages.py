"""Passages as a prompt may show them: without what their pages hide, and harmless. Knows the index alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raypipe.core.index import Index
from raypipe.core.records import Span, parse_chunk_id
from raypipe.text.sanitize import escape_markup, visible


@dataclass(frozen=True, slots=True)
class PromptPassage:
    """A passage as its page has it, and as a prompt shows it."""

    source: str  # source id
    span: Span  # in the source's parsed text
    text: str  # of that span
    hidden: tuple[Span, ...]  # of the source
    prompted: str  # visible, harmless, in lower case where that is asked for


async def prompt_passages(
    index: Index, chunks: Sequence[str], lower: bool = False
) -> dict[str, PromptPassage]:
    """The passages of these ids, each once. Raises KeyError for a source that the index does not hold."""
    distinct = list(dict.fromkeys(chunks))
    places = {c: parse_chunk_id(c) for c in distinct}
    sources = list(dict.fromkeys(source for source, _ in places.values()))
    hidden = dict(zip(sources, await index.hidden(sources), strict=True))
    found = {}
    for chunk, text in zip(distinct, await index.texts(distinct), strict=True):
        source, span = places[chunk]
        fit = escape_markup(visible(text, span, hidden[source]))
        found[chunk] = PromptPassage(source, span, text, hidden[source], fit.lower() if lower else fit)
    return found
