"""The gate between kinds of calls."""

from __future__ import annotations

import asyncio

from raypipe.models.engine import LoraBatchLock


async def spin() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_only_one_kind_is_inside_at_a_time_and_any_number_of_it():
    async def run() -> tuple[int, list[set[str]]]:
        gate, inside, seen = LoraBatchLock(), [], []

        async def call(kind: str) -> None:
            async with gate.turn(kind):
                inside.append(kind)
                await asyncio.sleep(0.001)
                seen.append(set(inside))
                most[0] = max(most[0], len(inside))
                inside.remove(kind)

        most = [0]
        await asyncio.gather(*(call("base" if i % 3 else "adapter") for i in range(60)))
        return most[0], seen

    most, seen = asyncio.run(run())
    assert all(len(kinds) == 1 for kinds in seen)
    assert most > 10


def test_neither_kind_starves_while_the_other_keeps_coming():
    async def run() -> int:
        gate, done = LoraBatchLock(), asyncio.Event()
        entered = 0

        async def base() -> None:
            nonlocal entered
            while not done.is_set():
                async with gate.turn("base"):
                    entered += 1
                    await asyncio.sleep(0.001)

        async def adapter() -> int:
            await asyncio.sleep(0.01)
            before = entered
            async with gate.turn("adapter"):
                done.set()
                return entered - before

        waiting = asyncio.create_task(adapter())
        await asyncio.gather(*(base() for _ in range(5)))
        return await waiting

    assert asyncio.run(run()) == 0  # no later call went in first


def test_all_that_wait_for_a_kind_go_in_together():
    async def run() -> list[str]:
        gate, order = LoraBatchLock(), []

        async def call(kind: str) -> None:
            async with gate.turn(kind):
                order.append(kind)
                await spin()

        await asyncio.gather(*(call(kind) for kind in "abababab"))
        return order

    # The first is in at once; from then on both kinds wait, and each goes in as one.
    assert asyncio.run(run()) == list("abbbbaaa")


def test_a_kind_that_equals_no_other_is_alone():
    async def run() -> int:
        gate, inside, most = LoraBatchLock(), 0, 0

        async def call() -> None:
            nonlocal inside, most
            async with gate.turn(object()):
                inside += 1
                most = max(most, inside)
                await spin()
                inside -= 1

        await asyncio.gather(*(call() for _ in range(10)))
        return most

    assert asyncio.run(run()) == 1


def test_a_call_that_gives_up_waiting_holds_nobody_up():
    async def run() -> list[str]:
        gate, order, leave = LoraBatchLock(), [], asyncio.Event()

        async def call(kind: str, until: asyncio.Event | None = None) -> None:
            async with gate.turn(kind):
                order.append(kind)
                if until:
                    await until.wait()

        first = asyncio.create_task(call("a", leave))
        await spin()
        other = asyncio.create_task(call("b"))
        await spin()
        behind = asyncio.create_task(call("a"))
        await spin()
        other.cancel()
        await spin()
        assert order == ["a", "a"], "with b gone there is no reason to wait"
        leave.set()
        await asyncio.gather(first, behind)
        async with gate.turn("c"):
            order.append("c")
        return order

    assert asyncio.run(run()) == ["a", "a", "c"]


def test_a_call_cancelled_in_the_moment_it_is_let_in_leaves_again():
    async def run() -> None:
        gate, leave = LoraBatchLock(), asyncio.Event()

        async def call(kind: str, until: asyncio.Event) -> None:
            async with gate.turn(kind):
                await until.wait()

        first = asyncio.create_task(call("a", leave))
        await spin()
        second = asyncio.create_task(call("b", asyncio.Event()))
        await spin()
        leave.set()
        await first
        second.cancel()  # let in by the first's leaving, and not yet running
        await spin()
        async with asyncio.timeout(1), gate.turn("c"):
            pass

    asyncio.run(run())
