"""The base model, loaded for a training, and the files of a trained adapter.

peft writes the base's folder on this machine into an adapter's configuration. This module writes the same
configuration with the base's identity instead. Torch, transformers and peft are imported by the functions
that train: plans run without them.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import yaml

from raypipe.contrib.finetune.preset import Preset
from raypipe.contrib.finetune.training_job import TrainingJob
from raypipe.core.errors import ConfError
from raypipe.core.protocols import Model
from raypipe.models import folder
from raypipe.models.folder import ADAPTER, identity
from raypipe.models.weight_files import folder_headers

Device = Literal["cpu", "cuda"]
BF16_CAPABILITY = 8  # CUDA capability from which a device computes bfloat16 (NVIDIA's Ampere)


@dataclass(frozen=True, slots=True)
class FourBit:
    """Decision on loading the base in four bits."""

    on: bool
    because: str  # reason, in words


def four_bit(asked: str, device: Device) -> FourBit:
    """Decides if the base is loaded in four bits. Raises ConfError for "true" on a machine that cannot."""
    package = importlib.util.find_spec("bitsandbytes") is not None
    if asked == "false":
        return FourBit(False, "the preset says so")
    if device == "cuda" and package:
        return FourBit(True, "a CUDA device and bitsandbytes are here")
    missing = "bitsandbytes is not installed" if not package else "there is no CUDA device"
    if asked == "true":
        raise ConfError(
            f"four_bit: true: {missing}. Install it on machines with a CUDA device (pip install "
            f"'raypipe[qlora]'), or set four_bit=auto, which loads the base as it is elsewhere"
        )
    return FourBit(False, missing)


def open_base(job: TrainingJob) -> tuple[Any, Any]:
    """Loads the base. Returns the model and the torch dtype that it computes in."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model, dtype = job.model, getattr(torch, job.model.dtype)
    compute = dtype
    if dtype is torch.float16 and torch.cuda.get_device_capability()[0] >= BF16_CAPABILITY:
        compute = torch.bfloat16  # needs no loss scaling, unlike float16
    more: dict[str, Any] = {}
    if job.in_four_bits:
        from transformers import BitsAndBytesConfig

        nf4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": compute}
        more = {
            "quantization_config": BitsAndBytesConfig(**nf4),
            "device_map": {"": torch.cuda.current_device()},
        }
    with folder.opened(model) as view:
        base = AutoModelForCausalLM.from_pretrained(
            view, dtype=dtype, local_files_only=True, trust_remote_code=False, use_safetensors=True, **more
        )
    base.name_or_path = model.path  # the view is deleted, and peft reads a configuration from this path
    return base, compute


def require_modules(base: Path, preset: Preset, name: str) -> None:
    """Raises ConfError if the base lacks a target module: peft would train without it, and not warn."""
    linear = {layer for layer, _ in linear_layers(base)}
    if lacking := [t for t in preset.target_modules if t not in linear]:
        raise ConfError(
            f"target_modules: model {name!r} has no {', '.join(lacking)}; its linear layers are "
            f"{', '.join(sorted(linear))}. Name those in the preset, or with --set 'target_modules=[...]'"
        )


def lora_config(preset: Preset) -> Any:
    from peft import LoraConfig

    same = {name: getattr(preset, name) for name in ("r", "lora_alpha", "lora_dropout")}
    modules = list(preset.target_modules)
    return LoraConfig(task_type="CAUSAL_LM", target_modules=modules, bias="none", **same)


def adapter_size(folder: Path, target_modules: tuple[str, ...], r: int) -> tuple[int, int]:
    """Returns the number of an adapter's parameters, and the number of layers that it changes."""
    shapes = [shape for layer, shape in linear_layers(folder) if layer in target_modules]
    return r * sum(map(sum, shapes)), len(shapes)


def linear_layers(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the last part of the name, and the shape, of each weight matrix of a base: `q_proj`, (8, 8).
    Reads only the headers of its files. Omits embeddings and weights that are not two-dimensional."""
    for name, tensor in folder_headers(folder).items():
        if name.endswith(".weight") and len(tensor.shape) == 2 and "embed" not in name:
            yield name.removesuffix(".weight").rpartition(".")[2], tensor.shape


RECIPE = "recipe.yaml"
FORMAT = 1  # version of the format of RECIPE
PACKAGES = ("torch", "transformers", "trl", "peft", "ray")  # versions that may change an adapter's numbers


def write_adapter(
    folder: Path, tensors: Mapping[str, Any], model: Model, preset: Preset, made: Mapping[str, Any]
) -> str:
    """Writes an adapter's files and returns its identity. `made`: further facts for its recipe."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    ordered = {name: tensors[name].contiguous() for name in sorted(tensors)}
    save_file(ordered, folder / ADAPTER[1], metadata={"format": "pt"})
    text = json.dumps(adapter_config(model, preset), indent=2, sort_keys=True)
    (folder / ADAPTER[0]).write_text(text + "\n")
    found = identity(folder, "adapter")
    recipe = {
        "format": FORMAT,
        "adapter": found,
        "base": {"name": model.name, "weights": model.weights, "dtype": model.dtype},
        "preset": {**asdict(preset), "target_modules": list(preset.target_modules)},
        "packages": {name: version(name) for name in ("raypipe", *PACKAGES)},
        **made,
    }
    (folder / RECIPE).write_text(yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, width=100))
    return found


def adapter_config(model: Model, preset: Preset) -> dict[str, Any]:
    """Returns peft's configuration of an adapter: preset values, sorted lists, the identity of the base."""
    plain = lora_config(preset).to_dict()
    return {
        **{k: sorted(v) if isinstance(v, set) else v for k, v in plain.items()},
        "base_model_name_or_path": model.weights.partition("+")[0],  # without the suffix of chat settings
        "inference_mode": True,
    }
