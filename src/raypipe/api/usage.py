"""What each tenant asked of an endpoint, from its log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar

from raypipe.api.results import Result
from raypipe.core.errors import DataError
from raypipe.report.report import JSON_FORMAT

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

    SCHEMA: ClassVar[Mapping[str, str]] = {
        "tenant": "string", "requests": "int64", "refused": "int64", "failed": "int64",
        "questions": "int64", "tokens": "int64", "seconds": "float64", "p99_ms": "float64",
    }  # fmt: skip
    tenants: tuple[TenantUsage, ...]

    def rows(self) -> Sequence[Mapping[str, Any]]:
        """A row for each tenant."""
        return [asdict(t) for t in self.tenants]

    def to_json(self) -> dict[str, Any]:
        return {"format": JSON_FORMAT, "tenants": self.rows()}


def usage(logs: Sequence[str | Path]) -> UsageResult:
    """What each tenant asked, from the logs of an endpoint (`serve`). Raises DataError for a file that is no
    such log."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for line in _requests(logs):
        found.setdefault(line.get("tenant", ANYONE), []).append(line)
    return UsageResult(tuple(_of(name, found[name]) for name in sorted(found)))


def _requests(logs: Iterable[str | Path]) -> Iterator[dict[str, Any]]:
    for path in map(Path, logs):
        number = 0
        try:
            with path.open(encoding="utf-8") as lines:
                for text in lines:
                    number += 1
                    line = json.loads(text)
                    if line.get("event") == "request" and line.get("method") == "POST":
                        if not all(isinstance(line.get(name), int | float) for name in ("status", "ms")):
                            raise ValueError("a request without numbers for status and ms")
                        yield line
        except OSError as e:
            raise DataError(f"{path}: expected the log of an endpoint: {e.strerror}") from e
        except (ValueError, AttributeError) as e:
            raise DataError(
                f"{path}:{number}: expected a line of JSON, as `raypipe serve` logs them ({e})"
            ) from e


def _of(tenant: str, lines: Sequence[Mapping[str, Any]]) -> TenantUsage:
    refused = sum(line["status"] == HTTPStatus.TOO_MANY_REQUESTS for line in lines)
    answered = sorted(line["ms"] for line in lines if line["status"] < HTTPStatus.BAD_REQUEST)
    return TenantUsage(
        tenant,
        len(lines),
        refused,
        len(lines) - refused - len(answered),
        sum(line.get("questions", 0) for line in lines),
        sum(line.get("tokens", 0) for line in lines),
        round(sum(line["ms"] for line in lines) / 1000, 3),
        answered[min(len(answered) - 1, int(0.99 * len(answered)))] if answered else None,
    )
