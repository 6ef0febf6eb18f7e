"""Replies are remembered by all that decides them; what broke is asked again."""

import asyncio
import copy
from dataclasses import dataclass, replace

import pytest

from raypipe.core.llm import Choice, Generated, Message, Sampling
from raypipe.core.protocols import Model
from raypipe.core.records import Fault
from raypipe.models.fake import Scripted
from raypipe.store import Store
from raypipe.store.memo.cached import CallCount, CallCounts, Tokens, add_up, cached
from raypipe.store.memo.disk import MergeSummary, StoreMemo, memo_versions, merge_memo
from raypipe.store.memo.memo import ENTRY_BYTES, REPLY_BYTES, MemoryMemo, replies_of

MODEL = Model(
    "tiny",
    "generator",
    "scripted",
    "",
    "",
    "",
    "scripted@1",
    adapters=(("calls", "sha256:1"), ("web", "sha256:2")),
)
GREEDY = Sampling(max_tokens=8)


@dataclass
class TalkingKit:
    """A kit with one scripted generator."""

    scripted: Scripted

    def generator(self, model):
        return self.scripted.generate


def chat(*texts):
    return tuple(Message("user", t) for t in texts)


def said(text, sampling, adapter):
    user = text[-1].content
    if user == "down":
        return Fault("generate", "connection", "the engine is down", transient=True)
    return f"{adapter or 'base'} says {user} {sampling.seed}"


@pytest.fixture
def scripted():
    return Scripted(said, adapters=["calls", "web"])


@pytest.fixture(params=["memory", "store"])
def memo(request, tmp_path):
    if request.param == "memory":
        return MemoryMemo()
    return StoreMemo(Store.create(str(tmp_path / "store")).uri, {})


def ask(kit, chats, sampling=GREEDY, adapter=None, model=MODEL):
    return asyncio.run(kit.generator(model)(chats, sampling, adapter))


@dataclass
class RaisingKit(TalkingKit):
    """A kit whose generator raises on a call with one of the chats `bad`."""

    bad: tuple = ()

    def generator(self, model):
        async def generate(chats, sampling, adapter=None):
            replies = await self.scripted.generate(chats, sampling, adapter)
            if set(chats) & set(self.bad):
                raise RuntimeError("the reply cannot be read")
            return replies

        return generate


def test_a_chat_that_raises_costs_itself_and_every_other_is_sent_once(scripted, memo):
    tally, kit = CallCounts(), RaisingKit(scripted, (chat("b"), chat("e")))
    chats = [chat(c) for c in "abcdefg"]
    for _ in range(3):
        with pytest.raises(RuntimeError, match="cannot be read"):
            ask(cached(kit, memo, tally), chats)
    sent = [a.chat for a in scripted.asked]
    assert sorted(map(sent.count, chats)) == [1, 1, 1, 1, 1, 3, 3]
    assert tally.replies.computed == len(sent), "also what came to nothing"
    kit.bad = ()
    assert len(ask(cached(kit, memo, tally), chats)) == 7 and len(scripted.asked) == len(sent) + 2


def test_a_rerun_asks_nothing_and_gets_the_same_replies(scripted, memo):
    tally = CallCounts()
    kit = cached(TalkingKit(scripted), memo, tally)
    chats = [chat("a"), chat("b"), chat("a"), chat("a", "b")]
    first = ask(kit, chats)
    assert first == asyncio.run(Scripted(said).generate(chats, GREEDY))
    assert [a.chat for a in scripted.asked] == [chat("a"), chat("b"), chat("a", "b")]
    assert tally.replies == CallCount(3, 0)
    spent = replace(tally.tokens)
    assert (spent.prompt, spent.generated) == (2 + 2 + 4, 12)
    assert ask(kit, chats) == first
    assert len(scripted.asked) == 3
    assert (tally.replies, tally.tokens) == (CallCount(3, 3), spent)
    assert ask(kit, []) == []


