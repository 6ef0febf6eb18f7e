"""Conversion of raypipe's settings to vLLM's arguments, and of vLLM's outputs to replies.

Arguments from users' files are checked against the list in vLLM's source, since an import of vLLM takes ten
seconds and a device. vLLM is imported only by functions that convert. The module starts nothing.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError
from raypipe.core.llm import REPEATED, STEP, Generated, Sampling
from raypipe.core.protocols import Model
from raypipe.core.records import Fault
from raypipe.models import generator_files
from raypipe.models.constraint import longest_reply, structured
from raypipe.models.folder import package_folder
from raypipe.models.hosts import EngineLimits
from raypipe.models.weight_files import GIB

_SOURCE, _CLASS = "engine/arg_utils.py", "EngineArgs"

_OWN = """model dtype quantization max_model_len max_num_seqs tensor_parallel_size gpu_memory_utilization
    kv_cache_memory_bytes enable_lora max_loras max_lora_rank load_format trust_remote_code generation_config
    logprobs_mode structured_outputs_config"""
OWN_ARGUMENTS = frozenset(_OWN.split())
"""Arguments that raypipe sets, from the models and cluster file or for correct and safe replies."""


def require_arguments(given: Mapping[str, Any], where: str) -> None:
    """Raises ConfError for an argument that raypipe sets itself, and for an argument that vLLM does not have.
    If vLLM is not installed, only the first is checked."""
    for name in given:
        if name in OWN_ARGUMENTS:
            raise ConfError(f"{where}: raypipe sets {name}. Use its field in the models or cluster file")
        if (known := _known_arguments()) and name not in known:
            hint = did_you_mean(name, known - OWN_ARGUMENTS)
            raise ConfError(f"{where}: vLLM has no argument {name!r}; {hint}")


@cache
def _known_arguments() -> frozenset[str]:
    """Returns the names of vLLM's arguments; empty if vLLM is not installed, which `load.present` reports."""
    if (top := package_folder("vllm")) is None:
        return frozenset()
    tree = ast.parse((top / _SOURCE).read_text(encoding="utf-8"))
    classes = (x for x in tree.body if isinstance(x, ast.ClassDef) and x.name == _CLASS)
    fields = (x for c in classes for x in c.body if isinstance(x, ast.AnnAssign))
    return frozenset(x.target.id for x in fields if isinstance(x.target, ast.Name))


def arguments(model: Model, limits: EngineLimits) -> dict[str, Any]:
    given: dict[str, Any] = {"gpu_memory_utilization": limits.gpu_memory_utilization}
    if limits.device == "cpu":
        given = {
            "kv_cache_memory_bytes": int(limits.kv_cache_gib * GIB),
            "enforce_eager": True,
            # A prompt prefilled in two steps kills vLLM's CPU worker if its sampling has a seed: the worker
            # rewinds the seed's generator, which CPU generators do not support.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(2048, model.max_model_len),
        }
    if model.tensor_parallel > 1:
        given |= {"tensor_parallel_size": model.tensor_parallel, "distributed_executor_backend": "mp"}
    if model.adapters:
        count = len(model.adapters)
        given |= {"enable_lora": True, "max_loras": count, "max_lora_rank": generator_files.rank(model)}
    # Users' arguments override these two, which affect only speed; none is in `OWN_ARGUMENTS`.
    given |= {"enable_prefix_caching": True, "disable_log_stats": True}
    given |= {**limits.engine, **json.loads(model.engine or "{}")}
    return given | {
        "model": model.path,
        "dtype": model.dtype,  # vLLM's own "auto" computes float32 weights as bfloat16
        "quantization": model.quantization or None,  # None: from the folder's config
        "max_model_len": model.max_model_len,
        "max_num_seqs": limits.max_num_seqs,
        "load_format": "safetensors",  # pickles in the same folder are not opened
        "trust_remote_code": False,
        "generation_config": "vllm",  # the recipe's sampling, not the folder's
        "logprobs_mode": "processed_logprobs",  # after the constraint: only over permitted tokens
        # A single grammar library without fallback: vLLM keeps the first that a request names, and another
        # library interprets the same grammar differently.
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
    }


def sampling_params(sampling: Sampling, kind: str) -> Any:
    """Converts sampling settings to vLLM's. `kind` is FINAL_ONLY, or DELTA for a stream. Raises ConfError for
    a wrong constraint (see `longest_reply`), and vLLM's own errors for settings that vLLM refuses."""
    from vllm import SamplingParams
    from vllm.sampling_params import RepetitionDetectionParams, RequestOutputKind, StructuredOutputsParams

    held = None
    if sampling.constraint is not None:
        longest_reply(sampling.constraint)
        held = StructuredOutputsParams(**structured(sampling.constraint))
    return SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=sampling.seed if sampling.temperature else None,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        stop=list(sampling.stop),
        logprobs=0 if sampling.logprobs else None,  # 0: only of the chosen tokens
        structured_outputs=held,
        repetition_detection=RepetitionDetectionParams(**repetition(sampling)) if sampling.repeats else None,
        output_kind=RequestOutputKind[kind],
    )


def repetition(sampling: Sampling) -> dict[str, int]:
    """Returns vLLM's settings for ending a reply that repeats itself."""
    shortest, longest = REPEATED
    return {"min_pattern_size": shortest, "max_pattern_size": longest, "min_count": sampling.repeats}


def reply(
    output: Any, sampling: Sampling, text: str | None = None, tokens: int | None = None
) -> Generated | Fault:
    """Converts vLLM's last output for a chat to a reply. Returns a fault if the engine failed or the text is
    empty. For a stream, `text` and `tokens` are the whole text and its token count, since the last output has
    only the last piece."""
    last = output.outputs[0]
    text = last.text if text is None else text
    if last.finish_reason not in ("stop", "length", "repetition"):
        detail = f"expected finish stop, length or repetition, found {last.finish_reason}"
        return fault("engine_error", detail, transient=True)
    if not text:
        return fault("empty_reply", "the model ended its reply before any text")
    return Generated(
        text=text,
        finish="stop" if last.finish_reason == "stop" else "length",
        prompt_tokens=len(output.prompt_token_ids),
        cached_tokens=output.num_cached_tokens or 0,
        generated_tokens=len(last.token_ids) if tokens is None else tokens,
        logprob=float(last.cumulative_logprob) if sampling.logprobs else None,
    )


def refused(e: Exception) -> Fault:
    from vllm.exceptions import VLLMClientError

    final = isinstance(e, VLLMClientError | ValueError)
    return fault("refused" if final else "engine_error", f"{type(e).__name__}: {e}", transient=not final)


def fault(reason: str, detail: str, transient: bool = False) -> Fault:
    return Fault(STEP, reason, detail, transient)
