"""Between gateway and models: calls retried, cancelled and batched; metrics."""

import asyncio
import os
import sys
import time

import httpx
import numpy as np
import pytest

from raypipe.core.errors import Overloaded, Unavailable
from raypipe.core.records import Question
from raypipe.models.kit import LocalKit
from raypipe.serving.answerer import Answerer
from raypipe.serving.query import QueryRequest

pytestmark = pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20")  # Ray's own classes


class Fragile:
    """Doubles numbers; dies of a 13, waits on a 0."""

    def __init__(self, folder):
        self._folder = folder
        (folder / f"born-{os.getpid()}-{time.time_ns()}").touch()

    async def double(self, number):
        if number == 13:
            await asyncio.sleep(0.2)  # Serve itself resends what dies before the replica has accepted it
            os._exit(1)
        if number == 0:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                (self._folder / "cancelled").touch()
                raise
        return number * 2

    async def count(self, to):
        for i in range(to):
            yield i
            await asyncio.sleep(0.05)


class OneReplica:
    """A handle to one replica that a 13 kills with all that is in it, and that is there again at once."""

    deployment_name = "one"

    def __init__(self):
        self._inside = []

    @property
    def double(self):
        return self

    def remote(self, number):
        call = asyncio.get_running_loop().create_future()
        self._inside.append(call)
        asyncio.get_running_loop().call_later(0.01, self._end, call, number)
        return call

    def _end(self, call, number):
        from ray.exceptions import RayActorError

        lost, self._inside = (self._inside, []) if number == 13 else ([], self._inside)
        for one in lost:
            one.set_exception(RayActorError())
        if not call.done():
            call.set_result(number * 2)


@pytest.fixture(scope="module")
def calls():
    """The module, which imports Ray and so is none of collection's."""
    from raypipe.serving.ray import models

    return models


def test_calls_in_a_replica_that_an_input_kills_are_answered(calls):
    async def scene():
        asks = calls.RetryingHandle(OneReplica(), "double")
        poison = asyncio.ensure_future(asks.remote(13))
        fine = [asyncio.ensure_future(asks.remote(i)) for i in range(1, 6)]
        with pytest.raises(Unavailable, match=f"{calls.MAX_ATTEMPTS} replicas died"):
            await poison
        return await asyncio.gather(*fine)

    assert asyncio.run(scene()) == [2, 4, 6, 8, 10]


@pytest.fixture(scope="module")
def fragile(serve_port, tmp_path_factory):
    from ray import cloudpickle, serve

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # replicas have no tests on their path
    folder = tmp_path_factory.mktemp("fragile")
    made = serve.deployment(
        Fragile,
        num_replicas=1,
        max_ongoing_requests=8,
        max_queued_requests=3,
        ray_actor_options={"num_cpus": 0.1},
    )
    handle = serve.run(made.bind(folder), name="fragile", route_prefix=None)
    yield handle, folder
    serve.delete("fragile")


@pytest.mark.ray
@pytest.mark.drill
def test_an_input_that_kills_its_replica_kills_no_more_than_three_and_the_others_are_served(calls, fragile):
    handle, folder = fragile
    asks = calls.RetryingHandle(handle, "double")

    async def scene():
        poison = asyncio.ensure_future(asks.remote(13))
        fine = [await asks.remote(i) for i in range(1, 6)]
        with pytest.raises(Unavailable, match=f"{calls.MAX_ATTEMPTS} replicas died"):
            await poison
        return fine, await asks.remote(21)

    before = len(list(folder.glob("born-*")))
    fine, after = asyncio.run(scene())
    assert (fine, after) == ([2, 4, 6, 8, 10], 42)
    assert len(list(folder.glob("born-*"))) - before == calls.MAX_ATTEMPTS


@pytest.mark.ray
def test_a_call_whose_caller_gave_up_is_cancelled_in_the_replica(calls, fragile):
    handle, folder = fragile

    async def scene():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await calls.RetryingHandle(handle, "double").remote(0)

    asyncio.run(scene())
    end = time.monotonic() + 60
    while not (folder / "cancelled").exists():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.ray
def test_more_calls_than_the_queue_holds_are_overloaded(calls, fragile):
    handle, _ = fragile

    async def scene():
        sent = [asyncio.ensure_future(calls.RetryingHandle(handle, "double").remote(0)) for _ in range(20)]
        done, rest = await asyncio.wait(sent, timeout=60, return_when=asyncio.FIRST_EXCEPTION)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        end = time.monotonic() + 60
        while True:  # until those that gave up have left the queue
            try:
                assert await calls.RetryingHandle(handle, "double").remote(1) == 2
                return [t.exception() for t in done]
            except Overloaded:
                assert time.monotonic() < end
                await asyncio.sleep(0.1)

    errors = asyncio.run(scene())
    assert errors and all(isinstance(e, Overloaded) for e in errors)


