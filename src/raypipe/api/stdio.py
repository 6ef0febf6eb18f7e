"""The endpoint in this process, for a local client that starts it and speaks over its stdin and stdout.

The client gets its tools at once. What may take minutes, reading a folder, indexing it and loading models, is
done on a thread meanwhile. Nothing but the protocol goes to stdout.
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import AsyncExitStack, suppress
from http import HTTPStatus

from raypipe.api.endpoint import ServeArgs
from raypipe.api.questions import local_kit
from raypipe.api.results import outside_loop
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
        self.opened: asyncio.Future[Router] = asyncio.get_running_loop().create_future()

    async def current(self) -> AnswererProtocol:
        """Raises RequestRefused where it is not open yet, and where it cannot be opened: clients show the
        reason, where they hide what a process says."""
        await asyncio.wait({self.opened}, timeout=OPEN_WAIT_S)
        if not self.opened.done():
            wait = "Documents are still read, and models loaded: minutes the first time. Ask again later."
            raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, wait)
        return await self.opened.result().current()


@outside_loop
def serve_here(
    endpoint: ServeArgs,
    say: Callable[[str], None],
    settings: Settings,
    read: Callable[[], str] | None = None,
    follow: Callable[[Callable[[], None]], object] = lambda reopen: None,
) -> None:
    """Serves the tools of an endpoint to the client at stdin and stdout, until it closes stdin. `read` brings
    the store up to date and returns its URI; None: it is searched as it is. `follow` is called then, with the
    function that lets later calls search the tables as they are now. `say` gets lines for people.

    Without `read` it raises as `ServeArgs.check` does.
    """
    if read is None:
        endpoint.check(settings)
        say(endpoint.about_store(settings))

    @outside_loop
    def opened() -> tuple[Router, LocalKit]:
        uri, memo = read() if read else settings.store_to_use(endpoint.store), endpoint.memo_mb << 20
        recipe = endpoint.recipe_to_serve(settings, uri)
        kit = local_kit(endpoint.session(settings), recipe)
        if endpoint.follow_live:
            return ReleaseFollower(kit, uri, memo), kit
        return Answerer(recipe, kit, uri, bounded_memo(memo), degrades=True), kit

    async def serving() -> None:
        loop, router, kits = asyncio.get_running_loop(), OpeningRouter(), AsyncExitStack()

        async def warm(answers: Router, kit: LocalKit) -> None:
            kits.push_async_callback(kit.close)
            with suppress(Exception):  # which a call meets, too, and says
                async with asyncio.timeout(WARM_S):
                    await (await answers.current()).warm(WARM_S)
            router.opened.set_result(answers)

        def open_and_follow() -> None:
            try:
                answers, kit = opened()
            except Exception as e:
                say(str(e) if isinstance(e, RaypipeError) else traceback.format_exc())
                why = RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, str(e))
                loop.call_soon_threadsafe(router.opened.set_exception, why)
                return
            with suppress(CancelledError):  # the client has gone
                asyncio.run_coroutine_threadsafe(warm(answers, kit), loop).result()
                if isinstance(answers, Answerer):
                    follow(lambda: asyncio.run_coroutine_threadsafe(answers.reopen(), loop).result())

        threading.Thread(target=open_and_follow, daemon=True).start()  # it ends with the client
        async with kits:
            await serve_stdio(create_app(router, ServerConfig(limits=endpoint.limits, page=False)))

    asyncio.run(serving())
