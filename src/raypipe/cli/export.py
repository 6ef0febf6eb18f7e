"""The command `export`."""

from __future__ import annotations

import argparse

from raypipe.api.settings import Settings
from raypipe.cli import options


def add(commands: options.Commands) -> None:
    """Declares `export`."""
    made = options.command(
        commands, "export", "raypipe export /data/runs/local --as trec --out local.trec", _export
    )
    made.add_argument("run_folder", metavar="RUN", help="the --out folder of a finished eval")
    made.add_argument(
        "--as",
        dest="shape",
        choices=("predictions", "crag", "trec", "oag", "mlflow"),
        required=True,
        help="predictions: as predictions.jsonl; crag: what CRAG's evaluation reads; trec: the ranking; "
        "oag: OAG-QA's submission, a line of 20 papers a question; mlflow: a run of an MLflow server",
    )
    made.add_argument(
        "--out", metavar="FILE", required=True, help="the file to write; of mlflow the server's address"
    )
    made.add_argument(
        "--experiment",
        metavar="NAME",
        help="of mlflow: the experiment that gets the run (default: raypipe)",
    )
    options.as_json(made)


def _export(args: argparse.Namespace, settings: Settings) -> int:
    from raypipe.api.export import export_run

    found = export_run(args.run_folder, args.shape, args.out, args.experiment).to_json()
    if args.json:
        options.print_json(found)
        return 0
    if args.shape == "mlflow":
        what = f"{found['params']} params, {found['metrics']} metrics, {found['artifacts']} files"
        said = "was there already" if found["there"] else what
        print(f"run {found['run']} of {found['file']}: {said}")
        return 0
    print(f"{found['lines']} lines: {found['file']}")
    if found.get("failed"):
        said = "their lines are empty" if args.shape == "oag" else 'the file says "i don\'t know" of them'
        print(f"{found['failed']} questions failed; {said}")
    return 0
