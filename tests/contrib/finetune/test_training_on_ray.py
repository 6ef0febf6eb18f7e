"""Workers on Ray: a training continues though a worker or the driver is killed in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from checkout import ROOT
from test_training_loop import equal, job_of
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


def require_whole(state):
    """The training has each step once, and learned."""
    assert state.ended and [p.step for p in state.steps] == list(range(1, 25))
    assert state.looks[-1].loss < state.steps[0].loss / 2


def test_a_finished_training_is_not_done_again(local_ray, job, tmp_path):
    seen, more = [], []
    state = on_ray(job, tmp_path, 1, seen.append)
    require_whole(state)
    assert state.steps == seen
    assert equal(on_ray(job, tmp_path, 1, more.append).final(), state.final()) and not more


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
state = train_on_ray(job, "run", sys.argv[2], 1, lambda p: print(p.step, flush=True))
open(sys.argv[3], "wb").write(state.to_bytes())
"""


def test_a_driver_that_is_killed_and_started_again_continues(job, tmp_path):
    import pickle

    from raypipe.contrib.finetune.loop import TrainingState

    (tmp_path / "job").write_bytes(pickle.dumps(job))
    src = str(ROOT / "src")
    env = {**os.environ, "PYTHONPATH": src, "RAY_ADDRESS": "local"}
    command = [sys.executable, "-c", DRIVER, tmp_path / "job", tmp_path / "runs", tmp_path / "state"]

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
    require_whole(TrainingState.from_bytes((tmp_path / "state").read_bytes()))


def test_a_training_that_diverges_is_not_tried_again(local_ray, job, tmp_path):
    import dataclasses

    from raypipe.contrib.finetune.loop import Diverged

    wild = dataclasses.replace(job, preset=dataclasses.replace(job.preset, lr=1e30))
    with pytest.raises(Diverged, match="not finite"):
        on_ray(wild, tmp_path, 1)


def test_workers_that_the_cluster_has_no_room_for_are_refused(local_ray, job, tmp_path):
    from raypipe.core.errors import ClusterTooSmall

    with pytest.raises(ClusterTooSmall, match="99 workers need 99 CPUs"):
        on_ray(job, tmp_path, 99)
