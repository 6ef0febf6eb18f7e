"""HTTP requests to the servers of one model, with retries, rate limits and a reason for each failure.

Several addresses share the requests: each request goes to the address that can take it soonest. If one of
several addresses fails, it is left out for a while and then tried with one request. Limits of calls and
tokens per minute come from the cluster file and from a server's headers (`Retry-After`, `x-ratelimit-*`). The
module does not depend on a protocol above HTTP.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from raypipe.core.backoff import RETRY_STATUSES, Backoff, limit_wait_s, retry_after_s
from raypipe.core.connections import open_client, why_failed
from raypipe.models.hosts import EndpointAddress, masked, shown

T = TypeVar("T")

OPERATOR = {401: "unauthorised", 402: "unpaid", 403: "forbidden", 404: "not_found", 405: "not_found"}
"""HTTP status -> reason, for errors that the operator must correct and that the request did not cause."""
BROKEN = frozenset({"unreachable", "timeout", "unavailable", "overloaded"})
"""Reasons after which an address is left out while others answer."""
SPENT = re.compile(
    r"quota|billing|insufficient.{0,9}(balance|credit|fund)|credit balance|(no|out of) credit|arrear"
    r"|(spending|usage) limit",
    re.I,
)
OWES = re.compile(r"credit balance|arrear", re.I)  # for status 400, which otherwise blames the request
LIMITED = re.compile(r"(try again|retry) (in|after)|retry.?(delay|after)|per.?(min|second)", re.I)
"""Patterns in an error's code or message. SPENT and OWES: the account has no credit left. LIMITED: a rate
limit; some providers use a sentence of SPENT for it, and add when the limit ends."""

FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0  # wait before the second try, doubled for each further, with jitter
ASKED_WAIT_S = 60.0  # longest wait that a server may ask for: rate limits are per minute


class BrokenOff(ValueError):
    """Error for a reply that the server did not finish; the same request may get a complete reply."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """The reason why a request got no reply."""

    reason: str  # a short fixed word
    detail: str  # for people, without the key
    transient: bool  # True: time or an operator can end it
    again: bool = False  # True: the same request may succeed in a moment
    error: Any = None  # the server's error as JSON, if it refused the request


@dataclass(slots=True)
class _Address:
    url: str
    next_s: float = 0.0  # clock time from which its next request may be sent
    flying: int = 0  # requests in flight
    failed: int = 0  # failed tries since the last success


class ServerClient:
    """Client of an endpoint for one event loop. Close it with `await close()`."""

    def __init__(
        self,
        at: EndpointAddress,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.at, self._sleep, self._clock = at, sleep, clock
        options = {"timeout": at.timeout_s, "headers": at.headers, "follow_redirects": False}
        self._client = open_client(httpx.AsyncClient, **options)
        self._addresses = [_Address(url) for url in at.urls]
        self._most = at.concurrency * len(at.urls)
        self._room = asyncio.Semaphore(self._most)
        self._failing = 0  # requests that ended in transient trouble since the last answer or refusal
        self._answered = 0  # requests with an answer, ever

    def failing(self) -> bool:
        """Returns whether the last request had transient trouble, or every address failed its last try."""
        return self._failing > 0 or all(a.failed for a in self._addresses)

    async def close(self) -> None:
        await self._client.aclose()

    async def send(
        self,
        method: str,
        path: str,
        read: Callable[[Any], T],
        tokens: float = 0,
        once: bool = False,
        lines: bool = False,
        **content: Any,
    ) -> T | Trouble:
        """Sends a request. Returns its JSON answer, parsed by `read`, or a Trouble.

        `tokens` counts the tokens of prompt and reply, for rate limits. A `path` with a leading slash
        replaces /v1. With `once` there are no retries. With `lines` the answer is JSON lines, and `read` gets
        a list. `content` holds arguments of httpx."""
        async with self._room:
            # After a whole round of requests without a reply, each further request gets one try until one
            # succeeds, so that a server that is down costs a run minutes and not hours.
            tries = 1 if once or self._failing >= self._most else self.at.tries
            backoff = Backoff(tries, FIRST_WAIT_S, LONGEST_WAIT_S)
            while True:
                address, answered = await self._turn(tokens), self._answered
                result = await self._try(address, method, path, read, lines, content)
                if isinstance(result, Trouble) and result.reason in BROKEN:
                    address.failed += 1
                    if len(self._addresses) > 1:
                        out_s = min(FIRST_WAIT_S * 2.0**address.failed, LONGEST_WAIT_S)
                        address.next_s = max(address.next_s, self._clock() + out_s)
                else:
                    address.failed = 0
                if not isinstance(result, Trouble):
                    self._failing, self._answered = 0, self._answered + 1
                    return result
                if result.reason == "overloaded" and self._answered > answered:
                    backoff.reset()  # other requests succeed, so this one will too
                if not result.again or (wait_s := backoff.next_s()) is None:
                    self._failing = self._failing + 1 if result.transient else 0
                    return result
                if len(self._addresses) == 1:  # else the next address may answer now
                    await self._sleep(wait_s)

    async def _turn(self, tokens: float) -> _Address:
        """Waits for an address that can take a request of `tokens` tokens."""
        while True:
            # A failed address gets one request at a time.
            open_ = [a for a in self._addresses if not (a.failed and a.flying)] or self._addresses
            now = self._clock()
            address = min(open_, key=lambda a: (max(a.next_s, now), a.flying))
            if address.next_s <= now:
                pause_s = max(60.0 / self.at.per_minute, tokens * 60.0 / self.at.tokens_per_minute)
                address.next_s = now + pause_s
                return address
            await self._sleep(address.next_s - now)

    async def _try(
        self,
        address: _Address,
        method: str,
        path: str,
        read: Callable[[Any], T],
        lines: bool,
        content: Mapping[str, Any],
    ) -> T | Trouble:
        url = f"{address.url}/{path}"
        if path.startswith("/"):  # next to /v1, and not under it
            url = f"{address.url.removesuffix('/v1')}{path}"
        address.flying += 1
        try:
            async with asyncio.timeout(self.at.timeout_s):  # httpx limits each read, not their sum
                response = await self._client.request(method, url, **content)
        except UnicodeEncodeError as e:
            return self._trouble(address, "unsendable", f"the text is not valid: {e.reason}", False)
        except (httpx.TimeoutException, TimeoutError):
            detail = f"no answer within {self.at.timeout_s:g} s"
            return self._trouble(address, "timeout", detail, True, True)
        except (httpx.HTTPError, httpx.InvalidURL) as e:
            return self._trouble(address, "unreachable", why_failed(e, url), True, True)
        finally:
            address.flying -= 1
        headers = response.headers
        wait_s = max(retry_after_s(headers), limit_wait_s(headers, address.flying))
        if wait_s:  # all requests wait, since the limit belongs to the key or the server
            address.next_s = max(address.next_s, self._clock() + min(wait_s, ASKED_WAIT_S))
        if not 200 <= response.status_code < 300:
            return self._refused(address, response, response.status_code)
        try:
            text = response.content.splitlines() if lines else []
            tree = [json.loads(line) for line in text if line.strip()] if lines else response.json()
            if (status := _status_inside(tree)) is not None:
                return self._refused(address, response, status)
            return read(tree)
        except BrokenOff as e:
            return self._trouble(address, "broken_off", f"the reply was broken off: {e}", True, True)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as e:
            kind = headers.get("content-type", "no content type")
            found = f"{kind} ({type(e).__name__}: {e}): {shown(response.text, self.at.key)}"
            detail = f"expected a reply of the protocol, found {found}. Is this the API's address, up to /v1?"
            return self._trouble(address, "not_the_protocol", detail, True, True)

    def _refused(self, address: _Address, response: httpx.Response, status: int) -> Trouble:
        detail = f"status {status}: {shown(response.text, self.at.key)}"
        error: Any = response.text
        with suppress(ValueError):  # keep the text if it is no JSON
            error = response.json()
        if isinstance(error, dict):
            error = error.get("error", error.get("detail", error))
        text = json.dumps(error)
        spent = SPENT.search(text) if status in (402, 403, 429) else status == 400 and OWES.search(text)
        if spent and not retry_after_s(response.headers) and not (status == 429 and LIMITED.search(text)):
            return self._trouble(address, "unpaid", f"{detail}. Check the account's plan and billing", True)
        if status in RETRY_STATUSES:
            reason = "overloaded" if status == 429 else "unavailable"
            return self._trouble(address, reason, detail, True, True)
        if status in OPERATOR:
            return self._trouble(address, OPERATOR[status], f"{detail}. Check the key, url and model", True)
        if status < 400:
            return self._trouble(address, "redirected", f"{detail}. Put the final address in url", True)
        return self._trouble(address, "refused", detail, status >= 500, False, error)

    def _trouble(self, address: _Address, reason: str, detail: str, *more: Any) -> Trouble:
        """Makes a Trouble whose detail does not contain the key. `more` are the fields after the detail."""
        return Trouble(reason, masked(f"{address.url}: {detail}", self.at.key), *more)


def _status_inside(tree: Any) -> int | None:
    """Returns the status of an error inside an answer with status 200; None if there is none. Gateways put
    such an error at the top, or in the place of a choice. An error about spent credit counts as 429."""
    choices = (tree.get("choices") or [None]) if isinstance(tree, dict) else [None]
    for place in (tree, choices[0]):
        error = place.get("error") if isinstance(place, dict) else None
        try:
            if 300 <= (status := int(error["code"])) < 600:  # type: ignore[index]
                return status
        except (KeyError, TypeError, ValueError):
            if error and SPENT.search(json.dumps(error)):
                return 429
    return None
