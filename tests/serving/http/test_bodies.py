"""Bodies of requests are bounded together before they are read, and reading one holds up no other."""

import asyncio
import json
import socket
import time

import httpx
import pytest
from http_app import JSON, listening, send, served
from pace import within

from raypipe.serving.access import ApiKeys, RequestLimits, ServerConfig
from raypipe.serving.answerer import NotReady
from raypipe.serving.http.chat import ChatBody
from raypipe.serving.http.middleware import RequestMetrics
from raypipe.serving.http.requests import parse_body

MB = 1 << 20
QUESTION = json.dumps({"query": "who?"}).encode()
LATE = {408, 503}  # 503: on a busy machine, the gateway blames itself


class Absent:
    """A recipe that is asked and has no answer; a stream of it is longer than any connection buffers."""

    recipe, release = None, None

    async def current(self):
        return self

    async def answer(self, request, listener=None):
        for _ in range(1000):
            listener.on_draft("x" * 10_000)
        raise NotReady("it has no answer")


class Watched(RequestMetrics):
    def __init__(self):
        self.seen = [0]

    def bytes_in_flight(self, count):
        self.seen.append(count)


def app_with(metrics=None, **limits):
    return served(Absent(), ServerConfig(ApiKeys(open=True), RequestLimits(**limits)), metrics)


async def post(app, chunks, declared=None, then_s=0.0):
    """The status and the headers of the reply to a body that comes in these pieces and then stops, and how
    many of them were asked for."""
    headers = [(b"content-type", b"application/json"), (b"host", b"here")]
    headers += [(b"content-length", str(declared).encode())] if declared else []
    pieces, read, replied = iter(chunks), 0, {}

    async def receive():
        nonlocal read
        read += 1
        if (piece := next(pieces, None)) is None:
            await asyncio.sleep(then_s)
            return {"type": "http.disconnect"}
        await asyncio.sleep(0)
        return {"type": "http.request", "body": piece, "more_body": True}

    async def reply(message):
        if message["type"] == "http.response.start":
            replied.update(status=message["status"], headers=dict(message["headers"]))

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/answer",
        "raw_path": b"/v1/answer",
        "query_string": b"",
        "headers": headers,
        "client": ("10.0.0.1", 1),
        "server": ("here", 80),
        "scheme": "http",
        "http_version": "1.1",
        "state": {},
    }
    await app(scope, receive, reply)
    return replied["status"], replied["headers"], read


@pytest.mark.parametrize("declared", [None, MB])
def test_bytes_in_flight_are_bounded_and_a_body_that_does_not_fit_is_told_to_come_again(declared):
    watched = Watched()
    app = app_with(watched, max_body_bytes=MB, max_bytes_in_flight=2 * MB, body_timeout_s=1.0)
    pieces = [b"x" * (MB >> 4)] * 15  # the last one is held back

    async def crowd():
        return await asyncio.gather(*(post(app, pieces, declared, 5.0) for _ in range(20)))

    replies = asyncio.run(crowd())
    refused = [headers for status, headers, _ in replies if status == 429]
    assert {status for status, *_ in replies} - LATE == {429} and 18 <= len(refused) < 20
    assert all(h[b"retry-after"] == b"5" and h[b"connection"] == b"close" for h in refused)
    assert max(watched.seen) <= 2 * MB and watched.seen[-1] == 0
    [reply] = send(app, ("POST", "/v1/answer", {"content": QUESTION, "headers": JSON}))
    assert reply.status_code == 503, "it is read again"


def test_a_body_that_says_it_does_not_fit_is_refused_unread_and_takes_nothing():
    app = app_with(max_body_bytes=MB, max_bytes_in_flight=MB, body_timeout_s=1.0)

    async def scene():
        first = asyncio.create_task(post(app, [b"x" * (MB >> 1)], MB, 5.0))
        while not first.done() and (await post(app, [], MB))[0] != 429:
            await asyncio.sleep(0.01)
        status, _, read = await post(app, [QUESTION], MB)
        assert (status, read) == (429, 0)
        assert (await post(app, [b"x" * 10], 10, 0.1))[0] == 499, "one that fits is read"
        assert (await first)[0] in LATE

    asyncio.run(scene())


