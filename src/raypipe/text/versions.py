"""Versions of a statement: other sources that give another value, and which is newest.

Pure. A source is dated by its own text: by its title, else by its first lines, front matter included. One
that says there that it is superseded is older than any that does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from raypipe.core.records import Quote
from raypipe.text.candidates import Sentence, SourceText
from raypipe.text.evidence import ANALYZER, Words
from raypipe.text.spans import TypedSpan, dates, day_of, numbers, with_unit
from raypipe.text.words import analyse

HEAD_CHARS = 300  # of a text that may date it: front matter, or a title and a first paragraph
ALIKE = 0.6  # share of their words, but for the values, that two sentences with one statement have in common
ABOUT = 0.05  # by how much less of the question's words the other may share: else it is of something else
_SUPERSEDED = re.compile(
    r"\bsuperseded\b|\b(?:replaced|obsoleted|withdrawn) by\b|\bno longer (?:valid|in force)\b", re.IGNORECASE
)


def value_of(s: Sentence, span: TypedSpan | None) -> Quote | None:
    """Returns where the value of a candidate stands: that of a fact, or the date or number of a sentence that
    is asked for, else the one number that it has."""
    if s.value is not None:
        return Quote(s.source, s.value)
    asked = span is not None and any(map(str.isdigit, s.text[slice(*span.span)]))
    values = [span.span] if span and asked else [with_unit(s.text, n) for n in numbers(s.text)]
    place = s.span[0]
    return Quote(s.source, (place + values[0][0], place + values[0][1])) if len(values) == 1 else None


def versions(
    found: Sequence[Sentence],
    spans: Sequence[TypedSpan | None],
    words: Words,
    at: int,
    pages: Mapping[str, SourceText],
) -> list[int]:
    """The place `at` and those of other sources that state another value, newest first; of one age as
    found."""
    quotes = [value_of(s, span) for s, span in zip(found, spans, strict=True)]
    shares, group, values = words.around + words.overlap, [at], list[str]()
    for i in (at, *range(len(found))):
        s, quote = found[i], quotes[i]
        if quote is None or (i != at and not values):
            continue
        start, end = (x - s.span[0] for x in quote.span)
        value = "".join(re.findall(r"\w+", pages[s.source].text[slice(*quote.span)].lower()))
        rest = np.unique(analyse(s.label if s.value else s.text[:start] + s.text[end:], ANALYZER)[0])
        if not values:
            values, statement = [value], rest
        elif value not in values and s.source not in {found[j].source for j in group}:
            alike = len(np.intersect1d(statement, rest)) >= ALIKE * max(len(np.union1d(statement, rest)), 1)
            if alike and shares[i] >= shares[at] - ABOUT:
                group.append(i)
                values.append(value)
    return sorted(group, key=lambda i: _age(pages[found[i].source]), reverse=True)


def _age(page: SourceText) -> tuple[bool, float]:
    """Sorts sources by age, the newest last."""
    head = page.text[:HEAD_CHARS]
    title = next((page.text[b.start : b.end] for b in page.blocks if b.kind in ("title", "heading")), "")
    days = ([d for s in dates(t) if (d := day_of(t[slice(*s)])) is not None] for t in (title, head))
    return not _SUPERSEDED.search(f"{title} {head}"), max(next(filter(None, days), [0.0]))
