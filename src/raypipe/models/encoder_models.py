"""Embedders and rerankers with weights, one class for each library or backend; an object runs on one device.

On several devices FlagEmbedding would start processes that import `__main__` again, which a Ray worker cannot
do; each device gets its own actor instead. Sentence-transformers reads pooling, prompts, length, further
layers and activation from the model's folder. All vectors become unit rows, as the index needs, whatever a
folder configures. A library, which takes seconds to import, is imported only by the class that needs it.

MaxSim is a reranker that needs no training. It matches each query token with its best passage token:

    score(query, passage) = sum over query tokens w(t) * max over passage tokens cos(t, u)  /  sum of w(t)

The token vectors are the last hidden states of a sentence embedder (MiniLM). A score must be a pure function
of its pair, so it cannot use word frequencies of the collection. The weight w(t) comes from the token's rank
in the vocabulary, which the training of a tokenizer orders from frequent to rare.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from tokenizers import Encoding

from raypipe.core.protocols import Model, Role
from raypipe.models import folder
from raypipe.models.device import SharedEncoders
from raypipe.models.encoder import (
    QUERY_SHARE,
    Encoder,
    check,
    check_weights,
    in_rows,
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
        folder.require_dim(model, self._net.get_embedding_dimension())
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


class TransformersEmbedder:
    """Embedder over a network of `models.encoder`."""

    def __init__(self, model: Model, device: str, encoders: SharedEncoders) -> None:
        self._model = model
        self._encoder = Encoder.shared(model, device, encoders)
        self._tokenizer = self._encoder.copy_of_tokenizer()
        self._tokenizer.enable_truncation(model.max_tokens)

    def embed(self, texts: Sequence[str], role: Role) -> np.ndarray:
        blocks = self._encoder.blocks(self._model.instructed(texts, role))
        return pooled_rows(self._encoder, self._model, map(self._tokenizer.encode_batch_fast, blocks))

    def embed_tokens(self, tokens: Sequence[TokenArray]) -> np.ndarray:
        """Embeds tokenized texts as `FlagEmbedder.embed_tokens`."""
        return pooled_rows(self._encoder, self._model, [tokens])


class TransformersReranker:
    """A cross-encoder: the score is the sigmoid of its one logit for (query, passage)."""

    def __init__(self, model: Model, device: str) -> None:
        self._model = model
        self._encoder = Encoder.load(model, device)
        self._single = self._encoder.copy_of_tokenizer()
        self._pair = self._encoder.copy_of_tokenizer()
        self._pair.enable_truncation(model.max_tokens, strategy="only_second")

    def _encode(self, texts: Iterable[str], limit: int) -> dict[str, Encoding]:
        """Tokenizes each distinct text once, without special tokens, cut to `limit` tokens."""
        distinct = list(dict.fromkeys(texts))
        encodings = self._single.encode_batch_fast(distinct, add_special_tokens=False)
        for e in encodings:
            e.truncate(limit)
        return dict(zip(distinct, encodings, strict=True))

    def _logits(self, pairs: Sequence[tuple[str, str]]) -> Iterator[tuple[list[int], torch.Tensor]]:
        """Yields for each batch the positions of its pairs, and their logits (pairs,)."""
        limit = self._model.max_tokens
        queries = self._encode((q for q, _ in pairs), int(limit * QUERY_SHARE))
        passages = self._encode((p for _, p in pairs), limit)
        # An empty passage is encoded as the query without a pair, as FlagReranker does.
        encodings = [
            self._pair.post_process(queries[q], passages[p] if passages[p].ids else None) for q, p in pairs
        ]
        for batch in self._encoder.batches(encodings):
            yield batch.rows, self._encoder.run(batch).logits.view(-1)

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        logits = in_rows(map(self._logits, self._encoder.blocks(pairs)))
        return (1 / (1 + np.exp(-logits.astype(np.float64)))).astype(np.float32)  # (pairs,) float32, 0..1


NO_TOKENS = -1.0
"""Score of a pair with a text without tokens: the minimum of a cosine."""


def piece_weights(vocabulary: Sequence[str]) -> np.ndarray:
    """Computes the weight of each vocabulary piece, log(rank) / log(last rank): (vocabulary,) float32, 0..1.

    By Zipf's law, log(rank) is proportional to log(1 / frequency), which is idf. Special pieces, and pieces
    without a letter or digit, have weight 0. Other single characters have weight .5, since vocabularies list
    them before the words and not by frequency.

    Measured: nDCG@10 of BM25's top 50 on QASPER evidence (43 questions), SciFact (150) and pooled NQ passages
    (664), in this order. BM25 with cosine: .393 .740 .896. BM25 with cosine and 1.5 x MaxSim: .400 .739 .910.
    BM25, cosine and MaxSim weighted by the collection's own idf: .389 .735 .909; with equal weights: .386
    .744 .909. MaxSim alone: .400 .720 .907."""
    words = [i for i, piece in enumerate(vocabulary) if len(piece.strip("▁")) > 1]
    words = [i for i in words if not vocabulary[i].startswith(("[", "<"))]  # special and unused pieces
    weights = np.full(len(vocabulary), 0.5, np.float32)
    weights[words] = np.log1p(np.arange(len(words))) / np.log(max(len(words), 2))
    for i, piece in enumerate(vocabulary):
        if not any(c.isalnum() for c in piece) or piece.startswith(("[", "<")):
            weights[i] = 0
    return weights


_Query: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Token vectors (tokens, hidden) float32, unit rows, and their weights (tokens,), which sum to 1."""


