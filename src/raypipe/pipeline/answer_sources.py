"""What answers are really made from: the sources that a question names, without those that were absent.

A page whose parser met a time limit has no rows in the searched tables. A question is answered without it,
and the key of that answer names what was absent. Once the page is there, the question has another key, so its
answer is missing and made. Nothing is replaced: each answer stays true of what it was made from.

Knows questions and recipes; reads no store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raypipe.core.records import Question, digest
from raypipe.recipes.recipe import row_key

WORDS = "words "  # begins what a source lacks that is not in the postings of an analyzer

Lacks = Mapping[str, tuple[str, ...]]
"""Source -> what it lacks (`recipe_tables.lacking`)."""


@dataclass(frozen=True, slots=True)
class AnswerSources:
    """What some questions are answered from by one recipe. Make it with `answer_sources`."""

    snapshot: str  # names all that the store can search: the corpus of a question without citations
    lacks: Lacks  # of all sources that these questions may search
    whole: str  # names all of `lacks`: what a question without citations is answered without
    everything: bool = False  # True: the recipe searches the whole store whatever a question cites

    def row(self, question: Question) -> str:
        """Names what the question asks, and of what it should be answered (`recipe.row_key`)."""
        return row_key(question, self.snapshot, self.everything)

    def absent(self, question: Question) -> str:
        """Names what the question is answered without; "" where all that it may search is there."""
        cited = question.sources()
        if cited is None or self.everything:
            return self.whole
        return _named({s: left for s in self.lacks.keys() & set(cited) if (left := _own(self.lacks[s]))})

    def key(self, recipe: str, question: Question) -> str:
        return answer_key(recipe, question.id, self.row(question), self.absent(question))


def _own(labels: tuple[str, ...]) -> tuple[str, ...]:
    """What is read for a question that is searched for in its own sources: no postings."""
    return tuple(x for x in labels if not x.startswith(WORDS))


def answer_sources(snapshot: str, lacks: Lacks, everything: bool = False) -> AnswerSources:
    """`lacks`: of all sources that the questions may search; `everything`: `Recipe.searches_all`."""
    return AnswerSources(snapshot, lacks, _named(lacks), everything)


def answer_key(recipe: str, question: str, row: str, absent: str) -> str:
    """Key of an answer: recipe digest, question id, row key, and what was absent."""
    return digest(recipe, question, row, *([absent] if absent else []))


def _named(lacks: Lacks) -> str:
    return digest("absent", *(f"{s}: {', '.join(lacks[s])}" for s in sorted(lacks))) if lacks else ""
