"""S3 as moto plays it, on a port of this machine, that refuses what it is asked when it is told to.

It refuses before moto, in the same server. A proxy of `http.server` in between would stand still: pyarrow
sends what it writes in chunks, without a Content-Length.
"""

import logging
import socket
import threading
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from werkzeug.serving import make_server
from werkzeug.wsgi import get_input_stream

CUT = "cut", ""  # what was asked is done, and the connection ends in the middle of the answer
BUSY, EXPIRED = ("503 Slow Down", "SlowDown"), ("403 Forbidden", "ExpiredToken")
LANCE, ARROW = "object_store/", "aws-sdk-cpp/"  # how the two say who asks
ERROR = '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{}</Code><Message>No.</Message></Error>'


class Refusing:
    """A WSGI application that refuses the next `left` requests of `whom`, and hands all others on."""

    def __init__(self, app):
        self.app, self.lock = app, threading.Lock()
        self.says, self.whom, self.left, self.refused = BUSY, "", 0, 0

    def refuse(self, says, left, whom=""):
        """From now on; `whom` is how a user agent begins, "" for each."""
        with self.lock:
            self.says, self.whom, self.left, self.refused = says, whom, left, 0

    def __call__(self, environ, start_response):
        with self.lock:
            refuses = self.left > 0 and environ.get("HTTP_USER_AGENT", "").startswith(self.whom)
            self.left, self.refused = self.left - refuses, self.refused + refuses
            status, code = self.says
        if not refuses:
            return self.app(environ, start_response)
        if self.says == CUT:
            return cut(self.app(environ, start_response), environ["werkzeug.socket"])
        get_input_stream(environ).read()  # all of it: who still sends would not hear the answer
        body = ERROR.format(code).encode()
        start_response(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]


def cut(answer, connection):
    body = b"".join(answer)
    yield body[: len(body) // 2]
    connection.shutdown(socket.SHUT_RDWR)


@dataclass
class Bucket:
    client: object
    name: str
    server: Refusing

    @property
    def uri(self) -> str:
        return f"s3://{self.name}"

    def keys(self, prefix: str) -> list[str]:
        found = self.client.list_objects_v2(Bucket=self.name, Prefix=prefix).get("Contents", [])
        return sorted(o["Key"] for o in found)


@contextmanager
def bucket_of(name):
    """A bucket, with this process's keys and addresses set for it."""
    moto = pytest.importorskip("moto.moto_server.werkzeug_app", reason="moto is not installed here")
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed here")
    refusing = Refusing(moto.DomainDispatcherApplication(moto.create_backend_app))
    server = make_server("127.0.0.1", 0, refusing, threaded=True, request_handler=moto.MotoRequestHandler)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        with pytest.MonkeyPatch.context() as env:
            for variable in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT"):  # pyarrow reads the one, Lance the other
                env.setenv(variable, url)
            for variable, value in {
                "AWS_ALLOW_HTTP": "true",
                "AWS_ACCESS_KEY_ID": "invented",
                "AWS_SECRET_ACCESS_KEY": "invented",
                "AWS_REGION": "us-east-1",
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_EC2_METADATA_DISABLED": "true",
            }.items():
                env.setenv(variable, value)
            made = Bucket(boto3.client("s3", endpoint_url=url), name, refusing)
            made.client.create_bucket(Bucket=name)
            yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
