"""The command `export`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raypipe.cli.command import Args, arg, called, command, printed

if TYPE_CHECKING:
    from raypipe.api.export import ExportResult


@command(
    "export",
    "raypipe export /data/runs/local --as trec --out local.trec",
    arg("run RUN", "the --out folder of a finished eval"),
    arg(
        "--as",
        "predictions: as predictions.jsonl; crag: what CRAG's evaluation reads; trec: the ranking; "
        "oag: OAG-QA's submission, a line of 20 papers a question; mlflow: a run of an MLflow server",
        dest="shape",
        choices=("predictions", "crag", "trec", "oag", "mlflow"),
        required=True,
    ),
    arg("--out FILE", "the file to write; of mlflow the server's address", required=True),
    arg("--experiment NAME", "of mlflow: the experiment that gets the run (default: raypipe)"),
    "json",
)
def _export(args: Args) -> int:
    from raypipe.api.export import export_run

    return printed(args, called(export_run, args), _print)


def _print(made: ExportResult) -> None:
    if made.shape == "mlflow":
        what = ", ".join(f"{n} {name}" for name, n in made.counts.items()).replace("artifacts", "files")
        print(f"run {made.run} of {made.file}: {'was there already' if made.there else what}")
        return
    print(f"{made.counts['lines']} lines: {made.file}")
    if failed := made.counts.get("failed"):
        said = "their lines are empty" if made.shape == "oag" else 'the file says "i don\'t know" of them'
        print(f"{failed} questions failed; {said}")
