"""The command `labels`: training labels for a step of a recipe."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from raypipe.cli import options
from raypipe.cli.command import Args, arg, at_least, called, command, console, printed, say_data

if TYPE_CHECKING:
    from raypipe.api.labels import LabelsResult


@command(
    "labels",
    "raypipe labels db3-task1-700 --data dev.jsonl --where split=0 --against split=1 --store /data/store",
    "recipe sets",
    options.data("training questions to ingest first, or URIs"),
    "format store cluster",
    arg("--step INTO", "the step, by the name of its reply (default: the last that answers)"),
    arg(
        "--where LABEL=V1,V2 ...",
        "only questions with this label, such as split=0 or domain=movie,music; may be repeated",
    ),
    arg(
        "--against DATA ...",
        "files, or LABEL=V1,V2, of what will be evaluated on: a question in both is an error",
    ),
    arg(
        "--judge MODEL",
        "judges the answers (default: the step's own model); words: no model, the truth's words decide",
    ),
    arg("--held-out SHARE", "of questions, to stop training by (0.1)", float, 0.1),
    arg(
        "--idk-share SHARE",
        'of train rows that say "i don\'t know", reached by leaving rows out (default: as it comes)',
        float,
    ),
    arg("--review FILE", "write what a person may correct"),
    arg("--import FILE", 'take the lines marked "use": true of such a file', dest="reviewed"),
    arg("--limit N", "the first N questions only", at_least(1)),
    "fresh caps retry refresh",
    arg("--dry-run", "check everything, print the plan, ask nothing"),
    arg("--out DIR", "folder (default: $RAYPIPE_HOME/runs/STORE/labels/RECIPE-STEP/TIME)"),
    "json",
)
def _labels(args: Args) -> int:
    from raypipe.api.labels import make_labels, plan_labels
    from raypipe.cli.plans import printer, show

    say_data(args)
    if args.dry_run:
        return show(args, called(plan_labels, args))
    done = called(make_labels, args, on_plan=printer(args))
    printed(args, done, _print)
    done.eval.check_faults()
    return 0


def _print(done: LabelsResult) -> None:
    from raypipe.report.labels import print_labels

    print_labels(console(), done.to_json())
    if done.labels:
        model = shlex.quote(done.found["model"])
        print(f"next: raypipe finetune PRESET --labels {shlex.quote(str(done.folder))} --base {model}")
