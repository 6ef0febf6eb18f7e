"""The endpoint's numbers, through Ray's own exporter, beside those that Serve keeps of queues and
replicas."""

from __future__ import annotations

from ray.util.metrics import Counter, Gauge, Histogram

from raypipe.serving.answerer import QueryResult

SECONDS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60]
SHARES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]


class RayMetrics:
    """`middleware.RequestMetrics` for Prometheus: Ray puts `ray_` before each name."""

    def __init__(self) -> None:
        self._ongoing = 0
        self._in_flight = Gauge("raypipe_in_flight", "requests that this gateway has not ended yet")
        self._requests = Counter("raypipe_requests", "requests that ended", tag_keys=("route", "status"))
        self._seconds = Histogram("raypipe_request_seconds", "first to last byte", SECONDS, ("route",))
        self._outcomes = Counter("raypipe_outcomes", "questions answered", tag_keys=("outcome", "release"))
        self._stages = Histogram("raypipe_stage_seconds", "wall time in a stage", SECONDS, ("stage",))
        self._left_out = Counter("raypipe_left_out", "stages left out", tag_keys=("stage", "reason"))
        self._tokens = Counter("raypipe_tokens", "of language models", tag_keys=("kind",))
        self._confidence = Histogram("raypipe_confidence", "stated with answers", SHARES)

    def began(self) -> None:
        self._ongoing += 1
        self._in_flight.set(self._ongoing)

    def ended(self, route: str, status: int, seconds: float) -> None:
        self._ongoing -= 1
        self._in_flight.set(self._ongoing)
        self._requests.inc(tags={"route": route, "status": str(status)})
        self._seconds.observe(max(seconds, 1e-6), tags={"route": route})

    def answered(self, answered: QueryResult) -> None:
        q = answered.question
        self._outcomes.inc(tags={"outcome": q.outcome, "release": answered.release or ""})
        for stage, ms in answered.timings_ms.items():
            self._stages.observe(max(ms / 1000, 1e-6), tags={"stage": stage})
        for fault in q.faults:
            if fault.step in q.degraded:  # reason late: a deadline that was missed
                self._left_out.inc(tags={"stage": fault.step, "reason": fault.reason})
        for kind in ("prompt", "cached", "generated"):
            tokens = answered.usage[f"{kind}_tokens"]
            if tokens:
                self._tokens.inc(tokens, tags={"kind": kind})
        said = q.replies.get(q.origin)
        if said is not None and said.confidence is not None:
            self._confidence.observe(max(said.confidence, 1e-6))
