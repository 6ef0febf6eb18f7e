"""The optional parts of a step's contract, and their defaults.

A step says it with a method or a field of its own; this module answers for the steps that say nothing. It
knows contracts alone: nothing here, and nothing that calls it, asks which class a step is.
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
"""Tables that the corpus half fills, one after the other."""

RANKING = frozenset({"hits", "order"})


def named(fields: Iterable[str], kind: Literal["replies", "hits"]) -> list[str]:
    """The names of the replies, or of the scores of hits, that are among what a step reads or writes."""
    return [f.removeprefix(f"{kind}.") for f in fields if f.startswith(f"{kind}.")]


def step_class(path: str) -> tuple[type[Any], Plugin]:
    """The step that a path names: `mypkg.steps:Shout`. Raises ConfError for what is no step."""
    cls, plugin = plugins.load(path, "a step")
    if not isinstance(cls, type) or not getattr(getattr(cls, "__dataclass_params__", None), "frozen", False):
        raise ConfError(f"{path}: expected a step, a frozen dataclass; found {cls!r:.80}")
    if not isinstance(getattr(cls, "version", None), int):
        raise ConfError(f"{path}: expected `version: ClassVar[int] = 1` in the class, found none")
    if lacking := [n for n in ("reads", "writes", "open") if not callable(getattr(cls, n, None))]:
        raise ConfError(f"{path}: expected a step with reads, writes and open; it has no {lacking[0]}")
    return cls, plugin


def answer_cut(step: Step) -> tuple[int, Model] | None:
    """The tokens after which a deciding step cuts answers, and their tokenizer; by default it cuts none."""
    cut = getattr(step, "answer_cut", None)
    return None if cut is None else cut()


def answering(step: Step) -> tuple[str, ...]:
    """The replies that a deciding step takes the answer from, as its method `prefers` says, first choice
    first; by default they are not known."""
    prefers: Callable[[], tuple[str, ...]] | None = getattr(step, "prefers", None)
    return () if prefers is None else prefers()


def source_kinds(step: CorpusStep) -> tuple[SourceKind, ...] | None:
    """The field `kinds` of the step that reads `content`: what is searched; by default all kinds."""
    kinds = getattr(step, "kinds", None)
    return tuple(kinds) if kinds is not None and "content" in step.reads() else None


def searches_all(step: Step) -> bool:
    """Returns whether the step searches the whole store whatever a question cites (`scope`); by default
    not."""
    return getattr(step, "scope", "own") == "all"


def approximate(step: Step) -> tuple[Approximate, int] | None:
    """Returns how the step searches the whole store by an approximate index, and for how many chunks, as its
    fields `ann` and `top` say. By default it searches exactly."""
    how = getattr(step, "ann", None)
    return None if how is None else (how, cast(Any, step).top)


def table_of(step: CorpusStep) -> Table:
    """The table that a corpus step fills, by the columns that it declares."""
    return table_with(step.writes(), step.reads())


def table_with(writes: frozenset[str] | tuple[str, ...], reads: frozenset[str] = frozenset()) -> Table:
    """The table of a corpus step with these columns."""
    if "vector" in writes:
        return "vectors"
    return "passages" if "chunk_text" in writes or "chunk_text" in reads else "texts"


def decides(step: Step) -> bool:
    """Returns whether the step says which reply is the answer."""
    return "outcome" in step.writes()


def of_turns(step: Step) -> bool:
    """Returns whether the step leaves a question without earlier turns as it is, its reply skipped: its
    attribute of_turns; by default not. It is in the keys of questions with turns, and in no others'."""
    return getattr(step, "of_turns", False)


def given_by_fit(step: Step) -> frozenset[str]:
    """The fields of a step that a fit gives: its attribute given_by_fit; by default it cannot be fitted."""
    return getattr(step, "given_by_fit", frozenset())


Shown: TypeAlias = Callable[[Sequence[Question]], Awaitable[list[str]]]
"""Questions with their ranking -> what of its passages a step reads for its reply, as one text each."""


def shows_passages(step: Step) -> bool:
    """Returns whether the step writes a reply from the passages of the ranking."""
    reads, writes = step.reads(), step.writes()
    replies = any(w.startswith("replies.") for w in writes)
    return replies and {"order", "index.text"} <= reads and "order" not in writes


def shown_of(step: Step, kit: Kit) -> Shown:
    """Returns what the method `shown` of a step gives, opened with a kit; by default all passages of the
    ranking."""
    opened: Callable[[Kit], Shown] | None = getattr(step, "shown", None)
    if opened is not None:
        return opened(kit)
    index = kit.index()

    async def everything(questions: Sequence[Question]) -> list[str]:
        return ["\n".join(await index.texts(q.order)) for q in questions]

    return everything


def holds_golds(step: Step) -> bool:
    """Returns whether golds stand in the step's fields, as in a recipe that makes labels: its attribute
    holds_golds; by default not. No run with such a step can be promoted."""
    return getattr(step, "holds_golds", False)


def models_of(step: Step | CorpusStep) -> list[Model]:
    """The models that a step names, itself or by its references, each once."""
    return named_by(Model, step)


def asked_models(step: Step | CorpusStep) -> list[Model]:
    """The models of a step that are asked. A tokenizer counts and is not asked, and nor is a language model
    whose tokenizer does: one that only the field `tokenizer` names."""
    found: list[Any] = []
    for f in dataclasses.fields(cast(Any, step)):
        if f.name != "tokenizer":
            _collect(getattr(step, f.name), found)
    return [m for m in found if isinstance(m, Model) and m.kind != "tokenizer"]


ChatKind: TypeAlias = tuple[Model, Sampling, str | None]
"""A language model, and the sampling and adapter of some chats with it."""


def chat_kinds(*steps: Step | CorpusStep) -> list[ChatKind]:
    """The kinds of chats that steps send, as their methods `sampling` and fields `adapter` say."""
    found: list[ChatKind] = []
    for step in steps:
        sampling = step.sampling() if hasattr(step, "sampling") else Sampling(max_tokens=16)
        adapters = dict.fromkeys(step.adapter.values()) if hasattr(step, "adapter") else [None]
        found += [(m, sampling, a) for m in asked_models(step) if m.kind == "generator" for a in adapters]
    return found


def requested_by(step: Step | CorpusStep) -> list[Reference[Any]]:
    """The references of a step that send requests, as graphs behind a server do, each once."""
    return [ref for ref in named_by(Reference, step) if ref.periods() is not None]


def embedder_of(step: Step | CorpusStep) -> Model:
    """The embedder of a step that embeds or searches by vectors. Raises ValueError unless it names one."""
    found = [m for m in models_of(step) if m.kind == "embedder"]
    if len(found) != 1:
        names = ", ".join(m.name for m in found) or "none"
        raise ValueError(f"expected a field with one embedder, found {names}")
    return found[0]


N = TypeVar("N", bound=Model | Reference[Any])


def named_by(kind: type[N], *steps: Step | CorpusStep) -> list[N]:
    """The models or references of a kind in the fields of steps, each once, in the order they are met; an
    absent model is none."""
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
    """Returns what the step's method bound says; by default neither calls nor a ranking that it writes are
    known."""
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
    """Returns what the step's method bound says. By default, and for a text of unknown length, nothing is
    known."""
    bound: Callable[[float], CorpusBound] | None = getattr(step, "bound", None)
    if bound is None or math.isinf(chars):
        return CorpusBound(math.inf, math.inf, math.inf)
    return bound(chars)


def is_bounded(step: Step | CorpusStep) -> bool:
    """Returns whether the step says what it costs at most."""
    return hasattr(step, "bound")
