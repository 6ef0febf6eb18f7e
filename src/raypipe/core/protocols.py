"""Contracts of steps and of kits (a step's access to models and index); a base class for wrapped kits.

Two laws hold for every step; `recipes.laws` checks them:

- rows: the same questions come back in the same order; every output row of a corpus step names its input row;
- batch: `f(a + b) == f(a) + f(b)`. A step's output does not depend on how rows are batched.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from raypipe.core.index import Index
from raypipe.core.llm import Generator
from raypipe.core.records import Question, Span
from raypipe.core.references import Reference

T = TypeVar("T")
Role: TypeAlias = Literal["query", "passage"]
ModelKind: TypeAlias = Literal["embedder", "reranker", "tokenizer", "generator"]


@dataclass(frozen=True, slots=True)
class Model:
    """A resolved entry of models.yaml. Its identity covers all that decides its results, not its location."""

    name: str  # in models.yaml; not identity
    kind: ModelKind
    loader: str  # name, or MODULE:NAME, of the code that loads it; none: no model
    repo: str  # hub name, or "" for a local folder; behind an endpoint: its name there
    revision: str  # pinned commit of the hub name, or "" for a local folder
    path: str  # folder where the weights are or would be, or the endpoint's name; not identity
    weights: str  # identity of its weights: repo@revision, sha256:... or openai:DIALECT@ENDPOINT:...
    dtype: str = "float32"  # float32 | float16 | bfloat16
    dim: int = 0  # dimension of its vectors; 0 for all but embedders
    pooling: str = ""  # cls | mean | last; "" for all but embedders
    max_tokens: int = 512  # limit of an embedder or reranker: longer inputs are cut
    max_model_len: int = 0  # limit of a generator, for prompt and reply together; more is a fault
    query_instruction: str = ""  # put before a query
    passage_instruction: str = ""  # put before a passage
    quantization: str = ""  # a generator's method, if it differs from the one that its folder names
    tensor_parallel: int = 1  # GPUs that share a generator's weights; they add in another order than one GPU
    adapters: tuple[tuple[str, str], ...] = ()  # a generator's: name, identity of the weights
    adapter_paths: tuple[str, ...] = ()  # folders (or remote names) of the adapters, in order; not identity
    tokenizer_path: str = ""  # folder of a remote generator's tokenizer; also in `weights`
    dialect: str = ""  # a remote generator's: openai | vllm; also in `weights`
    template: str = ""  # arguments of a generator's chat template, as JSON; also in `weights`
    engine: str = ""  # arguments of a vLLM engine, as JSON; also in `weights`
    thought_tokens: int = 0  # tokens for a generator's thoughts, on top of a reply's; also in `weights`
    unsent: tuple[str, ...] = ()  # fields that a remote generator's server refuses; also in `weights`
    weights_gib: float = 0.0  # size of its published weights; 0: unknown; not identity
    cache_control: bool = False  # True: chats to a remote generator mark parts to cache; not identity
    adopted: Adoption | None = None  # declaration that it has another model's identity; None: its own

    @property
    def original(self) -> Model:
        """Model whose cached results this model shares: the one that `adopt` declared equal, else itself."""
        return self if self.adopted is None else self.adopted.model

    @property
    def half(self) -> bool:
        """True if its vectors are searched as float16: the model computes in 16 bits, so 32 add nothing."""
        return self.original.dtype in ("float16", "bfloat16")

    @property
    def absent(self) -> bool:
        """True for an entry that stands for no model (loader: none): steps omit the work that needs it."""
        return self.loader == "none"

    def instructed(self, texts: Sequence[str], role: Role) -> list[str]:
        """Puts the model's instruction for a role before each text."""
        prefix = self.query_instruction if role == "query" else self.passage_instruction
        return [prefix + text for text in texts]

    def adapter(self, name: str) -> str:
        """Returns the identity of an adapter's weights. Raises KeyError if the model has no such adapter."""
        return dict(self.adapters)[name]

    def adapter_folders(self) -> dict[str, str]:
        """Returns the folder of each adapter, or its name at an endpoint."""
        return dict(zip(dict(self.adapters), self.adapter_paths, strict=True))


@dataclass(frozen=True, slots=True)
class Adoption:
    """A declaration that a model equals another. Cached results of either count for both."""

    model: Model  # the other model
    at: float  # seconds since the epoch
    by: str  # USER@HOST
    checked: str  # the measurement that supports it, for people

    def sentence(self, name: str) -> str:
        """Says that the model `name` is adopted, by whom and when, for a plan, report or explanation."""
        day = time.strftime("%Y-%m-%d", time.gmtime(self.at))
        return f"model {name} counts as {self.model.name}: adopted {day} by {self.by}, {self.checked}"


Embed: TypeAlias = Callable[[Sequence[str], Role], Awaitable[np.ndarray]]
"""texts, role -> (len(texts), dim) float32, unit rows. No texts: (0, dim)."""

Score: TypeAlias = Callable[[Sequence[tuple[str, str]]], Awaitable[np.ndarray]]
"""(query, passage) pairs -> (len(pairs),) float32, bigger is better. No pairs: (0,)."""

Tokenize: TypeAlias = Callable[[str], Sequence[Span]]
"""text -> character span of each token, in order, special tokens omitted."""


