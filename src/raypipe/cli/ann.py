"""The command `ann`: approximate indexes of vectors, built and measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raypipe.cli.command import Args, arg, at_least, called, command, console, printed

if TYPE_CHECKING:
    from raypipe.api.ann import AnnResult


@command(
    "ann",
    "raypipe ann my-recipe --store /data/store",
    "recipe sets store cluster",
    arg("--questions N", "stored questions on which recall is measured (200)", at_least(1), 200),
    arg(
        "--rebuild",
        "replace indexes that are there; questions of the whole store are then answered again",
    ),
    "json",
)
def _ann(args: Args) -> int:
    from raypipe.api.ann import build_ann

    found = called(build_ann, args, check=False)
    printed(args, found, _print)
    found.check_recall()
    return 0


def _print(found: AnnResult) -> None:
    from rich.text import Text

    from raypipe.report.wording import ann_lines

    out, rows = console(), list(found.rows())
    for row, line in zip(rows, ann_lines({"ann": rows}), strict=True):
        built = "built" if row["built"] else "was there"
        out.print(Text(f"{row['stage']}: {row['index']}, {built}"), soft_wrap=True)
        out.print(Text(f"  {line}; the worst is question {row['worst_question']}"), soft_wrap=True)
