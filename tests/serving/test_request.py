"""Work of one request beside the loop that serves the others."""

import asyncio
import threading

import pytest

from raypipe.serving.request import _beside


def test_work_that_nobody_waits_for_any_more_is_ended():
    began, ended = threading.Event(), threading.Event()

    async def work():
        began.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    async def scene():
        waiting = asyncio.ensure_future(_beside(work))
        await asyncio.to_thread(began.wait, 30)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(scene())
    assert ended.wait(30)


def test_what_the_work_gives_and_raises_comes_back():
    async def gives():
        return 3

    async def raises():
        raise ValueError("no")

    assert asyncio.run(_beside(gives)) == 3
    with pytest.raises(ValueError, match="no"):
        asyncio.run(_beside(raises))
