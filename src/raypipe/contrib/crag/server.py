"""HTTP server of a graph's tables with the mock API's endpoints, for tests and demonstrations.

Not for production: one query at a time, no access control, this machine only. FastAPI checks the requests, as
in the original; `mock_api` makes the answers.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import AfterValidator, BaseModel, BeforeValidator, create_model
from pydantic_core import PydanticCustomError

from raypipe.contrib.crag.mock_api import ENDPOINTS, MockApi, MockEndpoint, OutsideRange, Type
from raypipe.contrib.crag.tables import Tables

MOST_BYTES: Final = 1024 * 1024  # largest body of a request
_DOCS: Final = "https://errors.pydantic.dev/2.5/v/"  # the version that the original runs


def _encodable(value: Any) -> Any:
    """Replaces the lone surrogates of a text, with which no answer could be encoded."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _in_64_bits(value: int) -> int:
    """Checks that a number fits into SQLite's 64 bits. Raises PydanticCustomError if not."""
    if abs(value) >= 2**63:
        message = "Input should be a valid integer, unable to parse string as an integer"
        raise PydanticCustomError("int_parsing", message)
    return value


_Text = Annotated[str, BeforeValidator(_encodable)]
_FIELDS: Final[dict[Type, Any]] = {
    "string": (_Text, ...),
    "string?": (_Text | None, None),
    "int": (Annotated[int, AfterValidator(_in_64_bits)], ...),
    "strings": (list[_Text], ...),
}


def application(api: MockApi) -> FastAPI:
    app = FastAPI(title="knowledge graph", docs_url=None, redoc_url=None)

    @app.get("/")
    async def root() -> dict[str, str]:
        return {"message": "knowledge graph"}

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, e: RequestValidationError) -> JSONResponse:
        errors = [error | {"url": _DOCS + error["type"]} for error in e.errors()]
        return JSONResponse({"detail": jsonable_encoder(errors)}, 422)

    @app.exception_handler(OutsideRange)
    async def outside(request: Request, e: OutsideRange) -> PlainTextResponse:
        return PlainTextResponse("Internal Server Error", 500)

    @app.middleware("http")
    async def bounded(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        """Refuses a body over MOST_BYTES, or without a stated size, before reading it."""
        size = request.headers.get("content-length", "0")
        if int(size) > MOST_BYTES or "transfer-encoding" in request.headers:
            return JSONResponse({"detail": "Request too large"}, 413, {"Connection": "close"})
        return await call(request)

    for path, endpoint in ENDPOINTS.items():
        app.post(path)(_route(api, path, endpoint))
    return app


def _route(api: MockApi, path: str, endpoint: MockEndpoint) -> Callable[..., Awaitable[JSONResponse]]:
    """Makes the handler of an endpoint. It runs on the event loop, so one query runs at a time."""
    if not endpoint.fields:

        async def bare() -> JSONResponse:
            return JSONResponse({"result": endpoint.answer(api, {})})

        return bare
    fields = {name: _FIELDS[kind] for name, kind in endpoint.fields.items()}
    body: type[BaseModel] = create_model(path.rpartition("/")[2], **fields)

    async def answer(arguments: BaseModel) -> JSONResponse:
        return JSONResponse({"result": endpoint.answer(api, arguments.model_dump())})

    answer.__annotations__["arguments"] = body
    return answer


@contextmanager
def serve(tables: Tables, port: int = 0) -> Iterator[str]:
    """Serves in a thread of this process during the block; yields the address. Port 0 takes a free port.

    Nothing is logged: questions are private. Raises OSError if the port is taken.
    """
    with socket.create_server(("127.0.0.1", port)) as listening:
        config = uvicorn.Config(
            application(MockApi(tables)),
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=5,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],), name="graph-server", daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
