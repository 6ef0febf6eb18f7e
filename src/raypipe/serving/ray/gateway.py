"""The gateway deployment, which serves HTTP, runs the recipe, and calls the deployments of models."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from logging.handlers import WatchedFileHandler

from fastapi import FastAPI
from ray.serve.handle import DeploymentHandle
from ray.util.metrics import Counter, Gauge, Histogram

from raypipe.core.errors import RaypipeError
from raypipe.recipes.recipe import Recipe
from raypipe.serving.access import ServerConfig
from raypipe.serving.answerer import Answerer
from raypipe.serving.capture import Capture
from raypipe.serving.http import create_app
from raypipe.serving.http.middleware import JsonLines, RequestMetrics
from raypipe.serving.query import QueryResult
from raypipe.serving.ray.models import Broadcast, RetryingHandle
from raypipe.serving.release_follower import ReleaseFollower, bounded_memo
from raypipe.serving.serve_kit import ServeKit
from raypipe.store import Store
from raypipe.store.housekeeping import disk_bytes

WARM_S = 60.0
"""Most seconds for the questions that a replica answers before it gets requests. Meanwhile the deployments
load embedders and rerankers, in seconds. If they are down, the replica starts without these answers."""

STORE_LOOK_S = 600.0
"""Seconds between two measurements of a store's bytes, which list the files of all tables."""

DRAIN_LOOK_S = 0.05  # seconds between two looks at the requests in flight

log = logging.getLogger("raypipe.serving.ray")


class Gateway:
    """A replica of the gateway, which Serve creates."""

    def __init__(
        self,
        recipe: Recipe | None,
        store: str,
        config: ServerConfig,
        embed: DeploymentHandle,
        rerank: DeploymentHandle,
        generate: DeploymentHandle | None,
    ) -> None:
        """Starts the gateway. If `recipe` is None, the gateway follows the live release of the store."""
        _configure_logging(config.log)
        self._config, self._store = config, store
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
        self._router: Answerer | ReleaseFollower = (
            ReleaseFollower(kit, store, memo_bytes)
            if recipe is None
            else Answerer(recipe, kit, store, bounded_memo(memo_bytes), degrades=True)
        )

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Builds the app. Serve calls this in the replica, after `__init__`."""
        capture = None
        if self._config.capture is not None:
            captured = Counter("raypipe_captured", "Captured answers and feedback.", tag_keys=("event",))

            def count(event: str) -> None:
                captured.inc(tags={"event": event})

            capture = Capture(self._store, self._config.capture, count)
        self._metrics = RayMetrics()
        # Serve's proxy sets ids.
        self._app = create_app(self._router, self._config, self._metrics, True, capture, self._warm)
        return self._app

    async def reopen(self) -> None:
        """Opens the newest tables, if the gateway serves a named recipe."""
        if isinstance(self._router, Answerer):
            await self._router.reopen()

    async def drain(self) -> None:
        """Refuses new requests except those to /healthz, and returns when those in flight have ended."""
        self._app.state.stopping = True
        while self._metrics.ongoing:
            await asyncio.sleep(DRAIN_LOOK_S)

    async def _warm(self) -> None:
        """Answers warm-up questions before this replica gets requests, then starts to measure the store's
        bytes. The replica starts even if something is missing or unavailable; requests then report it."""
        try:
            async with asyncio.timeout(WARM_S):
                await (await self._router.current()).warm(WARM_S)
        except TimeoutError:
            log.warning("not warm: it took more than %g s", WARM_S)
        except Exception as e:
            log.warning("not warm: %s", e, exc_info=not isinstance(e, RaypipeError))
        # Excludes all present objects from collection: a full one delayed all answers by 0.16 to 0.19 s.
        gc.collect()
        gc.freeze()
        self._looking = asyncio.create_task(self._look_at_store())  # a reference: loops hold tasks weakly

    async def _look_at_store(self) -> None:
        shown = Gauge("raypipe_store_bytes", "Bytes of the files of the store's tables.", ("kind",))
        while True:
            try:
                found = await asyncio.to_thread(lambda: disk_bytes(Store.open(self._store)))
                shown.set(found.live, tags={"kind": "live"})
                shown.set(found.old, tags={"kind": "old"})
            except (RaypipeError, OSError) as e:
                log.warning("the bytes of the store are not known: %s", e)
            await asyncio.sleep(STORE_LOOK_S)


def _configure_logging(file: str | None) -> None:
    """Writes the log as JSON lines, one per request and event, to `file`, or to stderr, which Ray keeps.
    While the gateway runs, the file may be moved, and several gateways may append to it."""
    logger = logging.getLogger("raypipe")
    handler = logging.StreamHandler(sys.stderr) if file is None else WatchedFileHandler(file)
    handler.setFormatter(JsonLines())
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


SECONDS_BUCKETS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60]
SHARE_BUCKETS = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]


class RayMetrics(RequestMetrics):
    """Metrics for Prometheus. Ray prefixes each name with `ray_`."""

    def __init__(self) -> None:
        self.ongoing = 0
        self._in_flight = Gauge("raypipe_in_flight", "Requests being answered by this gateway.")
        self._bytes = Gauge("raypipe_bytes_in_flight", "Bytes of the bodies that this gateway holds.")
        self._requests = Counter("raypipe_requests", "Requests that ended.", tag_keys=("route", "status"))
        self._seconds = Histogram(
            "raypipe_request_seconds", "Request time, first to last byte.", SECONDS_BUCKETS, ("route",)
        )
        self._outcomes = Counter("raypipe_outcomes", "Questions answered.", tag_keys=("outcome", "release"))
        self._stages = Histogram(
            "raypipe_stage_seconds", "Wall time of a stage.", SECONDS_BUCKETS, ("stage",)
        )
        self._omitted = Counter("raypipe_stages_omitted", "Stages omitted.", tag_keys=("stage", "reason"))
        self._tokens = Counter("raypipe_tokens", "Tokens of language models.", tag_keys=("kind",))
        self._confidence = Histogram(
            "raypipe_confidence", "Confidence of the reply that is the answer.", SHARE_BUCKETS
        )

    def request_started(self) -> None:
        self.ongoing += 1
        self._in_flight.set(self.ongoing)

    def request_ended(self, route: str, status: int, seconds: float) -> None:
        self.ongoing -= 1
        self._in_flight.set(self.ongoing)
        self._requests.inc(tags={"route": route, "status": str(status)})
        self._seconds.observe(max(seconds, 1e-6), tags={"route": route})

    def bytes_in_flight(self, count: int) -> None:
        self._bytes.set(count)

    def question_answered(self, result: QueryResult) -> None:
        q = result.question
        self._outcomes.inc(tags={"outcome": q.outcome, "release": result.release or ""})
        for stage, ms in result.timings_ms.items():
            self._stages.observe(max(ms / 1000, 1e-6), tags={"stage": stage})
        for fault in q.faults:
            if fault.step in q.degraded:  # the reason is "late" for a missed deadline
                self._omitted.inc(tags={"stage": fault.step, "reason": fault.reason})
        for kind in ("prompt", "cached", "generated"):
            tokens = result.usage[f"{kind}_tokens"]
            if tokens:
                self._tokens.inc(tokens, tags={"kind": kind})
        reply = q.replies.get(q.origin)
        if reply is not None and reply.confidence is not None:
            self._confidence.observe(max(reply.confidence, 1e-6))
