"""Makes a store and the devices of workers fail while an eval runs on Ray, and checks whom it blames.

    python bench/drills/faults.py --faults 1000 --seed 1

A fault is drawn for a call: to Lance, to a small file, or to a model. The store answers 503 or 403, a file is
cut or gone for a moment, a call is slow; a device fails for the rest of its process, or has no memory for one
call. What is drawn is the call and what it says, never a class of raypipe. One question is broken itself: the
reranker raises on its text, always. A run is disturbed until it has had its share of faults, then it runs
well. After that all tables must equal those of an undisturbed run, row for row, and the one broken question
must be the only row that failed for good. One Ray serves all runs; its workers are disturbed, and now and
then the driver. Prints a line of JSON for each run, and the sum; exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import itertools
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from raypipe.core.errors import RaypipeError
from raypipe.core.textfile import json_lines
from raypipe.models.kit import LocalKit
from raypipe.runs.pipeline.tasks import HandedBack, RunTask, TableTask, Task, TaskResult, Verb, WorkerConfig

sys.path.insert(0, str(Path(__file__).parent))
from kills import note
from life import MEMO, contents
from own_ray import environment

ROOT = Path(__file__).parents[2]
RECIPE, MODELS = ROOT / "tests" / "support" / "fakes.yaml", ROOT / "conf" / "models.yaml"
QUESTIONS, PAGES = 8, 12  # some 60 sources
PER_RUN = 25  # faults
ATTEMPTS = 6  # disturbed ones of a run, at most
AWAY_S = 0.4  # that a file is cut or gone
WAIT_S = 0.05  # before the second try of what is unavailable: 1 s in a job, and outages as much shorter
DEVICES = 8  # times the chance of another call: a run has few calls to models
DRIVERS = "- of the driver"
DRIVER = 0.15  # of a worker's chance that a call fails, in the driver: there it ends the run

S3 = "LanceError(IO): Generic S3 error: Error performing request"


def _says(error: Callable[[str], Exception], text: str) -> Callable[[Any], None]:
    def fail(target: Any) -> None:
        raise error(text)

    return fail


def _hidden(cut: bool) -> Callable[[Any], None]:
    """A data file of the table that is about to be read, away or cut, until `bring_back` has seen it: the
    worker may be killed at any time, and its children with it."""

    def fail(target: Any) -> None:
        folder = Path(str(getattr(target, "uri", target)).removeprefix("file://")) / "data"
        files = sorted(folder.glob("*.lance")) if folder.is_dir() else []
        if not files:
            return
        try:
            os.link(files[0], f"{files[0]}.away")
        except OSError:
            return  # another worker has it away
        if cut:
            half = Path(f"{files[0]}.half")
            half.write_bytes(files[0].read_bytes()[: files[0].stat().st_size // 2])
            os.replace(half, files[0])
        else:
            files[0].unlink()

    return fail


def bring_back(home: Path) -> None:
    """Brings files back that are away for AWAY_S, for as long as this process lives."""
    while True:
        for away in home.glob("run-*/store/*/data/*.away"):
            if time.time() - away.stat().st_ctime > AWAY_S:
                os.replace(away, away.with_suffix(""))
        time.sleep(0.05)


STORE: dict[str, Callable[[Any], None]] = {
    "503": _says(pa.ArrowInvalid, f"External error: {S3}: 503 Service Unavailable: SlowDown"),
    "403": _says(OSError, f"{S3}: 403 Forbidden: ExpiredToken"),
    "cut file": _hidden(cut=True),
    "missing file": _hidden(cut=False),
    "slow": lambda target: time.sleep(0.5),
}
FILES = {name: STORE[name] for name in ("503", "403", "slow")}
ECC = "CUDA error: uncorrectable ECC error encountered"
DEVICE: dict[str, Callable[[Any], None]] = {
    "CUDA error": _says(RuntimeError, ECC),
    "out of memory": _says(RuntimeError, "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0"),
    "slow": STORE["slow"],
}


@dataclass
class Injector:
    """Fails calls of this process, by its draws alone."""

    chance: float  # of a call
    draws: random.Random
    diary: Path
    poison: str  # query that the reranker cannot read
    calm: str = "-"  # what is noted of a call that goes well
    lost: bool = False  # True: the device of this process computes nothing more

    def store(self, what: str, target: Any, some: dict[str, Callable[[Any], None]]) -> None:
        if self.draws.random() < self.chance:
            kind = self.draws.choice(sorted(some))
            note(self.diary, f"{kind} | {what}")
            some[kind](target)
        else:
            note(self.diary, self.calm)

    def device(self, what: str) -> None:
        if self.lost:
            raise RuntimeError(ECC)
        if self.draws.random() < DEVICES * self.chance:
            kind = self.draws.choice(sorted(DEVICE))
            note(self.diary, f"{kind} | {what}")
            self.lost = kind == "CUDA error"
            DEVICE[kind](None)
        else:
            note(self.diary, self.calm)


def install(injector: Injector) -> Callable[[], None]:
    """Lets calls of this process go through the injector, until what it returns is called."""
    import lance

    from raypipe.models import fake
    from raypipe.store import parts

    files = importlib.import_module("raypipe.store.files")

    def before(owner: Any, name: str, fails: Callable[..., None]) -> Callable[[], None]:
        real = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            fails(*args)
            return real(*args, **kwargs)

        setattr(owner, name, call)
        return lambda: setattr(owner, name, real)

    def unreadable(model: Any, pairs: Any) -> None:
        if any(query == injector.poison for query, _ in pairs):
            raise ValueError("a question that no reranker reads")

    undo = [
        before(fake.OverlapReranker, "score", unreadable),
        before(fake.OverlapReranker, "score", lambda *a: injector.device("score")),
        before(fake.HashEmbedder, "embed", lambda *a: injector.device("embed")),
        before(lance.LanceDataset, "to_table", lambda s, *a: injector.store("to_table", s, STORE)),
        before(lance, "dataset", lambda uri, *a: injector.store("dataset", uri, STORE)),
        before(parts, "write_fragments", lambda *a: injector.store("write_fragments", a[1], FILES)),
    ]
    reaching = files.reaching

    @contextlib.contextmanager
    def reached(what: str) -> Iterator[None]:
        with reaching(what):
            injector.store("file", what, FILES)
            yield

    vars(files)["reaching"] = reached
    undo.append(lambda: vars(files).update(reaching=reaching))

    def uninstall() -> None:
        for back in reversed(undo):
            back()

    return uninstall


@dataclass(frozen=True)
class Disturbed:
    """Work in whose process calls fail."""

    task: TableTask
    worker: WorkerConfig
    chance: float
    seed: str
    diary: str
    poison: str

    async def open(self, kit: LocalKit | None = None) -> RunTask:
        ticket = next(i for i in itertools.count() if _taken(Path(f"{self.diary}.{i}")))
        injector = Injector(
            self.chance, random.Random(f"{self.seed}/{ticket}"), Path(self.diary), self.poison
        )
        # For the rest of the run: Ray keeps the processes of tasks, so the faults of an earlier run go first.
        kept = vars(importlib.import_module("raypipe.models.fake"))
        kept.pop("uninstall_faults", lambda: None)()
        kept["uninstall_faults"] = install(injector)
        return cast(RunTask, await replace(cast(Any, self.task), worker=self.worker).open(kit))


def _taken(path: Path) -> bool:
    """Whether this call made the file."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def evaluated(folder: Path, data: Path, chance: float, seed: str, diary: Path, poison: str) -> str:
    """One eval over the store in a folder, on Ray; "" or how it ended. `chance` that a call fails."""
    from raypipe.api.session import load_recipe
    from raypipe.core.conf import Conf
    from raypipe.core.progress import Progress
    from raypipe.evaluation.evaluate import evaluate
    from raypipe.evaluation.options import EvalOptions
    from raypipe.runs.cluster import engine_groups
    from raypipe.runs.cluster.cluster_file import Pool
    from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
    from raypipe.store import Store

    def runner(verb: Verb, work: TableTask, tasks: Sequence[Task]) -> Iterator[TaskResult | HandedBack]:
        here = cast(Any, work).worker
        disturbed = Disturbed(work, here, chance, f"{seed}/{verb}", str(diary), poison)
        return engine_groups.run_tasks(disturbed, tasks, Pool(actors=2, cpus=0.5))

    recipe = load_recipe(str(RECIPE), str(MODELS), Conf((ROOT / "conf",)))
    driver = Injector(chance * DRIVER, random.Random(f"{seed}/driver"), diary, poison, DRIVERS)
    uninstall = install(driver)
    try:
        store = Store.create(str(folder / "store"))
        place = WorkerConfig(store.uri, "transformers", "cpu", 1, wait_s=WAIT_S)
        silent = Progress(io.StringIO(), silent=True)
        pipe = Pipeline(store, recipe, place, TaskSizes(15, 4), runner, silent)
        evaluate(pipe, [data], folder / "out", EvalOptions("synth", rule="official"))
    except RaypipeError as e:
        return f"{e.exit_code} {e}"[:300]
    finally:
        uninstall()
    return ""


