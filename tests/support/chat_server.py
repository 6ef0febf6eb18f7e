"""A chat endpoint on loopback: what it does with a request is the test's that asks it."""

import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

JSON = {"Content-Type": "application/json"}


def completion(text, finish="stop", **more):
    """The body of a reply, as a JSON text. `more`: fields of its choice."""
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish, **more}
    return json.dumps({"choices": [choice], "usage": usage})


class Request(BaseHTTPRequestHandler):
    """One request that came."""

    def do_GET(self):
        self.server.paths.append(self.path)
        if self.server.lists and self.path.endswith("/models"):
            self.send(self.server.lists)
        else:
            self.send_error(404)

    def do_POST(self):
        self.server.paths.append(self.path)
        self.server.asked(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def reply(self, text):
        self.send(completion(text))

    def send(self, body, status=200, headers=JSON, promised=None):
        """`promised`: the Content-Length that is told, where it lies."""
        raw = body if isinstance(body, bytes) else body.encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(promised or len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *args):
        pass


class ChatServer(ThreadingHTTPServer):
    """Calls `asked(request, body)` for each chat, in a thread of its own."""

    def __init__(self, asked, port=0, host="127.0.0.1"):
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), Request)
        self.asked, self.paths = asked, []
        self.lists = ""  # what GET /models answers; "": it is not found
        name = f"[{host}]" if ":" in host else host
        self.url = f"http://{name}:{self.server_port}/v1"
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def end(self):
        self.shutdown()
        self.server_close()
        self._thread.join()


@contextmanager
def serving(asked, **where):
    server = ChatServer(asked, **where)
    try:
        yield server
    finally:
        server.end()
