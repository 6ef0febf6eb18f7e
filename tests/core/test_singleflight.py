"""Equal requests in flight are asked once, and fail once; an error over other keys is not a waiter's."""

import asyncio

import numpy as np
import pytest

from raypipe.core.protocols import Model
from raypipe.core.single_flight import Gathering, SingleFlight
from raypipe.store.memo.cached import CallCounts, cached
from raypipe.store.memo.memo import MemoryMemo

MINI = Model("mini", "embedder", "hash", "", "", "", "sha256:1", dim=4)


class Slow:
    """Answers after the event loop has been round a few times, and writes down what it was asked."""

    def __init__(self, broken=()):
        self.asked = []
        self.broken = list(broken)  # what each call raises; None: nothing

    async def __call__(self, keys, places):
        self.asked.append([keys[i] for i in places])
        for _ in range(3):
            await asyncio.sleep(0)
        if self.broken and (error := self.broken.pop(0)):
            raise error
        return [keys[i].upper() for i in places]


def together(slow, *requests):
    async def main():
        flights = SingleFlight()
        calls = [flights.of(keys, lambda places, keys=keys: slow(keys, places)) for keys in requests]
        return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(main())


def test_overlapping_requests_ask_each_key_once_and_everyone_gets_every_value():
    slow = Slow()
    found = together(slow, ["a", "b"], ["b", "c"], ["c", "a"], ["d"])
    assert found == [["A", "B"], ["B", "C"], ["C", "A"], ["D"]]
    assert slow.asked == [["a", "b"], ["c"], ["d"]]


class PanicException(BaseException):
    """As pyo3 raises it: no Exception."""


@pytest.mark.parametrize("error", [OSError("broken"), PanicException("index out of bounds")])
def test_a_call_that_fails_is_made_once_and_fails_for_all_that_wanted_just_it(error):
    slow = Slow(broken=[error])
    assert together(slow, *[["a"]] * 20) == [error] * 20
    assert slow.asked == [["a"]]


def test_where_a_call_fails_over_other_keys_too_who_waits_for_one_of_them_asks():
    slow = Slow(broken=[OSError("broken")])
    first, second, third = together(slow, ["a", "b"], ["a"], ["a"])
    assert isinstance(first, OSError) and second == third == ["A"]
    assert slow.asked == [["a", "b"], ["a"]]


def test_who_stops_waiting_stops_nobody_else():
    async def main():
        flights, slow = SingleFlight(), Slow()
        calls = [asyncio.create_task(flights.of(["a"], lambda p: slow(["a"], p))) for _ in range(3)]
        await asyncio.sleep(0)
        calls[1].cancel()
        return await asyncio.gather(*calls, return_exceptions=True), slow.asked

    (first, second, third), asked = asyncio.run(main())
    assert first == third == ["A"] and isinstance(second, asyncio.CancelledError) and asked == [["a"]]


@pytest.mark.parametrize("memo", [MemoryMemo(), None], ids=["with a memo", "without one"])
def test_stages_that_share_what_is_in_flight_ask_a_model_once_and_count_the_rest_as_remembered(memo):
    asked = []

    class Kit:
        def embedder(self, model):
            async def embed(texts, role):
                asked.extend(texts)
                await asyncio.sleep(0.01)
                return np.ones((len(texts), model.dim), np.float32)

            return embed

    async def main():
        asking, tallies = SingleFlight(), [CallCounts(), CallCounts()]
        kits = [cached(Kit(), memo, t, asking) for t in tallies]
        calls = [k.embedder(MINI)(texts, "query") for k, texts in zip(kits, (["a", "b"], ["b"]), strict=True)]
        await asyncio.gather(*calls)
        return asked, [(t.vectors.computed, t.vectors.cached) for t in tallies]

    assert asyncio.run(main()) == (["a", "b"], [(2, 0), (0, 1)])


def test_what_a_batch_raises_reaches_each_of_its_callers_and_the_next_batch_is_computed():
    def compute(items):
        if 0 in items:
            raise PanicException("index out of bounds")
        return [1 // i for i in items]

    async def main():
        gathering = Gathering(compute)
        both = asyncio.gather(gathering(0), gathering(0), return_exceptions=True)
        first = await asyncio.wait_for(both, 10)
        return [type(e) for e in first], await asyncio.wait_for(gathering(1), 10)

    assert asyncio.run(main()) == ([PanicException] * 2, 1)
