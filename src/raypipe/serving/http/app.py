"""The routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from raypipe.core.errors import ConfError
from raypipe.report import web_page
from raypipe.serving.access import ServerConfig
from raypipe.serving.answering import AnswererProtocol, ReleaseRouter
from raypipe.serving.capture import Capture, RedactionFailed, UnknownAnswer
from raypipe.serving.http import errors, openai, requests, stream
from raypipe.serving.http.admission import Admission, authorize, who_asks
from raypipe.serving.http.errors import RequestRefused, to_problem
from raypipe.serving.http.limits import read_body, until_disconnect
from raypipe.serving.http.middleware import ObservedApp, RequestMetrics, request_id
from raypipe.serving.http.openai import ChatBody
from raypipe.serving.http.openapi import openapi_document
from raypipe.serving.http.reply_types import AnswerResponse, ChatModel, FeedbackResponse, IndexResponse
from raypipe.serving.http.requests import AnswerBody, BatchBody, FeedbackBody, RetrieveBody, query_request
from raypipe.serving.http.responses import answer_response, retrieve_response
from raypipe.serving.http.validation import B, parse_body
from raypipe.serving.query import NULL_LISTENER, Listener, QueryRequest
from raypipe.serving.release_follower import ReleaseFollowers
from raypipe.serving.tenant_answers import NotAllowed, TenantRouter
from raypipe.serving.tenants import ANYONE, QuotaCounter

BATCH_CONCURRENCY = 4
"""Questions of one batch that are answered at the same time: a batch takes the slot of one request."""


class Routes:
    def __init__(
        self, router: TenantRouter, config: ServerConfig, metrics: RequestMetrics, admission: Admission,
        capture: Capture | None,
    ) -> None:  # fmt: skip
        self._router, self._limits, self._metrics = router, config.limits, metrics
        self._admission, self._capture = admission, capture

    async def _body(self, kind: type[B], request: Request) -> B:
        tenant = who_asks(request)
        await self._admission.admit(tenant)
        return parse_body(kind, await read_body(request, self._limits), self._limits)

    async def _answerer(self, request: Request) -> AnswererProtocol:
        try:
            return await self._router.current(who_asks(request), request.headers.get(RELEASE_HEADER, ""))
        except NotAllowed as e:
            raise RequestRefused(HTTPStatus.FORBIDDEN, str(e)) from None

    def _query(
        self, request: Request, query: str, options: requests.QueryOptions,
        include: Collection[requests.Include] = (),
    ) -> QueryRequest:  # fmt: skip
        asked = query_request(query, options, self._limits.deadline_s, include)
        return replace(asked, asker=who_asks(request).name)

    async def answer(self, request: Request) -> Response:
        body = await self._body(AnswerBody, request)
        answerer = await self._answerer(request)
        if body.stream:
            return await self._stream(request, partial(self._answer, answerer, body), stream.encode_events)
        async with self._admission.slot(who_asks(request)):
            answer = self._answer(answerer, body, NULL_LISTENER, request)
            return JSONResponse(await until_disconnect(request, answer))

    async def batch(self, request: Request) -> Response:
        body = await self._body(BatchBody, request)
        answerer, turns = await self._answerer(request), asyncio.Semaphore(BATCH_CONCURRENCY)
        if len(body.queries) > 1:
            await self._admission.admit(who_asks(request), len(body.queries) - 1)

        async def answer_one(query: requests.QueryBody) -> Any:
            async with turns:
                try:
                    return await self._answer(answerer, query, NULL_LISTENER, request, whole=False)
                except Exception as e:
                    return {"problem": errors.problem_body(to_problem(e))}

        async with self._admission.slot(who_asks(request)):
            answers = await until_disconnect(request, asyncio.gather(*(answer_one(q) for q in body.queries)))
        return JSONResponse({"answers": answers})

    async def retrieve(self, request: Request) -> Response:
        body = await self._body(RetrieveBody, request)
        answerer = await self._answerer(request)
        async with self._admission.slot(who_asks(request)):
            try:
                query = self._query(request, body.query, body)
                ranked = await until_disconnect(request, answerer.retrieve(query))
            except ConfError as e:
                raise RequestRefused(HTTPStatus.NOT_FOUND, "This recipe ranks no passages.") from e
        return JSONResponse(retrieve_response(ranked, body.top))

    async def chat(self, request: Request) -> Response:
        try:
            return await self._chat(request)
        except (RequestRefused, *errors.EXPECTED_ERRORS) as e:
            return openai.error_response(to_problem(e))

    async def _chat(self, request: Request) -> Response:
        body = await self._body(ChatBody, request)
        answerer, id = await self._answerer(request), request_id.get()
        if body.model not in chat_models(answerer):
            raise _unknown_model()
        query = requests.QueryBody(query=body.query(), **dict(body.raypipe))
        if body.stream:
            encode = partial(openai.chunks, id, body)
            return await self._stream(request, partial(self._answer, answerer, query), encode)
        async with self._admission.slot(who_asks(request)):
            answer = await until_disconnect(request, self._answer(answerer, query, NULL_LISTENER, request))
        return JSONResponse(openai.completion(id, body.model, answer))

    async def _answer(
        self, answerer: AnswererProtocol, query: requests.QueryBody, listener: Listener, request: Request,
        whole: bool = True,
    ) -> AnswerResponse:  # fmt: skip
        """The response to one question; `whole`: it is all that the request asks."""
        result = await answerer.answer(self._query(request, query.query, query, query.include), listener)
        self._metrics.question_answered(result)
        tokens = result.usage["prompt_tokens"] + result.usage["generated_tokens"]
        await self._admission.spend(who_asks(request), tokens)
        q, fields = result.question, request.state.log_fields
        if whole:
            fields |= {"outcome": q.outcome, "degraded": list(q.degraded), "release": result.release}
        fields |= {"questions": fields.get("questions", 0) + 1, "tokens": fields.get("tokens", 0) + tokens}
        return answer_response(result, query.include)

    async def _stream(
        self, request: Request, answer: Callable[[Listener, Request], Awaitable[AnswerResponse]],
        encode: Callable[[AsyncIterator[stream.Event | None]], AsyncIterator[bytes]],
    ) -> Response:  # fmt: skip
        """One question as a stream. Its slot is taken here, so that a refusal is still a status, and released
        with the answer: a client that does not read it takes no slot from others."""
        slot = AsyncExitStack()
        await slot.enter_async_context(self._admission.slot(who_asks(request)))

        async def work(listener: Listener) -> AnswerResponse:
            async with slot:
                return await answer(listener, request)

        return stream.ClosingStream(encode(stream.event_stream(request, work)), slot.aclose)

    async def feedback(self, request: Request) -> Response:
        body = await self._body(FeedbackBody, request)
        if self._capture is None:
            raise RequestRefused(HTTPStatus.NOT_FOUND, "This endpoint captures no answers.")
        try:
            await self._capture.feedback(who_asks(request).name, body.answer_id, body.verdict, body.text)
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
        snapshot, whole = await answerer.snapshot(), not who_asks(request).scope
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
        entries = chat_models(await self._answerer(request))
        return JSONResponse({"object": "list", "data": list(entries.values())})

    async def model(self, request: Request) -> Response:
        entries = chat_models(await self._answerer(request))
        if (entry := entries.get(request.path_params["id"])) is None:
            return openai.error_response(_unknown_model())
        return JSONResponse(entry)

    async def healthz(self, request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def readyz(self, request: Request) -> Response:
        unavailable = await (await self._router.current(ANYONE)).ready()
        return JSONResponse({"status": "ready", "unavailable": unavailable})


RELEASE_HEADER = "raypipe-release"
"""Names the pointer that answers a request, of those that its key may ask."""


def _unknown_model() -> RequestRefused:
    return RequestRefused(HTTPStatus.NOT_FOUND, "Unknown model: GET /v1/models lists the names.")


def chat_models(answerer: AnswererProtocol) -> dict[str, ChatModel]:
    recipe = answerer.recipe
    weights = {m.name: m.weights for m in recipe.models()}
    return {
        id: {
            "id": id,
            "object": "model",
            "created": 0,
            "owned_by": "raypipe",
            "recipe": recipe.digest(),
            "models": weights,
        }
        for id in ("raypipe", recipe.name)
    }


def create_app(
    router: ReleaseRouter, config: ServerConfig | None = None, metrics: RequestMetrics | None = None,
    proxy_sets_id: bool = False, capture: Capture | None = None, followers: ReleaseFollowers | None = None,
    quotas: QuotaCounter | None = None, before_first: Callable[[], Awaitable[None]] | None = None,
) -> FastAPI:  # fmt: skip
    """The app. The page and the two health routes need no key: they show no question and no answer.
    `proxy_sets_id` as in `ObservedApp`; `capture` gets the answers, None: they are not captured;
    `followers` have the releases of tenants, and `quotas` count what these ask; None: this gateway does;
    `before_first` is done before the first request is taken."""
    config, metrics = config or ServerConfig(), metrics or RequestMetrics()
    admission = Admission(config.limits.max_ongoing_requests, config.tenants, metrics, quotas)
    routes = Routes(TenantRouter(router, followers, capture), config, metrics, admission, capture)

    async def authorized(request: Request) -> None:
        client = request.client.host if request.client else None
        request.state.tenant = authorize(config.keys, request.headers, client, config.tenants)
        if config.tenants:
            request.state.log_fields["tenant"] = request.state.tenant.name

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
    document = openapi_document()
    styles, scripts = ("base.css", "endpoint.css"), ("dom.js", "evidence.js", "endpoint.js")
    html, policy = web_page.page("endpoint.html", styles, scripts, True, {})
    headers = {"content-security-policy": f"{policy}; frame-ancestors 'none'", "cache-control": "no-cache"}

    async def openapi_json(request: Request) -> Response:
        return JSONResponse(document)

    async def root(request: Request) -> Response:
        return HTMLResponse(html, headers=headers)

    for method, path, route, guarded in (
        ("POST", "/v1/answer", routes.answer, True),
        ("POST", "/v1/answer:batch", routes.batch, True),
        ("POST", "/v1/retrieve", routes.retrieve, True),
        ("POST", "/v1/chat/completions", routes.chat, True),
        ("POST", "/v1/feedback", routes.feedback, True),
        ("GET", "/v1/index", routes.index, True),
        ("GET", "/v1/models", routes.models, True),
        ("GET", "/v1/models/{id}", routes.model, True),
        ("GET", "/openapi.json", openapi_json, True),
        ("GET", "/healthz", routes.healthz, False),
        ("GET", "/readyz", routes.readyz, False),
        *([("GET", "/", root, False)] if config.page else []),
    ):
        guard = [Depends(authorized)] if guarded else []
        app.add_api_route(path, route, methods=[method], dependencies=guard)
    errors.add_exception_handlers(app)
    app.add_middleware(ObservedApp, metrics=metrics, proxy_sets_id=proxy_sets_id)
    return app
