"""The backend `flagembedding`: FlagModel, BGEM3FlagModel and FlagReranker, one device each.

Several devices would make the library start processes that import `__main__` again, which a Ray worker cannot
do: it is one actor per device instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from FlagEmbedding import BGEM3FlagModel, FlagModel, FlagReranker

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
    rows_of,
    torch_dtype,
)
from raypipe.models.token_arrays import TokenArray


class FlagEmbedder:
    """Vectors by FlagModel or, for loader bge-m3, the dense ones of BGEM3FlagModel. The heads of BGE-M3 for
    sparse and multi-vector scores are pickles, so they are neither read nor used."""

    def __init__(self, model: Model, device: str, encoders: SharedEncoders) -> None:
        no_bars()
        kind = BGEM3FlagModel if model.loader == "bge-m3" else FlagModel
        with folder.opened(model) as path:
            self._flag = kind(
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
        # A MaxSim of these weights runs the same network. Where it came first, the library's own goes, unless
        # the MaxSim's is one that the library cannot call.
        self._shared = encoders.encoder(
            model, lambda: Encoder(model, owner.model, self._flag.tokenizer, device)
        )
        if not self._shared.packed:
            owner.model = self._shared.net
        self._model = model

    def embed(self, texts: Sequence[str], role: Role) -> np.ndarray:
        whole = self._model.instructed(texts, role)
        vectors = self._flag.encode(whole, max_length=self._model.max_tokens)
        if self._model.loader == "bge-m3":
            vectors = vectors["dense_vecs"]
        out = np.asarray(vectors, np.float32)  # (texts, dim) float32, unit rows
        out /= np.linalg.norm(out, axis=1, keepdims=True)  # half precision leaves 1e-3
        return out

    def embed_tokens(self, tokens: Sequence[TokenArray]) -> np.ndarray:
        """At least one text with its role's instruction, tokenized -> as `embed`."""
        self._shared.net.to(torch_dtype(self._model))  # the library does so at its own first call
        return pooled_rows(self._shared, self._model, [tokens])


class FlagScorer:
    """The sigmoid of FlagReranker's logit over (query, passage)."""

    def __init__(self, model: Model, device: str) -> None:
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
            self._flag.model.float()  # the library keeps the dtype of the file otherwise

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        return np.array(self._flag.compute_score([list(p) for p in pairs]), np.float32)  # (pairs,), 0..1
