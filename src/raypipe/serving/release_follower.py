"""The live release of a store, followed without a restart."""

from __future__ import annotations

import asyncio
import logging
import time

from raypipe.core.errors import Overloaded, RaypipeError, Unavailable
from raypipe.recipes.deadlines import Rules
from raypipe.recipes.serialize import from_plain
from raypipe.runs.release import live
from raypipe.serving.answerer import NotReady, Online
from raypipe.serving.request import SharedKit
from raypipe.store import Store

FOLLOW_S = 1.0
"""Between two looks at the pointer to the live release: a small file, some milliseconds."""

OPENING_S = 5.0
"""What the request that finds another release waits for it. After that the one it knows answers this request,
too, and the other is opened beside it: loading a model's weights may take minutes."""

REFUSED_S = 60.0
"""Before a release that could not be opened is tried again: its models may be loaded for that, which holds up
nobody else but costs the machine."""

log = logging.getLogger("raypipe.serving.release_follower")


class Live:
    """The live release of a store, followed: each request is answered by the one that was live when it came.

    The pointer is read again when a request comes and FOLLOW_S are over. Whoever finds that it moved opens
    the new tables; the others go on with the release that they know. A release that cannot be opened is not
    followed, the log says why, and after REFUSED_S it is tried again.
    """

    def __init__(self, kit: SharedKit, store: str, rules: Rules | None = None) -> None:
        self._kit, self._uri, self._rules = kit, store, rules
        self._now: Online | None = None
        self._looked = -FOLLOW_S
        self._looking = asyncio.Lock()
        self._look_beside: asyncio.Task[None] | None = None  # held here: a loop holds its tasks weakly
        self._refused = ("", 0.0)  # id of the release that could not be opened; when it is tried again

    async def current(self) -> Online:
        """What answers now. Raises NotReady before the first release."""
        if self._now is None:
            await self._look_once()
        elif self._stale() and (self._look_beside is None or self._look_beside.done()):
            self._look_beside = asyncio.ensure_future(self._look_once())
            await asyncio.wait({self._look_beside}, timeout=OPENING_S)
        if self._now is None:
            raise NotReady(f"{self._uri}: nothing is live; `raypipe promote DIR` releases a finished eval")
        return self._now

    async def _look_once(self) -> None:
        async with self._looking:
            if self._stale():
                await self._look()
                self._looked = time.monotonic()

    def _stale(self) -> bool:
        return time.monotonic() - self._looked >= FOLLOW_S

    async def _look(self) -> None:
        try:
            release = await asyncio.to_thread(lambda: live(Store.open(self._uri)))
        except (RaypipeError, OSError) as e:  # a file that is damaged or gone; a network that is away
            if self._now is None:
                raise NotReady(str(e)) from e
            log.error("the pointer to the live release cannot be read, %s goes on: %s", self._now.release, e)
            return
        if release is None or (release.id == self._refused[0] and time.monotonic() < self._refused[1]):
            return
        if self._now is not None and release.id == self._now.release:
            return
        try:
            online = Online(from_plain(release.recipe), self._kit, self._uri, None, release, self._rules)
            await online.check()
        except RaypipeError as e:
            # Tables that are gone do not come back. A model that is away does: the next look asks again.
            if isinstance(e, NotReady) or not isinstance(e, Unavailable | Overloaded):
                self._refuse(release.id)
            log.error("release %s is not followed: %s", release.id, e)
            return
        except OSError as e:  # of the moment: the next look tries it again
            if self._now is None:
                raise NotReady(str(e)) from e
            log.error("release %s cannot be read, %s goes on: %s", release.id, self._now.release, e)
            return
        except Exception:  # of a library that loads a model: whoever answers now goes on
            self._refuse(release.id)
            log.exception("release %s is not followed", release.id)
            return
        before, self._now = self._now, online
        log.info("release %s answers, before it %s", online.release, before and before.release)

    def _refuse(self, release: str) -> None:
        self._refused = (release, time.monotonic() + REFUSED_S)
