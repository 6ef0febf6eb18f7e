"""Commands that teach a step of a recipe: labels, finetune."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from raypipe.api.cli.command import Args, called, command, console, printed, say_data, session
from raypipe.core.terminal import open_console

if TYPE_CHECKING:
    from raypipe.contrib.finetune.finetune import FinetuneResult
    from raypipe.contrib.finetune.labels import LabelsResult


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
    from raypipe.api.cli.runs import printer, show
    from raypipe.contrib.finetune.labels import make_labels, plan_labels

    say_data(args)
    if args.dry_run:
        return show(args, called(plan_labels, args))
    done = called(make_labels, args, on_plan=printer(args))
    printed(args, done, _print_made)
    done.eval.check_faults()
    return 0


def _print_made(done: LabelsResult) -> None:
    from raypipe.contrib.finetune.tables import print_labels

    print_labels(console(), done.to_dict())
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
    --out DIR: gets training.json and models.yaml with the adapter's entry (default: neither)
    --workers N {1..}: that share each batch (default: one for each GPU of the cluster file, else one)
    --set FIELD=VALUE ... {-> preset_sets}: a field of the preset in place of its file's, such as steps=100;
      may be repeated
    --plan: say what it would take, and train nothing
    --show N {1.. -> count}: print the first N training rows with the trained tokens in ⟦ ⟧, and train nothing
    models cluster store json
    """
    from raypipe.contrib.finetune.finetune import finetune, plan_finetune, show_rows
    from raypipe.contrib.finetune.tables import print_plan

    if args.count:
        for text in called(show_rows, args, sets=args.preset_sets):
            print(f"{text}\n")
        return 0
    plan = called(plan_finetune, args, sets=args.preset_sets)
    if args.plan:
        return printed(args, plan, lambda plan: print_plan(console(), plan.to_dict()))
    print_plan(open_console(sys.stderr), plan.to_dict())
    made = called(finetune, args, session=session(args, True), sets=args.preset_sets)
    return printed(args, made, _print_trained)


def _print_trained(made: FinetuneResult) -> None:
    import yaml

    from raypipe.contrib.finetune.tables import print_finetune

    done = made.to_dict()
    entry = yaml.safe_dump(done["entry"], sort_keys=False, allow_unicode=True)
    print_finetune(console(), done, entry)
    if done["models"]:
        print(f"use it: raypipe eval RECIPE --models {done['models']}")
