"""Kills and stops nodes of a local four-raylet cluster in the middle of an eval.

    python bench/drills/nodes.py --drills 20 --seed 1 --out nodes.jsonl      # continues an interrupted drill

Each drill runs `raypipe eval` on the cluster and at a random moment does one of these: SIGKILL to a worker,
to a node with all its processes (a new node comes, or none does), to the driver, to the head; SIGTERM to the
driver; or a node falls silent: all its processes are stopped until the cluster has given it up, and then
continue, as after a cut network. A run that did not end well is started again. The tables must equal those of
an undisturbed run, row for row. Prints a line of JSON for each drill; exit code 1 if any differed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parent))
from kills import note
from life import ROOT, contents
from own_ray import environment

from raypipe.core.textfile import json_lines
from raypipe.store import Store

RECIPE, MODELS = ROOT / "tests" / "support" / "fakes.yaml", ROOT / "conf" / "models.yaml"
NODES = 3
QUESTIONS, PAGES = 8, 12  # some 60 sources: five parts of every table
SOON_S = 20.0  # for the head to count a node that is up
PATIENCE_S = 300.0  # for a node to come; an undisturbed run takes 10 - 30 s, on a busy machine ten times that
RUNS = 5  # undisturbed ones, as long as a disturbed one may take: a driver without its head may never end
SILENCE_S = 30.0  # of a node: longer than the health checks below take to give it up

# Ray gives up a node after some 30 s and a head after 60; here both are sooner, so that a drill is short, and
# late enough for a machine that does much else.
SOON = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "4000",
    "RAY_health_check_failure_threshold": "4",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "20",
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_agent_register_timeout_ms": "120000",
}
WHAT = ("worker", "node", "node for good", "silence", "driver", "stop", "head")

# As many actors as there are nodes, with small parts: a death costs little, and hits something.
CLUSTER = """
about: three raylets on one machine
backend: transformers
device: cpu
sources_per_task: 15
questions_per_task: 2
machines: [{nodes: 3, cpus: 1}]
pools:
  parse: {actors: fit, cpus: 0.9}
  embed: {actors: fit, cpus: 0.9}
  answer: {actors: fit, cpus: 0.9}
"""


# A raylet is there a while before the head counts it.
JOINED = """
import sys, time, ray
from raypipe.runs.cluster import connection
connection.connect(sys.argv[1])
deadline = time.monotonic() + float(sys.argv[3])
while ray.cluster_resources().get("CPU", 0) < int(sys.argv[2]):
    if time.monotonic() > deadline:
        sys.exit(1)
    time.sleep(0.2)
"""


@dataclass(frozen=True, slots=True)
class Drill:
    """One disturbance, and when it comes."""

    what: str
    after_s: float  # since the driver began


class Raylet:
    """One node of the cluster: a session of processes of its own."""

    def __init__(self, *arguments: str) -> None:
        ray = str(Path(sys.executable).with_name("ray"))
        self._process = subprocess.Popen(
            [
                ray,
                "start",
                "--block",
                "--node-ip-address=127.0.0.1",
                "--object-store-memory=100000000",
                *arguments,
            ],
            env={**environment(), **SOON},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self._process.pid:
                    found.append(process)
            except (ProcessLookupError, PermissionError):
                continue
        return found

    def lives(self) -> bool:
        return "raylet" in {_name(p) for p in self.processes()}

    def ended(self) -> bool:
        return self._process.poll() is not None

    def listens(self) -> bool:
        """Whether its socket is there. `ray start` takes the first name that is free, so of two that start at
        the same time on one machine one may take the other's, and dies."""
        raylets = [p for p in self.processes() if _name(p) == "raylet"]
        try:
            return any("plasma_store" in s.laddr for p in raylets for s in p.net_connections("unix"))
        except psutil.NoSuchProcess:
            return False

    def signal(self, number: int) -> None:
        """To every process of the node."""
        for process in self.processes():
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue

    def down(self) -> None:
        self.signal(signal.SIGKILL)
        self._process.wait()

    def workers(self) -> list[psutil.Process]:
        return [p for p in self.processes() if "MapBatches" in _line(p)]


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


class Cluster:
    """A head that takes no work, and some nodes of one CPU."""

    def __init__(self) -> None:
        self.address = ""
        self._head: Raylet | None = None
        self.nodes: list[Raylet] = []

    def up(self) -> None:
        """Starts missing nodes. Raises SystemExit if one does not come up."""
        if self._head is None or not self._head.lives():
            self.down()
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            self.address = f"127.0.0.1:{port}"
            self._head = Raylet("--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false")
            _wait_for(self._head.listens)
        deadline = time.monotonic() + PATIENCE_S
        self._whole()
        while not self._joined():
            if time.monotonic() > deadline:
                raise SystemExit(
                    f"{NODES} nodes did not join in {PATIENCE_S:g} s; their logs are in /tmp/ray"
                )
            self._whole()

    def _whole(self) -> None:
        """As many living nodes as there are to be. One may end by itself: a raylet waits so long for its own
        agent, and no longer."""
        for node in [n for n in self.nodes if not n.lives()]:
            node.down()
            self.nodes.remove(node)
        while len(self.nodes) < NODES:
            self.add()

    def _joined(self) -> bool:
        """Whether the head counts them all, now or soon."""
        words = [sys.executable, "-c", JOINED, self.address, str(NODES), str(SOON_S)]
        done = subprocess.run(words, env={**environment(), **SOON}, capture_output=True, timeout=PATIENCE_S)
        return done.returncode == 0

    def add(self) -> None:
        node = Raylet(f"--address={self.address}", "--num-cpus=1")
        self.nodes.append(node)
        _wait_for(lambda: node.listens() or node.ended())

    def head(self) -> Raylet:
        assert self._head is not None
        return self._head

    def down(self) -> None:
        for raylet in [*self.nodes, *([self._head] if self._head else [])]:
            raylet.down()
        self.nodes, self._head = [], None


