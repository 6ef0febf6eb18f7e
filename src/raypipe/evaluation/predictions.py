"""predictions.jsonl of a run, made from its table of results: a line for each question."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow.parquet as pq

from raypipe.evaluation.result_table import each, read_table
from raypipe.metrics.textfile import replaced
from raypipe.report.report import RunFolder


def write_predictions(folder: RunFolder) -> None:
    """Writes predictions.jsonl, as `raypipe score crag` reads it."""
    with replaced(folder.predictions) as out:
        for line in prediction_lines(folder):
            out.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")


def prediction_lines(folder: RunFolder) -> Iterator[dict[str, Any]]:
    """The lines of predictions.jsonl."""
    read_table(folder.results, ["id"])
    about = pq.read_schema(folder.results).metadata
    for found in each(folder.results):
        yield _prediction(found, about[b"rule"].decode(), about[b"judge"].decode())


def _prediction(found: Mapping[str, Any], rule: str, judge: str) -> dict[str, Any]:
    line = {
        "id": found["id"],
        "query": found["query"],
        "prediction": found["answer"],
        "outcome": found["outcome"],
        "source": found["origin"],
        "answer": found["golds"][0] if found["golds"] else None,
        "alternatives": found["golds"][1:],
        "verdict": found["verdict"],
        "labels": found["labels"],
    }
    if judge:
        line["judge"] = judge
    if found["judge_response"] is not None:
        line |= {"judge_response": found["judge_response"], "judge_rule": rule}
    line["hits"] = [
        {"chunk": h["chunk"], "url": h["url"], "span": [h["start"], h["end"]], "scores": h["scores"]}
        for h in found["hits"]
    ]
    return line
