"""Workers on Ray: a training continues though a worker or the driver is killed in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from checkout import ROOT
from test_trainer import equal, job_of
from tuned import CONF

from raypipe.contrib.finetune.preset import read_preset

pytestmark = [pytest.mark.ray, pytest.mark.drill]
STEPS = ("steps=24", "save_every=4", "evaluate_every=12")


@pytest.fixture(scope="module")
def job(base, chats):
    return job_of(base, chats, read_preset(CONF.find("finetune", "tiny"), STEPS))


def on_ray(job, folder, workers, told=lambda point: None, name="run"):
    from raypipe.contrib.finetune.workers import train_on_ray

    return train_on_ray(job, name, str(folder), workers, told)


def require_whole(adapter):
    """The training has each step once, and learned."""
    assert [p.step for p in adapter.steps] == list(range(1, 25))
    assert adapter.best_look.loss < adapter.steps[0].loss / 2


def test_a_finished_training_is_not_done_again(local_ray, job, tmp_path):
    seen, more = [], []
    adapter = on_ray(job, tmp_path, 1, seen.append)
    require_whole(adapter)
    assert list(adapter.steps) == seen
    assert equal(on_ray(job, tmp_path, 1, more.append).tensors, adapter.tensors) and not more


def test_two_workers_compute_the_losses_of_one(local_ray, job, tmp_path):
    """A token weighs the same, whichever worker has it. Without dropout: each worker draws its own."""
    import dataclasses

    quiet = dataclasses.replace(job.preset, lora_dropout=0.0, steps=4, warmup=0.0, evaluate_every=2)
    job = dataclasses.replace(job, preset=quiet)
    alone, both = (on_ray(job, tmp_path, n, name=f"of-{n}") for n in (1, 2))
    assert [p.loss for p in both.steps] == pytest.approx([p.loss for p in alone.steps], rel=1e-3)
    assert [p.norm for p in both.steps] == pytest.approx([p.norm for p in alone.steps], rel=1e-2)
    assert [p.loss for p in both.looks] == pytest.approx([p.loss for p in alone.looks], rel=1e-2)


def test_two_workers_continue_though_one_of_them_is_killed(local_ray, job, tmp_path):
    killed = []

    def kill_at_15(point):
        if point.step >= 15 and not killed:
            killed.append(workers_of(os.getpid())[-1])
            os.kill(killed[0], signal.SIGKILL)

    require_whole(on_ray(job, tmp_path, 2, kill_at_15))
    assert killed


def workers_of(pid):
    """Processes below this one that Ray Train's workers are."""
    import psutil

    found = []
    for child in psutil.Process(pid).children(recursive=True):
        try:
            if "RayTrainWorker" in " ".join(child.cmdline()):
                found.append(child.pid)
        except psutil.Error:
            continue
    return sorted(found)


DRIVER = """
import pickle, sys
from raypipe.runs.cluster import connection
from raypipe.contrib.finetune.workers import train_on_ray
job = pickle.load(open(sys.argv[1], "rb"))
connection.connect("local")
adapter = train_on_ray(job, "run", sys.argv[2], 1, lambda p: print(p.step, flush=True))
pickle.dump(adapter, open(sys.argv[3], "wb"))
"""


def test_a_driver_that_is_killed_and_started_again_continues(job, tmp_path):
    import pickle

    (tmp_path / "job").write_bytes(pickle.dumps(job))
    src = str(ROOT / "src")
    env = {**os.environ, "PYTHONPATH": src, "RAY_ADDRESS": "local"}
    command = [sys.executable, "-c", DRIVER, tmp_path / "job", tmp_path / "runs", tmp_path / "adapter"]

    def start():
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True)

    first = start()
    for line in first.stdout:
        if line.strip().isdigit() and int(line) >= 14:  # Ray may write lines of its own
            break
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    second = start()
    steps = [int(line) for line in second.stdout if line.strip().isdigit()]
    assert second.wait() == 0 and steps[0] > 1, steps  # how far back depends on when Ray counted a checkpoint
    require_whole(pickle.loads((tmp_path / "adapter").read_bytes()))


def test_a_training_that_diverges_is_not_tried_again(local_ray, job, tmp_path):
    import dataclasses

    from raypipe.contrib.finetune.training_job import Diverged

    wild = dataclasses.replace(job, preset=dataclasses.replace(job.preset, lr=1e30))
    with pytest.raises(Diverged, match="not finite"):
        on_ray(wild, tmp_path, 1)


def test_workers_that_the_cluster_has_no_room_for_are_refused(local_ray, job, tmp_path):
    from raypipe.core.errors import ClusterTooSmall

    with pytest.raises(ClusterTooSmall, match="99 workers need 99 CPUs"):
        on_ray(job, tmp_path, 99)
