"""Both forms of `ray job submit`, on a head with token authentication started in the checkout."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
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


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """(dashboard address, environment) of a head that ends with this module."""
    tmp = tmp_path_factory.mktemp("head")
    gcs, dashboard, client, agent = free_ports(4)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_ADDRESS", "RAYPIPE_STORE"))}
    env |= {
        "PATH": f"{BIN}{os.pathsep}{env['PATH']}",
        "HOME": str(tmp),
        "RAYPIPE_HOME": str(tmp / "raypipe"),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": os.urandom(32).hex(),
    }
    command = [
        str(BIN / "ray"), "start", "--head", "--block", "--num-cpus=2", "--node-ip-address=127.0.0.1",
        f"--port={gcs}", "--include-dashboard=true", "--dashboard-host=127.0.0.1",
        f"--dashboard-port={dashboard}",
        f"--ray-client-server-port={client}", f"--dashboard-agent-listen-port={agent}",
        "--disable-usage-stats",
    ]  # fmt: skip
    log = (tmp / "head.log").open("wb")
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log, start_new_session=True)
    address = f"http://127.0.0.1:{dashboard}"
    try:
        _wait_for(address, env["RAY_AUTH_TOKEN"], process, tmp / "head.log")
        yield address, env
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(5)  # the head waits for its dashboard, which may take half a minute
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        log.close()


def _wait_for(address, token, process, log):
    for _ in range(240):
        assert process.poll() is None, log.read_text()
        try:
            answer = httpx.get(
                f"{address}/api/jobs/", headers={"Authorization": f"Bearer {token}"}, timeout=5
            )
            if answer.is_success:
                assert not httpx.get(f"{address}/api/jobs/", timeout=5).is_success, (
                    "jobs are open without the token"
                )
                return
        except httpx.TransportError:
            pass  # not listening yet
        time.sleep(0.5)
    raise AssertionError(f"no head after two minutes:\n{log.read_text()}")


def submit(head, *words, cwd=ROOT):
    address, env = head
    command = [str(BIN / "ray"), "job", "submit", "--address", address, *words]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)


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
    one, two = (json.loads((tmp_path / name / "report.json").read_text()) for name in ("one", "two"))
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
