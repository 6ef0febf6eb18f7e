"""Parts that steps share: pure functions on questions, hits and scores. Knows the records alone.

Candidate makers (`dense`, `bm25`) add hits and scores and leave `order` alone. Selecting steps
(`fuse`, `rerank`) write `order`, and every step that needs a ranking reads `order`. So a recipe with one
candidate maker says `fuse` with that one score, which ranks by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from raypipe.core.index import Index
from raypipe.core.protocols import Ask, Reach
from raypipe.core.records import SKIPPED_REPLY, Hit, Question


def row_by_row(one: Callable[[Question], Question]) -> Ask:
    async def ask(questions: list[Question]) -> list[Question]:
        return [one(q) for q in questions]

    return ask


def skipping(*names: str) -> Ask:
    skipped = dict.fromkeys(names, SKIPPED_REPLY)
    return row_by_row(lambda q: replace(q, replies={**q.replies, **skipped}))


Scope: TypeAlias = Literal["own", "all"]
"""Scope of a search: in what it cites, or in the whole store."""


def scope_of(question: Question, scope: Scope) -> tuple[str, ...] | None:
    return None if scope == "all" else question.sources()


async def scopes_of(
    index: Index, questions: Sequence[Question], scope: Scope, where: str
) -> list[tuple[str, ...] | None]:
    """Returns what each question is searched for in: its scope, as far as the step's condition `where` and
    its own hold."""
    found = list[tuple[str, ...] | None]()
    for q in questions:
        own = None if scope == "all" else q.citations
        if own is None and (where or q.where):
            found.append(await index.matching(tuple(filter(None, (where, q.where)))))
        elif own is not None and where:  # its own condition narrowed its citations before the first stage
            found.append(replace(q, citations=await index.narrowed(own, where)).sources())
        else:
            found.append(scope_of(q, scope))
    return found


def best_first(scores: Mapping[str, float], top: int | None = None) -> tuple[str, ...]:
    """Chunk ids by score, ties by id; the `top` best.

    >>> best_first({"b:0-9": 1.0, "a:0-9": 1.0, "c:0-9": 2.0}, top=2)
    ('c:0-9', 'a:0-9')
    """
    return tuple(sorted(scores, key=lambda chunk: (-scores[chunk], chunk))[:top])


def add_hits(question: Question, found: Sequence[Hit]) -> Question:
    """The question with more hits: one that is there already keeps its place and gains the scores."""
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
    """The reach behind a step that adds at most `hits` hits."""
    return replace(reach, hits=reach.hits + hits)
