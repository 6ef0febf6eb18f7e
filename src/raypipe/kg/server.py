"""Serves a graph's tables over HTTP with the mock API's endpoints, for tests and demonstrations.

Not for production: one query at a time, no access control, bound to this machine unless told otherwise.
Knows HTTP and the replies for what is wrong with a request. Does not know the answers (`mockapi`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from raypipe.kg.mock_api import ENDPOINTS, MockApi, OutsideRange, Type
from raypipe.kg.tables import Tables

MOST_BYTES: Final = 1024 * 1024  # of a request
_DOCS: Final = "https://errors.pydantic.dev/2.5/v/"


def reply(api: MockApi, method: str, path: str, raw: bytes) -> tuple[int, Any]:
    """Status and JSON of the answer to one request."""
    if path == "/" and method == "GET":
        return 200, {"message": "knowledge graph"}
    endpoint = ENDPOINTS.get(path)
    if endpoint is None:
        return 404, {"detail": "Not Found"}
    if method != "POST":
        return 405, {"detail": "Method Not Allowed"}
    try:
        body = json.loads(raw) if raw.strip() else {}
    except (ValueError, RecursionError) as e:
        return 422, {"detail": [_problem("json_invalid", ["body"], "JSON decode error", str(e))]}
    if not isinstance(body, dict):
        return 422, {
            "detail": [_problem("model_attributes_type", ["body"], "Input should be an object", body)]
        }
    read, problems = _checked(endpoint.fields, body)
    if problems:
        return 422, {"detail": problems}
    try:
        return 200, {"result": endpoint.answer(api, read)}
    except OutsideRange:
        return 500, "Internal Server Error"


def _checked(fields: Mapping[str, Type], body: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """The fields as the original would read them: a numeric string is an int, an int is no string."""
    read: dict[str, Any] = {}
    problems = []
    for name, wanted in fields.items():
        value, where = body.get(name), ["body", name]
        if name not in body and wanted != "string?":
            problems.append(_problem("missing", where, "Field required", dict(body)))
        elif wanted == "int":
            number = _int(value)
            if number is None:
                said = "Input should be a valid integer, unable to parse string as an integer"
                problems.append(_problem("int_parsing", where, said, value))
            read[name] = number
        elif wanted == "strings":
            if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
                problems.append(_problem("list_type", where, "Input should be a valid list", value))
            read[name] = value
        else:
            if not isinstance(value, str) and not (value is None and wanted == "string?"):
                problems.append(_problem("string_type", where, "Input should be a valid string", value))
            read[name] = value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
    return read, problems


def _int(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = int(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < 2**63 and (isinstance(value, str) or number == value) else None


def _problem(kind: str, where: list[str], said: str, value: Any) -> dict[str, Any]:
    return {"type": kind, "loc": where, "msg": said, "input": value, "url": _DOCS + kind}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: MockApi
    lock: threading.Lock

    def do_POST(self) -> None:
        size = self.headers.get("Content-Length", "0")
        if not size.isdigit() or int(size) > MOST_BYTES:
            self.close_connection = True
            self._send(413, {"detail": "Request too large"})
            return
        raw = self.rfile.read(int(size))
        with self.lock:
            status, value = reply(self.api, "POST", self.path, raw)
        self._send(status, value)

    def do_GET(self) -> None:
        self._send(*reply(self.api, "GET", self.path, b""))

    def _send(self, status: int, value: Any) -> None:
        plain = isinstance(value, str)
        data = value.encode() if plain else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if plain else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged: a question is nobody's business."""


@contextmanager
def serve(tables: Tables, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serves in threads of this process for the time of the block; gives the address. Port 0: a free one."""
    handler = type("Handler", (_Handler,), {"api": MockApi(tables), "lock": threading.Lock()})
    server = ThreadingHTTPServer((host, port), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="graph-server", daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
