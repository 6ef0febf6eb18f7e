"""The HTTP app in this process, for tests: called without a socket, or listening on one."""

import asyncio
import json
import threading
import time
from contextlib import contextmanager

import httpx
import uvicorn

from raypipe.serving.access import ApiKeys, RequestLimits, ServerConfig
from raypipe.serving.http import create_app

OPEN = ServerConfig(ApiKeys(open=True), RequestLimits(max_body_bytes=1 << 20))
JSON = {"content-type": "application/json"}


def served(answerer, config=OPEN, metrics=None):
    return create_app(answerer, config, metrics)


def send(app, *requests, **client):
    """The replies to some requests that are in flight together: (method, path, keywords of httpx)."""

    async def all_of_them():
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False, **client)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
            return await asyncio.gather(*(http.request(m, p, **k) for m, p, k in requests))

    return asyncio.run(all_of_them())


def ask(app, body, path="/v1/answer", **headers):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    [reply] = send(app, ("POST", path, {"content": content, "headers": {**JSON, **headers}}))
    return reply


def events(text):
    """The server-sent events in a text: (name, data)."""
    found = []
    for block in text.split("\n\n"):
        lines = dict(x.split(": ", 1) for x in block.split("\n") if x and not x.startswith(":"))
        if lines:
            found.append((lines.get("event"), lines["data"]))
    return found


@contextmanager
def listening(app):
    """The address of the app on a socket of this machine."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)
