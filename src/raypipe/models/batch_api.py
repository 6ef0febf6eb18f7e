"""A generator that uses OpenAI's batch API: files of chats, answered within a day at half the price.

Chats that arrive together are sent as one file, or as several if it would be too large. The id of a line is
made from the memo key (the key in the cache) of its chat, and the server keeps the file. After a kill the
next process finds its batches in the server's list. So no state is stored on this machine, and each chat is
paid once. If a batch ends without the reply to a chat, the chat is sent in its own request. LiteLLM speaks
the same protocol in front of vLLM.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any

from raypipe.core.backoff import Backoff
from raypipe.core.call_context import current
from raypipe.core.digests import own_identity
from raypipe.core.errors import RaypipeError, Unavailable
from raypipe.core.llm import Chat, Chats, Generated, Generator, Replies, Sampling
from raypipe.core.protocols import Model
from raypipe.core.records import Fault, digest
from raypipe.models.hosts import EndpointAddress
from raypipe.models.openai import OpenAIClient, read_chat
from raypipe.models.server import ServerClient, Trouble
from raypipe.store.memo.memo import reply_keys

MOST_CHATS, MOST_BYTES = 50_000, 200_000_000  # of a file: OpenAI's limits
GATHER_S = 1.0  # pause without a further chat before a file is sent: a task's chats arrive within ms
FIRST_POLL_S, LONGEST_POLL_S = 2.0, 60.0
WINDOW_S = 24 * 3600.0  # after it a batch expires; the protocol's only window
KNOWN_S = 3 * WINDOW_S  # age up to which batches are searched: a day to end, two until the run is restarted
ENDED = frozenset({"completed", "failed", "expired", "cancelled", "canceled", "error"})
FULL = frozenset({"token_limit_exceeded", "too_many_tasks", "rate_limit_exceeded"})
"""Error codes of a batch that could not start because the queue was full; such a batch is started again."""
ROUTE = "/v1/chat/completions"


@dataclass(slots=True)
class _Row:
    chat: Chat
    sampling: Sampling
    adapter: str | None
    line: str
    reply: asyncio.Future[Generated | Fault]


class BatchClient:
    """Client of a batch API for one model; `generate` is an `llm.Generator`. Use it on one event loop."""

    def __init__(
        self,
        model: Model,
        client: OpenAIClient,
        one_by_one: Generator,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Opens the client; `close` ends it. `one_by_one` gets the chats that no batch answers."""
        self._model, self._chats, self._one_by_one, self._sleep = model, client, one_by_one, sleep
        self._tries = client.server.at.tries
        # A LiteLLM proxy chooses the server behind it by this header.
        self._send = partial(client.server.send, headers={"x-litellm-model": model.repo})
        self._waiting: dict[str, _Row] = {}
        self._rows: dict[str, _Row] = {}  # key -> row that waits or is in a batch
        self._works: set[asyncio.Task[None]] = set()
        self._keys_of: dict[str, frozenset[str]] = {}  # id of a batch -> keys of its lines

    async def generate(self, chats: Chats, sampling: Sampling, adapter: str | None = None) -> Replies:
        body = self._chats.body(sampling, adapter)
        run = current().run  # a run that wants new replies must not find an earlier run's batch
        loop, replies = asyncio.get_running_loop(), []
        for chat, known in zip(chats, reply_keys(self._model, chats, sampling, adapter), strict=True):
            key = digest(known, run) if run else known
            if key not in self._rows:
                whole = body | {"messages": self._chats.messages(chat)}
                line = {"custom_id": key, "method": "POST", "url": ROUTE, "body": whole}
                row = _Row(chat, sampling, adapter, json.dumps(line), loop.create_future())
                self._rows[key] = self._waiting[key] = row
            replies.append(self._rows[key].reply)
        work = loop.create_task(self._gather())
        self._works.add(work)
        work.add_done_callback(self._works.discard)
        return list(await asyncio.gather(*map(asyncio.shield, replies)))

    async def close(self) -> None:
        for work in self._works:
            work.cancel()
        await self._chats.close()

    async def _gather(self) -> None:
        """Waits until no further chat arrives, then sends the waiting chats as files. If one of the server's
        batches has a chat already, awaits that batch instead."""
        count = -1
        while count != len(self._waiting):
            count = len(self._waiting)
            await self._sleep(GATHER_S)
        left, self._waiting = self._waiting, {}
        if not left:
            return
        rows, there = dict(left), list[tuple[Mapping[str, Any], Mapping[str, _Row]]]()
        try:
            for batch in await self._own_batches():
                if here := left.keys() & await self._keys(batch):
                    there.append((batch, {key: left.pop(key) for key in here}))
            files, size = list[dict[str, _Row]](), 0
            for key, row in left.items():
                size += len(row.line) + 1
                if not files or len(files[-1]) == MOST_CHATS or size > MOST_BYTES:
                    files.append({})
                    size = len(row.line) + 1
                files[-1][key] = row
            works = [self._settle(self._wait_for_end(batch), some) for batch, some in there]
            works += [self._settle(self._submit(some), some) for some in files]
            await asyncio.gather(*works)
        except Exception as e:  # no list of batches, so no file was sent, or a defect: all callers raise it
            _fail(rows, e)
        finally:
            for key in rows:
                del self._rows[key]

    async def _settle(self, ending: Awaitable[Mapping[str, Any]], rows: Mapping[str, _Row]) -> None:
        """Waits for a batch's end and delivers its replies; sends each unanswered chat in its own request."""
        try:
            batch, lines = await ending, []
            if output := batch.get("output_file_id"):
                lines = await self._lines_of(output)
        except RaypipeError as e:
            return _fail(rows, e)
        for line in lines:
            row, response = rows.get(str(line.get("custom_id"))), line.get("response") or {}
            if row is not None and not row.reply.done() and response.get("status_code") == 200:
                with suppress(ValueError, KeyError, IndexError, TypeError, AttributeError):  # sent below
                    row.reply.set_result(read_chat(response["body"], row.sampling))
        await asyncio.gather(*(self._send_one(row) for row in rows.values() if not row.reply.done()))

    async def _send_one(self, row: _Row) -> None:
        try:
            [reply] = await self._one_by_one([row.chat], row.sampling, row.adapter)
            if not row.reply.done():
                row.reply.set_result(reply)
        except RaypipeError as e:
            _fail({"": row}, e)

    async def _submit(self, rows: Mapping[str, _Row]) -> Mapping[str, Any]:
        """Uploads rows as a file, starts a batch, and returns it once it has ended."""
        content = "".join(f"{row.line}\n" for row in rows.values()).encode()
        files = {"file": ("raypipe.jsonl", content, "application/jsonl")}
        read = itemgetter("id")
        file = await self._fetch("POST", "files", read, data={"purpose": "batch"}, files=files)
        backoff = Backoff(self._tries, LONGEST_POLL_S, 10 * LONGEST_POLL_S)
        while True:
            batch = await self._start_batch(file)
            self._keys_of[batch["id"]] = frozenset(rows)
            ended = await self._wait_for_end(batch)
            errors = (ended.get("errors") or {}).get("data") or []
            full = ended["status"] == "failed" and any(e.get("code") in FULL for e in errors)
            if not full or (wait_s := backoff.next_s()) is None:
                return ended
            await self._sleep(wait_s)

    async def _start_batch(self, file: str) -> Mapping[str, Any]:
        """Starts a batch of an uploaded file. After a failed try, looks for the batch in the server's list,
        so that no batch starts twice. Raises Unavailable if the server refuses, or after the last try."""
        asked = {
            "input_file_id": file,
            "endpoint": ROUTE,
            "completion_window": "24h",
            "metadata": {"raypipe": own_identity(self._model)},
        }
        backoff = Backoff(self._tries, FIRST_POLL_S, LONGEST_POLL_S)
        while True:
            got = await self._send("POST", "batches", _batch, once=True, json=asked)
            if not isinstance(got, Trouble):
                return got
            if not got.again or (wait_s := backoff.next_s()) is None:
                raise Unavailable(got.detail)
            await self._sleep(wait_s)
            for batch in await self._own_batches():
                if batch["input_file_id"] == file:
                    return batch

    async def _wait_for_end(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        wait_s = FIRST_POLL_S
        while batch["status"] not in ENDED:
            await self._sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_POLL_S)
            batch = await self._fetch("GET", f"batches/{batch['id']}", _batch)
        return batch

    async def _own_batches(self) -> list[Mapping[str, Any]]:
        """Lists the server's batches that name this model or no model. Leaves out failed batches, and batches
        older than `KNOWN_S`. Raises Unavailable if the server does not answer."""
        found: list[Mapping[str, Any]] = []
        mine, after, more = own_identity(self._model), "", True
        while more:
            page, more = await self._fetch(
                "GET",
                f"batches?limit=100{after}",
                lambda tree: (list(map(_batch, tree["data"])), bool(tree.get("has_more") and tree["data"])),
            )
            found += [b for b in page if not _is_old(b) and b["status"] != "failed"]
            more = more and not _is_old(page[-1])
            after = f"&after={page[-1]['id']}" if page else ""
        # A gateway may drop metadata; the keys of the lines then identify the batch.
        return [b for b in found if ((b.get("metadata") or {}).get("raypipe") or mine) == mine]

    async def _keys(self, batch: Mapping[str, Any]) -> frozenset[str]:
        if (id := batch["id"]) not in self._keys_of:
            lines = await self._lines_of(batch["input_file_id"])
            self._keys_of[id] = frozenset(str(line.get("custom_id")) for line in lines)
        return self._keys_of[id]

    async def _lines_of(self, file: str) -> list[Any]:
        """Returns the lines of a file on the server; [] if the server refuses, as for a deleted file. Raises
        Unavailable if the server does not answer."""
        lines = await self._send("GET", f"files/{file}/content", list, lines=True)
        if isinstance(lines, Trouble) and lines.again:
            raise Unavailable(f"{lines.detail}{_LATER}")
        return [] if isinstance(lines, Trouble) else [line for line in lines if isinstance(line, dict)]

    async def _fetch(self, method: str, path: str, read: Callable[[Any], Any], **content: Any) -> Any:
        """Sends a request. Raises Unavailable if the request fails."""
        got = await self._send(method, path, read, **content)
        if isinstance(got, Trouble):
            raise Unavailable(f"{got.detail}{_LATER}")
        return got


