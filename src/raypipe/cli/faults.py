"""`raypipe faults`: the dead letters of a finished run, and what became of all its rows."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from raypipe.cli import options
from raypipe.cli.settings import Settings
from raypipe.evaluation.dead_letters import dead_letters
from raypipe.evaluation.evaluate import questions_of
from raypipe.pipeline.driver import Pipeline, TaskSizes, inline
from raypipe.pipeline.tasks import WorkerConfig
from raypipe.recipes.serialize import description
from raypipe.report.console import print_losses
from raypipe.report.progress import Progress
from raypipe.runs.manifest import answer_keys, read
from raypipe.store import Store


def add(commands: options.Commands) -> None:
    """Declares it."""
    made = options.command(
        commands,
        "faults",
        "list what a finished eval could not do, why, and how often it was tried",
        "raypipe faults /data/runs/local --json",
        _faults,
    )
    made.add_argument("run_folder", metavar="DIR", type=Path, help="the --out folder of a finished eval")
    options.as_json(made)


def _faults(args: argparse.Namespace, settings: Settings) -> int:
    manifest = read(args.run_folder)
    store = Store.open(manifest.store)
    # Nothing is run: where it would be does not matter.
    place, silent = WorkerConfig(store.uri, "sorted", manifest.device, 1), Progress(sys.stderr, silent=True)
    pipeline = Pipeline(store, description(manifest.recipe), place, TaskSizes(1, 1), inline, silent)
    found = dead_letters(pipeline, questions_of(pipeline, sorted(answer_keys(store, manifest.run)), None), {})
    tree = {
        "run": manifest.run,
        "rows": [asdict(t) for t in found.tallies],
        "faults": [asdict(x) for x in found.letters],
    }
    if args.json:
        options.print_json(tree)
    else:
        print_losses(Console(), tree)
    return 0
