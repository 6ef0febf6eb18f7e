"""The command `reproduce`: runs held against expected numbers, and what the papers' own numbers need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raypipe.cli.command import Args, arg, called, command, console, print_json, printed, session
from raypipe.core.errors import ConfError

if TYPE_CHECKING:
    from raypipe.api.reproduce import ReproduceResult, Reproductions

MOST = 6  # expected numbers that are listed


@command(
    "reproduce",
    "raypipe reproduce scifact --check --data /data/scifact",
    arg(
        "name NAME?",
        "a run of conf/reproduce.yaml (default: list them, and what the papers' own numbers need)",
    ),
    arg("--check", "run it and compare its numbers (default: say what they are)"),
    arg("--data PATH", "the folder or file that the run reads"),
    "store cluster json",
)
def _reproduce(args: Args) -> int:
    from raypipe.api.reproduce import reproduce, reproductions

    if args.name is None or not args.check:
        return _list(args, reproductions(session(args)))
    if args.data is None:
        run = reproductions(session(args)).runs.get(args.name)
        raise ConfError(f"--check: expected --data{f', {run.data}' if run else ''}")
    found = called(reproduce, args, check=False)
    printed(args, found, _show)
    found.check()
    return 0


def _show(found: ReproduceResult) -> None:
    from rich.text import Text

    from raypipe.report.console import grid

    out, table = console(), grid("measure", "by", "expected", "found", "difference", "")
    out.print(Text(found.about), soft_wrap=True)
    for row in found.rows():
        apart = "" if row["difference"] is None else f"{row['difference']:+.4f}"
        said = "none" if row["found"] is None else f"{row['found']:.4f}"
        table.add_row(
            Text(row["measure"]), Text(row["by"]), f"{row['expected']:.4f}", said, apart, row["verdict"]
        )
    out.print(table)
    out.print(Text(found.title))


def _list(args: Args, known: Reproductions) -> int:
    from dataclasses import asdict

    from raypipe.core.config import did_you_mean
    from raypipe.report.report import JSON_FORMAT

    if args.name is not None and args.name not in known.runs:
        raise ConfError(f"reproduce {args.name}: no such run; {did_you_mean(args.name, known.runs)}")
    runs = {n: r for n, r in known.runs.items() if args.name in (None, n)}
    if args.json:
        listed = {n: {**asdict(r), "expected": [asdict(e) for e in r.expected]} for n, r in runs.items()}
        published = [asdict(p) for p in known.published] if args.name is None else []
        print_json({"format": JSON_FORMAT, "runs": listed, "published": published})
        return 0
    from rich.text import Text

    out = console()
    for name, run in runs.items():
        out.print(Text(f"{name}: {run.about}; {run.minutes:g} min", "bold"), soft_wrap=True)
        out.print(Text(f"  --data: {run.data}"), soft_wrap=True)
        numbers = ", ".join(
            f"{e.measure}{f' by {e.by}' if e.by else ''} {e.value:g}" for e in run.expected[:MOST]
        )
        more = f" and {len(run.expected) - MOST} more" if len(run.expected) > MOST else ""
        out.print(Text(f"  expected: {numbers}{more}"), soft_wrap=True)
        out.print(Text(f"  raypipe reproduce {name} --check --data PATH"), soft_wrap=True)
    if args.name is None:
        out.print(Text("What papers state; their runs need models and data of their own:", "bold"))
        for p in known.published:
            out.print(Text(f"{p.recipe}: {p.states}"), soft_wrap=True)
            out.print(Text(f"  their model: {p.theirs}; data: {p.data}"), soft_wrap=True)
            out.print(Text(f"  {p.command}"), soft_wrap=True)
    return 0
