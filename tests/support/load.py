"""Many requests to an endpoint: what came of each, and how long it took."""

import asyncio
import time
from dataclasses import dataclass

import httpx


@dataclass(frozen=True)
class Came:
    """What one request came to."""

    status: int  # 0: the connection broke
    seconds: float
    body: object  # of a JSON reply
    retry_after: str | None
    tries: int


async def fire(url, bodies, at_once, headers, retries=0, path="/v1/answer", timeout=90.0, done=None):
    """Sends every body, `at_once` in flight. A request that broke or met a 5xx is sent again `retries`
    times. `done`: a list that has each `Came` as soon as it is there."""
    found, turns = [None] * len(bodies), asyncio.Semaphore(at_once)
    limits = httpx.Limits(max_connections=at_once + 10)
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout, limits=limits) as client:

        async def one(i, body):
            async with turns:
                start = time.perf_counter()
                tries, status = 0, 0
                while tries <= retries and (status == 0 or status >= 500):
                    tries += 1
                    try:
                        reply = await client.post(path, json=body)
                        status, said = reply.status_code, reply.json()
                        wait = reply.headers.get("retry-after")
                    except (httpx.TransportError, ValueError):
                        status, said, wait = 0, None, None
                found[i] = Came(status, time.perf_counter() - start, said, wait, tries)
                if done is not None:
                    done.append(found[i])

        await asyncio.gather(*(one(i, body) for i, body in enumerate(bodies)))
    return found
