"""The settings of a vLLM engine, and the checks of its model's folders before it starts.

Everything is checked before an engine process exists, so that a mistake fails at once and says what to
do: weights in safetensors alone and whole, no code of the model's own, a chat template, a max_model_len
that fits, adapters of this very model. Knows files; imports no model library.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from raypipe.core.errors import ConfError, ModelMissing
from raypipe.models.adapter_check import RANKS, check_adapter, max_rank
from raypipe.models.folder import ADAPTER, PICKLES, WEIGHTS, matching
from raypipe.models.weight_files import headers, json_object

Device = Literal["cpu", "cuda"]
Dtype = Literal["float32", "bfloat16", "float16"]

INDEX = "model.safetensors.index.json"
TEMPLATE = "chat_template.jinja"
TOKENIZER = ("tokenizer.json", "tokenizer.model")  # either will do


@dataclass(frozen=True, slots=True)
class Adapter:
    name: str  # as recipes call it
    folder: str


@dataclass(frozen=True, slots=True)
class EngineSetup:
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
    weights: str = ""  # identity of the weights, which an adapter may name as its base; "": not known


def check(setup: EngineSetup) -> None:
    """Raises ModelMissing for files that are not here, ConfError for what must not or cannot be started."""
    folder = Path(setup.folder)
    if not folder.is_dir():
        raise ModelMissing(
            f"{folder}: expected a model's folder, found none. Fetch the model, or correct its path"
        )
    config = json_object(folder / "config.json")
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
        check_adapter(adapter.name, Path(adapter.folder), folder, setup.weights)


def rank(setup: EngineSetup) -> int:
    """The smallest `max_lora_rank` of vLLM that fits every adapter's rank."""
    most = max(max_rank(json_object(Path(a.folder) / ADAPTER[0])) for a in setup.adapters)
    return next(rank for rank in RANKS if rank >= most)


def _refuse_code(path: Path) -> None:
    if path.is_file() and (asked := json_object(path).get("auto_map")):
        raise ConfError(
            f"{path}: the model asks for code of its own (auto_map: {asked}), which is never run. Use a "
            f"version of the model whose classes are in transformers and vLLM"
        )


def _check_weights(folder: Path) -> None:
    index = folder / INDEX
    if index.is_file():
        named = set(json_object(index).get("weight_map", {}).values())
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
        headers(shard)  # whole


def _check_template(folder: Path) -> None:
    if (folder / TEMPLATE).is_file():
        return
    path = folder / "tokenizer_config.json"
    if not path.is_file() or not json_object(path).get("chat_template"):
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
