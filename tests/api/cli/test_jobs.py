"""Both forms of `ray job submit`, on heads started in the checkout: one in a home that has a token."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from checkout import ROOT, SUPPORT

FAKES = SUPPORT / "fakes.yaml"
BIN = Path(sys.executable).parent


def free_ports(n):
    """Port numbers that no process listens on."""
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def environment(home, **more):
    """Of a shell in this home: of Ray's and raypipe's own variables it has those of the tests alone."""
    unset = ("RAY_ADDRESS", "RAY_AUTH", "RAYPIPE_STORE")
    env = {k: v for k, v in os.environ.items() if not k.startswith(unset)}
    path = f"{BIN}{os.pathsep}{env['PATH']}"
    return env | {"PATH": path, "HOME": str(home), "RAYPIPE_HOME": str(home / "raypipe"), **more}


@contextmanager
def started(env, home):
    """The dashboard's address of a head that ends with the block."""
    gcs, dashboard, client, agent = free_ports(4)
    command = [
        str(BIN / "ray"),
        "start",
        "--head",
        "--block",
        "--num-cpus=2",
        "--node-ip-address=127.0.0.1",
        f"--port={gcs}",
        "--include-dashboard=true",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={dashboard}",
        f"--ray-client-server-port={client}",
        f"--dashboard-agent-listen-port={agent}",
        "--disable-usage-stats",
    ]
    log = (home / "head.log").open("wb")
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log, start_new_session=True)
    address = f"http://127.0.0.1:{dashboard}"
    try:
        _wait_for(address, process, home / "head.log")
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(5)  # the head waits for its dashboard, which may take half a minute
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        log.close()


def _wait_for(address, process, log):
    for _ in range(240):
        assert process.poll() is None, log.read_text()
        try:
            if httpx.get(f"{address}/api/jobs/", timeout=5).status_code in (200, 401):
                return
        except httpx.TransportError:
            pass  # not listening yet
        time.sleep(0.5)
    raise AssertionError(f"no head after two minutes:\n{log.read_text()}")


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """(dashboard address, environment) of a head, in a home that has a token, that ends with this module."""
    home = tmp_path_factory.mktemp("head")
    (home / ".ray").mkdir()
    (home / ".ray/auth_token").write_text(os.urandom(32).hex())
    env = environment(home, RAY_AUTH_MODE="token")
    with started(env, home) as address:
        refused = httpx.get(f"{address}/api/jobs/", timeout=5)
        assert refused.status_code == 401, "jobs are open without the token"
        yield address, env


def submit(head, *words, cwd=ROOT):
    """`ray job submit`, tried again while the head of a busy machine has no agent that takes jobs yet."""
    address, env = head
    command = [str(BIN / "ray"), "job", "submit", "--address", address, *words]
    for _ in range(20):
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
        if "No available agent to submit job" not in done.stdout + done.stderr:
            break
        time.sleep(3)
    return done


@pytest.mark.ray
@pytest.mark.drill
def test_an_eval_then_a_head_then_a_job_work_in_one_home_whose_shell_says_nothing_of_tokens(world, tmp_path):
    env, args = environment(tmp_path), [str(FAKES), "--data", str(world), "--store", str(tmp_path / "store")]
    command = [str(BIN / "python"), "jobs/eval.py", *args, "--out", str(tmp_path / "one")]
    alone = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert alone.returncode == 0, alone.stderr
    assert not (tmp_path / ".ray").exists(), "the Ray of this run keeps no token"
    with started(env, tmp_path) as address:
        done = submit((address, env), "--", "jobs/eval.py", *args, "--out", str(tmp_path / "two"), "--fresh")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "answers: 6 new" in done.stdout


@pytest.mark.drill
@pytest.mark.ray
def test_a_job_runs_in_both_forms_and_a_second_one_asks_nothing(head, world, tmp_path):
    args = [str(FAKES), "--data", str(world), "--store", str(tmp_path / "store")]
    literal = submit(head, "--", "jobs/eval.py", *args, "--out", str(tmp_path / "one"))
    assert literal.returncode == 0, literal.stdout + literal.stderr
    copied = submit(
        head,
        "--working-dir",
        str(ROOT),
        "--",
        "python",
        "jobs/eval.py",
        *args,
        "--out",
        str(tmp_path / "two"),
    )
    assert copied.returncode == 0, copied.stdout + copied.stderr
    one, two = (json.loads((tmp_path / name / "run.json").read_text()) for name in ("one", "two"))
    assert one["questions"] == 6 and sum(s["computed"] for s in one["steps"]) > 0
    assert sum(s["computed"] for s in two["steps"]) == 0
    first, second = ((tmp_path / name / "predictions.jsonl").read_bytes() for name in ("one", "two"))
    assert first == second and first.count(b"\n") == 6


@pytest.mark.ray
@pytest.mark.drill
def test_a_relative_path_in_a_job_is_refused(head, world):
    done = submit(head, "--", "jobs/eval.py", str(FAKES), "--data", str(world), "--store", "here")
    assert done.returncode == 1
    assert "--store 'here' is relative" in done.stdout
