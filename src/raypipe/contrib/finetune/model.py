"""The base model with a fresh adapter on it, ready to be trained; and a trained adapter as files.

Workers draw equal first factors: the seed is set before peft draws them. Norm layers compute in float32
whatever the base's dtype is; a base of half precision runs under autocast. peft's own writer names a folder
of one machine as the base, so the configuration is written here, from the same values.

Torch, transformers and peft are imported by what trains: plans need none.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import yaml

from raypipe.contrib.finetune.preset import Preset
from raypipe.core.errors import ConfError
from raypipe.core.protocols import Model
from raypipe.models import folder
from raypipe.models.folder import ADAPTER, identity
from raypipe.models.weight_files import folder_headers

Device = Literal["cpu", "cuda"]
BF16_CAPABILITY = 8  # of a CUDA device: from there on it computes bfloat16 (NVIDIA's Ampere)
FP16_SCALE = 1024.0
"""Scale of losses that are computed in float16, so that small gradients do not become 0. Micikevicius et al.
2018, section 3.2, trained with constants from 8 to 32,768."""


@dataclass(frozen=True, slots=True)
class FourBit:
    """Decision on loading the base in four bits."""

    on: bool
    because: str


def four_bit(asked: str, device: Device) -> FourBit:
    """Returns what a preset's `four_bit` means here. Raises ConfError for "true" where it cannot be."""
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


@dataclass(slots=True)
class Trainable:
    net: Any  # of peft
    weights: Mapping[str, Any]  # name in the adapter's file -> parameter, by name
    device: Device
    compute: Any  # torch dtype that the base computes in

    def cast(self) -> AbstractContextManager[Any]:
        """Around every forward pass."""
        import torch

        half = self.compute is not torch.float32
        return torch.autocast(self.device, self.compute) if half else contextlib.nullcontext()

    @property
    def scale(self) -> float:
        """Factor of losses before their gradients; gradients are divided by it."""
        import torch

        return FP16_SCALE if self.compute is torch.float16 else 1.0

    def tensors(self) -> dict[str, Any]:
        """The adapter as it is now, copied to the CPU."""
        return {name: p.detach().to("cpu", copy=True) for name, p in self.weights.items()}

    def put(self, tensors: Mapping[str, Any]) -> None:
        import torch

        with torch.no_grad():
            for name, p in self.weights.items():
                p.copy_(tensors[name])


def open_trainable(model: Model, preset: Preset, device: Device, in_four_bits: bool) -> Trainable:
    """Loads the base and draws a fresh adapter."""
    import torch
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    dtype = getattr(torch, model.dtype)
    compute = _compute(dtype, device)
    more: dict[str, Any] = {}
    if in_four_bits:
        from transformers import BitsAndBytesConfig

        nf4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": compute}
        more = {"quantization_config": BitsAndBytesConfig(**nf4), "device_map": {"": 0}}
    with folder.opened(model) as view:
        base = AutoModelForCausalLM.from_pretrained(
            view, dtype=dtype, local_files_only=True, trust_remote_code=False, use_safetensors=True, **more
        )
    if not in_four_bits:
        base.to(device)
    base.config.use_cache = False
    for module in base.modules():
        if type(module).__name__.endswith("Norm"):
            module.float()
    torch.manual_seed(preset.seed)
    net = get_peft_model(base, lora_config(preset))
    if preset.gradient_checkpointing:
        net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    weights = {_file_name(n): p for n, p in net.named_parameters() if p.requires_grad}
    return Trainable(net, dict(sorted(weights.items())), device, compute)


def _compute(dtype: Any, device: Device) -> Any:
    """bfloat16 in place of float16 where the device has it: it needs no scale of losses."""
    import torch

    if dtype is not torch.float16:
        return dtype
    if device == "cpu":
        raise ConfError("float16 is not trained on a CPU: use an entry of dtype float32 or bfloat16")
    return torch.bfloat16 if torch.cuda.get_device_capability()[0] >= BF16_CAPABILITY else dtype


def require_modules(base: Path, preset: Preset, name: str) -> None:
    """Raises ConfError for a target module that no layer of the base has: peft would train without it."""
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


def _file_name(parameter: str) -> str:
    """The name of a parameter in an adapter's file: without the name that peft gives the adapter.

    >>> _file_name("base_model.model.model.layers.0.mlp.up_proj.lora_A.default.weight")
    'base_model.model.model.layers.0.mlp.up_proj.lora_A.weight'
    """
    return parameter.replace(".lora_A.default.", ".lora_A.").replace(".lora_B.default.", ".lora_B.")


def adapter_size(folder: Path, target_modules: tuple[str, ...], r: int) -> tuple[int, int]:
    """Returns how many numbers an adapter has, and on how many layers it is."""
    shapes = [shape for layer, shape in linear_layers(folder) if layer in target_modules]
    return r * sum(map(sum, shapes)), len(shapes)


def linear_layers(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The last part of the name, and the shape, of each matrix of a base that is no embedding, from the
    headers of its files. Layers in another form than two dimensions are left out."""
    for name, tensor in folder_headers(folder).items():
        if name.endswith(".weight") and len(tensor.shape) == 2 and "embed" not in name:
            yield name.removesuffix(".weight").rpartition(".")[2], tensor.shape


RECIPE = "recipe.yaml"
FORMAT = 1  # of RECIPE
PACKAGES = ("torch", "transformers", "peft", "ray")  # that decide an adapter's numbers, or may


def write_adapter(
    folder: Path, tensors: Mapping[str, Any], model: Model, preset: Preset, made: Mapping[str, Any]
) -> str:
    """Writes an adapter's files and returns its identity. `made`: what else its recipe says."""
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
    """peft's configuration of an adapter: the preset's values, lists in order, the base by its identity."""
    plain = lora_config(preset).to_dict()
    return {
        **{k: sorted(v) if isinstance(v, set) else v for k, v in plain.items()},
        "base_model_name_or_path": model.weights.partition("+")[0],  # how it is asked does not matter
        "inference_mode": True,
    }
