"""SIGKILL to driver, worker actor or raylet, at every point of the protocol and at random times, through real
Ray; after each a resumed run, whose tables must equal those of an uninterrupted one, row for row.

    python bench/kills.py --kills 200 --seed 1 --out kills.jsonl      # goes on where it was ended

With `--in-a-row K` a trial is killed K times before it may end: each attempt goes on from what is left.

Each line of the output is one trial: who was killed and where, whether the tables are equal, and which parts
were done more than once. Exit code 1 if any table differed or more work was redone than one part per worker.
A point of the protocol is a function of raypipe that is called or returns, the n-th time, seen by a profile
hook in the process that is to die; points that a run never comes to are not drawn: a first run counts them.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import psutil

import raypipe
from raypipe.work import Do, Fill, Part, PartDone, Place, Verb

ROOT = Path(__file__).parents[1]
OURS = str(Path(raypipe.__file__).parent)
RECIPE, MODELS = ROOT / "tests" / "fakes.yaml", ROOT / "conf" / "models.yaml"
QUESTIONS, PAGES = 8, 12  # some 60 sources: five parts of every table
ACTORS = 2
PATIENCE_S = (
    60.0  # for a run that is killed: a driver whose raylet is gone may never end. One takes 10 - 30 s
)

DRIVER = (
    "return:begin", "call:commit", "call:_check_staged", "call:append", "return:append", "call:_settle",
    "return:_settle", "call:index", "call:drop_records", "return:drop_records", "call:end", "return:end",
    "call:fold_memo", "call:_fold", "return:_fold", "return:ensure", "call:account", "return:account",
)  # fmt: skip
WORKER = (
    "call:rows", "call:_write", "return:_write", "call:write_part", "call:sync", "return:sync",
    "return:write_part",
)  # fmt: skip


@dataclass(frozen=True)
class Kill:
    """One death."""

    who: str  # driver | worker | raylet
    point: str  # "" : at a time
    nth: int = 1  # time that the point is reached
    after_s: float = 0.0  # since the driver joined Ray, where there is no point


def watch(points: Sequence[str], reached: Any) -> None:
    """Calls `reached(point)` each time that this thread comes to one of them."""
    wanted = {tuple(p.split(":")) for p in points}

    def hook(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if (event, code.co_name) in wanted and code.co_filename.startswith(OURS):
            reached(f"{event}:{code.co_name}")

    threading.setprofile(hook)  # threads to come: the memo writes in one
    sys.setprofile(hook)


def note(diary: Path, line: str) -> None:
    """One line at the end of a file that several processes write."""
    with open(diary, "ab", buffering=0) as out:
        out.write(f"{line}\n".encode())


@dataclass(frozen=True)
class Armed:
    """Work whose worker writes a diary of parts and points, and dies at one of them, once per trial."""

    fill: Fill
    verb: str
    diary: str
    kill: Kill | None
    place: Place

    def open(self) -> Do:
        do = replace(cast(Any, self.fill), place=self.place).open()
        seen, diary = Counter[str](), Path(self.diary)
        table = getattr(self.fill, "table", "answers")

        def reached(point: str) -> None:
            note(diary, f"worker {point}")
            seen[point] += 1
            kill = self.kill
            if kill and kill.who == "worker" and (kill.point, kill.nth) == (point, seen[point]):
                die_once(diary)

        async def armed(part: Part) -> PartDone:
            note(diary, f"begun {table} {self.fill.run} {part.name}")
            watch(WORKER, reached)
            try:
                return await do(part)
            finally:
                sys.setprofile(None)

        return armed


def die_once(diary: Path) -> None:
    """SIGKILL to this process, unless one died of this trial before."""
    try:
        os.close(os.open(diary.with_suffix(".dead"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def drive(address: str, folder: Path, kill: Kill | None) -> None:
    """The process that is a run: an eval over the invented data, on the Ray at an address."""
    from raypipe.cli.opened import resolved
    from raypipe.cluster import pools
    from raypipe.conf import Conf
    from raypipe.evaluate import evaluate
    from raypipe.pipeline import Pipeline, Sizes
    from raypipe.report.progress import Progress
    from raypipe.store import Store

    diary = folder / "diary"
    pools.connect(address)
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not import a script
    seen = Counter[str]()

    def reached(point: str) -> None:
        note(diary, f"driver {point}")
        seen[point] += 1
        if kill and kill.who != "worker" and (kill.point, kill.nth) == (point, seen[point]):
            end(kill.who)

    watch(DRIVER, reached)
    if kill and not kill.point:
        timer = threading.Timer(kill.after_s, end, [kill.who])
        timer.daemon = True
        timer.start()

    def runner(verb: Verb, fill: Fill, parts: Sequence[Part]) -> Iterator[PartDone]:
        armed = Armed(fill, verb, str(diary), kill, cast(Any, fill).place)
        return pools.run_parts(armed, parts, pools.Pool(actors=ACTORS, cpus=0.5))

    recipe = resolved(str(RECIPE), str(MODELS), Conf((ROOT / "conf",)))
    store = Store.create(str(folder / "store"))
    place, silent = Place(store.uri, "sorted", "cpu", 1), Progress(io.StringIO(), silent=True)
    pipe = Pipeline(store, recipe, place, Sizes(15, 2), runner, silent)
    evaluate(pipe, [folder.parent / "world"], "synth", None, "official", folder / "out")
    print("finished", flush=True)


def end(who: str) -> None:
    """SIGKILL to this driver, one of its workers, or its raylet."""
    if who == "driver":
        os.kill(os.getpid(), signal.SIGKILL)
    if who == "raylet":
        raylet().kill()
    if who == "worker" and (some := workers()):
        random.choice(some).kill()


def raylet() -> psutil.Process:
    """The raylet of the head that this drill started: the only one in the session of its parent."""
    session = int(os.environ["RAYPIPE_DRILL_SESSION"])
    (found,) = (p for p in psutil.process_iter() if _in(p, session) and p.name() == "raylet")
    return found


def workers() -> list[psutil.Process]:
    return [p for p in raylet().children() if "MapBatches" in " ".join(p.cmdline())]


def _in(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session
    except (ProcessLookupError, PermissionError):
        return False


class Head:
    """A Ray of the drill's own, in a session of its own, so that it can be ended without ending others."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""

    def up(self) -> None:
        """Starts it, or starts it anew where its raylet is gone."""
        if self._process is not None and self._lives():
            return
        self.down()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        self._process = subprocess.Popen(
            [
                str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}",
                "--node-ip-address=127.0.0.1", "--num-cpus=2", "--include-dashboard=false",
                "--object-store-memory=200000000",
            ],
            env=environment(), start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.environ["RAYPIPE_DRILL_SESSION"] = str(self._process.pid)
        deadline = time.monotonic() + PATIENCE_S
        while not self._lives():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise SystemExit(f"no Ray came up at {self.address}")
            time.sleep(0.2)

    def _lives(self) -> bool:
        assert self._process is not None
        named = {p.name() for p in psutil.process_iter() if _in(p, self._process.pid)}
        return {"raylet", "gcs_server"} <= named

    def down(self) -> None:
        """Ends every process of its session."""
        if self._process is None:
            return
        for p in psutil.process_iter():
            if _in(p, self._process.pid) and p.pid != self._process.pid:
                p.kill()
        self._process.kill()
        self._process.wait()
        self._process = None


