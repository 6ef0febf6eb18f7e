"""The arguments of a vLLM engine that a models or cluster file may give, checked against vLLM's own list.

The list is read from vLLM's source, since its import takes ten seconds and a device. Starts nothing.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError

SOURCE, CLASS = "engine/arg_utils.py", "EngineArgs"

OWN = frozenset({
    "model", "dtype", "quantization", "max_model_len", "max_num_seqs", "tensor_parallel_size",
    "gpu_memory_utilization", "kv_cache_memory_bytes", "enable_lora", "max_loras", "max_lora_rank",
    "load_format", "trust_remote_code", "generation_config", "logprobs_mode", "structured_outputs_config",
})  # fmt: skip
"""Arguments that follow from fields of the models and cluster file, or that replies and safety rest on."""


def require(given: Mapping[str, Any], where: str) -> None:
    """Raises ConfError for an argument that vLLM does not know, or that raypipe sets itself."""
    if not given:
        return
    for name in given:
        if name in OWN:
            raise ConfError(
                f"{where}: {name} is set by raypipe. Say it by the field of the models or cluster file"
            )
        if (known := _known()) and name not in known:
            raise ConfError(f"{where}: vLLM has no argument {name!r}; {did_you_mean(name, known - OWN)}")


@cache
def _known() -> frozenset[str]:
    """The names of vLLM's arguments; none where it is not installed, which is said elsewhere."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return frozenset()
    file = Path(next(iter(spec.submodule_search_locations))) / SOURCE
    tree = ast.parse(file.read_text(encoding="utf-8"))
    classes = (x for x in tree.body if isinstance(x, ast.ClassDef) and x.name == CLASS)
    fields = (x for c in classes for x in c.body if isinstance(x, ast.AnnAssign))
    return frozenset(x.target.id for x in fields if isinstance(x.target, ast.Name))
