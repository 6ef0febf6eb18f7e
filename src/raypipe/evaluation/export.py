"""Exports of a finished run: predictions, submissions to benchmarks, a TREC run, and a run in MLflow.

Reads the run's folder and its table. The caller passes in MLflow's client, so MLflow is not imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from raypipe.core.errors import DataError
from raypipe.core.records import FLOAT, IDK, digest, parse_chunk_id
from raypipe.core.textfile import replaced, write_json_lines
from raypipe.evaluation.result_table import each, open_table, read_table
from raypipe.metrics.kinds import said_of_paper
from raypipe.metrics.ranking import write_run
from raypipe.runs.record import Run, read
from raypipe.runs.run_parts import RunFolder
from raypipe.runs.stage_records import recipe_text, recipe_values

FileShape = Literal["predictions", "crag", "qasper", "trec", "oag"]
SUBMITTED = 20  # papers per question in OAG-QA's submission


def export(
    folder: RunFolder, shape: FileShape, out: Path, documents: Mapping[str, list[str]]
) -> dict[str, int]:
    """Writes a run to the file `out` in one shape. Returns the number of lines. For crag, qasper and oag,
    also returns the number of failed questions: crag gives them "i don't know", qasper omits them, oag gives
    them an empty line. `documents` maps source ids to the ids of documents with this text; a passage without
    one is named by its page's address or its source id. Raises DataError for a run that the shape cannot
    hold."""
    table = folder.results
    if shape == "predictions":
        return {"lines": write_json_lines(out, prediction_lines(folder, read(folder.path)))}
    if shape in ("crag", "qasper"):
        failed = read_table(table, ["answer"])["answer"].null_count
        rows = (row for row in each(table) if shape == "crag" or row["answer"] is not None)
        line = _crag_line if shape == "crag" else _qasper_line
        return {"lines": write_json_lines(out, map(line, rows)), "failed": failed}
    run = dict[str, list[str]]()  # question -> documents, each at the rank of its best passage
    for row in each(table):
        ranked = [(parse_chunk_id(h["chunk"])[0], h["url"]) for h in row["hits"] if h["ranked"]]
        named = (name for source, url in ranked for name in documents.get(source) or [url or source])
        run[row["id"]] = list(dict.fromkeys(named))
    if not any(run.values()):
        raise DataError(f"{table}: expected a ranking, found none: the recipe ranks nothing")
    if shape == "trec":  # a document ranks where its best passage does; scores are falling numbers
        for id, names in run.items():
            if odd := next((n for n in names if len(n.split()) != 1), None):
                raise DataError(f"{table}: question {id}: {odd!r} is no name that a TREC run can hold")
        scores = {id: {n: float(len(names) - i) for i, n in enumerate(names)} for id, names in run.items()}
        write_run(out, scores, "raypipe")
        return {"lines": sum(map(len, run.values()))}
    # OAG-QA's submission: a line per question, sorted by id as in its own file; empty if the question failed.
    best = {id: run[id][:SUBMITTED] for id in sorted(run)}
    if odd := next((n for names in best.values() for n in names if set(n) & set(",\n\r")), None):
        raise DataError(f"{table}: {odd!r} is no id that a list with commas can hold")
    with replaced(out) as stream:
        stream.writelines(",".join(names) + "\n" for names in best.values())
    return {"lines": len(best), "failed": sum(not names for names in best.values())}


def write_predictions(folder: RunFolder, record: Run) -> None:
    write_json_lines(folder.predictions, prediction_lines(folder, record))


def prediction_lines(folder: RunFolder, record: Run) -> Iterator[dict[str, Any]]:
    """Yields the lines of predictions.jsonl, one per question."""
    judge, rule = record.judged_by, record.rule
    for row in each(folder.results, record.run):
        line = {
            "id": row["id"],
            "query": row["query"],
            "prediction": row["answer"],
            "outcome": row["outcome"],
            "source": row["origin"],
            "answer": row["golds"][0] if row["golds"] else None,
            "alternatives": row["golds"][1:],
            "verdict": row["verdict"],
            "labels": row["labels"],
        }
        if judge:
            line["judge"] = judge
        if row["judge_response"] is not None:
            line |= {"judge_response": row["judge_response"], "judge_rule": rule}
        hits = [
            {"chunk": h["chunk"], "url": h["url"], "span": [h["start"], h["end"]], "scores": h["scores"]}
            for h in row["hits"]
        ]
        yield {**line, "hits": hits}


def _crag_line(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a line for CRAG's evaluation, in which a failed question has the answer "i don't know"."""
    return {
        "interaction_id": row["id"],
        "query": row["query"],
        "query_time": row["asked_at"],
        "answer": row["golds"][0] if row["golds"] else None,
        "alt_ans": row["golds"][1:],
        "prediction": IDK if row["answer"] is None else row["answer"],
    }


