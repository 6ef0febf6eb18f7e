"""Which worker gets which task: 64 GPUs that come and go, on a clock that is only counted."""

import heapq
import itertools
from collections import Counter

from raypipe.runs.cluster.stream_schedule import StreamSchedule
from raypipe.runs.pipeline.tasks import Task

ROWS, ROW_BYTES = 10, 1000


def tasks(count):
    return [Task(f"{n:06d}", tuple(f"{n}-{row}" for row in range(ROWS))) for n in range(count)]


class Cluster:
    """Workers that take so many seconds for a task, one after the other, whatever they have in hand."""

    def __init__(self, schedule, prepare_s, embed_s):
        self.schedule, self._seconds = schedule, {"prepare": prepare_s, "embed": embed_s}
        self._events, self._order = [], itertools.count()
        self._free_at, self._part, self._lives = {}, {}, set()
        self.now, self.most, self.embedded = 0.0, 0.0, Counter()
        self.busy = []  # (start, end) of each task that was embedded

    def joins(self, worker, part):
        self._part[worker], self._free_at[worker] = part, self.now
        self._lives.add(worker)
        self.schedule.joins(worker, part)

    def dies(self, worker):
        self._lives.discard(worker)
        self.schedule.dies(worker)

    def at(self, when, do, *args):
        heapq.heappush(self._events, (when, next(self._order), do, args))

    def run(self):
        self._give()
        while not self.schedule.done:
            self.now, _, do, args = heapq.heappop(self._events)
            do(*args)
            self._give()

    def _give(self):
        for assigned in self.schedule.next():
            worker, part = assigned.worker, self._part[assigned.worker]
            assert (assigned.block is None) == (part == "prepare")
            start = max(self.now, self._free_at[worker])
            self._free_at[worker] = end = start + self._seconds[part]
            self.at(end, self._ends, worker, assigned, start)
        self.most = max(self.most, self.schedule.in_flight)

    def _ends(self, worker, assigned, start):
        if worker not in self._lives:
            return
        if assigned.block is None:
            size = ROW_BYTES * len(assigned.task.ids)
            self.schedule.prepared(worker, assigned.task, size, assigned.task.name)
        else:
            assert assigned.block.handle == assigned.task.name
            self.busy.append((start, self.now))
            self.embedded[assigned.task.name] += 1
            self.schedule.finished(worker, assigned.task)


def cluster(count, prepares, embeds, prepare_s, embed_s, most_bytes=10**9, tries=2):
    made = Cluster(StreamSchedule(tasks(count), most_bytes, tries), prepare_s, embed_s)
    for n in range(embeds):
        made.joins(f"gpu {n}", "embed")
    for n in range(prepares):
        made.joins(f"cpu {n}", "prepare")
    return made


def share_busy(made, gpus):
    """Of the GPUs' time from the first task that is embedded to the last that begins."""
    first, last = min(s for s, _ in made.busy), max(s for s, _ in made.busy)
    return sum(min(e, last) - s for s, e in made.busy) / (gpus * (last - first))


def test_gpus_wait_for_nothing_once_they_are_warm():
    made = cluster(2000, prepares=72, embeds=64, prepare_s=1.0, embed_s=1.0)
    made.run()
    assert set(made.embedded.values()) == {1} and len(made.embedded) == 2000
    assert share_busy(made, 64) >= 0.9


def test_bytes_in_flight_are_bounded_when_the_encoder_is_100_times_slower():
    most = 50 * ROWS * ROW_BYTES
    made = cluster(500, prepares=16, embeds=4, prepare_s=1.0, embed_s=100.0, most_bytes=most)
    made.run()
    assert made.most <= most and len(made.embedded) == 500
    assert share_busy(made, 4) >= 0.99


def test_a_block_that_is_larger_than_the_bound_goes_alone():
    made = cluster(5, prepares=4, embeds=2, prepare_s=1.0, embed_s=1.0, most_bytes=1)
    made.run()
    assert len(made.embedded) == 5
    assert made.most <= 2 * ROWS * ROW_BYTES  # one for each that embeds, before the first says how large


def test_of_64_gpus_eight_are_lost_and_eight_join_and_each_task_is_done_once():
    made = cluster(1000, prepares=80, embeds=64, prepare_s=1.0, embed_s=1.0)
    for n in range(8):
        made.at(5.5, made.dies, f"gpu {n}")
        made.at(9.0, made.joins, f"gpu {64 + n}", "embed")
    made.run()
    assert set(made.embedded.values()) == {1} and len(made.embedded) == 1000
    assert made.schedule.failed == []
    assert share_busy(made, 64) >= 0.9


def test_a_worker_that_prepares_dies_and_another_prepares_its_task():
    made = cluster(20, prepares=3, embeds=1, prepare_s=1.0, embed_s=0.1)
    made.at(2.5, made.dies, "cpu 1")
    made.run()
    assert len(made.embedded) == 20 and set(made.embedded.values()) == {1}


def test_a_task_whose_workers_die_twice_is_set_aside():
    schedule = StreamSchedule(tasks(2), most_bytes=10**9, tries=2)
    schedule.joins("cpu", "prepare")
    for worker in ("gpu 0", "gpu 1"):
        schedule.joins(worker, "embed")
    [one] = schedule.next()[:1]
    schedule.prepared("cpu", one.task, 1, "block")
    for _ in range(2):
        [embed] = [a for a in schedule.next() if a.block is not None]
        schedule.dies(embed.worker)
        schedule.dies(embed.worker)  # each of its tasks says so
    assert schedule.failed == [one.task] and not schedule.done


def test_what_was_prepared_on_a_lost_machine_is_prepared_again():
    schedule = StreamSchedule(tasks(1), most_bytes=10**9, tries=2)
    schedule.joins("cpu", "prepare")
    schedule.joins("gpu", "embed")
    [prepare] = schedule.next()
    schedule.prepared("cpu", prepare.task, 1, "block")
    [embed] = schedule.next()
    schedule.block_lost("gpu", embed.task)
    [again] = schedule.next()
    assert again.block is None and again.task == prepare.task and schedule.failed == []


def test_a_retired_worker_finishes_what_it_has_and_gets_no_more():
    schedule = StreamSchedule(tasks(3), most_bytes=10**9, tries=2)
    schedule.joins("cpu", "prepare")
    [prepare] = schedule.next()
    schedule.retire("cpu")
    assert not schedule.is_empty("cpu")
    schedule.prepared("cpu", prepare.task, 1, "block")
    assert schedule.is_empty("cpu") and schedule.next() == []


def test_a_worker_that_embeds_has_two_tasks_at_most():
    schedule = StreamSchedule(tasks(4), most_bytes=10**9, tries=2)
    for n in range(4):
        schedule.joins(f"cpu {n}", "prepare")
    schedule.joins("gpu", "embed")
    first = schedule.next()
    assert len(first) == 1, "before a block says how large a row is, one for each that embeds"
    schedule.prepared(first[0].worker, first[0].task, 1, "block")
    more = schedule.next()
    assert sum(a.block is None for a in more) == 3
    for a in more:
        if a.block is None:
            schedule.prepared(a.worker, a.task, 1, "block")
    given = [a for a in (*more, *schedule.next()) if a.block is not None]
    assert len(given) == 2
