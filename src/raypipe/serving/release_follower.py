"""Router that sends an endpoint's requests to the live release of its store: the promoted run that answers.
It follows a promotion without a restart."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import weakref

from raypipe.core.errors import Overloaded, RaypipeError, Unavailable
from raypipe.recipes.serialize import from_plain
from raypipe.runs.release import live
from raypipe.serving.answerer import Answerer, NotReady
from raypipe.serving.serve_kit import SharedKit
from raypipe.store import Store
from raypipe.store.memo.memo import MemoryMemo

POLL_S = 1.0
"""Least seconds between two reads of the pointer to the live release: a small file, some milliseconds."""

OPEN_WAIT_S = 5.0
"""Most seconds for which the request that detects a new release waits until this release is open. After that
the current release answers the request, and the new one opens in the background: loading weights may take
minutes. Before the first release is open, requests wait without this limit."""

CLOSE_AFTER_S = 60.0
"""Seconds from a switch of releases until models that only earlier releases name are closed. Other gateways
switch some seconds later, and until then they call the earlier models in the same deployments."""

REOPEN_S = 60.0
"""Seconds until a release that failed to open is tried again: opening may load its models on this machine.
After an OSError, or if a model is unavailable, it is tried again after POLL_S."""

log = logging.getLogger("raypipe.serving.release_follower")


def bounded_memo(limit_bytes: int) -> MemoryMemo | None:
    """Makes a release's memo (cache of model calls). Beyond `limit_bytes` it drops the oldest values. Returns
    None if the limit is 0."""
    return MemoryMemo(limit_bytes) if limit_bytes else None


class ReleaseFollower:
    """Router to the live release. One release answers a whole request: the one that is current at its
    arrival.

    If the last read of the pointer to the live release is POLL_S old, a request reads the pointer again. The
    request that detects a new release starts to open it; meanwhile other requests use the current release. A
    release that cannot be opened is logged with the reason, and tried again later (REOPEN_S). If a forget
    (removal of a text) ends the live release and no earlier one exists, requests are refused until a
    promotion. A release is open until its last request has ended. Models that only ended releases use are
    closed, CLOSE_AFTER_S or more after a switch.
    """

    def __init__(
        self, kit: SharedKit, store: str, memo_bytes: int = 0, close_after_s: float = CLOSE_AFTER_S
    ) -> None:
        """Opens no release yet. `memo_bytes`: memory per release for cached model results; 0: no cache."""
        self._kit, self._store = kit, store
        self._memo_bytes, self._close_after_s = memo_bytes, close_after_s
        self._open: weakref.WeakSet[Answerer] = weakref.WeakSet()  # held by requests and by `_current`
        self._close_at = math.inf
        self._current: Answerer | None = None
        self._polled_at = -POLL_S
        self._poll_lock = asyncio.Lock()
        self._poll_task: asyncio.Task[None] | None = None  # a reference: the event loop holds tasks weakly
        self._refused = ("", 0.0)  # id of the release that failed to open; when it is tried again
        self._why = "no release is live; `raypipe promote DIR` releases a finished eval"

    async def current(self) -> Answerer:
        """Returns the answerer of the live release. While the live release is not open, returns the answerer
        of the release before it. Raises NotReady if neither is open."""
        if self._current is None:
            await self._poll_if_due()
        elif self._poll_due() and (self._poll_task is None or self._poll_task.done()):
            self._poll_task = asyncio.ensure_future(self._poll_if_due())
            await asyncio.wait({self._poll_task}, timeout=OPEN_WAIT_S)
        if self._current is None:
            raise NotReady(f"{self._store}: {self._why}")
        return self._current

    async def _poll_if_due(self) -> None:
        async with self._poll_lock:
            if self._poll_due():
                await self._poll()
                self._polled_at = time.monotonic()

    def _poll_due(self) -> bool:
        return time.monotonic() - self._polled_at >= POLL_S

    async def _poll(self) -> None:
        await self._close_unnamed()
        try:
            release = await asyncio.to_thread(lambda: live(Store.open(self._store)))
        except (RaypipeError, OSError) as e:  # a damaged or missing file, or a broken network
            self._stay("the pointer to the live release", e)
            return
        if release is None:
            if self._current is not None:  # a forget ended this release, and there was no earlier one
                self._why = f"release {self._current.release} was ended and no other is live"
                log.warning("%s: no question is answered until a run is promoted", self._why)
                self._current = None
            return
        if release.id == self._refused[0] and time.monotonic() < self._refused[1]:
            return
        if self._current is not None and release.id == self._current.release:
            return
        try:
            recipe, memo = from_plain(release.recipe), bounded_memo(self._memo_bytes)
            opened = Answerer(recipe, self._kit, self._store, memo, release, degrades=True)
            await opened.check()
        except OSError as e:  # temporary: the next poll tries again
            self._stay(f"release {release.id}", e)
            return
        except Exception as e:  # also from a library that loads a model: the current release keeps answering
            # Missing tables do not return. An unavailable model may: then the next poll tries again.
            if isinstance(e, NotReady) or not isinstance(e, Unavailable | Overloaded):
                self._refused = (release.id, time.monotonic() + REOPEN_S)
                self._close_at = time.monotonic() + self._close_after_s
            own = isinstance(e, RaypipeError)
            self._why = f"release {release.id} cannot be opened: {e if own else f'{type(e).__name__}: {e}'}"
            log.error("release %s is not followed: %s", release.id, e, exc_info=not own)
            return
        before, self._current = self._current, opened
        self._open.add(opened)
        if before is not None:
            self._close_at = time.monotonic() + self._close_after_s
        log.info("release %s answers now, before it %s", opened.release, before and before.release)

    async def _close_unnamed(self) -> None:
        """Closes the models that only earlier releases use. Does nothing while an earlier release is open, or
        too soon after a switch."""
        if time.monotonic() < self._close_at or self._current is None or len(self._open) > 1:
            return
        self._close_at = math.inf
        try:
            await self._kit.keep(self._current.recipe.models())
        except Exception:  # from a replica or an engine that ends badly: the live release still answers
            log.exception("models of releases that are over could not be closed")

    def _stay(self, what: str, error: Exception) -> None:
        if self._current is None:
            raise NotReady(str(error)) from error
        log.error("%s cannot be read, %s stays: %s", what, self._current.release, error)