def environment() -> dict[str, str]:
    source = str(Path(OURS).parent)
    return {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": source}


def run(head: Head, folder: Path, kill: Kill | None) -> str:
    """One run in a process of its own; how it ended: finished, killed, failed: the end of what it said."""
    head.up()
    spec = json.dumps(asdict(kill) if kill else None)
    process = subprocess.Popen(
        [sys.executable, __file__, "--drive", head.address, str(folder), spec],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=PATIENCE_S if kill else 4 * PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        return "killed" if kill else f"failed: no end: {said[-500:]}"
    if "finished" in said:
        return "finished"
    return "killed" if kill else f"failed: {said[-1500:]}"


def contents(folder: Path) -> dict[str, list[str]]:
    """Every row of every table but the memo, in an order of its own; `run` names no result."""
    from raypipe.store import Store
    from raypipe.store.keep import tables

    store = Store.open(str(folder / "store"))
    out = {}
    for table in tables(store):
        if not table.startswith(("embeddings-", "scores-", "replies-")):
            rows = store.dataset(table).to_table().to_pylist()
            out[table] = sorted(repr({k: v for k, v in r.items() if k != "run"}) for r in rows)
    return out


def memo(folder: Path) -> dict[str, list[str]]:
    """Keys of the memo, each as often as it stands there."""
    from raypipe.store import Store
    from raypipe.store.keep import tables

    store = Store.open(str(folder / "store"))
    named = [t for t in tables(store) if t.startswith(("embeddings-", "scores-", "replies-"))]
    return {t: sorted(store.dataset(t).to_table(["key"])["key"].to_pylist()) for t in named}


def diary(folder: Path) -> list[str]:
    return (folder / "diary").read_text().splitlines()


def points(folder: Path) -> dict[str, list[tuple[str, int]]]:
    """Who -> each point that an uninterrupted run came to, as often as it did."""
    seen = Counter(line for line in diary(folder) if line.startswith(("driver ", "worker ")))
    found: dict[str, list[tuple[str, int]]] = {"driver": [], "worker": []}
    for line, times in sorted(seen.items()):
        who, point = line.split()
        found[who] += [(point, n + 1) for n in range(times if who == "driver" else min(times, 3))]
    return found


def drawn(trial: int, seed: int, found: dict[str, list[tuple[str, int]]], seconds: float) -> Kill:
    """The kill of a trial: by its number and the seed alone."""
    rng = random.Random(f"{seed}/{trial}")
    who = ("driver", "worker", "driver", "worker", "raylet")[trial % 5]
    if rng.random() < 0.3:
        return Kill(who, "", after_s=round(rng.uniform(0.1, seconds), 2))
    point, nth = rng.choice(found["worker" if who == "worker" else "driver"])
    return Kill(who, point, nth)


def redone(folder: Path) -> int:
    """Parts that were begun more than once, counted as often as that."""
    begun = Counter(line for line in diary(folder) if line.startswith("begun "))
    return sum(n - 1 for n in begun.values())


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--kills", type=int, default=10, metavar="N")
    args.add_argument("--in-a-row", type=int, default=1, metavar="K", help="kills in one trial")
    args.add_argument("--seed", type=int, default=1)
    args.add_argument(
        "--out", type=Path, default=Path("kills.jsonl"), help="done trials; those are not repeated"
    )
    args.add_argument("--drive", nargs=3, help=argparse.SUPPRESS)
    given = args.parse_args()
    if given.drive:
        address, folder, spec = given.drive
        tree = json.loads(spec)
        drive(address, Path(folder), Kill(**tree) if tree else None)
        return 0
    done = [json.loads(x) for x in given.out.read_text().splitlines()] if given.out.exists() else []
    done = [d for d in done if d["seed"] == given.seed]
    with tempfile.TemporaryDirectory(prefix="raypipe-kills-") as temporary:
        head = Head(Path(temporary))
        try:
            done += drill(head, Path(temporary), given, {d["trial"] for d in done})
        finally:
            head.down()
    bad = [d for d in done if not d["equal"] or d["redone"] > ACTORS * len(d["kills"])]
    drawn_, hit = Counter[str](), Counter[str]()
    for d in done:
        drawn_.update(k["who"] for k in d["kills"])
        hit.update(k["who"] for k, how in zip(d["kills"], d["ends"], strict=True) if how != "finished")
    print(
        f"{sum(drawn_.values())} kills drawn {dict(drawn_)}; {dict(hit)} ended their run, workers' deaths do "
        f"not; {len(done)} trials, {sum(not d['equal'] for d in done)} with other tables; parts redone in a "
        f"trial: {max(d['redone'] for d in done)} at most, {ACTORS} workers"
    )
    for d in bad:
        print(json.dumps(d))
    return 1 if bad else 0


def drill(head: Head, home: Path, given: argparse.Namespace, done: set[int]) -> list[dict[str, Any]]:
    from raypipe.synth import write

    write(home / "world", QUESTIONS, pages=PAGES, seed=3, page_chars=1500)
    whole = home / "whole"
    whole.mkdir()
    start = time.monotonic()
    if (said := run(head, whole, None)) != "finished":
        raise SystemExit(f"the uninterrupted run did not end well: {said}")
    seconds = time.monotonic() - start
    expected, remembered, found = contents(whole), memo(whole), points(whole)
    out = []
    for trial in range(0, given.kills, given.in_a_row):
        if trial in done:
            continue
        folder = home / f"trial-{trial}"
        folder.mkdir()
        start = time.monotonic()
        kills = [drawn(trial + i, given.seed, found, seconds) for i in range(given.in_a_row)]
        ends = []
        for kill in kills:
            (folder / "diary.dead").unlink(missing_ok=True)
            ends.append(run(head, folder, kill))
        after = run(head, folder, None)
        if after != "finished":
            equal, differ = False, [after]
        else:
            now = contents(folder)
            differ = [t for t in expected | now if expected.get(t) != now.get(t)]
            differ += [t for t, keys in memo(folder).items() if keys != remembered[t]]
            equal = not differ
        line = {
            "seed": given.seed, "trial": trial, "kills": [asdict(k) for k in kills], "ends": ends,
            "equal": equal, "differ": differ, "redone": redone(folder),
            "seconds": round(time.monotonic() - start, 1),
        }  # fmt: skip
        out.append(line)
        note(given.out, json.dumps(line))
        print(json.dumps(line), flush=True)
        if equal:
            shutil.rmtree(folder)
    return out


if __name__ == "__main__":
    sys.exit(main())
