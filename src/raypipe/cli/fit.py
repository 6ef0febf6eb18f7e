"""The commands `fit decide` and `fit fuse`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raypipe.cli import options
from raypipe.cli.command import Args, arg, between, called, command, console, names, printed

if TYPE_CHECKING:
    from raypipe.api.fit import FitResult


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
