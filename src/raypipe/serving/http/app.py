"""Routes of the HTTP API, and the app that has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial, wraps
from http import HTTPStatus
from typing import Annotated, Any, TypeAlias

from fastapi import Depends, FastAPI, Path, Request, Response
from fastapi.responses import HTMLResponse

from raypipe.core.errors import ConfError
from raypipe.serving.access import ServerConfig
from raypipe.serving.answerer import Answerer, ReleaseRouter
from raypipe.serving.capture import Capture, RedactionFailed, UnknownAnswer
from raypipe.serving.http import chat, errors, listing, mcp_tools, replies, requests, stream
from raypipe.serving.http.chat import ChatBody, ChatCompletion, ChatModel, ModelList
from raypipe.serving.http.errors import RequestRefused, to_problem
from raypipe.serving.http.listing import ListingBody
from raypipe.serving.http.middleware import (
    BytesInFlight,
    ObservedApp,
    RequestMetrics,
    Slots,
    authorize,
    read_body,
    request_id,
    until_disconnect,
)
from raypipe.serving.http.openapi import CHAT, STATUSES, openapi_document, responses, takes
from raypipe.serving.http.replies import AnswerResponse, RetrieveResponse
from raypipe.serving.http.requests import AnswerBody, B, BatchBody, FeedbackBody, RetrieveBody
from raypipe.serving.query import NULL_LISTENER, Listener, QueryRequest
from raypipe.text import web_page
from raypipe.text.filters import ConditionError

BATCH_CONCURRENCY = 4
"""Most questions of a batch that are answered at the same time. A whole batch takes one request's slot."""

PARSED_AT_ONCE = 1 << 18
"""Most bytes of a body that is parsed on the event loop: 0.05 s at worst. A thread parses larger ones."""

Encode: TypeAlias = Callable[[AsyncIterator[stream.Event | None]], AsyncIterator[bytes]]
"""Function from a question's events to the bytes of a stream."""

ID = Path(description="An id of /v1/models.", examples=["raypipe"])


