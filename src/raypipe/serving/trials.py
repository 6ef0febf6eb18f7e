"""Canary and shadow: some questions are answered by two releases, one of which gives the reply.

A canary that fails is answered by the live release, so the client sees an answer and the pair says that it
failed. Knows releases and answerers; the other answer is made in `second_answers`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time

from raypipe.core.errors import RaypipeError
from raypipe.recipes.serialize import description
from raypipe.runs.release import release_of
from raypipe.runs.trials import ReleaseTrial
from raypipe.serving.answerer import Answerer
from raypipe.serving.answering import AnswererProtocol
from raypipe.serving.query import NULL_LISTENER, Listener, QueryRequest, QueryResult
from raypipe.serving.release_follower import CLOSE_AFTER_S, POLL_S, REOPEN_S, ReleaseFollowers
from raypipe.serving.second_answers import SecondAnswers

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
