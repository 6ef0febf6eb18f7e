"""Training on Ray: workers that hold one share of each batch, restarted from the last checkpoint.

Ray Train starts the workers, restarts all of them when one dies, and keeps checkpoints; the loop is `train`.
Gradients of the adapter are added over gloo, on the CPU: 80 MB a step for 8 billion parameters at rank 8. The
name of a run is the digest of all that decides its numbers, so only an equal run continues it. Ray Train and
torch are imported where training starts.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from raypipe.contrib.finetune.loop import StepPoint, TrainingJob, TrainingState, WorkerGroup, train
from raypipe.core.errors import ClusterTooSmall, RaypipeError, Unavailable

STATE = "state.pt"
RESTARTS = 3  # of all workers, after one died; as often as a vLLM engine's row is tried
SUM_TIMEOUT_S = 300.0  # for the slowest worker's share of a step; a worker that died is noticed at once
POLL_S = 0.5  # between two looks at how far the workers are
KEPT = 2  # checkpoints: one that is being read, and one that is being written


class _Notes:
    """An actor: what the workers tell the driver."""

    def __init__(self) -> None:
        self._points: list[StepPoint] = []
        self._error: RaypipeError | None = None

    def add(self, point: StepPoint) -> None:
        self._points.append(point)

    def fail(self, error: RaypipeError) -> None:
        self._error = error

    def read(self, seen: int) -> tuple[list[StepPoint], RaypipeError | None]:
        return self._points[seen:], self._error


class _Gloo(WorkerGroup):
    def sum(self, numbers: Any) -> None:
        from torch import distributed

        if self.world == 1:
            return
        here = numbers.cpu()
        distributed.all_reduce(here)
        if here is not numbers:
            numbers.copy_(here)


def _work(config: dict[str, Any]) -> None:
    """Runs one worker, from the last checkpoint on."""
    from ray import train as ray_train

    context = ray_train.get_context()
    group = _Gloo(context.get_world_rank(), context.get_world_size())
    notes, begun = config["notes"], ray_train.get_checkpoint()
    start = None
    if begun is not None:
        with begun.as_directory() as folder:
            start = TrainingState.from_bytes((Path(folder) / STATE).read_bytes())

    def told(point: StepPoint) -> None:
        if group.rank == 0:
            notes.add.remote(point)

    def save(state: TrainingState) -> None:
        said = {"step": state.step}
        if group.rank:
            ray_train.report(said)  # a barrier: every worker reports
            return
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / STATE).write_bytes(state.to_bytes())
            ray_train.report(said, checkpoint=ray_train.Checkpoint.from_directory(folder))

    try:
        train(config["job"], group, told, save, start)
    except RaypipeError as e:  # the same on every worker, and again after a restart: none is worth one
        ray.get(notes.fail.remote(e))
    except Exception as e:
        if "out of memory" in str(e).lower():
            longest = max(len(row.ids) for row in config["job"].rows)
            too_small = ClusterTooSmall(
                f"a worker ran out of memory with a row of up to {longest} tokens "
                f"({str(e).splitlines()[0]}). Take a larger GPU, set gradient_checkpointing=true or "
                "four_bit=true, or a smaller max_seq_len with too_long=leave_out"
            )
            ray.get(notes.fail.remote(too_small))
        raise


def train_on_ray(
    job: TrainingJob, name: str, storage: str, workers: int, told: Callable[[StepPoint], None]
) -> TrainingState:
    """Trains in workers of the joined Ray, and returns the final state. A run of the same name that was
    stopped is continued; `storage`: a folder or URI that every node sees. `told` is called in a thread of
    this process, once for each step, in order.

    Raises ClusterTooSmall for workers that the cluster has no room for, Diverged, and Unavailable for workers
    that died more often than they are restarted."""
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.train.v2.api.exceptions import TrainingFailedError

    needs, have = {"CPU": 1.0, **({"GPU": 1.0} if job.device == "cuda" else {})}, ray.cluster_resources()
    for kind, each in needs.items():
        if workers * each > have.get(kind, 0.0):
            raise ClusterTooSmall(
                f"{workers} workers need {workers * each:g} {kind}s, the cluster has "
                f"{have.get(kind, 0.0):g}. Give --workers a smaller number, or a larger cluster"
            )
    logging.getLogger("ray.train").setLevel(logging.CRITICAL)  # what it would say is raised, or ours
    notes = ray.remote(num_cpus=0)(_Notes).remote()
    trainer = TorchTrainer(
        _work,
        train_loop_config={"job": job, "notes": notes},
        scaling_config=ScalingConfig(
            num_workers=workers, use_gpu=job.device == "cuda", resources_per_worker=needs
        ),
        torch_config=TorchConfig(backend="gloo", timeout_s=int(SUM_TIMEOUT_S)),
        run_config=RunConfig(
            name=name,
            storage_path=storage,
            failure_config=FailureConfig(max_failures=RESTARTS),
            checkpoint_config=CheckpointConfig(num_to_keep=KEPT),
        ),
    )
    with _following(notes, told) as error:
        try:
            result = trainer.fit()
        except TrainingFailedError as e:
            died = Unavailable(
                f"the workers of the training ended {RESTARTS + 1} times, the last time with: "
                f"{str(e).strip().splitlines()[-1]}. Checkpoints are kept: the same command continues"
            )
            raise (error() or died) from e
        if (failed := error()) is not None:
            raise failed
    with result.checkpoint.as_directory() as folder:
        return TrainingState.from_bytes((Path(folder) / STATE).read_bytes())


@contextmanager
def _following(notes: Any, told: Callable[[StepPoint], None]) -> Iterator[Callable[[], RaypipeError | None]]:
    """Tells of steps while the block runs. Gives the function that returns the error of a worker."""
    ended, seen, last = threading.Event(), 0, 0
    failed: RaypipeError | None = None

    def look() -> RaypipeError | None:
        nonlocal seen, last, failed
        points, failed = ray.get(notes.read.remote(seen))
        seen += len(points)
        for point in points:
            if point.step > last:  # after a restart some steps come again
                last = point.step
                told(point)
        return failed

    def follow() -> None:
        while not ended.wait(POLL_S):
            look()

    thread = threading.Thread(target=follow, name="training", daemon=True)
    thread.start()

    def stop() -> None:
        ended.set()
        thread.join()

    def error() -> RaypipeError | None:
        stop()
        return look()

    try:
        yield error
    finally:
        stop()
        ray.kill(notes)