def faults_in(diary: Path) -> list[str]:
    """What was failed, of all calls that are noted."""
    lines = diary.read_text().splitlines() if diary.exists() else []
    return [line for line in lines if "|" in line]


def final(folder: Path) -> dict[str, str]:
    """Returns the rows that failed for good: id -> the reason that was kept."""
    from raypipe.store import Store

    rows = Store.open(str(folder / "store")).dataset("faults").to_table(filter="NOT transient")
    return {row["id"]: f"{row['step']} {row['reason']}: {row['detail']}" for row in rows.to_pylist()}


def tables(folder: Path) -> dict[str, list[str]]:
    """All tables but the memo, and `faults`, whose rows tell of what was in passing."""
    from raypipe.store import Store

    found = contents(Store.open(str(folder / "store")))
    return {name: rows for name, rows in found.items() if name != "faults" and not name.startswith(MEMO)}


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--faults", type=int, default=1000, metavar="N")
    args.add_argument("--seed", type=int, default=1)
    given = args.parse_args()
    os.environ |= environment()
    import ray

    from raypipe.contrib.world.write import write
    from raypipe.runs.cluster import connection

    start, every, bad = time.monotonic(), Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="raypipe-faults-") as temporary:
        home = Path(temporary)
        write(home / "world", QUESTIONS, pages=PAGES, seed=3, page_chars=1500)
        line = json_lines(next((home / "world").glob("questions*.jsonl")).read_text())[2]
        broken, poison = line["interaction_id"], line["query"]
        threading.Thread(target=bring_back, args=(home,), daemon=True).start()
        connection.join("local", num_cpus=2, include_dashboard=False)
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not import a script
        try:
            whole = home / "whole"
            if said := evaluated(whole, home / "world", 0.0, "", home / "whole.diary", poison):
                raise SystemExit(f"the undisturbed run did not end well: {said}")
            noted, expected = (home / "whole.diary").read_text().splitlines(), tables(whole)
            calls = sum(DRIVER if line == DRIVERS else 1 for line in noted)
            assert set(final(whole)) == {broken}
            for run in itertools.count():
                if every.total() >= given.faults:
                    break
                found = one(home, run, given.seed, PER_RUN / calls, poison, expected, broken)
                every.update(found.pop("all"))
                bad += not found["well"]
                print(json.dumps(found), flush=True)
        finally:
            ray.shutdown()
    kinds = Counter(fault.partition(" | ")[0] for fault in every.elements())
    seconds = round(time.monotonic() - start)
    print(json.dumps({"faults": every.total(), "runs": run, "bad": bad, "kinds": kinds, "seconds": seconds}))
    return 1 if bad else 0


