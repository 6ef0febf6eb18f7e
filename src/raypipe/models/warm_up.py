"""A first call to each model: it is loaded, or its engine started, before a question waits for it."""

from __future__ import annotations

from collections.abc import Iterable

from raypipe.core.errors import Unavailable
from raypipe.core.llm import Message, Sampling
from raypipe.core.protocols import Kit, Model
from raypipe.core.records import Fault


async def compute_once(kit: Kit, model: Model) -> None:
    """One small request to a model that computes. Raises what the model raises, and Unavailable for a reply
    that did not come."""
    if model.kind == "generator":
        [reply] = await kit.generator(model)(((Message("user", "ready"),),), Sampling(max_tokens=1))
        if isinstance(reply, Fault) and reply.transient:
            raise Unavailable(f"{reply.reason}: {reply.detail}")
    else:
        await warm_up(kit, [model])


async def warm_up(kit: Kit, models: Iterable[Model]) -> None:
    """Loads models: returns once each has computed, or its engine can. Raises what loading raises."""
    for model in models:
        if model.kind == "embedder":
            await kit.embedder(model)(["ready"], "query")
        elif model.kind == "reranker":
            await kit.reranker(model)([("ready", "ready")])
        elif model.kind == "generator":
            await kit.generator(model)((), Sampling(max_tokens=1))
        else:
            kit.tokenizer(model)
