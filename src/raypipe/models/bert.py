"""BERT, RoBERTa and XLM-R on a CPU without padding, and the tokenizer of a BERT. Depends on torch.

A batch is one row of the tokens of all its texts. All layers except attention process each token by itself.
Attention is computed for all texts of one length in one call, without a mask. This saves an eighth of the
work for sentences, and a fortieth for passages of 700 characters.

The module reads config.json, safetensors and tokenizer.json itself: the imports of transformers' model
classes take longer than to embed a hundred passages, and the import of its tokenizers takes five seconds.
Transformers uses the vocabulary and a few settings of tokenizer.json, and ignores its other settings. So
`read_word_pieces` accepts a file only if these other settings are those of a standard BERT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

from raypipe.models.folder import OLDER_NAMES, WEIGHTS, json_or_empty, matching

ROWS = 1024  # batch size in tokens for which weights are laid out; other sizes give the same results


class PackedLinear(torch.nn.Module):  # type: ignore[misc]  # torch's types are not read
    """A linear layer, followed by GELU if `gelu`. Its weights must not be moved or changed."""

    def __init__(self, linear: torch.nn.Linear, gelu: bool = False) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
        self.bias = linear.bias
        self._after: tuple[str, list[float], str] = ("gelu", [], "none") if gelu else ("none", [], "")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self.bias, *self._after)
        return found


def usable() -> bool:
    """Returns whether this machine supports packed layers (MKLDNN and AVX)."""
    return torch.backends.mkldnn.is_available() and "AVX" in torch.backends.cpu.get_cpu_capability()


def pack(net: Any) -> None:
    """Packs the float32 linear layers of a transformers network, if this machine supports packed layers."""
    from transformers.activations import GELUActivation  # transformers is imported already: it loaded `net`

    if not usable():
        return
    for module in list(net.modules()):
        act: Any = getattr(module, "intermediate_act_fn", None)  # in BERT-like layers, after `dense`
        gelu = type(act) is GELUActivation and act.act is torch.nn.functional.gelu
        for name, layer in list(module.named_children()):
            if type(layer) is torch.nn.Linear and layer.weight.dtype == torch.float32:
                setattr(module, name, PackedLinear(layer, gelu and name == "dense"))
        if gelu and type(module.dense) is PackedLinear:
            module.intermediate_act_fn = torch.nn.Identity()


Tokens: TypeAlias = list[int] | np.ndarray
Alike: TypeAlias = Sequence[tuple[int, int]]
"""Runs of texts of equal length in one row of tokens: (tokens of a text, number of such texts)."""

KINDS = frozenset({"bert", "roberta", "xlm-roberta"})
CLASSES = ("BertTokenizer", "BertTokenizerFast")
SPECIAL = ("[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]")
MODEL = {
    "type": "WordPiece",
    "unk_token": "[UNK]",
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100,
}


@dataclass(frozen=True, slots=True)
class BertConfig:
    """Fields of a config.json that `Bert` needs."""

    model_type: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    pad_token_id: int
    layer_norm_eps: float

    @property
    def first_place(self) -> int:
        """Position of a text's first token. RoBERTa models count positions from the padding id + 1."""
        return self.pad_token_id + 1 if "roberta" in self.model_type else 0


def read_config(folder: Path) -> BertConfig | None:
    """Reads the config of a network that `Bert` supports; returns None for any other."""
    tree = json_or_empty(folder / "config.json")
    kind = tree.get("model_type")
    plain = tree.get("position_embedding_type", "absolute") == "absolute" and not tree.get("is_decoder")
    if kind not in KINDS or tree.get("hidden_act") != "gelu" or not plain:
        return None
    found: dict[str, Any] = {f.name: tree.get(f.name) for f in fields(BertConfig)}
    return None if None in found.values() else BertConfig(**found)


