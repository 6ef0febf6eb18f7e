"""Texts as arrays of token ids: made by a process with CPUs, embedded by one with a GPU.

A GPU embeds 2 to 18 million tokens a second and one core tokenizes half a million, so the thread that feeds a
GPU must not tokenize. An array is a hint: what has none is tokenized where it is embedded, to the same ids. A
library of tokenizers is imported by the process that makes arrays: a GPU's only reads them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from raypipe.core.plugins import is_path
from raypipe.core.protocols import Embed, ForwardingKit, Model, Role
from raypipe.models import folder
from raypipe.models.entry import REMOTE, WEIGHTLESS

SCHEMA = pa.schema([("key", pa.binary(16)), ("ids", pa.large_list(pa.int32()))])


@dataclass(frozen=True, slots=True)
class TokenArray:
    """One text as an encoder takes it, in the form of an encoding of the tokenizers library."""

    ids: np.ndarray  # (tokens,) int32, with special tokens, cut to the model's max_tokens
    type_ids: int = 0  # of every token


def takes_tokens(model: Model) -> bool:
    """Whether an embedder takes arrays: those of `models.encoder` and `models.flagembedding` do;
    sentence-transformers' classes take texts alone."""
    return not is_path(model.loader) and model.loader not in WEIGHTLESS | REMOTE | folder.SENTENCE_LOADERS


class TokenMaker:
    """A model's tokenizer, without its network."""

    def __init__(self, model: Model) -> None:
        from tokenizers import Tokenizer
        from transformers import AutoTokenizer

        with folder.opened(model) as path:
            loaded = AutoTokenizer.from_pretrained(path, local_files_only=True)
        self._model = model
        self._tokenizer = Tokenizer.from_str(loaded.backend_tokenizer.to_str())
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(model.max_tokens)

    def table(self, texts: Sequence[str], role: Role) -> pa.Table:
        """A row of `SCHEMA` for each distinct text, but for those whose tokens are of several types."""
        distinct = list(dict.fromkeys(texts))
        found = self._tokenizer.encode_batch_fast(self._model.instructed(distinct, role))
        rows = [(text, e) for text, e in zip(distinct, found, strict=True) if not any(e.type_ids)]
        keys = pa.array([_key(text, role) for text, _ in rows], SCHEMA.field("key").type)
        offsets = np.cumsum([0, *(len(e.ids) for _, e in rows)])
        flat = np.fromiter((i for _, e in rows for i in e.ids), np.int32, int(offsets[-1]))
        ids = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.array(flat))
        return pa.Table.from_arrays([keys, ids], schema=SCHEMA)


def arrays_of(tokens: pa.Table) -> dict[bytes, TokenArray]:
    """The rows of a table of `SCHEMA` by their keys; the arrays are views."""
    whole = tokens.combine_chunks()
    if not whole.num_rows:
        return {}
    ids = whole["ids"].chunk(0)
    flat, offsets = ids.values.to_numpy(), ids.offsets.to_numpy()
    keys = enumerate(whole["key"].to_pylist())
    return {key: TokenArray(flat[offsets[i] : offsets[i + 1]]) for i, key in keys}


def _key(text: str, role: Role) -> bytes:
    return hashlib.blake2b(f"{role} {text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


class TokenKit(ForwardingKit[Any]):
    """A `LocalKit` whose embedders take what `tokens` has of the texts they are asked for."""

    def __init__(self, kit: Any) -> None:
        super().__init__(kit)
        self.tokens: Mapping[Model, Mapping[bytes, TokenArray]] = {}

    def embedder(self, model: Model) -> Embed:
        plain: Embed = self._kit.embedder(model)

        async def embed(texts: Sequence[str], role: Role) -> np.ndarray:
            here = self.tokens.get(model, {})
            found = [here.get(_key(text, role)) for text in texts] if here else []
            arrays = [array for array in found if array is not None]
            if texts and len(arrays) == len(texts):
                vectors: np.ndarray = await self._kit.embed_tokens(model, arrays)
                return vectors
            return await plain(texts, role)

        return embed


class FirstAsked(Exception):
    def __init__(self, model: Model, texts: Sequence[str], role: Role) -> None:
        super().__init__(model.name)
        self.model, self.texts, self.role = model, list(texts), role


class FirstAskedKit(ForwardingKit[Any]):
    """A kit whose embedders raise `FirstAsked`: for what a step would ask, without a network."""

    def embedder(self, model: Model) -> Embed:
        async def embed(texts: Sequence[str], role: Role) -> np.ndarray:
            raise FirstAsked(model, texts, role)

        return embed
