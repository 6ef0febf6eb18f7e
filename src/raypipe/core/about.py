"""The questions that the work of this moment is about.

A cache by value knows requests and no questions. What it keeps on disk carries these ids, so that all that
was made for a question can be found again without a look at its text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class About:
    """A recipe, and questions of one batch."""

    recipe: str = ""  # digest; "": of none
    run: str = ""  # that asks language models afresh; "": cached replies hold
    questions: tuple[str, ...] = ()  # ids
    each: bool = False  # True: a call has one request for each question, in order
    of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Key of a request -> the questions that made it, where that is known more closely."""

    def owners(self, key: str) -> tuple[str, ...]:
        """Ids of the questions that a request was made for."""
        return self.of.get(key, self.questions)


_NOW: ContextVar[About] = ContextVar("about", default=About())  # noqa: B039 - About is frozen


def now() -> About:
    """Says what the work of this moment is about."""
    return _NOW.get()


@contextmanager
def about(
    questions: Sequence[str] | None = None, recipe: str | None = None, each: bool = False,
    run: str | None = None,
) -> Iterator[None]:  # fmt: skip
    """Says it of a block; None: as around it. `each`: a call in it has one request for each question."""
    known = now()
    asked = known.questions if questions is None else tuple(questions)
    of = known.recipe if recipe is None else recipe
    with _put(About(of, known.run if run is None else run, asked, each)):
        yield


@contextmanager
def owned(keys: Sequence[str]) -> Iterator[None]:
    """Says of a block which questions its requests are for, where each question has one of these keys."""
    known = now()
    of: dict[str, tuple[str, ...]] = {}
    if known.each and len(keys) == len(known.questions):
        for key, id in zip(keys, known.questions, strict=True):
            of[key] = (*of.get(key, ()), id)
    with _put(replace(known, of=of)):
        yield


@contextmanager
def _put(value: About) -> Iterator[None]:
    token = _NOW.set(value)
    try:
        yield
    finally:
        _NOW.reset(token)
