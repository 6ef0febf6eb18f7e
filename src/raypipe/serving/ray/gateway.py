"""The deployment that speaks HTTP: it runs the recipe, and asks the others for what models compute."""

from __future__ import annotations

import logging
import sys

from fastapi import FastAPI
from ray.serve.handle import DeploymentHandle

from raypipe.recipes.deadlines import DegradePolicy
from raypipe.recipes.recipe import Recipe
from raypipe.serving.access import ServerConfig
from raypipe.serving.answerer import Answerer
from raypipe.serving.http import application
from raypipe.serving.http.app import ReleaseRouter
from raypipe.serving.http.middleware import JsonLines, RequestMetrics
from raypipe.serving.ray.calls import RetryingHandle
from raypipe.serving.ray.meters import RayMetrics
from raypipe.serving.ray.traces import Traces, tracer
from raypipe.serving.release_follower import ReleaseFollower
from raypipe.serving.remote_kit import ServeKit


class Gateway:
    """The HTTP face over one recipe and one store."""

    def __init__(
        self, recipe: Recipe | None, store: str, face: ServerConfig, rules: DegradePolicy,
        embed: DeploymentHandle, rerank: DeploymentHandle, generate: DeploymentHandle | None,
    ) -> None:  # fmt: skip
        """`recipe` None: the live release of the store is followed."""
        _log()
        self._face = face
        kit = ServeKit(
            RetryingHandle(embed, "embed", "embed_alone"),
            RetryingHandle(rerank, "score", "score_alone"),
            generate and RetryingHandle(generate, "generate"),
            generate and RetryingHandle(generate, "stream"),
            {
                h.deployment_name: RetryingHandle(h, "ready")
                for h in (embed, rerank, generate)
                if h is not None
            },
        )
        self._answerer: ReleaseRouter = (
            ReleaseFollower(kit, store, rules)
            if recipe is None
            else Answerer(recipe, kit, store, rules=rules)
        )

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve in the replica, once this object is made."""
        meters: RequestMetrics = RayMetrics()
        if self._face.traces is not None:
            meters = Traces(meters, tracer(self._face.traces))
        return application(self._answerer, self._face, meters, named=True)  # by Serve's proxy


def _log() -> None:
    """Lines of JSON on this process's stderr, which Ray keeps. INFO: one for each request."""
    ours = logging.getLogger("raypipe")
    out = logging.StreamHandler(sys.stderr)
    out.setFormatter(JsonLines())
    ours.handlers[:] = [out]
    ours.setLevel(logging.INFO)
    ours.propagate = False
