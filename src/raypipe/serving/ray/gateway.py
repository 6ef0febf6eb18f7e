"""The deployment that speaks HTTP: it runs the recipe, and asks the others for what models compute."""

from __future__ import annotations

import logging
import sys

from fastapi import FastAPI
from ray.serve.handle import DeploymentHandle

from raypipe.recipes.deadlines import Rules
from raypipe.recipes.recipe import Recipe
from raypipe.serving.access import Face
from raypipe.serving.answerer import Online
from raypipe.serving.http import application
from raypipe.serving.http.app import Answerer
from raypipe.serving.http.middleware import JsonLines, Meters
from raypipe.serving.ray.calls import Calls
from raypipe.serving.ray.meters import RayMeters
from raypipe.serving.ray.traces import Traces, tracer
from raypipe.serving.release_follower import Live
from raypipe.serving.remote_kit import ServeKit


class Gateway:
    """The HTTP face over one recipe and one store."""

    def __init__(
        self, recipe: Recipe | None, store: str, face: Face, rules: Rules,
        embed: DeploymentHandle, rerank: DeploymentHandle, generate: DeploymentHandle | None,
    ) -> None:  # fmt: skip
        """`recipe` None: the live release of the store is followed."""
        _log()
        self._face = face
        kit = ServeKit(
            Calls(embed, "embed", "embed_alone"),
            Calls(rerank, "score", "score_alone"),
            generate and Calls(generate, "generate"),
            generate and Calls(generate, "stream"),
            {h.deployment_name: Calls(h, "ready") for h in (embed, rerank, generate) if h is not None},
        )
        self._answerer: Answerer = (
            Live(kit, store, rules) if recipe is None else Online(recipe, kit, store, rules=rules)
        )

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve in the replica, once this object is made."""
        meters: Meters = RayMeters()
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
