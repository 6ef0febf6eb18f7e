"""Commands that run a recipe over a store: index, answer, eval."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from raypipe.cli import options
from raypipe.cli.opened import judging, pipeline_of
from raypipe.cli.settings import Settings
from raypipe.evaluate import evaluate, questions_of
from raypipe.report.console import print_report
from raypipe.report.progress import Progress
from raypipe.report.report import to_json
from raypipe.store import Store
from raypipe.synth import write

DEMO = {"questions": 20, "pages": 50, "seed": 1, "page_chars": 2000}


def add(commands: options.Commands) -> None:
    """Declares them."""
    for name, about, run in (
        ("index", "bring the corpus half up to date: parse, split, embed what is missing", _index),
        ("answer", "answer the stored questions that have no answer yet", _answer),
    ):
        made = options.command(commands, name, about, f"raypipe {name} local --store /data/store", run)
        options.recipe(made)
        options.store(made)
        options.cluster(made)
        if name == "answer":
            options.fresh(made)
        options.as_json(made)
    _add_eval(commands)


def _add_eval(commands: options.Commands) -> None:
    made = options.command(
        commands,
        "eval",
        "run what is missing, score it, and write a report; without arguments, the demo",
        "raypipe eval local --data dev.jsonl.bz2 --store /data/store --out /data/runs/local",
        _eval,
    )
    options.recipe(made, optional=True)
    made.add_argument(
        "--data", metavar="PATH", nargs="+", type=Path, default=[], help="files to ingest first"
    )
    options.format_of(made)
    options.store(made)
    options.cluster(made)
    made.add_argument("--limit", metavar="N", type=options.at_least(1), help="only the first N questions")
    made.add_argument(
        "--rule", choices=("official", "accuracy"), default="official", help="of scoring (official)"
    )
    made.add_argument(
        "--judge",
        metavar="MODEL",
        help="a generator of the models file that decides what the rule leaves open",
    )
    options.fresh(made)
    made.add_argument(
        "--out", metavar="DIR", help="folder for the report (default: a folder in $RAYPIPE_HOME)"
    )
    options.as_json(made)


def _index(args: argparse.Namespace, settings: Settings) -> int:
    store = Store.open(settings.store_uri(args.store, "default"))
    with pipeline_of(args, settings, store, args.json, answers=False) as pipeline:
        done = pipeline.index(None)
    return _counts(args, {name: asdict(count) for name, count in done.counts.items()})


def _answer(args: argparse.Namespace, settings: Settings) -> int:
    store = Store.open(settings.store_uri(args.store, "default"))
    with pipeline_of(args, settings, store, args.json) as pipeline:
        done = pipeline.answer(questions_of(pipeline, None, None), args.fresh)
    return _counts(args, {name: asdict(count) for name, count in done.counts.items()})


def _counts(args: argparse.Namespace, counts: dict[str, dict[str, Any]]) -> int:
    if args.json:
        options.print_json({"recipe": args.recipe, "steps": counts})
        return 0
    if not counts:
        print("nothing was missing")
    for name, count in counts.items():
        asked = sum(count["tally"][kind]["asked"] for kind in ("vectors", "scores", "replies"))
        work = f"{count['rows']} rows, {asked} model calls, {count['faults']} faults"
        print(f"{name:<12} {work}, {count['seconds']:.1f} s")
    return 0


def _eval(args: argparse.Namespace, settings: Settings) -> int:
    demo = not args.data and not args.store and not settings.store
    if demo:
        args.data = [_demo(settings, args.json)]
    uri = settings.store_uri(args.store, "demo")
    out = Path(
        settings.place(
            args.out or str(settings.home / "runs" / Path(uri).name / Path(args.recipe).stem), "--out"
        )
    )
    data = [Path(settings.place(str(p), "--data")) for p in args.data]
    store = Store.create(uri)
    start = time.perf_counter()
    with (
        judging(args, settings) as judge,
        pipeline_of(args, settings, store, args.json, judge=judge and judge[1]) as pipeline,
    ):
        format = options.format_for(args.format, data)
        done = evaluate(pipeline, data, format, args.limit, args.rule, out, judge, args.fresh)
    report = to_json(done.report)
    if args.json:
        options.print_json(report)
        return 0
    print_report(Console(), report, done.outputs)
    took = time.perf_counter() - start
    print(f"{done.reused} of {done.report.questions} answers were there before; took {took:.1f} s")
    return 0


def _demo(settings: Settings, silent: bool) -> Path:
    """The demo data, written once."""
    folder = settings.home / "data" / "-".join(["demo", *(str(v) for v in DEMO.values())])
    if not (folder / "synth.json").is_file():
        with Progress(sys.stderr, silent=silent) as progress:
            task = progress.task("invented", "questions", DEMO["questions"])
            write(folder, **DEMO, progress=lambda done, total: task.advance(done - task.done))
    return folder
