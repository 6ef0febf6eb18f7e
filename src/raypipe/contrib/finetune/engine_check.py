"""Check that an adapter has an effect in vLLM: an engine answers one training prompt with and without it.

If the names or shapes of an adapter fit no layer, vLLM loads it without a warning and answers as the base.
Equal replies with equal log-probabilities mean an adapter that changes nothing. Ray is imported only when the
check runs.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from raypipe.core.errors import RaypipeError
from raypipe.core.llm import Chat, Generated, Sampling
from raypipe.core.protocols import Model
from raypipe.core.records import Fault
from raypipe.models.engine import Engine
from raypipe.models.folder import identity
from raypipe.models.hosts import EngineLimits

REPLY_TOKENS = 32  # enough for a difference: an adapter changes the first token's log-probability


class NoEffect(RaypipeError):
    """Error: a trained adapter changes nothing. It is not registered."""

    exit_code = 7


@dataclass(frozen=True, slots=True)
class EngineReplies:
    """Replies of an engine to one training prompt."""

    base: str
    adapter: str
    base_logprob: float  # of the base's own reply
    adapter_logprob: float  # of the adapter's own reply


def ask_both(
    model: Model,
    name: str,
    adapter: Mapping[str, bytes],
    chat: Chat,
    room: int,
    limits: EngineLimits,
    needs: Mapping[str, float],
) -> EngineReplies:
    """Generates replies with and without an adapter, in an engine inside a Ray task. Ray must be connected.
    `adapter`: file name -> content. `room`: tokens that the model's context leaves for a reply. `needs`: the
    task's CPUs and GPUs. Raises NoEffect if a reply is a fault, and the engine's own errors."""
    import ray

    task = ray.remote(num_cpus=needs["CPU"], num_gpus=needs.get("GPU", 0.0), max_retries=0)(_ask)
    try:
        replies: EngineReplies = ray.get(task.remote(model, name, adapter, chat, room, limits))
    except ray.exceptions.RayTaskError as e:
        raise e.cause if isinstance(e.cause, RaypipeError) else e from e
    return replies


def _ask(
    model: Model, name: str, adapter: Mapping[str, bytes], chat: Chat, room: int, limits: EngineLimits
) -> EngineReplies:
    async def both(tuned: Model) -> EngineReplies:
        engine = Engine(tuned, limits)
        try:
            await engine.ready()
            sampling = Sampling(max_tokens=min(REPLY_TOKENS, room), logprobs=True)
            base, other = [(await engine.generate([chat], sampling, which))[0] for which in (None, name)]
            (text, p), (other_text, other_p) = _content(base), _content(other)
            return EngineReplies(text, other_text, p, other_p)
        finally:
            engine.close()

    with tempfile.TemporaryDirectory(prefix="raypipe-adapter-") as folder:
        for file, content in adapter.items():
            (Path(folder) / file).write_bytes(content)
        entry = (name, identity(Path(folder), "adapter"))
        return asyncio.run(both(replace(model, adapters=(entry,), adapter_paths=(folder,))))


def _content(reply: Generated | Fault) -> tuple[str, float]:
    """Returns the text, possibly empty, and log-probability of a reply. Raises NoEffect for other faults."""
    if isinstance(reply, Generated):
        return reply.text, reply.logprob or 0.0
    if reply.reason == "empty_reply":
        return "", 0.0
    why = f"{reply.reason}: {reply.detail}"
    raise NoEffect(f"the first training prompt in the engine: {why}. The adapter was not registered")


def require_effect(effect: tuple[float, float], replies: EngineReplies | None) -> None:
    """Raises NoEffect for an adapter that changes nothing. `effect`: log-probabilities of one label by the
    base and with the adapter. `replies`: of the engine check; None: it did not run."""
    if effect[0] == effect[1]:
        raise NoEffect(
            f"the adapter changes nothing: the first label keeps its log-probability {effect[0]:.6g}. The "
            "adapter was not registered. Raise lr or steps"
        )
    r = replies
    if r is not None and (r.base, r.base_logprob) == (r.adapter, r.adapter_logprob):
        raise NoEffect(
            f"the adapter changes nothing in the engine: base and adapter both reply {r.base!r} with "
            f"log-probability {r.base_logprob:.6g}. It was not registered"
        )
