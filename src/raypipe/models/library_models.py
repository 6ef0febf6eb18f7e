"""Embedders and rerankers of FlagEmbedding and of sentence-transformers, on one device each.

On several devices FlagEmbedding would start processes that import `__main__` again, which a Ray worker cannot
do; each device gets its own actor instead. Sentence-transformers reads pooling, prompts, length, further
layers and activation from the model's folder. All vectors become unit rows, as the index needs, whatever a
folder configures. A library, which takes seconds to import, is imported only by the class that needs it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from raypipe.core.errors import ConfError
from raypipe.core.protocols import Model, Role
from raypipe.models import folder
from raypipe.models.device import SharedEncoders
from raypipe.models.encoder import (
    QUERY_SHARE,
    Encoder,
    check,
    check_weights,
    no_bars,
    pooled_rows,
    require_one_output,
    require_room,
    rows_of,
    torch_dtype,
)
from raypipe.models.token_arrays import TokenArray, require_pooled_mark


class FlagEmbedder:
    """Embedder over FlagModel or, for loader bge-m3, over the dense vectors of BGEM3FlagModel. The layers of
    BGE-M3 for sparse and multi-vector scores are not read, because they are pickles."""

    def __init__(self, model: Model, device: str, encoders: SharedEncoders) -> None:
        from FlagEmbedding import BGEM3FlagModel, FlagModel

        no_bars()
        with folder.opened(model) as path:
            self._flag = (BGEM3FlagModel if model.loader == "bge-m3" else FlagModel)(
                path,
                use_fp16=model.dtype == "float16",
                use_bf16=model.dtype == "bfloat16",
                pooling_method=model.pooling,
                devices=device,
                batch_size=rows_of(device),
                query_max_length=model.max_tokens,
                passage_max_length=model.max_tokens,
            )
        owner = self._flag.model if model.loader == "bge-m3" else self._flag
        check(model, owner.model, self._flag.tokenizer)
        check_weights(model, owner.model)
        # A MaxSim of the same weights shares this network. If the MaxSim was loaded first, its network
        # replaces the library's, except a `Bert`, which the library cannot call.
        make = partial(Encoder, model, owner.model, self._flag.tokenizer, device)
        self._shared = encoders.encoder(model, make)
        if not self._shared.packed:
            owner.model = self._shared.net
        self._model = model

    def embed(self, texts: Sequence[str], role: Role) -> np.ndarray:
        whole = self._model.instructed(texts, role)
        vectors = self._flag.encode(whole, max_length=self._model.max_tokens)
        # In half precision the lengths are off by 1e-3.
        return _unit_rows(vectors["dense_vecs"] if self._model.loader == "bge-m3" else vectors)

    def embed_tokens(self, tokens: Sequence[TokenArray]) -> np.ndarray:
        """Embeds tokenized texts, at least one. Their tokens include the instruction of the role."""
        self._shared.net.to(torch_dtype(self._model))  # the library does so at its own first call
        return pooled_rows(self._shared, self._model, [tokens])


def _unit_rows(vectors: Any) -> np.ndarray:
    out = np.asarray(vectors, np.float32)  # (texts, dim) float32, unit rows
    out /= np.linalg.norm(out, axis=1, keepdims=True)
    return out


class FlagScorer:
    """Reranker over FlagReranker: the score is the sigmoid of its logit for (query, passage)."""

    def __init__(self, model: Model, device: str) -> None:
        from FlagEmbedding import FlagReranker

        no_bars()
        with folder.opened(model) as path:
            self._flag = FlagReranker(
                path,
                use_fp16=model.dtype == "float16",
                devices=device,
                batch_size=rows_of(device),
                query_max_length=int(model.max_tokens * QUERY_SHARE),
                max_length=model.max_tokens,
                normalize=True,
            )
        check(model, self._flag.model, self._flag.tokenizer)
        check_weights(model, self._flag.model)
        if model.dtype == "float32":
            self._flag.model.float()  # else the library keeps the file's dtype

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        return np.array(self._flag.compute_score([list(p) for p in pairs]), np.float32)  # (pairs,), 0..1


def _arguments(model: Model, device: str) -> dict[str, Any]:
    return {
        "device": device,
        "trust_remote_code": False,
        "local_files_only": True,
        "model_kwargs": {"dtype": torch_dtype(model), "use_safetensors": True},
    }


_QUIET = {"show_progress_bar": False, "convert_to_numpy": True}


class SentenceEmbedder:
    """Embedder over SentenceTransformer. If `query_instruction` or `passage_instruction` of models.yaml is
    not empty, it replaces the prompt of the model's folder for this role."""

    def __init__(self, model: Model, device: str) -> None:
        from sentence_transformers import SentenceTransformer

        no_bars()
        with folder.opened(model) as path:
            self._net = SentenceTransformer(path, **_arguments(model, device))
        found = self._net.get_embedding_dimension()
        if found != model.dim:
            raise ConfError(
                f"model {model.name!r}: dim is {model.dim} in models.yaml, but its folder gives {found}. "
                "Correct the entry, or use a folder of that model"
            )
        own = self._net.max_seq_length
        if own == math.inf:  # static vectors have no length limit, so their tokenizer cuts
            self._net[0].tokenizer.enable_truncation(model.max_tokens)
        else:
            if own is not None:
                require_room(model, own)
            self._net.max_seq_length = model.max_tokens
        if model.loader == "instructor":  # the library sets it only for the hub's names, not for a folder
            self._net.set_pooling_include_prompt(False)
        if (pooled := folder.pooling_of(Path(model.path))) in (["cls"], ["last"]):
            require_pooled_mark(replace(model, pooling=pooled[0]), self._net.tokenizer.backend_tokenizer)
        self._model, self._batch = model, rows_of(device)

    def embed(self, texts: Sequence[str], role: Role) -> np.ndarray:
        encode = self._net.encode_query if role == "query" else self._net.encode_document
        prompt = self._model.query_instruction if role == "query" else self._model.passage_instruction
        return _unit_rows(encode(list(texts), prompt=prompt or None, batch_size=self._batch, **_QUIET))


class SentenceReranker:
    """Reranker over CrossEncoder, with the activation that its folder configures."""

    def __init__(self, model: Model, device: str) -> None:
        from sentence_transformers import CrossEncoder

        no_bars()
        with folder.opened(model) as path:
            self._net = CrossEncoder(path, max_length=model.max_tokens, **_arguments(model, device))
        require_one_output(model, self._net.num_labels)
        self._batch = rows_of(device)

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        scores = self._net.predict([list(pair) for pair in pairs], batch_size=self._batch, **_QUIET)
        return np.asarray(scores, np.float32).reshape(-1)  # (pairs,) float32
