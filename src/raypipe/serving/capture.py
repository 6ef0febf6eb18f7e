"""Capture of a share of an endpoint's answers, written into its store as a data set.

An answer gets its id before it is sent. A thread redacts and writes its row afterwards, so no request waits.
Rows wait in a bounded queue: if writing is slower than answering, rows are dropped and counted, never
requests. A row has the question with its turns, the searched citations, the request's own documents, the
answer and its quotes, but no key and nothing about the user. A configured function, `MODULE:NAME`, redacts
every text. Its exceptions may contain the text, so no message and no log repeats them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, Literal, TypeAlias

from raypipe.core import plugins
from raypipe.core.errors import ConfError, RaypipeError, Unavailable
from raypipe.core.records import Citation, Source
from raypipe.readers.rows import source_of
from raypipe.runs import captured_answers as captured
from raypipe.runs.pipeline.ingest_staging import Tombstones, tombstones
from raypipe.serving.access import CaptureConfig
from raypipe.serving.query import QueryRequest, QueryResult
from raypipe.store import Store
from raypipe.store.files import CAPTURED, FEEDBACK, TOMBSTONES
from raypipe.store.segments import sweep_segments, write_segment

FLUSH_S = 5.0
"""Seconds for which rows wait until they are written together. A file every 5 s is 17,000 a day, which a
folder and an object store list in seconds. A kill loses the rows since the last write."""

WAITING_BYTES = 64 << 20
"""Most bytes of documents in waiting rows: twice the largest body of a request."""

WAITING_ROWS = 1000  # most waiting rows; a row without documents has about 10 kB
SWEEP_S = 3600.0  # seconds between two removals of rows older than the retention

Line: TypeAlias = tuple[captured.CapturedAnswer, dict[str, Any]]
"""A captured answer as it was given, and the redacted line to write."""

Event: TypeAlias = Literal["written", "dropped", "redaction failed", "feedback"]
log = logging.getLogger("raypipe.serving.capture")


class UnknownAnswer(Exception):
    """Error for feedback on an answer that was not captured for this key, or whose retention has ended."""


class Capture:
    """Capture of one endpoint's answers and feedback into its store."""

    def __init__(
        self,
        store: str,
        config: CaptureConfig,
        count: Callable[[Event], None] = lambda event: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Opens the store and loads the redaction function. `count` is called with the outcome of each row,
        and for each stored feedback. Raises ConfError if the redaction function cannot be used, and
        StoreError if the store cannot be opened or written."""
        self._store, self._config, self._count, self._clock = Store.open(store), config, count, clock
        self._ids = captured.answer_ids(self._store)
        self._redact: Redact = redaction(config.redact)
        self._waiting: list[captured.CapturedAnswer] = []
        self._stones: tuple[list[str], Tombstones] = ([], Tombstones([]))  # file names, and their content
        self._owed: list[Line] = []  # lines of a failed write, for the next write
        self._bytes = 0  # bytes of waiting and owed documents
        self._writer: asyncio.Task[None] | None = None  # a reference: the event loop holds tasks weakly
        self._swept_at = 0.0
        self._closing = asyncio.Event()

    def choose(self, asker: str) -> str | None:
        """Draws whether an answer is captured. Returns an id for the answer if so, else None. `asker` is the
        name of the key's filter."""
        id = self._ids.draw(self._clock(), asker)
        return id if captured.share_of(id) < self._config.rate else None

    def keep(self, request: QueryRequest, result: QueryResult) -> QueryResult:
        """Queues an answer for capture and adds its id to the result. Skips answers without an id, and
        answers that ran out of time before any search. Drops the answer if the queue is full."""
        if request.answer_id is None or result.asked is None:
            return result
        rows, size = len(self._waiting) + len(self._owed), self._bytes + request.nbytes
        if rows >= WAITING_ROWS or size > WAITING_BYTES:
            self._count("dropped")
            return result
        q, asked = result.question, result.asked
        reply = q.replies.get(q.origin)
        self._waiting.append(
            captured.CapturedAnswer(
                captured.FORMAT,
                request.answer_id,
                self._clock(),
                result.release,
                result.recipe,
                asked.id,
                asked.text,
                asked.body,
                asked.asked_at,
                asked.citations,
                request.sources or (),
                request.sources is not None,
                q.answer,
                q.outcome,
                reply.confidence if reply else None,
                q.degraded,
                tuple(captured.CapturedQuote(e.source, *e.span, e.quote) for e in result.evidence),
                tuple(dict.fromkeys(h.source for h in q.hits)),
                asked.where,
                asked.turns,
            )
        )
        self._bytes += request.nbytes
        if self._writer is None or self._writer.done():
            self._writer = asyncio.ensure_future(self._write())
        return replace(result, answer_id=request.answer_id)

    async def feedback(
        self, asker: str, answer_id: str, verdict: captured.UserVerdict | None, text: str | None
    ) -> None:
        """Writes feedback on an answer into the store. `asker` is the name of the key's filter. Raises
        UnknownAnswer if this asker was not given the id, or if the answer is older than the retention. Raises
        RedactionFailed if `text` cannot be redacted."""
        now = self._clock()
        given = self._ids.given_at(answer_id, asker)
        if given is None or given < captured.since_days(self._config.retention_days, now):
            raise UnknownAnswer

        def write() -> None:
            kept_text = None if text is None else self._redact(text)
            line = asdict(captured.Feedback(captured.FORMAT, answer_id, now, verdict, kept_text))
            write_segment(self._store.files, FEEDBACK, [line], now)

        await asyncio.to_thread(write)
        self._count("feedback")

    async def close(self) -> None:
        self._closing.set()
        if self._writer is not None:
            await self._writer

    async def _write(self) -> None:
        """Writes waiting rows every FLUSH_S, or immediately when closing, until none waits."""
        while self._waiting or self._owed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), FLUSH_S)
            await self._write_waiting()

    async def _write_waiting(self) -> None:
        """Writes the waiting rows. If the store is unavailable, the rows wait for the next write, or are
        dropped at closing. After any other error they are dropped."""
        rows, self._waiting, size = self._waiting, [], self._bytes
        self._owed += await asyncio.to_thread(self._lines, rows)
        now, written = self._clock(), 0
        try:
            written = await asyncio.to_thread(self._put, self._owed, now)
        except Exception as e:  # any error: later rows must still be written
            log.error("%d captured answers cannot be written: %s", len(self._owed), e)
            if isinstance(e, Unavailable) and not self._closing.is_set():
                return
        for n in range(len(self._owed)):
            self._count("written" if n < written else "dropped")
        self._owed, self._bytes = [], self._bytes - size
        await self._sweep(now)

    async def _sweep(self, now: float) -> None:
        """Removes rows older than the retention, once per SWEEP_S."""
        if now - self._swept_at < SWEEP_S:
            return
        before = captured.since_days(self._config.retention_days, now)
        try:
            for folder in (CAPTURED, FEEDBACK):
                await asyncio.to_thread(sweep_segments, self._store.files, folder, before)
        except RaypipeError as e:
            log.error("captured answers that are too old cannot be removed: %s", e)
            return
        self._swept_at = now

    def _put(self, owed: Sequence[Line], now: float) -> int:
        """Writes the lines that no tombstone (record of a forgotten text) refuses; returns their number.
        Tombstones are checked before and after the write. A forget first writes a tombstone and then searches
        all lines. So either the second check sees the tombstone, or the forget sees the written file."""
        if not (kept := self._allowed(owed)):
            return 0
        name = write_segment(self._store.files, CAPTURED, [line for _, line in kept], now)
        if len(self._allowed(kept)) == len(kept):
            return len(kept)
        self._store.files.remove(f"{CAPTURED}/{name}")
        return self._put(kept, now)

    def _allowed(self, owed: Sequence[Line]) -> list[Line]:
        if (names := self._store.files.names(TOMBSTONES)) != self._stones[0]:  # a file never changes
            self._stones = names, Tombstones(tombstones(self._store))
        refuses = self._stones[1].refuses
        return [x for x in owed if not refuses(x[0].id, *x[0].rests_on())]

    def _lines(self, rows: Sequence[captured.CapturedAnswer]) -> list[Line]:
        lines = []
        for row in rows:
            try:
                lines.append((row, asdict(redacted(row, self._redact))))
            except RedactionFailed as e:
                self._count("redaction failed")
                log.error("an answer is not captured: the redaction function %s", e)
        return lines


