"""Files of other shapes, made from a run's table of results: predictions, submissions, a TREC run.

Knows the table; changes nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from raypipe.core.errors import DataError
from raypipe.core.records import IDK, parse_chunk_id
from raypipe.evaluation.result_table import about, each, read_table
from raypipe.metrics.ranking import write_run
from raypipe.metrics.textfile import replaced, write_json_lines
from raypipe.report.report import RunFolder

FileShape = Literal["predictions", "crag", "trec", "oag"]
SUBMITTED = 20  # papers of a question in OAG-QA's submission


def export(
    folder: RunFolder, shape: FileShape, out: Path, documents: Mapping[str, list[str]]
) -> dict[str, int]:
    """Writes a file of one shape and counts its lines, and what it had to say otherwise.

    `documents`: source id -> ids of the documents of a collection that have this text; a passage of none is
    known by its page's address. Raises DataError for a folder without a table, and for a ranking of nothing.
    """
    table = folder.results
    if shape == "predictions":
        return {"lines": write_json_lines(out, prediction_lines(folder))}
    if shape == "crag":
        failed = read_table(table, ["answer"])["answer"].null_count
        return {"lines": write_json_lines(out, map(_crag_line, each(table))), "failed": failed}
    run = {row["id"]: _ranked(row, documents) for row in each(table)}
    if not any(run.values()):
        raise DataError(f"{table}: expected a ranking, found none: the recipe ranks nothing")
    if shape == "trec":  # a document's place is that of its best passage; scores are falling numbers
        for id, names in run.items():
            if odd := next((n for n in names if len(n.split()) != 1), None):
                raise DataError(f"{table}: question {id}: {odd!r} is no name that a TREC run can hold")
        scores = {id: {n: float(len(names) - i) for i, n in enumerate(names)} for id, names in run.items()}
        write_run(out, scores, "raypipe")
        return {"lines": sum(map(len, run.values()))}
    # OAG-QA's submission: a line for each question, by id and so as its file has them; empty where it failed.
    best = {id: run[id][:SUBMITTED] for id in sorted(run)}
    if odd := next((n for names in best.values() for n in names if set(n) & set(",\n\r")), None):
        raise DataError(f"{table}: {odd!r} is no id that a list with commas can hold")
    with replaced(out) as stream:
        stream.writelines(",".join(names) + "\n" for names in best.values())
    return {"lines": len(best), "failed": sum(not names for names in best.values())}


def write_predictions(folder: RunFolder) -> None:
    write_json_lines(folder.predictions, prediction_lines(folder))


def prediction_lines(folder: RunFolder) -> Iterator[dict[str, Any]]:
    """The lines of predictions.jsonl, one for each question."""
    known = about(folder.results)
    judge, rule = known["judge"], known["rule"]
    for row in each(folder.results):
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
    """What CRAG's evaluation takes: question, answer and prediction, as texts. A question that failed has no
    answer; CRAG has no word for it but "i don't know"."""
    return {
        "interaction_id": row["id"],
        "query": row["query"],
        "query_time": row["asked_at"],
        "answer": row["golds"][0] if row["golds"] else None,
        "alt_ans": row["golds"][1:],
        "prediction": IDK if row["answer"] is None else row["answer"],
    }


def _ranked(row: Mapping[str, Any], documents: Mapping[str, list[str]]) -> list[str]:
    """The documents of a question, each at the place of its best passage."""
    found: dict[str, None] = {}
    for hit in row["hits"]:
        if hit["ranked"]:
            source, _ = parse_chunk_id(hit["chunk"])
            found |= dict.fromkeys(documents.get(source) or [hit["url"] or source])
    return list(found)
