"""What each tenant asked of an endpoint, from its log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from raypipe.api.results import Result
from raypipe.metrics.textfile import lines

ANYONE = "default"
"""Of requests with a key that is no tenant's, or with none."""


@dataclass(frozen=True, slots=True)
class TenantUsage:
    """What one tenant asked."""

    tenant: str
    requests: int
    refused: int  # with 429: a quota was used up, or no slot was free
    failed: int  # with another status of 400 and above
    questions: int  # answered
    tokens: int  # of prompts and replies
    seconds: float  # of all requests together
    p99_ms: float | None  # of answered requests; None: there is none


@dataclass(frozen=True, slots=True)
class UsageResult(Result):
    """What each tenant asked; a row for each, by name."""

    SCHEMA = (
        "tenant requests:int64 refused:int64 failed:int64 questions:int64 tokens:int64 seconds:float64 "
        "p99_ms:float64"
    )
    ROWS = "tenants"
    tenants: tuple[TenantUsage, ...]


def usage(logs: Sequence[str | Path]) -> UsageResult:
    """What each tenant asked, from the logs of an endpoint (`serve`). Raises DataError for a file that is no
    such log."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for line in _requests(logs):
        found.setdefault(line.get("tenant", ANYONE), []).append(line)
    return UsageResult(tuple(_of(name, found[name]) for name in sorted(found)))


def _requests(logs: Iterable[str | Path]) -> Iterator[dict[str, Any]]:
    for line in (x for path in logs for x in lines(Path(path))):
        found = line.object()
        if found.get("event") == "request" and found.get("method") == "POST":
            if not all(isinstance(found.get(name), int | float) for name in ("status", "ms")):
                raise line.error("a request with numbers as status and ms", line.text)
            yield found


def _of(tenant: str, lines: Sequence[Mapping[str, Any]]) -> TenantUsage:
    refused = sum(line["status"] == HTTPStatus.TOO_MANY_REQUESTS for line in lines)
    answered = sorted(line["ms"] for line in lines if line["status"] < HTTPStatus.BAD_REQUEST)
    seconds = round(sum(line["ms"] for line in lines) / 1000, 3)
    p99 = answered[min(len(answered) - 1, int(0.99 * len(answered)))] if answered else None
    questions, tokens = (sum(line.get(name, 0) for line in lines) for name in ("questions", "tokens"))
    failed = len(lines) - refused - len(answered)
    return TenantUsage(tenant, len(lines), refused, failed, questions, tokens, seconds, p99)
