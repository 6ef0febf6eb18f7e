"""The endpoint on Ray Serve: a gateway that runs the recipe, embedders and rerankers beside it.

    gateway ──> embed     texts to vectors
        ├─────> rerank    pairs to scores
        └─────> generate  chats to replies, where the recipe asks a language model: the jobs' engine

Each is a deployment, so that each is scaled alone. The gateway reads the store, splits a request's own pages,
searches and decides; it needs no accelerator. Knows Ray Serve; what is computed is in `online.py`, how it is
asked for over HTTP in `service.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from fastapi import FastAPI
from ray import serve
from ray.serve import Application
from ray.serve.config import HTTPOptions
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig

from raypipe.chat import Chat, Generated, Sampling
from raypipe.kit import LocalKit
from raypipe.kit_serve import ServeKit
from raypipe.online import Online
from raypipe.recipe import Recipe
from raypipe.records import Fault
from raypipe.service import application
from raypipe.step import Model, Role
from raypipe.work import Place

NAME = "raypipe"
GATEWAY_CPUS, MODEL_CPUS = 0.2, 0.4
"""What Ray sets aside per replica unless a Serve config says otherwise: one CPU together, so that the
endpoint starts on any machine. How many threads a model computes with is `Place.threads`."""

ONGOING = 32  # requests in one gateway at once: they wait for models and tables most of their time


class Models:
    """The models of one kind in one process, loaded before the first request."""

    async def __init__(self, place: Place, models: Sequence[Model]) -> None:  # type: ignore[misc]
        # engines None: this replica is the one that holds the engine of a vLLM model.
        self._kit: LocalKit = replace(place, engines=None).kit(None)
        for model in models:
            if model.kind == "embedder":
                await self.embed(model, ["ready"], "query")
            elif model.kind == "reranker":
                await self.score(model, [("ready", "ready")])
            else:
                await self.generate(model, (), Sampling(max_tokens=1), None)

    async def embed(self, model: Model, texts: list[str], role: Role) -> np.ndarray:
        """(texts, dim) float32, unit rows."""
        return await self._kit.embedder(model)(texts, role)

    async def generate(
        self, model: Model, chats: tuple[Chat, ...], sampling: Sampling, adapter: str | None
    ) -> list[Generated | Fault]:
        """Replies in order; without chats, returns once the engine is ready."""
        return await self._kit.generator(model)(chats, sampling, adapter)

    async def score(self, model: Model, pairs: list[tuple[str, str]]) -> np.ndarray:
        """(pairs,) float32, bigger is better."""
        return await self._kit.reranker(model)(pairs)


class Gateway:
    """The HTTP face over one recipe and one store."""

    def __init__(
        self, recipe: Recipe, store: str,
        embed: DeploymentHandle, rerank: DeploymentHandle, generate: DeploymentHandle | None,
    ) -> None:  # fmt: skip
        self._online = Online(
            recipe, ServeKit(embed.embed, rerank.score, generate and generate.generate), store
        )

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve in the replica, once this object is made."""
        return application(self._online.answer, self._online.ready)


def deployed(recipe: Recipe, place: Place, gpus: float, engine_gpus: float = 0) -> Application:
    """The application. `place` says where the store is and what models compute on, `gpus` what each replica
    with embedders or rerankers holds of them, `engine_gpus` one with engines, unless a Serve config says
    otherwise."""

    def models(name: str, kind: str) -> Application:
        chosen = [m for m in recipe.models() if m.kind == kind]
        holds = {"num_cpus": MODEL_CPUS, "num_gpus": engine_gpus if kind == "generator" else gpus}
        return serve.deployment(Models, name=name, ray_actor_options=holds).bind(place, chosen)

    gateway = serve.deployment(
        serve.ingress()(Gateway),
        name="gateway",
        max_ongoing_requests=ONGOING,
        ray_actor_options={"num_cpus": GATEWAY_CPUS},
    )
    asks = any(m.kind == "generator" for m in recipe.models())
    return gateway.bind(
        recipe,
        place.store,
        models("embed", "embedder"),
        models("rerank", "reranker"),
        models("generate", "generator") if asks else None,
    )


def run(app: Application, host: str, port: int) -> None:
    """Starts Serve in the joined Ray and the application on it; returns when its replicas are ready."""
    quiet = LoggingConfig(log_level=logging.WARNING, enable_access_log=False)
    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # of this process
    serve.start(http_options=HTTPOptions(host=host, port=port), logging_config=quiet)
    serve.run(app, name=NAME, route_prefix="/", logging_config=quiet)


def stop() -> None:
    """Ends the application: requests in flight are finished first. Serve ends with the Ray it runs in."""
    serve.delete(NAME)
