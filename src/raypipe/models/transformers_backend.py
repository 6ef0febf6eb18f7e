"""The backend `transformers`: an embedder and a reranker over `models.encoder`, one device each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from tokenizers import Encoding

from raypipe.core.protocols import Model, Role
from raypipe.models.encoder import QUERY_SHARE, Encoder, in_rows, pooled_rows
from raypipe.models.shared_encoders import SharedEncoders
from raypipe.models.token_arrays import TokenArray


class TransformersEmbedder:
    def __init__(self, model: Model, device: str, encoders: SharedEncoders) -> None:
        self._model = model
        self._encoder = Encoder.shared(model, device, encoders)
        self._tokenizer = self._encoder.copy_of_tokenizer()
        self._tokenizer.enable_truncation(model.max_tokens)

    def embed(self, texts: Sequence[str], role: Role) -> np.ndarray:
        blocks = self._encoder.blocks(self._model.instructed(texts, role))
        return pooled_rows(self._encoder, self._model, map(self._tokenizer.encode_batch_fast, blocks))

    def embed_tokens(self, encodings: Sequence[Encoding | TokenArray]) -> np.ndarray:
        """At least one text with its role's instruction, tokenized -> as `embed`."""
        return pooled_rows(self._encoder, self._model, [encodings])


class TransformersReranker:
    """The sigmoid of one logit over (query, passage)."""

    def __init__(self, model: Model, device: str) -> None:
        self._model = model
        self._encoder = Encoder.load(model, device)
        self._single = self._encoder.copy_of_tokenizer()
        self._pair = self._encoder.copy_of_tokenizer()
        self._pair.enable_truncation(model.max_tokens, strategy="only_second")

    def _encode(self, texts: Iterable[str], limit: int) -> dict[str, Encoding]:
        """The encodings of the distinct texts without special tokens."""
        distinct = list(dict.fromkeys(texts))
        encodings = self._single.encode_batch_fast(distinct, add_special_tokens=False)
        for e in encodings:
            e.truncate(limit)
        return dict(zip(distinct, encodings, strict=True))

    def _logits(self, pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[list[int], torch.Tensor]]:
        """Of each batch: its pairs, and their logits (pairs,)."""
        limit = self._model.max_tokens
        queries = self._encode((q for q, _ in pairs), int(limit * QUERY_SHARE))
        passages = self._encode((p for _, p in pairs), limit)
        # An empty passage leaves the query alone in the model's frame, as it does in FlagReranker.
        encodings = [
            self._pair.post_process(queries[q], passages[p] if passages[p].ids else None) for q, p in pairs
        ]
        for batch in self._encoder.batches(encodings):
            yield batch.rows, self._encoder.run(batch).logits.view(-1)

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        logits = in_rows(map(self._logits, self._encoder.blocks(pairs)))
        return (1 / (1 + np.exp(-logits.astype(np.float64)))).astype(np.float32)  # (pairs,) float32, 0..1
