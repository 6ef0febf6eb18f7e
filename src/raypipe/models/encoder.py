"""Networks of the backend `transformers`: texts are sorted by length, and batches are limited in tokens.

Three kinds of network are supported: an encoder whose token vectors are pooled, a decoder whose last token's
vector is used, and an encoder with one logit per pair. Results equal FlagEmbedding's within 1e-5 in float32.
This code pads less than FlagEmbedding and tokenizes a pair once. (FlagEmbedding tokenizes a pair, decodes it
and tokenizes it again.) On a CPU `models.bert` runs the first kind, if it supports the model. Then
transformers' model classes are not imported, which saves 4 seconds.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from tokenizers import Encoding, Tokenizer

from raypipe.core.protocols import Model
from raypipe.models import bert, folder
from raypipe.models.bert import KINDS, Bert, read_config, read_weights, read_word_pieces, weight_names
from raypipe.models.device import SharedEncoders
from raypipe.models.token_arrays import TokenArray, require_pooled_mark
from raypipe.models.weight_files import folder_headers

# Padded tokens in one batch. CPU: 8,192 were slower than 1,024 to 2,048, which fit the cache. Over 3,400
# texts 1,024 are as fast as 2,048, and the process is 0.1 GB smaller, since libc keeps memory of batches of
# many shapes. GPU: on an H100, bge-reranker-v2-m3 in float16 took .90 s for 4,096 pairs with 8,192 to 32,768,
# .86 s with 65,536 and .84 s with 131,072, whose activations are too large for a small GPU.
CPU_TOKENS, GPU_TOKENS = 1024, 32_768

# A batch of more than BUSY_TOKENS is closed early if another text would raise its padding above PADDING. For
# 500 rerank pairs of real chunks the token budget by itself pads 12.5 %, with this rule 3.6 %. On an H100,
# 4,096 pairs of similar length took as long with 16,384 tokens or 10 % of padding (.90 to .91 s).
BUSY_TOKENS, PADDING = 4096, 0.03

# Texts in one padded batch of a library that sorts by length itself. FlagEmbedding's default of 256 texts of
# 512 tokens suits a GPU; on a CPU it exceeds the cache and takes gigabytes.
CPU_ROWS, GPU_ROWS = 32, 256

# Texts or pairs tokenized together for a GPU, while it computes the previous block. Smaller blocks would pad
# more, since texts are sorted by length only within a block.
GPU_BLOCK = 1024

QUERY_SHARE = 0.75
"""Share of max_tokens that the query of a pair may take: FlagReranker's own default."""


T = TypeVar("T")


def rows_of(device: str) -> int:
    return CPU_ROWS if device == "cpu" else GPU_ROWS


def torch_dtype(model: Model) -> torch.dtype:
    return {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}[model.dtype]


