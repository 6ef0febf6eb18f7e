"""A second eval of the same questions, as a command: nothing is asked, nothing changes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raypipe.api.bench import BenchRow, Contest
from raypipe.models.machine_limits import Machine

FAKES = Path(__file__).parents[2] / "tests" / "fakes.yaml"


@contextmanager
def contest(quick: bool, machine: Machine) -> Iterator[Contest]:
    with tempfile.TemporaryDirectory(prefix="raypipe-bench-") as folder:
        raypipe = [sys.executable, "-m", "raypipe"]
        data = ["--questions", "6", "--pages", "3"]
        subprocess.run([*raypipe, "synth", f"{folder}/world", *data], check=True, capture_output=True)
        places = ["--data", f"{folder}/world", "--store", f"{folder}/store", "--out", f"{folder}/out"]

        def ours() -> int:
            command = [*raypipe, "eval", str(FAKES), *places, "--json"]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            steps = json.loads(said)["steps"]
            return sum(step["computed"] for step in steps)

        ours()
        if asked := ours():
            raise SystemExit(f"a second eval asked models {asked} times; expected never")
        yield Contest(1, ours)


ROW = BenchRow(
    "a second eval of 6 questions with computing fakes, as a command",
    "evals",
    contest,
    by="wall",
    most_s=2,
    short="SHORT_SECOND",
)