def _wait_for(true: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit("no Ray came up")
        time.sleep(0.2)


def driver(cluster: Cluster, folder: Path) -> subprocess.Popen[str]:
    """An eval as an operator starts it."""
    file = folder.parent / "cluster.yaml"
    command = [sys.executable, "-m", "raypipe", "eval", str(RECIPE), "--models", str(MODELS)]
    command += ["--data", str(folder.parent / "world"), "--store", str(folder / "store")]
    command += ["--out", str(folder / "out"), "--cluster", str(file), "--json"]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**environment(), **SOON, "RAY_ADDRESS": cluster.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str], patience_s: float) -> tuple[int, str]:
    """Exit code and the end of the output; a process that does not end is stopped, as by an operator."""
    try:
        said, _ = process.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
    return process.returncode, said[-600:]


def disturb(cluster: Cluster, drill: Drill, process: subprocess.Popen[str], rng: random.Random) -> None:
    """Does what the drill says, unless the run was faster."""
    try:
        process.wait(drill.after_s)
        return
    except subprocess.TimeoutExpired:
        pass
    node = rng.choice(cluster.nodes)
    if drill.what == "worker" and (some := [w for n in cluster.nodes for w in n.workers()]):
        rng.choice(some).kill()
    elif drill.what in ("node", "node for good"):
        node.down()
        cluster.nodes.remove(node)
        if drill.what == "node":
            cluster.add()
    elif drill.what == "silence":
        node.signal(signal.SIGSTOP)
        time.sleep(SILENCE_S)
        node.signal(signal.SIGCONT)
    elif drill.what == "driver":
        process.kill()
    elif drill.what == "stop":
        process.terminate()
    elif drill.what == "head":
        cluster.head().down()


def one(cluster: Cluster, folder: Path, drill: Drill, seed: str, patience_s: float) -> dict[str, Any]:
    """One drill: the disturbed run, and as many more as it takes to end well, three at most."""
    cluster.up()
    folder.mkdir()
    start = time.monotonic()
    process = driver(cluster, folder)
    disturb(cluster, drill, process, random.Random(seed))
    code, said = ended(process, patience_s)
    ends = [code]
    while code != 0 and len(ends) < 4:
        cluster.up()
        code, said = ended(driver(cluster, folder), patience_s)
        ends.append(code)
    return {"ends": ends, "seconds": round(time.monotonic() - start, 1), "said": said if code else ""}


def _store(folder: Path) -> Store:
    return Store.open(str(folder / "store"))


def drills(given: argparse.Namespace, done: set[int]) -> list[dict[str, Any]]:
    """Runs all drills that are not done yet, each with its verdict."""
    from raypipe.contrib.world.write import write

    out: list[dict[str, Any]] = []
    cluster = Cluster()
    with tempfile.TemporaryDirectory(prefix="raypipe-nodes-") as temporary:
        home = Path(temporary)
        write(home / "world", QUESTIONS, pages=PAGES, seed=3, page_chars=1500)
        (home / "cluster.yaml").write_text(CLUSTER)
        try:
            cluster.up()
            (home / "whole").mkdir()
            start = time.monotonic()
            code, said = ended(driver(cluster, home / "whole"), PATIENCE_S)
            if code:
                raise SystemExit(f"the undisturbed run ended with {code}: {said}")
            seconds = time.monotonic() - start
            expected = contents(_store(home / "whole"))
            for number in range(given.drills):
                if number in done:
                    continue
                rng = random.Random(f"{given.seed}/{number}")
                # The first third of a run is the start of Python and Ray.
                drill = Drill(WHAT[number % len(WHAT)], round(rng.uniform(seconds / 3, seconds), 1))
                folder = home / f"drill-{number}"
                line = one(cluster, folder, drill, f"{given.seed}/{number}", RUNS * seconds + SILENCE_S)
                equal = not line["said"] and contents(_store(folder)) == expected
                stopped = drill.what != "stop" or line["ends"][0] in (0, 143)
                which = {"seed": given.seed, "drill": number, **asdict(drill)}
                line = {**which, **line, "equal": equal and stopped}
                out.append(line)
                note(given.out, json.dumps(line))
                print(json.dumps(line), flush=True)
                if equal:
                    shutil.rmtree(folder)
        finally:
            cluster.down()
    return out


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--drills", type=int, default=len(WHAT), metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("nodes.jsonl"), help="done ones are not repeated")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cluster is taken down
    here = json_lines(given.out.read_text()) if given.out.exists() else []
    here = [d for d in here if d["seed"] == given.seed]
    here += drills(given, {d["drill"] for d in here})
    bad = [d for d in here if not d["equal"]]
    again = sum(len(d["ends"]) > 1 for d in here)
    print(f"{len(here)} drills, {again} of them started again, {len(bad)} with other tables")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
