"""The gateway deployment: serves HTTP, runs the recipe, and calls the deployments of models."""

from __future__ import annotations

import gc
import logging
import sys
from logging.handlers import WatchedFileHandler

from fastapi import FastAPI
from ray.serve.handle import DeploymentHandle

from raypipe.recipes.deadlines import DegradePolicy
from raypipe.recipes.recipe import Recipe
from raypipe.serving.access import ServerConfig
from raypipe.serving.answerer import Answerer
from raypipe.serving.answering import ReleaseRouter
from raypipe.serving.capture import Capture
from raypipe.serving.http import create_app
from raypipe.serving.http.middleware import JsonLines, RequestMetrics
from raypipe.serving.ray.metrics import RayMetrics, TenantMetrics, TrialMetrics, count_captured
from raypipe.serving.ray.retrying_handle import Broadcast, RetryingHandle
from raypipe.serving.ray.traces import TracedMetrics, otlp_tracer
from raypipe.serving.redaction import redaction
from raypipe.serving.release_follower import bounded_memo
from raypipe.serving.second_answers import SecondAnswers
from raypipe.serving.serve_kit import ServeKit
from raypipe.serving.tenant_answers import ReleaseFollowers
from raypipe.serving.trials import TrialRouter
from raypipe.serving.yielding_kit import InFlight, TrialKit
from raypipe.store import Store
from raypipe.store.layout import LIVE


class Gateway:
    """The HTTP API over one store: of one recipe, or of its live release."""

    def __init__(
        self, recipe: Recipe | None, store: str, config: ServerConfig, policy: DegradePolicy,
        embed: DeploymentHandle, rerank: DeploymentHandle, generate: DeploymentHandle | None,
    ) -> None:  # fmt: skip
        """`recipe` None: the live release of the store is followed."""
        _configure_logging(config.log)
        self._config, self._store = config, store
        kit = ServeKit(
            RetryingHandle(embed, "embed", "embed_unbatched"),
            RetryingHandle(rerank, "score", "score_unbatched"),
            generate and RetryingHandle(generate, "generate"),
            generate and RetryingHandle(generate, "stream"),
            {
                h.deployment_name: RetryingHandle(h, "ready")
                for h in (embed, rerank, generate)
                if h is not None
            },
            [Broadcast(h, "keep") for h in (embed, rerank, generate) if h is not None],
        )
        memo_bytes = config.memo_mb << 20
        in_flight = InFlight()
        shared = TrialKit(kit, in_flight)
        self._followers: ReleaseFollowers | None = None
        self._router: ReleaseRouter
        if recipe is not None:
            self._router = Answerer(recipe, kit, store, bounded_memo(memo_bytes), policy=policy)
        else:
            self._followers = ReleaseFollowers(shared, store, policy, memo_bytes)
            self._router = follow_releases(
                self._followers, shared, in_flight, store, config, policy, memo_bytes
            )

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve in the replica, after `__init__`."""
        metrics: RequestMetrics = RayMetrics()
        if self._config.traces is not None:
            metrics = TracedMetrics(metrics, otlp_tracer(self._config.traces))
        capture = None
        if self._config.capture is not None:
            capture = Capture(self._store, self._config.capture, count_captured())
        app = create_app(  # Serve's proxy sets ids
            self._router, self._config, metrics, True, capture, self._followers, TenantMetrics()
        )
        # What is loaded by now stays: each full collection over it held up all answers for .16 to .19 s.
        gc.collect()
        gc.freeze()
        return app


def follow_releases(
    followers: ReleaseFollowers, shared: TrialKit, in_flight: InFlight, store: str, config: ServerConfig,
    policy: DegradePolicy, memo_bytes: int,
) -> ReleaseRouter:  # fmt: skip
    """The live release, and what is on trial next to it."""
    live = followers.of(LIVE)
    redact = redaction(None if config.capture is None else config.capture.redact)
    opened = Store.open(store)
    seconds = SecondAnswers(opened, in_flight, TrialMetrics(), redact)
    return TrialRouter(live, shared, opened, seconds, policy, memo_bytes)


def _configure_logging(file: str | None) -> None:
    """Writes JSON lines to a file, which may be moved away meanwhile, or to this process's stderr, which Ray
    keeps. INFO: one for each request. Several gateways may append to one file."""
    logger = logging.getLogger("raypipe")
    handler = logging.StreamHandler(sys.stderr) if file is None else WatchedFileHandler(file)
    handler.setFormatter(JsonLines())
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
