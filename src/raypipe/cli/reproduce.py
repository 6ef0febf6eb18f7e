"""The command `reproduce`: runs held against expected numbers, and what the papers' own numbers need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raypipe.cli.command import Args, arg, called, command, console, printed
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
        return printed(args, called(reproductions, args), _list)
    if args.data is None:
        run = called(reproductions, args).runs[args.name]
        raise ConfError(f"--check: expected --data, {run.data}")
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


def _list(known: Reproductions) -> None:
    from rich.text import Text

    out = console()
    for name, run in known.runs.items():
        out.print(Text(f"{name}: {run.about}; {run.minutes:g} min", "bold"), soft_wrap=True)
        out.print(Text(f"  --data: {run.data}"), soft_wrap=True)
        numbers = ", ".join(
            f"{e.measure}{f' by {e.by}' if e.by else ''} {e.value:g}" for e in run.expected[:MOST]
        )
        more = f" and {len(run.expected) - MOST} more" if len(run.expected) > MOST else ""
        out.print(Text(f"  expected: {numbers}{more}"), soft_wrap=True)
        out.print(Text(f"  raypipe reproduce {name} --check --data PATH"), soft_wrap=True)
    if known.published:
        out.print(Text("What papers state; their runs need models and data of their own:", "bold"))
        for p in known.published:
            out.print(Text(f"{p.recipe}: {p.states}"), soft_wrap=True)
            out.print(Text(f"  their model: {p.theirs}; data: {p.data}"), soft_wrap=True)
            out.print(Text(f"  {p.command}"), soft_wrap=True)
