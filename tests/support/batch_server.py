"""A server of OpenAI's batch protocol on loopback: files, batches, and chats one by one.

A batch takes a step each time it is looked at: validating, in_progress, finalizing, then how it ends. Every
chat that is answered is counted by its last message, so a test sees what is paid twice. What is kept outlives
`end`: a server that is killed is another one over the same `Kept`.
"""

import json
import re
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Kept:
    """What a server has on its disk."""

    files: dict = field(default_factory=dict)  # id -> bytes
    batches: dict = field(default_factory=dict)  # id -> batch, oldest first
    paid: Counter = field(default_factory=Counter)  # last message of a chat -> how often it was answered
    alone: Counter = field(default_factory=Counter)  # of these, not in a batch
    requests: list = field(default_factory=list)  # method and path
    usd: float = 0.0  # of all that is answered: a dollar a token alone, half of one in a batch


class BatchServer(ThreadingHTTPServer):
    """`ends(number of the batch)` says how a batch ends: completed, failed, full, expired, cancelled, errors,
    lost. `hears(number, request)` may drop a request: "before" it is done, or "after". `metadata` False: it
    keeps none, as some gateways do."""

    daemon_threads = True

    def __init__(self, kept=None, port=0, ends=lambda n: "completed", hears=lambda n, r: None, metadata=True):
        super().__init__(("127.0.0.1", port), _Request)
        self.kept, self.ends, self.hears, self.metadata = kept or Kept(), ends, hears, metadata
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def end(self):
        self.shutdown()
        self.server_close()
        self._thread.join()

    def answer(self, body, price):
        text = body["messages"][-1]["content"]
        self.kept.paid[text] += 1
        if price == 1:
            self.kept.alone[text] += 1
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        self.kept.usd += 12 * price
        message = {"role": "assistant", "content": f"answer to {text[-40:]}"}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}

    def step(self, batch):
        """Takes a batch a step further."""
        after = {"validating": "in_progress", "in_progress": "finalizing", "finalizing": "completed"}
        end = self.ends(list(self.kept.batches).index(batch["id"]))
        status = after.get(batch["status"], batch["status"])
        if status == "in_progress" and end in ("failed", "full"):
            code = "token_limit_exceeded" if end == "full" else "invalid_json_line"
            batch["errors"] = {"object": "list", "data": [{"code": code, "message": "no", "line": 1}]}
            status = "failed"
        if batch["status"] == "in_progress" and status == "finalizing":
            self._run(batch, end)
        if status == "completed" and end in ("expired", "cancelled"):
            status = end
        batch["status"] = status

    def _run(self, batch, end):
        lines = [json.loads(x) for x in self.kept.files[batch["input_file_id"]].decode().split("\n") if x]
        good, bad = [], []
        for n, line in enumerate(lines):
            out = {"id": f"r{n}", "custom_id": line["custom_id"]}
            if n % 2 and end in ("expired", "cancelled"):
                bad.append(out | {"response": None, "error": {"code": "batch_expired"}})
            elif n % 2 and end == "errors":
                bad.append(out | {"response": {"status_code": 500, "body": {"error": {}}}, "error": None})
            elif n % 2 and end == "lost":
                pass
            else:
                body = self.answer(line["body"], 0.5)
                good.append(out | {"response": {"status_code": 200, "body": body}, "error": None})
        for name, rows in (("output_file_id", good[::-1]), ("error_file_id", bad)):
            if rows:
                id = f"{name}-{batch['id']}"
                self.kept.files[id] = "".join(json.dumps(r) + "\n" for r in rows).encode()
                batch[name] = id
        batch["request_counts"] = {"total": len(lines), "completed": len(good), "failed": len(bad)}


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.do(None)

    def do_POST(self):
        self.do(self.rfile.read(int(self.headers["Content-Length"])))

    def do(self, raw):
        kept = self.server.kept
        with self.server.lock:
            number = len(kept.requests)
            kept.requests.append(f"{self.command} {self.path}")
            drop = self.server.hears(number, kept.requests[-1])
            reply = None if drop == "before" else self.reply(self.path.removeprefix("/v1/"), raw)
        if drop:
            self.close_connection = True
            return self.connection.close()
        status, body = reply if isinstance(reply, tuple) else (200, reply)
        with suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def reply(self, path, raw):
        kept = self.server.kept
        if path == "chat/completions":
            return self.server.answer(json.loads(raw), 1)
        if path == "files" and self.command == "POST":
            assert b'name="purpose"\r\n\r\nbatch' in raw
            id = f"file-{len(kept.files)}"
            kept.files[id] = re.search(rb"application/jsonl\r\n\r\n(.*?\n)\r\n--", raw, re.S)[1]
            return {"id": id, "object": "file", "bytes": len(kept.files[id]), "purpose": "batch"}
        if found := re.fullmatch(r"files/([^/]+)/content", path):
            return kept.files.get(found[1]) or (404, {"error": {"message": "no such file"}})
        if path == "batches" and self.command == "POST":
            body, id = json.loads(raw), f"batch-{len(kept.batches)}"
            kept.batches[id] = {
                "id": id,
                "object": "batch",
                "status": "validating",
                "created_at": int(time.time()),
                "input_file_id": body["input_file_id"],
                "output_file_id": None,
                "error_file_id": None,
                "errors": None,
                "metadata": body["metadata"] if self.server.metadata else None,
            }
            return kept.batches[id]
        if path.startswith("batches?"):
            ids = list(kept.batches)[::-1]
            after = re.search(r"after=([^&]+)", path)
            ids = ids[ids.index(after[1]) + 1 :] if after else ids
            return {"object": "list", "data": [kept.batches[i] for i in ids[:2]], "has_more": len(ids) > 2}
        if found := re.fullmatch(r"batches/([^/]+)", path):
            self.server.step(kept.batches[found[1]])
            return kept.batches[found[1]]
        return 404, {"error": {"message": "no such route"}}


@contextmanager
def serving(**options):
    server = BatchServer(**options)
    try:
        yield server
    finally:
        server.end()


if __name__ == "__main__":
    import sys

    own = BatchServer(port=int(sys.argv[1]))
    try:
        threading.Event().wait()
    finally:
        own.end()
