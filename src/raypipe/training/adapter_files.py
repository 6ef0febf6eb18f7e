"""An adapter as files: weights, peft's configuration, and the recipe that it was made by.

Equal training gives equal bytes: peft's own writer orders target modules as a set does and names a folder of
one machine. So the configuration is written here, from the same values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from raypipe.core.protocols import Model
from raypipe.models.folder import ADAPTER, identity
from raypipe.training.model import lora_config
from raypipe.training.preset import Preset

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
