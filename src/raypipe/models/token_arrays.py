"""Token ids of texts as arrays: one process tokenizes on CPUs, another embeds the arrays on a GPU.

A GPU embeds 2 to 18 million tokens a second, but one core tokenizes half a million. So the thread that feeds
a GPU must not tokenize. Arrays are optional: if a text of a call has no array, the embedding process
tokenizes all texts of the call itself, to the same ids. Tokenizers are imported only to tokenize.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
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
    """Token ids of one text, in place of an Encoding of the library tokenizers."""

    ids: np.ndarray  # (tokens,) int32, with special tokens, cut to the model's max_tokens
    type_ids: int = 0  # the same for every token


def takes_tokens(model: Model) -> bool:
    """Returns whether an embedder accepts token arrays. The transformers and FlagEmbedding embedders do."""
    return not is_path(model.loader) and model.loader not in WEIGHTLESS | REMOTE | folder.SENTENCE_LOADERS


def require_pooled_mark(model: Model, tokenizer: Any) -> None:
    """Makes a tokenizer add the special token whose vector is pooled: before a text (cls) or after it (last).

    transformers 5 reads only tokenizer.json, so `add_eos_token` of tokenizer_config.json is obeyed here.
    Raises ConfError if the token is missing for another reason: the model would pool the text's own first or
    last word, and no vector would show it."""
    if model.pooling not in ("cls", "last"):
        return
    probe, place = tokenizer.encode("a"), 0 if model.pooling == "cls" else -1
    if probe.special_tokens_mask[place]:
        return
    file = Path(model.path) / "tokenizer_config.json"
    config = folder.json_or_empty(file)
    named = config.get("eos_token")
    mark = str(named["content"] if isinstance(named, dict) else named)
    if model.pooling == "last" and config.get("add_eos_token") and mark in tokenizer.get_vocab():
        tokenizer.post_processor = _ending(tokenizer, mark)
        return
    where = "begins" if model.pooling == "cls" else "ends"
    takes = f"pooling {model.pooling} takes the vector of the token that {where} a text"
    found = f"but its tokenizer adds none: found {' '.join(probe.tokens)!r} for 'a'"
    mend = f"or set add_eos_token and eos_token in {file} if it was trained with one"
    raise folder.model_error(model, f"{takes}, {found}. Use the folder that its maker published, {mend}")


def _ending(tokenizer: Any, mark: str) -> Any:
    """Returns a copy of a tokenizer's post-processor that also adds `mark` after each text. It extends the
    existing template, since a second template would treat the output of the first as two texts."""
    tree = json.loads(tokenizer.to_str())
    first = tree["post_processor"]
    steps = first["processors"] if first and first["type"] == "Sequence" else [first] if first else []
    template = next((s for s in steps if s["type"] == "TemplateProcessing"), None)
    if template is None:
        template = {"type": "TemplateProcessing", "special_tokens": {}, "pair": []}
        template["single"] = [{"Sequence": {"id": "A", "type_id": 0}}]
        steps = [*steps, template]
    template["single"].append({"SpecialToken": {"id": mark, "type_id": 0}})
    ids = [tokenizer.token_to_id(mark)]
    template["special_tokens"][mark] = {"id": mark, "ids": ids, "tokens": [mark]}
    tree["post_processor"] = {"type": "Sequence", "processors": steps}
    return type(tokenizer).from_str(json.dumps(tree)).post_processor


class TokenMaker:
    """Tokenizer of a model whose network is not loaded."""

    def __init__(self, model: Model) -> None:
        from tokenizers import Tokenizer
        from transformers import AutoTokenizer

        with folder.opened(model) as path:
            loaded = AutoTokenizer.from_pretrained(path, local_files_only=True)
        require_pooled_mark(model, loaded.backend_tokenizer)
        self._model = model
        self._tokenizer = Tokenizer.from_str(loaded.backend_tokenizer.to_str())
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(model.max_tokens)

    def table(self, texts: Sequence[str], role: Role) -> pa.Table:
        """Makes a row of `SCHEMA` for each distinct text, except texts with token types other than 0."""
        distinct = list(dict.fromkeys(texts))
        found = self._tokenizer.encode_batch_fast(self._model.instructed(distinct, role))
        rows = [(text, e) for text, e in zip(distinct, found, strict=True) if not any(e.type_ids)]
        keys = pa.array([_key(text, role) for text, _ in rows], SCHEMA.field("key").type)
        offsets = np.cumsum([0, *(len(e.ids) for _, e in rows)])
        flat = np.fromiter((i for _, e in rows for i in e.ids), np.int32, int(offsets[-1]))
        ids = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.array(flat))
        return pa.Table.from_arrays([keys, ids], schema=SCHEMA)


def arrays_of(tokens: pa.Table) -> dict[bytes, TokenArray]:
    """Returns the rows of a table of `SCHEMA` by key. The arrays are views of the table."""
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
    """A `LocalKit` whose embedders use token arrays if `tokens` holds one for every text of a call."""

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
    """A kit without networks: its embedders raise `FirstAsked`, with the texts that a step embeds first."""

    def embedder(self, model: Model) -> Embed:
        async def embed(texts: Sequence[str], role: Role) -> np.ndarray:
            raise FirstAsked(model, texts, role)

        return embed
