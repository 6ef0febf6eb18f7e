"""Commands that run a recipe over a store: index, answer, eval, reprocess, ann, rank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from raypipe.cli import options
from raypipe.cli.command import Args, arg, at_least, called, command, console, printed, say, say_data
from raypipe.cli.plans import printer, show

if TYPE_CHECKING:
    from raypipe.api.ann import AnnResult
    from raypipe.api.repeats import RepeatsResult
    from raypipe.api.run import EvalResult, ReprocessResult, RunResult


OF_EVAL = (
    "sets",
    options.data("files to ingest first, or URIs of some"),
    "format kind store cluster",
    options.limit("run"),
    "scoring labels",
    arg(
        "--swap STEP=RECIPE ...",
        "take one step of another recipe in place of this recipe's own",
        dest="swaps",
    ),
    "fresh caps",
    arg("--dry-run", "check everything, print the plan, run nothing"),
    "retry refresh",
    arg(
        "--out DIR", "folder for the report (default: $RAYPIPE_HOME/runs/STORE/RECIPE/TIME, one for each run)"
    ),
    "json",
)


@command("index", "raypipe index local --store /data/store", "recipe sets store cluster retry json")
def _index(args: Args) -> int:
    from raypipe.api.run import index

    return printed(args, called(index, args), _counts)


@command("answer", "raypipe answer local --store /data/store", "recipe sets store cluster fresh retry json")
def _answer(args: Args) -> int:
    from raypipe.api.run import answer

    return printed(args, called(answer, args), _counts)


def _counts(done: RunResult) -> None:
    if not done.counters.counts:
        print("nothing was missing")
    for name, count in done.counters.counts.items():
        work = f"{count.rows} rows, {count.calls.computed} model calls, {count.faults} faults"
        print(f"{name:<12} {work}, {count.seconds:.1f} s")


@command(
    "eval",
    "raypipe eval local --data dev.jsonl.bz2 --store /data/store --out /data/runs/local",
    "recipe?",
    arg(
        "--repeats K",
        "run it K times, from the second on with language models asked again: mean and spread",
        at_least(1),
        1,
        dest="times",
    ),
    arg(
        "--oracle",
        "put golds in the place of the ranking, or of the answering step: what could a better one gain?",
        choices=("passages", "answer"),
    ),
    *OF_EVAL,
)
def _eval(args: Args) -> int:
    if not args.data and not args.store and not args.settings.store:
        _take_demo(args)
    else:
        say_data(args)
    _swap(args)
    if args.dry_run:
        return _dry_run(args)
    if args.times > 1:
        from raypipe.api.repeats import evaluate_repeatedly

        repeated = called(evaluate_repeatedly, args, on_plan=printer(args), check=True)
        return printed(args, repeated, _print_repeats)
    from raypipe.api.run import evaluate

    # Faults are checked after the report is printed.
    done = called(evaluate, args, on_plan=printer(args), check=False)

    def shown(done: EvalResult) -> None:
        from raypipe.report.console import print_report

        print_report(console(), done.to_json(), done.evaluation.folder)
        reused = done.evaluation.reused
        print(f"{done.evaluation.report.questions - reused} new answers, {reused} reused")
        print(f"raypipe view {done.evaluation.folder.path}  # each question in a browser")

    printed(args, done, shown)
    done.check_faults()
    return 0


def _print_repeats(done: RepeatsResult) -> None:
    from raypipe.cli.tables import print_repeats

    print_repeats(console(), done.found, done.folder)


def _swap(args: Args) -> None:
    """Puts the recipe with the steps of others in the place of its name."""
    if args.swaps:
        from raypipe.api.swaps import swap_steps

        args.recipe = called(swap_steps, args)


def _take_demo(args: Args) -> None:
    """Sets data and store to the demo's, and says so. A name that is not known is refused before."""
    from raypipe.api.datasets import DEMO, demo_data
    from raypipe.api.run import check_names

    called(check_names, args, data=())
    stores = args.settings.stores
    what = f"{DEMO['questions']} invented questions with {DEMO['pages']} pages each"
    say(f"no --data and no --store: the demo, {what}, in {stores / 'demo'}")
    if (own := stores / "default").exists():
        say(f"for the data that was read without --store: --store {own}")
    args.data, args.store = [called(demo_data, args)], str(stores / "demo")


@command(
    "reprocess",
    "raypipe reprocess local --data dev.jsonl.bz2 --store /data/store --out /data/runs/next",
    "recipe",
    *OF_EVAL,
)
def _reprocess(args: Args) -> int:
    from raypipe.api.run import reprocess

    say_data(args)
    _swap(args)
    if args.dry_run:
        return _dry_run(args)
    done = called(reprocess, args, on_plan=printer(args), check=False)
    printed(args, done, _print_reprocessed)
    done.eval.check_faults()
    return 0


def _print_reprocessed(done: ReprocessResult) -> None:
    from raypipe.report.console import print_report
    from raypipe.report.plans import print_changes

    out, found = console(), done.to_json()
    print_report(out, found["report"], done.eval.evaluation.folder)
    if found["changes"] is None:
        print("no earlier run has answered any of these questions: nothing to compare with")
    else:
        print_changes(out, found["changes"])


def _dry_run(args: Args) -> int:
    """Connects to the cluster and finds the models as the run itself would, then prints the plan."""
    from raypipe.api.plans import plan

    if args.labels is not None:
        from raypipe.evaluation.labels import read_labels

        read_labels(Path(args.labels))
    return show(args, called(plan, args, check_run=True))


@command(
    "ann",
    "raypipe ann my-recipe --store /data/store",
    "recipe sets store cluster",
    arg("--questions N", "stored questions on which recall is measured (200)", at_least(1), 200),
    arg("--rebuild", "replace indexes that are there; questions of the whole store are then answered again"),
    "json",
)
def _ann(args: Args) -> int:
    from raypipe.api.ann import build_ann

    found = called(build_ann, args, check=False)
    printed(args, found, _print_recall)
    found.check_recall()
    return 0


def _print_recall(found: AnnResult) -> None:
    from rich.text import Text

    from raypipe.report.wording import ann_lines

    out, rows = console(), list(found.rows())
    for row, line in zip(rows, ann_lines({"ann": rows}), strict=True):
        built = "built" if row["built"] else "was there"
        out.print(Text(f"{row['stage']}: {row['index']}, {built}"), soft_wrap=True)
        out.print(Text(f"  {line}; the worst is question {row['worst_question']}"), soft_wrap=True)


@command(
    "rank",
    "raypipe rank local --corpus corpus.jsonl.gz --queries queries.jsonl.gz --out run.trec --by fuse",
    "recipe sets store",
    arg("--corpus F", "BEIR corpus.jsonl[.gz]"),
    arg("--queries F", "BEIR queries.jsonl[.gz]"),
    arg("--out R.trec", type=Path, required=True),
    arg("--by BY", "a score's name, such as bm25, dense, fuse; or final (final)", default="final"),
    arg("--top N", "documents a query (20)", at_least(1), 20),
    "cluster",
)
def _rank(args: Args) -> int:
    from raypipe.api.paths import require_file
    from raypipe.api.questions import rank

    require_file(args.out, "--out")
    found = called(rank, args)
    found.write_trec(args.out)
    print(f"{args.out}: {found.title}")
    return 0
