"""The memory that a model needs, read from its files: parameters, and keys and values per token.

Knows safetensors' headers and transformers' config.json. Loads no weights and imports no torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from raypipe.core.errors import ConfError
from raypipe.core.plugins import is_path
from raypipe.core.protocols import Model
from raypipe.models.entry import REMOTE, WEIGHTLESS

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}  # of one number
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The size of one model, once loaded."""

    parameters: int  # numbers in its weight files, adapters' too
    bytes: int  # of them in the dtype that the model computes in; quantised weights: as they are stored
    per_token: int  # bytes of keys and values for one token of context; 0 for embedders and rerankers


def model_size(model: Model) -> ModelSize | None:
    """The size of a model; None if its files are not here, or it has none. Raises ConfError for a folder
    whose files cannot be read."""
    folder = Path(model.path)
    if model.loader in WEIGHTLESS | REMOTE or is_path(model.loader) or model.kind == "tokenizer":
        return None
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        return None
    from safetensors import SafetensorError

    adapters = [Path(p) / "adapter_model.safetensors" for p in model.adapter_paths]
    try:
        parameters = sum(map(_parameters, [*files, *(a for a in adapters if a.is_file())]))
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, SafetensorError) as e:
        raise ConfError(f"model {model.name!r}: {folder} cannot be read: {e}. Fetch the folder again") from e
    stored = sum(f.stat().st_size for f in files)
    size = stored if model.quantization else parameters * BYTES[model.dtype]
    return ModelSize(parameters, size, per_token(config, model.dtype) if model.kind == "generator" else 0)


def _parameters(file: Path) -> int:
    from safetensors import safe_open

    with safe_open(str(file), framework="np") as tensors:
        return sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118


def per_token(config: Mapping[str, int], dtype: str) -> int:
    """Keys and values of one token: two vectors in each layer for each key-value head.

    >>> per_token({"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    ...             "hidden_size": 4096}, "float16")  # Llama 3 8B
    131072
    """
    heads = config["num_attention_heads"]
    kept = config.get("num_key_value_heads") or heads
    width = config.get("head_dim") or config["hidden_size"] // heads
    return 2 * config["num_hidden_layers"] * kept * width * BYTES[dtype]
