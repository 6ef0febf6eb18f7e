"""The contracts of steps and kits, and the base of a kit's wrappers. Protocols and plain values.

Two laws hold for every step and are tested over the whole table of steps (`recipes.wiring.STEPS`):

- rows: the same questions come back in the same order; every output row of a corpus step names its input row;
- batch: `f(a + b) == f(a) + f(b)`. A step must not notice how its rows were batched.

Nothing here knows Ray, LanceDB or a model library.
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
    """A resolved entry of models.yaml. What decides its numbers is its identity; where it lies is not."""

    name: str  # in models.yaml; not identity
    kind: ModelKind
    loader: str  # which class loads it: see models/
    repo: str  # hub name, or "" for a local folder; behind an endpoint: what it is called there
    revision: str  # pinned commit of the hub name, or "" for a local folder
    path: str  # folder where the weights are or would be, or the endpoint's name; not identity
    weights: str  # their identity: repo@revision, sha256:... of a folder, openai:DIALECT@ENDPOINT:...
    dtype: str = "float32"  # float32 | float16 | bfloat16
    dim: int = 0  # of its vectors; 0 for all but embedders
    pooling: str = ""  # cls | mean | last; "" for all but embedders
    max_tokens: int = 512  # of an embedder or reranker: longer inputs are cut
    max_model_len: int = 0  # of a generator: tokens of prompt and reply together; longer ones fault
    query_instruction: str = ""  # put before a query
    passage_instruction: str = ""  # put before a passage
    quantization: str = ""  # of a generator, where it is not as its folder says
    tensor_parallel: int = 1  # GPUs that share a generator's weights; they add in another order than one
    adapters: tuple[tuple[str, str], ...] = ()  # of a generator: name, identity of its weights
    adapter_paths: tuple[str, ...] = ()  # folders (or remote names) of the adapters, in order; not identity
    tokenizer_path: str = ""  # of a remote generator: the folder of its tokenizer, which `weights` names too
    dialect: str = ""  # of a remote generator: openai | vllm, which `weights` names too
    template: str = ""  # of a generator: arguments of its chat template as JSON, which `weights` names too
    engine: str = ""  # of a vLLM engine: arguments of its own as JSON, which `weights` names too
    thought_tokens: int = 0  # of a generator that thinks: on top of a reply's, which `weights` names too
    unsent: tuple[
        str, ...
    ] = ()  # of a remote generator: fields that its server refuses; `weights` names them
    weights_gib: float = 0.0  # of its weights as published; 0: not said; not identity
    cache_control: bool = False  # of a remote generator: its chats mark what may be cached; not identity
    adopted: Adoption | None = None  # as another, whose identity it has then; None: it has its own

    @property
    def original(self) -> Model:
        """The model whose identity it has: the one that it is adopted as, else itself."""
        return self if self.adopted is None else self.adopted.model

    @property
    def half(self) -> bool:
        """Returns whether its vectors are searched as float16 numbers: it computes in 16 bits, so 32 say no
        more."""
        return self.original.dtype in ("float16", "bfloat16")

    @property
    def absent(self) -> bool:
        """True for a model that is none: a step that asks it is skipped."""
        return self.loader == "none"

    def instructed(self, texts: Sequence[str], role: Role) -> list[str]:
        """The texts with the model's instruction for that role put before them."""
        prefix = self.query_instruction if role == "query" else self.passage_instruction
        return [prefix + text for text in texts]

    def adapter(self, name: str) -> str:
        """The identity of an adapter's weights. Raises KeyError for a name that the model does not have."""
        return dict(self.adapters)[name]

    def adapter_folders(self) -> dict[str, str]:
        """Adapter -> its folder, or what an endpoint calls it."""
        return dict(zip(dict(self.adapters), self.adapter_paths, strict=True))


@dataclass(frozen=True, slots=True)
class Adoption:
    """A model declared the same one as another: what either computed counts as computed by both."""

    model: Model  # the other one
    at: float  # seconds since the epoch
    by: str  # USER@HOST
    checked: str  # what was measured, for people

    def sentence(self, name: str) -> str:
        """Returns what a plan, a report and an explanation say of the model of this name."""
        day = time.strftime("%Y-%m-%d", time.gmtime(self.at))
        return f"model {name} counts as {self.model.name}: adopted {day} by {self.by}, {self.checked}"


Embed: TypeAlias = Callable[[Sequence[str], Role], Awaitable[np.ndarray]]
"""texts, role -> (len(texts), dim) float32, unit rows. No texts: (0, dim)."""

Score: TypeAlias = Callable[[Sequence[tuple[str, str]]], Awaitable[np.ndarray]]
"""(query, passage) pairs -> (len(pairs),) float32, bigger is better. No pairs: (0,)."""