def one(
    home: Path, run: int, seed: int, chance: float, poison: str, expected: dict[str, list[str]], broken: str
) -> dict[str, Any]:
    """A run that is disturbed, then one that is not, and what is other than expected."""
    folder, diary, start = home / f"run-{run}", home / f"run-{run}.diary", time.monotonic()
    ends = []
    for attempt in range(ATTEMPTS):
        ends.append(evaluated(folder, home / "world", chance, f"{seed}/{run}/{attempt}", diary, poison))
        if len(faults_in(diary)) >= PER_RUN or not ends[-1]:
            break
    disturbed = len(faults_in(diary))
    while list(folder.glob("store/*/data/*.away")):
        time.sleep(AWAY_S)
    blamed = {id: why for id, why in final(folder).items() if id != broken}
    last = evaluated(folder, home / "world", 0.0, "", home / "well.diary", poison)
    now = tables(folder)
    differ = [t for t in expected | now if expected.get(t) != now.get(t)]
    after = final(folder)
    blamed |= {id: after.get(id, "no fault is kept") for id in after.keys() ^ {broken}}
    found = {
        "run": run,
        "well": not (differ or blamed or last),
        "faults": disturbed,
        "ends": ends,
        "last": last,
        "differ": differ,
        "blamed": blamed,
        "seconds": round(time.monotonic() - start, 1),
        "all": Counter(faults_in(diary)),
    }
    if found["well"]:
        shutil.rmtree(folder)
    return found


if __name__ == "__main__":
    sys.exit(main())
