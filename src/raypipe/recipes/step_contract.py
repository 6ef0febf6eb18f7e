"""Optional methods and fields of steps, each with a default, so callers need not know the class of a step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
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


def named(fields: Iterable[str], kind: Literal["replies", "hits"]) -> list[str]:
    """Returns NAME for each field "replies.NAME", or "hits.NAME", as `kind` says. The fields are the reads or
    writes of a step. NAME is the name of a reply, or of a score of hits."""
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
    """Returns the token limit for the answers of a step that decides, and the tokenizer that counts their
    tokens. Returns None if answers have no limit, or if the step lacks the method `answer_cut`."""
    cut = getattr(step, "answer_cut", None)
    return None if cut is None else cut()


def answering(step: Step) -> tuple[str, ...]:
    """Returns the names of the replies from which a step that decides takes the answer (method `prefers`),
    first choice first. Returns () if the step lacks the method."""
    prefers: Callable[[], tuple[str, ...]] | None = getattr(step, "prefers", None)
    return () if prefers is None else prefers()


def source_kinds(step: CorpusStep) -> tuple[SourceKind, ...] | None:
    """Returns the kinds of sources that are searched, if the corpus step limits them. They are the field
    `kinds` of a step that reads `content`. Returns None if the step does not limit them."""
    kinds = getattr(step, "kinds", None)
    return tuple(kinds) if kinds is not None and "content" in step.reads() else None


def searches_all(step: Step) -> bool:
    """Returns whether the step (field `scope`) searches the whole store even for questions with citations."""
    return getattr(step, "scope", "own") == "all"


def approximate(step: Step) -> tuple[Approximate, int] | None:
    """Returns the fields `ann` and `top` of a step that searches approximately; `top` is the number of chunks
    to find. Returns None if the step searches exactly, or not at all."""
    settings = getattr(step, "ann", None)
    return None if settings is None else (settings, cast(Any, step).top)


def table_of(step: CorpusStep) -> Table:
    """Returns the table that a corpus step fills, as its declared columns show."""
    return table_with(step.writes(), step.reads())


def table_with(writes: frozenset[str] | tuple[str, ...], reads: frozenset[str] = frozenset()) -> Table:
    if "vector" in writes:
        return "vectors"
    return "passages" if "chunk_text" in writes or "chunk_text" in reads else "texts"


def decides(step: Step) -> bool:
    """Returns whether the step chooses the reply that is the answer."""
    return "outcome" in step.writes()


def of_turns(step: Step) -> bool:
    """Returns whether the step acts only on questions with earlier turns. If it does, the key of an answer
    to a question without them does not cover the step."""
    return getattr(step, "of_turns", False)


def given_by_fit(step: Step) -> frozenset[str]:
    return getattr(step, "given_by_fit", frozenset())


Shown: TypeAlias = Callable[[Sequence[Question]], Awaitable[list[str]]]
"""Questions with their ranking -> for each, the passage text that a step reads for its reply."""


def shows_passages(step: Step) -> bool:
    """Returns whether the step writes a reply, reads the ranking's passages, and keeps their order."""
    reads, writes = step.reads(), step.writes()
    replies = any(w.startswith("replies.") for w in writes)
    return replies and {"order", "index.text"} <= reads and "order" not in writes


def shown_of(step: Step, kit: Kit) -> Shown:
    """Returns a function that gives, for each question, the passage text that a step reads. The step's method
    `shown` makes this function. By default the text is all passages of the ranking."""
    opened: Callable[[Kit], Shown] | None = getattr(step, "shown", None)
    if opened is not None:
        return opened(kit)
    index = kit.index()

    async def everything(questions: Sequence[Question]) -> list[str]:
        return ["\n".join(await index.texts(q.order)) for q in questions]

    return everything


def holds_golds(step: Step) -> bool:
    """Returns whether the step's fields contain gold answers, as in a recipe that makes labels; False by
    default. A run with such a step cannot be promoted."""
    return getattr(step, "holds_golds", False)


def models_of(step: Step | CorpusStep) -> list[Model]:
    """Returns the models in a step's fields and references, each once, without absent ones (loader: none)."""
    return named_by(Model, step)


