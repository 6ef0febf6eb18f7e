"""Commands that make numbers from runs: fit, sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import raypipe
from raypipe.api.cli import arguments as shared
from raypipe.api.cli.command import Shell, Shown, arg, command, on_console
from raypipe.api.session import Session
from raypipe.core.errors import ConfError

if TYPE_CHECKING:
    from raypipe.api.experiments import DecideFitResult, FuseFitResult, SweepResult
    from raypipe.evaluation.sweep import PlannedPoint


@dataclass(frozen=True, slots=True)
class FitFlags:
    """The data of a fit, and its aim."""

    split: int = arg("the half of the questions to fit on (0)", "0|1", shared.whole(0, 1), default=0)
    group: str | None = arg("a label whose values are groups of questions that stay together", "LABEL")
    measure: str | None = shared.MEASURE
    out: str | None = arg("the fitted file, .yaml; its report goes next to it (in the folder of RUN)", "FILE")


@command("fit decide", "/data/runs/local --split 0 --out abstain.yaml")
def fit_decide(run: str = shared.RUN, *, how: FitFlags) -> Shown[Any]:
    """Fit the probability that an answer is right, and the threshold below which none is given."""
    return Shown(raypipe.fit_decide(run, how.split, how.out, how.group, how.measure), _print_fit)


@command("fit fuse", "/data/runs/ranks --split 0 --step fuse:final --out weights.yaml")
def fit_fuse(
    session: Session,
    run: str = shared.RUN,
    *,
    how: FitFlags,
    step: str | None = arg("the step, such as fuse:final (default: the last fuse)", "NAME"),
    scores: Sequence[str] | None = arg(
        "what is weighed (what the step weighs now)", "NAME,...", shared.names
    ),
    place: shared.StoreFlags,
) -> Shown[Any]:
    """Fit the weights of a fuse step to the ranking measure of the data."""
    store = place.uri(session)
    found = raypipe.fit_fuse(
        run, how.split, how.out, step, scores or (), how.group, how.measure, store, session
    )
    return Shown(found, _print_fit)


def _print_fit(found: DecideFitResult | FuseFitResult) -> None:
    on_console("experiments.print_fit", found.report)
    print(f"{found.file} (next to it {found.file.stem}.json, the whole report)")
    print(f"use it: raypipe eval ... --set {found.step}.fitted={found.file}")


@command(
    "sweep", "local --set split.child_chars=500,700 --set rerank.top=20,50 --sample 200 --store /data/store"
)
def sweep(
    shell: Shell,
    recipe: str | None = replace(shared.RECIPE, needed=False),
    *,
    recipes: Sequence[str] | None = arg("in its place: each against the first", "RECIPE,...", shared.names),
    named: shared.RecipeFlags,
    values: Sequence[str] = arg(
        "values of a field, such as rerank.top=5,10",
        "STEP[:INTO].FIELD=V1,V2,...",
        flag="--set",
        each=True,
    ),
    sample: int | None = arg("of each point; then as many of the best (all)", "N", shared.whole(1)),
    seed: int = arg("draws the sample (default: 0)", "N", default=0),
    data: Sequence[str] = shared.DATA,
    place: shared.StoreFlags,
    options: shared.ScoredFlags,
    margin: float = shared.MARGIN,
    measure: str | None = shared.MEASURE,
    dry_run: bool = arg("print the plan of all points, run nothing"),
    out: str | None = arg("for reports ($RAYPIPE_HOME/runs/STORE/RECIPE-sweep/TIME)", "DIR"),
) -> Shown[Any]:
    if (recipe is None) == (recipes is None):
        raise ConfError("sweep: expected RECIPE or --recipes A,B, found both or neither")
    session = named.session(shell)
    store = place.uri(session, read=not dry_run)
    shared.say_data(shell, data, store)
    tell = (lambda plans: None) if shell.json else _print_plans
    done = raypipe.sweep(
        recipes or recipe or (),
        values,
        data,
        store,
        out,
        sample,
        seed,
        margin,
        dry_run,
        tell,
        session,
        measure,
        **options.given(),
    )
    return Shown(done, _print_sweep)


def _print_sweep(done: SweepResult) -> None:
    if done.sweep is not None:
        on_console("experiments.print_sweep", done.sweep, done.plans)
        print(done.folder / "sweep.json")


def _print_plans(plans: Sequence[PlannedPoint]) -> None:
    on_console("experiments.print_points", plans)