class Kit(Protocol):
    """Access to everything expensive that a step uses: models, tokenizers, index, data. To a step, a job's
    actor, a Serve replica and a test differ only in their kit. The methods may be called concurrently."""

    def embedder(self, model: Model) -> Embed: ...
    def reranker(self, model: Model) -> Score: ...
    def generator(self, model: Model) -> Generator: ...
    def tokenizer(self, model: Model) -> Tokenize: ...
    def index(self) -> Index: ...
    def data(self, ref: Reference[T]) -> T: ...


FIELDS = frozenset({"text", "body", "asked_at"})
"""Fields that every question has from the start. Prompts may use them by name."""

Ask: TypeAlias = Callable[[list[Question]], Awaitable[list[Question]]]
Build: TypeAlias = Callable[[pa.Table], Awaitable[pa.Table]]


@dataclass(frozen=True, slots=True)
class Reach:
    """Upper bounds on the passages that a question has at one point of a recipe. math.inf means unknown."""

    hits: float = 0  # number of passages
    order: float = 0  # passages in the ranking
    passage_chars: float = 0  # characters of the longest passage
    passage_sentences: float = math.inf  # most sentences in a passage


@dataclass(frozen=True, slots=True)
class Bound:
    """Upper bounds on a step's work for one question, whatever its texts; they may be loose. Two fields are
    estimates instead: `prompt_tokens` and `likely`."""

    calls: float  # calls of models and graphs, without repeated requests; math.inf: unknown
    reach: Reach  # after the step
    faults: Literal["never", "asking", "any"] = "any"
    """Cases in which the step may put a fault on the question, so that later steps leave the question out.
    `asking`: only if the step makes a call, for example while a language model is unavailable."""
    from_question: bool = False
    """True: the question as asked (text, body, time, turns) alone decides the step's single call. So a plan
    can look the call up in the memo, the cache of results."""
    tokens: float = 0  # tokens of one call of a language model, prompt and reply together
    reply_tokens: float = 0  # tokens of its reply
    prompt_tokens: float = math.inf  # tokens of an ordinary prompt, about; math.inf: unknown
    replies: float = math.inf  # calls of a language model among `calls`; inf: all. Only if `tokens` is not 0
    all_tokens: float = math.inf  # tokens of all these calls for one question; inf: `tokens` each
    dim: int = 0  # dimension of the vector that one call returns; 0: a score or a text
    likely: float | None = None
    """Calls for an ordinary question, if they are far fewer than `calls`; math.inf: unknown. None: as many as
    `calls`, for a ranking and passages of ordinary size."""
    shared: float = 0  # calls that all questions share, on top of `likely`


@dataclass(frozen=True, slots=True)
class CorpusBound:
    """Upper bounds on a corpus step's output and calls for one row. math.inf means unknown."""

    rows: float = 1  # output rows of one input row
    chars: float = math.inf  # characters of the longest text or passage in its output
    calls: float = 0  # calls of models, for one input row
    replies: float = 0  # calls of a language model among `calls`
    tokens: float = 0  # tokens of one call of a language model, prompt and reply together
    prompt_tokens: float = 0  # tokens of an ordinary prompt, about
    reply_tokens: float = 0  # tokens of its reply


class Step(Protocol):
    """A step of a recipe's question half: a frozen dataclass whose fields decide the output.

    `reads` and `writes` name fields of Question, such as "text", "hits", "hits.NAME" (one score), "order" and
    "replies.NAME"; `reads` also names data of the index: "index" and its kind, such as `"index.text"`. A
    recipe is checked by these names before it runs. The law tests replace each undeclared field by an object
    that fails when used. `recipes.step_contract` lists optional attributes and their defaults.
    """

    version: ClassVar[int]  # raised when new code changes the output; steps.lock detects a missed raise

    def reads(self) -> frozenset[str]: ...
    def writes(self) -> frozenset[str]: ...
    def open(self, kit: Kit) -> Ask: ...


class CorpusStep(Protocol):
    """A step of a recipe's corpus half, which works on tables. `reads` and `writes` are column names.

    The first step gets the columns `source, kind, content` (records.Source). A row that fails leaves the step
    as one row with a `fault` (arrow.FAULT) and without other columns except `source`. Later steps leave this
    row unchanged.

    A step that writes `vector` fills the table of vectors, and may read `text`, the whole text of the row's
    source. Another step that reads or writes `chunk_text` fills the table of passages; all others fill the
    table of texts.
    """

    version: ClassVar[int]

    def reads(self) -> frozenset[str]: ...
    def writes(self) -> frozenset[str]: ...
    def open(self, kit: Kit) -> Build: ...


Wrapped = TypeVar("Wrapped", bound=Kit)


class ForwardingKit(Generic[Wrapped]):
    """A kit that forwards every call to another kit. A subclass overrides only the calls that it changes."""

    def __init__(self, kit: Wrapped) -> None:
        self._kit = kit

    def embedder(self, model: Model) -> Embed:
        return self._kit.embedder(model)

    def reranker(self, model: Model) -> Score:
        return self._kit.reranker(model)

    def generator(self, model: Model) -> Generator:
        return self._kit.generator(model)

    def tokenizer(self, model: Model) -> Tokenize:
        return self._kit.tokenizer(model)

    def index(self) -> Index:
        return self._kit.index()

    def data(self, ref: Reference[T]) -> T:
        return self._kit.data(ref)