def asked_models(step: Step | CorpusStep) -> list[Model]:
    """Returns the models that a step calls, each once. Leaves out absent models, and models that only count
    tokens: models of kind tokenizer, and a language model that only the field `tokenizer` names."""
    fields = [getattr(step, f.name) for f in dataclasses.fields(cast(Any, step)) if f.name != "tokenizer"]
    return [m for m in _named(*fields) if isinstance(m, Model) and m.kind != "tokenizer"]


ChatKind: TypeAlias = tuple[Model, Sampling, str | None]
"""A language model, with the sampling and the adapter of some chats."""


def chat_kinds(*steps: Step | CorpusStep) -> list[ChatKind]:
    """Returns the kinds of chats that steps send, one per step, language model and adapter. Without the
    method `sampling`, a reply has at most 16 tokens; without the field `adapter`, the adapter is None."""
    found: list[ChatKind] = []
    for step in steps:
        sampling = step.sampling() if hasattr(step, "sampling") else Sampling(max_tokens=16)
        adapters = dict.fromkeys(step.adapter.values()) if hasattr(step, "adapter") else [None]
        found += [(m, sampling, a) for m in asked_models(step) if m.kind == "generator" for a in adapters]
    return found


def requested_by(step: Step | CorpusStep) -> list[Reference[Any]]:
    """Returns the references of a step that send requests to a server, each once. An example is a graph."""
    return [ref for ref in named_by(Reference, step) if ref.periods() is not None]


def embedder_of(step: Step | CorpusStep) -> Model:
    """Returns the only embedder in a step's fields. Raises ValueError for none or several."""
    found = [m for m in models_of(step) if m.kind == "embedder"]
    if len(found) != 1:
        names = ", ".join(m.name for m in found) or "none"
        raise ValueError(f"expected a field with one embedder, found {names}")
    return found[0]


N = TypeVar("N", bound=Model | Reference[Any])


def named_by(kind: type[N], *steps: Step | CorpusStep) -> list[N]:
    """Returns all models, or all references, in the fields of steps, each once, in order of appearance.
    `kind` says which. Absent models (loader: none) are left out."""
    return [v for v in _named(*steps) if isinstance(v, kind)]


def _named(*values: Any) -> list[Any]:
    """Returns the models and references in values, at any depth, each once."""
    found: list[Any] = []
    for value in _inside(values):
        absent = isinstance(value, Model) and value.absent
        if not absent and value not in found:
            found.append(value)
    return found


def _inside(value: Any) -> Iterator[Model | Reference[Any]]:
    """Yields each model and reference inside a value, at any depth; an outer one before its inner ones."""
    if isinstance(value, Model | Reference):
        yield value
    parts: Iterable[Any] = ()
    if dataclasses.is_dataclass(value) and not isinstance(value, Model):
        parts = (getattr(value, f.name) for f in dataclasses.fields(value))
    elif isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, tuple):
        parts = value
    for part in parts:
        yield from _inside(part)


def bound_of(step: Step, question: Question, reach: Reach) -> Bound:
    """Returns upper bounds on the step's calls and passages for a question. `reach` bounds the question's
    passages before the step. If the step has no method `bound`, its calls are unbounded. Hits and ranking are
    then unbounded, too, if the step writes either of them."""
    bound: Callable[[Question, Reach], Bound] | None = getattr(step, "bound", None)
    if bound is not None:
        return bound(question, reach)
    if not step.writes().isdisjoint({"hits", "order"}):
        reach = dataclasses.replace(reach, hits=math.inf, order=math.inf)
    asked = asked_models(step)
    tokens = math.inf if any(m.kind == "generator" for m in asked) else 0
    dim = max((m.dim for m in asked), default=0)
    return Bound(math.inf, reach, tokens=tokens, reply_tokens=tokens, dim=dim)


def corpus_bound_of(step: CorpusStep, chars: float) -> CorpusBound:
    """Returns upper bounds on the step's calls and rows for a source of `chars` characters. The bounds are
    infinite if the step has no method `bound`, or if the length is unknown (math.inf)."""
    bound: Callable[[float], CorpusBound] | None = getattr(step, "bound", None)
    if bound is None or math.isinf(chars):
        return CorpusBound(math.inf, math.inf, math.inf)
    return bound(chars)


def is_bounded(step: Step | CorpusStep) -> bool:
    return hasattr(step, "bound")