def read_weights(folder: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Reads the tensors of a folder. Their names become those in `Bert`, without prefixes and old endings."""
    found: dict[str, torch.Tensor] = {}
    for file in matching(folder, (WEIGHTS,)):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  # no mapping: it cannot be iterated
                plain = name.removeprefix("bert.").removeprefix("roberta.")
                for old, new in OLDER_NAMES.items():
                    plain = plain.replace(old, new)
                found[plain] = tensors.get_tensor(name).to(dtype)
    return found


def weight_names(config: BertConfig) -> list[str]:
    """Returns the names of the tensors that a `Bert` of this config needs."""
    pairs = ["embeddings.LayerNorm"]
    for i in range(config.num_hidden_layers):
        of = f"encoder.layer.{i}"
        pairs += [f"{of}.attention.self.{x}" for x in ("query", "key", "value")]
        pairs += [f"{of}.attention.output.dense", f"{of}.attention.output.LayerNorm"]
        pairs += [f"{of}.intermediate.dense", f"{of}.output.dense", f"{of}.output.LayerNorm"]
    tables = [f"embeddings.{x}_embeddings.weight" for x in ("word", "position", "token_type")]
    return tables + [f"{pair}.{x}" for pair in pairs for x in ("weight", "bias")]


class Bert(torch.nn.Module):  # type: ignore[misc]  # torch's types are not read
    """A BERT-like encoder. `weights` must hold all tensors of `weight_names`."""

    def __init__(self, config: BertConfig, weights: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.config = config
        tables = ("word", "position", "token_type")
        self._tables = [weights[f"embeddings.{x}_embeddings.weight"] for x in tables]
        self._norm = _norm(weights, "embeddings.LayerNorm", config.layer_norm_eps)
        layers = range(config.num_hidden_layers)
        self._layers = torch.nn.ModuleList(_Layer(config, weights, f"encoder.layer.{i}") for i in layers)

    def forward(
        self, ids: torch.Tensor, types: torch.Tensor, places: torch.Tensor, alike: Alike
    ) -> torch.Tensor:
        """Computes the hidden states (tokens, hidden) of one row of tokens. `ids`, `types` and `places` are
        (tokens,). `alike` tells which tokens belong to one text."""
        word, place, kind = self._tables
        x = self._norm(word[ids] + kind[types] + place[places])
        for layer in self._layers:
            x = layer(x, alike)
        return x

    def hidden_states(
        self, ids: Sequence[Tokens], types: Sequence[Tokens | int] | None
    ) -> Iterator[torch.Tensor]:
        """Yields the last hidden states of texts that are sorted by length, (texts, tokens, dim) per length.

        `ids` has the token ids of each text. `types` has the token types of each text, or one type for all
        tokens of the text. If `types` is None, every type is 0."""
        lengths = list(map(len, ids))
        alike = [(n, len(list(some))) for n, some in groupby(lengths)]
        first = self.config.first_place
        places = [np.arange(first, first + n) for n in lengths]
        kinds = [np.broadcast_to(t, n) for t, n in zip(types or [0] * len(ids), lengths, strict=True)]
        row = (torch.from_numpy(np.concatenate(x).astype(np.int64)) for x in (ids, kinds, places))
        with torch.inference_mode():
            found = self(*row, alike).float()
        for (n, count), states in zip(alike, found.split([n * count for n, count in alike]), strict=True):
            yield states.unflatten(0, (count, n))


class _Layer(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, config: BertConfig, weights: Mapping[str, torch.Tensor], of: str) -> None:
        super().__init__()
        self._heads = config.num_attention_heads
        self._scale = (config.hidden_size // self._heads) ** -0.5
        asked = ("query", "key", "value")
        self._projections = torch.nn.ModuleList(_linear(weights, f"{of}.attention.self.{x}") for x in asked)
        self._joined = _linear(weights, f"{of}.attention.output.dense")
        self._wide = _linear(weights, f"{of}.intermediate.dense", gelu=True)
        self._narrow = _linear(weights, f"{of}.output.dense")
        eps = config.layer_norm_eps
        self._norms = [_norm(weights, f"{of}.{x}.LayerNorm", eps) for x in ("attention.output", "output")]

    def forward(self, x: torch.Tensor, alike: Alike) -> torch.Tensor:
        x = self._norms[0](self._joined(self._attended(x, alike)) + x)
        return self._norms[1](self._narrow(self._wide(x)) + x)

    def _attended(self, x: torch.Tensor, alike: Alike) -> torch.Tensor:
        """Computes attention of each token over its own text, (tokens, hidden) -> (tokens, hidden)."""
        asked = [of(x).unflatten(1, (self._heads, -1)) for of in self._projections]
        found, at = [], 0
        for n, count in alike:
            end = at + n * count
            each = (a[at:end].unflatten(0, (count, n)).transpose(1, 2) for a in asked)
            own = torch.nn.functional.scaled_dot_product_attention(*each, scale=self._scale)
            found.append(own.transpose(1, 2).flatten(0, 1))
            at = end
        return torch.cat(found).flatten(1)


def _linear(weights: Mapping[str, torch.Tensor], of: str, gelu: bool = False) -> torch.nn.Module:
    weight, bias = weights[f"{of}.weight"], weights[f"{of}.bias"]
    layer = torch.nn.Linear(1, 1)  # torch's `skip_init` would allocate no weights, but imports sympy: .5 s
    layer.weight, layer.bias = (torch.nn.Parameter(w, requires_grad=False) for w in (weight, bias))
    if usable() and weight.dtype == torch.float32:
        return PackedLinear(layer, gelu)
    return torch.nn.Sequential(layer, torch.nn.GELU()) if gelu else layer


def _norm(weights: Mapping[str, torch.Tensor], of: str, eps: float) -> Callable[[torch.Tensor], torch.Tensor]:
    weight, bias = weights[f"{of}.weight"], weights[f"{of}.bias"]
    return lambda x: torch.nn.functional.layer_norm(x, weight.shape, weight, bias, eps)


@dataclass(frozen=True, slots=True)
class WordPieces:
    """A BERT tokenizer with the attributes of a transformers tokenizer that `models.encoder` reads."""

    backend_tokenizer: Tokenizer
    pad_token_id: int
    model_input_names: Sequence[str] = ("input_ids", "token_type_ids", "attention_mask")


def read_word_pieces(folder: Path) -> WordPieces | None:
    """Reads the tokenizer of a folder; returns None if transformers might build a different one from it."""
    tree, said = json_or_empty(folder / "tokenizer.json"), json_or_empty(folder / "tokenizer_config.json")
    named = {**said, **json_or_empty(folder / "special_tokens_map.json")}
    special = {_content(named.get(f"{t[1:-1].lower()}_token", t)) for t in SPECIAL}
    added = {t["content"] for t in tree.get("added_tokens", ())}
    more = {_content(t) for t in said.get("added_tokens_decoder", {}).values()}
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": said.get("tokenize_chinese_chars", True),
        "strip_accents": said.get("strip_accents"),
        "lowercase": said.get("do_lower_case", True),
    }
    alike = (
        said.get("tokenizer_class") in CLASSES
        and {k: v for k, v in tree.get("model", {}).items() if k != "vocab"} == MODEL
        and tree.get("normalizer") == normalizer
        and tree.get("pre_tokenizer") == {"type": "BertPreTokenizer"}
        and special == set(SPECIAL) <= set(tree["model"]["vocab"])
        and more <= added <= special
        and not json_or_empty(folder / "added_tokens.json")
    )
    if not alike:
        return None
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    pair = tokenizer.encode("a", "a")
    if (pair.tokens[::2], pair.type_ids) != (["[CLS]", "[SEP]", "[SEP]"], [0, 0, 0, 1, 1]):
        return None
    pad: int = tree["model"]["vocab"]["[PAD]"]
    return WordPieces(tokenizer, pad)


def _content(token: str | dict[str, Any]) -> str:
    """Returns the text of a token, which a file stores as a string or as an object."""
    return token if isinstance(token, str) else str(token["content"])
