"""Cost of a second eval when nothing changed: no calls, and a fraction of the time.

    python bench/again.py --questions 500 [--recipe local]

Evaluates an invented dataset twice on one store in this process. Prints one JSON object with the seconds of
both runs, their ratio (must be under 0.1) and the calls of the second (must be 0); exit code 1 if either is
not. `--recipe` takes any recipe whose models are installed; the default uses fakes that compute from words
alone.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import time
from pathlib import Path

from raypipe.api.session import load_recipe
from raypipe.core.config import Conf
from raypipe.evaluation.evaluate import evaluate
from raypipe.pipeline.driver import Pipeline, TaskSizes, inline
from raypipe.pipeline.tasks import WorkerConfig
from raypipe.report.progress import Progress
from raypipe.store import Store
from raypipe.synth import write

ROOT = Path(__file__).parents[1]
SHARE = 0.1


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--questions", type=int, default=500, metavar="N")
    args.add_argument("--recipe", default=str(ROOT / "tests" / "fakes.yaml"))
    given = args.parse_args()
    with tempfile.TemporaryDirectory(prefix="raypipe-again-") as temporary:
        folder = Path(temporary)
        write(folder / "world", given.questions, pages=50, seed=1, page_chars=2000)
        store = Store.create(str(folder / "store"))
        recipe = load_recipe(given.recipe, None, Conf((ROOT / "conf",)))
        place, silent = (
            WorkerConfig(store.uri, "transformers", "cpu", 1),
            Progress(io.StringIO(), silent=True),
        )
        pipe = Pipeline(store, recipe, place, TaskSizes(100, 10), inline, silent)
        took, cpu, calls = [], [], []
        for _ in range(2):
            start, worked = time.perf_counter(), time.process_time()
            done = evaluate(pipe, [folder / "world"], "synth", None, "official", folder / "out")
            took.append(round(time.perf_counter() - start, 2))
            cpu.append(round(time.process_time() - worked, 2))
            calls.append(sum(s.computed for s in done.report.steps))
    found = {
        "recipe": recipe.name, "questions": given.questions, "calls": calls, "seconds": took,
        "cpu_seconds": cpu, "ratio": round(took[1] / took[0], 3),
    }  # fmt: skip
    print(json.dumps(found))
    return 0 if calls[1] == 0 and took[1] < SHARE * took[0] else 1


if __name__ == "__main__":
    sys.exit(main())
