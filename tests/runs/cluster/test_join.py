"""Joining a Ray: tried again while it is not there, and given up with what to do. Starting one, with a token.

In processes of their own, which no test has made join one.
"""

import json
import os
import socket
import subprocess
import sys

import pytest

TRIES, PAUSE_S = 3, 0.4
HAVING = """
import sys, time
from raypipe.runs.cluster import connection
from raypipe.core.errors import ConfError, Unavailable
"""


def said(code, *args):
    """What a process prints that has the module of the connection."""
    command = [sys.executable, "-c", HAVING + code, *map(str, (TRIES, PAUSE_S, *args))]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


NOBODY = """
began = time.monotonic()
try:
    connection.join(sys.argv[3], int(sys.argv[1]), float(sys.argv[2]))
except Unavailable as e:
    print(time.monotonic() - began, e)
"""


@pytest.mark.slow
def test_a_ray_that_is_not_there_is_tried_again_and_the_last_message_says_what_to_do():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{s.getsockname()[1]}"
    seconds, message = said(NOBODY, address).split(maxsplit=1)
    assert float(seconds) >= (PAUSE_S + 2 * PAUSE_S) / 2, "pauses double; jitter halves them at most"
    assert f"{address!r} could not be joined in {TRIES} tries: nothing listens there" in message
    assert "RAY_ADDRESS" in message


LATE = """
import subprocess
tried, started = [], []
def init(address, **options):
    tried.append((address, options))
    if len(tried) < 3:
        for word in ("/tmp/ray/session_1", "other"):  # as a part of Ray that came up, and as a child of ours
            started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(90)", word]))
        raise [ConnectionError("Failed to connect to Ray cluster"), Exception("timed out during startup")][len(tried) - 1]
connection.join("local", int(sys.argv[1]), float(sys.argv[2]), init, num_cpus=2)
print(tried == [("local", {"log_to_driver": False, "num_cpus": 2})] * 3)
print([process.poll() for process in started])
for process in started:
    process.kill()
def wrong(address, **options):
    tried.append(address)
    raise ValueError("no such option")
try:
    connection.join("local", 3, 0.1, wrong)
except ValueError as e:
    print(len(tried), e)
"""  # noqa: E501


@pytest.mark.slow
def test_a_ray_that_comes_late_is_joined_and_a_mistake_is_not_tried_again():
    assert said(LATE).splitlines() == ["True", "[-9, None, -9, None]", "4 no such option"]


HELD = """
import json
import os
with connection._stderr_without(b"level"):
    os.write(2, b"a level was set\\nRay's own\\n")
    print("starting Ray", file=sys.stderr)
"""


def test_what_is_printed_while_ray_starts_is_shown_at_once_and_its_own_lines_after_it():
    done = subprocess.run([sys.executable, "-c", HAVING + HELD], capture_output=True, text=True, timeout=120)
    assert done.stderr.splitlines() == ["starting Ray", "Ray's own"]


QUIET = """
from ray._private.worker import print_to_stdstream
connection.join("local", init=lambda **options: None)
print_to_stdstream({"lines": ["A worker died"], "pid": "raylet", "is_err": False}, ignore_prefix=False)
print("a result")
"""


def test_a_message_of_ray_about_a_dead_worker_is_not_printed_among_results():
    assert said(QUIET).splitlines() == ["a result"]


OWN = """
import os, ray
from raypipe.runs.cluster import connection
connection.connect("local")
names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
mode, token = ray.get(ray.remote(num_cpus=1)(lambda: [os.environ[name] for name in names]).remote())
print(mode, token == os.environ["RAY_AUTH_TOKEN"], len(token))
"""


@pytest.mark.drill
@pytest.mark.ray
def test_a_ray_of_its_own_asks_for_a_token_that_its_processes_alone_have(tmp_path):
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH")} | {"HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", OWN], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["token", "True", "64"], done.stderr
    assert not (tmp_path / ".ray").exists()


def test_a_long_folder_for_temporary_files_gives_ray_a_short_one_and_one_named_for_ray_is_refused():
    code = """
long = "/scratch" * 9
print(connection._short_folder({"TMPDIR": "/tmp"}), connection._short_folder({"TMPDIR": long}))
try:
    connection._short_folder({"RAY_TMPDIR": long})
except ConfError as e:
    print(e)
for free in ({}, {"CPU": 1.0}):
    print(connection.no_cpu_free("auto", {"CPU": 2.0}, free))
"""
    short, refused, full, fine = said(code).splitlines()
    assert short == "{} {'_temp_dir': '/tmp/ray'}"
    assert refused.startswith("RAY_TMPDIR: expected a folder of at most 40 characters")
    assert full.startswith("no CPU is free in the Ray at auto: others hold all 2.") and not fine


@pytest.mark.ray
@pytest.mark.drill
def test_a_timeline_has_the_tasks_of_a_ray_that_was_started_with_profiling(tmp_path):
    file = tmp_path / "timeline.json"
    code = f"""
import sys, ray
from pathlib import Path
from raypipe.runs.cluster import connection
connection.connect("local")
ray.get(ray.remote(num_cpus=1)(lambda: 1).options(name="counted").remote())
connection.write_timeline(Path({str(file)!r}))
"""
    env = {**os.environ, "RAY_PROFILING": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (task,) = (e for e in json.loads(file.read_text()) if e["cat"] == "task::counted")
    assert task["ph"] == "X" and task["dur"] >= 0


@pytest.mark.ray
def test_no_timeline_is_written_without_profiling(local_ray, tmp_path, monkeypatch):
    from raypipe.runs.cluster import connection

    monkeypatch.delenv("RAY_PROFILING", raising=False)
    connection.write_timeline(tmp_path / "timeline.json")
    assert local_ray.is_initialized() and not (tmp_path / "timeline.json").exists()
