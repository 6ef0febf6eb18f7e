"""Tools for agents: the endpoint by the Model Context Protocol, over HTTP or over stdin and stdout.

A call of a tool becomes a request to a route of the app. So the keys, filters, limits, deadlines, metrics and
log of the route apply. The arguments of the tool are fields of the request's body, so a new field becomes a
new argument. The result has the response's body twice: as a JSON object, and as text for clients that read
only text. In this module, "reply" means this body. The optional package `mcp` is imported only when a server
is made, because the import takes half a second.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel
from starlette.types import Message

from raypipe.core.config import did_you_mean
from raypipe.serving.http.errors import RequestRefused
from raypipe.serving.http.listing import ListingBody, ListingResponse
from raypipe.serving.http.middleware import request_id
from raypipe.serving.http.replies import AnswerFields, AnswerResponse, ReplyFields, RetrieveResponse
from raypipe.serving.http.requests import QueryBody, RetrieveBody

if TYPE_CHECKING:
    from mcp.server.lowlevel.server import Server

PATH = "/mcp"
MAX_BYTES = 1 << 18
"""Most bytes of a request: a question and some options. The parse of a larger one would delay others."""
INSTRUCTIONS = (
    "Search these documents before you answer from memory. `answer` has exact quotes and their places; "
    "`retrieve` has the passages, `documents` the whole texts, `why` what an answer was made of."
)
LEFT_OUT = ("documents", "stream", "include")  # fields that are no arguments; `why` takes `include`
Reply = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RouteTool:
    """A route of the API, offered as a tool."""

    path: str
    body: type[BaseModel]
    reply: type[BaseModel]
    text: Callable[[Reply], str]  # formats a reply for clients that read no structure
    about: str  # description for the model that chooses among tools
    include: Sequence[str] = ()  # default of the argument `include`; (): the tool has no such argument

    def arguments(self) -> dict[str, Any]:
        """Builds the JSON Schema of the arguments: the body's schema without the fields in LEFT_OUT."""
        schema = self.body.model_json_schema()
        fields = schema["properties"]
        schema["properties"] = {n: f for n, f in fields.items() if n not in LEFT_OUT}
        if self.include:
            schema["properties"]["include"] = {**fields["include"], "default": self.include}
        text = json.dumps(schema)
        shapes = {n: s for n, s in schema.pop("$defs", {}).items() if f'"#/$defs/{n}"' in text}
        return {**schema, "$defs": shapes, "title": "arguments", "description": self.about}


def _answer(reply: Reply) -> str:
    """Formats the answer, its outcome and confidence, and its quotes with their places."""
    sure = "" if reply.get("confidence") is None else f", confidence {reply['confidence']:.2f}"
    lines = [f"{reply['answer'] or '(no answer)'} [{reply['outcome']}{sure}]"]
    if reply["degraded"]:
        lines.append(f"Omitted, out of time or unavailable: {', '.join(reply['degraded'])}.")
    closest = "The documents do not say. Closest" if reply["outcome"] == "abstained" else "Quotes"
    for head, quotes in ((closest, reply["citations"]), ("Other documents say", reply.get("others", ()))):
        lines += [f"{head}:"] if quotes else []
        for n, q in enumerate(quotes, start=1):
            where = f"{_place(q)}source {q['source']}, characters {q['span'][0]}-{q['span'][1]}"
            lines.append(f'[{n}] "{q["quote"]}" ({where})')
    return "\n".join(lines)


def _place(of: Reply) -> str:
    """Formats the title, page, section and url of a passage or a quote, if it has them."""
    named = dict.fromkeys(of.get(name) for name in ("title", "page", "section", "url"))
    return "".join(f"{name}, " for name in named if name)


def _passages(reply: Reply) -> str:
    found = []
    for n, p in enumerate(reply["passages"], start=1):
        scores = " ".join(f"{name} {score:.3f}" for name, score in p["scores"].items())
        found.append(f"[{n}] ({_place(p)}passage {p['chunk']}) {scores}\n{p['text']}")
    return "\n\n".join(found) or "No passage was found."


def _why(reply: Reply) -> str:
    """Formats the answer and the ranked passages as text, and all other fields of the reply as JSON."""
    shown = AnswerFields.model_fields.keys() - ReplyFields.model_fields.keys() | {"answer", "passages"}
    rest = json.dumps({n: v for n, v in reply.items() if n not in shown}, ensure_ascii=False, indent=1)
    return "\n\n".join([_answer(reply), _passages(reply) if "passages" in reply else "", rest])


def _documents(reply: Reply) -> str:
    found = []
    for d in reply["documents"]:
        found.append(f"{_place(d)}source {d['source']}")
        if "text" in d:
            found.append(f"characters {d['span'][0]}-{d['span'][1]} of {reply['total']}:\n{d['text']}")
    if reply["next"] is not None:
        found.append(f"There is more: ask again with offset {reply['next']}.")
    return "\n".join(found) or "No document is there."


