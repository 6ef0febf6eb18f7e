"""Metrics of the endpoint through Ray's exporter, next to Serve's own of queues and replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from ray.util.metrics import Counter, Gauge, Histogram

from raypipe.runs.trial_verdict import TrialReport, worse
from raypipe.runs.trials import Role
from raypipe.serving.http.middleware import RequestMetrics
from raypipe.serving.query import QueryResult
from raypipe.serving.trials import Event, TrialEvents

SECONDS_BUCKETS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60]
SHARE_BUCKETS = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]


class RayMetrics(RequestMetrics):
    """Metrics for Prometheus: Ray puts `ray_` before each name."""

    def __init__(self) -> None:
        self._ongoing = 0
        self._in_flight = Gauge("raypipe_in_flight", "Requests being answered by this gateway.")
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
