"""The command `judge`: how far a judge can be trusted."""

from __future__ import annotations

import argparse
import shlex

from raypipe.api.settings import Settings
from raypipe.cli import options


def add(commands: options.Commands) -> None:
    """Declares `judge check` and `judge pick`."""
    kinds = options.parent(commands, "judge", "kind")
    made = options.command(
        kinds,
        "check",
        "raypipe judge check labels.jsonl --run /data/runs/local",
        _check,
        "Measure a judge by people's labels: agreement, kappa, and the score with its errors taken out.",
    )
    made.add_argument(
        "labels", metavar="LABELS", help="lines of id, prediction, label: right, wrong, unclear"
    )
    made.add_argument(
        "--run",
        dest="run_folder",
        metavar="RUN",
        help="the run, or file of predictions, that the labels are of (default: the folder of LABELS)",
    )
    _rule(made)
    options.as_json(made)
    made = options.command(
        kinds,
        "pick",
        "raypipe judge pick /data/runs/local --random 100 --disagreements 50 --out labels.jsonl",
        _pick,
        "Write answers for people to label: some at random, and those of which two measures disagree.",
    )
    made.add_argument("run_folder", metavar="RUN", help="a finished eval's folder, or a file of predictions")
    made.add_argument(
        "--disagreements",
        metavar="N",
        type=options.at_least(0),
        default=0,
        help="answers of which the judge and the truth's words, or two judges, say the opposite",
    )
    made.add_argument(
        "--random",
        metavar="N",
        type=options.at_least(0),
        default=0,
        help="answers drawn at random: only these say how often the judge errs",
    )
    made.add_argument("--seed", metavar="S", type=int, default=0, help="of the draw (default: 0)")
    made.add_argument("--other", metavar="RUN", help="the same answers, judged by another judge")
    made.add_argument("--labels", metavar="FILE", help="answers that have a label there are left out")
    made.add_argument("--out", metavar="FILE", required=True, help="the file to write; it must not be there")
    _rule(made)
    options.as_json(made)


def _rule(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--rule",
        type=options.one_of("official", "accuracy"),
        help="by which a file of predictions was judged (default: official; of a run, its own)",
    )


def _check(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.judge_check import check_judge

    found = check_judge(args.labels, args.run_folder, args.rule)
    if args.json:
        options.print_json(found.to_json())
        return 0
    from raypipe.cli.judge_table import print_check

    print_check(options.console(), found.found)
    return 0


def _pick(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.judge_check import pick_to_label

    found = pick_to_label(
        args.run_folder, args.out, args.disagreements, args.random, args.seed, args.other, args.labels,
        args.rule,
    )  # fmt: skip
    if args.json:
        options.print_json(found.to_json())
        return 0
    said = found.to_json()
    print(f"{said['random']} answers at random, {said['chosen']} disagreements: {found.file}")
    rule = "" if args.rule is None else f" --rule {args.rule}"
    print("set each label to right, wrong or unclear, then:")
    print(f"  raypipe judge check {shlex.quote(found.file)} --run {shlex.quote(args.run_folder)}{rule}")
    return 0