@pytest.mark.ray
def test_a_stream_comes_piece_by_piece(calls, fragile):
    handle, _ = fragile

    async def scene():
        return [piece async for piece in calls.RetryingHandle(handle, "count").stream(4)]

    assert asyncio.run(scene()) == [0, 1, 2, 3]


class Response:
    def __init__(self, work):
        self._work = work

    def __await__(self):
        return self._work.__await__()

    def cancel(self):
        pass


class Handle:
    """A deployment whose batches break, while single calls are fine, or not."""

    deployment_name = "embed"

    def __init__(self, unbatched):
        self.called = []
        self.embed = self._method("embed", ZeroDivisionError("another call's input"))
        self.embed_unbatched = self._method("embed_unbatched", unbatched)

    def _method(self, name, comes):
        async def work():
            self.called.append(name)
            if isinstance(comes, Exception):
                raise comes
            return comes

        class Method:
            remote = staticmethod(lambda *args: Response(work()))

        return Method


def test_an_input_that_breaks_a_batch_breaks_its_own_request_alone(calls):
    fine = Handle("mine")
    assert asyncio.run(calls.RetryingHandle(fine, "embed", "embed_unbatched").remote(1)) == "mine"
    assert fine.called == ["embed", "embed_unbatched"]
    broken = Handle(ValueError("mine, too"))
    with pytest.raises(ValueError, match="mine, too"):
        asyncio.run(calls.RetryingHandle(broken, "embed", "embed_unbatched").remote(1))
    assert broken.called == ["embed", "embed_unbatched"]


def test_calls_of_one_kind_are_computed_in_one_batch_and_each_gets_its_own_rows():
    from raypipe.serving.ray.models import ModelCall, micro_batch

    batches = []

    async def compute(call, inputs):
        batches.append((call.model, call.role, list(inputs)))
        return np.array([[float(len(x))] for x in inputs], np.float32)

    calls = [
        ModelCall("a", ["x", "yy"]),
        ModelCall("b", ["zzz"]),
        ModelCall("a", ["wwww"]),
        ModelCall("a", ["v"], "passage"),
    ]
    found = asyncio.run(micro_batch(calls, compute))
    assert [f.ravel().tolist() for f in found] == [[1, 2], [3], [4], [1]]
    assert batches == [("a", "query", ["x", "yy", "wwww"]), ("b", "query", ["zzz"]), ("a", "passage", ["v"])]


def test_a_model_that_fails_costs_the_calls_of_its_own_kind():
    from raypipe.serving.ray.models import ModelCall, micro_batch, rows_of

    async def compute(call, inputs):
        if call.model == "evil":
            raise ValueError("this model cannot be opened")
        return np.ones((len(inputs), 1), np.float32)

    good, bad = asyncio.run(micro_batch([ModelCall("good", ["x"]), ModelCall("evil", ["x"])], compute))
    assert rows_of(good).tolist() == [[1]]
    with pytest.raises(ValueError, match="cannot be opened"):
        rows_of(bad)


def answered(filled, text):
    """One question, answered in this process."""
    online = Answerer(filled.recipe, LocalKit(None, "transformers"), filled.store.uri)
    return asyncio.run(online.answer(QueryRequest(Question("q", text))))


@pytest.mark.drill
@pytest.mark.ray
def test_metrics_go_out_through_rays_exporter(local_ray, filled):
    import ray

    from raypipe.serving.ray.gateway import RayMetrics

    metrics, job = RayMetrics(), filled.answers[0]
    metrics.request_started()
    metrics.question_answered(answered(filled, job.text))
    metrics.request_ended("/v1/answer", 200, 0.2)
    [node] = ray.nodes()
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    wanted = [
        "ray_raypipe_requests",
        "ray_raypipe_stage_seconds",
        "ray_raypipe_outcomes",
        "ray_raypipe_in_flight",
    ]
    end = time.monotonic() + 60
    while not all(name in (text := httpx.get(url).text) for name in wanted):
        assert time.monotonic() < end, [name for name in wanted if name not in text]
        time.sleep(1)
    assert 'stage="dense"' in text and f'outcome="{job.outcome}"' in text
    assert job.text not in text
