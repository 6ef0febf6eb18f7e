"""Canary and shadow: some questions are answered by two releases, one of which gives the reply.

A canary that fails is answered by the live release, so the client sees an answer and the pair says that it
failed. The other release answers after the reply was sent: one question at a time, and yielding to requests
(`serve_kit`); where there is more to do than time, a question is left out and counted. Pairs of answers are
written into the store, and looked at. What they mean is in `runs.trial_verdict`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections import deque
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

from raypipe.core.errors import RaypipeError, Unavailable
from raypipe.recipes.serialize import description
from raypipe.runs.release import release_of
from raypipe.runs.trial_verdict import TrialReport, TrialWatch
from raypipe.runs.trials import FORMAT, Pair, ReleaseTrial, Role, TrialAnswer, trials
from raypipe.serving.answerer import Answerer
from raypipe.serving.capture import WAITING_ROWS, Redact, RedactionFailed, keep_all
from raypipe.serving.query import NULL_LISTENER, AnswererProtocol, Listener, QueryRequest, QueryResult
from raypipe.serving.release_follower import CLOSE_AFTER_S, POLL_S, REOPEN_S, ReleaseFollowers
from raypipe.serving.serve_kit import InFlight, background
from raypipe.store import Store
from raypipe.store.layout import TRIAL_PAIRS
from raypipe.store.segments import write_segment

log = logging.getLogger("raypipe.serving.trials")


class TrialRouter:
    """A router whose live release has another next to it, while there is a trial.

    The pointers are read again when a request comes and POLL_S have passed; the request does not wait for it.
    """

    def __init__(self, followers: ReleaseFollowers, seconds: SecondAnswers) -> None:
        self._followers, self._seconds = followers, seconds
        self._open: tuple[ReleaseTrial, Answerer] | None = None
        self._refused: tuple[ReleaseTrial | None, float] = (None, 0.0)  # failed to open; when to try again
        self._polled_at, self._close_at = -POLL_S, math.inf
        self._poll_task: asyncio.Task[None] | None = None  # kept here: a loop holds its tasks weakly

    async def current(self) -> AnswererProtocol:
        live = await self._followers.current()
        due = time.monotonic() - self._polled_at >= POLL_S
        if due and (self._poll_task is None or self._poll_task.done()):
            self._polled_at = time.monotonic()
            self._poll_task = asyncio.ensure_future(self._poll(live))
        if self._open is None or self._open[0].live != live.release:
            return live
        return _TriedAnswerer(live, *self._open, self._seconds)

    async def _poll(self, live: AnswererProtocol) -> None:
        try:
            found = await asyncio.to_thread(self._seconds.read)
        except (RaypipeError, OSError) as e:
            log.error("the trials of %s cannot be read: %s", self._seconds.store.uri, e)
            return
        if found is None:
            if self._open is not None:
                log.info("the trial of release %s is over", self._open[0].release)
                self._close_at = time.monotonic() + CLOSE_AFTER_S
            self._open, self._followers.on_trial = None, ()
            if time.monotonic() >= self._close_at:  # models that only the release on trial named
                self._close_at = math.inf
                await self._followers.close_unnamed()
        elif found.live != live.release:
            await self._seconds.flush()  # its look ends a trial that is held against another release
        elif self._open is None or self._open[0] != found:
            await self._follow(found)

    async def _follow(self, trial: ReleaseTrial) -> None:
        if self._refused[0] == trial and time.monotonic() < self._refused[1]:
            return
        try:
            release = await asyncio.to_thread(release_of, self._seconds.store, trial.release)
            self._followers.on_trial = tuple(description(release.recipe).models())
            opened = await self._followers.open(release)
        except Exception as e:  # of any kind: a release that cannot be opened must not stop the live one
            self._refused = (trial, time.monotonic() + REOPEN_S)
            self._open, self._followers.on_trial = None, ()
            log.error("release %s cannot be tried: %s: %s", trial.release, type(e).__name__, e)
            return
        self._open = trial, opened
        log.info("release %s is on trial as %s, share %g", trial.release, trial.role, trial.share)


class _TriedAnswerer:
    def __init__(
        self, live: AnswererProtocol, trial: ReleaseTrial, other: Answerer, seconds: SecondAnswers
    ) -> None:
        self.recipe, self.release = live.recipe, live.release
        self.ready, self.snapshot = live.ready, live.snapshot
        self._live, self._trial, self._other, self._seconds = live, trial, other, seconds

    async def answer(self, request: QueryRequest, listener: Listener = NULL_LISTENER) -> QueryResult:
        with self._seconds.in_flight.one():
            if not self._trial.takes(request.question.text):
                return await self._live.answer(request, listener)
            if self._trial.role == "canary":
                return await self._by_canary(request, listener)
            result = await self._live.answer(request, listener)
        self._seconds.ask(self._trial, self._other, request, result)
        return result

    async def _by_canary(self, request: QueryRequest, listener: Listener) -> QueryResult:
        trial, start = self._trial, time.perf_counter()
        try:
            result = await self._other.answer(request, listener)
        except Exception as e:  # the client asked for an answer, not for this release
            log.error("canary %s failed, %s answers: %s", trial.release, trial.live, type(e).__name__)
            ms = (time.perf_counter() - start) * 1000
            result = await self._live.answer(request, listener)
            self._seconds.failed(trial, request, result, ms)
            return result
        self._seconds.ask(trial, self._live, request, result)
        return result

    async def retrieve(self, request: QueryRequest, listener: Listener = NULL_LISTENER) -> QueryResult:
        with self._seconds.in_flight.one():
            return await self._live.retrieve(request, listener)


WAITING = 16
"""Questions that wait for their second answer: some seconds of work, which a pause of requests leaves."""

WAITING_BYTES = 64 << 20  # of documents that they brought
AFTER_REPLY_S = 0.05  # before a second answer begins: the reply is written to its socket by then
SECOND_S = 30.0  # deadline of a second answer, with its waiting: CRAG's limit for a question
FLUSH_S = 5.0  # how long pairs wait for others before they are written

Event: TypeAlias = Literal["pair", "dropped", "late", "failed"]


class TrialEvents:
    """Receives what the metrics count; this one ignores it."""

    def event(self, role: Role, event: Event) -> None:
        """What came of a question."""

    def looked(self, report: TrialReport) -> None:
        """A trial was looked at."""


@dataclass(frozen=True, slots=True)
class Second:
    trial: ReleaseTrial
    other: AnswererProtocol
    request: QueryRequest
    first: QueryResult  # the reply
    ready_at: float  # of the monotonic clock: not before


class SecondAnswers:
    """Makes the second answers of one gateway, and writes the pairs."""

    def __init__(
        self, store: Store, in_flight: InFlight, events: TrialEvents | None = None, redact: Redact = keep_all
    ) -> None:
        """`redact` gets the answers of a pair before they are written."""
        self.in_flight = in_flight
        self.store = store
        self._events, self._redact = events or TrialEvents(), redact
        self._waiting: deque[Second] = deque()
        self._pairs: list[Pair] = []
        self._owed: list[dict[str, Any]] = []  # pairs of which a write failed, to be written with the next
        self._worker: asyncio.Task[None] | None = None  # kept here: a loop holds its tasks weakly
        self._watch: TrialWatch | None = None
        self._flushed_at = time.monotonic()

    def read(self) -> ReleaseTrial | None:
        """The trial that is on now: the canary before the shadow; None for none. Raises StoreError."""
        return next(iter(trials(self.store)), None)

    def ask(
        self, trial: ReleaseTrial, other: AnswererProtocol, request: QueryRequest, first: QueryResult
    ) -> None:
        """Has a question answered by the other release, too, after its reply. Returns at once."""
        size = request.nbytes + sum(s.request.nbytes for s in self._waiting)
        if len(self._waiting) >= WAITING or size > WAITING_BYTES:
            self._events.event(trial.role, "dropped")
            return
        self._waiting.append(Second(trial, other, request, first, time.monotonic() + AFTER_REPLY_S))
        self._wake()

    def failed(self, trial: ReleaseTrial, request: QueryRequest, reply: QueryResult, ms: float) -> None:
        """Keeps that the release on trial could not answer, in `ms` milliseconds, what live replied to."""
        self._events.event(trial.role, "failed")
        self._paired(pair_of(trial, request, reply, _side(reply), TrialAnswer("", "fault", round(ms, 1))))

    def _paired(self, pair: Pair) -> None:
        if len(self._pairs) + len(self._owed) >= WAITING_ROWS:
            self._events.event(pair.role, "dropped")
            return
        self._events.event(pair.role, "pair")
        self._pairs.append(pair)
        self._wake()

    def _wake(self) -> None:
        if self._worker is None or self._worker.done():
            self._worker = asyncio.ensure_future(self._work())

    async def _work(self) -> None:
        """Makes second answers, one at a time, and writes pairs, until there is nothing to do."""
        background.set(True)
        while self._waiting or self._pairs or self._owed:
            if self._waiting:
                await self._answer(self._waiting[0])
                self._waiting.popleft()
            if (self._pairs or self._owed) and time.monotonic() - self._flushed_at >= FLUSH_S:
                await self.flush()
            elif not self._waiting:
                await asyncio.sleep(0.1)

    async def _answer(self, second: Second) -> None:
        await asyncio.sleep(max(0.0, second.ready_at - time.monotonic()))
        await self.in_flight.none()
        trial, start = second.trial, time.perf_counter()
        question = replace(second.request.question, due=time.time() + SECOND_S)
        request = replace(second.request, question=question, include_prompts=False, include_passages=False)
        try:
            came = await second.other.answer(request)
        except Exception as e:
            if trial.role == "canary":  # the live release failed, which says nothing of the canary
                self._events.event(trial.role, "late")
                return
            log.error("release %s on trial failed: %s", trial.release, type(e).__name__)
            self.failed(trial, second.request, second.first, (time.perf_counter() - start) * 1000)
            return
        if any(f.reason == "late" for f in came.question.faults):
            self._events.event(trial.role, "late")  # it yielded for too long, which says nothing of a release
            return
        live, tried = (came, second.first) if trial.role == "canary" else (second.first, came)
        self._paired(pair_of(trial, second.request, second.first, _side(live), _side(tried)))

    async def flush(self) -> TrialReport | None:
        """Writes the pairs that wait, and looks at the trial. Returns the report, if a look was due. Pairs
        that an unavailable store does not take wait for the next flush."""
        pairs, owed, self._pairs, self._owed = self._pairs, self._owed, [], []
        self._flushed_at = time.monotonic()
        lines = [*owed, *await asyncio.to_thread(self._lines, pairs)]
        try:
            if lines:
                await asyncio.to_thread(write_segment, self.store.files, TRIAL_PAIRS, lines, time.time())
        except (RaypipeError, OSError) as e:
            log.error("%d pairs cannot be written: %s", len(lines), e)
            if isinstance(e, Unavailable):
                self._owed = [*lines, *self._owed]
            return None
        try:
            return await asyncio.to_thread(self._look)
        except (RaypipeError, OSError) as e:
            log.error("the trial cannot be looked at: %s", e)
            return None

    def _lines(self, pairs: list[Pair]) -> list[dict[str, Any]]:
        kept = []
        for pair in pairs:
            try:
                kept.append(asdict(redacted_pair(pair, self._redact)))
            except RedactionFailed as e:
                log.error("a pair is not kept: the redaction function %s", e)
        return kept

    def _look(self) -> TrialReport | None:
        if (trial := self.read()) is None:
            return None
        if self._watch is None or self._watch.trial != trial:
            self._watch = TrialWatch(self.store, trial)
        if (found := self._watch.look()) is not None:
            self._events.looked(found)
            if found.verdict != "running":
                log.warning("%s %s: %s: %s", trial.role, trial.release, found.verdict, found.why)
        return found


def pair_of(
    trial: ReleaseTrial, request: QueryRequest, reply: QueryResult, live: TrialAnswer, tried: TrialAnswer
) -> Pair:
    question = reply.question.id
    stored = question != request.question.id  # the store knows it by another id than the request
    return Pair(
        FORMAT, trial.role, trial.release, trial.live, time.time(), question, stored, request.answer_id,
        live, tried,
    )  # fmt: skip


def _side(result: QueryResult) -> TrialAnswer:
    q = result.question
    return TrialAnswer(q.answer, q.outcome, result.timings_ms["total"], q.degraded)


def redacted_pair(pair: Pair, redact: Redact) -> Pair:
    """A pair as it is kept. Where texts are redacted, a question that is not stored is known by its reply
    alone: its own id is a digest of its text. Raises RedactionFailed."""
    if redact is keep_all:
        return pair
    live, tried = (replace(s, answer=redact(s.answer)) for s in (pair.live, pair.trial))
    question = pair.question if pair.stored else pair.answer_id or uuid.uuid4().hex
    return replace(pair, question=question, live=live, trial=tried)
