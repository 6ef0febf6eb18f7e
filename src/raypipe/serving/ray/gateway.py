"""The gateway deployment: serves HTTP, runs the recipe, and calls the deployments of models. Its metrics go
through Ray's exporter, next to Serve's own of queues and replicas."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from collections.abc import Callable
from logging.handlers import WatchedFileHandler
from typing import Literal

from fastapi import FastAPI
from ray.serve.handle import DeploymentHandle
from ray.util.metrics import Counter, Gauge, Histogram

from raypipe.core.errors import Overloaded, RaypipeError, Unavailable
from raypipe.recipes.recipe import Recipe
from raypipe.runs.trial_verdict import TrialReport, worse
from raypipe.runs.trials import Role
from raypipe.serving.access import ServerConfig
from raypipe.serving.answerer import Answerer
from raypipe.serving.capture import Capture, redaction
from raypipe.serving.http import create_app
from raypipe.serving.http.middleware import JsonLines, RequestMetrics
from raypipe.serving.query import QueryResult, ReleaseRouter
from raypipe.serving.ray.models import Broadcast, RetryingHandle
from raypipe.serving.release_follower import ReleaseFollowers, bounded_memo
from raypipe.serving.serve_kit import InFlight, ServeKit, YieldingKit
from raypipe.serving.tenants import QuotaUsed
from raypipe.serving.trials import Event, SecondAnswers, TrialEvents, TrialRouter
from raypipe.store import Store

WARM_S = 60.0
"""For the question that a replica answers before it gets requests. Embedders and rerankers are loaded
meanwhile, in seconds, by their deployments; where these are down, it starts all the same."""

log = logging.getLogger("raypipe.serving.ray")


class Gateway:
    def __init__(
        self, recipe: Recipe | None, store: str, config: ServerConfig,
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
            self._router = answerer = Answerer(recipe, kit, store, bounded_memo(memo_bytes), degrades=True)
            self._live = answerer.current
        else:
            self._followers = ReleaseFollowers(shared, store, memo_bytes)
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


SECONDS_BUCKETS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60]
SHARE_BUCKETS = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]


class RayMetrics(RequestMetrics):
    """Metrics for Prometheus: Ray puts `ray_` before each name."""

    def __init__(self) -> None:
        self._ongoing = 0
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
        self._tenant_requests = Counter(
            "raypipe_tenant_requests", "Questions answered, and requests refused with 429.",
            tag_keys=("tenant", "state"),
        )  # fmt: skip
        self._tenant_tokens = Counter(
            "raypipe_tenant_tokens", "Tokens of prompts and replies.", tag_keys=("tenant",)
        )

    def request_started(self) -> None:
        self._ongoing += 1
        self._in_flight.set(self._ongoing)

    def request_ended(self, route: str, status: int, seconds: float) -> None:
        self._ongoing -= 1
        self._in_flight.set(self._ongoing)
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
            if fault.step in q.degraded:  # reason late: a deadline that was missed
                self._omitted.inc(tags={"stage": fault.step, "reason": fault.reason})
        for kind in ("prompt", "cached", "generated"):
            tokens = result.usage[f"{kind}_tokens"]
            if tokens:
                self._tokens.inc(tokens, tags={"kind": kind})
        reply = q.replies.get(q.origin)
        if reply is not None and reply.confidence is not None:
            self._confidence.observe(max(reply.confidence, 1e-6))

    def tenant_used(self, tenant: str, state: Literal["admitted", "refused"], tokens: int) -> None:
        self._tenant_requests.inc(tags={"tenant": tenant, "state": state})
        if tokens:
            self._tenant_tokens.inc(tokens, tags={"tenant": tenant})


def count_captured() -> Callable[[str], None]:
    """Counts what came of captured answers (`serving.capture.Event`)."""
    captured = Counter("raypipe_captured", "Captured answers and feedback.", tag_keys=("event",))
    return lambda event: captured.inc(tags={"event": event})


class TrialMetrics(TrialEvents):
    def __init__(self) -> None:
        self._events = Counter(
            "raypipe_trial", "Questions that two releases answer.", tag_keys=("role", "event")
        )
        self._means = Gauge(
            "raypipe_trial_mean", "Mean over the questions of a trial.", ("role", "measure", "side")
        )
        self._worse = Gauge("raypipe_trial_worse", "1: the release on trial is worse.", ("role",))

    def event(self, role: Role, event: Event) -> None:
        self._events.inc(tags={"role": role, "event": event})

    def looked(self, report: TrialReport) -> None:
        role = report.trial.role
        for look in (report.f1, report.answered):
            for side, mean in (("live", look.live), ("trial", look.trial)):
                if mean is not None:
                    self._means.set(mean, tags={"role": role, "measure": look.measure, "side": side})
        self._worse.set(float(any(worse(look) for look in (report.f1, report.answered))), tags={"role": role})
