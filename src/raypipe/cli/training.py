"""Commands that make numbers from runs: labels, finetune, fit, sweep."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import raypipe
from raypipe.cli.command import Args, called, command, on_console, printed, say_data, session

if TYPE_CHECKING:
    from raypipe.api.experiments import FitResult, SweepResult
    from raypipe.api.finetune import FinetuneResult
    from raypipe.api.labels import LabelsResult
    from raypipe.evaluation.sweep import PlannedPoint


@command
def _labels(args: Args) -> int:
    """raypipe labels db3-task1-700 --data dev.jsonl --where split=0 --against split=1 --store /data/store
    recipe sets
    --data PATH+: training questions to ingest first, or URIs
    format store cluster
    --step INTO: the step, by the name of its reply (default: the last that answers)
    --where LABEL=V1,V2 ...: only questions with this label, such as split=0 or domain=movie,music; may be
      repeated
    --against DATA ...: files, or LABEL=V1,V2, of what will be evaluated on: a question in both is an error
    --judge MODEL: judges the answers (default: the step's own model); words: no model, the truth's words
      decide
    --held-out SHARE {float = 0.1}: of questions, to stop training by (0.1)
    --idk-share SHARE {float}: of train rows that say "i don't know", reached by leaving rows out (default: as
      it comes)
    --review FILE: write what a person may correct
    --import FILE {-> reviewed}: take the lines marked "use": true of such a file
    --limit N {1..}: the first N questions only
    fresh caps retry refresh
    --dry-run: check everything, print the plan, ask nothing
    --out DIR: folder (default: $RAYPIPE_HOME/runs/STORE/labels/RECIPE-STEP/TIME)
    json
    """
    from raypipe.cli.runs import printer, show

    say_data(args)
    if args.dry_run:
        return show(args, called(raypipe.plan_labels, args))
    done = called(raypipe.make_labels, args, on_plan=printer(args))
    printed(args, done, _print_made)
    done.eval.check_faults()
    return 0


def _print_made(done: LabelsResult) -> None:
    on_console("experiments.print_labels", done.to_json())
    if done.labels:
        model = shlex.quote(done.found["model"])
        print(f"next: raypipe finetune PRESET --labels {shlex.quote(str(done.folder))} --base {model}")


@command
def _finetune(args: Args) -> int:
    """raypipe finetune db3-web --labels /data/labels/web --base llama-3-8b --name web-answer --out tuned
    preset PRESET: a name under conf/finetune, or a path
    --labels DIR {required}: a folder that `raypipe labels` wrote
    --base MODEL {required}: the model that gets the adapter: of loader vllm
    --name NAME: what recipes call the adapter (default: the preset's name)
    --out DIR: gets the report and models.yaml with the adapter's entry (default: neither)
    --workers N {1..}: that share each batch (default: one for each GPU of the cluster file, else one)
    --set FIELD=VALUE ... {-> preset_sets}: a field of the preset in place of its file's, such as steps=100;
      may be repeated
    --plan: say what it would take, and train nothing
    --show N {1.. -> count}: print the first N training rows with the trained tokens in ⟦ ⟧, and train nothing
    models cluster store json
    """
    from raypipe.api.finetune import show_rows

    if args.count:
        for text in called(show_rows, args, sets=args.preset_sets):
            print(f"{text}\n")
        return 0
    plan = called(raypipe.plan_finetune, args, sets=args.preset_sets)
    if args.plan:
        return printed(args, plan, "experiments.print_plan")
    from rich.console import Console

    from raypipe.report.experiments import print_plan

    print_plan(Console(stderr=True), plan.to_json())
    made = called(raypipe.finetune, args, session=session(args, True), sets=args.preset_sets)
    return printed(args, made, _print_trained)


def _print_trained(made: FinetuneResult) -> None:
    import yaml

    done = made.to_json()
    on_console(
        "experiments.print_finetune", done, yaml.safe_dump(done["entry"], sort_keys=False, allow_unicode=True)
    )
    if done["models"]:
        print(f"use it: raypipe eval RECIPE --models {done['models']}")


@command
def _fit_decide(args: Args) -> int:
    """Fit the probability that an answer is right, and the threshold below which none is given.

    raypipe fit decide /data/runs/local --split 0 --out abstain.yaml
    of-fit
    """
    return printed(args, called(raypipe.fit_decide, args), _print_fit)


@command
def _fit_fuse(args: Args) -> int:
    """Fit the weights of a fuse step to the ranking measure of the data.

    raypipe fit fuse /data/runs/ranks --split 0 --step fuse:final --out weights.yaml
    of-fit
    --step NAME: the step, such as fuse:final (default: the last fuse)
    --scores NAME,... {names = ""}: what is weighed, of the scores that the run's rankers gave (default: what
      the step weighs now)
    store
    """
    return printed(args, called(raypipe.fit_fuse, args), _print_fit)


def _print_fit(found: FitResult) -> None:
    on_console("experiments.print_fit", found.to_json())
    print(f"{found.file} (next to it {found.file.stem}.json and {found.file.stem}.html)")
    print(f"use it: raypipe eval ... --set {found.step}.fitted={found.file}")


@command
def _sweep(args: Args) -> int:
    """raypipe sweep local --set split.child_chars=500,700,1000 --set rerank.top=20,50 --sample 200
      --store /data/store
    recipe
    --set STEP[:INTO].FIELD=V1,V2,... ... {required -> values}: values of a field, such as rerank.top=5,10; of
      several fields every combination is a point
    --sample N {1..}: questions of each point; the best is scored again on as many others (default: all
      questions)
    --seed N {int = 0}: draws the sample (default: 0)
    --data PATH+: files to ingest first, or URIs of some
    format kind store cluster scoring
    --margin M {above_0 = 0.02}: points whose 90 %% interval lies within M to either side are the same
      (default: 0.02)
    --measure NAME: what the best point has most of, such as f1 or ndcg_cut_10 (default: the one that reports
      of such data begin with)
    --dry-run: print the plan of all points, run nothing
    --out DIR: folder for sweep.json and a report of each point (default:
      $RAYPIPE_HOME/runs/STORE/RECIPE-sweep/TIME)
    json
    """
    say_data(args)
    tell = (lambda plans: None) if args.json else _print_plans
    return printed(args, called(raypipe.sweep, args, sets=args.values, on_plan=tell), _print_sweep)


def _print_sweep(done: SweepResult) -> None:
    if (found := done.to_json()["sweep"]) is not None:
        on_console("experiments.print_sweep", found)
        print(done.folder / "sweep.json")


def _print_plans(plans: Sequence[PlannedPoint]) -> None:
    on_console("experiments.print_points", [asdict(p) for p in plans])
