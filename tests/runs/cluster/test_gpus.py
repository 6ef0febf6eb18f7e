"""Several GPUs, which Ray is told of and nobody has: pools and engines spread over them."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from raypipe.core.errors import ClusterTooSmall
from raypipe.core.llm import Generated, Message, Sampling
from raypipe.models.generators import routed
from raypipe.runs.cluster.cluster_file import Pool
from raypipe.runs.pipeline.tasks import Task, TaskResult, WorkerConfig

pytestmark = pytest.mark.ray
GPUS = 4
BLOCK = 16  # tokens, as vLLM's
SAMPLING = Sampling(max_tokens=5)


@pytest.fixture(scope="module", autouse=True)
def here(local_ray):
    local_ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers have no tests to import


@pytest.fixture(scope="module")
def actors():
    from raypipe.models import engine_actors

    return engine_actors


@pytest.fixture(scope="module")
def places():
    from raypipe.models import engine_actors

    return engine_actors


@pytest.fixture(scope="module")
def one(actors):
    """What an engine takes that has a GPU of its own."""
    return {"CPU": 0.05, "GPU": 1}


@dataclass(frozen=True)
class Noting:
    """Work that notes where it is done, and takes as long as a small batch on a GPU.

    None begins before all workers have opened: which of them a busy machine starts first says nothing of
    how their pool shares.
    """

    diary: str
    worker: WorkerConfig = field(default=WorkerConfig("", "transformers", "cpu", 1))

    async def open(self, kit=None):
        note(self.diary, {"open": os.environ["CUDA_VISIBLE_DEVICES"]})
        late = time.monotonic() + 60
        while sum("open" in n for n in notes(self.diary)) < GPUS:
            assert time.monotonic() < late, "a pool of four gave parts to fewer"
            await asyncio.sleep(0.01)

        async def do(part: Task) -> TaskResult:
            await asyncio.sleep(0.1)
            return TaskResult(part.name, len(part.ids), len(part.ids), 0)

        return do


def note(diary, what):
    with open(diary, "a") as f:
        f.write(json.dumps(what) + "\n")


def notes(diary):
    """Lines that are whole: others may be writing theirs."""
    whole = Path(diary).read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


@pytest.mark.drill
def test_a_pool_of_four_holds_four_gpus_and_shares_the_rows(engine_groups, tmp_path):
    diary = str(tmp_path / "diary")
    parts = [Task(f"{n:06d}", tuple(f"{n}-{i}" for i in range(10))) for n in range(60)]
    done = list(engine_groups.run_tasks(Noting(diary), parts, Pool(actors=GPUS, cpus=0.2, gpus=1)))
    assert sorted(d.name for d in done) == [p.name for p in parts]
    opened = sorted(n["open"] for n in notes(diary))
    assert opened == ["0", "1", "2", "3"], "CUDA_VISIBLE_DEVICES of each actor is its own"
    rows = Counter()
    for d in done:
        rows[d.by["parse"].worker] += d.ids
    assert len(rows) == GPUS and all(" gpu " in who for who in rows)
    mean = sum(rows.values()) / GPUS
    assert max(rows.values()) <= 1.2 * mean and min(rows.values()) >= 0.8 * mean


class Prefixed:
    """An engine that says each chat's text backwards, and remembers the blocks of what it has read."""

    def __init__(self, diary):
        self._diary, self._blocks = diary, set()

    async def ready(self):
        note(self._diary, {"born": os.getpid(), "gpu": os.environ["CUDA_VISIBLE_DEVICES"]})

    async def healthy(self): ...

    async def generate(self, chats, sampling, adapter, alone):
        return list(await asyncio.gather(*(self._one(chat) for chat in chats)))

    async def _one(self, chat):
        text = chat[-1].content
        note(self._diary, {"asked": text, "gpu": os.environ["CUDA_VISIBLE_DEVICES"]})
        tokens = text.split()
        heads = [" ".join(tokens[:n]) for n in range(BLOCK, len(tokens) + 1, BLOCK)]
        cached = next((n for n, h in enumerate(heads) if h not in self._blocks), len(heads)) * BLOCK
        await asyncio.sleep(0.02)
        self._blocks |= set(heads)
        return Generated(text[::-1], "stop", len(tokens), cached, 1)

    def close(self): ...