Tokenize: TypeAlias = Callable[[str], Sequence[Span]]
"""text -> character span of each token, in order, special tokens omitted."""


class Kit(Protocol):
    """Everything expensive that a step may use: the only thing that differs between a job's actor, a
    Serve replica and a test. What is handed out may be called any number of times, concurrently."""

    def embedder(self, model: Model) -> Embed: ...
    def reranker(self, model: Model) -> Score: ...
    def generator(self, model: Model) -> Generator: ...
    def tokenizer(self, model: Model) -> Tokenize: ...
    def index(self) -> Index: ...
    def data(self, ref: Reference[T]) -> T: ...


FIELDS = frozenset({"text", "body", "asked_at"})
"""Fields that a question has from the start, and that a prompt may use by name."""

Ask: TypeAlias = Callable[[list[Question]], Awaitable[list[Question]]]
Build: TypeAlias = Callable[[pa.Table], Awaitable[pa.Table]]


@dataclass(frozen=True, slots=True)
class Reach:
    """Most passages of a question's ranking before a step. math.inf: not known."""

    hits: float = 0  # passages
    order: float = 0  # passages of its ranking
    passage_chars: float = 0  # of the longest passage
    passage_sentences: float = math.inf  # of a passage, where that is known


@dataclass(frozen=True, slots=True)
class Bound:
    """The most that a step does with one question. It holds for any text and may be loose."""

    calls: float  # of models and of graphs, distinct requests each once; math.inf: not known
    reach: Reach  # behind the step
    faults: Literal["never", "asking", "any"] = "any"
    """When the step may put a fault on the question, which keeps it from later steps: `asking`: only where
    it makes a call, as a language model that is down at the moment does."""
    from_question: bool = False
    """True: the step makes one call, and that call follows from text, body and time of the question alone, so
    that the plan can look it up in the memo."""
    tokens: float = 0  # of one call of a language model, prompt and reply together
    reply_tokens: float = 0  # of its reply
    prompt_tokens: float = math.inf  # of an ordinary prompt, about; math.inf: not known
    replies: float = math.inf  # calls of a language model among `calls`, where there are tokens; inf: all
    all_tokens: float = math.inf  # of all these calls about one question together; inf: `tokens` each
    dim: int = 0  # of the vector that one call gives; 0: it gives a score or a text
    likely: float | None = None
    """Calls about an ordinary question, where they are far fewer than `calls`; math.inf: not known. None:
    `calls`, for a ranking and passages of ordinary size."""
    shared: float = 0  # calls that are the same for all questions, on top of what is likely


@dataclass(frozen=True, slots=True)
class CorpusBound:
    """The most that a corpus step makes of one row. math.inf: not known."""

    rows: float = 1  # out of one row in
    chars: float = math.inf  # of the longest text, or passage, that it puts out
    calls: float = 0  # of models, for one row in; 0: it asks none
    replies: float = 0  # of these, calls of a language model
    tokens: float = 0  # of one of those, prompt and reply together
    prompt_tokens: float = 0  # of an ordinary prompt, about
    reply_tokens: float = 0  # of its reply


class Step(Protocol):
    """A verb of the question half: a frozen dataclass whose fields are all that decides its output.

    `reads` and `writes` name fields of Question: "text", "body", "citations", "hits", "hits.NAME" (one
    score), "order", "replies.NAME", "answer". They check a recipe before it runs and the poison test holds
    them: a field that a step did not declare is replaced by a bomb, and the step must not notice.

    What a step may say beyond that, and what holds where it says nothing, is in `recipes.step_contract`.
    """

    version: ClassVar[int]  # raised when the code changes what comes out; steps.lock notices a miss

    def reads(self) -> frozenset[str]: ...
    def writes(self) -> frozenset[str]: ...
    def open(self, kit: Kit) -> Ask: ...


class CorpusStep(Protocol):
    """A verb of the corpus half, on columns. `reads` and `writes` are column names.

    The first step gets the columns `source, kind, content` (records.Source). A row that cannot be done leaves
    as one row whose `fault` column (arrow.FAULT) is set and whose other columns are null; faulty rows pass
    through later steps untouched.

    The columns say which table a step fills: who writes `vector`, vectors; who reads or writes `chunk_text`,
    passages; all others, texts. One that fills vectors may read `text`, too: that of the row's source, whole.
    """

    version: ClassVar[int]

    def reads(self) -> frozenset[str]: ...
    def writes(self) -> frozenset[str]: ...
    def open(self, kit: Kit) -> Build: ...


Wrapped = TypeVar("Wrapped", bound=Kit)


class ForwardingKit(Generic[Wrapped]):
    """A kit that forwards every call to another kit; a wrapper overrides only what it changes."""

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
