"""The loaders `sentence-transformers`, `instructor` and `cross-encoder`: that library's models, one device.

Pooling, prompts, length, further layers and activation are read from the model's folder by the library
itself. It sees a folder of links to the files that may be read, so pickles and remote code cannot be reached.
Its vectors are made unit rows, whatever its folder says: the index holds no others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import CrossEncoder, SentenceTransformer

from raypipe.core.errors import ConfError
from raypipe.core.protocols import Model, Role
from raypipe.models import folder
from raypipe.models.encoder import no_bars, require_one_output, require_room, rows_of, torch_dtype
from raypipe.models.token_arrays import require_pooled_mark


def _arguments(model: Model, device: str) -> dict[str, Any]:
    return {
        "device": device,
        "trust_remote_code": False,
        "local_files_only": True,
        "model_kwargs": {"dtype": torch_dtype(model), "use_safetensors": True},
    }


class SentenceEmbedder:
    """Vectors of a SentenceTransformer. An instruction of the entry takes the place of the model's prompt."""

    def __init__(self, model: Model, device: str) -> None:
        no_bars()
        with folder.opened(model) as path:
            self._net = SentenceTransformer(path, **_arguments(model, device))
        found = self._net.get_embedding_dimension()
        if found != model.dim:
            raise ConfError(
                f"model {model.name!r}: dim is {model.dim} in models.yaml, but its folder gives {found}. "
                f"Correct the entry, or use a folder of that model"
            )
        own = self._net.max_seq_length
        if own == math.inf:  # static vectors: any length, and their tokenizer cuts
            self._net[0].tokenizer.enable_truncation(model.max_tokens)
        else:
            if own is not None:
                require_room(model, own)
            self._net.max_seq_length = model.max_tokens
        if model.loader == "instructor":  # the library does it by the hub's names alone, not for a folder
            self._net.set_pooling_include_prompt(False)
        if (pooled := folder.pooling_of(Path(model.path))) in (["cls"], ["last"]):
            own_mark = replace(model, pooling=pooled[0])
            require_pooled_mark(own_mark, self._net.tokenizer.backend_tokenizer)
        self._model, self._batch = model, rows_of(device)

    def embed(self, texts: Sequence[str], role: Role) -> np.ndarray:
        encode = self._net.encode_query if role == "query" else self._net.encode_document
        prompt = self._model.query_instruction if role == "query" else self._model.passage_instruction
        vectors = encode(
            list(texts),
            prompt=prompt or None,
            batch_size=self._batch,
            show_progress_bar=False,
            convert_to_numpy=True,
        )
        out = np.asarray(vectors, np.float32)  # (texts, dim) float32, unit rows
        out /= np.linalg.norm(out, axis=1, keepdims=True)
        return out


class SentenceReranker:
    """Scores of a CrossEncoder, with the activation that its folder says."""

    def __init__(self, model: Model, device: str) -> None:
        no_bars()
        with folder.opened(model) as path:
            self._net = CrossEncoder(path, max_length=model.max_tokens, **_arguments(model, device))
        require_one_output(model, self._net.num_labels)
        self._batch = rows_of(device)

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        scores = self._net.predict(
            [list(pair) for pair in pairs],
            batch_size=self._batch,
            show_progress_bar=False,
            convert_to_numpy=True,
        )
        return np.asarray(scores, np.float32).reshape(-1)  # (pairs,) float32
