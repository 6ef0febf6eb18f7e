"""SIGTERM, as a cluster sends it: the run ends with 143, leaves no process, and goes on later."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from checkout import ROOT, SUPPORT

from raypipe.store import Store

QUESTIONS = 40  # four parts of answers on two actors: the first is done while others are under way
WAIT_S = 120.0  # a Ray on a busy machine takes its time to start


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    from raypipe.contrib.world.write import write

    folder = tmp_path_factory.mktemp("many")
    write(folder, QUESTIONS, pages=3, seed=5, page_chars=1500)
    return folder


def until(seen):
    """Waits for something to be seen; fails after WAIT_S."""
    end = time.monotonic() + WAIT_S
    while not (found := seen()):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.002)
    return found


def in_ingest(store):
    return any((store / "_lease").glob("driver-*"))


def in_index(store):
    return any(store.glob("_parts/texts-*/*/*.json"))


def in_answer(store):
    return any(store.glob("_parts/answers/*/*.json"))


def stopped(command, address, store, reached):
    """Starts an eval, sends SIGTERM when it has reached a phase, and gives its exit code, what it said, and
    the processes below it that outlived it by ten seconds."""
    env = {**os.environ, "RAYPIPE_CONF": str(ROOT / "conf"), "RAY_ADDRESS": address}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=env, text=True, **pipes) as process:
        try:
            until(lambda: process.poll() is not None or reached(store))
            below = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    _, left = psutil.wait_procs(below, timeout=10)
    return process.returncode, said, [p.name() for p in left]


@pytest.mark.ray
@pytest.mark.drill
@pytest.mark.parametrize("early", [False, True])
def test_an_eval_stopped_in_any_phase_leaves_no_process_and_goes_on(local_ray, many, tmp_path, early):
    """While it answers; with `early`, before that while it reads and while it indexes."""
    store, shared = tmp_path / "store", local_ray.get_runtime_context().gcs_address
    free = local_ray.available_resources()["CPU"]
    command = [sys.executable, "-m", "raypipe", "eval", str(SUPPORT / "fakes.yaml"), "--data", str(many)]
    command += ["--store", str(store), "--out", str(tmp_path / "out"), "--json"]

    if early:
        assert stopped(command, shared, store, in_ingest)[::2] == (143, [])
        assert not (store / "_ingested").exists() and Store.open(str(store)).count("questions") == 0
        code, said, left = stopped(command, shared, store, in_index)
        assert (code, left) == (143, []), said
    until(lambda: local_ray.available_resources().get("CPU") == free)  # its actors have ended

    # This one has started its own Ray, which must end with it.
    code, said, left = stopped(command, "local", store, in_answer)
    assert (code, left) == (143, []), said
    assert "stopped; finished parts are kept, run it again to continue" in said
    assert "Traceback" not in said and "GraphLeft" not in said
    assert not any((store / "_lease").glob("driver-*")) and not (tmp_path / "out/run.json").exists()

    env = {**os.environ, "RAYPIPE_CONF": str(ROOT / "conf"), "RAY_ADDRESS": shared}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    steps = {s["step"]: s for s in report["steps"]}
    assert report["questions"] == steps["decide"]["rows"] == QUESTIONS and report["resumed"] > 0
    assert steps["parse"]["computed"] > 0 and steps["parse"]["resumed"] > 0, "earlier attempts are counted"