def _qasper_line(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a line for QASPER's evaluator. The answer has the form that the kind `qasper` scores."""
    answer, evidence = said_of_paper(row["answer"], row["evidence"])
    marked = [f"{FLOAT}: {e}" if re.match(r"(Figure|Table) \d", e) else e for e in evidence]  # captions
    return {"question_id": row["id"], "predicted_answer": answer, "predicted_evidence": marked}


RUN_TAG = "raypipe.run"  # tag with the run's id, by which a logged run is found
MOST_CHARS = 500
"""Most characters of a param's value, set by servers of MLflow before 2.8. A longer text is logged as its
digest; the logged recipe.txt has prompts in full."""
FINISHED = "FINISHED"  # MLflow's status of a complete run


@dataclass(frozen=True, slots=True)
class MlflowRun:
    """A run as logged in MLflow."""

    id: str  # id in MLflow
    params: int
    metrics: int
    artifacts: int  # logged files
    there: bool  # True: it was already logged, so nothing was sent


def log_run(folder: RunFolder, client: Any, experiment: str) -> MlflowRun:
    """Logs a finished run to MLflow. If MLflow has a complete log of the run, sends nothing; an incomplete
    log is replaced. After an error, deletes what was sent, if the server can be reached."""
    record = read(folder.path)
    open_table(folder.results, ["id"], record.run).close()  # raises DataError without the run's table
    metrics = {_name(key): float(value) for key, value in _numbers(record) if value is not None}
    texts = {
        "recipe": record.title,
        "recipe_digest": record.digest,
        "data.kind": record.kind,
        "data.questions": str(record.questions),
        "data.snapshot": record.snapshot,
        "scored.rule": record.rule,
        "scored.judge": record.judged_by,
        "device": f"{record.backend} on {record.device}",
        "commit": record.origin.commit,
        **{f"recipe.{path}": value for path, value in recipe_values(record.recipe)},
    }
    named = {_name(key): text for key, text in texts.items() if text}
    long = {key: text for key, text in named.items() if len(text) > MOST_CHARS}
    params = named | {key: f"{len(t)} characters, digest {digest(t)}" for key, t in long.items()}
    kept = (folder.page, folder.results, folder.predictions, folder.record)
    files = [f for f in kept if f.is_file()]
    known = client.get_experiment_by_name(experiment)
    place = client.create_experiment(experiment) if known is None else known.experiment_id
    counts = len(params), len(metrics), len(files) + 1
    for run in client.search_runs([place], f"tags.`{RUN_TAG}` = '{record.run}'"):
        if run.info.status == FINISHED:
            return MlflowRun(run.info.run_id, *counts, there=True)
        client.delete_run(run.info.run_id)
    began, ended = (int(1000 * seconds) for seconds in (record.started, record.finished))
    name = f"{record.title} {record.run[:8]}"
    made: str = client.create_run(place, began, {RUN_TAG: record.run}, name).info.run_id
    try:
        for key, value in params.items():
            client.log_param(made, key, value)
        for key, number in metrics.items():
            client.log_metric(made, key, number, ended)
        client.log_text(made, recipe_text(record.recipe), "recipe.txt")
        for file in files:
            client.log_artifact(made, str(file))
        client.set_terminated(made, FINISHED, ended)
    except BaseException:
        with suppress(Exception):  # a server that is gone keeps the half; the next export deletes it
            client.delete_run(made)
        raise
    return MlflowRun(made, *counts, there=False)


def _numbers(record: Run) -> Iterator[tuple[str, float | None]]:
    """Yields a run's measured numbers by name. An unknown number, such as a mean of no values, is None."""
    for m in record.measures:
        yield m.measure, m.mean
        yield f"{m.measure}.scored", m.scored
        for end, value in zip(("low", "high"), m.interval or (), strict=False):
            yield f"{m.measure}.{end}", value
    if (score := record.score) is not None:
        for name in ("score", "accuracy", "hallucination", "missing"):
            yield name, getattr(score, name)
        yield "unscored", score.n_unscored
    yield from (("questions", record.questions), ("faults", record.failed_rows), ("seconds", record.seconds))
    for place in record.losses.places if record.losses else ():
        yield f"lost.{place.loss}", place.questions
    for name, value in asdict(record.cost.actual).items() if record.cost else ():
        yield f"cost.{name}", value
    for s in record.steps:
        yield f"step.{s.step}.seconds", s.seconds
        yield f"step.{s.step}.computed", s.computed


def _name(text: str) -> str:
    """Replaces characters that MLflow refuses in names, and the slash. MLflow's file store makes a folder for
    the part before a slash, and fails if a file has the same name."""
    return re.sub(r"[^\w. -]", "-", text, flags=re.ASCII)