TOOLS: Mapping[str, RouteTool] = {
    "retrieve": RouteTool(
        "/v1/retrieve",
        RetrieveBody,
        RetrieveResponse,
        _passages,
        "Find the passages that match a question best, with their texts and places. No answer is written.",
    ),
    "answer": RouteTool(
        "/v1/answer",
        QueryBody,
        AnswerResponse,
        _answer,
        "Answer a question from the documents, with exact quotes and their places, or say that they do not "
        "have the answer.",
    ),
    "why": RouteTool(
        "/v1/answer",
        QueryBody,
        AnswerResponse,
        _why,
        "Show what the answer to a question is made of: replies of steps, ranked passages and scores, what "
        "failed, versions. Takes the arguments of `answer`. With `prompts` in `include` it asks language "
        "models again and shows the chats.",
        ("replies", "faults", "passages"),
    ),
    "documents": RouteTool(
        "/v1/documents",
        ListingBody,
        ListingResponse,
        _documents,
        "List the documents that are searched. With `source`, read the text of one from `offset` on.",
    ),
}


def server(app: FastAPI) -> Server[Any]:
    """Makes an MCP server with the tools in TOOLS. A call over stdin counts as one from this machine."""
    import mcp_types as types
    from mcp.server.lowlevel.server import Server
    from mcp.shared.exceptions import MCPError

    reads = types.ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)
    tools = [
        types.Tool(
            name=name,
            description=tool.about,
            input_schema=tool.arguments(),
            output_schema=tool.reply.model_json_schema(),
            annotations=reads,
        )
        for name, tool in TOOLS.items()
    ]

    known = {tool.name: tool.input_schema["properties"] for tool in tools}

    def refused(why: str) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(text=why)], is_error=True)

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=tools)

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        tool = TOOLS.get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool. There are: {', '.join(TOOLS)}.")
        given = ({"include": tool.include} if tool.include else {}) | (params.arguments or {})
        if "stream" in given:
            return refused("stream: expected none: the result of a tool comes whole.")
        for unknown in sorted(given.keys() - known[params.name].keys()):
            return refused(f"Unknown argument {unknown!r}: {did_you_mean(unknown, known[params.name])}")
        reply = await _posted(app, tool.path, given, context.request)
        result = reply.json()
        if reply.is_success:
            text = types.TextContent(text=tool.text(result))
            return types.CallToolResult(content=[text], structured_content=result)
        fields = (f"{e['at']}: {e['problem']}." for e in result.get("errors", ()))
        return refused(" ".join([result["detail"], *fields]))

    return Server(
        "raypipe",
        version=version("raypipe"),
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def _posted(app: FastAPI, path: str, body: Reply, request: Request | None) -> httpx.Response:
    """Posts `body` to a route, with the key, address and id of `request`. If `request` is None, the post
    counts as one from this machine."""
    client, headers = ("127.0.0.1", 0), {"host": "localhost", "content-type": "application/json"}
    if request is not None:
        client = (request.client.host, request.client.port) if request.client else ("", 0)
        kept = {n: request.headers[n] for n in ("authorization", "host") if n in request.headers}
        headers |= kept | {"x-request-id": request_id.get()}
    transport = httpx.ASGITransport(app, client=client)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=None) as http:
        return await http.post(path, content=json.dumps(body).encode(), headers=headers)


async def handle(tools: Server[Any], request: Request, body: bytes) -> Response:
    """Answers one HTTP request, without a session, so that any gateway can answer the next request."""
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    manager = StreamableHTTPSessionManager(tools, json_response=True, stateless=True)
    sent: list[Message] = []
    unread = [body]

    async def receive() -> Message:
        if not unread:
            await asyncio.Event().wait()  # the caller is cancelled when the client disconnects
        return {"type": "http.request", "body": unread.pop(), "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    async with manager.run():
        await manager.handle_request(request.scope, receive, send)
    start, content = sent[0], b"".join(message.get("body", b"") for message in sent[1:])
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}
    return Response(content, start["status"], headers)


def require_own_site(request: Request) -> None:
    """Raises RequestRefused if a page of another site made a browser send the request. The header `origin`
    names that site. The check is needed because the site may point its own host name at this machine."""
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    if origin is not None and urlsplit(origin).hostname != urlsplit(f"//{host}").hostname:
        detail = "Expected a client, or a page of this endpoint: this request is from a page of another site."
        raise RequestRefused(HTTPStatus.FORBIDDEN, detail)


async def serve_stdio(app: FastAPI) -> None:
    """Serves the tools over stdin and stdout until stdin ends. Meanwhile other output to stdout, of this
    process or its children, goes to stderr."""
    from mcp.server.stdio import stdio_server

    tools = server(app)
    async with app.router.lifespan_context(app), stdio_server(_stdin_lines()) as (come, go):  # type: ignore[arg-type]
        await tools.run(come, go, tools.create_initialization_options())


async def _stdin_lines() -> AsyncIterator[str]:
    """Yields the lines of stdin, and hides stdin from all other code. Reads on the event loop, because a
    signal cannot end a thread that waits for input."""
    reader = asyncio.StreamReader(limit=16 << 20)
    pipe = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    async for line in reader:
        yield line.decode("utf-8", "replace")
