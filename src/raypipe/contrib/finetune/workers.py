"""Training on Ray: each worker computes a share of each batch, and restarts from the last checkpoint.

Ray Train starts the workers, joins them in one torch process group and stores checkpoints. When a worker
dies, it restarts all of them. Each worker runs `trainer.train`. A run's name is the digest of all that
decides its numbers, so only an equal run continues it. Ray Train is imported when a training starts.
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

RESTARTS = 3  # of all workers after a death; a row is tried as often on vLLM engines
SUM_TIMEOUT_S = 300.0  # for the slowest worker's share of a step; a dead worker is noticed immediately
POLL_S = 0.5  # between two reads of the workers' progress
KEPT = 2  # checkpoints: one to read, and one being written


class _Notes:
    """Ray actor that collects steps and errors from the workers for the driver."""

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
    """Runs one worker from the last checkpoint. Returns None on failure; the notes then have the error."""
    from ray import train as ray_train

    from raypipe.contrib.finetune.trainer import train

    context, notes = ray_train.get_context(), config["notes"]

    def told(point: StepPoint) -> None:
        if context.get_world_rank() == 0:
            notes.add.remote(point)

    def save(folder: Path) -> None:
        # A barrier: every worker reports, and their folders together are one checkpoint.
        ray_train.report({}, checkpoint=ray_train.Checkpoint.from_directory(folder))

    begun = ray_train.get_checkpoint()
    with ExitStack() as opened:
        start = None if begun is None else Path(opened.enter_context(begun.as_directory()))
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="raypipe-training-")))
        try:
            return train(config["job"], folder, told, save, start, context.get_world_size())
        except RaypipeError as e:  # every worker raises it, also after a restart: do not restart
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
    """Trains in Ray workers, and returns the adapter. This process is already connected to Ray.

    Continues a stopped run of the same `name`. `storage`: folder or URI that every node can read. `told` is
    called in a thread of this process, once per step, in order.

    Raises ClusterTooSmall if the cluster has no room for the workers, Diverged if a loss is not finite, and
    Unavailable if workers died after the last restart."""
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.train.v2.api.exceptions import TrainingFailedError

    needs, have = {"CPU": 1.0, **({"GPU": 1.0} if job.device == "cuda" else {})}, ray.cluster_resources()
    for kind, each in needs.items():
        if workers * each > have.get(kind, 0.0):
            raise ClusterTooSmall(
                f"{workers} workers need {workers * each:g} {kind}s, the cluster has {have.get(kind, 0.0):g}"
                ". Lower --workers, or take a larger cluster"
            )
    logging.getLogger("ray.train").setLevel(logging.CRITICAL)  # its messages are raised here instead
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
    """Reports steps while the block runs. Yields a function that stops this and returns a worker's error."""
    ended, seen, last = threading.Event(), 0, 0
    failed: RaypipeError | None = None

    def look() -> RaypipeError | None:
        nonlocal seen, last, failed
        points, failed = ray.get(notes.read.remote(seen))
        seen += len(points)
        for point in points:
            if point.step > last:  # a restart repeats some steps
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
