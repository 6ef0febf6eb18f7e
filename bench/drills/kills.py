"""Kills driver, worker actor or raylet after any write event of a life, and at random times, on real Ray.

After each SIGKILL the same command runs again, and those after it; at the end all tables must equal those of
an undisturbed life, row for row (`life.py`: ingest, evals, promote, prune).

    python bench/drills/kills.py --kills 200 --seed 1 --out kills.jsonl      # continues an interrupted drill

A trial is a life that is started up to `--attempts` times, each time from the state that the last attempt
left. In each attempt a worker is to die, and the driver or the raylet; a kill whose moment the attempt does
not reach is not counted. The last attempt is left undisturbed.

Each line of the output is one trial: who was killed and where, whether the tables are equal, and how many
parts were done more than once. Exit code 1 if any table differed or more work was redone than one part per
worker. A moment is the n-th write event (`write_events.py`) of the process that is to die, or a time.
`crash.py` tries every one of them, without Ray and without a kill.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).parent))
from life import COMMANDS, Life, contents, differences, write_world
from own_ray import PATIENCE_S, Head, environment, raylet, workers
from write_events import watched

from raypipe.core.textfile import json_lines
from raypipe.models.kit import LocalKit
from raypipe.runs.pipeline.tasks import HandedBack, RunTask, TableTask, Task, TaskResult, Verb, WorkerConfig

ACTORS = 2
NOT_JOINED = 75  # exit code of a driver that could not join its Ray: nothing was run and nothing is shown
JOINS = 3  # Rays that are tried for a run before the drill gives up
LAST_S = 15.0  # for a driver whose raylet is gone, which may never end: then it dies, too


@dataclass(frozen=True)
class Kill:
    """One death that is planned."""

    who: str  # driver | worker | raylet
    nth: int = 0  # write event of the driver, or of a worker, after which it comes; 0: at a time
    after_s: float = 0.0  # since the driver joined Ray, where it comes at a time


def note(diary: Path, line: str) -> None:
    """One line at the end of a file that several processes write."""
    with open(diary, "ab", buffering=0) as out:
        out.write(f"{line}\n".encode())


@dataclass(frozen=True)
class Armed:
    """Work whose worker logs parts and write events, and dies after one of them, once per attempt."""

    task: TableTask
    root: Path  # the folder in which events are seen
    diary: Path
    kill: Kill | None  # of a worker, after an event
    worker: WorkerConfig

    async def open(self, kit: LocalKit | None = None) -> RunTask:
        do = await replace(cast(Any, self.task), worker=self.worker).open(kit)
        seen = Counter[str]()
        table = getattr(self.task, "table", "answers")

        def after(event: str, done: bool) -> None:
            if not done:
                return
            seen["events"] += 1
            note(self.diary, f"worker {os.getpid()} {event}")
            if self.kill and self.kill.nth == seen["events"]:
                die_once(self.diary, event)

        async def armed(part: Task) -> TaskResult | HandedBack:
            note(self.diary, f"begun {table} {cast(Any, self.task).run} {part.name}")
            with watched(self.root, after):
                return cast(TaskResult | HandedBack, await do(part))

        return armed


def die_once(diary: Path, point: str) -> None:
    """SIGKILL to this process, unless one died in this attempt before."""
    try:
        os.close(os.open(diary.with_suffix(".dead"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    note(diary, f"killed worker {point}")
    os.kill(os.getpid(), signal.SIGKILL)


def drive(address: str, session: int, folder: Path, kills: Sequence[Kill]) -> None:
    """The driver process: what is left of a life, on the Ray at an address.

    Ray's processes are in a session of their own. Output goes to the file `said`."""
    os.setsid()
    said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    from raypipe.core.errors import ConfError
    from raypipe.runs.cluster import connection, engine_groups
    from raypipe.runs.cluster.cluster_file import Pool

    file = folder / "diary"
    try:
        connection.connect(address)
    except ConfError as e:
        print(e, flush=True)
        os._exit(NOT_JOINED)
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not import a script
    seen = Counter[str]()

    def after(event: str, done: bool) -> None:
        if not done:
            return
        seen["events"] += 1
        note(file, f"driver {event}")
        for kill in kills:
            if kill.who != "worker" and kill.nth == seen["events"]:
                end(kill.who, session, file, event)

    for kill in kills:
        if not kill.nth:
            timer = threading.Timer(kill.after_s, end, [kill.who, session, file, "at a time"])
            timer.daemon = True
            timer.start()
    of_worker = next((k for k in kills if k.who == "worker" and k.nth), None)

    def runner(verb: Verb, fill: TableTask, parts: Sequence[Task]) -> Iterator[TaskResult | HandedBack]:
        armed = Armed(fill, life.kept, file, of_worker, cast(Any, fill).worker)
        return engine_groups.run_tasks(armed, parts, Pool(actors=ACTORS, cpus=0.5))

    life = Life(folder, folder.parent / "world", runner)
    life.kept.mkdir(exist_ok=True)
    with watched(life.kept, after):
        for command in COMMANDS[sum(line.startswith("ended ") for line in diary(folder)) :]:
            getattr(life, command)()
            note(file, f"ended {command}")


