"""The texts of a batch as one row of tokens, one text behind the other: an encoder without padding.

All layers but attention look at one token. Attention keeps to its text here: texts of one length stand side
by side, and one call without a mask takes all of them. Sentences have an eighth less to compute, passages of
700 characters a fortieth. Knows torch and the attention functions of transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

Tokens: TypeAlias = list[int] | np.ndarray
NAME = "raypipe_packed"
KINDS = frozenset({"bert", "roberta", "xlm-roberta"})  # whose places are counted as `hidden_states` does


def pack(net: Any) -> None:
    """Makes a network take rows of several texts, too, where a call names their lengths."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    net.set_attn_implementation(NAME)


def hidden_states(
    net: Any, ids: Sequence[Tokens], types: Sequence[Tokens | int] | None
) -> Iterator[torch.Tensor]:
    """The last hidden states of some texts, ascending by length: for each length (texts, tokens, dim).

    `ids` and `types` of tokens, by text; None: the network knows no types."""
    lengths = list(map(len, ids))
    # RoBERTa and its kin count places from behind the padding id.
    first = net.config.pad_token_id + 1 if "roberta" in net.config.model_type else 0
    alike = [(n, len(list(some))) for n, some in groupby(lengths)]
    inputs: dict[str, list[Any]] = {
        "input_ids": [*ids],
        "position_ids": [np.arange(first, first + n) for n in lengths],
    }
    if types is not None:
        inputs["token_type_ids"] = [np.broadcast_to(t, n) for t, n in zip(types, lengths, strict=True)]
    rows = {name: torch.from_numpy(np.concatenate(x).astype(np.int64))[None] for name, x in inputs.items()}
    with torch.inference_mode():
        found = net(**rows, lengths=alike).last_hidden_state[0].float()
    for (n, count), states in zip(alike, found.split([n * count for n, count in alike]), strict=True):
        yield states.unflatten(0, (count, n))


def attend(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    mask: torch.Tensor | None, lengths: Sequence[tuple[int, int]] = (), **others: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """(rows, heads, tokens, dim) each -> (rows, tokens, heads, dim). `lengths` of one row: (tokens of a text,
    how many such texts stand side by side), in their order; (): each row is one text."""
    if not lengths:
        padded: tuple[torch.Tensor, None] = sdpa_attention_forward(module, query, key, value, mask, **others)
        return padded
    found, at = [], 0
    for n, count in lengths:
        end = at + n * count
        each = (x[0, :, at:end].unflatten(1, (count, n)).transpose(0, 1) for x in (query, key, value))
        own = torch.nn.functional.scaled_dot_product_attention(*each, scale=others["scaling"])
        found.append(own.transpose(1, 2).flatten(0, 1))
        at = end
    return torch.cat(found)[None], None
