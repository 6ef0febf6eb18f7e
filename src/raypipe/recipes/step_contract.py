"""Optional methods and fields of steps, with a default for each.

Each function here reads such a method or field of a step, or returns the default if the step lacks it. So
callers need not know the class of a step.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias, TypeVar, cast

from raypipe.core import plugins
from raypipe.core.errors import ConfError
from raypipe.core.index import Approximate
from raypipe.core.llm import Sampling
from raypipe.core.plugins import Plugin
from raypipe.core.protocols import Bound, CorpusBound, CorpusStep, Kit, Model, Reach, Step
from raypipe.core.records import Question, SourceKind
from raypipe.core.references import Reference

Table: TypeAlias = Literal["texts", "passages", "vectors"]
"""Tables that the corpus half fills, in this order."""

RANKING = frozenset({"hits", "order"})


def named(fields: Iterable[str], kind: Literal["replies", "hits"]) -> list[str]:
    """Returns the names of replies, or of scores of hits, in reads or writes: `replies.NAME` -> NAME."""
    return [f.removeprefix(f"{kind}.") for f in fields if f.startswith(f"{kind}.")]


def step_class(path: str) -> tuple[type[Any], Plugin]:
    """Imports the step at a path such as `mypkg.steps:Shout`. Raises ConfError if it is not a step."""
    cls, plugin = plugins.load(path, "a step")
    if not isinstance(cls, type) or not getattr(getattr(cls, "__dataclass_params__", None), "frozen", False):
        raise ConfError(f"{path}: expected a step, a frozen dataclass; found {cls!r:.80}")
    if not isinstance(getattr(cls, "version", None), int):
        raise ConfError(f"{path}: expected `version: ClassVar[int] = 1` in the class, found none")
    if lacking := [n for n in ("reads", "writes", "open") if not callable(getattr(cls, n, None))]:
        raise ConfError(f"{path}: expected a step with reads, writes and open; it has no {lacking[0]}")
    return cls, plugin


def answer_cut(step: Step) -> tuple[int, Model] | None:
    """Returns the token limit of a deciding step's answers, with the tokenizer that counts, by the step's
    method `answer_cut`. By default returns None: answers have no limit."""
    cut = getattr(step, "answer_cut", None)
    return None if cut is None else cut()


def answering(step: Step) -> tuple[str, ...]:
    """Returns the replies that a deciding step takes the answer from, first choice first, by its method
    `prefers`. By default they are not known."""
    prefers: Callable[[], tuple[str, ...]] | None = getattr(step, "prefers", None)
    return () if prefers is None else prefers()


def source_kinds(step: CorpusStep) -> tuple[SourceKind, ...] | None:
    """Returns the kinds of sources to search: field `kinds` of a step that reads `content`. Returns None, for
    all kinds, if the step lacks that field or reads no `content`."""
    kinds = getattr(step, "kinds", None)
    return tuple(kinds) if kinds is not None and "content" in step.reads() else None


def searches_all(step: Step) -> bool:
    """Returns whether the step searches the whole store even for questions with citations (`scope`); by
    default not."""
    return getattr(step, "scope", "own") == "all"


def approximate(step: Step) -> tuple[Approximate, int] | None:
    """Returns the settings and number of chunks of an approximate search: fields `ann` and `top` of the step.
    By default returns None: the step searches exactly, or not at all."""
    how = getattr(step, "ann", None)
    return None if how is None else (how, cast(Any, step).top)


def table_of(step: CorpusStep) -> Table:
    """Returns the table that a corpus step fills, by the columns that it declares."""
    return table_with(step.writes(), step.reads())


def table_with(writes: frozenset[str] | tuple[str, ...], reads: frozenset[str] = frozenset()) -> Table:
    """Returns the table that a corpus step with these columns fills."""
    if "vector" in writes:
        return "vectors"
    return "passages" if "chunk_text" in writes or "chunk_text" in reads else "texts"


def decides(step: Step) -> bool:
    """Returns whether the step chooses the reply that is the answer."""
    return "outcome" in step.writes()


def of_turns(step: Step) -> bool:
    """Returns whether the step acts only on questions with earlier turns (`of_turns`); by default not. For a
    question without turns the step's reply is skipped, and the question's key does not cover the step."""
    return getattr(step, "of_turns", False)


def given_by_fit(step: Step) -> frozenset[str]:
    """Returns the fields that a fit sets, by the step's attribute `given_by_fit`; by default none."""
    return getattr(step, "given_by_fit", frozenset())


Shown: TypeAlias = Callable[[Sequence[Question]], Awaitable[list[str]]]
"""Questions with their ranking -> for each, the passage text that a step reads for its reply."""


def shows_passages(step: Step) -> bool:
    """Returns whether the step makes a reply from the passages of the ranking."""
    reads, writes = step.reads(), step.writes()
    replies = any(w.startswith("replies.") for w in writes)
    return replies and {"order", "index.text"} <= reads and "order" not in writes


