"""Headers of safetensors files, and the memory that a model needs for parameters, keys and values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from raypipe.core.errors import ConfError, ModelMissing, unstopped
from raypipe.core.plugins import is_path
from raypipe.core.protocols import Model
from raypipe.models.entry import REMOTE, WEIGHTLESS
from raypipe.models.folder import WEIGHTS, matching


@dataclass(frozen=True, slots=True)
class TensorHeader:
    dtype: str  # in safetensors' names: F32, F16, BF16, U8, ...
    shape: tuple[int, ...]
    start: int  # offset of its first byte in the file
    end: int  # offset after its last byte


def headers(path: Path) -> dict[str, TensorHeader]:
    """Reads the tensor headers of a safetensors file, by name. Raises ModelMissing if the file's size is not
    the one that its headers state, as after an interrupted download."""
    size = path.stat().st_size
    with path.open("rb") as f:
        head = int.from_bytes(f.read(8), "little")
        text = f.read(head) if head < size else b""
    try:
        found = {
            name: TensorHeader(
                str(t["dtype"]), tuple(map(int, t["shape"])), *(8 + head + int(n) for n in t["data_offsets"])
            )
            for name, t in json.loads(text).items()
            if name != "__metadata__"
        }
    except (ValueError, AttributeError, TypeError, KeyError):
        found = {"": TensorHeader("", (), 0, -1)}
    if max((t.end for t in found.values()), default=8 + head) != size:
        raise ModelMissing(
            f"{path}: expected whole safetensors, found {size} bytes that end early. Fetch it again"
        )
    return found


def folder_headers(folder: Path) -> dict[str, TensorHeader]:
    found: dict[str, TensorHeader] = {}
    for shard in matching(folder, (WEIGHTS,)):
        found |= headers(shard)
    return found


BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}  # bytes of one number
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class ModelSize:
    parameters: int  # numbers in the model's weight files, adapters included; 0: the files are missing
    bytes: int  # memory of the parameters in the model's dtype; quantised weights: size of the files
    per_token: int  # bytes of keys and values per token of context; 0: none, or the files are missing


def model_size(model: Model) -> ModelSize | None:
    """Returns a model's size from its files or, if these are missing, from `weights_gib` of its entry.
    Returns None if the entry has no size either, and for remote and fake models, tokenizers and users'
    loaders. Raises ConfError for files that cannot be read."""
    folder = Path(model.path)
    if model.loader in WEIGHTLESS | REMOTE or is_path(model.loader) or model.kind == "tokenizer":
        return None
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        said = model.weights_gib * GIB
        return ModelSize(0, int(said), 0) if said else None
    adapters = [Path(p) / "adapter_model.safetensors" for p in model.adapter_paths]
    try:
        every = [*files, *(a for a in adapters if a.is_file())]
        parameters = sum(math.prod(t.shape) for file in every for t in headers(file).values())
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, ModelMissing) as e:
        why = f"{folder} cannot be read: {unstopped(e)}. Fetch the folder again"
        raise ConfError(f"model {model.name!r}: {why}") from e
    stored = sum(f.stat().st_size for f in files)
    size = stored if model.quantization else parameters * BYTES[model.dtype]
    return ModelSize(parameters, size, per_token(config, model.dtype) if model.kind == "generator" else 0)


def per_token(config: Mapping[str, int], dtype: str) -> int:
    """Returns the bytes of one token's keys and values: two vectors per layer and key-value head.

    >>> per_token({"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    ...             "hidden_size": 4096}, "float16")  # Llama 3 8B
    131072
    """
    heads = config["num_attention_heads"]
    kept = config.get("num_key_value_heads") or heads
    width = config.get("head_dim") or config["hidden_size"] // heads
    return 2 * config["num_hidden_layers"] * kept * width * BYTES[dtype]
