"""The settings of a vLLM engine, and the checks of its model's folders before it starts.

Everything is checked before an engine process exists, so that a mistake fails at once and says what to
do: weights in safetensors alone and whole, no code of the model's own, a chat template, a max_model_len
that fits. Knows files; imports no model library.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from raypipe.core.errors import ConfError, ModelMissing
from raypipe.models.folder import ADAPTER, PICKLES, WEIGHTS, matching

Device = Literal["cpu", "cuda"]
Dtype = Literal["float32", "bfloat16", "float16"]

INDEX = "model.safetensors.index.json"
TEMPLATE = "chat_template.jinja"
TOKENIZER = ("tokenizer.json", "tokenizer.model")  # either will do
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # values of vLLM's max_lora_rank


@dataclass(frozen=True, slots=True)
class Adapter:
    """LoRA weights that ride on a model."""

    name: str  # as recipes call it
    folder: str


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """The settings of one engine: its weights and its limits."""

    folder: str  # of the model
    max_model_len: int  # tokens of prompt and reply together, at most
    dtype: Dtype  # that it computes in; vLLM's own "auto" computes float32 weights as bfloat16
    quantization: str = ""  # "": as the folder's config says
    adapters: tuple[Adapter, ...] = ()
    device: Device = "cpu"
    tensor_parallel: int = 1  # GPUs that share the weights
    kv_cache_gib: float = 1.0  # cpu: memory for keys and values
    gpu_memory_utilization: float = 0.9  # cuda: share of each GPU's memory that the engine takes
    max_num_seqs: int = 128  # replies written at the same time, at most
    template: str = ""  # arguments of the chat template, as JSON; "": none


def check(setup: EngineSetup) -> None:
    """Raises ModelMissing for files that are not here, ConfError for what must not or cannot be started."""
    folder = Path(setup.folder)
    if not folder.is_dir():
        raise ModelMissing(
            f"{folder}: expected a model's folder, found none. Fetch the model, or correct its path"
        )
    config = _tree(folder / "config.json")
    for name in ("config.json", "tokenizer_config.json"):
        _refuse_code(folder / name)
    _check_weights(folder)
    if not any((folder / name).is_file() for name in TOKENIZER):
        raise ModelMissing(f"{folder}: expected tokenizer.json, found none. Fetch the folder again")
    _check_template(folder)
    _check_length(setup, config)
    names = [a.name for a in setup.adapters]
    if len(set(names)) != len(names) or "" in names:
        raise ConfError(f"{folder}: adapters need distinct names, found {names}")
    for adapter in setup.adapters:
        _check_adapter(adapter)


def rank(setup: EngineSetup) -> int:
    """The smallest `max_lora_rank` of vLLM that fits every adapter's rank."""
    most = max(int(_tree(Path(a.folder) / ADAPTER[0])["r"]) for a in setup.adapters)
    return next(rank for rank in RANKS if rank >= most)


def _tree(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ModelMissing(f"{path.parent}: expected {path.name}, found none. Fetch the folder again")
    try:
        tree = json.loads(path.read_bytes())
    except ValueError as e:
        raise ConfError(f"{path}: not valid JSON: {e}. Fetch the folder again") from e
    if not isinstance(tree, dict):
        raise ConfError(
            f"{path}: expected a JSON object, found {type(tree).__name__}. Fetch the folder again"
        )
    return tree


def _refuse_code(path: Path) -> None:
    if path.is_file() and (asked := _tree(path).get("auto_map")):
        raise ConfError(
            f"{path}: the model asks for code of its own (auto_map: {asked}), which is never run. Use a "
            f"version of the model whose classes are in transformers and vLLM"
        )


def _check_weights(folder: Path) -> None:
    index = folder / INDEX
    if index.is_file():
        named = set(_tree(index).get("weight_map", {}).values())
        missing = sorted(name for name in named if not (folder / name).is_file())
        if missing:
            raise ModelMissing(
                f"{folder}: {INDEX} names {', '.join(missing)}, which are not here. Fetch them"
            )
    shards = matching(folder, (WEIGHTS,))
    if not shards:
        pickles = [p.name for p in matching(folder, PICKLES)]
        found = f"pickles ({', '.join(pickles)}), which can run code when opened" if pickles else "none"
        raise ModelMissing(
            f"{folder}: expected weights in {WEIGHTS}, found {found}. Fetch a version in safetensors, or "
            f"convert the folder on a machine that may run it"
        )
    for shard in shards:
        _check_whole(shard)


def _check_whole(path: Path) -> None:
    """A download that broke off leaves a file whose header promises more bytes than there are."""
    size = path.stat().st_size
    with path.open("rb") as f:
        head = int.from_bytes(f.read(8), "little")
        text = f.read(head) if head < size else b""
    try:
        end = max(
            (t["data_offsets"][1] for name, t in json.loads(text).items() if name != "__metadata__"),
            default=0,
        )
    except (ValueError, AttributeError, TypeError, KeyError):
        end = -1
    if end < 0 or 8 + head + end != size:
        raise ModelMissing(
            f"{path}: expected whole safetensors, found {size} bytes that end early. Fetch it again"
        )


def _check_template(folder: Path) -> None:
    if (folder / TEMPLATE).is_file():
        return
    path = folder / "tokenizer_config.json"
    if not path.is_file() or not _tree(path).get("chat_template"):
        raise ConfError(
            f"{folder}: its tokenizer has no chat template, so there is no telling how it wants to be asked. "
            f"Use the model's chat or instruct version, or put the template of its family in {TEMPLATE}"
        )


def _check_length(setup: EngineSetup, config: dict[str, Any]) -> None:
    if setup.max_model_len < 16:
        raise ConfError(
            f"{setup.folder}: max_model_len: expected at least 16 tokens, found {setup.max_model_len}"
        )
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    assert isinstance(text, dict)
    most = text.get("max_position_embeddings")
    stretched = "factor" in (text.get("rope_parameters") or text.get("rope_scaling") or {})
    if isinstance(most, int) and setup.max_model_len > most and not stretched:
        raise ConfError(
            f"{setup.folder}: max_model_len: the model was made for {most} tokens, "
            f"found {setup.max_model_len}. Lower it to {most}, or take a model that holds more"
        )


def _check_adapter(adapter: Adapter) -> None:
    folder = Path(adapter.folder)
    where = f"adapter {adapter.name!r}: {folder}"
    if not folder.is_dir():
        raise ModelMissing(f"{where}: no such folder. Put the adapter there, or correct its path")
    config = _tree(folder / ADAPTER[0])
    weights = folder / ADAPTER[1]
    if not weights.is_file():
        raise ModelMissing(
            f"{where}: expected adapter_model.safetensors, found none (pickles are never opened). Save it "
            f"with safe_serialization=True"
        )
    _check_whole(weights)
    if config.get("peft_type") != "LORA" or not isinstance(config.get("r"), int):
        raise ConfError(f"{where}: expected peft_type LORA with a rank r, found {config.get('peft_type')!r}")
    if not 1 <= config["r"] <= RANKS[-1]:
        raise ConfError(f"{where}: rank {config['r']}: expected 1 to {RANKS[-1]}")
