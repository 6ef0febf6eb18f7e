"""Contexts find the engine that has read them, engines share the work, one that falls behind is spared."""

import asyncio
import random
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raypipe.core.llm import Generated, Message, Sampling
from raypipe.models.generators import BEHIND, HEADS, SPREAD, EngineGone, Router, prefixes, routed


def about(context, question="?"):
    return (Message("user", f"{context * 12} {question}"),)


def test_chats_about_one_context_begin_alike_whatever_they_ask():
    questions = ("who?", "when was it, and who was there?", "x" * 100)
    for words in (60, 100, 400):
        shared = "evidence " * words
        found = [
            prefixes((Message("system", s), Message("user", shared + q))) for s in "ab" for q in questions
        ]
        assert len(set.intersection(*map(set, found))) >= 1
        assert all(shared.startswith(short) and len(short) >= len(shared) / 4 for _, short in found[:2])
    assert len(prefixes((Message("user", "e" * 9000),))[0]) == HEADS[-1]
    assert prefixes((Message("user", "short"),)) == ("short", "short")
    assert prefixes((Message("system", "s"),)) == ("", "")


@given(st.lists(st.text(max_size=5), max_size=80), st.integers(1, 8))
@settings(max_examples=200, deadline=None)
def test_no_engine_has_more_in_flight_than_its_bound(contexts, engines):
    router = Router(engines)
    chosen = router.choose([about(c) for c in contexts])
    assert router.in_flight == [chosen.count(e) for e in range(engines)]
    # Of the last mean: a chat is let in by the mean of its moment, which later chats only raise.
    assert max(router.in_flight) <= BEHIND * (len(contexts) / engines) + 1 + BEHIND


@pytest.mark.slow
def test_calls_about_one_context_go_to_one_engine_and_all_engines_share_the_work():
    router, seen, work = Router(4), defaultdict(set), Counter()
    rng = random.Random(0)
    for _ in range(100):  # parts of 50 chats, two calls on each context, the second after the first
        contexts = [f"context {rng.random()}" for _ in range(50)]
        for question in ("who was it?", "where, then, was it that they met again?"):
            chosen = router.choose([about(c, question) for c in contexts])
            for context, engine in zip(contexts, chosen, strict=True):
                seen[context].add(engine)
                work[engine] += 1
            for engine in chosen:
                router.done(engine, 1)
    assert max(work.values()) <= 1.2 * min(work.values())
    assert sum(len(engines) == 1 for engines in seen.values()) >= 0.95 * len(seen)
    assert router.in_flight == [0, 0, 0, 0]


def test_what_all_chats_begin_with_sends_none_of_them_anywhere():
    """Instructions and a short question each: no context, so the work is shared evenly."""
    router = Router(4)
    for part in range(20):
        chosen = router.choose(
            [about("Which domain is this question of? ", f"{part} {n}") for n in range(50)]
        )
        assert part == 0 or max(Counter(chosen).values()) <= 14
        for engine in chosen:
            router.done(engine, 1)


def test_one_at_a_time_a_context_always_finds_its_engine():
    router, homes = Router(4), {}
    for n in range(400):
        context = f"context {n % 40}"
        [engine] = router.choose([about(context)])
        assert homes.setdefault(context, engine) == engine
        router.done(engine, 1)
    assert len(set(homes.values())) == 4


def test_an_engine_that_falls_behind_gets_no_more_contexts_and_loses_those_it_has():
    router = Router(2)
    slow = [c for c in (f"context {n}" for n in range(400)) if Router(2).choose([about(c)]) == [0]][:100]
    first = router.choose([about(c) for c in slow[:40]])
    for engine in first:
        if engine == 1:
            router.done(1, 1)  # engine 0 answers nothing
    stuck = router.in_flight[0]
    later = []
    for context in slow[40:]:
        [engine] = router.choose([about(context)])
        later.append(engine)
        if engine == 1:
            router.done(1, 1)
    assert Counter(later)[0] <= SPREAD * 2 and router.in_flight[0] <= stuck + SPREAD * 2
    moved = [c for c, e in zip(slow, first, strict=False) if e == 0]
    assert router.choose([about(moved[0])]) == [1]


def test_the_choice_is_the_same_in_every_process():
    chats = [about(f"context {n}") for n in range(4)]
    assert Router(4).choose(chats) == Router(4).choose(chats)


def test_several_engines_look_like_one_and_what_fails_leaves_no_chat_in_flight():
    """Replies in order, from the engine that has the context; an error of an engine is the caller's."""
    asked = [[], []]

    def engine(n):
        async def generate(chats, sampling, adapter=None):
            await asyncio.sleep(0)
            asked[n] += [c[0].content for c in chats]
            if any(c[0].content == "bad" for c in chats):
                raise RuntimeError("broken")
            return [Generated(c[0].content[::-1], "stop", 1, 0, 1) for c in chats]

        return generate

    async def run():
        both = routed([engine(0), engine(1)])
        texts = [f"chat {n}" for n in range(20)]
        first = await both([(Message("user", t),) for t in texts], Sampling(max_tokens=1))
        assert [r.text for r in first] == [t[::-1] for t in texts]
        assert await both([], Sampling(max_tokens=1)) == []
        homes = {t: n for n in (0, 1) for t in asked[n]}
        await both([(Message("user", t),) for t in texts], Sampling(max_tokens=1))
        assert all(asked[homes[t]].count(t) == 2 for t in texts)
        for _ in range(20):  # were they counted as in flight, the other engine would be chosen in the end
            with pytest.raises(RuntimeError):
                await both([(Message("user", "bad"),)], Sampling(max_tokens=1))
        assert len({n for n in (0, 1) if "bad" in asked[n]}) == 1

    asyncio.run(run())


def test_an_engine_that_joins_takes_its_share_and_moves_no_other_context():
    router, chats = Router(3), [about(f"context {n}") for n in range(300)]
    before = router.choose(chats, [0, 1])
    for engine in before:
        router.done(engine, 1)
    fresh = Router(3)  # a process that begins later: it remembers no context
    after = fresh.choose(chats, [0, 1, 2])
    assert set(before) == {0, 1} and after.count(2) >= 60
    moved = sum(a != b for a, b in zip(before, after, strict=True) if b != 2)
    assert moved <= 0.15 * len(chats), "but for those that the bound on loads moves"
    assert 2 not in router.choose(chats, [0, 1])


def test_chats_of_an_engine_that_goes_are_sent_to_one_that_stays():
    """Replies stay in order, each chat is lost once at most, and nothing stays in flight."""
    lost, up = [], [0, 1]

    async def stays(chats, sampling, adapter=None):
        await asyncio.sleep(0)
        return [Generated(c[0].content[::-1], "stop", 1, 0, 1) for c in chats]

    async def goes(chats, sampling, adapter=None):
        await asyncio.sleep(0)
        lost.extend(c[0].content for c in chats)
        raise EngineGone("engine-x-1")

    async def run():
        both = routed([stays], [goes, goes], lambda: up)
        texts = [f"chat {n}" for n in range(60)]
        chats = [(Message("user", t),) for t in texts]
        assert [r.text for r in await both(chats, Sampling(max_tokens=1))] == [t[::-1] for t in texts]
        assert len(lost) == len(set(lost)) > 0
        up.clear()
        assert [r.text for r in await both(chats, Sampling(max_tokens=1))] == [t[::-1] for t in texts]
        assert len(lost) == len(set(lost)), "one that is not up gets none"

    asyncio.run(run())