def by_length(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Groups the indices of texts of similar length. A group has at most `budget` tokens with its padding, or
    is one longer text. If it has more than `BUSY_TOKENS`, at most the share `PADDING` of them is padding.

    >>> by_length([5, 1, 4, 1], budget=8)
    [[1, 3], [2], [0]]
    """
    groups: list[list[int]] = []
    tokens = 0  # of the last group, without padding
    for i in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        padded = lengths[i] * (len(groups[-1]) + 1) if groups else budget + 1
        like = padded <= BUSY_TOKENS or tokens + lengths[i] >= (1 - PADDING) * padded
        if padded <= budget and like:
            groups[-1].append(i)
        else:
            groups.append([i])
            tokens = 0
        tokens += lengths[i]
    return groups


def require_weights(model: Model, wanted: Sequence[str], held: Container[str]) -> None:
    """Raises ConfError for missing weights, which a library would fill with random numbers."""
    if missing := [name for name in wanted if name not in held]:
        lacks = f"its folder has no weights for {missing[0]} and {len(missing) - 1} more"
        fits = f"Does the folder fit loader {model.loader!r}?"
        raise folder.model_error(model, f"{lacks}, which would stay random. {fits}")


def check_weights(model: Model, net: Any) -> None:
    """Raises ConfError if a library's network has weights that its folder lacks."""
    # A file may name weights with or without the encoder's prefix, and norms by their older names.
    prefix = f"{net.base_model_prefix}."
    held = {name.removeprefix(prefix) for name in folder_headers(Path(model.path))}
    held |= {name.replace(old, new) for old, new in folder.OLDER_NAMES.items() for name in held}
    wanted = [name.removeprefix(prefix) for name, _ in net.named_parameters()]
    pooler_is_used = model.loader == "flagembedding-reranker"
    require_weights(model, [n for n in wanted if pooler_is_used or not n.startswith("pooler.")], held)


def check(model: Model, net: Any, tokenizer: Any) -> None:
    """Checks a loaded model against its entry, except dim, which `folder.require` checks. Raises ConfError if
    the network does not state its number of positions, or has fewer than max_tokens. Raises as
    `require_one_output` for a reranker, and as `require_pooled_mark`, which may extend the tokenizer."""
    require_pooled_mark(model, tokenizer.backend_tokenizer)
    places = getattr(net.config, "max_position_embeddings", None)
    if places is None:
        lacks = (
            f"a {net.config.model_type} states no number of positions, which loader {model.loader!r} needs"
        )
        raise folder.model_error(model, f"{lacks}. Use loader sentence-transformers, or instructor")
    # XLM-R and related models count positions from the padding id on, so the first ones are never used.
    first = tokenizer.pad_token_id + 1 if "roberta" in net.config.model_type else 0
    require_room(model, places - first)
    if model.loader == "flagembedding-reranker":
        require_one_output(model, net.config.num_labels)


def require_room(model: Model, tokens: int) -> None:
    """Raises ConfError if the entry's max_tokens exceeds `tokens`, the most that the model takes."""
    if model.max_tokens > tokens:
        found = f"max_tokens is {model.max_tokens}, but the model has room for {tokens}"
        raise folder.model_error(model, found)


def require_one_output(model: Model, outputs: int) -> None:
    """Raises ConfError if a reranker has not exactly one output."""
    if outputs != 1:
        raise folder.model_error(model, f"a reranker has one output, this one has {outputs}")


@dataclass(frozen=True, slots=True)
class EncoderBatch:
    """Padded tensors of some encodings of similar length."""

    rows: list[int]  # positions among the encodings
    ids: torch.Tensor  # (rows, tokens) int64, padded on one side
    types: torch.Tensor  # (rows, tokens) int64
    mask: torch.Tensor  # (rows, tokens) int64, 0 where padded


class Encoder:
    """A network with its tokenizer, on one device."""

    def __init__(self, model: Model, net: Any, tokenizer: Any, device: str) -> None:
        self.net, self.tokenizer, self.device = net.to(device).eval(), tokenizer, device
        self.budget = CPU_TOKENS if device == "cpu" else GPU_TOKENS
        self.placed = model.pooling == "last"  # a decoder counts positions from a text's first token
        self.typed = not self.placed and "token_type_ids" in tokenizer.model_input_names
        self.pad = tokenizer.pad_token_id or 0  # Mistral has none; padding is masked
        self.packed = hasattr(net, "hidden_states")  # True: a `Bert`, which takes rows without padding

    @classmethod
    def load(cls, model: Model, device: str) -> Encoder:
        net: Any = None
        reranks = model.loader == "flagembedding-reranker"
        with folder.opened(model) as path:
            # A `Bert` makes many small attention calls, for which a GPU would wait.
            packed = device == "cpu" and not reranks and model.pooling != "last"
            if (config := read_config(Path(path)) if packed else None) is not None:
                weights = read_weights(Path(path), torch_dtype(model))
                require_weights(model, weight_names(config), weights)
                net = Bert(config, weights)
            else:
                from transformers import AutoModel, AutoModelForSequenceClassification

                no_bars()
                net = (AutoModelForSequenceClassification if reranks else AutoModel).from_pretrained(
                    path, dtype=torch_dtype(model), use_safetensors=True, local_files_only=True
                )
            tokenizer: Any = read_word_pieces(Path(path))
            if tokenizer is None:
                from transformers import AutoTokenizer  # the import takes five seconds

                tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        check(model, net, tokenizer)
        if config is None:
            check_weights(model, net)
            if device == "cpu" and net.config.model_type in KINDS:
                bert.pack(net)
        return cls(model, net, tokenizer, device)

    @classmethod
    def shared(cls, model: Model, device: str, encoders: SharedEncoders) -> Encoder:
        encoder = encoders.encoder(model, lambda: cls.load(model, device))
        check(model, encoder.net, encoder.tokenizer)
        return encoder

    def copy_of_tokenizer(self) -> Tokenizer:
        """Returns a private copy of the tokenizer, which neither cuts nor pads."""
        tokenizer = Tokenizer.from_str(self.tokenizer.backend_tokenizer.to_str())
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def batches(self, encodings: Sequence[Encoding | TokenArray]) -> Iterator[EncoderBatch]:
        lengths = [len(e.ids) for e in encodings]
        for rows in by_length(lengths, self.budget):
            shape = (len(rows), max(lengths[i] for i in rows))
            ids = np.full(shape, self.pad, np.int64)
            types, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
            for r, i in enumerate(rows):
                n = lengths[i]
                ids[r, :n], types[r, :n], mask[r, :n] = encodings[i].ids, encodings[i].type_ids, 1
            tensors: Iterable[torch.Tensor] = map(torch.from_numpy, (ids, types, mask))
            if self.device != "cpu":
                # Copies from pinned memory do not block; a copy of pageable memory would wait for the GPU.
                tensors = (t.pin_memory().to(self.device, non_blocking=True) for t in tensors)
            yield EncoderBatch(rows, *tensors)

    def blocks(self, given: Sequence[T]) -> Iterator[Sequence[T]]:
        """Cuts texts or pairs into blocks that are tokenized together; on a CPU all are one block."""
        step = max(1, len(given)) if self.device == "cpu" else GPU_BLOCK
        return (given[i : i + step] for i in range(0, len(given), step))

    def run(self, batch: EncoderBatch) -> Any:
        inputs = {"input_ids": batch.ids, "attention_mask": batch.mask}
        if self.typed:
            inputs["token_type_ids"] = batch.types
        if self.placed:
            inputs["position_ids"] = (batch.mask.cumsum(1) - 1).clamp(min=0)
        with torch.inference_mode():
            return self.net(**inputs)

    def hidden(
        self, encodings: Sequence[Encoding | TokenArray]
    ) -> Iterator[tuple[list[int], torch.Tensor, torch.Tensor]]:
        """Yields for each batch the positions of its encodings, the hidden states (rows, tokens, dim)
        float32, and a mask (rows, tokens) int64, 0 for padding. A `Bert` pads nothing."""
        for batch in () if self.packed else self.batches(encodings):
            yield batch.rows, self.run(batch).last_hidden_state.float(), batch.mask
        for rows in by_length([len(e.ids) for e in encodings], self.budget) if self.packed else ():
            types = [encodings[i].type_ids for i in rows] if self.typed else None
            remaining = iter(rows)
            for hidden in self.net.hidden_states([encodings[i].ids for i in rows], types):
                mask = torch.ones(hidden.shape[:2], dtype=torch.int64)
                yield list(islice(remaining, len(hidden))), hidden, mask


def no_bars() -> None:
    """Turns off progress bars of loading weights, which would fill the log of a pool of actors."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def pool(hidden: torch.Tensor, mask: torch.Tensor, pooling: str) -> torch.Tensor:
    """Pools token vectors, (rows, tokens, dim) -> (rows, dim). The mask is 0 for padding, left or right.

    With `pooling` cls the result is the first token's vector, for rows padded on the right; with last, the
    last token's vector; otherwise, the mean of the token vectors."""
    if pooling == "cls":
        return hidden[:, 0]
    if pooling == "last":
        last = mask.shape[1] - 1 - mask.flip(1).argmax(1)  # (rows,)
        return hidden[torch.arange(len(hidden), device=hidden.device), last]
    weights = mask.unsqueeze(-1).float()
    return (hidden * weights).sum(1) / weights.sum(1)


def in_rows(blocks: Iterable[Iterable[tuple[Sequence[int], torch.Tensor]]], *width: int) -> np.ndarray:
    """Collects the results of blocks in the order of the input: (rows, *width) float32. Each block yields
    parts. A part has positions in the block, and a result for each position.

    Results remain on a GPU until the last batch was sent. So the GPU computes while the next block is
    tokenized and the next batch is filled."""
    rows, parts = list[int](), list[torch.Tensor]()
    for block in blocks:
        first = len(rows)
        for of, part in block:
            rows += [first + i for i in of]
            parts.append(part)
    out = np.empty((len(rows), *width), np.float32)
    if parts:
        out[rows] = torch.cat(parts).float().cpu().numpy()
    return out


def pooled_rows(
    encoder: Encoder, model: Model, blocks: Iterable[Sequence[Encoding | TokenArray]]
) -> np.ndarray:
    """Computes the pooled vectors of the encodings of all blocks: (encodings, dim) float32, unit rows."""

    def pooled(block: Sequence[Encoding | TokenArray]) -> Iterator[tuple[list[int], torch.Tensor]]:
        for rows, hidden, mask in encoder.hidden(block):
            yield rows, torch.nn.functional.normalize(pool(hidden, mask, model.pooling), dim=-1)

    return in_rows(map(pooled, blocks), model.dim)