@pytest.fixture
def diary(tmp_path):
    return str(tmp_path / "diary")


@pytest.fixture
def four(actors, places, one, diary, request):
    """Four engines, each on a GPU of its own, as a job starts them."""
    make = functools.partial(Prefixed, diary)
    names = [actors.name_of(request.node.name, n) for n in range(GPUS)]
    with places.reserved([one] * GPUS, wait_s=60) as groups:
        clients = [actors.start_actor(n, make, one, g) for n, g in zip(names, groups, strict=True)]
        for client in clients:
            client.ready()
        yield clients
        for client in clients:
            client.close()


def chats(contexts, calls):
    """For each of so many calls: a chat about each context, 96 words of it and then a question."""
    for call in range(calls):
        yield [
            (Message("user", " ".join(f"c{n}w{w}" for w in range(96)) + f" question {call}"),)
            for n in range(contexts)
        ]


def test_four_engines_share_the_work_and_each_context_is_read_once(four, diary):
    k, contexts = 3, 100

    async def run():
        ask = routed([c.generate for c in four])
        replies = []
        for batch in chats(contexts, k):
            for at in range(0, contexts, 25):  # parts of 25, as a worker has them
                replies.append((batch[at : at + 25], await ask(batch[at : at + 25], SAMPLING)))
        return replies

    prompt = cached = 0
    for batch, replies in asyncio.run(run()):
        assert [r.text for r in replies] == [c[-1].content[::-1] for c in batch]
        prompt += sum(96 // BLOCK * BLOCK for _ in batch)  # whole blocks of context
        cached += sum(r.cached_tokens for r in replies)
    work = Counter(n["gpu"] for n in notes(diary) if "asked" in n)
    assert set(work) == {"0", "1", "2", "3"} and max(work.values()) <= 1.2 * min(work.values())
    assert cached / prompt >= 0.9 * (k - 1) / k
    assert sum("born" in n for n in notes(diary)) == GPUS, "one engine for each GPU"


def test_an_engine_killed_in_the_middle_costs_no_reply_and_only_what_was_in_flight_is_asked_twice(
    four, diary
):
    [batch] = chats(200, 1)

    async def run():
        ask = routed([c.generate for c in four])
        call = asyncio.create_task(ask(batch, SAMPLING))
        while sum("asked" in n for n in notes(diary)) < 40:
            await asyncio.sleep(0.005)
        victim = next(n["born"] for n in notes(diary) if "born" in n)
        os.kill(victim, signal.SIGKILL)
        return await call

    replies = asyncio.run(run())
    assert [r.text for r in replies] == [c[-1].content[::-1] for c in batch]
    asked = Counter(n["asked"] for n in notes(diary) if "asked" in n)
    assert set(asked) == {c[-1].content for c in batch}
    assert sum(asked.values()) - len(asked) <= 64, "at most what one engine had in flight"
    assert max(asked.values()) <= 2


def test_engines_get_all_their_places_or_none(actors, places, one):
    with places.reserved([one] * 3, wait_s=30):
        start = time.monotonic()
        two = places.reserved([one] * 2, wait_s=1)  # there is one GPU left
        with pytest.raises(ClusterTooSmall, match=r"2 engines need .* did not get it within 1 s"), two:
            pass
        assert time.monotonic() - start < 10
        with places.reserved([one], wait_s=30) as [group]:
            assert group is not None
    with places.reserved([{"CPU": 0, "GPU": 0}], wait_s=1) as [group]:
        assert group is None
