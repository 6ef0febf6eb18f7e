"""The whole job at its real size: answered, disturbed, changed, compared, promoted, rolled back.

    python bench/drills/card.py --out card.json                      # 2,706 questions, 50 pages each: an hour
    python bench/drills/card.py --questions 270 --out card-10.json   # a tenth

Invents the questions and pages of 2 kB, and runs `raypipe` as an operator would, on two raylets of one CPU
each: an embedder and a reranker that compute from words, and a language model behind an address that counts
its calls. The driver of the first eval is killed twice and one node once, and another comes. Then one prompt
changes: plan, eval, compare, promote, rollback. Knows commands and what they print, and nothing of how a run
is done.

Prints a table, and writes the figures to `--out`. Exit code 1 unless each call was planned, no equal call
was made twice but those in flight at a kill, the changed prompt cost its own calls alone, and the first
release is live.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "figures"))
sys.path.insert(0, str(Path(__file__).parent))
from memory import highest
from nodes import PATIENCE_S, SOON, Raylet
from own_ray import environment

ROOT = Path(__file__).parents[2]
QUESTIONS, PAGES, PAGE_CHARS = 2706, 50, 2000  # CRAG's questions and search results; a page of 250 KB is not
WORKERS = 2  # nodes of one CPU
AWAY_S = 20.0  # between the loss of a node and the next one
EVERY_S = 0.5  # between two looks at memory; the kernel keeps the peak of a process itself
MODEL = "counting"

RECIPE = """
about: the flow of the published systems, with models that compute from words
corpus:
  - parse: {html: lxml, via: fast, kinds: [page]}
  - tokenize: {words: stems}
  - split: {child_chars: 200, child_overlap: 50, parent_chars: 700, parent_overlap: 150}
  - embed: {model: hash-embedder}
question:
  - dense: {model: hash-embedder, top: 50}
  - bm25: {words: stems, variant: okapi, top: 50}
  - fuse: {weights: {dense: 1.0, bm25: 1.0}, missing: min, top: 50}
  - rerank: {model: overlap-reranker, top: 10}
  - generate:
      model: scripted
      prompt:
        variables: [context, text]
        system: SYSTEM
        user: "{{ context }}\\nQuestion: {{ text }}"
      into: web
      passages: 3
      context_chars: 2000
      max_tokens: 60
  - decide: {prefer: [web]}
"""
PROMPTS = ("Answer from the pages, in a few words.", "Answer from the pages.")
FEW = 6  # words that the first prompt gets

JUDGE = '''"""Right is a prediction that holds all words of a truth."""


def agrees(question: str, prediction: str, truths: tuple[str, ...]) -> bool | None:
    words = set(prediction.lower().split())
    return any(set(truth.lower().split()) <= words for truth in truths)
'''

CLUSTER = """
about: two raylets of one CPU on one machine
backend: transformers
device: cpu
sources_per_task: SOURCES
questions_per_task: ASKED
machines: [{nodes: 2, cpus: 1}]
pools:
  parse: {actors: fit, cpus: 0.9}
  embed: {actors: fit, cpus: 0.9}
  answer: {actors: fit, cpus: 0.9}
