"""The command `judge`: how far a judge can be trusted."""

from __future__ import annotations

import shlex

from raypipe.cli import options
from raypipe.cli.command import Args, arg, at_least, called, command, console, printed

_ABOUT = "by which a file of predictions was judged (default: official; of a run, its own)"
RULE = arg("--rule RULE", _ABOUT, options.RULES)


@command(
    "judge check",
    "raypipe judge check labels.jsonl --run /data/runs/local",
    arg("labels LABELS", "lines of id, prediction, label: right, wrong, unclear"),
    arg(
        "--run RUN", "the run, or file of predictions, that the labels are of (default: the folder of LABELS)"
    ),
    RULE,
    "json",
    about="Measure a judge by people's labels: agreement, kappa, and the score with its errors taken out.",
)
def _check(args: Args) -> int:
    from raypipe.api.judge_check import JudgeCheckResult, check_judge

    def show(found: JudgeCheckResult) -> None:
        from raypipe.cli.judge_table import print_check

        print_check(console(), found.found)

    return printed(args, called(check_judge, args), show)


@command(
    "judge pick",
    "raypipe judge pick /data/runs/local --random 100 --disagreements 50 --out labels.jsonl",
    arg("run RUN", "a finished eval's folder, or a file of predictions"),
    arg(
        "--disagreements N",
        "answers of which the judge and the truth's words, or two judges, say the opposite",
        at_least(0),
        0,
    ),
    arg(
        "--random N",
        "answers drawn at random: only these say how often the judge errs",
        at_least(0),
        0,
        dest="at_random",
    ),
    arg("--seed S", "of the draw (default: 0)", int, 0),
    arg("--other RUN", "the same answers, judged by another judge"),
    arg("--labels FILE", "answers that have a label there are left out"),
    arg("--out FILE", "the file to write; it must not be there", required=True),
    RULE,
    "json",
    about="Write answers for people to label: some at random, and those of which two measures disagree.",
)
def _pick(args: Args) -> int:
    from raypipe.api.judge_check import PickResult, pick_to_label

    def show(found: PickResult) -> None:
        said = found.to_json()
        print(f"{said['random']} answers at random, {said['chosen']} disagreements: {found.file}")
        rule = "" if args.rule is None else f" --rule {args.rule}"
        print("set each label to right, wrong or unclear, then:")
        print(f"  raypipe judge check {shlex.quote(found.file)} --run {shlex.quote(args.run)}{rule}")

    return printed(args, called(pick_to_label, args), show)