class MaxSim:
    """The MaxSim reranker. A call encodes each distinct query and passage once."""

    def __init__(self, model: Model, device: str, encoders: SharedEncoders) -> None:
        self._encoder = Encoder.shared(model, device, encoders)
        self._tokenizer = self._encoder.copy_of_tokenizer()
        self._tokenizer.enable_truncation(model.max_tokens)
        by_id = sorted(self._tokenizer.get_vocab().items(), key=lambda item: item[1])
        self._weights = torch.from_numpy(piece_weights([piece for piece, _ in by_id])).to(device)

    def _token_vectors(self, encodings: Sequence[Encoding]) -> Iterator[tuple[int, list[int], torch.Tensor]]:
        """Yields for each encoding its position, the places of its plain tokens, and their unit vectors."""
        for rows, hidden, _ in self._encoder.hidden(encodings):
            vectors = torch.nn.functional.normalize(hidden, dim=-1)
            for r, i in enumerate(rows):
                own = [t for t, special in enumerate(encodings[i].special_tokens_mask) if not special]
                yield i, own, vectors[r, own]

    def _queries(self, texts: Sequence[str]) -> dict[str, _Query]:
        encodings, found = self._tokenizer.encode_batch_fast(texts), {}
        for i, own, vectors in self._token_vectors(encodings):
            weights = self._weights[[encodings[i].ids[t] for t in own]]
            if weights.sum() == 0:  # only punctuation: equal weights
                weights = torch.ones_like(weights)
            found[texts[i]] = vectors, weights / weights.sum()
        return found

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        queries = self._queries(list(dict.fromkeys(q for q, _ in pairs)))
        wanted: dict[str, list[int]] = {}  # passage -> its pairs
        for i, (_, passage) in enumerate(pairs):
            wanted.setdefault(passage, []).append(i)
        places = list(wanted.values())
        scores = np.full(len(pairs), NO_TOKENS, np.float32)  # (pairs,) float32, -1..1
        for p, _, own in self._token_vectors(self._tokenizer.encode_batch_fast(list(wanted))):
            asked = [queries[pairs[i][0]] for i in places[p]]
            if len(own) and any(len(tokens) for tokens, _ in asked):
                best = (torch.cat([tokens for tokens, _ in asked]) @ own.T).amax(1)
                parts = best.split([len(tokens) for tokens, _ in asked])
                for i, (_, weights), part in zip(places[p], asked, parts, strict=True):
                    if len(part):
                        scores[i] = float(part @ weights)
        return scores
