"""A second eval of the same questions, as a command: nothing is asked, nothing changes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench_rows import BenchRow, Contest
from machine import Machine

from raypipe.api.session import load_recipe
from raypipe.contrib.world.write import write
from raypipe.core.conf import Conf
from raypipe.core.progress import Progress
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.store import Store

ROOT = Path(__file__).parents[2]
FAKES = ROOT / "tests" / "support" / "fakes.yaml"


def evaluated(folder: Path) -> None:
    """The first eval, in this process."""
    write(folder / "world", 6, pages=3, seed=1, page_chars=2000)
    store = Store.create(str(folder / "store"))
    recipe = load_recipe(str(FAKES), None, Conf((ROOT / "conf",)))
    worker = WorkerConfig(store.uri, "transformers", "cpu", 1)
    pipe = Pipeline(store, recipe, worker, TaskSizes(100, 10), inline, Progress(io.StringIO(), silent=True))
    evaluate(pipe, [folder / "world"], folder / "out", EvalOptions("synth", rule="official"))


@contextmanager
def contest(quick: bool, machine: Machine) -> Iterator[Contest]:
    with tempfile.TemporaryDirectory(prefix="raypipe-bench-") as made:
        folder = Path(made)
        evaluated(folder)
        places = ["--data", f"{made}/world", "--store", f"{made}/store", "--out", f"{made}/again"]

        def ours() -> int:
            command = [sys.executable, "-m", "raypipe", "eval", str(FAKES), *places, "--json"]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            return sum(step["computed"] for step in json.loads(said)["steps"])

        if asked := ours():
            raise SystemExit(f"a second eval asked models {asked} times; expected never")
        yield Contest(1, ours)


ROW = BenchRow(
    "a second eval of 6 questions with computing fakes, as a command",
    "evals",
    contest,
    by="wall",
    most_s=2,
    short="Most of its CPU is imports: a third of their time is lance with pandas, a seventh the modules of "
    "steps. The rest reads the records of the last runs and writes the report.",
)
