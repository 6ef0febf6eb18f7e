"""The endpoint in this process, for a local client that starts it and speaks over its stdin and stdout.

The client gets its tools at once. What may take minutes, reading a folder, indexing it and loading models, is
done on a thread meanwhile. Nothing but the protocol goes to stdout.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus

from raypipe.api.endpoint import ServeArgs, require_mcp
from raypipe.api.questions import local_kit
from raypipe.api.session import Settings
from raypipe.core.errors import RaypipeError
from raypipe.models.kit import LocalKit
from raypipe.serving.access import ServerConfig
from raypipe.serving.answerer import Answerer
from raypipe.serving.http import create_app
from raypipe.serving.http.errors import RequestRefused
from raypipe.serving.http.mcp_tools import serve_stdio
from raypipe.serving.query import AnswererProtocol
from raypipe.serving.release_follower import ReleaseFollower, bounded_memo

OPEN_WAIT_S = 30.0
"""How long a call waits for what is still opened: clients give up after a minute or more."""

WARM_S = 60.0
"""For the question that is answered before the first call, so that no user's waits for models to load."""

Router = Answerer | ReleaseFollower


class OpeningRouter:
    """The router of an endpoint whose store and models are opened while its client is already connected."""

    def __init__(self) -> None:
        self._router: asyncio.Future[Router] = asyncio.get_running_loop().create_future()

    def opened(self, router: Router) -> None:
        self._router.set_result(router)

    def failed(self, why: str) -> None:
        """Every call gets the reason: a client shows it, where it hides what a process says."""
        self._router.set_exception(RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, why))

    async def current(self) -> AnswererProtocol:
        """Raises RequestRefused where it is not open yet, or cannot be opened."""
        await asyncio.wait({self._router}, timeout=OPEN_WAIT_S)
        if not self._router.done():
            wait = (
                "The documents are still read and the models loaded, minutes the first time. Ask again later."
            )
            raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, wait)
        return await self._router.result().current()


def serve_here(
    endpoint: ServeArgs, say: Callable[[str], None], settings: Settings,
    read: Callable[[], str] | None = None,
    follow: Callable[[Callable[[], None]], object] = lambda reopen: None,
) -> None:  # fmt: skip
    """Serves the tools of an endpoint to the client at stdin and stdout, until it closes stdin. `read` brings
    the store up to date and returns its URI; None: it is searched as it is. `follow` is called then, with the
    function that lets later calls search the tables as they are now. `say` gets lines for people.

    Raises ConfError where the package `mcp` is not installed, and without `read` as `ServeArgs.check` does.
    """
    require_mcp()
    if read is None:
        endpoint.check(settings)
        say(endpoint.about_store(settings))
    asyncio.run(_serve(endpoint, say, settings, read, follow))


async def _serve(
    endpoint: ServeArgs, say: Callable[[str], None], settings: Settings,
    read: Callable[[], str] | None, follow: Callable[[Callable[[], None]], object],
) -> None:  # fmt: skip
    loop, router, kits = asyncio.get_running_loop(), OpeningRouter(), list[LocalKit]()

    async def warmed(opened: Router) -> None:
        with suppress(TimeoutError, RaypipeError):  # a call says what is missing
            async with asyncio.timeout(WARM_S):
                await (await opened.current()).warm(WARM_S)
        router.opened(opened)

    def open_and_follow() -> None:
        try:
            uri = settings.store_to_use(endpoint.store) if read is None else read()
            recipe = endpoint.recipe_to_serve(settings, uri)
            kit = local_kit(endpoint.session(settings), recipe)
            kits.append(kit)
            memo = endpoint.memo_mb << 20
            opened: Router = Answerer(recipe, kit, uri, bounded_memo(memo), degrades=True)
            if endpoint.follow_live:
                opened = ReleaseFollower(kit, uri, memo)
        except RaypipeError as e:
            say(str(e))
            loop.call_soon_threadsafe(router.failed, str(e))
            return
        asyncio.run_coroutine_threadsafe(warmed(opened), loop).result()
        if isinstance(opened, Answerer):
            follow(lambda: asyncio.run_coroutine_threadsafe(opened.reopen(), loop).result())

    config = ServerConfig(limits=endpoint.limits, page=False)
    threading.Thread(
        target=open_and_follow, daemon=True
    ).start()  # of a client that leaves nothing is finished
    try:
        await serve_stdio(create_app(router, config))
    finally:
        for kit in kits:
            await kit.close()