def end(who: str, session: int, diary: Path, where: str) -> None:
    """SIGKILL to this driver, one of its workers, or its raylet."""
    some = [] if who == "driver" else [raylet(session)] if who == "raylet" else workers(session)
    if who == "worker" and not some:
        return  # none is at work now
    note(diary, f"killed {who} {where}")
    if who == "driver":
        os.kill(os.getpid(), signal.SIGKILL)
    random.choice(some).kill()


def prepare() -> Any:
    """Where drivers come from: a process that has imported what each of them needs, and forks."""
    os.environ |= environment()
    # Every worker is a new process: it reads compiled modules instead of compiling them each time.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    drivers = multiprocessing.get_context("forkserver")
    drivers.set_forkserver_preload(["ray.data"])  # no Lance, which is not to be forked
    return drivers


def run(drivers: Any, head: Head, folder: Path, kills: Sequence[Kill] = ()) -> str:
    """One run in its own process; "finished", or how it ended. A Ray that cannot be joined is replaced."""
    for _ in range(JOINS):
        code, said = _run(drivers, head, folder, kills)
        if code == 0:
            return "finished"
        if code != NOT_JOINED:
            return f"exit code {code}: {said}"
        head.down()
    raise SystemExit(f"no Ray could be joined, {JOINS} were started: {said}")


def _run(drivers: Any, head: Head, folder: Path, kills: Sequence[Kill]) -> tuple[int | None, str]:
    """The exit code of one run, and the last of what it said."""
    head.up()
    (folder / "diary.dead").unlink(missing_ok=True)
    process = drivers.Process(target=drive, args=(head.address, head.session, folder, kills), daemon=True)
    process.start()
    deadline, gone = time.monotonic() + PATIENCE_S, False
    while process.is_alive() and time.monotonic() < deadline:
        process.join(0.5)
        if not gone and not head.lives():
            deadline, gone = time.monotonic() + LAST_S, True
    process.kill()
    process.join()
    said = folder / "said"
    return process.exitcode, said.read_text()[-1500:] if said.exists() else ""


def diary(folder: Path) -> list[str]:
    file = folder / "diary"
    return file.read_text().splitlines() if file.exists() else []


def events(folder: Path) -> dict[str, int]:
    """Kind of process -> its write events in an undisturbed life; of workers, those of the busiest."""
    seen = [line.split() for line in diary(folder)]
    workers = Counter(pid for who, pid, *_ in seen if who == "worker")
    return {"driver": sum(who == "driver" for who, *_ in seen), "worker": max(workers.values())}


