"""The command `finetune`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raypipe.cli.command import Args, arg, at_least, called, command, console, print_json, printed, session

if TYPE_CHECKING:
    from raypipe.api.finetune import FinetuneResult


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
    return printed(args, called(finetune, args, session=session(args, True), sets=args.preset_sets), _print)


def _print(made: FinetuneResult) -> None:
    import yaml

    from raypipe.report.finetune import print_finetune

    done = made.to_json()
    entry = yaml.safe_dump(done["entry"], sort_keys=False, allow_unicode=True)
    print_finetune(console(), done, entry)
    if done["models"]:
        print(f"use it: raypipe eval RECIPE --models {done['models']}")
