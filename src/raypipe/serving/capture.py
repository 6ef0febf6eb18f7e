"""Capture: a share of the answers of an endpoint, written into its store as a data set.

An answer gets its id before it is sent; its row is redacted and written after, on a thread: no request
waits. Rows wait in a queue of bounded size: where writing is slower than answering, rows are dropped and
counted, never requests. A row has the question, what was searched, the answer and its quotes; it has no key
and nothing of who asked. A function of your own, `MODULE:NAME`, takes out of every text that would be written
what must not be kept. What it raises may hold the text, so no message and no log repeats it.
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
from raypipe.runs import captured
from raypipe.runs.pipeline.ingest_staging import Tombstones, tombstones
from raypipe.serving.access import CaptureConfig
from raypipe.serving.query import QueryRequest, QueryResult
from raypipe.store import Store
from raypipe.store.files import CAPTURED, FEEDBACK, TOMBSTONES
from raypipe.store.segments import sweep_segments, write_segment

FLUSH_S = 5.0
"""How long rows wait for others before they are written: a file each 5 s is 17,000 a day, which a folder and
an object store list in seconds; a kill loses what came since."""

WAITING_BYTES = 64 << 20
"""Of documents in rows that wait: twice the largest body of a request."""

WAITING_ROWS = 1000  # rows without documents are some 10 kB each
SWEEP_S = 3600.0  # between two looks for rows that are older than the retention

Line: TypeAlias = tuple[captured.CapturedAnswer, dict[str, Any]]
"""An answer as it was given, and the line of it that is written."""

Event: TypeAlias = Literal["written", "dropped", "redaction failed", "feedback"]
log = logging.getLogger("raypipe.serving.capture")


class UnknownAnswer(Exception):
    """Feedback for an answer that was not captured for this key, or is no longer kept."""


class Capture:
    def __init__(
        self,
        store: str,
        config: CaptureConfig,
        count: Callable[[Event], None] = lambda event: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Calls `count` with the event of every captured row. Raises ConfError if the redaction function
        cannot be used, and StoreError if the store cannot be written."""
        self._store, self._config, self._count, self._clock = Store.open(store), config, count, clock
        self._ids = captured.answer_ids(self._store)
        self._redact: Redact = redaction(config.redact)
        self._waiting: list[captured.CapturedAnswer] = []
        self._stones: tuple[list[str], Tombstones] = ([], Tombstones([]))  # names of their files, and they
        self._owed: list[Line] = []  # lines of which a write failed, to be written with the next
        self._bytes = 0  # of both
        self._writer: asyncio.Task[None] | None = None  # kept here: a loop holds its tasks weakly
        self._swept_at = 0.0
        self._closing = asyncio.Event()

    def choose(self, asker: str) -> str | None:
        """Draws the id of an answer that is to be captured; None for one that is not."""
        id = self._ids.draw(self._clock(), asker)
        return id if captured.share_of(id) < self._config.rate else None

    def keep(self, request: QueryRequest, result: QueryResult) -> QueryResult:
        """The result with the id of the answer, which is captured, unless it was late before any search."""
        if request.answer_id is None or result.asked is None:
            return result
        if (
            len(self._waiting) + len(self._owed) >= WAITING_ROWS
            or self._bytes + request.nbytes > WAITING_BYTES
        ):
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
        self, asker: str, answer_id: str, verdict: captured.Said | None, text: str | None
    ) -> None:
        """Keeps what a user says of an answer to the same key: it is on disk when this returns. Raises
        UnknownAnswer, and RedactionFailed where the text cannot be kept."""
        now = self._clock()
        given = self._ids.given_at(answer_id, asker)
        if given is None or given < captured.since_days(self._config.retention_days, now):
            raise UnknownAnswer

        def write() -> None:
            said = None if text is None else self._redact(text)
            line = asdict(captured.Feedback(captured.FORMAT, answer_id, now, verdict, said))
            write_segment(self._store.files, FEEDBACK, [line], now)

        await asyncio.to_thread(write)
        self._count("feedback")

    async def close(self) -> None:
        self._closing.set()
        if self._writer is not None:
            await self._writer

    async def _write(self) -> None:
        """Writes what waits after FLUSH_S, or at once when closing, until nothing waits."""
        while self._waiting or self._owed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), FLUSH_S)
            await self._write_waiting()

    async def _write_waiting(self) -> None:
        """Writes what waits. Where the store is unavailable it waits for the next try, which is the last one
        when closing."""
        rows, self._waiting, size = self._waiting, [], self._bytes
        self._owed += await asyncio.to_thread(self._lines, rows)
        now, written = self._clock(), 0
        try:
            written = await asyncio.to_thread(self._put, self._owed, now)
        except Exception as e:  # of any kind: rows that come later are to be written
            log.error("%d captured answers cannot be written: %s", len(self._owed), e)
            if isinstance(e, Unavailable) and not self._closing.is_set():
                return
        for n in range(len(self._owed)):
            self._count("written" if n < written else "dropped")
        self._owed, self._bytes = [], self._bytes - size
        await self._sweep(now)

    async def _sweep(self, now: float) -> None:
        """Removes what is older than the retention, once in SWEEP_S."""
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
        """Writes lines, but those that a tombstone refuses, and returns how many. A forget writes its
        tombstone and then looks through all lines, so a tombstone that comes while a file is written is found
        here or the file there."""
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
    """The same with every text redacted. A source whose text changes is another source, as its citations
    say; one of which nothing is left is gone. Raises RedactionFailed."""
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
        raise RedactionFailed("would change the condition of a question, which is to hold as it was")
    citations, query = answer.citations, redact(answer.query)
    quotes = (
        replace(q, source=renamed.get(q.source, q.source) or "", text=redact(q.text)) for q in answer.quotes
    )
    return replace(
        answer,
        id=answer.id if query == answer.query else "",  # it may be a digest of the text
        turns=tuple(replace(t, text=redact(t.text)) for t in answer.turns),
        query=query,
        body=redact(answer.body),
        answer=redact(answer.answer),
        citations=None if citations is None else tuple(map(cited, citations)),
        sources=tuple(sources.values()),
        quotes=tuple(quotes),
        found=tuple(named for s in answer.found if (named := renamed.get(s, s)) is not None),
    )


Redact: TypeAlias = Callable[[str], str]
PROBE = "who wrote it?"  # what the function is tried with before an endpoint starts


class RedactionFailed(Exception):
    """The function raised, or returned no text. The message names the function and the kind of error."""


def redaction(path: str | None) -> Redact:
    """The function that a path names; None: one that changes nothing. What it returns raises RedactionFailed
    and nothing else. Raises ConfError for a path of nothing that can be called, and for a function that fails
    on a short text."""
    if path is None:
        return str
    found, _ = plugins.load(path, "a redaction function of one text")
    if not callable(found):
        raise ConfError(f"{path}: expected a function of one text that returns a text, found {type(found)}")

    def redact(text: str) -> str:
        try:
            said = found(text)
        except Exception as e:
            # `from None`: a traceback of the cause would show its message, which may hold the text.
            raise RedactionFailed(f"{path} raised {type(e).__name__}") from None
        if not isinstance(said, str):
            raise RedactionFailed(f"{path} returned {type(said).__name__}, expected a text")
        return said

    try:
        redact(PROBE)
    except RedactionFailed as e:
        expected = "expected a function that returns a text"
        raise ConfError(f"--redact {e} for the text {PROBE!r}: {expected}") from None
    return redact
