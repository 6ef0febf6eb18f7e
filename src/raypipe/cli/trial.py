"""The command `trial`: how a canary or a shadow does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raypipe.cli.command import Args, arg, called, command, printed, share
from raypipe.core.errors import ConfError

if TYPE_CHECKING:
    from raypipe.api.trials import TrialResult
    from raypipe.runs.trial_verdict import Look, TrialReport


@command(
    "trial",
    "raypipe trial --store /data/store",
    arg("run DIR?", "with --shadow: the --out folder of a finished eval"),
    arg(
        "--shadow SHARE",
        "have the run answer this share of the live questions again, after the reply",
        share,
        dest="share",
    ),
    arg("--stop", "end the canary and the shadow; live stays"),
    "store json",
)
def _trial(args: Args) -> int:
    from raypipe.api.trials import show_trials, start_shadow, stop_trials

    if (args.run is None) != (args.share is None) or (args.stop and args.share is not None):
        raise ConfError("trial: expected DIR and --shadow SHARE together, or --stop, or neither")
    if args.share is not None:
        called(start_shadow, args)
    look = stop_trials if args.stop else show_trials
    return printed(args, called(look, args), print_trials)


def print_trials(found: TrialResult) -> None:
    """Prints the trials of a store for people."""
    for report in found.running:
        _print(report)
    if not found.running:
        print(f"no canary and no shadow in {found.store}")
    if found.ended is not None:
        print("the last that ended:")
        _print(found.ended)


def _print(report: TrialReport) -> None:
    t = report.trial
    gate = f", gate {t.gate}" if t.gate else ""
    print(f"{t.role} {t.release} against {t.live}, share {t.share:g}{gate}: {report.verdict}")
    if report.why:
        print(f"  {report.why}")
    said = f"{report.questions} questions, {report.same} answered alike, {report.failed} failed"
    times = ", ".join(f"{name.replace('_', ' ')} {ms:g} ms" for name, ms in report.ms.items())
    print(f"  {said}{f'; {times}' if times else ''}")
    for look in (report.f1, report.answered):
        print(f"  {_line(look)}")
    for e in report.examples:
        print(f"  {e.question}: {e.live!r} -> {e.trial!r}{_f1(e.f1_live, e.f1_trial)}")


def _line(look: Look) -> str:
    if not look.looked:
        return f"{look.measure}: {look.questions} questions, too few for a look"
    means = f"{look.live:.3f} -> {look.trial:.3f}"
    return f"{look.measure}: {means} over {look.looked} of {look.questions} questions, p {look.p:.3g}"


def _f1(before: float | None, after: float | None) -> str:
    return "" if before is None or after is None else f" (f1 {before:.2f} -> {after:.2f})"
