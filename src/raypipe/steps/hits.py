"""Hits, scores and searched sources of questions: functions that several steps share.

`order` is the question's ranking: ids of hits, best first. Steps that find candidates (`dense`, `bm25`) add
hits and scores and do not change `order`. Steps that select (`fuse`, `rerank`) write `order`, and every step
that needs a ranking reads `order`. So even a recipe with one `dense` or `bm25` step needs `fuse` to rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from raypipe.core.index import Index
from raypipe.core.protocols import Ask, Reach
from raypipe.core.records import Hit, Question


def row_by_row(one: Callable[[Question], Question]) -> Ask:
    async def ask(questions: list[Question]) -> list[Question]:
        return [one(q) for q in questions]

    return ask


Scope: TypeAlias = Literal["own", "all"]
"""Scope of a search: the sources that the question cites (own), or the whole store (all)."""


async def scopes_of(
    index: Index, questions: Sequence[Question], scope: Scope, where: str
) -> list[tuple[str, ...] | None]:
    """Returns the ids of the sources to search for each question; None: the whole store. A source must meet
    both the step's condition `where` and the question's own condition."""
    scopes = list[tuple[str, ...] | None]()
    for q in questions:
        own = None if scope == "all" else q.citations
        if own is None:
            conditions = tuple(filter(None, (where, q.where)))
            scopes.append(await index.matching(conditions) if conditions else None)
        else:  # before the first step, citations were reduced to those that meet the question's condition
            cited = await index.narrowed(own, where) if where else own
            scopes.append(replace(q, citations=cited).sources())
    return scopes


def best_first(scores: Mapping[str, float], top: int | None = None) -> tuple[str, ...]:
    """Returns the chunk ids of the `top` best scores (None: all), best first; ties are ordered by id.

    >>> best_first({"b:0-9": 1.0, "a:0-9": 1.0, "c:0-9": 2.0}, top=2)
    ('c:0-9', 'a:0-9')
    """
    return tuple(sorted(scores, key=lambda chunk: (-scores[chunk], chunk))[:top])


def add_hits(question: Question, found: Sequence[Hit]) -> Question:
    """Adds hits to a question. A passage that already is a hit keeps its place and gains the new scores."""
    hits = {h.chunk: h for h in question.hits}
    for h in found:
        old = hits.get(h.chunk, h)
        hits[h.chunk] = replace(old, scores={**old.scores, **h.scores})
    return replace(question, hits=tuple(hits.values()))


def pool_of(question: Question, scores: Sequence[str]) -> frozenset[str]:
    return frozenset(h.chunk for h in question.hits if not h.scores.keys().isdisjoint(scores))


def add_scores(question: Question, name: str, scores: Mapping[str, float]) -> Question:
    scored = (
        replace(h, scores={**h.scores, name: scores[h.chunk]}) if h.chunk in scores else h
        for h in question.hits
    )
    return replace(question, hits=tuple(scored))


def grown(reach: Reach, hits: int) -> Reach:
    """Returns `reach`, the bounds on a question's passages, after a step that adds at most `hits` hits."""
    return replace(reach, hits=reach.hits + hits)
