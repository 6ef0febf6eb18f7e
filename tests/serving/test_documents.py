"""The work of one request on its own thread, next to the loop that serves the others."""

import asyncio
import threading

import pytest

from raypipe.serving.documents import _on_thread


def test_cancelling_the_caller_cancels_the_work():
    began, ended = threading.Event(), threading.Event()

    async def work():
        began.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    async def scene():
        waiting = asyncio.ensure_future(_on_thread(work))
        await asyncio.to_thread(began.wait, 30)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(scene())
    assert ended.wait(30)


def test_the_result_and_the_error_of_the_work_reach_the_caller():
    async def gives():
        return 3

    async def raises():
        raise ValueError("no")

    assert asyncio.run(_on_thread(gives)) == 3
    with pytest.raises(ValueError, match="no"):
        asyncio.run(_on_thread(raises))
