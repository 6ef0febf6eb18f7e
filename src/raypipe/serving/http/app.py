"""The routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from raypipe.core.errors import ConfError, Overloaded, Unavailable
from raypipe.evaluation.report import web_page
from raypipe.serving.access import ServerConfig
from raypipe.serving.capture import Capture, RedactionFailed, UnknownAnswer
from raypipe.serving.http import errors, openai, requests, stream
from raypipe.serving.http.errors import RequestRefused, to_problem
from raypipe.serving.http.limits import BytesInFlight, Slots, authorize, read_body, until_disconnect
from raypipe.serving.http.middleware import ObservedApp, RequestMetrics, request_id
from raypipe.serving.http.openai import ChatBody
from raypipe.serving.http.openapi import ROUTES, openapi_document
from raypipe.serving.http.reply_types import AnswerResponse, FeedbackResponse, IndexResponse
from raypipe.serving.http.requests import AnswerBody, B, BatchBody, FeedbackBody, RetrieveBody
from raypipe.serving.http.stream import answer_response, retrieve_response
from raypipe.serving.key_filters import KeyFilter
from raypipe.serving.query import NULL_LISTENER, AnswererProtocol, Listener, QueryRequest, ReleaseRouter
from raypipe.store import StoreError

BATCH_CONCURRENCY = 4
"""Questions of one batch that are answered at the same time: a batch takes the slot of one request."""


PARSED_AT_ONCE = 1 << 18
"""Bytes of a body that is parsed between two other requests: at worst .05 s. Larger ones are on a thread."""


class Routes:
    """The routes of `openapi.ROUTES`, by name.

    A key with a filter has a corpus of its own: its questions are answered from the sources that match,
    whatever the request says; its cached values are under the filter's name; its answers are not captured.
    """

    def __init__(
        self, router: ReleaseRouter, config: ServerConfig, metrics: RequestMetrics, capture: Capture | None
    ) -> None:
        self._router, self._limits, self._metrics, self._capture = router, config.limits, metrics, capture
        self._slots = Slots(config.limits.max_ongoing_requests)
        self._document = openapi_document()
        self._in_flight = BytesInFlight(config.limits.max_bytes_in_flight, metrics)
        self._large_bodies = asyncio.Lock()  # one at a time: of hostile JSON 25 times its bytes are made

    async def _body(self, kind: type[B], request: Request) -> B:
        body = await read_body(request, self._limits, self._in_flight)
        if len(body) <= PARSED_AT_ONCE:
            return requests.parse_body(kind, body, self._limits)
        async with self._large_bodies:
            return await asyncio.to_thread(requests.parse_body, kind, body, self._limits)

    async def _answerer(self, request: Request) -> AnswererProtocol:
        """Returns what answers a request. Refuses a recipe that reads past the key's filter."""
        answerer = await self._router.current()
        if key_filter(request).filters and answerer.recipe.searches_all():
            detail = "This recipe searches the whole store, and this key may search a part of it."
            raise RequestRefused(HTTPStatus.FORBIDDEN, detail)
        return answerer

    def _query(
        self, request: Request, query: str, options: requests.QueryOptions,
        include: Collection[requests.Include] = (),
    ) -> QueryRequest:  # fmt: skip
        asked = requests.query_request(query, options, self._limits.deadline_s, include)
        key = key_filter(request)
        return replace(asked, asker=key.name, key_filter=key.filters)

    async def answer(self, request: Request) -> Response:
        body = await self._body(AnswerBody, request)
        answerer = await self._answerer(request)
        if body.stream:
            return await self._stream(request, partial(self._answer, answerer, body), stream.encode_events)
        with self._slots.slot():
            answer = self._answer(answerer, body, NULL_LISTENER, request)
            return JSONResponse(await until_disconnect(request, answer))

    async def batch(self, request: Request) -> Response:
        body = await self._body(BatchBody, request)
        answerer, turns = await self._answerer(request), asyncio.Semaphore(BATCH_CONCURRENCY)

        async def answer_one(query: requests.QueryBody) -> Any:
            async with turns:
                try:
                    return await self._answer(answerer, query, NULL_LISTENER, request, whole=False)
                except Exception as e:
                    return {"problem": errors.problem_body(to_problem(e))}

        with self._slots.slot():
            answers = await until_disconnect(request, asyncio.gather(*(answer_one(q) for q in body.queries)))
        return JSONResponse({"answers": answers})

    async def retrieve(self, request: Request) -> Response:
        body = await self._body(RetrieveBody, request)
        answerer = await self._answerer(request)
        with self._slots.slot():
            try:
                query = self._query(request, body.query, body)
                ranked = await until_disconnect(request, answerer.retrieve(query))
            except ConfError as e:
                raise RequestRefused(HTTPStatus.NOT_FOUND, "This recipe ranks no passages.") from e
        return JSONResponse(retrieve_response(ranked, body.top))

    async def chat(self, request: Request) -> Response:
        try:
            return await self._chat(request)
        except (RequestRefused, Overloaded, Unavailable, StoreError) as e:
            return openai.error_response(to_problem(e))

    async def _chat(self, request: Request) -> Response:
        body = await self._body(ChatBody, request)
        answerer, id = await self._answerer(request), request_id.get()
        if body.model not in openai.models(answerer.recipe):
            raise openai.unknown_model()
        query = requests.QueryBody(query=body.query(), **dict(body.raypipe))
        if body.stream:
            counts = body.stream_options is not None and body.stream_options.include_usage
            encode = partial(openai.chunks, id, body.model, counts)
            return await self._stream(request, partial(self._answer, answerer, query), encode)
        with self._slots.slot():
            answer = await until_disconnect(request, self._answer(answerer, query, NULL_LISTENER, request))
        return JSONResponse(openai.completion(id, body.model, answer))

    async def _answer(
        self, answerer: AnswererProtocol, query: requests.QueryBody, listener: Listener, request: Request,
        whole: bool = True,
    ) -> AnswerResponse:  # fmt: skip
        """The response to one question; `whole`: it is all that the request asks."""
        asked = self._query(request, query.query, query, query.include)
        if self._capture is not None and not asked.key_filter:
            asked = replace(asked, answer_id=self._capture.choose(asked.asker))
        result = await answerer.answer(asked, listener)
        if self._capture is not None:
            result = self._capture.keep(asked, result)
        self._metrics.question_answered(result)
        if whole:
            q = result.question
            fields = {"outcome": q.outcome, "degraded": list(q.degraded), "release": result.release}
            request.state.log_fields.update(fields)
        return answer_response(result, query.include)

    async def _stream(
        self, request: Request, answer: Callable[[Listener, Request], Awaitable[AnswerResponse]],
        encode: Callable[[AsyncIterator[stream.Event | None]], AsyncIterator[bytes]],
    ) -> Response:  # fmt: skip
        """One question as a stream. Its slot is taken here, so that a refusal is still a status, and released
        with the answer, as are its bytes: a client that does not read it takes nothing from others."""
        slot = ExitStack()
        slot.enter_context(self._slots.slot())
        slot.enter_context(request.state.held.pop_all())

        async def work(listener: Listener) -> AnswerResponse:
            with slot:
                return await answer(listener, request)

        return stream.ClosingStream(encode(stream.event_stream(request, work)), slot.close)

    async def feedback(self, request: Request) -> Response:
        body = await self._body(FeedbackBody, request)
        if self._capture is None:
            raise RequestRefused(HTTPStatus.NOT_FOUND, "This endpoint captures no answers.")
        try:
            await self._capture.feedback(key_filter(request).name, body.answer_id, body.verdict, body.text)
        except UnknownAnswer:
            detail = "Unknown answer: expected the answer_id of a reply to this key that is still kept."
            raise RequestRefused(HTTPStatus.NOT_FOUND, detail) from None
        except RedactionFailed as e:
            request.state.log_fields["redaction"] = str(e)
            detail = "The feedback cannot be redacted, so it is not kept. The endpoint's log says why."
            raise RequestRefused(HTTPStatus.INTERNAL_SERVER_ERROR, detail) from None
        kept: FeedbackResponse = {"answer_id": body.answer_id, "kept": True}
        return JSONResponse(kept)

    async def index(self, request: Request) -> Response:
        answerer = await self._answerer(request)
        snapshot, whole = await answerer.snapshot(), not key_filter(request).filters
        rows = await asyncio.to_thread(snapshot.row_counts)
        recipe = answerer.recipe
        shown: IndexResponse = {
            "release": answerer.release,
            "recipe": {"name": recipe.name, "digest": recipe.digest()},
            "embedders": [m.name for m in recipe.embedders()],
            "rows": rows if whole else {},
            "examples": await asyncio.to_thread(snapshot.examples) if whole else [],
        }
        return JSONResponse(shown)

    async def models(self, request: Request) -> Response:
        entries = openai.models((await self._answerer(request)).recipe)
        return JSONResponse({"object": "list", "data": list(entries.values())})

    async def model(self, request: Request) -> Response:
        entries = openai.models((await self._answerer(request)).recipe)
        if (entry := entries.get(request.path_params["id"])) is None:
            return openai.error_response(openai.unknown_model())
        return JSONResponse(entry)

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(self._document)

    async def healthz(self, request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def readyz(self, request: Request) -> Response:
        unavailable = await (await self._router.current()).ready()
        return JSONResponse({"status": "ready", "unavailable": unavailable})


def key_filter(request: Request) -> KeyFilter:
    """Returns the filter of the key of a request."""
    found: KeyFilter = request.state.key_filter
    return found


def holding(route: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Returns the route so that what its request holds is given back once it is answered."""

    async def handle(request: Request) -> Response:
        with ExitStack() as request.state.held:
            return await route(request)

    return handle


def create_app(
    router: ReleaseRouter, config: ServerConfig | None = None, metrics: RequestMetrics | None = None,
    proxy_sets_id: bool = False, capture: Capture | None = None,
    before_first: Callable[[], Awaitable[None]] | None = None,
) -> FastAPI:  # fmt: skip
    """The app. The page and the two health routes need no key: they show no question and no answer.
    `proxy_sets_id` as in `ObservedApp`; `capture` gets the answers, None: they are not captured;
    `before_first` is done before the first request is taken."""
    config, metrics = config or ServerConfig(), metrics or RequestMetrics()
    routes = Routes(router, config, metrics, capture)

    async def authorized(request: Request) -> None:
        client = request.client.host if request.client else None
        request.state.key_filter = authorize(config.keys, request.headers, client, config.key_filters)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if before_first is not None:
            await before_first()
        yield
        if capture is not None:
            await capture.close()  # what waits is written before the process ends

    app = FastAPI(
        title="raypipe endpoint", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan
    )
    styles, scripts = ("base.css", "endpoint.css"), ("dom.js", "evidence.js", "endpoint.js")
    html, policy = web_page.page("endpoint.html", styles, scripts, True, {"title": "raypipe"})
    headers = {"content-security-policy": f"{policy}; frame-ancestors 'none'", "cache-control": "no-cache"}

    async def root(request: Request) -> Response:
        return HTMLResponse(html, headers=headers)

    for path, route in ROUTES.items():
        guard = [Depends(authorized)] if route.key else []
        app.add_api_route(
            path, holding(getattr(routes, route.name)), methods=[route.method], dependencies=guard
        )
    if config.page:
        app.add_api_route("/", root, methods=["GET"])
    errors.add_exception_handlers(app)
    app.add_middleware(ObservedApp, metrics=metrics, proxy_sets_id=proxy_sets_id)
    return app
