"""HTTP server of `raypipe view`: list of runs, pages of runs, rows of questions, people's labels.

The server answers only this machine, one request at a time. It refuses requests to another host name, so a
web page cannot reach it through a name that points here (DNS rebinding). It takes labels only from its own
pages, as JSON.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import SplitResult, parse_qs, quote, urlsplit

from raypipe.core.errors import DataError, RaypipeError
from raypipe.evaluation.judged_run import PersonLabels, add_label, read_labels
from raypipe.evaluation.view.pages import OpenPair, moment, open_pair, page, pair_page, run_page
from raypipe.evaluation.view.rows import LABELS, RunTable, with_lines
from raypipe.evaluation.view.run_list import RunList
from raypipe.runs.changes import compared_with
from raypipe.runs.record import Run
from raypipe.runs.run_parts import RunFolder
from raypipe.store import Store

OPEN = 4  # tables of single runs kept open, and as many of pairs
MOST_DIGITS = 10  # limit of a question's number in an address

TableKey: TypeAlias = tuple[str, Path, int, int]
"""An opened table: run id, path, modification time in nanoseconds, bytes. Another eval into the same folder
gives another key."""


@dataclass(frozen=True, slots=True)
class ViewReply:
    """An HTTP reply."""

    status: int
    kind: str  # media type
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Viewer:
    """Handler of the viewer's requests. It caches opened tables."""

    def __init__(self, runs: RunList, labels: Path | None) -> None:
        """Makes a viewer. `labels` is a file for people's labels; None: labels.jsonl in each run's folder."""
        self._runs, self._labels = runs, labels
        self._tables = lru_cache(OPEN)(lambda key: RunTable(key[1], key[0]))
        self._pairs = lru_cache(OPEN // 2)(lambda a, b: open_pair(self._folder(a[0]), self._folder(b[0])))

    def get(self, address: str) -> ViewReply:
        url = _split(address)
        match url.path.strip("/").split("/"):
            case [""]:
                return self._list(parse_qs(url.query).get("t", [""])[0])
            case ["pair"]:
                asked = parse_qs(url.query)
                ids = [asked.get(side, [""])[0] for side in "ab"]
                for id in ids:
                    self._folder(id)
                there = "/".join(quote(id, safe="") for id in ids)
                return ViewReply(303, "text/plain", b"", {"location": f"/pair/{there}/"})
            case ["run", run]:
                folder, record = self._folder(run)
                before = None
                with suppress(RaypipeError):  # the store that knows it is not here
                    before = compared_with(Store.open(record.store), record)
                file = self._file(folder)
                said = read_labels(file) if file.exists() else PersonLabels(str(file), {}, {})
                return _page(*run_page(folder, record, before, said))
            case ["run", run, "question", n]:
                table = self._table(run)
                return _rows([(self._folder(run)[1], table)], n, table.ids)
            case ["pair", a, b]:
                return _page(*pair_page(self._pair(a, b)))
            case ["pair", a, b, "question", n]:
                pair = self._pair(a, b)
                tables = zip(pair.records, pair.tables, strict=True)
                return _rows(tables, n, [line.id for line in pair.lines])
        raise DataError(f"{url.path}: there is no such page")

    def post(self, address: str, body: Any) -> ViewReply:
        match _split(address).path.strip("/").split("/"), body:
            case ["pair", a, b, "paired"], {"rows": [*rows]} if all(type(r) is int for r in rows):
                return _json(asdict(self._pair(a, b).difference(rows)))
            case ["run", run, "label"], {"id": str(id), "label": str(label)} if label in LABELS:
                file, table = self._file(self._folder(run)[0]), self._table(run)
                if id not in table or (answer := table.row(id)["answer"]) is None:
                    raise DataError(f"{id}: expected a question of run {run} that was answered")
                add_label(file, id, answer, label)
                return _json({"file": str(file)})
        raise DataError(f"{address}: expected rows, or an id and a label of {', '.join(LABELS)}")

    def _list(self, search: str) -> ViewReply:
        """Returns the page that lists the runs that match each word of `search`."""
        headers, unread = self._runs.listed()
        every = [{**asdict(h), "when": moment(h.finished), "live": "live" * h.live} for h in headers]
        words = search.lower().split()
        runs = [r for r in every if all(w in " ".join(map(str, r.values())).lower() for w in words)]
        here = [r for r in runs if r["folder"]]
        of_store = ((a, b) for i, b in enumerate(here) for a in here[i + 1 :] if a["store"] == b["store"])
        values = {"title": "raypipe runs", "runs": runs, "of": len(every), "search": search, "unread": unread}
        values["picked"] = [r["run"] for r in next(of_store, ())]
        return _page(*page("runs.html", (), True, values))

    def _folder(self, run: str) -> tuple[RunFolder, Run]:
        if (found := self._runs.whole(run)) is None:
            raise DataError(f"run {run}: no folder here has it. Name its folder: raypipe view DIR")
        return found

    def _key(self, run: str) -> TableKey:
        path = self._folder(run)[0].results
        try:
            stat = path.stat()
        except OSError as e:
            raise DataError(f"{path}: expected the table of a finished eval, found none: {e.strerror}") from e
        return run, path, stat.st_mtime_ns, stat.st_size

    def _table(self, run: str) -> RunTable:
        return self._tables(self._key(run))

    def _pair(self, a: str, b: str) -> OpenPair:
        return self._pairs(self._key(a), self._key(b))

    def _file(self, folder: RunFolder) -> Path:
        return (self._labels or folder.path / "labels.jsonl").absolute()


def _split(address: str) -> SplitResult:
    """Splits an address into its parts. Raises DataError if it is malformed."""
    try:
        return urlsplit(address)
    except ValueError as e:
        raise DataError(f"{address}: expected an address ({e})") from e


def _rows(tables: Iterable[tuple[Run, RunTable]], n: str, ids: Sequence[str]) -> ViewReply:
    """Returns a question's row in each run. Raises DataError if the text `n` is no index in `ids`."""
    number = int(n) if n.isdecimal() and len(n) <= MOST_DIGITS else len(ids)
    if number >= len(ids):
        raise DataError(f"question {n}: expected a number below {len(ids)}")
    return _json([with_lines(table.row(ids[number]), record) for record, table in tables])


def _page(text: str, policy: str) -> ViewReply:
    headers = {"content-security-policy": policy + "; frame-ancestors 'none'", "cache-control": "no-store"}
    return ViewReply(200, "text/html; charset=utf-8", text.encode(), headers)


def _json(value: Any, status: int = 200) -> ViewReply:
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    return ViewReply(status, "application/json", text)


LOOPBACK = "127.0.0.1"
MOST_BODY = 1 << 20  # bytes: numbers of 100,000 rows take .7 MB
PATIENCE = 10.0  # seconds for a request to arrive: a browser on this machine takes milliseconds


class ViewServer(ThreadingHTTPServer):
    """Server of a viewer for this machine only. Port 0 picks a free port."""

    daemon_threads = True

    def __init__(self, viewer: Viewer, port: int) -> None:
        super().__init__((LOOPBACK, port), _Requests)
        self.viewer, self.turn = viewer, threading.Lock()  # threads, since browsers open idle connections

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
                viewer = self.server.viewer
                reply = viewer.get(self.path) if length is None else viewer.post(self.path, body)
        except RaypipeError as e:  # a page that does not exist or cannot be rendered
            reply = _json({"detail": str(e)}, 404)
        except OSError as e:  # a file on this machine cannot be read or written
            place = f"{e.filename}: " if e.filename else ""
            reply = _json({"detail": f"{place}{e.strerror or e}. Correct that and try again"}, 500)
        self.connection.settimeout(None)  # a browser may take a large page slowly
        self.send_response(reply.status)
        headers = {"content-type": reply.kind, "content-length": str(len(reply.body)), **reply.headers}
        for name, said in {**headers, "x-content-type-options": "nosniff"}.items():
            self.send_header(name, said)
        self.end_headers()
        self.wfile.write(reply.body)

    def _require_own(self) -> None:
        """Raises DataError if a request names another host, or comes from another site's page."""
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

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing, since all requests are the user's own."""
