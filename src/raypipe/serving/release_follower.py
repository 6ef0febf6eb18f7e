"""Follows the live release of a store, without a restart."""

from __future__ import annotations

import asyncio
import logging
import time

from raypipe.core.errors import Overloaded, RaypipeError, Unavailable
from raypipe.recipes.deadlines import DegradePolicy
from raypipe.recipes.serialize import from_plain
from raypipe.runs.release import live
from raypipe.serving.answerer import Answerer, NotReady
from raypipe.serving.shared_kit import SharedKit
from raypipe.store import Store

POLL_S = 1.0
"""Between two reads of the pointer to the live release: a small file, some milliseconds."""

OPEN_WAIT_S = 5.0
"""How long the request that finds a new release waits for it to open. Then the current release answers this
request too, and the new one is opened in the background: loading a model's weights may take minutes."""

REOPEN_S = 60.0
"""Before a release that failed to open is tried again: opening may load its models, which delays no request
but costs the machine."""

log = logging.getLogger("raypipe.serving.release_follower")


class ReleaseFollower:
    """Follows the live release: the release that was live when a request came answers all of it.

    The pointer is read again when a request comes and POLL_S have passed. The request that finds a new
    release opens its tables; other requests use the current release meanwhile. A release that cannot be
    opened is not followed, the log says why, and it is tried again after REOPEN_S.
    """

    def __init__(self, kit: SharedKit, store: str, policy: DegradePolicy | None = None) -> None:
        self._kit, self._uri, self._policy = kit, store, policy
        self._current: Answerer | None = None
        self._polled_at = -POLL_S
        self._poll_lock = asyncio.Lock()
        self._poll_task: asyncio.Task[None] | None = None  # kept here: a loop holds its tasks weakly
        self._refused = ("", 0.0)  # id of the release that failed to open; when it is tried again
        self._why = "no release is live; `raypipe promote DIR` releases a finished eval"

    async def current(self) -> Answerer:
        """The answerer of the live release. Raises NotReady before the first release."""
        if self._current is None:
            await self._poll_if_due()
        elif self._poll_due() and (self._poll_task is None or self._poll_task.done()):
            self._poll_task = asyncio.ensure_future(self._poll_if_due())
            await asyncio.wait({self._poll_task}, timeout=OPEN_WAIT_S)
        if self._current is None:
            raise NotReady(f"{self._uri}: {self._why}")
        return self._current

    async def _poll_if_due(self) -> None:
        async with self._poll_lock:
            if self._poll_due():
                await self._poll()
                self._polled_at = time.monotonic()

    def _poll_due(self) -> bool:
        return time.monotonic() - self._polled_at >= POLL_S

    async def _poll(self) -> None:
        try:
            release = await asyncio.to_thread(lambda: live(Store.open(self._uri)))
        except (RaypipeError, OSError) as e:  # a damaged or missing file; a network that is down
            if self._current is None:
                raise NotReady(str(e)) from e
            log.error(
                "the pointer to the live release cannot be read, %s stays: %s", self._current.release, e
            )
            return
        if release is None or (release.id == self._refused[0] and time.monotonic() < self._refused[1]):
            return
        if self._current is not None and release.id == self._current.release:
            return
        try:
            opened = Answerer(from_plain(release.recipe), self._kit, self._uri, None, release, self._policy)
            await opened.check()
        except RaypipeError as e:
            # Missing tables do not come back. An unavailable model does: the next poll tries again.
            if isinstance(e, NotReady) or not isinstance(e, Unavailable | Overloaded):
                self._refuse(release.id)
            self._why = f"release {release.id} cannot be opened: {e}"
            log.error("release %s is not followed: %s", release.id, e)
            return
        except OSError as e:  # temporary: the next poll tries again
            if self._current is None:
                raise NotReady(str(e)) from e
            log.error("release %s cannot be read, %s stays: %s", release.id, self._current.release, e)
            return
        except Exception as e:  # from a library that loads a model: the current release keeps answering
            self._refuse(release.id)
            self._why = f"release {release.id} cannot be opened: {type(e).__name__}: {e}"
            log.exception("release %s is not followed", release.id)
            return
        before, self._current = self._current, opened
        log.info("release %s answers now, before it %s", opened.release, before and before.release)

    def _refuse(self, release: str) -> None:
        self._refused = (release, time.monotonic() + REOPEN_S)
