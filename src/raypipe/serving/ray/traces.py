"""Traces by OpenTelemetry, as an option: a span for each question, and in it one for each stage.

Needs the extra `tracing`. A span has names, numbers and the outcome; no text of a question or a page.
"""

from __future__ import annotations

import time
from typing import Any

from raypipe.core.errors import ConfError
from raypipe.serving.answerer import QueryResult
from raypipe.serving.http.middleware import RequestMetrics


class Traces:
    """`middleware.RequestMetrics` that also sends spans, in the background, to a collector."""

    def __init__(self, inner: RequestMetrics, tracer: Any) -> None:
        self._inner, self._tracer = inner, tracer

    def began(self) -> None:
        self._inner.began()

    def ended(self, route: str, status: int, seconds: float) -> None:
        self._inner.ended(route, status, seconds)

    def answered(self, answered: QueryResult) -> None:
        from opentelemetry.trace import set_span_in_context

        self._inner.answered(answered)
        ns = {stage: int(ms * 1e6) for stage, ms in answered.timings_ms.items()}
        end = time.time_ns()
        start = at = end - ns.pop("total")
        q = answered.question
        about = {"outcome": q.outcome, "degraded": list(q.degraded), "recipe": answered.recipe}
        whole = self._tracer.start_span(
            "answer", start_time=start, attributes={**about, "release": answered.release or ""}
        )
        within = set_span_in_context(whole)
        for stage, took in ns.items():  # one after the other, as they ran
            self._tracer.start_span(stage, context=within, start_time=at).end(end_time=at + took)
            at += took
        whole.end(end_time=end)


def tracer(url: str) -> Any:
    """Sends to a collector that speaks OTLP over HTTP. Raises ConfError where the extra is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as e:
        raise ConfError(f"traces: {e}; `pip install raypipe[tracing]` brings what is missing") from e
    provider = TracerProvider(resource=Resource.create({"service.name": "raypipe"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
    return provider.get_tracer("raypipe")
