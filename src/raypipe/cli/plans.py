"""Commands around a run: what it may have to ask, why a row is as it is, and what a new run changed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from raypipe.cli import options
from raypipe.cli.opened import cluster_file, pipeline_here, pipeline_of
from raypipe.cli.settings import Settings
from raypipe.cluster.capacity import declared_nodes, fitting
from raypipe.cluster.placement import asked_by, bottleneck, placement, refuse
from raypipe.evaluation.evaluate import questions_of
from raypipe.evaluation.expiry import expired_answers
from raypipe.recipes.recipe import Recipe
from raypipe.report.plans import print_placement, print_plan, print_story
from raypipe.runs.explain import why
from raypipe.runs.manifest import read, to_json
from raypipe.runs.plan.new_files import read_questions
from raypipe.runs.plan.planner import NewSources, plan
from raypipe.store import Store


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
    made.add_argument("--data", metavar="PATH", nargs="+", default=[], help="files of the eval, or URIs")
    options.format_of(made)
    options.cluster(made)
    made.add_argument("--limit", metavar="N", type=options.at_least(1), help="only the first N questions")
    options.refresh(made)
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
    return _planned(args, settings, settings.store_to_use(args.store))


def dry_run(args: argparse.Namespace, settings: Settings, uri: str) -> int:
    """What an eval over a store would do: the cluster is joined and checked as for the run itself, the plan
    is printed, nothing is asked and nothing stored but an empty store."""
    with pipeline_of(args, settings, Store.create(uri), silent=True) as pipeline:
        pipeline.connect()
        return _planned(args, settings, uri)


def _planned(args: argparse.Namespace, settings: Settings, uri: str) -> int:
    data = options.inputs(args.data, settings)
    store = Store.create(uri) if data else Store.open(uri)
    pipeline = pipeline_here(args, settings, store)
    if data:
        questions, coming = read_questions(store, data, options.format_for(args.format, data))
        questions = questions[: args.limit]
    else:
        questions, coming = list(questions_of(pipeline, None, args.limit)), NewSources()
    old = expired_answers(pipeline, questions)
    found = plan(pipeline, questions, coming, old=old if args.refresh else ()).to_json()
    found["expired"] = len(old)
    found["placement"] = _placement(args, settings, pipeline.recipe, found["steps"])
    if args.json:
        options.print_json(found)
    else:
        print_plan(Console(), found)
        if old and not args.refresh:
            print(f"{len(old)} answers rest on a graph's replies that no longer hold: --refresh")
        print_placement(Console(), found["placement"])
    return 0


def _placement(
    args: argparse.Namespace, settings: Settings, recipe: Recipe, steps: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Where the named cluster file would run it, on the machines that the file is written for. Raises
    ClusterTooSmall for what would not fit there."""
    written, asked = cluster_file(args, settings), asked_by(recipe)
    cluster = fitting(written, [m for m in asked if m.loader == "vllm"], declared_nodes(written))
    refuse(cluster, recipe.embedders(), asked)
    placed = placement(cluster, recipe.embedders(), asked)
    took = {s["step"]: s["estimate"]["seconds"] for s in steps}
    slowest = bottleneck(recipe, placed, {stage: most[1] for stage, most in took.items() if most})
    pools = [
        {**to_json(p), "required_gib": round(p.required_gib, 3), "arithmetic": p.arithmetic()} for p in placed
    ]
    return {
        "cluster": args.cluster,
        "about": cluster.about,
        "pools": pools,
        "bottleneck": to_json(slowest) if slowest else None,
    }
