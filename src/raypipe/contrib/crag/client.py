"""HTTP client of the CRAG mock API. A request returns a result or raises a fault.

The server's contract: a reply is `{"result": X}`; null means "not found" and is no fault. Status 500 of
`get_year_info` means a year outside its range, thus "not found" too. Any other 5xx, 429, a refused connection
or a time-out is tried a few times and then raises a transient fault. A malformed request (422), other JSON
and a reply that is too large also raise a fault.

The meaning of results is in `calls`. A client belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx

from raypipe.contrib.crag.graph import GraphFault
from raypipe.core.backoff import RETRY_STATUSES, Backoff, retry_after_s

ABSENT_ON_500: Final = frozenset({"/movie/get_year_info"})


@dataclass(frozen=True, slots=True)
class HttpLimits:
    timeout_s: float = 10.0  # limit of one try, connecting included
    tries: int = 3
    wait_s: float = 0.2  # before the second try; doubles with each try, plus jitter
    most_bytes: int = 8 * 1024 * 1024  # largest reply: ten years of a team's games are about 5 MB
    at_once: int = 16  # requests in flight at the same time


class ServerConnection:
    """Connection pool of a server. The first request opens it; `aclose` closes it.

    A request on another event loop opens a new pool. `transport` is for tests."""

    def __init__(
        self, url: str, limits: HttpLimits | None = None, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._url, self._limits, self._transport = url.rstrip("/"), limits or HttpLimits(), transport
        self._open: tuple[asyncio.AbstractEventLoop, httpx.AsyncClient, asyncio.Semaphore] | None = None

    async def ask(self, path: str, body: Mapping[str, Any]) -> Any:
        loop, limits = asyncio.get_running_loop(), self._limits
        if self._open is None or self._open[0] is not loop:
            client = httpx.AsyncClient(
                base_url=self._url, timeout=limits.timeout_s, transport=self._transport, trust_env=False
            )
            self._open = loop, client, asyncio.Semaphore(limits.at_once)
        _, client, gate = self._open
        async with gate:
            return await _ask_with_retries(client, path, body, limits)

    async def aclose(self) -> None:
        if self._open is not None:
            await self._open[1].aclose()
            self._open = None


async def _ask_with_retries(
    client: httpx.AsyncClient, path: str, body: Mapping[str, Any], limits: HttpLimits
) -> Any:
    backoff = Backoff(limits.tries, limits.wait_s, limits.timeout_s)
    while True:
        after_s = 0.0
        try:
            async with asyncio.timeout(limits.timeout_s):
                reply, raw = await _post(client, path, body, limits.most_bytes)
        except TimeoutError:
            trouble = f"no answer within {limits.timeout_s:g} s"
        except httpx.InvalidURL as e:
            raise GraphFault("bad_address", f"{client.base_url}: {e}") from e
        except httpx.TransportError as e:
            trouble = f"{type(e).__name__}: {e}"
        else:
            status = reply.status_code
            if status == 200:
                return _result(path, raw)
            if status == 500 and path in ABSENT_ON_500:
                return None
            if status not in RETRY_STATUSES:
                detail = f"{path} {json.dumps(dict(body))[:200]}: status {status}: {raw[:200]!r}"
                raise GraphFault("bad_request", f"{detail}. The server does not take this request.")
            trouble, after_s = f"status {status}", retry_after_s(reply.headers)
        if (wait_s := backoff.next_s(after_s)) is None:
            detail = f"{client.base_url}{path}: {trouble}, {limits.tries} tries. Is its server running there?"
            raise GraphFault("unreachable", detail, transient=True)
        await asyncio.sleep(wait_s)


async def _post(
    client: httpx.AsyncClient, path: str, body: Mapping[str, Any], most: int
) -> tuple[httpx.Response, bytes]:
    """Sends a request; returns the reply and its body. Raises GraphFault if the body exceeds `most` bytes."""
    async with client.stream("POST", path, json=dict(body)) as reply:
        parts, size = [], 0
        async for part in reply.aiter_bytes():
            size += len(part)
            if size > most:
                raise GraphFault("too_large", f"{path}: expected a reply of at most {most} bytes, found more")
            parts.append(part)
        return reply, b"".join(parts)


def _result(path: str, raw: bytes) -> Any:
    try:
        reply = json.loads(raw)
    except (ValueError, RecursionError) as e:
        detail = f"{path}: expected JSON, found {raw[:80]!r}: {e}"[:300]
        raise GraphFault("garbage", detail, transient=True) from e
    if not isinstance(reply, dict) or "result" not in reply:
        raise GraphFault("garbage", f'{path}: expected {{"result": ...}}, found {raw[:80]!r}', transient=True)
    return reply["result"]
