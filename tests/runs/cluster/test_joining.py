"""Engines that join a job, die and leave, on four GPUs that Ray is told of."""

import asyncio
import functools
import os
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass

import pytest

from raypipe.core import config
from raypipe.core.config import Where
from raypipe.core.errors import ConfError
from raypipe.core.llm import Generated, Message, Sampling
from raypipe.core.protocols import Model
from raypipe.runs.cluster.capacity import most_engines, preflight_engines, sized, workers
from raypipe.runs.cluster.cluster_file import Cluster, Engines, Machines, Pool, Replicas

MODEL = Model("a", "generator", "vllm", "", "", "", "sha256:a")


def test_a_cluster_file_says_how_many_engines_there_are_at_least_and_at_most():
    tree = {"answer": {"actors": 2, "cpus": 1}, "gpus": 1, "replicas": {"min": 2, "max": 5}}
    engines = config.build(Engines, tree, Where("cluster.yaml", "engines"))
    assert (engines.replicas, engines.count, engines.most) == (Replicas(2, 5), 2, 5)
    for wrong, said in (
        ({"min": 3, "max": 2}, "expected 1 <= min <= max"),
        ({"min": 1, "mux": 2}, "did you mean"),
    ):
        with pytest.raises(ConfError, match=said):
            config.build(Engines, {**tree, "replicas": wrong}, Where("cluster.yaml", "engines"))


def test_a_job_starts_with_the_least_and_its_tasks_fill_the_most():
    engines = Engines(Pool(2, 1), cpus=1, gpus=1, replicas=Replicas(1, 4), max_num_seqs=64)
    pools = {verb: Pool(1, 1) for verb in ("parse", "embed", "answer")}
    file = Cluster("a test", "transformers", "cuda", 10, 10, pools, (Machines(1, 8, 2, 80),), engines=engines)
    node = {"CPU": 8.0, "GPU": 1.0}
    made = sized(file, [MODEL], [node]).engines
    assert made.replicas == Replicas(1, 4)
    preflight_engines(made, [MODEL], [node])
    assert workers(file, "answer", True).min_rows == 64 * 4 / 2
    assert [most_engines(made, [MODEL], [node] * n) for n in (1, 2, 4)] == [1, 2, 4]


@pytest.mark.ray
def test_a_turn_that_raises_is_reported_once_and_the_next_turn_is_taken(caplog):
    from raypipe.runs.cluster.engine_groups import take_turns

    troubles, stop = ["no room", "no room", "no head", "", "no room"], threading.Event()

    def turn():
        if not troubles:
            stop.set()
        elif trouble := troubles.pop(0):
            raise RuntimeError(trouble)

    with caplog.at_level("WARNING", "raypipe.engines"):
        take_turns(turn, stop, 0.001)
    said = [record.getMessage() for record in caplog.records]
    assert [word for line in said for word in ("no room", "no head") if word in line] == [
        "no room",
        "no head",
        "no room",
    ]


@dataclass
class Backwards:
    """An engine that says each chat's text backwards, and notes who it is."""

    diary: str

    async def ready(self):
        self._note("born")

    async def healthy(self): ...

    async def generate(self, chats, sampling, adapter, alone):
        await asyncio.sleep(0.05)
        for _ in chats:
            self._note("asked")
        return [Generated(chat[-1].content[::-1], "stop", 1, 0, 1) for chat in chats]

    def close(self): ...

    def _note(self, what):
        with open(self.diary, "a") as f:
            f.write(f"{what} {os.getpid()}\n")


def until(true, what, seconds=60):
    late = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < late, what
        time.sleep(0.1)


@pytest.mark.drill
def test_engines_join_a_job_one_that_dies_costs_no_reply_and_all_make_room_for_another_job(
    local_ray, tmp_path
):
    from raypipe.models import engine_actors as actors
    from raypipe.models import engine_actors as places
    from raypipe.models.engine_actors import JoiningEngines
    from raypipe.models.generators import routed
    from raypipe.runs.cluster.engine_groups import FIRST, Joining

    local_ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    diary = tmp_path / "diary"
    make, one = functools.partial(Backwards, str(diary)), {"CPU": 0.05, "GPU": 1}
    names = [actors.name_of(str(tmp_path), n) for n in range(4)]

    def notes(what):
        lines = diary.read_text().split("\n") if diary.exists() else []
        return Counter(line.split()[1] for line in lines if line.startswith(what))

    def ask(joining, texts):
        call = routed([actors.find(names[0]).generate], [joining.generator(n) for n in range(3)], joining.up)
        chats = [(Message("user", t),) for t in texts]
        replies = asyncio.run(call(chats, Sampling(max_tokens=1)))
        assert [r.text for r in replies] == [t[::-1] for t in texts]

    with places.reserved([one], 60, FIRST) as [group]:
        first = actors.start_actor(names[0], make, one, group)
        first.ready()
        joins = Joining()
        for name in names[1:]:
            joins.add(name, one, make)
        with joins.running(lambda: 3):
            joining = JoiningEngines(names[1:], clock=lambda: time.monotonic() * 100)
            until(lambda: joining.up() == [0, 1, 2], "three engines join")
            ask(joining, [f"context {n}" for n in range(200)])
            assert len(notes("asked")) == 4 and min(notes("asked").values()) >= 20

            [victim] = [int(pid) for pid in list(notes("born"))[1:2]]
            os.kill(victim, signal.SIGKILL)
            ask(joining, [f"another {n}" for n in range(200)])
            until(lambda: len(notes("born")) == 5 and len(joining.up()) == 3, "one takes its place")

            with places.reserved([one] * 2, 60, FIRST):  # as another job does
                assert joining.up() == []
                ask(joining, ["alone"])
            until(lambda: len(joining.up()) == 3, "they join again")
        assert joining.up() == []
        first.close()
    with places.reserved([one] * 4, 60):
        pass  # no place is held any more