"""


@dataclass(slots=True)
class Calls:
    """Chats that a language model got: when each came, by the digest of its request."""

    at: dict[str, list[float]] = field(default_factory=dict)  # digest -> times, monotonic
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, body: bytes) -> None:
        with self.lock:
            self.at.setdefault(hashlib.sha256(body).hexdigest(), []).append(time.monotonic())

    @property
    def made(self) -> int:
        with self.lock:
            return sum(map(len, self.at.values()))

    def twice(self, kills: Sequence[float]) -> tuple[int, int]:
        """Equal calls made again: with no kill in between, and with one."""
        with self.lock:
            pairs = [pair for times in self.at.values() for pair in pairwise(times)]
        after = sum(any(a <= kill <= b for kill in kills) for a, b in pairs)
        return len(pairs) - after, after


def reply(chat: Sequence[dict[str, str]]) -> str:
    """The line of the context that shares most words with the question; of it few words, where asked so."""
    *lines, question = [
        x for m in chat if m["role"] == "user" for x in m["content"].splitlines() if x.strip()
    ]
    asked = set(re.findall(r"\w+", question.lower()))
    best = max(lines, key=lambda x: len(asked & set(re.findall(r"\w+", x.lower()))), default="i don't know")
    few = any("few words" in m["content"] for m in chat if m["role"] == "system")
    return " ".join(best.split()[:FEW]) if few else best


class CountingModel(ThreadingHTTPServer):
    """A chat server on loopback that computes its replies and counts its calls."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Chat)
        self.calls = Calls()
        self.name = f"http://127.0.0.1:{self.server_port}/v1#{MODEL}"  # as --llm takes it
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says what went wrong, but for a client that was killed before it had its reply."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Chat(BaseHTTPRequestHandler):
    """A connection of a client, which stays open."""

    protocol_version = "HTTP/1.1"
    server: CountingModel

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        if len(body) < length:  # who asked was killed before all of it was sent
            self.close_connection = True
            return
        asked = json.loads(body)
        if asked["messages"][0]["content"] in PROMPTS:  # else a command sees whether the model is there
            self.server.calls.note(body)
        said = reply(asked["messages"])
        usage = {"prompt_tokens": len(body) // 4, "completion_tokens": len(said.split())}
        message = {"role": "assistant", "content": said}
        self._send({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage})

    def _send(self, tree: dict[str, Any]) -> None:
        raw = json.dumps(tree).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *args: object) -> None:
        pass


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Nodes:
    """A head without work and nodes of one CPU, and the most that their object stores held together."""

    def __init__(self) -> None:
        port, self._managers = free_port(), dict[Raylet, int]()
        self.address, self.most_bytes = f"127.0.0.1:{port}", 0
        self._next: threading.Timer | None = None  # that adds a node in place of a lost one
        self._head = self._start("--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false")
        self.nodes: list[Raylet] = []
        for _ in range(WORKERS):
            self.add()

    def _start(self, *arguments: str) -> Raylet:
        manager = free_port()
        node = Raylet(f"--node-manager-port={manager}", *arguments)
        self._managers[node] = manager
        late = time.monotonic() + PATIENCE_S
        while not node.listens():
            if time.monotonic() > late or node.ended():
                raise SystemExit("no raylet came up; its logs are in /tmp/ray")
            time.sleep(0.2)
        return node

    def add(self) -> None:
        # A driver joins the raylet of its own address: so it is the head's, which is not lost.
        self.nodes.append(
            self._start(f"--address={self.address}", "--num-cpus=1", "--node-ip-address=127.0.0.2")
        )

    def lose(self) -> None:
        """SIGKILL to a node with all its processes; another comes some seconds later."""
        node = self.nodes.pop()
        del self._managers[node]
        node.down()
        self._next = threading.Timer(AWAY_S, self.add)
        self._next.start()

    def look(self) -> None:
        """Adds up what the object stores hold now."""
        from ray._private.internal_api import node_stats

        held = 0
        for port in list(self._managers.values()):
            with suppress(Exception):  # a raylet that starts or ends; the next look has it
                stats = node_stats("127.0.0.1", port, include_memory_info=False)
                held += stats.store_stats.object_store_bytes_used
        self.most_bytes = max(self.most_bytes, held)

    def down(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next.join()
        for node in [*self.nodes, self._head]:
            node.down()


@dataclass(slots=True)
class Kill:
    """A disturbance, and when it comes."""

    what: str  # driver or node
    due: Callable[[], bool]
    at: float | None = None  # when it came, monotonic


class Job:
    """The commands of the job, in one folder, on one cluster."""

    def __init__(self, folder: Path, nodes: Nodes, model: CountingModel, questions: int, pages: int) -> None:
        self.folder, self.nodes, self.model = folder, nodes, model
        self.driver_bytes = 0  # the most resident memory of a driver
        self.seconds: dict[str, float] = {}  # command -> on the clock
        cited = questions * pages
        parts = {"SOURCES": min(100, max(5, cited // 20)), "ASKED": min(10, max(1, questions // 10))}
        self.sources_per_task, self.asked_per_task = parts.values()
        text = CLUSTER
        for name, value in parts.items():
            text = text.replace(name, str(value))
        (folder / "cluster.yaml").write_text(text)
        (folder / "judging.py").write_text(JUDGE)

    def prompt(self, system: str) -> None:
        (self.folder / "card.yaml").write_text(RECIPE.replace("SYSTEM", json.dumps(system)))

    def _started(self, *words: str) -> subprocess.Popen[str]:
        env = {**environment(), **SOON, "RAY_ADDRESS": self.nodes.address}
        env |= {"RAYPIPE_HOME": str(self.folder / "home"), "RAYPIPE_CONF": str(ROOT / "conf")}
        said = (self.folder / "said").open("w")
        return subprocess.Popen(
            [sys.executable, "-m", "raypipe", *words],
            cwd=self.folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            start_new_session=True,
        )

    def run(self, name: str, *words: str, kills: Sequence[Kill] = ()) -> Any:
        """What a command prints as JSON. Killed, it is started again. Raises SystemExit if it fails."""
        start = time.monotonic()
        printed = None
        while printed is None:
            printed = self._attempt([*words, "--json"], kills)
        self.seconds[name] = round(time.monotonic() - start, 1)
        print(f"{name}: {self.seconds[name]:g} s", file=sys.stderr, flush=True)
        return json.loads(printed)

    def _attempt(self, words: Sequence[str], kills: Sequence[Kill]) -> str | None:
        process = self._started(*words)
        out: list[str] = []
        reader = threading.Thread(target=lambda: out.append(process.stdout.read() if process.stdout else ""))
        reader.start()
        killed = False
        while process.poll() is None:
            self._look(process.pid)
            kill = next((k for k in kills if k.at is None), None)
            if kill is not None and kill.due():
                kill.at = time.monotonic()
                print(f"killed a {kill.what}", file=sys.stderr, flush=True)
                if kill.what == "driver":
                    process.kill()
                    killed = True
                else:
                    self.nodes.lose()
            time.sleep(EVERY_S)
        reader.join()
        if killed:
            return None
        if process.returncode:
            said = (self.folder / "said").read_text()[-3000:]
            raise SystemExit(f"raypipe {' '.join(words)} ended with {process.returncode}: {said}")
        return out[0]

    def _look(self, pid: int) -> None:
        with suppress(OSError):  # it ended meanwhile
            self.driver_bytes = max(self.driver_bytes, highest(pid))
        self.nodes.look()

    def vectors(self) -> int:
        """Parts of vectors that lie in the store, committed or not."""
        return len(list((self.folder / "store").glob("vectors-*.lance/data/*.lance")))


def steps_of(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {s["step"]: s for s in report["steps"]}


def drilled(folder: Path, given: argparse.Namespace, nodes: Nodes, model: CountingModel) -> dict[str, Any]:
    """The job, and what it came to."""
    job = Job(folder, nodes, model, given.questions, given.pages)
    sizes = f"--questions {given.questions} --pages {given.pages} --page-chars {PAGE_CHARS}".split()
    made = job.run("synth", "synth", "world", *sizes)
    parts = made["pages"] / job.sources_per_task
    file = str(ROOT / "conf/models.yaml")
    places = ["card.yaml", "--store", "store", "--cluster", "cluster.yaml"]
    places += ["--models", file, "--llm", model.name]
    kills = [
        Kill("driver", lambda: job.vectors() >= parts / 3),
        Kill("driver", lambda: model.calls.made >= given.questions / 3),
        Kill("node", lambda: model.calls.made >= 2 * given.questions / 3),
    ]
    job.prompt(PROMPTS[0])
    scored = ["--data", "world", "--judge", "judging:agrees"]
    first = job.run("first eval", "eval", *places, *scored, "--out", "first", kills=kills)
    asked = model.calls.made
    job.run("promote", "promote", "first")
    job.prompt(PROMPTS[1])
    plan = job.run("plan", "plan", *places, "--data", "world")
    second = job.run("second eval", "eval", *places, *scored, "--out", "second")
    again = model.calls.made - asked
    compared = job.run("compare", "compare", "first", "second")
    job.run("promote again", "promote", "second")
    back = job.run("rollback", "rollback", "--store", "store")
    came = [k.at for k in kills if k.at is not None]
    twice, after_kills = model.calls.twice(came)
    size = sum(f.stat().st_size for f in (folder / "store").rglob("*") if f.is_file())
    stages = {name: steps_of(run) for name, run in (("first", first), ("second", second))}
    work = {name: sum(s["seconds"] for s in found.values()) for name, found in stages.items()}
    return {
        "questions": given.questions,
        "citations": made["citations"],
        "pages": made["pages"],
        "chunks": first["chunks"],
        "kills": len(came),
        "answered": [first["questions"], second["questions"]],
        "faults": [sum(f["rows"] for f in r["faults"] if not f["recovered"]) for r in (first, second)],
        "steps": {
            name: {
                s: {k: v[k] for k in ("rows", "planned", "computed", "cached", "seconds")}
                for s, v in of.items()
            }
            for name, of in stages.items()
        },
        "chats": {"first": asked, "second": again},
        "planned_chats": {s["step"]: s["max_calls"] for s in plan["steps"]},
        "equal_calls_twice": twice,
        "equal_calls_after_kills": after_kills,
        "most_after_kills": len(came) * WORKERS * job.asked_per_task,
        "driver_mb": job.driver_bytes >> 20,
        "object_store_mb": round(nodes.most_bytes / (1 << 20), 1),
        "store_bytes": size,
        "seconds": job.seconds,
        "step_seconds": {name: round(s, 1) for name, s in work.items()},
        "over_steps": {
            n: round(job.seconds[f"{n} eval"] * WORKERS / max(s, 0.1), 2) for n, s in work.items()
        },
        "verdict": compared["comparisons"][0]["verdict"],
        "live": back["run"],
        "first_run": first["run"],
    }


def failures(found: dict[str, Any]) -> list[str]:
    """What is not as it must be."""
    out, questions = [], found["questions"]
    if found["kills"] != 3:
        out.append(f"{found['kills']} of 3 disturbances came: the run was too short for them")
    if found["answered"] != [questions] * 2 or found["faults"] != [0, 0]:
        out.append(f"answered {found['answered']} of {questions}, faults {found['faults']}")
    if found["equal_calls_twice"] or found["equal_calls_after_kills"] > found["most_after_kills"]:
        out.append("equal calls were made twice")
    for name, steps in found["steps"].items():
        over = (
            f"{name} eval, {s}: {x['computed']} calls, planned {x['planned']}"
            for s, x in steps.items()
            if x["planned"] is not None and x["computed"] > x["planned"]
        )
        out += over
    planned = {s: n for s, n in found["planned_chats"].items() if n}
    if list(planned) != ["generate:web"] or planned["generate:web"] != found["chats"]["second"]:
        out.append(f"the changed prompt: planned {planned}, asked {found['chats']['second']}")
    if found["live"] != found["first_run"]:
        out.append(f"live is run {found['live']}, expected {found['first_run']}")
    return out


def table(found: dict[str, Any]) -> list[str]:
    """The lines of a table for docs."""
    lines = [
        "| step | first eval: planned, made, from the memo | after one prompt changed | seconds |",
        "|---|---|---|---|",
    ]
    first, second = found["steps"]["first"], found["steps"]["second"]
    for name in first:
        a, b = first[name], second[name]
        cells = [f"{x['planned'] or 0:,}, {x['computed']:,}, {x['cached']:,}" for x in (a, b)]
        lines.append(f"| {name} | {' | '.join(cells)} | {a['seconds']:.0f}, {b['seconds']:.0f} |")
    return lines


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--questions", type=int, default=QUESTIONS, metavar="N")
    parser.add_argument("--pages", type=int, default=PAGES, metavar="P", help="of a question")
    parser.add_argument(
        "--folder", type=Path, help="where the job lies, and stays (default: a temporary one)"
    )
    parser.add_argument("--out", type=Path, help="a file for the figures, as JSON")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cluster is taken down
    folder = given.folder or Path(tempfile.mkdtemp(prefix="raypipe-card-"))
    folder.mkdir(parents=True, exist_ok=True)
    nodes, model = Nodes(), CountingModel()
    try:
        found = drilled(folder, given, nodes, model)
    finally:
        nodes.down()
        model.shutdown()
        if given.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    bad = failures(found)
    if given.out:
        given.out.write_text(json.dumps({**found, "failures": bad}, indent=1) + "\n")
    print("\n".join(table(found)))
    print(json.dumps({k: v for k, v in found.items() if k != "steps"}))
    print(*bad, sep="\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
