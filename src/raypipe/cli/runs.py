"""Commands that run a recipe over a store: index, answer, eval, reprocess."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from raypipe import readers
from raypipe.cli import options
from raypipe.cli.opened import cluster_file, judging, pipeline_of
from raypipe.cli.origin import origin
from raypipe.cli.plans import dry_run
from raypipe.cli.settings import Settings
from raypipe.evaluation.dead_letters import check, retry
from raypipe.evaluation.evaluate import Evaluation, evaluate, questions_of
from raypipe.metrics.textfile import replaced
from raypipe.report.console import print_report
from raypipe.report.plans import print_changes, print_plan
from raypipe.report.progress import Progress
from raypipe.report.report import to_json
from raypipe.runs.changes import changes, compared_with
from raypipe.runs.manifest import to_json as plain_json
from raypipe.runs.plan.planner import Plan
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
        options.retry(made)
        options.as_json(made)
    made = options.command(
        commands,
        "eval",
        "run what is missing, score it, and write a report; without arguments, the demo",
        "raypipe eval local --data dev.jsonl.bz2 --store /data/store --out /data/runs/local",
        _eval,
    )
    options.recipe(made, optional=True)
    _of_eval(made)
    made = options.command(
        commands,
        "reprocess",
        "run what a change of recipe or data has left to do, and say which answers changed, where and how",
        "raypipe reprocess local --data dev.jsonl.bz2 --store /data/store --out /data/runs/next",
        _reprocess,
    )
    options.recipe(made)
    _of_eval(made)


def _of_eval(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--data", metavar="PATH", nargs="+", default=[], help="files to ingest first, or URIs of some"
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
    made.add_argument("--dry-run", action="store_true", help="check everything, print the plan, run nothing")
    options.retry(made)
    options.refresh(made)
    made.add_argument(
        "--out",
        metavar="DIR",
        help="folder for the report (default: $RAYPIPE_HOME/runs/STORE/RECIPE/TIME, one for each run)",
    )
    options.as_json(made)


def _index(args: argparse.Namespace, settings: Settings) -> int:
    store = Store.open(settings.store_to_use(args.store))
    with pipeline_of(args, settings, store, args.json, answers=False) as pipeline:
        if args.retry_faults:
            retry(pipeline, ())
        done = pipeline.index(None)
    return _counts(args, {name: asdict(count) for name, count in done.counts.items()})


def _answer(args: argparse.Namespace, settings: Settings) -> int:
    store = Store.open(settings.store_to_use(args.store))
    with pipeline_of(args, settings, store, args.json) as pipeline:
        questions = questions_of(pipeline, None, None)
        if args.retry_faults:
            retry(pipeline, questions)
        done = pipeline.answer(questions, args.fresh)
    return _counts(args, {name: asdict(count) for name, count in done.counts.items()})


def _counts(args: argparse.Namespace, counts: dict[str, dict[str, Any]]) -> int:
    if args.json:
        options.print_json({"recipe": args.recipe, "steps": counts})
        return 0
    if not counts:
        print("nothing was missing")
    for name, count in counts.items():
        asked = sum(count["calls"][kind]["computed"] for kind in ("vectors", "scores", "replies"))
        work = f"{count['rows']} rows, {asked} model calls, {count['faults']} faults"
        print(f"{name:<12} {work}, {count['seconds']:.1f} s")
    return 0


def _eval(args: argparse.Namespace, settings: Settings) -> int:
    demo = not args.data and not args.store and not settings.store
    if demo:
        args.data = [_demo(settings, args.json)]
    start = time.perf_counter()
    demos = str(settings.stores / "demo") if demo else None
    if args.dry_run:
        return dry_run(args, settings, demos or settings.store_to_fill(args.store))
    _, done = _evaluated(args, settings, demos)
    options.delivered(args.out, done.outputs.report.parent)
    report = to_json(done.report)
    if args.json:
        options.print_json(report)
    else:
        print_report(Console(), report, done.outputs)
        took = time.perf_counter() - start
        print(f"{done.reused} of {done.report.questions} answers were there before; took {took:.1f} s")
    check(cluster_file(args, settings).faults, done.dead_letters)
    return 0


def _reprocess(args: argparse.Namespace, settings: Settings) -> int:
    if args.dry_run:
        return dry_run(args, settings, settings.store_to_fill(args.store))
    store, done = _evaluated(args, settings, None)
    before = compared_with(store, done.manifest)
    found = changes(store, before, done.manifest) if before else None
    tree = None if found is None else plain_json(found)
    with replaced(done.outputs.report.with_name("changes.json")) as out:
        out.write(json.dumps(tree, ensure_ascii=False, indent=1) + "\n")
    options.delivered(args.out, done.outputs.report.parent)
    report = to_json(done.report)
    if args.json:
        options.print_json({"plan": dict(done.manifest.plan), "report": report, "changes": tree})
    else:
        print_report(Console(), report, done.outputs)
        if tree is None:
            print("no finished run of this data was there before: nothing to compare with")
        else:
            print_changes(Console(), tree)
    check(cluster_file(args, settings).faults, done.dead_letters)
    return 0


def _evaluated(args: argparse.Namespace, settings: Settings, store: str | None) -> tuple[Store, Evaluation]:
    """An eval as the arguments say; `store` in place of the one that they name."""
    uri = store or settings.store_to_fill(args.store)
    runs = settings.home / "runs" / Path(uri).name / Path(args.recipe).stem
    out = options.output(args.out or str(_unused(runs, time.localtime())), settings)
    data = options.inputs(args.data, settings)
    format = options.format_for(args.format, data)
    if data:
        readers.files_of(data, format)  # what is not there is said before anything is started
    filled = Store.create(uri)
    options.writable(out, "--out")
    with (
        judging(args, settings) as judge,
        pipeline_of(args, settings, filled, args.json, judge=judge and judge[1]) as pipeline,
    ):
        done = evaluate(
            pipeline, data, format, args.limit, args.rule, out,
            judge, args.fresh, args.retry_faults, origin(settings), _shown(args.json), args.refresh,
        )  # fmt: skip
    return filled, done


def _unused(runs: Path, now: time.struct_time) -> Path:
    """A folder for one more run among those of a recipe, named by the time: no run takes the place of one
    before it."""
    name = time.strftime("%Y-%m-%d-%H%M%S", now)
    taken = {p.name for p in runs.iterdir()} if runs.is_dir() else set()
    names = itertools.chain([name], (f"{name}-{n}" for n in itertools.count(2)))
    return runs / next(n for n in names if n not in taken)


def _shown(silent: bool) -> Callable[[Plan], None]:
    """Prints the plan, unless nothing but JSON may stand on stdout."""
    return (lambda plan: None) if silent else (lambda plan: print_plan(Console(), plan.to_json()))


def _demo(settings: Settings, silent: bool) -> Path:
    """The demo data, written once."""
    folder = settings.home / "data" / "-".join(["demo", *(str(v) for v in DEMO.values())])
    if not (folder / "synth.json").is_file():
        with Progress(sys.stderr, silent=silent) as progress:
            task = progress.task("invented", "questions", DEMO["questions"])
            write(folder, **DEMO, progress=lambda done, total: task.advance(done - task.done))
    return folder