class Routes:
    """The routes; the docstring of a route is its description in the OpenAPI document.

    If a key has a filter, its questions over the store are answered only from matching sources, whatever the
    request says. Their cached values are stored under the filter's name. Answers to the key are not captured.
    """

    def __init__(
        self, router: ReleaseRouter, config: ServerConfig, metrics: RequestMetrics, capture: Capture | None
    ) -> None:
        self._router, self._limits, self._metrics, self._capture = router, config.limits, metrics, capture
        self._slots = Slots(config.limits.max_ongoing_requests)
        self._in_flight = BytesInFlight(config.limits.max_bytes_in_flight, metrics)
        self._large_bodies = asyncio.Lock()  # one at a time: hostile JSON takes 25 times its bytes in memory

    def add_to(self, app: FastAPI, guard: Any) -> None:
        """Adds the routes to the app; `guard` checks the key on every route except the two for health."""
        feedback, index, health = replies.FeedbackResponse, replies.IndexResponse, replies.HealthResponse
        documents = listing.ListingResponse
        routes: dict[str, tuple[Any, ...]] = {
            "/v1/answer": (self.answer, "Answer a question", AnswerResponse, AnswerBody),
            "/v1/answer:batch": (self.batch, "Answer up to 16 questions", replies.BatchResponse, BatchBody),
            "/v1/retrieve": (self.retrieve, "Rank passages for a question", RetrieveResponse, RetrieveBody),
            CHAT: (self.chat, "Answer the last user message of a chat", ChatCompletion, ChatBody),
            "/v1/documents": (self.documents, "List what is searched, or read it", documents, ListingBody),
            "/v1/feedback": (self.feedback, "Say whether an answer is right", feedback, FeedbackBody),
            "/v1/index": (self.index, "Show the tables that are searched", index),
            "/v1/models": (self.models, "List the models", ModelList),
            "/v1/models/{id}": (self.model, "Show a model", ChatModel),
            "/openapi.json": (self.openapi, "Return this document", dict[str, Any]),
            "/healthz": (self.healthz, "Liveness", health),
            "/readyz": (self.readyz, "Readiness", health),
        }
        for path, (call, summary, reply, *body) in routes.items():
            guarded, statuses = reply is not health, list(STATUSES) if body else [401, 403, 404, 503]
            app.add_api_route(
                path,
                holding(call),
                methods=["POST" if body else "GET"],
                summary=summary,
                response_model=reply,
                response_model_exclude_unset=True,
                responses=responses(path, statuses if guarded else [503]),
                dependencies=[guard] if guarded else [],
                openapi_extra=takes(*body) if guarded else {},
            )

    async def _body(self, kind: type[B], request: Request) -> B:
        body = await read_body(request, self._limits, self._in_flight)
        if len(body) <= PARSED_AT_ONCE:
            return requests.parse_body(kind, body, self._limits)
        async with self._large_bodies:
            return await asyncio.to_thread(requests.parse_body, kind, body, self._limits)

    async def _answerer(self, request: Request) -> Answerer:
        """Returns the answerer for a request. Refuses a recipe that searches the whole store if the key may
        search only a part."""
        answerer = await self._router.current()
        if request.state.key_filter.filters and answerer.recipe.searches_all():
            detail = "This recipe searches the whole store, but this key may search only a part of it."
            raise RequestRefused(HTTPStatus.FORBIDDEN, detail)
        return answerer

    def _query(
        self, request: Request, body: requests.QuestionBody, include: Collection[requests.Include] = ()
    ) -> QueryRequest:
        query, key = requests.query_request(body, self._limits.deadline_s, include), request.state.key_filter
        return replace(query, asker=key.name, key_filter=key.filters)

    async def answer(self, request: Request) -> AnswerResponse | Response:
        """Runs the recipe on one question: over the store, or over the documents that the request brings.
        Stages that are too slow for the deadline or have no available model are omitted (`degraded`)."""
        body = await self._body(AnswerBody, request)
        answerer = await self._answerer(request)
        return await self._reply(request, answerer, body, stream.encode_events if body.stream else None)

    async def batch(self, request: Request) -> Any:
        """Answers each question, or gives its own `problem`. A wrong field in one refuses the whole batch."""
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
        return {"answers": answers}

    async def retrieve(self, request: Request) -> RetrieveResponse:
        """Runs the steps of the recipe that rank; makes no answer."""
        body = await self._body(RetrieveBody, request)
        answerer = await self._answerer(request)
        with self._slots.slot():
            try:
                query = self._query(request, body)
                ranked = await until_disconnect(request, answerer.retrieve(query))
            except ConditionError:
                raise
            except ConfError as e:
                raise RequestRefused(HTTPStatus.NOT_FOUND, "This recipe ranks no passages.") from e
        return replies.retrieve_response(ranked, body.top)

    async def documents(self, request: Request) -> Any:
        """Lists a page of documents; with `source`, reads a part of one. A key's filter applies to both."""
        body = await self._body(ListingBody, request)
        answerer = await self._answerer(request)
        with self._slots.slot():
            over, filters = await answerer.snapshot(), request.state.key_filter.filters
            return await until_disconnect(request, listing.listing(over, body, filters, answerer.release))

    async def chat(self, request: Request) -> Any:
        """Answers by the OpenAI protocol. Tools, response formats and several choices are refused."""
        body = await self._body(ChatBody, request)
        answerer, id = await self._answerer(request), request_id.get()
        if body.model not in chat.model_names(answerer.recipe):
            raise chat.unknown_model()
        counts = body.stream_options is not None and body.stream_options.include_usage
        encode = partial(chat.chunks, id, body.model, counts) if body.stream else None
        reply = await self._reply(request, answerer, body.asked(), encode)
        return reply if isinstance(reply, Response) else chat.completion(id, body.model, reply)

    async def _answer(
        self,
        answerer: Answerer,
        query: requests.QueryBody,
        listener: Listener,
        request: Request,
        whole: bool = True,
    ) -> AnswerResponse:
        """Answers one question and builds the response. `whole` is false for a question of a batch."""
        asked = self._query(request, query, query.include)
        if self._capture is not None and not asked.key_filter:
            asked = replace(asked, answer_id=self._capture.choose(asked.asker))
        result = await answerer.answer(asked, listener)
        if self._capture is not None:
            result = self._capture.keep(asked, result)
        self._metrics.question_answered(result)
        if whole:
            q, fields = result.question, request.state.log_fields
            fields.update(outcome=q.outcome, degraded=list(q.degraded), release=result.release)
        return replies.answer_response(result, query.include)

    async def _reply(
        self, request: Request, answerer: Answerer, query: requests.QueryBody, encode: Encode | None
    ) -> AnswerResponse | Response:
        """Answers a question; with `encode`, streams the answer. A stream takes its slot before it begins, so
        that a refusal is still an HTTP status. The slot and the bytes in flight are released when the answer
        is made. So a client that reads slowly holds neither of them."""
        if encode is None:
            with self._slots.slot():
                return await until_disconnect(request, self._answer(answerer, query, NULL_LISTENER, request))
        slot = ExitStack()
        slot.enter_context(self._slots.slot())
        slot.enter_context(request.state.held.pop_all())

        async def work(listener: Listener) -> AnswerResponse:
            with slot:
                return await self._answer(answerer, query, listener, request)

        return stream.ClosingStream(encode(stream.event_stream(request, work)), slot.close)

    def tools(self, app: FastAPI) -> Callable[[Request], Awaitable[Response]]:
        """Makes the route of the Model Context Protocol, whose tools are requests to routes of this app."""
        server, limits = mcp_tools.server(app), replace(self._limits, max_body_bytes=mcp_tools.MAX_BYTES)

        async def post(request: Request) -> Response:
            body = await read_body(request, limits, self._in_flight)
            return await until_disconnect(request, mcp_tools.handle(server, request, body))

        return post

    async def feedback(self, request: Request) -> Any:
        """Stores a verdict, the right answer, or both, with the captured answer."""
        body = await self._body(FeedbackBody, request)
        if self._capture is None:
            detail = "This endpoint captures no answers: it was started without `--capture`."
            raise RequestRefused(HTTPStatus.NOT_FOUND, detail)
        if (key := request.state.key_filter).filters:
            detail = "Answers to this key are not captured, since it has a filter: no feedback is kept."
            raise RequestRefused(HTTPStatus.NOT_FOUND, detail)
        try:
            await self._capture.feedback(key.name, body.answer_id, body.verdict, body.text)
        except UnknownAnswer:
            detail = "Unknown answer: expected the answer_id of a reply to this key that is still kept."
            raise RequestRefused(HTTPStatus.NOT_FOUND, detail) from None
        except RedactionFailed as e:
            request.state.log_fields["redaction"] = str(e)
            detail = "The feedback cannot be redacted, so it is not kept. The endpoint's log says why."
            raise RequestRefused(HTTPStatus.INTERNAL_SERVER_ERROR, detail) from None
        return {"answer_id": body.answer_id, "kept": True}

    async def index(self, request: Request) -> Any:
        """Shows the rows of the tables, the recipe, the release, and some stored questions. Rows and
        questions are empty for a key with a filter."""
        answerer = await self._answerer(request)
        snapshot, whole = await answerer.snapshot(), not request.state.key_filter.filters
        rows = await asyncio.to_thread(snapshot.row_counts)
        recipe = answerer.recipe
        return {
            "release": answerer.release,
            "recipe": {"name": recipe.name, "digest": recipe.digest()},
            "embedders": [m.name for m in recipe.embedders()],
            "rows": rows if whole else {},
            "examples": await asyncio.to_thread(snapshot.examples) if whole else [],
        }

    async def models(self, request: Request) -> Any:
        """Lists the names that a chat may use, with the identities of the weights of the recipe's models."""
        entries = chat.models((await self._answerer(request)).recipe)
        return {"object": "list", "data": list(entries.values())}

    async def model(self, request: Request, id: Annotated[str, ID]) -> Any:
        """Shows an entry of the list, by its id."""
        entry = chat.models((await self._answerer(request)).recipe).get(id)
        if entry is None:
            raise chat.unknown_model()
        return entry

    async def openapi(self, request: Request) -> Any:
        """Describes the routes, their fields and examples."""
        return await asyncio.to_thread(openapi_document, request.app)

    async def healthz(self, request: Request) -> Any:
        """Returns status 200 while the process runs."""
        return {"status": "alive"}

    async def readyz(self, request: Request) -> Any:
        """Returns status 200 if the store can be searched, and lists the unavailable deployments."""
        unavailable = await (await self._router.current()).ready()
        return {"status": "ready", "unavailable": unavailable}


