"""Kills replicas of the endpoint under load and checks that clients lose nothing.

SIGKILL goes to an embedder, a reranker or a gateway every few seconds, in turn. Each client sends a request
that broke or met a 5xx once more. Nothing may be lost, and without a killed gateway nothing may even break.
Prints one JSON object.

    python bench/drills/serve_drill.py [--requests 10000] [--clients 16] [--every 6]
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "figures"))
from serve import ROOT, filled

from raypipe.api.session import load_recipe
from raypipe.core.conf import Conf
from raypipe.core.records import Question

RECIPE = str(
    ROOT / "tests" / "support" / "fakes.yaml"
)  # models that compute in a moment: the load is on what is killed
WHOLE = {"embed": 1, "gateway": 2, "rerank": 1}  # replicas of each deployment
ALIVE_S = 180.0  # for the start, and for the last replica to come back


@dataclass
class Came:
    """Outcomes of the requests."""

    statuses: collections.Counter[int] = field(default_factory=collections.Counter)  # last try; 0: broken
    tries: collections.Counter[int] = field(default_factory=collections.Counter)
    degraded: int = 0
    slowest_s: float = 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--every", type=float, default=6.0, help="seconds of peace between two kills")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended
    with tempfile.TemporaryDirectory() as folder:
        questions, store = filled(Path(folder), load_recipe(RECIPE, None, Conf((ROOT / "conf",))), 60, 5)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        command = [sys.executable, "-m", "raypipe", "serve", RECIPE, "--store", store.uri, "--gateways", "2"]
        env = {**os.environ, "RAYPIPE_CONF": str(ROOT / "conf")}
        env.setdefault("RAY_AUTH_MODE", "disabled")  # else Ray writes a token into the home folder
        log = Path(folder) / "serve.log"
        with log.open("wb") as out:
            process = subprocess.Popen([*command, "--port", str(port)], env=env, stdout=out, stderr=out)
        try:
            url = f"http://127.0.0.1:{port}"
            _ready(url, process, log)
            came, kills = asyncio.run(_drill(url, process, questions, args))
            _ready(url, process, log)
        finally:
            process.terminate()
            process.wait(120)
    told = {
        "requests": args.requests,
        "kills": dict(kills),
        "statuses": dict(came.statuses),
        "sent_twice": came.tries[2],
        "degraded": came.degraded,
        "slowest_s": round(came.slowest_s, 1),
    }
    print(json.dumps(told), flush=True)
    lost = args.requests - came.statuses[200]
    beyond = came.tries[2] - args.clients * kills["gateway"]  # no more than were in flight at each
    return int(lost > 0 or beyond > 0)


async def _drill(
    url: str, process: subprocess.Popen[bytes], questions: list[Question], args: argparse.Namespace
) -> tuple[Came, collections.Counter[str]]:
    kills: collections.Counter[str] = collections.Counter()
    came = Came()
    loading = asyncio.ensure_future(_load(url, questions, args.requests, args.clients, came))
    for name in itertools.cycle(WHOLE):
        await asyncio.wait({loading}, timeout=args.every)
        while not loading.done() and {n: len(replicas(process, n)) for n in WHOLE} != WHOLE:
            await asyncio.wait({loading}, timeout=1)  # the last one killed is not back yet
        if loading.done():
            await loading
            return came, kills
        replicas(process, name)[0].kill()
        kills[name] += 1
        print(
            f"killed a replica of {name}; {came.statuses.total()} requests done", file=sys.stderr, flush=True
        )
    raise AssertionError("there is always another to kill")


async def _load(url: str, questions: list[Question], count: int, clients: int, came: Came) -> None:
    numbers, ids = iter(range(count)), [q.id for q in questions]
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:

        async def client() -> None:
            for i in numbers:
                began, status, tries = time.perf_counter(), 0, 0
                while tries < 2 and (status == 0 or status >= 500):
                    tries += 1
                    try:
                        reply = await http.post("/v1/answer", json={"query": ids[i % len(ids)]})
                        status = reply.status_code
                    except httpx.TransportError:
                        status = 0
                came.statuses[status] += 1
                came.tries[tries] += 1
                came.degraded += bool(status == 200 and reply.json()["degraded"])
                came.slowest_s = max(came.slowest_s, time.perf_counter() - began)

        await asyncio.gather(*(client() for _ in range(clients)))


def replicas(process: subprocess.Popen[bytes], name: str) -> list[psutil.Process]:
    """The processes of a deployment."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if f"ServeReplica:raypipe:{name}" in " ".join(child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found


def _ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + ALIVE_S
    while True:
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"the endpoint is not ready:\n{log.read_text()}")
        try:
            if httpx.get(f"{url}/readyz", timeout=5).is_success:
                return
        except httpx.TransportError:
            pass  # not listening yet
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