def shown_of(step: Step, kit: Kit) -> Shown:
    """Returns the function that gives the passage text a step reads, by its method `shown`. By default it
    reads all passages of the ranking."""
    opened: Callable[[Kit], Shown] | None = getattr(step, "shown", None)
    if opened is not None:
        return opened(kit)
    index = kit.index()

    async def everything(questions: Sequence[Question]) -> list[str]:
        return ["\n".join(await index.texts(q.order)) for q in questions]

    return everything


def holds_golds(step: Step) -> bool:
    """Returns whether the step's fields contain golds (`holds_golds`), as in a recipe that makes labels; by
    default not. A run with such a step cannot be promoted."""
    return getattr(step, "holds_golds", False)


def models_of(step: Step | CorpusStep) -> list[Model]:
    """Returns the models that a step names, itself or by its references, each once."""
    return named_by(Model, step)


def asked_models(step: Step | CorpusStep) -> list[Model]:
    """Returns the models that a step calls. Excludes models of kind tokenizer. Excludes also a language model
    that only the field `tokenizer` names, since it only counts tokens."""
    found: list[Any] = []
    for f in dataclasses.fields(cast(Any, step)):
        if f.name != "tokenizer":
            _collect(getattr(step, f.name), found)
    return [m for m in found if isinstance(m, Model) and m.kind != "tokenizer"]


ChatKind: TypeAlias = tuple[Model, Sampling, str | None]
"""A language model, with the sampling and the adapter of some chats."""


def chat_kinds(*steps: Step | CorpusStep) -> list[ChatKind]:
    """Returns the kinds of chats that steps send, by their methods `sampling` and fields `adapter`. By
    default a chat samples at most 16 tokens, without an adapter."""
    found: list[ChatKind] = []
    for step in steps:
        sampling = step.sampling() if hasattr(step, "sampling") else Sampling(max_tokens=16)
        adapters = dict.fromkeys(step.adapter.values()) if hasattr(step, "adapter") else [None]
        found += [(m, sampling, a) for m in asked_models(step) if m.kind == "generator" for a in adapters]
    return found


def requested_by(step: Step | CorpusStep) -> list[Reference[Any]]:
    """Returns the references of a step that send requests, such as graphs behind a server, each once."""
    return [ref for ref in named_by(Reference, step) if ref.periods() is not None]


def embedder_of(step: Step | CorpusStep) -> Model:
    """Returns the only embedder of a step that embeds or searches by vectors. Raises ValueError otherwise."""
    found = [m for m in models_of(step) if m.kind == "embedder"]
    if len(found) != 1:
        names = ", ".join(m.name for m in found) or "none"
        raise ValueError(f"expected a field with one embedder, found {names}")
    return found[0]


N = TypeVar("N", bound=Model | Reference[Any])


def named_by(kind: type[N], *steps: Step | CorpusStep) -> list[N]:
    """Returns the models or references in the fields of steps, each once, in order of appearance. Absent
    models are omitted."""
    found: list[Any] = []
    for step in steps:
        _collect(step, found)
    return [value for value in found if isinstance(value, kind)]


def _collect(value: Any, found: list[Any]) -> None:
    if (
        isinstance(value, Model | Reference)
        and value not in found
        and not (isinstance(value, Model) and value.absent)
    ):
        found.append(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, Model):
        for f in dataclasses.fields(value):
            _collect(getattr(value, f.name), found)
    elif isinstance(value, tuple):
        for v in value:
            _collect(v, found)
    elif isinstance(value, Mapping):
        for v in value.values():
            _collect(v, found)


def bound_of(step: Step, question: Question, reach: Reach) -> Bound:
    """Returns upper bounds on the step's calls and passages for a question, by its method `bound`. By default
    calls are unbounded, and so is a ranking that the step writes. `reach`: bounds on the question's passages
    before the step."""
    bound: Callable[[Question, Reach], Bound] | None = getattr(step, "bound", None)
    if bound is not None:
        return bound(question, reach)
    if not step.writes().isdisjoint(RANKING):
        reach = replace(reach, hits=math.inf, order=math.inf)
    asked = asked_models(step)
    tokens = math.inf if any(m.kind == "generator" for m in asked) else 0
    return Bound(
        math.inf, reach, tokens=tokens, reply_tokens=tokens, dim=max((m.dim for m in asked), default=0)
    )


def corpus_bound_of(step: CorpusStep, chars: float) -> CorpusBound:
    """Returns upper bounds on the step's calls and rows for a source of `chars` characters, by its method
    `bound`. By default they are infinite, and also for an unknown length (math.inf)."""
    bound: Callable[[float], CorpusBound] | None = getattr(step, "bound", None)
    if bound is None or math.isinf(chars):
        return CorpusBound(math.inf, math.inf, math.inf)
    return bound(chars)


def is_bounded(step: Step | CorpusStep) -> bool:
    """Returns whether the step declares a bound."""
    return hasattr(step, "bound")
