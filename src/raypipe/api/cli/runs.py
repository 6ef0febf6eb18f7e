"""Commands that plan or run a recipe over a store: plan, index, answer, eval, reprocess, ann, rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import raypipe
from raypipe.api.cli.command import Args, called, command, on_console, printed, say, say_data
from raypipe.core.errors import ConfError

if TYPE_CHECKING:
    from raypipe.api.indexes import AnnResult
    from raypipe.api.plans import PlanResult
    from raypipe.api.run import EvalResult, ReprocessResult, RunResult
    from raypipe.runs.plan.records import Plan


@command
def _index(args: Args) -> int:
    """raypipe index local --store /data/store
    recipe sets store cluster retry json
    """
    return printed(args, called(raypipe.index, args), _counts)


@command
def _answer(args: Args) -> int:
    """raypipe answer local --store /data/store
    recipe sets store cluster fresh retry json
    """
    return printed(args, called(raypipe.answer, args), _counts)


def _counts(done: RunResult) -> None:
    if not done.steps:
        print("nothing was missing")
    for name, count in done.steps.items():
        work = f"{count.rows} rows, {count.calls.computed} model calls, {count.faults} faults"
        print(f"{name:<12} {work}, {count.seconds:.1f} s")


@command
def _eval(args: Args) -> int:
    """raypipe eval local --data dev.jsonl.bz2 --store /data/store --out /data/runs/local
    recipe?
    --repeats K {1.. = 1 -> times}: run it K times, from the second on with language models asked again: mean
      and spread
    --oracle {passages|answer}: put golds in the place of the ranking, or of the answering step: what could a
      better one gain?
    of-eval
    """
    demo = not args.data and not args.store and not args.settings.store
    with TemporaryDirectory(prefix="raypipe-plan-") as scratch:
        if demo:
            _take_demo(args, Path(scratch) if args.dry_run else None)
        _prepare(args)
        if args.dry_run:
            return _dry_run(args)
    if args.times > 1:
        from raypipe.api.cli.tables import print_repeats

        repeated = called(raypipe.evaluate_repeatedly, args, on_plan=printer(args), check=True)
        return printed(args, repeated, print_repeats)
    # Faults are checked after the report is printed.
    done = called(raypipe.evaluate, args, on_plan=printer(args), check=False)

    printed(args, done, lambda done: _print_run(args, done))
    done.check_faults()
    return 0


def _print_run(args: Args, done: EvalResult) -> None:
    made = done.evaluation
    on_console("console.print_run", made.record, made.folder, made.reused)
    if args.verbose:
        on_console("console.print_run_tables", made.record, made.folder)


def _prepare(args: Args) -> None:
    """Says where questions are from, and puts the recipe with steps of others in the place of its name."""
    say_data(args)
    if args.swaps:
        args.recipe = called(raypipe.swap_steps, args)


def _take_demo(args: Args, scratch: Path | None) -> None:
    """Sets data and store to the demo's, and says so. A name that is not known is refused before."""
    from raypipe.api.run import check_names
    from raypipe.api.starting_points import DEMO

    called(check_names, args, data=())
    stores = args.settings.stores
    what = f"{DEMO['questions']} invented questions with {DEMO['pages']} pages each"
    say(f"no --data and no --store: the demo, {what}, in {stores / 'demo'}")
    if (own := stores / "default").exists():
        say(f"for the data that was read without --store: --store {own}")
    args.data, args.store = [called(raypipe.demo_data, args, scratch=scratch)], str(stores / "demo")


@command
def _reprocess(args: Args) -> int:
    """raypipe reprocess local --data dev.jsonl.bz2 --store /data/store --out /data/runs/next
    recipe
    of-eval
    """
    _prepare(args)
    if args.dry_run:
        return _dry_run(args)
    done = called(raypipe.reprocess, args, on_plan=printer(args), check=False)
    printed(args, done, lambda done: _print_reprocessed(args, done))
    done.eval.check_faults()
    return 0