def drawn(trial: int, attempt: int, seed: int, found: dict[str, int], seconds: float) -> list[Kill]:
    """The kills of an attempt, by its numbers and the seed alone. Later attempts have less to do, so they are
    killed sooner, or at a time."""
    rng = random.Random(f"{seed}/{trial}/{attempt}")

    def kill(who: str, most: int) -> Kill:
        if attempt and rng.random() < 0.4:
            return Kill(who, after_s=round(rng.uniform(0.1, seconds), 2))
        return Kill(who, rng.randint(1, max(1, most // (attempt + 1))))

    ends = "raylet" if (trial + attempt) % 3 == 1 else "driver"
    return [kill("worker", found["worker"]), kill(ends, found["driver"])]


def redone(folder: Path) -> int:
    """Parts that were begun more than once, counted as often as that."""
    begun = Counter(line for line in diary(folder) if line.startswith("begun "))
    return sum(n - 1 for n in begun.values())


def killed(folder: Path) -> list[str]:
    """Who died of it, and where: `driver lance commit`."""
    return [line.removeprefix("killed ") for line in diary(folder) if line.startswith("killed ")]


def ended(folder: Path) -> int:
    """How many of these kills should end their run."""
    return sum(not k.startswith("worker ") for k in killed(folder))


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--kills", type=int, default=10, metavar="N")
    args.add_argument("--attempts", type=int, default=6, metavar="K", help="of a trial that are disturbed")
    args.add_argument("--seed", type=int, default=1)
    args.add_argument(
        "--out", type=Path, default=Path("kills.jsonl"), help="done trials; those are not repeated"
    )
    given = args.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the Ray that was started is ended
    done = json_lines(given.out.read_text()) if given.out.exists() else []
    done = [d for d in done if d["seed"] == given.seed]
    with tempfile.TemporaryDirectory(prefix="raypipe-kills-") as temporary:
        head = Head()
        try:
            drill(head, Path(temporary), given, done)
        finally:
            head.down()
    bad = [d for d in done if not d["equal"] or d["redone"] > ACTORS * len(d["killed"])]
    every = [k.split(maxsplit=1) for d in done for k in d["killed"]]
    print(
        f"{len(every)} kills {dict(Counter(who for who, _ in every))} at {len({w for _, w in every})} events "
        f"in {len(done)} trials; {sum(not d['equal'] for d in done)} with other tables; parts redone in a "
        f"trial: {max(d['redone'] for d in done)} at most, {ACTORS} workers"
    )
    for d in bad:
        print(json.dumps(d))
    return 1 if bad else 0


def drill(head: Head, home: Path, given: argparse.Namespace, done: list[dict[str, Any]]) -> None:
    """Runs trials, added to those that are done, until enough kills hit."""
    drivers = prepare()
    (home / "world").mkdir()
    write_world(home / "world")
    whole = home / "whole"
    whole.mkdir()
    start = time.monotonic()
    if (said := run(drivers, head, whole)) != "finished":
        raise SystemExit(f"the undisturbed life did not end well: {said}")
    seconds = time.monotonic() - start
    expected, found = contents(Life(whole, home / "world").store), events(whole)
    print(f"seed {given.seed}; an undisturbed life: {found} write events, {seconds:.0f} s", flush=True)
    for trial in itertools.count():
        if sum(len(d["killed"]) for d in done) >= given.kills:
            return
        if trial in {d["trial"] for d in done}:
            continue
        folder = home / f"trial-{trial}"
        folder.mkdir()
        start = time.monotonic()
        for attempt in range(given.attempts):
            before = ended(folder)
            after = run(drivers, head, folder, drawn(trial, attempt, given.seed, found, seconds))
            if after == "finished" or (ended(folder) == before and head.lives()):
                break  # if not finished: a worker's death ended the run, which it never may
        else:
            while (after := run(drivers, head, folder)) != "finished" and not head.lives():
                continue  # the Ray ended by itself, which a crowded machine may do to it
        differ = [after]
        if after == "finished":
            differ = differences(expected, contents(Life(folder, home / "world").store))
        line = {
            "seed": given.seed,
            "trial": trial,
            "killed": killed(folder),
            "attempts": attempt + 1,
            "equal": not differ,
            "differ": differ,
            "redone": redone(folder),
            "seconds": round(time.monotonic() - start, 1),
        }
        done.append(line)
        note(given.out, json.dumps(line))
        print(json.dumps(line), flush=True)
        if not differ:
            shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
