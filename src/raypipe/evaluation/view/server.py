"""The view's server: this machine alone, one browser's requests one after the other.

Names of other hosts are refused, so that a page of the web cannot reach it by a name that leads here, and
marks are taken as JSON from its own pages alone.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from raypipe.core.errors import DataError, RaypipeError
from raypipe.evaluation.view.viewer import Viewer, ViewReply, failed, refused

LOOPBACK = "127.0.0.1"
MOST_BODY = 1 << 20  # bytes: numbers of 100,000 rows take .7 MB
PATIENCE = 10.0  # seconds for a request to arrive: a browser on this machine takes milliseconds


class ViewServer(ThreadingHTTPServer):
    """A viewer behind a port of this machine; 0: any free one."""

    daemon_threads = True

    def __init__(self, viewer: Viewer, port: int) -> None:
        super().__init__((LOOPBACK, port), _Requests)
        self.viewer, self.turn = viewer, threading.Lock()  # browsers open connections that say nothing

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.server_address[1]}"


class _Requests(BaseHTTPRequestHandler):
    server: ViewServer
    timeout = PATIENCE

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(self.headers.get("content-length", ""))

    def _answer(self, length: str | None) -> None:
        try:
            self._require_own()
            body = None if length is None else self._body(length)
            with self.server.turn:
                if length is None:
                    reply = self.server.viewer.get(self.path)
                else:
                    reply = self.server.viewer.post(self.path, body)
        except RaypipeError as e:
            reply = refused(e)
        except OSError as e:
            reply = failed(e)
        self._send(reply)

    def _require_own(self) -> None:
        """Raises DataError for a request that another host's name, or another page, makes."""
        port = self.server.server_address[1]
        own = {f"{name}:{port}" for name in (LOOPBACK, "localhost")}
        origin = self.headers.get("origin")
        if self.headers.get("host") not in own or (origin and origin.removeprefix("http://") not in own):
            raise DataError(f"expected a request to {LOOPBACK}:{port} from its own page")

    def _body(self, length: str) -> Any:
        if self.headers.get_content_type() != "application/json" or not length.isdecimal():
            raise DataError("expected JSON with a length")
        if len(length) > len(str(MOST_BODY)) or int(length) > MOST_BODY:
            raise DataError(f"expected at most {MOST_BODY} bytes, found more")
        try:
            return json.loads(self.rfile.read(int(length)))
        except TimeoutError as e:
            raise DataError(f"expected {length} bytes within {PATIENCE:.0f} s") from e
        except (ValueError, RecursionError) as e:
            raise DataError(f"expected JSON ({e})") from e

    def _send(self, reply: ViewReply) -> None:
        self.connection.settimeout(None)  # a browser may take a large page slowly
        self.send_response(reply.status)
        headers = {"content-type": reply.kind, "content-length": str(len(reply.body)), **reply.headers}
        for name, said in {**headers, "x-content-type-options": "nosniff"}.items():
            self.send_header(name, said)
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing of each request: it is one person's own."""
