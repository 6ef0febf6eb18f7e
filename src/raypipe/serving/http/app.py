"""The routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from functools import partial
from http import HTTPStatus
from typing import Any, Protocol

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from raypipe.core.errors import ConfError
from raypipe.recipes.recipe import Recipe
from raypipe.serving.access import ServerConfig
from raypipe.serving.answerer import NULL_LISTENER, Listener, QueryRequest, QueryResult, StoreSnapshot
from raypipe.serving.http import errors, requests, stream
from raypipe.serving.http import openai as chat
from raypipe.serving.http.admission import Slots, body, check, waited
from raypipe.serving.http.errors import RequestRefused, to_problem
from raypipe.serving.http.middleware import NoMetrics, ObservedApp, RequestMetrics, request_id
from raypipe.serving.http.openai import ChatBody
from raypipe.serving.http.openapi import described
from raypipe.serving.http.page import page
from raypipe.serving.http.requests import AnswerBody, BatchBody, RetrieveBody, asked, read
from raypipe.serving.http.responses import AnswerResponse, reply, retrieved

AT_ONCE = 4
"""Questions of one batch that are answered at the same time: it has the slot of one request."""


class AnswererProtocol(Protocol):
    """What answers: `serving.answerer.Answerer`, or something that follows a release."""

    @property
    def recipe(self) -> Recipe: ...
    @property
    def release(self) -> str | None: ...
    async def ready(self) -> list[str]: ...
    async def opened(self) -> StoreSnapshot: ...
    async def answer(self, asked: QueryRequest, heard: Listener = NULL_LISTENER) -> QueryResult: ...
    async def retrieve(self, asked: QueryRequest, heard: Listener = NULL_LISTENER) -> QueryResult: ...


class ReleaseRouter(Protocol):
    """Gives each request the one that answers it, from its first byte to its last."""

    async def current(self) -> AnswererProtocol: ...


class Service:
    """The questions behind the routes."""

    def __init__(self, answerer: ReleaseRouter, face: ServerConfig, meters: RequestMetrics) -> None:
        self._answerer, self._face, self._meters = answerer, face, meters
        self._slots = Slots(face.limits.ongoing)

    async def _read(self, request: Request) -> bytes:
        return await body(request, self._face.limits)

    def _asked(
        self, query: str, beside: requests.QueryOptions, include: Collection[requests.Include] = ()
    ) -> QueryRequest:
        return asked(query, beside, self._face.limits.deadline_s, self._face.limits.longest_s, include)

    async def answer(self, request: Request) -> Response:
        sent = read(AnswerBody, await self._read(request))
        oracle = await self._answerer.current()
        if sent.stream:
            return await self._stream(request, partial(self._said, oracle, sent), stream.written)
        async with self._slots.one():
            return JSONResponse(await waited(request, self._said(oracle, sent, NULL_LISTENER, request)))

    async def batch(self, request: Request) -> Response:
        sent = read(BatchBody, await self._read(request))
        oracle, turns = await self._answerer.current(), asyncio.Semaphore(AT_ONCE)

        async def one(query: requests.QueryBody) -> Any:
            async with turns:
                try:
                    return await self._said(oracle, query, NULL_LISTENER)
                except Exception as e:
                    return {"problem": errors.body(to_problem(e))}

        async with self._slots.one():
            answers = await waited(request, asyncio.gather(*(one(q) for q in sent.queries)))
        return JSONResponse({"answers": answers})

    async def retrieve(self, request: Request) -> Response:
        sent = read(RetrieveBody, await self._read(request))
        oracle = await self._answerer.current()
        async with self._slots.one():
            try:
                found = await waited(request, oracle.retrieve(self._asked(sent.query, sent)))
            except ConfError as e:
                raise RequestRefused(HTTPStatus.NOT_FOUND, "this recipe ranks no passages") from e
        return JSONResponse(retrieved(found, sent.top))

    async def chat(self, request: Request) -> Response:
        try:
            return await self._chat(request)
        except (RequestRefused, *errors.EXPECTED) as e:
            return chat.refusal(to_problem(e))

    async def _chat(self, request: Request) -> Response:
        sent = read(ChatBody, await self._read(request))
        oracle, id = await self._answerer.current(), request_id.get()
        if sent.model not in names(oracle):
            raise RequestRefused(HTTPStatus.NOT_FOUND, "no such model is served: GET /v1/models lists them")
        query = requests.QueryBody(query=sent.query(), **dict(sent.raypipe))
        if sent.stream:
            return await self._stream(
                request, partial(self._said, oracle, query), partial(chat.chunks, id, sent)
            )
        async with self._slots.one():
            said = await waited(request, self._said(oracle, query, NULL_LISTENER, request))
        return JSONResponse(chat.completion(id, sent.model, said))

    async def _said(
        self,
        oracle: AnswererProtocol,
        sent: requests.QueryBody,
        heard: Listener,
        request: Request | None = None,
    ) -> AnswerResponse:
        answered = await oracle.answer(self._asked(sent.query, sent, sent.include), heard)
        self._meters.answered(answered)
        if request is not None:
            q = answered.question
            noted = {"outcome": q.outcome, "degraded": list(q.degraded), "release": answered.release}
            request.state.noted.update(noted)
        return reply(answered, sent.include)

    async def _stream(
        self,
        request: Request,
        said: Callable[[Listener, Request], Awaitable[AnswerResponse]],
        written: Callable[[AsyncIterator[stream.Event | None]], AsyncIterator[str]],
    ) -> Response:
        """One question as a stream. Its slot is taken here, so that a refusal is still a status, and given
        back with the answer: a client that does not read it keeps nobody else from one."""
        slot = AsyncExitStack()
        await slot.enter_async_context(self._slots.one())

        async def work(heard: Listener) -> AnswerResponse:
            async with slot:
                return await said(heard, request)

        return stream.ClosingStream(written(stream.events(request, work)), slot.aclose)

    async def index(self, request: Request) -> Response:
        oracle = await self._answerer.current()
        rows = await asyncio.to_thread((await oracle.opened()).rows)
        recipe = oracle.recipe
        return JSONResponse(
            {
                "release": oracle.release,
                "recipe": {"name": recipe.name, "digest": recipe.digest()},
                "embedders": [m.name for m in recipe.embedders()],
                "rows": rows,
            }
        )

    async def models(self, request: Request) -> Response:
        oracle = await self._answerer.current()
        weights = {m.name: m.weights for m in oracle.recipe.models()}
        entry = {"object": "model", "created": 0, "owned_by": "raypipe"}
        told = {"recipe": oracle.recipe.digest(), "models": weights}
        return JSONResponse({"object": "list", "data": [{"id": id, **entry, **told} for id in names(oracle)]})

    async def healthz(self, request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def readyz(self, request: Request) -> Response:
        away = await (await self._answerer.current()).ready()
        return JSONResponse({"status": "ready", "away": away})


def names(oracle: AnswererProtocol) -> list[str]:
    """What a chat client may call the model."""
    return ["raypipe", oracle.recipe.name] if oracle.recipe.name != "raypipe" else ["raypipe"]


def application(
    answerer: ReleaseRouter,
    face: ServerConfig | None = None,
    meters: RequestMetrics | None = None,
    named: bool = False,
) -> FastAPI:
    """The app. The page and the two health routes have no question and no answer: they need no key. `named`:
    something in front gives requests their ids."""
    face, meters = face or ServerConfig(), meters or NoMetrics()
    service = Service(answerer, face, meters)

    async def may_ask(request: Request) -> None:
        check(face.keys, request.headers, request.client.host if request.client else None)

    app = FastAPI(title="raypipe", docs_url=None, redoc_url=None, openapi_url=None)
    guard = [Depends(may_ask)]
    for path, post in {
        "/v1/answer": service.answer,
        "/v1/answer:batch": service.batch,
        "/v1/retrieve": service.retrieve,
        "/v1/chat/completions": service.chat,
    }.items():
        app.add_api_route(path, post, methods=["POST"], dependencies=guard)
    document = described()

    async def openapi(request: Request) -> Response:
        return JSONResponse(document)

    for path, get in {
        "/v1/index": service.index,
        "/v1/models": service.models,
        "/openapi.json": openapi,
    }.items():
        app.add_api_route(path, get, methods=["GET"], dependencies=guard)
    app.add_api_route("/healthz", service.healthz, methods=["GET"])
    app.add_api_route("/readyz", service.readyz, methods=["GET"])
    html, headers = page()

    async def root(request: Request) -> Response:
        return HTMLResponse(html, headers=headers)

    if face.page:
        app.add_api_route("/", root, methods=["GET"])
    errors.handle(app)
    app.add_middleware(ObservedApp, meters=meters, named=named)
    return app
