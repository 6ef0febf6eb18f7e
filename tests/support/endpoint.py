"""`raypipe serve` in a process of its own; of `live` over a store with two runs of which one is released."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
from checkout import ROOT
from load import fire
from reruns import FAKES, Bench

from raypipe.core import arrow
from raypipe.runs.record import read
from raypipe.runs.release import promote
from raypipe.store import Store

KEY = "the-key-of-these-tests"
AUTH = {"authorization": f"Bearer {KEY}"}
PART = "the-key-of-a-part-of-the-store"
KEY_FILTERS = f"filters: {{part: {{keys: [{PART}], hosts: [nowhere.example]}}}}"
QUESTIONS = 10
SURE = FAKES.replace("threshold: 0.5\n", "threshold: 0.0\n")
OTHER = SURE.replace("hash-embedder", "other-embedder").replace("top: 10}", "top: 3}")


@dataclass(frozen=True)
class Released:
    """A store whose first run is live."""

    store: object
    jobs: list  # what the job of the first release answered
    pages: dict  # question id -> its search results
    runs: tuple  # records of two runs; the first is live


def released_runs(tmp_path_factory):
    from raypipe.contrib.world.write import write

    world = tmp_path_factory.mktemp("asked")
    write(world, QUESTIONS, pages=5, seed=11, page_chars=1000)
    bench = Bench(tmp_path_factory.mktemp("released"), world)
    bench.run(FAKES, out="one")
    store = Store.open(str(bench.folder / "store"))
    asked = arrow.question.records(store.dataset("questions").to_table())
    jobs = list(bench.pipeline(FAKES).answers(asked))
    bench.run(OTHER, out="two")
    runs = tuple(read(bench.folder / name) for name in ("one", "two"))
    promote(store, runs[0], [])
    return Released(
        store, jobs, {line["interaction_id"]: line["search_results"] for line in bench.lines()}, runs
    )


@dataclass(frozen=True)
class Running:
    """The endpoint, and what it stands on."""

    url: str
    store: object
    jobs: list
    pages: dict
    runs: tuple
    process: subprocess.Popen
    log: Path
    written: set = field(default_factory=set)  # log files of its processes that were seen

    def client(self):
        return httpx.Client(base_url=self.url, timeout=90, headers=AUTH)

    def replicas(self, name):
        """The processes of a deployment."""
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if f"ServeReplica:raypipe:{name}" in " ".join(child.cmdline()):
                    found.append(child)
            except psutil.Error:
                continue
        return found

    def logs(self):
        """What the endpoint and all of its processes have written."""
        if self.process.poll() is None:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    self.written.update(Path(f.path) for f in child.open_files() if "/logs/" in f.path)
        there = [f for f in sorted(self.written) if f.is_file()]
        return "\n".join([self.log.read_text(), *(f.read_text(errors="replace") for f in there)])

    def secrets(self):
        """Keys and questions that stand in a log."""
        whole = self.logs()
        return [x for x in (KEY, PART, *(q.text for q in self.jobs)) if x in whole]

    def refuses(self, words, digest):
        """Waits until the log has these words, while every question is answered by the recipe."""

        def said():
            for c in self.fire(8, 4):
                assert c.status == 200, c.body
                assert c.body["versions"]["recipe"] == digest
            return words in self.logs()

        until(said, 60)

    def fire(self, count, at_once, **options):
        """`count` questions of the job, some at a time; on a thread, so that something can happen
        meanwhile."""
        bodies = [{"query": self.jobs[i % QUESTIONS].text} for i in range(count)]
        return asyncio.run(fire(self.url, bodies, at_once, AUTH, **options))

    def under_load(self, count, at_once, happens, **options):
        """What came of the requests while `happens` happened, a tenth of the way in."""
        done = []
        with ThreadPoolExecutor(1) as thread:
            came = thread.submit(self.fire, count, at_once, done=done, **options)
            until(lambda: len(done) >= count / 10, 60)
            assert not came.done(), "the load was over before anything could happen"
            happens()
            return came.result(timeout=300)

    def settled(self, gateways=2):
        """Waits until every deployment is whole again."""
        wanted = {"gateway": gateways, "embed": 1, "rerank": 1}
        until(lambda: {n: len(self.replicas(n)) for n in wanted} == wanted, 60)
        with self.client() as client:
            for _ in range(8):  # each gateway has opened the release
                until(lambda: self._answers(client), 60)

    def _answers(self, client):
        try:
            reply = client.post("/v1/answer", json={"query": self.jobs[0].text})
        except httpx.TransportError:
            return False
        return reply.is_success and not reply.json()["degraded"]


def until(true, seconds):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.2)


class started:
    """`raypipe serve` with these words as a process, ended by SIGTERM with the code that says so."""

    def __init__(self, words, log):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.words, self.log = words, log

    def __enter__(self):
        env = {
            **os.environ,
            "RAYPIPE_CONF": str(ROOT / "conf"),
            "RAYPIPE_HOME": str(self.log.parent / "home"),
            "RAYPIPE_KEYS": f"{KEY},another-key-for-rotation",
            "RAYPIPE_KEY_FILTERS": KEY_FILTERS,
        }
        command = [sys.executable, "-m", "raypipe", "serve", *self.words, "--port", str(self.port)]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(command, env=env, stdout=out, stderr=out)
        url = f"http://127.0.0.1:{self.port}"
        for _ in range(300):
            assert self.process.poll() is None, self.log.read_text()
            try:
                if httpx.get(f"{url}/readyz", timeout=5).is_success:
                    return url, self.process
            except httpx.TransportError:
                pass  # not listening yet
            time.sleep(0.5)
        raise AssertionError(f"not ready after minutes:\n{self.log.read_text()}")

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(90) == 143, self.log.read_text()


@contextmanager
def live_endpoint(released, log):
    """Started, with two gateways that have both opened the release, and silent in its logs to the end."""
    words = ["live", "--store", released.store.uri, "--gateways", "2"]
    words += ["--mcp"]
    words += ["--memo", "0"]  # what is asked again is computed again: a load that lasts
    with started(words, log) as (url, process):
        made = Running(url, released.store, released.jobs, released.pages, released.runs, process, log)
        until(lambda: made.fire(8, 8) and made.logs().count("answers now, before it None") >= 2, 60)
        yield made
        assert made.secrets() == [], "a key or a question stands in a log"
