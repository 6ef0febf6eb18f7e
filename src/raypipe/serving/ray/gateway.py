"""The gateway deployment: serves HTTP, runs the recipe, and calls the deployments of models."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from logging.handlers import WatchedFileHandler

from fastapi import FastAPI
from ray.serve.handle import DeploymentHandle

from raypipe.core.errors import Overloaded, RaypipeError, Unavailable
from raypipe.recipes.deadlines import DegradePolicy
from raypipe.recipes.recipe import Recipe
from raypipe.serving.access import ServerConfig
from raypipe.serving.answerer import Answerer
from raypipe.serving.answering import ReleaseRouter
from raypipe.serving.capture import Capture, redaction
from raypipe.serving.http import create_app
from raypipe.serving.http.middleware import JsonLines
from raypipe.serving.ray.metrics import RayMetrics, TrialMetrics, count_captured
from raypipe.serving.ray.retrying_handle import Broadcast, RetryingHandle
from raypipe.serving.release_follower import ReleaseFollowers, bounded_memo
from raypipe.serving.serve_kit import InFlight, ServeKit, YieldingKit
from raypipe.serving.tenants import QuotaUsed
from raypipe.serving.trials import SecondAnswers, TrialRouter
from raypipe.store import Store

WARM_S = 60.0
"""For the question that a replica answers before it gets requests. Embedders and rerankers are loaded
meanwhile, in seconds, by their deployments; where these are down, it starts all the same."""

log = logging.getLogger("raypipe.serving.ray")


class Gateway:
    def __init__(
        self, recipe: Recipe | None, store: str, config: ServerConfig, policy: DegradePolicy,
        embed: DeploymentHandle, rerank: DeploymentHandle, generate: DeploymentHandle | None,
        quotas: DeploymentHandle | None,
    ) -> None:  # fmt: skip
        """`recipe` None: the live release of the store is followed. `quotas` None: no tenant has one."""
        _configure_logging(config.log)
        self._config, self._store = config, store
        self._quotas = quotas and SharedQuotas(quotas)
        handles = [h for h in (embed, rerank, generate) if h is not None]
        kit = ServeKit(
            RetryingHandle(embed, "compute", "compute_unbatched"),
            RetryingHandle(rerank, "compute", "compute_unbatched"),
            generate and RetryingHandle(generate, "generate"),
            generate and RetryingHandle(generate, "stream"),
            {h.deployment_name: RetryingHandle(h, "ready") for h in handles},
            [Broadcast(h, "keep") for h in handles],
        )
        memo_bytes = config.memo_mb << 20
        in_flight = InFlight()
        shared = YieldingKit(kit, in_flight)
        self._followers: ReleaseFollowers | None = None
        self._router: ReleaseRouter
        if recipe is not None:
            self._router = answerer = Answerer(recipe, kit, store, bounded_memo(memo_bytes), policy=policy)
            self._live = answerer.current
        else:
            self._followers = ReleaseFollowers(shared, store, policy, memo_bytes)
            self._live = self._followers.current  # past a trial, which would count the question
            redact = redaction(None if config.capture is None else config.capture.redact)
            seconds = SecondAnswers(Store.open(store), in_flight, TrialMetrics(), redact)
            self._router = TrialRouter(self._followers, seconds)

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve in the replica, after `__init__`."""
        capture = None
        if self._config.capture is not None:
            capture = Capture(self._store, self._config.capture, count_captured())
        return create_app(  # Serve's proxy sets ids
            self._router, self._config, RayMetrics(), True, capture, self._followers, self._quotas, self._warm
        )

    async def _warm(self) -> None:
        """Done by Serve before this replica gets requests. What is missing or down now is no reason not to
        start: requests say so, and are answered once it is there."""
        try:
            async with asyncio.timeout(WARM_S):
                await (await self._live()).warm(WARM_S)
        except TimeoutError:
            log.warning("not warm: it took more than %g s", WARM_S)
        except Exception as e:
            log.warning("not warm: %s", e, exc_info=not isinstance(e, RaypipeError))
        # What is loaded by now stays: each full collection over it held up all answers for .16 to .19 s.
        gc.collect()
        gc.freeze()


class SharedQuotas:
    """The counts that all gateways share (`QuotaCounter`)."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._admit, self._spend = RetryingHandle(handle, "admit"), RetryingHandle(handle, "spend")

    async def admit(self, tenant: str, questions: int) -> QuotaUsed | None:
        used: QuotaUsed | None = await self._admit.remote(tenant, questions)
        return used

    async def spend(self, tenant: str, tokens: int) -> None:
        try:
            await self._spend.remote(tenant, tokens)
        except (Unavailable, Overloaded) as e:  # the answer is there, and goes out
            log.error("%d tokens of tenant %s are not counted: %s", tokens, tenant, e)


def _configure_logging(file: str | None) -> None:
    """Writes JSON lines to a file, which may be moved away meanwhile, or to this process's stderr, which Ray
    keeps. INFO: one for each request. Several gateways may append to one file."""
    logger = logging.getLogger("raypipe")
    handler = logging.StreamHandler(sys.stderr) if file is None else WatchedFileHandler(file)
    handler.setFormatter(JsonLines())
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