def redacted(answer: captured.CapturedAnswer, redact: Redact) -> captured.CapturedAnswer:
    """Redacts every text of an answer. A source with a changed text gets a new id, also in citations; a
    source whose text becomes empty is removed. Raises RedactionFailed if the function fails, or would change
    the question's condition `where`."""
    renamed: dict[str, str | None] = {}
    sources: dict[str, Source] = {}
    for source in answer.sources:
        content = redact(source.content)
        kept = source_of(source.kind, content) if content and not content.isspace() else None
        renamed[source.id] = kept.id if kept else None
        sources |= {kept.id: kept} if kept else {}

    def cited(c: Citation) -> Citation:
        page, snippet, name = (None if s is None else renamed.get(s, s) for s in (c.page, c.snippet, c.name))
        return replace(c, url=redact(c.url), page=page, snippet=snippet, name=name)

    if redact(answer.where) != answer.where:
        raise RedactionFailed("would change the filter of a question, which must stay as it is")
    citations, query = answer.citations, redact(answer.query)
    new_ids = {q.source: renamed.get(q.source, q.source) or "" for q in answer.quotes}
    return replace(
        answer,
        id=answer.id if query == answer.query else "",  # it may be a digest of the text
        turns=tuple(replace(t, text=redact(t.text)) for t in answer.turns),
        query=query,
        body=redact(answer.body),
        answer=redact(answer.answer),
        citations=None if citations is None else tuple(map(cited, citations)),
        sources=tuple(sources.values()),
        quotes=tuple(replace(q, source=new_ids[q.source], text=redact(q.text)) for q in answer.quotes),
        found=tuple(named for s in answer.found if (named := renamed.get(s, s)) is not None),
    )


Redact: TypeAlias = Callable[[str], str]
PROBE = "who wrote it?"  # text on which the function is tried before an endpoint starts


class RedactionFailed(Exception):
    """An exception or a wrong result of a redaction function. The message repeats no text."""


def redaction(path: str | None) -> Redact:
    """Loads the redaction function at a path; for None returns a function that changes nothing. The returned
    function raises only RedactionFailed. Raises ConfError if the path names no callable, or if the function
    fails on a short text."""
    if path is None:
        return str
    function, _ = plugins.load(path, "a redaction function of one text")
    if not callable(function):
        raise ConfError(f"{path}: expected a function from text to text, found {type(function)}")

    def redact(text: str) -> str:
        try:
            result = function(text)
        except Exception as e:
            # `from None`: a traceback of the cause would show its message, which may hold the text.
            raise RedactionFailed(f"{path} raised {type(e).__name__}") from None
        if not isinstance(result, str):
            raise RedactionFailed(f"{path} returned {type(result).__name__}, expected a text")
        return result

    try:
        redact(PROBE)
    except RedactionFailed as e:
        raise ConfError(f"--redact {e} for the text {PROBE!r}: expected a function to a text") from None
    return redact
