"""Lets each thing fail once: each write of an eval, and the child that parses, at each page; two drivers.

    python bench/drills/once.py                 # every write and every page: `make drill`
    python bench/drills/once.py --every 9       # each ninth of them

A write event (`write_events.py`) raises EIO or ENOSPC in the place of its call, or the child that parses is
killed when it has its n-th page. The eval ends as it ends; then the same command runs again. All tables must
equal those of an undisturbed eval, row for row, no command may ask models for more than its plan says, and
what is asked twice is no more than one call. Then a driver works in a pid namespace of its own, by a clock
that is 90 s behind: one outside is refused while it works, and let in once it is killed.

Prints a line of JSON for each failure, and one for the drill; exit code 1 if anything failed.
"""

from __future__ import annotations

import argparse
import errno
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from life import Contents, Life, contents, counted, differences, write_world
from write_events import watched

from raypipe.core import sandbox
from raypipe.core.errors import RaypipeError
from raypipe.store import Store, StoreError

CLOCK_S = 90.0  # that the clock of the other driver is behind: a sign counts as old after 60 s
HOLDER = """
import sys, time
real = time.time
time.time = lambda: real() - float(sys.argv[2])
from raypipe.store import Store
with Store.open(sys.argv[1]).lease("driver", "the driver inside"):
    print("holds it", flush=True)
    time.sleep(600)
"""

Trouble = Callable[[Path, int, Iterator[int]], AbstractContextManager[None]]
"""Disturbs what happens below a folder, the n-th time that it happens; n 0: never. The third numbers it."""


@contextmanager
def failing_write(root: Path, number: int, happened: Iterator[int]) -> Iterator[None]:
    code = (errno.EIO, errno.ENOSPC)[number % 2]

    def seen(event: str, done: bool) -> None:
        if not done and next(happened) == number:
            raise OSError(code, os.strerror(code))

    with watched(root, seen):
        yield


@contextmanager
def killed_parser(root: Path, number: int, happened: Iterator[int]) -> Iterator[None]:
    real = sandbox._Child.answers

    def answers(child: Any, requests: Any, memory: int = 0) -> Iterator[Any]:
        for reply in real(child, requests, memory):
            if not memory and next(happened) == number:
                child._process.kill()
                child._process.wait()
                return
            yield reply

    sandbox._Child.answers = answers  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        sandbox._Child.answers = real  # type: ignore[method-assign]


def tried(home: Path, trouble: Trouble, number: int, whole: tuple[Contents, int, int]) -> dict[str, Any]:
    """The verdict on an eval in which something fails once."""
    life = Life(home / "one", home / "world")
    shutil.copytree(home / "whole" / "ingested", life.kept)
    with counted() as calls:
        try:
            with trouble(life.kept, number, itertools.count(1)):
                asked = [life.eval()]
            outcome = "ended"
        except RaypipeError as e:
            asked, outcome = [], f"{type(e).__name__} {e.exit_code}"
        except Exception as e:
            asked, outcome = [], f"raw {type(e).__name__}: {e}"
        asked.append(life.eval())
    expected, total, largest = whole
    wrong = differences(expected, contents(life.store))
    wrong += [f"step {step} computed more than was planned" for one in asked for step in one.over]
    if calls.total - total > largest:
        wrong.append(f"{calls.total - total} inputs were asked twice, {largest} are the most of one call")
    if outcome.startswith("raw"):
        wrong.append(outcome)
    shutil.rmtree(life.folder)
    return {"trouble": trouble.__name__, "number": number, "outcome": outcome.split(":")[0], "wrong": wrong}


def undisturbed(home: Path) -> tuple[tuple[Contents, int, int], dict[Trouble, int]]:
    """Returns the answers and calls of an eval without a failure, and its writes and pages."""
    write_world(home / "world")
    life = Life(home / "whole", home / "world")
    life.kept.mkdir(parents=True)
    life.ingest()
    shutil.copytree(life.kept, life.folder / "ingested")
    found = dict[Trouble, int]()
    for trouble in (failing_write, killed_parser):
        shutil.rmtree(life.kept)
        shutil.copytree(life.folder / "ingested", life.kept)
        happened = itertools.count(1)
        with counted() as calls, trouble(life.kept, 0, happened):
            life.eval()
        found[trouble] = next(happened) - 1
    return (contents(life.store), calls.total, calls.largest), found


def two_drivers(home: Path) -> dict[str, Any]:
    """A driver in a pid namespace of its own, by another clock, and one outside."""
    uri = str(Store.create(str(home / "shared")).uri)
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", HOLDER]
    with subprocess.Popen(
        [*command, uri, str(CLOCK_S)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as inside:
        assert inside.stdout and inside.stderr
        if not inside.stdout.readline():
            return {"drivers": "skipped", "why": inside.stderr.read()[-200:].strip(), "wrong": []}
        wrong, start = list[str](), time.perf_counter()
        try:
            with Store.open(uri).lease("driver", "the driver outside"):
                wrong.append("a driver was let in while another was at work")
        except StoreError as e:
            if "in use by the driver inside" not in str(e):
                wrong.append(str(e))
        refused_s = time.perf_counter() - start
        inside.kill()
    start = time.perf_counter()
    with Store.open(uri).lease("driver", "the driver outside"):
        taken_s = time.perf_counter() - start
    return {"drivers": 2, "refused_s": round(refused_s), "taken_s": round(taken_s), "wrong": wrong}


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--every", type=int, default=1, metavar="N", help="only each N-th write and page")
    given = args.parse_args()
    with tempfile.TemporaryDirectory(prefix="raypipe-once-") as temporary:
        home = Path(temporary)
        whole, counts = undisturbed(home)
        verdicts = []
        for trouble, count in counts.items():
            for number in range(1, count + 1, given.every):
                verdicts.append(tried(home, trouble, number, whole))
                if verdicts[-1]["wrong"]:
                    print(json.dumps(verdicts[-1]), flush=True)
        drivers = two_drivers(home)
    failed = sum(bool(v["wrong"]) for v in (*verdicts, drivers))
    outcomes = Counter(f"{v['trouble']}: {v['outcome']}" for v in verdicts)
    print(json.dumps({"tried": len(verdicts), "failed": failed, "outcomes": outcomes, "drivers": drivers}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