def test_a_body_that_waits_while_the_gateway_stands_still_is_read():
    app = app_with(body_timeout_s=0.4)

    async def scene():
        halves = [QUESTION[:5], QUESTION[5:]]
        request = asyncio.create_task(post(app, halves, len(QUESTION), 0.2))
        await asyncio.sleep(0)
        time.sleep(1.0)  # the event loop runs nothing, and the rest waits
        status, _, read = await request
        assert (status, read) == (499, 3), "it is read until the client leaves"

    asyncio.run(scene())


def test_a_gateway_that_cannot_read_a_body_in_time_blames_itself():
    app = app_with(body_timeout_s=0.2)

    async def scene():
        request = asyncio.create_task(post(app, [QUESTION[:5]], len(QUESTION), 60.0))
        while not request.done():
            await asyncio.sleep(0)
            time.sleep(0.1)
        status, headers, _ = await request
        assert status == 503 and headers[b"retry-after"] == b"5" and headers[b"connection"] == b"close"

    asyncio.run(scene())


def test_a_client_that_never_reads_its_stream_holds_no_bytes():
    body = json.dumps({"query": "x", "stream": True}).encode().ljust(3000)
    app = app_with(max_body_bytes=4096, max_bytes_in_flight=4096)
    head = "POST /v1/answer HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(body)}\r\n\r\n"
    with listening(app) as url, socket.create_connection(("127.0.0.1", httpx.URL(url).port)) as client:
        client.sendall(head.encode() + body)
        assert client.recv(12) == b"HTTP/1.1 200"
        late = time.monotonic() + 30
        while (said := httpx.post(f"{url}/v1/answer", content=body, headers=JSON).status_code) != 200:
            assert said == 429 and time.monotonic() < late


@pytest.mark.parametrize("digits", ["9" * 20, "9" * 5000])
def test_a_size_of_thousands_of_digits_is_too_large(digits):
    [reply] = send(app_with(), ("POST", "/v1/answer", {"headers": {**JSON, "content-length": digits}}))
    assert reply.status_code == 413


@pytest.mark.slow
def test_others_are_answered_while_a_large_body_is_parsed():
    body = b'{"query": [' + b"{}," * (1 << 21) + b"{}]}"

    async def scene():
        transport = httpx.ASGITransport(app=app_with(), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
            large = asyncio.create_task(http.post("/v1/answer", content=body, headers=JSON))
            while not large.done():
                await asyncio.sleep(0.01)
                if (await http.get("/healthz")).is_success and not large.done():
                    break
            assert not large.done()
            assert (await large).status_code == 400

    asyncio.run(scene())


@pytest.mark.parametrize(
    "field", [{"messages": [{"role": "user", "content": [1] * 100_000}]}, {"stop": [1] * 100_000}]
)
def test_a_list_of_mistakes_costs_no_more_than_its_first(field):
    chat = {"model": "x", "messages": [{"role": "user", "content": "who?"}], **field}
    body = json.dumps(chat).encode()
    with (
        within(5),
        pytest.raises(Exception, match="Invalid request") as refused,
    ):  # all of them took ten loops
        parse_body(ChatBody, body, RequestLimits())
    assert len(refused.value.errors) <= 3


def test_what_has_no_effect_is_not_kept():
    chat = {"model": "x", "messages": [{"role": "user", "content": "who?"}]}
    chat |= {"metadata": {"a": [{}]}, "stop": ["a", "b"]}
    body = parse_body(ChatBody, json.dumps(chat).encode(), RequestLimits())
    assert body.metadata is None and body.stop is None


def test_a_bound_below_one_body_is_refused():
    with pytest.raises(ValueError, match="max_bytes_in_flight of at least max_body_bytes"):
        RequestLimits(max_bytes_in_flight=1 << 20)
