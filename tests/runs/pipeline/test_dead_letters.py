"""Whose fault it is: a row is blamed where others pass on the same worker, and nowhere else."""

import asyncio

import pyarrow as pa
import pytest

from raypipe.core.backoff import Backoff
from raypipe.core.errors import DataError, DiskFull, OutOfMemory, RaypipeError, Unavailable, WorkerBroken
from raypipe.recipes.executor import StageCounters, StageError
from raypipe.runs.pipeline.dead_letters import Suspects, Unproven, bisected
from raypipe.store.errors import StoreUnavailable

TRIES = 3


class Work:
    """Rows that are done, but for what `raises` says of a batch; it notes each batch that raised."""

    def __init__(self, raises):
        self.raises, self.tried, self.probed, self.dead = raises, [], [], False
        self.counts = {"embed": StageCounters()}

    async def compute(self, some):
        self.counts["embed"].rows += len(some)
        self.counts["embed"].calls.vectors.computed += len(some)
        if some and (error := self.raises(some)):
            self.tried.append(some)
            if isinstance(error, RaypipeError) and not isinstance(error, OutOfMemory):
                raise error
            raise StageError("embed") from error
        return pa.table({"id": pa.array(some, pa.string())}), []

    async def probe(self, stage):
        self.probed.append(stage)
        if self.dead:
            raise WorkerBroken("it computes nothing any more")

    def run(self, ids, suspects=None, witnessed=False):
        """Rows that were done, and the others."""
        backoff = Backoff(TRIES, 0.001)
        done, lost = asyncio.run(
            bisected(self.compute, tuple(ids), self.counts, self.probe, backoff, suspects, witnessed)
        )
        return sorted(i for t, _ in done for i in t["id"].to_pylist()), lost


def on(poison, error):
    return lambda some: error if poison & set(some) else None


def ids(count):
    return [f"r{i:02d}" for i in range(count)]


@pytest.mark.parametrize("count", [2, 3, 7, 100])
@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize(
    "error",
    [
        ValueError("no such word"),
        TimeoutError("no such word"),
        ConnectionError("no such word"),
        AssertionError("no such word"),
        OSError("no such word"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_whatever_one_row_raises_is_that_rows_at_its_third_attempt(count, at, error):
    poison = {ids(count)[at]}
    work = Work(on(poison, error))
    kept, lost = work.run(ids(count))
    assert kept == sorted(set(ids(count)) - poison) and set(lost) == poison
    assert len(work.tried) <= 3 and len(work.tried[-1]) == 1 and work.probed == ["embed"]
    [why] = lost.values()
    assert why.attempts == len(work.tried) and not why.fault.transient
    assert (why.fault.step, why.fault.reason) == ("embed", "raised")
    assert f"{type(error).__name__}: no such word" in why.fault.detail


def test_several_bad_rows_are_each_found_and_memory_that_ran_out_is_of_the_moment():
    for error in (MemoryError(), OutOfMemory("no room")):
        work = Work(on({"r03", "r04", "r47"}, error))
        kept, lost = work.run(ids(50))
        assert set(lost) == {"r03", "r04", "r47"} and len(kept) == 47 and not work.probed
        assert all(x.fault.transient and x.fault.reason == "memory" for x in lost.values())


def test_a_batch_that_only_together_is_too_much_is_done_in_pieces():
    kept, lost = Work(lambda some: OutOfMemory("no room") if len(some) > 4 else None).run(ids(20))
    assert kept == ids(20) and not lost


@pytest.mark.parametrize("count", [2, 5, 100])
@pytest.mark.parametrize("error", [ConnectionError("refused"), RuntimeError("?"), OutOfMemory("no room")])
def test_rows_all_of_which_fail_are_not_to_blame_also_not_for_the_second_worker(count, error):
    work = Work(lambda some: error)
    for suspects in (None, Suspects(), Suspects(witnessed=True)):
        with pytest.raises(WorkerBroken, match=f"all {count} rows of a task fail, so no row is blamed"):
            work.run(ids(count), suspects, witnessed=True)


def test_rows_that_fail_to_the_end_go_to_another_worker_which_tries_them_first():
    failing = set(ids(10)[6:])
    with pytest.raises(Unproven, match="the last 4 rows of a task all fail") as back:
        Work(on(failing, RuntimeError("?"))).run(ids(10))
    assert back.value.rows == tuple(ids(10)[6:])
    again = Suspects(back.value.rows)
    assert Work(lambda some: None).run(ids(10), again) == (ids(10), {}), "it was the worker"
    work = Work(on(failing, RuntimeError("?")))
    kept, lost = work.run(ids(10), again)
    assert kept == ids(10)[:6] and set(lost) == failing, "it was the rows: others passed after them"
    assert [len(some) for some in work.tried] == [1, 1, 1, 1]


def test_no_row_is_blamed_on_a_worker_whose_models_compute_no_more():
    work = Work(on({"r03"}, RuntimeError("a word that nobody knows")))
    work.dead = True
    with pytest.raises(WorkerBroken, match="computes nothing any more"):
        work.run(ids(9))


def test_a_row_alone_in_its_task_is_blamed_where_the_worker_did_others_else_it_stays_pending():
    error = ValueError("no such word")
    _, lost = Work(lambda some: error).run(["r00"], witnessed=True)
    assert not lost["r00"].fault.transient
    with pytest.raises(Unproven, match="the only row of a task fails"):
        Work(lambda some: error).run(["r00"])
    _, lost = Work(lambda some: error).run(["r00"], Suspects(("r00",), witnessed=True))
    assert not lost["r00"].fault.transient, "the first worker had done others"
    _, lost = Work(lambda some: error).run(["r00"], Suspects(("r00",)))
    assert lost["r00"].fault.transient and "its task has no other row" in lost["r00"].fault.detail


@pytest.mark.parametrize("error", [DiskFull("full"), DataError("bad"), WorkerBroken("CUDA error")])
def test_a_full_disk_a_wrong_setup_and_a_broken_device_are_no_rows_fault(error):
    work = Work(on({"r00"}, error))
    with pytest.raises(type(error)):
        work.run(ids(2))
    assert len(work.tried) == 1


def test_what_is_unavailable_for_a_while_is_waited_for_and_what_stays_so_is_raised():
    left = [StoreUnavailable("503")] * (TRIES - 1)
    work = Work(lambda some: left.pop() if left else None)
    assert work.run(ids(6)) == (ids(6), {}) and work.tried == [tuple(ids(6))] * (TRIES - 1)
    with pytest.raises(Unavailable, match="503"):
        Work(lambda some: StoreUnavailable("503")).run(ids(6))


def test_an_attempt_in_vain_counts_its_calls_and_not_its_rows():
    work = Work(on({"r03"}, ValueError()))
    work.run(ids(10))
    sent = sum(map(len, work.tried)) + 9
    assert work.counts["embed"].rows == 9 and work.counts["embed"].calls.vectors.computed == sent
    assert work.counts["embed"].faults == 1