def holding(route: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Wraps a route, so that the bytes of a request stop counting as in flight after the answer."""

    @wraps(route)
    async def handle(request: Request, **path: str) -> Any:
        with ExitStack() as request.state.held:
            return await route(request, **path)

    return handle


def create_app(
    router: ReleaseRouter,
    config: ServerConfig | None = None,
    metrics: RequestMetrics | None = None,
    proxy_sets_id: bool = False,
    capture: Capture | None = None,
    before_first: Callable[[], Awaitable[None]] | None = None,
) -> FastAPI:
    """Makes the app. The web page and the health routes need no key: they show no question and no answer.
    `proxy_sets_id` is passed to `ObservedApp`. `capture` stores answers (None: no answer is stored), and
    writes its waiting rows when the app ends. `before_first` is awaited before the first request."""
    config, metrics = config or ServerConfig(), metrics or RequestMetrics()

    async def authorized(request: Request) -> None:
        client = request.client.host if request.client else None
        request.state.key_filter = authorize(config.keys, request.headers, client, config.key_filters)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if before_first is not None:
            await before_first()
        yield
        if capture is not None:
            await capture.close()  # writes waiting rows before the process ends

    app = FastAPI(
        title="raypipe endpoint", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan
    )
    styles, scripts = ("base.css", "endpoint.css"), ("dom.js", "evidence.js", "endpoint.js")
    values = {"title": "raypipe"}
    html, policy = web_page.page("raypipe.serving.http", "endpoint.html", styles, scripts, True, values)
    headers = {"content-security-policy": f"{policy}; frame-ancestors 'none'", "cache-control": "no-cache"}

    async def root() -> Response:
        return HTMLResponse(html, headers=headers)

    routes = Routes(router, config, metrics, capture)
    routes.add_to(app, Depends(authorized))
    if config.mcp:
        app.add_api_route(
            mcp_tools.PATH,
            holding(routes.tools(app)),
            methods=["POST"],
            include_in_schema=False,
            dependencies=[Depends(authorized), Depends(mcp_tools.require_own_site)],
        )
    if config.page:
        app.add_api_route("/", root, include_in_schema=False)
    errors.add_exception_handlers(app)
    app.add_middleware(ObservedApp, metrics=metrics, proxy_sets_id=proxy_sets_id)
    return app