def _print_reprocessed(args: Args, done: ReprocessResult) -> None:
    _print_run(args, done.eval)
    if done.changes is None:
        print("no earlier run has answered any of these questions: nothing to compare with")
    else:
        on_console("plans.print_changes", done.changes)


def _dry_run(args: Args) -> int:
    """Connects to the cluster and finds the models as the run itself would, then prints the plan."""
    if args.labels is not None:
        from raypipe.evaluation.judged_run import read_labels

        read_labels(Path(args.labels))
    return show(args, called(raypipe.plan, args, check_run=True))


@command
def _ann(args: Args) -> int:
    """raypipe ann my-recipe --store /data/store
    recipe sets store cluster
    --questions N {1.. = 200}: stored questions on which recall is measured (200)
    --rebuild: replace indexes that are there; questions of the whole store are then answered again
    json
    """
    found = called(raypipe.build_ann, args, check=False)
    printed(args, found, _print_recall)
    found.check_recall()
    return 0


def _print_recall(found: AnnResult) -> None:
    from raypipe.evaluation.report.wording import ann_line

    for of in found.rows():
        print(f"{of.stage}: {of.recall.index}, {'built' if of.built else 'was there'}")
        print(f"  {ann_line(of.recall)}; the worst is question {of.recall.worst_question}")


@command
def _rank(args: Args) -> int:
    """raypipe rank local --corpus corpus.jsonl.gz --queries queries.jsonl.gz --out run.trec --by fuse
    recipe sets store
    --corpus F: BEIR corpus.jsonl[.gz]
    --queries F: BEIR queries.jsonl[.gz]
    --out R.trec {required path}
    --by BY {= final}: a score's name, such as bm25, dense, fuse; or final (final)
    --top N {1.. = 20}: documents a query (20)
    cluster
    """
    from raypipe.core.textfile import require_file

    require_file(args.out, "--out")
    found = called(raypipe.rank, args)
    print(f"{args.out}: {len(found.run)} queries, by {found.by}")
    return 0


@command
def _plan(args: Args) -> int:
    """raypipe plan local --store /data/store --data dev.jsonl.bz2
    recipe sets store
    --data PATH+: files of the eval, or URIs
    format kind cluster
    --limit N {1..}: plan the first N questions only
    scoring refresh
    --calibrate: first run a few invented questions, which measures how fast this machine is: loads models,
      and calls those behind endpoints
    --assume pages=N {-> assumed}: plan a corpus that is not there: tasks, bytes, requests, hours and money,
      such as pages=1e8 or pages=1e7,html_bytes=20000,text_chars=3000,chunks=5
    json
    """
    if args.assumed is not None:
        if args.data or args.limit or args.judge:
            raise ConfError(
                "--assume plans pages that are not there: expected without --data, --limit, --judge"
            )
        found = called(raypipe.assume, args)
        return printed(args, found, lambda found: on_console("plans.print_assumed", found.plan))
    say_data(args)
    if args.calibrate:
        from raypipe.api.plans import calibrate

        called(calibrate, args)
    return show(args, called(raypipe.plan, args))


def show(args: Args, found: PlanResult) -> int:
    def written(found: PlanResult) -> None:
        on_console("plans.print_plan", found.plan)
        if found.expired and not args.refresh:
            print(f"{found.expired} answers rest on expired replies of a graph: --refresh recomputes them")
        placed = found.placement
        if any(s.max_calls for s in found.plan.steps):  # else no pool has work
            on_console("plans.print_placement", placed.cluster, placed.about, placed.pools)

    return printed(args, found, written)


def printer(args: Args) -> Callable[[Plan], None]:
    """Prints the plan of a run before it starts: what changed and the sum, with -v each step. With --json
    nothing but JSON is printed."""
    show = "plans.print_plan" if vars(args).get("verbose") else "plans.print_plan_sum"
    return lambda plan: None if args.json else on_console(show, plan)
