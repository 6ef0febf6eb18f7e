"""Context of a call to a model: the recipe, the run, and the questions or sources that need the reply."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Final

OF_SOURCES: Final = "sources"
"""Value of `CallContext.recipe` for calls about sources, which any recipe may make."""


@dataclass(frozen=True, slots=True)
class CallContext:
    recipe: str = ""  # digest, or OF_SOURCES; "": no recipe
    run: str = ""  # run that refuses cached replies of language models; "": cached replies are used
    questions: tuple[str, ...] = ()  # question ids; source ids with OF_SOURCES
    each: bool = False  # True: a call makes one request per question, in order
    of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Key of a request -> ids of its questions. A request without an entry belongs to all `questions`."""

    def owners(self, key: str) -> tuple[str, ...]:
        return self.of.get(key, self.questions)


_CURRENT: ContextVar[CallContext] = ContextVar("about", default=CallContext())  # noqa: B039 - it is frozen
current = _CURRENT.get


@contextmanager
def about(
    questions: Sequence[str] | None = None,
    recipe: str | None = None,
    each: bool = False,
    run: str | None = None,
) -> Iterator[None]:
    """Sets the context of the calls in a block. None keeps the outer value, but `each` defaults to False."""
    known = current()
    asked = known.questions if questions is None else tuple(questions)
    of = known.recipe if recipe is None else recipe
    with _set(CallContext(of, known.run if run is None else run, asked, each)):
        yield


@contextmanager
def owned(keys: Sequence[str]) -> Iterator[None]:
    """Assigns the requests of a block to the context's questions: the nth key to the nth question. Without
    `CallContext.each`, or with more or fewer keys than questions, all questions own every request."""
    known = current()
    of: dict[str, tuple[str, ...]] = defaultdict(tuple)
    if known.each and len(keys) == len(known.questions):
        for key, id in zip(keys, known.questions, strict=True):
            of[key] += (id,)
    with _set(replace(known, of=dict(of))):
        yield


@contextmanager
def _set(value: CallContext) -> Iterator[None]:
    token = _CURRENT.set(value)
    try:
        yield
    finally:
        _CURRENT.reset(token)
