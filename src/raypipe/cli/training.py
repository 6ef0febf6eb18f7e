"""Commands that make numbers from runs: labels, finetune, fit."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raypipe.cli import options
from raypipe.cli.command import (
    Args,
    arg,
    at_least,
    between,
    called,
    command,
    console,
    names,
    print_json,
    printed,
    say_data,
    session,
)

if TYPE_CHECKING:
    from raypipe.api.finetune import FinetuneResult
    from raypipe.api.fit import FitResult
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
    printed(args, done, _print_made)
    done.eval.check_faults()
    return 0


def _print_made(done: LabelsResult) -> None:
    from raypipe.report.labels import print_labels

    print_labels(console(), done.to_json())
    if done.labels:
        model = shlex.quote(done.found["model"])
        print(f"next: raypipe finetune PRESET --labels {shlex.quote(str(done.folder))} --base {model}")


@command(
    "finetune",
    "raypipe finetune db3-web --labels /data/labels/web --base llama-3-8b --name web-answer --out tuned",
    arg("preset PRESET", "a name under conf/finetune, or a path"),
    arg("--labels DIR", "a folder that `raypipe labels` wrote", required=True),
    arg("--base MODEL", "the model that gets the adapter: of loader vllm", required=True),
    arg("--name NAME", "what recipes call the adapter (default: the preset's name)"),
    arg("--out DIR", "gets the report and models.yaml with the adapter's entry (default: neither)"),
    arg(
        "--workers N",
        "that share each batch (default: one for each GPU of the cluster file, else one)",
        at_least(1),
    ),
    arg(
        "--set FIELD=VALUE ...",
        "a field of the preset in place of its file's, such as steps=100; may be repeated",
        dest="preset_sets",
    ),
    arg("--plan", "say what it would take, and train nothing"),
    arg(
        "--show N",
        "print the first N training rows with the trained tokens in ⟦ ⟧, and train nothing",
        at_least(1),
        dest="count",
    ),
    "models cluster store json",
)
def _finetune(args: Args) -> int:
    from raypipe.api.finetune import finetune, plan_finetune, show_rows

    if args.count:
        for text in called(show_rows, args, sets=args.preset_sets):
            print(f"{text}\n")
        return 0
    plan = called(plan_finetune, args, sets=args.preset_sets)
    from rich.console import Console

    from raypipe.report.finetune import print_plan

    if args.plan and args.json:
        print_json(plan.to_json())
        return 0
    print_plan(console() if args.plan else Console(stderr=True), plan.to_json())
    if args.plan:
        return 0
    return printed(
        args, called(finetune, args, session=session(args, True), sets=args.preset_sets), _print_trained
    )


def _print_trained(made: FinetuneResult) -> None:
    import yaml

    from raypipe.report.finetune import print_finetune

    done = made.to_json()
    entry = yaml.safe_dump(done["entry"], sort_keys=False, allow_unicode=True)
    print_finetune(console(), done, entry)
    if done["models"]:
        print(f"use it: raypipe eval RECIPE --models {done['models']}")


COMMON = (
    arg("run RUN", "the --out folder of a finished eval"),
    arg(
        "--split 0|1",
        "the half of the questions to fit on; the report is of the other (default: 0)",
        between(0, 1),
        0,
    ),
    options.group("stay together"),
    options.measure("what is made best"),
    arg(
        "--out FILE",
        "the fitted file to write, .yaml; its report goes next to it (default: in the folder of RUN)",
    ),
    "json",
)


@command(
    "fit decide",
    "raypipe fit decide /data/runs/local --split 0 --out abstain.yaml",
    *COMMON,
    about="Fit the probability that an answer is right, and the threshold below which none is given.",
)
def _decide(args: Args) -> int:
    from raypipe.api.fit import fit_decide
    from raypipe.report.fit import print_decide_fit

    return printed(args, called(fit_decide, args), _shown(print_decide_fit, lambda found: "decide"))


@command(
    "fit fuse",
    "raypipe fit fuse /data/runs/ranks --split 0 --step fuse:final --out weights.yaml",
    *COMMON,
    arg("--step NAME", "the step, such as fuse:final (default: the last fuse)"),
    arg(
        "--scores NAME,...",
        "what is weighed, of the scores that the run's rankers gave (default: what the step weighs now)",
        names,
        (),
    ),
    "store",
    about="Fit the weights of a fuse step to the ranking measure of the data.",
)
def _fuse(args: Args) -> int:
    from raypipe.api.fit import fit_fuse
    from raypipe.report.fit import print_fuse_fit

    done = called(fit_fuse, args)
    return printed(args, done, _shown(print_fuse_fit, lambda found: found.report.step))


def _shown(show: Callable[..., None], step: Callable[[Any], str]) -> Callable[[FitResult], None]:
    def both(found: FitResult) -> None:
        show(console(), found.to_json())
        file = found.file
        print(f"{file} (next to it {file.stem}.json and {file.stem}.html)")
        print(f"use it: raypipe eval ... --set {step(found)}.fitted={file}")

    return both
