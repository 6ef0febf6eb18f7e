"""The commands `fit decide` and `fit fuse`."""

from __future__ import annotations

import argparse
from pathlib import Path

from raypipe.api.settings import Settings
from raypipe.cli import options


def add(commands: options.Commands) -> None:
    """Declares `fit decide` and `fit fuse`."""
    kinds = options.parent(commands, "fit", "what")
    made = options.command(
        kinds,
        "decide",
        "raypipe fit decide /data/runs/local --split 0 --out abstain.yaml",
        _decide,
        "Fit the probability that an answer is right, and the threshold below which none is given.",
    )
    _common(made)
    made = options.command(
        kinds,
        "fuse",
        "raypipe fit fuse /data/runs/ranks --split 0 --step fuse:final --out weights.yaml",
        _fuse,
        "Fit the weights of a fuse step to the ranking measure of the data.",
    )
    _common(made)
    made.add_argument("--step", metavar="NAME", help="the step, such as fuse:final (default: the last fuse)")
    made.add_argument(
        "--scores",
        metavar="NAME,...",
        default="",
        help="what is weighed, of the scores that the run's rankers gave (default: what the step weighs now)",
    )
    options.store(made)


def _common(made: argparse.ArgumentParser) -> None:
    made.add_argument("run_folder", metavar="RUN", help="the --out folder of a finished eval")
    made.add_argument(
        "--split",
        type=options.between(0, 1),
        default=0,
        metavar="0|1",
        help="the half of the questions to fit on; the report is of the other (default: 0)",
    )
    options.group(made, "stay together")
    options.measure(made, "what is made best")
    made.add_argument(
        "--out",
        metavar="FILE",
        help="the fitted file to write, .yaml; its report goes next to it (default: in the folder of RUN)",
    )
    options.as_json(made)


def _decide(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.fit import fit_decide

    done = fit_decide(args.run_folder, args.split, args.out, args.group, args.measure)
    if args.json:
        options.print_json(done.to_json())
        return 0
    from raypipe.report.fit import print_decide_fit

    print_decide_fit(options.console(), done.to_json())
    _say(done.file, "decide.fitted")
    return 0


def _fuse(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.fit import fit_fuse

    scores = [name.strip() for name in args.scores.split(",") if name.strip()]
    done = fit_fuse(
        args.run_folder, args.split, args.out, args.step, scores, args.group, args.measure, args.store,
        options.session(args, settings),
    )  # fmt: skip
    if args.json:
        options.print_json(done.to_json())
        return 0
    from raypipe.report.fit import print_fuse_fit

    print_fuse_fit(options.console(), done.to_json())
    _say(done.file, f"{done.report.step}.fitted")
    return 0


def _say(file: Path, field: str) -> None:
    print(f"{file} (next to it {file.stem}.json and {file.stem}.html)")
    print(f"use it: raypipe eval ... --set {field}={file}")
