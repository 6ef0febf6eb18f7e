"""What calibrated abstention is worth on an invented world: `raypipe fit decide`, next to giving every answer
and to fixed thresholds.

    python bench/figures/abstention.py --questions 800 --seed 11 --out FOLDER

`local` answers every question that its rules let it answer (`extract.threshold` 0). P(right) is fitted to one
half of the questions; the tables are of the other. An answer is right if it holds a gold in at most 45 words,
and is the gold where the question offers a choice, as in bench/figures/extract.py; every answer to a question
with a false premise is wrong. What is in FOLDER is used again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import extract_sets
from rich.console import Console

import raypipe
from raypipe.contrib.world.api import synthesize
from raypipe.core.errors import RaypipeError
from raypipe.evaluation.report.experiments import print_fit
from raypipe.text.typed_answers import read

PAGES, PAGE_CHARS = 5, 1500  # of a question


def agrees(question: str, prediction: str, truths: Sequence[str]) -> bool:
    """Whether an answer is right: a judge for `--judge abstention:agrees`."""
    return extract_sets.strictly(read(question), prediction, truths)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=800, help="of the world (default: 800)")
    parser.add_argument("--seed", type=int, default=11, help="of the world; `local` was fitted on 3")
    parser.add_argument("--split", type=int, default=0, help="the half to fit on, 0 or 1")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="for data, store and runs")
    args = parser.parse_args()
    console, out = Console(width=150), args.out
    world = out / f"world-{args.seed}-{args.questions}"
    try:
        if not world.exists():
            synthesize(world, args.questions, PAGES, args.seed, PAGE_CHARS)
        session = raypipe.Session(sets=("extract.threshold=0",))
        always = raypipe.evaluate(
            "local",
            world,
            out / "store",
            out / f"always-{args.seed}",
            judge="abstention:agrees",
            session=session,
        )
        fit = raypipe.fit_decide(always.folder, args.split, out / "fit-decide.yaml")
        print_fit(console, fit.report)
        session = raypipe.Session(sets=("extract.threshold=0", f"decide.fitted={fit.file}"))
        again = raypipe.evaluate(
            "local",
            world,
            out / "store",
            out / f"fitted-{args.seed}",
            judge="abstention:agrees",
            session=session,
        )
        console.print(again.run.fits)
    except RaypipeError as e:
        console.print(str(e))
        return e.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
