"""An eval whose language model is behind an address: its processes are killed, then the server's engine. A
chat that the server answered is asked again only where a kill came before its reply was kept."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import httpx
import psutil
import pytest
from chat_server import serving
from checkout import ROOT
from real_model import real_model
from vllm_server import VllmServer

from raypipe.contrib.world.write import write

pytestmark = [pytest.mark.ray, pytest.mark.drill, pytest.mark.timeout(900)]
QUESTIONS, AT_ONCE = 120, 16


class Paid:
    """A server that counts the chats that it answers."""

    def __init__(self):
        self.chats, self.lock = Counter(), threading.Lock()

    def __call__(self, request, body):
        time.sleep(0.2)
        text = body["messages"][-1]["content"]
        if text != "ready":  # the check before work
            with self.lock:
                self.chats[text] += 1
        request.reply("Ann Lee")


def ended(driver):
    """Kills a driver and all that it started."""
    family = [driver, *driver.children(recursive=True)]
    for process in family:
        process.kill()
    psutil.wait_procs(family, timeout=60)


class Forwarded(Paid):
    """vLLM behind a server that counts the chats that vLLM answers."""

    def __init__(self, behind):
        super().__init__()
        self.behind = behind

    def __call__(self, request, body):
        try:
            reply = httpx.post(f"{self.behind}/chat/completions", json=body, timeout=300)
        except httpx.TransportError:
            return request.send("{}", 503)
        text = body["messages"][-1]["content"]
        if reply.is_success and text != "ready":
            with self.lock:
                self.chats[text] += 1
        request.send(reply.content, reply.status_code)


def command_over(tmp_path, server, questions):
    """The command of an eval of some invented questions, and its environment."""
    write(tmp_path / "world", questions, pages=1, seed=7, page_chars=1000)
    env = {**os.environ, "RAY_ADDRESS": "local", "RAYPIPE_HOME": str(tmp_path / "home")}
    env |= {"RAYPIPE_CONF": str(ROOT / "conf"), "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "raypipe", "eval", "vanilla", "--data", str(tmp_path / "world")]
    command += ["--store", str(tmp_path / "store"), "--llm", f"{server.url}#m", "--rule", "words", "--json"]
    return command, env


def driver_killed(command, env, paid, after):
    """Begins an eval, and kills all its processes after some paid chats."""
    first = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while paid.chats.total() < after:
        assert first.poll() is None, "it ended before it was killed"
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGSTOP)  # so that it starts no further process
    ended(psutil.Process(first.pid))
    first.wait()


def require_once(paid, report, questions, ends=1):
    """Asserts that each question has an answer, and was paid twice only if an end of the run found it in
    flight."""
    said = json.loads(report)
    assert said["questions"] == questions == len(paid.chats) and not said["faults"]
    twice = [n for n in paid.chats.values() if n > 1]
    # Two workers of the laptop's file have as many in flight at the address each.
    assert max(paid.chats.values()) <= 2 and len(twice) <= ends * 2 * AT_ONCE
    [step] = [s for s in said["steps"] if s["step"] == "generate:llm"]
    assert step["computed"] + step["cached"] >= step["rows"] - step["resumed"] > 0


def test_a_driver_and_its_workers_are_killed_and_each_chat_is_paid_once_but_those_in_flight(tmp_path):
    paid = Paid()
    with serving(paid) as server:
        command, env = command_over(tmp_path, server, QUESTIONS)
        driver_killed(command, env, paid, QUESTIONS // 3)
        assert paid.chats.total() < QUESTIONS
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr[-3000:]
    require_once(paid, done.stdout, QUESTIONS)


@pytest.mark.engine
@pytest.mark.timeout(1800)
def test_the_driver_and_the_engine_of_a_real_model_are_killed_and_each_chat_is_paid_once(tmp_path):
    folder, log = real_model().path, tmp_path / "vllm.log"
    engine = VllmServer.started(folder, "m", "bfloat16", log)
    try:
        paid = Forwarded(engine.ready())
        with serving(paid) as server:
            command, env = command_over(tmp_path, server, QUESTIONS)
            driver_killed(command, env, paid, QUESTIONS // 4)
            second = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            while len(paid.chats) < QUESTIONS // 2 and second.poll() is None:
                time.sleep(0.05)
            assert second.poll() is None, "it ended before its engine was killed"
            core = next(p for p in engine.family() if "EngineCore" in " ".join(p.cmdline()))
            core.kill()
            engine.end()
            engine = VllmServer.started(folder, "m", "bfloat16", log)
            paid.behind = engine.ready()
            second.communicate(timeout=600)  # it waited long enough, or says that the server was down
            assert second.returncode in (0, 6, 69)
            ends = 1 + (second.returncode != 0)  # one that gives up leaves chats in flight, too
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, done.stderr[-3000:]
    finally:
        engine.end()
    require_once(paid, done.stdout, QUESTIONS, ends)