def test_chat_sampling_adapter_and_model_are_each_part_of_what_is_remembered(scripted, memo):
    kit = cached(TalkingKit(scripted), memo, CallCounts())
    requests = [
        (chat("a"), GREEDY, None, MODEL),
        (chat("a"), GREEDY, "calls", MODEL),
        (chat("a"), GREEDY, "web", MODEL),
        (chat("a"), replace(GREEDY, seed=1), None, MODEL),
        (chat("a"), replace(GREEDY, max_tokens=9), None, MODEL),
        (chat("a"), replace(GREEDY, constraint=Choice(("base says a 0", "x"))), None, MODEL),
        (chat("a"), GREEDY, None, replace(MODEL, weights="scripted@2")),
        ((Message("system", "a"),), GREEDY, None, MODEL),
        (chat("a", ""), GREEDY, None, MODEL),
    ]
    for _ in range(2):
        for c, sampling, adapter, model in requests:
            ask(kit, [c], sampling, adapter, model)
    assert len(scripted.asked) == len(requests)


def test_another_adapter_beside_it_asks_nothing_again_and_other_weights_under_its_name_do(scripted, memo):
    kit = cached(TalkingKit(scripted), memo, CallCounts())
    ask(kit, [chat("a")])
    ask(kit, [chat("a")], adapter="calls")
    more = replace(MODEL, adapters=(*MODEL.adapters, ("third", "sha256:3")))
    ask(kit, [chat("a")], model=more)
    ask(kit, [chat("a")], adapter="calls", model=more)
    assert len(scripted.asked) == 2
    ask(kit, [chat("a")], adapter="calls", model=replace(MODEL, adapters=(("calls", "sha256:9"),)))
    assert len(scripted.asked) == 3


def test_a_fault_is_given_and_not_remembered(scripted, memo):
    tally = CallCounts()
    kit = cached(TalkingKit(scripted), memo, tally)
    one, two = ask(kit, [chat("down"), chat("up")])
    assert isinstance(one, Fault) and isinstance(two, Generated)
    ask(kit, [chat("down"), chat("up")])
    assert [a.chat[0].content for a in scripted.asked] == ["down", "up", "down"]
    assert tally.replies == CallCount(3, 1)


def test_replies_come_back_from_a_store_as_they_were_said(tmp_path, scripted):
    store = Store.create(str(tmp_path / "store"))
    replies = [
        Generated("日本 \u2019 {} \0", "stop", 5, 4, 3, -1.25),
        Generated("cut", "length", 2**31 - 1, 0, 8, None),
    ]

    def put(keys, values):
        table = replies_of(MODEL)
        rows = table.empty(len(values))
        rows[:] = values
        asyncio.run(StoreMemo(store.uri, memo_versions(store)).put_many(table, keys, rows))

    put(["a", "b"], replies)
    put(["a"], replies[1:])
    assert merge_memo(store) == MergeSummary(files=2, values=2, damaged=0)
    memo = StoreMemo(store.uri, memo_versions(store))
    known, values = asyncio.run(memo.get_many(replies_of(MODEL), ["b", "none", "a"]))
    assert known.tolist() == [True, False, True]
    assert values[0] == replies[1]
    assert values[1] in replies  # two workers said it: the first file folded holds


def test_a_reply_that_no_table_can_hold_is_asked_again(memo):
    scripted = Scripted(lambda *_: "half \ud83d a pair")
    kit = cached(TalkingKit(scripted), memo, CallCounts())
    for _ in range(2):
        [reply] = ask(kit, [chat("a")])
        assert reply.text == "half \ud83d a pair"
    assert len(scripted.asked) == 2


def test_a_memory_of_replies_forgets_what_came_first():
    async def fill():
        most = 3 * (ENTRY_BYTES + REPLY_BYTES + 100) - 1  # of two replies of 100 characters, nearly three
        memo, table = MemoryMemo(most), replies_of(MODEL)
        for key in "abcd":
            rows = table.empty(1)
            rows[:] = [Generated(key * 100, "stop", 1, 0, 1)]
            await memo.put_many(table, [key], rows)
        return await memo.get_many(table, list("abcd"))

    known, values = asyncio.run(fill())
    assert known.tolist() == [False, False, True, True]
    assert [v.text[0] for v in values] == ["c", "d"]


def test_counts_of_workers_add_up_and_begin_anew():
    tally = CallCounts(replies=CallCount(1, 2), tokens=Tokens(3, 2, 1))
    tally.add(CallCounts(replies=CallCount(4, 5), tokens=Tokens(30, 20, 10)))
    assert (tally.replies, tally.tokens, tally.computed, tally.cached) == (
        CallCount(5, 7),
        Tokens(33, 22, 11),
        5,
        7,
    )
    held = tally.tokens
    add_up(tally, copy.deepcopy(tally), -1)
    assert tally == CallCounts() and held == Tokens()
