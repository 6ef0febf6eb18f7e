"""A run's results in the shapes that other programs read."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.error import HTTPError
from urllib.request import urlopen

from raypipe.api.paths import require_file
from raypipe.api.results import Result, as_json
from raypipe.core import arrow
from raypipe.core.errors import ConfError, DataError, Unavailable
from raypipe.evaluation.export import FileShape
from raypipe.evaluation.export import export as write
from raypipe.report.report import RunFolder
from raypipe.runs.manifest import read
from raypipe.store import Store

Shape: TypeAlias = Literal[FileShape, "mlflow"]
EXPERIMENT = "raypipe"  # of MLflow, where none is named
ANSWERS_S = 10  # seconds within which a server's health page comes; our choice


@dataclass(frozen=True, slots=True)
class ExportResult(Result):
    """What was written; one row."""

    file: str  # of `mlflow`: the address of the tracking server
    shape: Shape
    counts: Mapping[str, int]  # lines, and failed questions; of `mlflow` params, metrics and artifacts
    run: str = ""  # of `mlflow`: the id of the run there
    there: bool = False  # of `mlflow`: the run was there already, and nothing was written

    def to_json(self) -> dict[str, Any]:
        there = {"run": self.run, "there": self.there} if self.shape == "mlflow" else {}
        return as_json(file=self.file, shape=self.shape, **self.counts, **there)


def export_run(run: str | Path, shape: Shape, out: str | Path, experiment: str | None = None) -> ExportResult:
    """Writes the results of a finished eval in another shape: `predictions` (predictions.jsonl), `crag` (what
    CRAG's evaluation reads), `trec` (the ranking), `oag` (OAG-QA's submission: the best 20 papers), or
    `mlflow`: a run of the MLflow server at the address `out`, in `experiment`; None: in one called raypipe.

    `run` is the folder of the eval. The documents of a collection are named by their ids, which the run's
    store knows; pages by their addresses. Raises DataError, ConfError where MLflow is not installed or an
    experiment is named for a file, Unavailable where its server does not take the run.
    """
    folder = RunFolder(Path(run))
    if shape == "mlflow":
        return _to_mlflow(folder, str(out), experiment or EXPERIMENT)
    if experiment is not None:
        raise ConfError(f"--experiment: expected with --as mlflow, found --as {shape}")
    if Path(out).resolve() in (folder.results.resolve(), folder.manifest.resolve()):
        raise DataError(f"{out}: expected another file: this one belongs to the run")
    require_file(out, "--out")
    listed: dict[str, list[str]] = {}
    if shape in ("trec", "oag"):
        for d in arrow.document.records(Store.open(read(folder.path).store).scan("documents")):
            listed.setdefault(d.source, []).append(d.id)
    return ExportResult(str(out), shape, write(folder, shape, Path(out), listed))


def _to_mlflow(folder: RunFolder, address: str, experiment: str) -> ExportResult:
    if importlib.util.find_spec("mlflow") is None:
        raise ConfError(
            "--as mlflow: MLflow is not installed. `pip install 'raypipe[mlflow]'` installs its client"
        )
    _require_server(address)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    from raypipe.evaluation.mlflow_run import log_run

    try:
        made = log_run(folder, MlflowClient(tracking_uri=address), experiment)
    except MlflowException as e:
        raise Unavailable(
            f"--out {address}: expected an MLflow server that takes a run, such as http://127.0.0.1:5000; "
            f"it says: {str(e).rstrip('.')}. Mend that and run the same command again"
        ) from e
    counts = {"params": made.params, "metrics": made.metrics, "artifacts": made.artifacts}
    return ExportResult(address, "mlflow", counts, made.id, made.there)


def _require_server(address: str) -> None:
    """Raises Unavailable where nothing answers at the address of a server: MLflow's client would try for
    minutes and say nothing meanwhile. Any reply is one, and other addresses are left to the client."""
    if not address.startswith(("http://", "https://")):
        return
    try:
        with urlopen(f"{address.rstrip('/')}/health", timeout=ANSWERS_S):
            return
    except HTTPError:
        return
    except (OSError, ValueError, HTTPException) as e:
        why = getattr(e, "reason", None) or e
        raise Unavailable(
            f"--out {address}: expected an MLflow server, found none that answers ({why}). Nothing was sent, "
            "and the run's folder is as it was. Start the server, or name another address, and run the same "
            "command again"
        ) from e
