"""A finished run as a run of MLflow: recipe and data as params, measures and costs as metrics, its files.

Knows the run's folder and the calls of MLflow's client; imports no MLflow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from raypipe.core.records import digest
from raypipe.evaluation.result_table import about
from raypipe.evaluation.view.run_page import read_report
from raypipe.report.report import RunFolder
from raypipe.runs.manifest import Manifest, read
from raypipe.runs.stage_records import recipe_text, recipe_values

RUN_TAG = "raypipe.run"  # by which a run that is there already is found
MOST_CHARS = 500  # of a param: servers of MLflow before 2.8 take no more; the recipe's text has prompts whole
FINISHED = "FINISHED"  # MLflow's word for a run that is whole


@dataclass(frozen=True, slots=True)
class MlflowRun:
    """A run as MLflow has it."""

    id: str  # MLflow's
    params: int
    metrics: int
    artifacts: int  # files
    there: bool  # True: it had been logged before, and nothing was


def log_run(folder: RunFolder, client: Any, experiment: str) -> MlflowRun:
    """Logs a finished run with a client of MLflow, whole or not at all: one that broke off is deleted and
    logged again, one that is there is left as it is. Raises DataError for a folder of no finished run."""
    about(folder.results)  # raises for a folder without a table
    manifest, report = read(folder.path), read_report(folder)
    metrics = {_name(key): float(value) for key, value in _numbers(report) if value is not None}
    params = params_of(manifest)
    kept = (folder.page, folder.report, folder.results, folder.predictions, folder.manifest)
    files = [f for f in kept if f.is_file()]
    known = client.get_experiment_by_name(experiment)
    place = client.create_experiment(experiment) if known is None else known.experiment_id
    counts = len(params), len(metrics), len(files) + 1
    for run in client.search_runs([place], f"tags.`{RUN_TAG}` = '{manifest.run}'"):
        if run.info.status == FINISHED:
            return MlflowRun(run.info.run_id, *counts, there=True)
        client.delete_run(run.info.run_id)
    began, ended = (int(1000 * seconds) for seconds in (manifest.started, manifest.finished))
    name = f"{report['recipe']} {manifest.run[:8]}"
    made: str = client.create_run(place, began, {RUN_TAG: manifest.run}, name).info.run_id
    for key, value in params.items():
        client.log_param(made, key, value)
    for key, number in metrics.items():
        client.log_metric(made, key, number, ended)
    client.log_text(made, recipe_text(manifest.recipe), "recipe.txt")
    for file in files:
        client.log_artifact(made, str(file))
    client.set_terminated(made, FINISHED, ended)
    return MlflowRun(made, *counts, there=False)


def params_of(manifest: Manifest) -> dict[str, str]:
    """What a run was made of. A text that is too long for a param stands there as its digest."""
    found = {
        "recipe": manifest.recipe["name"],
        "recipe_digest": manifest.digest,
        "data/kind": manifest.kind or "crag",
        "data/questions": str(manifest.questions),
        "data/snapshot": manifest.snapshot,
        "scored/rule": manifest.rule,
        "scored/judge": manifest.judge,
        "device": f"{manifest.backend} on {manifest.device}",
        "commit": manifest.origin.commit,
    }
    found |= {f"recipe/{path}": value for path, value in recipe_values(manifest.recipe)}
    return {
        _name(key): v if len(v) <= MOST_CHARS else f"{len(v)} characters, digest {digest(v)}"
        for key, v in found.items()
        if v
    }


def _numbers(report: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    """What a report measures. What is not known, such as a mean of nothing, is None."""
    for m in report["measures"]:
        yield m["measure"], m["mean"]
        yield f"{m['measure']}/scored", m["scored"]
        for end, value in zip(("low", "high"), m["interval"] or (), strict=False):
            yield f"{m['measure']}/{end}", value
    if "verdicts" in report["blocks"]:
        for name in ("score", "accuracy", "hallucination", "missing"):
            yield name, report[name]
    for name in ("questions", "unscored", "faults", "seconds"):
        yield name, report[name]
    for place in (report["losses"] or {"places": ()})["places"]:
        yield f"lost/{place['loss']}", place["questions"]
    if report["cost"]:
        for name, value in report["cost"]["actual"].items():
            yield f"cost/{name}", value
    for s in report["steps"]:
        yield f"step/{s['step']}/seconds", s["seconds"]
        yield f"step/{s['step']}/computed", s["computed"]


def _name(text: str) -> str:
    """As MLflow takes names on every system: letters, digits and _ - . / and spaces."""
    return re.sub(r"[^\w./ -]", "-", text, flags=re.ASCII)