_LATER = ". Batches that have begun go on without this process; the same command finds them again"


def _batch(tree: Any) -> Mapping[str, Any]:
    """Returns the server's record of a batch. Raises KeyError if its id, status or input file is missing."""
    return {**tree, "id": tree["id"], "status": tree["status"], "input_file_id": tree["input_file_id"]}


def _fail(rows: Mapping[str, _Row], error: Exception) -> None:
    for row in rows.values():
        if not row.reply.done():
            row.reply.set_exception(error)
            row.reply.exception()  # mark as retrieved, in case the caller no longer waits


def _is_old(batch: Mapping[str, Any]) -> bool:
    made = batch.get("created_at")
    return isinstance(made, int | float) and made < time.time() - KNOWN_S


@contextmanager
def watched(
    endpoints: Sequence[EndpointAddress], say: Callable[[str], None], every_s: float = 10.0
) -> Iterator[None]:
    """Reports the progress of batches to `say` while a with block runs. Every `every_s` seconds, looks at the
    latest 100 batches of each endpoint. Reports each change of a raypipe batch, also if another process
    awaits the batch. Skips batches that had ended before the block."""
    ended, last = threading.Event(), dict[str, str]()

    async def look(at: EndpointAddress, first: bool) -> None:
        client = ServerClient(replace(at, tries=1))
        try:
            found = await client.send("GET", "batches?limit=100", lambda t: list(map(_batch, t["data"])))
        finally:
            await client.close()
        for b in reversed([] if isinstance(found, Trouble) else found):
            counts = b.get("request_counts") or {}
            count = f"{counts.get('completed', 0)}/{counts.get('total', 0)} chats"
            line, old = f"batch {b['id']}: {b['status']}, {count}", first and b["status"] in ENDED
            if last.get(b["id"]) != line and not old and "raypipe" in (b.get("metadata") or {}):
                say(line)
            last[b["id"]] = line

    def beat() -> None:
        first = True
        while first or not ended.wait(every_s):
            for at in endpoints:
                asyncio.run(look(at, first))
            first = False

    thread = threading.Thread(target=beat, name="batches", daemon=True)
    if endpoints:
        thread.start()
    try:
        yield
    finally:
        ended.set()
