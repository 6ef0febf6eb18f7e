"""Training on Ray: workers that hold one share of each batch, restarted from the last checkpoint.

Ray Train starts the workers, joins them in one group of torch, restarts all of them when one dies, and keeps
checkpoints; each trains by `trainer.train`. The name of a run is the digest of all that decides its numbers,
so only an equal run continues it. Ray Train and torch are imported where training starts.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import ray

from raypipe.contrib.finetune.training_job import StepPoint, TrainedAdapter, TrainingJob
from raypipe.core.errors import ClusterTooSmall, RaypipeError, Unavailable

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


def _work(config: dict[str, Any]) -> TrainedAdapter | None:
    """Runs one worker, from the last checkpoint on; None: it failed, and the notes say why."""
    from ray import train as ray_train

    from raypipe.contrib.finetune.trainer import train

    context, notes = ray_train.get_context(), config["notes"]

    def told(point: StepPoint) -> None:
        if context.get_world_rank() == 0:
            notes.add.remote(point)

    def save(folder: Path) -> None:
        # A barrier: every worker reports, and what all folders have is one checkpoint.
        ray_train.report({}, checkpoint=ray_train.Checkpoint.from_directory(folder))

    begun = ray_train.get_checkpoint()
    with ExitStack() as opened:
        start = None if begun is None else Path(opened.enter_context(begun.as_directory()))
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="raypipe-training-")))
        try:
            return train(config["job"], folder, told, save, start, context.get_world_size())
        except RaypipeError as e:  # the same on every worker, and again after a restart: none is worth one
            ray.get(notes.fail.remote(e))
        except Exception as e:
            if "out of memory" in str(e).lower():
                ray.get(notes.fail.remote(_out_of_memory(config["job"], e)))
            raise
    return None


def _out_of_memory(job: TrainingJob, error: Exception) -> ClusterTooSmall:
    longest = max(len(row.ids) for row in job.rows)
    return ClusterTooSmall(
        f"a worker ran out of memory with {job.preset.rows_at_once} rows at once of up to {longest} tokens "
        f"({str(error).splitlines()[0]}). Take a larger GPU, set rows_at_once=1, gradient_checkpointing=true "
        "or four_bit=true, or a smaller max_seq_len with too_long=leave_out"
    )


def train_on_ray(
    job: TrainingJob, name: str, storage: str, workers: int, told: Callable[[StepPoint], None]
) -> TrainedAdapter:
    """Trains in workers of the joined Ray, and returns the adapter. A run of the same name that was stopped
    is continued; `storage`: a folder or URI that every node sees. `told` is called in a thread of
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
        torch_config=TorchConfig(
            backend="gloo" if job.device == "cpu" else "nccl", timeout_s=int(SUM_TIMEOUT_S)
        ),
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
    trained: TrainedAdapter = result.return_value
    return trained


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
