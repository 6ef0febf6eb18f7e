"""OpenTelemetry traces, optional: a span for each question with a child span for each stage.

Needs the extra `tracing`. A span has names, numbers and the outcome; no text of a question or a page.
"""

from __future__ import annotations

import time
from typing import Any

from raypipe.core.errors import ConfError
from raypipe.serving.query import QueryResult


class AnswerSpans:
    """Sends spans of answered questions to a collector, in the background."""

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer

    def __call__(self, result: QueryResult) -> None:
        from opentelemetry.trace import set_span_in_context

        stages_ns = {stage: int(ms * 1e6) for stage, ms in result.timings_ms.items()}
        end = time.time_ns()
        start = at = end - stages_ns.pop("total")
        q = result.question
        versions = {"recipe": result.recipe, "release": result.release or ""}
        attributes = {"outcome": q.outcome, "degraded": list(q.degraded), **versions}
        parent = self._tracer.start_span("answer", start_time=start, attributes=attributes)
        context = set_span_in_context(parent)
        for stage, ns in stages_ns.items():  # one after the other, as they ran
            self._tracer.start_span(stage, context=context, start_time=at).end(end_time=at + ns)
            at += ns
        parent.end(end_time=end)


def otlp_tracer(url: str) -> Any:
    """A tracer that sends OTLP over HTTP to a collector. Raises ConfError if the extra is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as e:
        raise ConfError(f"traces: {e}; `pip install raypipe[tracing]` installs what is missing") from e
    provider = TracerProvider(resource=Resource.create({"service.name": "raypipe"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
    return provider.get_tracer("raypipe")
