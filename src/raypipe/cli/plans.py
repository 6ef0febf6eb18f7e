"""Commands around a run: what it may have to ask, why a row is as it is, and what a new run changed."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from raypipe.cli import options
from raypipe.cli.opened import pipeline_here
from raypipe.cli.settings import Settings
from raypipe.coming import read_questions
from raypipe.evaluate import questions_of
from raypipe.manifest import read, to_json
from raypipe.plan import Coming, plan
from raypipe.report.plans import print_plan, print_story
from raypipe.store import Store
from raypipe.why import why


def add(commands: options.Commands) -> None:
    """Declares them."""
    made = options.command(
        commands,
        "plan",
        "say what an eval may have to ask, why, and how long it may take; runs nothing",
        "raypipe plan local --store /data/store --data dev.jsonl.bz2",
        _plan,
    )
    options.recipe(made)
    options.store(made)
    made.add_argument("--data", metavar="PATH", nargs="+", type=Path, default=[], help="files of the eval")
    options.format_of(made)
    options.cluster(made)
    made.add_argument("--limit", metavar="N", type=options.at_least(1), help="only the first N questions")
    options.as_json(made)
    story = options.command(
        commands,
        "why",
        "tell the story of one question of a finished run: its key, what matched, what was asked and why",
        "raypipe why /data/runs/local 2f5d8a",
        _why,
    )
    story.add_argument("run_folder", metavar="DIR", type=Path, help="the --out folder of a finished eval")
    story.add_argument("row", metavar="ROW", help="a question's id")
    options.as_json(story)


def _why(args: argparse.Namespace, settings: Settings) -> int:
    manifest = read(args.run_folder)
    story = why(Store.open(manifest.store), manifest, args.row)
    if args.json:
        options.print_json(to_json(story))
    else:
        print_story(Console(), to_json(story))
    return 0


def _plan(args: argparse.Namespace, settings: Settings) -> int:
    uri = settings.store_to_use(args.store)
    data = [Path(settings.place(str(p), "--data")) for p in args.data]
    store = Store.create(uri) if data else Store.open(uri)
    pipeline = pipeline_here(args, settings, store)
    if data:
        questions, coming = read_questions(store, data, options.format_for(args.format, data))
        questions = questions[: args.limit]
    else:
        questions, coming = list(questions_of(pipeline, None, args.limit)), Coming()
    found = plan(pipeline, questions, coming).to_json()
    if args.json:
        options.print_json(found)
    else:
        print_plan(Console(), found)
    return 0
