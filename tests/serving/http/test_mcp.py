"""The tools for agents, asked by the protocol's own client: over HTTP in this process, and over stdio."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from contextlib import asynccontextmanager

import httpx2
import pytest
from checkout import ROOT, SUPPORT
from http_app import JSON, listening, send, served
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from raypipe.models.kit import LocalKit
from raypipe.serving.access import ApiKeys, KeyFilter, RequestLimits, ServerConfig
from raypipe.serving.answerer import Answerer
from raypipe.serving.http.mcp_tools import MAX_BYTES, TOOLS
from raypipe.serving.query import Filters

pytestmark = pytest.mark.slow
ACCEPTS = {"accept": "application/json, text/event-stream"}
KEY, PART = "the-key-of-these-tests", "the-key-of-a-part-of-the-store"


def app_of(filled, answerer=None, **config):
    online = answerer or Answerer(filled.recipe, LocalKit(None, "transformers"), filled.store.uri)
    return served(online, ServerConfig(**{"mcp": True, "keys": ApiKeys.of([KEY]), **config}))


@pytest.fixture(scope="module")
def job(filled):
    return next(q for q in filled.answers if q.outcome == "answered")


@pytest.fixture(scope="module")
def app(filled, job):
    hidden = job.order[0].split(":")[0]
    others = tuple(s for q in filled.answers for s in q.sources() if s != hidden)
    return app_of(filled, key_filters=(KeyFilter("part", ApiKeys.of([PART]), Filters(sources=others)),))


@asynccontextmanager
async def connected(app, key=KEY, mode="auto"):
    headers = {"authorization": f"Bearer {key}"}
    transport = httpx2.ASGITransport(app=app)
    async with (
        httpx2.AsyncClient(transport=transport, headers=headers) as http,
        Client(streamable_http_client("http://here/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


def called(app, *calls, key=KEY, mode="auto"):
    """The results of calls of tools, one after the other: (name, arguments)."""

    async def all_of_them():
        async with connected(app, key, mode) as client:
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return asyncio.run(all_of_them())


def route(app, path, **body):
    """What the route replies to the same, without its times."""
    content = {"content": json.dumps(body), "headers": {**JSON, "authorization": f"Bearer {KEY}"}}
    [reply] = send(app, ("POST", path, content))
    return {**reply.json(), "timings_ms": 0}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_tool_gives_what_its_route_gives_with_places_as_a_text_too(app, job, mode):
    asked = {"query": job.text}
    answer, ranked, why = called(
        app, ("answer", asked), ("retrieve", {**asked, "top": 2}), ("why", asked), mode=mode
    )
    said = answer.structured_content
    assert {**said, "timings_ms": 0} == route(app, "/v1/answer", **asked)
    assert (said["answer"], answer.is_error) == (job.answer, False)
    [text] = answer.content
    for quote in said["citations"]:
        assert quote["quote"] in text.text and quote["url"] in text.text and quote["source"] in text.text
    found = ranked.structured_content
    assert {**found, "timings_ms": 0} == route(app, "/v1/retrieve", **asked, top=2)
    assert [p["chunk"] for p in found["passages"]] == list(job.order[:2])
    assert all(p["text"] in ranked.content[0].text for p in found["passages"])
    made = why.structured_content
    assert made["replies"]["extract"]["text"] == job.answer and made["passages"] and made["faults"] == []
    assert made["versions"]["recipe"] in why.content[0].text


def test_every_field_of_a_body_is_an_argument_but_those_that_are_left_out(app):
    async def listed():
        async with connected(app) as client:
            return (await client.list_tools()).tools

    tools = {tool.name: tool for tool in asyncio.run(listed())}
    assert tools.keys() == TOOLS.keys()
    for name, tool in tools.items():
        left_out = {"documents", "stream"} | (set() if name == "why" else {"include"})
        assert tool.input_schema["properties"].keys() == TOOLS[name].body.model_fields.keys() - left_out
        assert tool.output_schema["properties"].keys() == TOOLS[name].reply.model_fields.keys()
        assert all(f.get("description") for f in tool.input_schema["properties"].values())


def test_documents_are_listed_and_read_by_pages(app, filled, job):
    source = job.order[0].split(":")[0]
    [text] = filled.texts(source)

    async def read():
        async with connected(app) as client:
            listed, offset, pieces, next = [], 0, [], 0
            while offset is not None:
                page = (
                    await client.call_tool("documents", {"offset": offset, "limit": 20})
                ).structured_content
                listed, offset = listed + page["documents"], page["next"]
            while next is not None:
                arguments = {"source": source, "offset": next, "limit": 100}
                page = (await client.call_tool("documents", arguments)).structured_content
                [piece], next = page["documents"], page["next"]
                pieces.append(piece)
            return listed, page["total"], pieces

    listed, chars, pieces = asyncio.run(read())
    assert len({d["source"] for d in listed}) == len(listed) == filled.store.count(filled.recipe.texts_table)
    assert source in {d["source"] for d in listed} and chars == len(text)
    assert "".join(p["text"] for p in pieces).replace("\n", " ") == text
    assert [p["span"][0] for p in pieces] == list(range(0, chars, 100)) and pieces[0]["url"]


def test_a_wrong_call_is_an_error_that_says_what_to_do(app, job):
    calls = {
        "qery": ("answer", {"qery": job.text}),
        "top": ("retrieve", {"query": job.text, "top": 0}),
        "stream": ("answer", {"query": job.text, "stream": True}),
        "documents": ("answer", {"query": job.text, "documents": []}),
        "unknown": ("documents", {"source": "0" * 32}),
        "deadline_s": ("answer", {"query": job.text, "deadline_s": 1e6}),
    }
    results = dict(zip(calls, called(app, *calls.values(), mode="legacy"), strict=True))
    texts = {name: result.content[0].text for name, result in results.items()}
    assert all(result.is_error for result in results.values())
    assert "query: expected this field" in texts["qery"] or "did you mean 'query'" in texts["qery"]
    assert "top: expected at least 1" in texts["top"] and "at most 120 seconds" in texts["deadline_s"]
    assert "known: deadline_s, filters, query, time, turns" in texts["documents"]
    assert "comes whole" in texts["stream"] and "Unknown document" in texts["unknown"]
    assert not any("Traceback" in text for text in texts.values())

    async def unknown():
        async with connected(app) as client:
            with pytest.raises(MCPError, match="retrieve, answer, why, documents"):
                await client.call_tool("search", {})

    asyncio.run(unknown())


def test_a_key_is_needed_and_a_filter_of_one_hides_a_document(app, job):
    source = job.order[0].split(":")[0]
    with pytest.raises((ExceptionGroup, MCPError)):
        called(app, ("answer", {"query": job.text}), key="no-key-of-these-tests")
    read, ranked = called(
        app, ("documents", {"source": source}), ("retrieve", {"query": job.text, "top": 100}), key=PART
    )
    assert read.is_error and "Unknown document" in read.content[0].text
    assert source not in json.dumps(ranked.structured_content)

    async def all_listed():
        async with connected(app, PART) as client:
            return (await client.call_tool("documents", {"limit": 1000})).structured_content

    page = asyncio.run(all_listed())
    assert page["total"] == len(page["documents"]) > 0
    assert source not in {d["source"] for d in page["documents"]}


def posted(app, body, client=("127.0.0.1", 1), **headers):
    [reply] = send(
        app, ("POST", "/mcp", {"content": body, "headers": {**JSON, **ACCEPTS, **headers}}), client=client
    )
    return reply


def test_no_page_of_another_site_and_no_other_machine_is_answered(filled):
    app = app_of(filled, keys=ApiKeys())
    ping = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})
    assert posted(app, ping, host="localhost").status_code == 200
    assert posted(app, ping, host="localhost:8000", origin="http://localhost:6274").status_code == 200
    for at, headers in (
        ("127.0.0.1", {"host": "evil.example"}),  # a name that was pointed at this machine
        ("127.0.0.1", {"host": "localhost", "origin": "https://evil.example"}),
        ("127.0.0.1", {"host": "localhost", "origin": "null"}),
        ("192.0.2.1", {"host": "localhost"}),
    ):
        assert posted(app, ping, client=(at, 1), **headers).status_code == 403
    assert posted(app, b"x" * (MAX_BYTES + 1), host="localhost").status_code == 413
    [got] = send(app, ("GET", "/mcp", {}))
    assert got.status_code == 405  # there is no stream to listen to


class Slow:
    """An answerer that sleeps, and knows how it ended."""

    release = None

    def __init__(self, recipe):
        self.recipe, self.begun, self.cancelled = recipe, threading.Event(), threading.Event()

    async def current(self):
        return self

    async def answer(self, request, listener=None):
        self.begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


def test_a_client_that_goes_away_ends_the_work_for_it_and_a_full_endpoint_says_so(filled):
    limits = RequestLimits(max_ongoing_requests=1)

    async def dropped(mode):
        slow = Slow(filled.recipe)
        app = app_of(filled, slow, limits=limits)
        async with connected(app, mode=mode) as client:
            call = asyncio.ensure_future(client.call_tool("answer", {"query": "who?"}))
            assert await asyncio.to_thread(slow.begun.wait, 20)
            full = await client.call_tool("answer", {"query": "who?"})
            assert full.is_error and "Retry" in full.content[0].text
            call.cancel()
        assert await asyncio.to_thread(slow.cancelled.wait, 20)

    for mode in ("auto", "legacy"):
        asyncio.run(dropped(mode))
    slow = Slow(filled.recipe)
    call = {"name": "answer", "arguments": {"query": "who?"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    with listening(app_of(filled, slow)) as url, pytest.raises(httpx2.ReadTimeout):  # the connection closes
        httpx2.post(f"{url}/mcp", json=body, headers=ACCEPTS | {"authorization": f"Bearer {KEY}"}, timeout=2)
    assert slow.cancelled.wait(20)


def test_a_deadline_that_passes_is_said_in_the_answer(app, job):
    [late] = called(app, ("answer", {"query": job.text, "deadline_s": 0.001}))
    assert late.structured_content["degraded"] and "Omitted" in late.content[0].text and not late.is_error


def test_over_stdio_a_folder_is_read_while_the_client_is_connected_and_stdout_has_the_protocol_alone(
    tmp_path,
):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "pump.md").write_text("# Pump\n\nThe pump has a warranty of two years.\n")
    words = ["-m", "raypipe", "serve", str(SUPPORT / "fakes.yaml"), "--docs", str(docs), "--mcp", "stdio"]
    env = {**os.environ, "RAYPIPE_HOME": str(tmp_path / "home"), "RAYPIPE_CONF": str(ROOT / "conf")}

    async def asked():
        log = (tmp_path / "stderr").open("w")
        parameters = StdioServerParameters(command=sys.executable, args=words, env=env)
        async with Client(stdio_client(parameters, errlog=log), read_timeout_seconds=60) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS.keys()
            answer = await client.call_tool("answer", {"query": "how long is the warranty?"})
            [document] = (await client.call_tool("documents", {})).structured_content["documents"]
            wrong = await client.call_tool("answer", {})
        return answer, document, wrong

    answer, document, wrong = asyncio.run(asked())
    [quote] = answer.structured_content["citations"]
    assert (answer.structured_content["answer"], quote["url"], quote["title"]) == (
        "two years",
        "pump.md",
        "Pump",
    )
    assert document["source"] == quote["source"] and wrong.is_error
    assert "embedded 1/1" in (tmp_path / "stderr").read_text()


@pytest.mark.drill
def test_a_process_that_nothing_can_be_searched_in_says_why_to_its_client_and_ends_with_it(tmp_path):
    words = [sys.executable, "-m", "raypipe", "serve", str(SUPPORT / "fakes.yaml"), "--mcp", "stdio"]
    env = {**os.environ, "RAYPIPE_HOME": str(tmp_path / "home"), "RAYPIPE_CONF": str(ROOT / "conf")}
    done = subprocess.run(
        [*words, "--store", str(tmp_path)], env=env, input="", capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stdout == ""
    done = subprocess.run(
        [*words, "--docs", str(tmp_path / "no")], env=env, input="", capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout == "" and "Traceback" not in done.stderr
