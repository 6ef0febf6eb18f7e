"""Commands that plan or run a recipe over a store, or fit numbers to a run: plan, eval, rank, sweep, fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import raypipe
from raypipe.api.cli import arguments as shared
from raypipe.api.cli.command import Shell, Shown, arg, command, console, on_console, say
from raypipe.api.session import Session
from raypipe.core.errors import ConfError
from raypipe.core.textfile import require_file

if TYPE_CHECKING:
    from raypipe.api.experiments import DecideFitResult, FuseFitResult, RepeatsResult, SweepResult
    from raypipe.api.plans import PlanResult
    from raypipe.api.run import EvalResult, RunResult
    from raypipe.evaluation.sweep import PlannedPoint
    from raypipe.recipes.recipe import Recipe
    from raypipe.runs.plan.records import Plan


@dataclass(frozen=True)
class EvalFlags(shared.PlanFlags, shared.WorkFlags):
    """Options of an eval. Each becomes the field of EvalOptions with the same name."""

    labels: str | None = shared.LABELS
    changes: bool = arg("also list the answers that differ from the previous run's")
    oracle: Literal["passages", "answer"] | None = arg("replace this by golds, to see the possible gain")


@command("eval", "local --data dev.jsonl.bz2 --store /data/store --out /data/runs/local", keeps=True)
def evaluate(
    shell: Shell,
    recipe: str = arg("a name under conf/recipes, or a path (local)", "RECIPE", default="local"),
    *,
    until: Literal["index", "answer"] | None = arg("stop when sources are indexed, or questions answered"),
    repeats: int = arg("run it K times with new calls, show the spread", "K", shared.whole(1), default=1),
    session: Session = shared.session(*shared.OF_RECIPE, "sets"),
    data: Sequence[str] = shared.DATA,
    place: shared.StoreFlags,
    options: EvalFlags,
    swaps: Sequence[str] = arg("take this step from another recipe", "STEP=RECIPE", flag="--swap", each=True),
    dry_run: bool = shared.DRY_RUN,
    out: str | None = arg("folder for the report (default: $RAYPIPE_HOME/runs/STORE/RECIPE/TIME)", "DIR"),
    verbose: bool = arg("print the plan of each step, and all tables of the report", flag="-v"),
) -> Shown[Any]:
    given = options.given()
    store = place.uri(session, out=out)
    with TemporaryDirectory(prefix="raypipe-plan-") as scratch:
        if not (data or store or shell.settings.store):
            data, store = _demo(session, recipe, options, Path(scratch) if dry_run else None)
        shared.say_data(shell, data, store)
        found = raypipe.swap_steps(recipe, swaps, data, session.over(store, bool(data))) if swaps else recipe
        if dry_run:
            planned = raypipe.plan(found, data, store, None, True, session, place.docs, **given)
            if options.labels is not None:
                from raypipe.evaluation.judged_run import read_labels

                read_labels(Path(options.labels))
            return shown_plan(planned, options.refresh)
    if until is not None:
        if repeats > 1 or out is not None:
            raise ConfError(f"--until {until}: expected without --repeats and --out")
        return _until(until, found, data, place.uri(session, read=True) or store, session, given)
    how = {"on_plan": tell(shell, verbose), "began": shell.began, "docs": place.docs, **given}
    if repeats > 1:
        repeated = raypipe.evaluate_repeatedly(found, repeats, data, store, out, session, check=True, **how)
        return Shown(repeated, _print_repeats)
    # Faults are checked after the report is printed.
    done = raypipe.evaluate(found, data, store, out, session, check=False, **how)

    def show(done: EvalResult) -> None:
        made = done.evaluation
        on_console("console.print_run", made.record, _sent(out) or str(done.folder), made.reused)
        if verbose:
            on_console("console.print_run_tables", made.record, made.folder)
        if done.changes is not None:
            on_console("plans.print_changes", done.changes)
        elif done.compared:
            print("no earlier run has answered any of these questions: nothing to compare with")

    return Shown(done, show, after=done.check_faults)


REPEATED_SHOWN = 10  # questions whose verdicts vary most; --json has all


def _print_repeats(done: RepeatsResult) -> None:
    """Prints the score of each repeat, their mean and spread, and the questions that vary most."""
    from raypipe.evaluation.report.console import say, show

    out, found = console(), done.found
    runs = zip(found.runs, found.scores, ("", *found.verdicts), strict=False)
    rows = [(Path(n).name, "not scored" if s is None else f"{s:+.3f}", verdict) for n, s, verdict in runs]
    show(out, ("run", "score", "against the first"), rows)
    mean = "not scored" if found.mean is None else f"{found.mean:+.4f}"
    moved = f"{found.moved} of {len(found.questions)} questions have several verdicts"
    say(out, f"mean {mean}, spread {found.spread:.4f} from run to run; {moved}")
    several = sorted((q for q in found.questions if len(set(q.verdicts)) > 1), key=lambda q: -q.spread)
    for q in several[:REPEATED_SHOWN]:
        mean = "not scored" if q.mean is None else f"mean {q.mean:+.2f}, spread {q.spread:.2f}"
        say(out, f"  {q.question}: {mean}: {', '.join(q.verdicts)}")
    say(out, str(done.folder / "repeats.json"))


def _sent(out: str | None) -> str:
    """Returns `out` without its last slash if it is an address in an object store, else ""."""
    return out.rstrip("/") if out and "://" in out else ""


def _demo(
    session: Session, recipe: str, options: EvalFlags, scratch: Path | None
) -> tuple[Sequence[str], str]:
    """Returns the folder of the demo's data and the address of its store. First checks the names in `recipe`
    and `options`, prints the address, and writes missing data."""
    from raypipe.api.run import check_names
    from raypipe.api.starting_points import DEMO

    check_names(recipe, (), options.judge, options.rule, session, options.kind)
    stores = session.settings.stores
    what = f"{DEMO['questions']} invented questions with {DEMO['pages']} pages each"
    say(f"no --data and no --store: the demo, {what}, in {stores / 'demo'}")
    if (own := stores / "default").exists():
        say(f"to use the data that was ingested without --store: --store {own}")
    return [str(raypipe.demo_data(session, scratch))], str(stores / "demo")


def _until(
    until: Literal["index", "answer"],
    recipe: Recipe | str,
    data: Sequence[str],
    store: str | None,
    session: Session,
    given: dict[str, Any],
) -> Shown[RunResult]:
    """Reads data into the store, and runs a recipe without scoring it. `until` "index" runs only the corpus
    steps, "answer" also the question steps. Raises ConfError for options that only later work uses."""
    reading = {name: given.pop(name) for name in ("format", "fields", "kind") if name in given}
    taken = {"retry_faults"} if until == "index" else {"retry_faults", "fresh"}
    if later := sorted(given.keys() - taken):
        raise ConfError(f"--until {until}: expected without --{later[0].replace('_', '-')}")
    if data:
        raypipe.ingest(data, store, session=session, **reading)
    do = raypipe.index if until == "index" else raypipe.answer

    def show(done: RunResult) -> None:
        if not done.steps:
            print("nothing was missing")
        for name, count in done.steps.items():
            work = f"{count.rows} rows, {count.calls.computed} model calls, {count.faults} faults"
            print(f"{name:<12} {work}, {count.seconds:.1f} s")

    return Shown(do(recipe, store, session=session, **given), show)


@command(
    "rank", "local --corpus corpus.jsonl.gz --queries queries.jsonl.gz --out run.trec --by fuse", keeps=True
)
def rank(
    recipe: str = shared.RECIPE,
    *,
    session: Session = shared.session(*shared.OF_RECIPE, "sets"),
    place: shared.StoreFlags,
    corpus: str | None = arg("BEIR corpus.jsonl[.gz]", "F"),
    queries: str | None = arg("BEIR queries.jsonl[.gz]", "F"),
    out: Path = arg("the TREC run", "R.trec", needed=True),
    by: str = arg("score to rank by, such as bm25, dense, fuse; or final (final)", "BY", default="final"),
    top: int = arg("documents a query (20)", "N", shared.whole(1), default=20),
) -> int:
    require_file(out, "--out")
    store = place.uri(session, read=True)
    found = raypipe.rank(recipe, corpus, queries, store, by, top, session, out)
    print(f"{out}: {len(found.run)} queries, by {found.by}")
    return 0


@command("plan", "local --store /data/store --data dev.jsonl.bz2")
def plan(
    shell: Shell,
    recipe: str = shared.RECIPE,
    *,
    session: Session = shared.session(*shared.OF_RECIPE, "sets"),
    place: shared.StoreFlags,
    data: Sequence[str] = shared.DATA,
    options: shared.PlanFlags,
    calibrate: bool = arg("first run a few invented questions, which measures how fast this machine is"),
    assume: str | None = arg("plan for an imaginary corpus: pages=1e8,html_bytes=20000,chunks=5", "pages=N"),
) -> Shown[Any]:
    store = place.uri(session)
    if assume is not None:
        if data or options.limit or options.judge:
            raise ConfError("--assume PAGES: expected without --data, --limit and --judge")
        assumed = raypipe.assume(recipe, assume, store, session)
        return Shown(assumed, lambda found: on_console("plans.print_assumed", found.plan))
    if place.docs is None or data:
        shared.say_data(shell, data, store)
    if calibrate:
        from raypipe.api.plans import calibrate as measure

        measure(recipe, session)
    found = raypipe.plan(recipe, data, store, session=session, docs=place.docs, **options.given())
    return shown_plan(found, options.refresh)


def shown_plan(found: PlanResult, refresh: bool = False) -> Shown[PlanResult]:
    """Returns a plan with the function that prints it. `refresh` leaves out the number of expired answers."""

    def show(found: PlanResult) -> None:
        on_console("plans.print_plan", found.plan)
        if found.expired and not refresh:
            print(f"{found.expired} answers rest on expired replies of a graph: --refresh recomputes them")
        placed = found.placement
        if any(s.max_calls for s in found.plan.steps):  # else no pool has work
            on_console("plans.print_placement", placed.cluster, placed.about, placed.pools)

    return Shown(found, show)


def tell(shell: Shell, verbose: bool = False) -> Callable[[Plan], None]:
    """Returns a function that prints a run's plan before the run starts. It prints only the changes and the
    sum; with `verbose`, it prints each step. With --json it prints nothing."""
    show = "plans.print_plan" if verbose else "plans.print_plan_sum"
    return lambda plan: None if shell.json else on_console(show, plan)


@dataclass(frozen=True, slots=True)
class FitFlags:
    """Options of a fit: the questions to fit on, the measure, and the file to write."""

    split: int = arg("the half of the questions to fit on (0)", "0|1", shared.whole(0, 1), default=0)
    group: str | None = arg("keep questions with the same value of this label together", "LABEL")
    measure: str | None = shared.MEASURE
    out: str | None = arg("the fitted file, .yaml; its report goes next to it (in the folder of RUN)", "FILE")


@command("fit decide", "/data/runs/local --split 0 --out abstain.yaml", keeps=True)
def fit_decide(run: str = shared.RUN, *, how: FitFlags) -> Shown[Any]:
    """Fit the probability that an answer is right, and the threshold below which none is given."""
    return Shown(raypipe.fit_decide(run, how.split, how.out, how.group, how.measure), _print_fit)


@command("fit fuse", "/data/runs/ranks --split 0 --step fuse:final --out weights.yaml", keeps=True)
def fit_fuse(
    session: Session,
    run: str = shared.RUN,
    *,
    how: FitFlags,
    step: str | None = arg("the step, such as fuse:final (default: the last fuse)", "NAME"),
    scores: Sequence[str] | None = arg("scores to weigh (the step's own)", "NAME,...", shared.names),
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
    "sweep",
    "local --set split.child_chars=500,700 --set rerank.top=20,50 --sample 200 --store /data/store",
    keeps=True,
)
def sweep(
    shell: Shell,
    recipe: str | None = replace(shared.RECIPE, needed=False),
    *,
    recipes: Sequence[str] | None = arg("compare these, in place of RECIPE", "RECIPE,...", shared.names),
    session: Session = shared.session(*shared.OF_RECIPE),
    values: Sequence[str] = arg(
        "values of a field, such as rerank.top=5,10",
        "STEP[:INTO].FIELD=V1,V2,...",
        flag="--set",
        each=True,
    ),
    sample: int | None = arg("run points on N questions, the best on N more (all)", "N", shared.whole(1)),
    seed: int = arg("seed of the sample (default: 0)", "N", default=0),
    data: Sequence[str] = shared.DATA,
    place: shared.StoreFlags,
    options: shared.ScoredFlags,
    margin: float = shared.MARGIN,
    measure: str | None = shared.MEASURE,
    dry_run: bool = arg("print the plan of all points, run nothing"),
    out: str | None = arg("folder for reports ($RAYPIPE_HOME/runs/STORE/RECIPE-sweep/TIME)", "DIR"),
) -> Shown[Any]:
    if (recipe is None) == (recipes is None):
        raise ConfError("sweep: expected RECIPE or --recipes A,B, found both or neither")
    store = place.uri(session)
    shared.say_data(shell, data, store)

    def on_plan(plans: Sequence[PlannedPoint]) -> None:
        if not shell.json:
            on_console("experiments.print_points", plans)

    given = {"sample": sample, "seed": seed, "margin": margin, "measure": measure, **options.given()}
    given |= {"dry_run": dry_run, "on_plan": on_plan, "session": session, "docs": place.docs}

    def show(done: SweepResult) -> None:
        if done.sweep is not None:
            on_console("experiments.print_sweep", done.sweep, done.plans)
            print(f"{_sent(out) or done.folder}/sweep.json")

    return Shown(raypipe.sweep(recipes or recipe or (), values, data, store, out, **given), show)
