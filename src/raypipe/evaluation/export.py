"""Files of other shapes, made from a run's table of results: predictions, submissions, a TREC run.

Knows the table; changes nothing of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from raypipe.core.errors import DataError
from raypipe.core.records import IDK, parse_chunk_id
from raypipe.evaluation.predictions import prediction_lines
from raypipe.evaluation.result_table import each
from raypipe.metrics.ranking import write_run
from raypipe.metrics.textfile import replaced
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
    made: Mapping[FileShape, Callable[[], dict[str, int]]] = {
        "predictions": lambda: _predictions(folder, out),
        "crag": lambda: _crag(folder, out),
        "trec": lambda: _trec(folder, out, documents),
        "oag": lambda: _oag(folder, out, documents),
    }
    return made[shape]()


def _predictions(folder: RunFolder, out: Path) -> dict[str, int]:
    lines = 0
    with replaced(out) as stream:
        for line in prediction_lines(folder):
            stream.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
            lines += 1
    return {"lines": lines}


def _crag(folder: RunFolder, out: Path) -> dict[str, int]:
    """What CRAG's evaluation takes: question, answer and prediction, as texts. A question that failed has no
    answer; CRAG has no word for it but "i don't know", and it is counted."""
    lines = failed = 0
    with replaced(out) as stream:
        for row in each(folder.results):
            failed += row["answer"] is None
            line = {
                "interaction_id": row["id"],
                "query": row["query"],
                "query_time": row["asked_at"],
                "answer": row["golds"][0] if row["golds"] else None,
                "alt_ans": row["golds"][1:],
                "prediction": IDK if row["answer"] is None else row["answer"],
            }
            stream.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
            lines += 1
    return {"lines": lines, "failed": failed}


def _trec(
    folder: RunFolder, out: Path, documents: Mapping[str, list[str]] = MappingProxyType({})
) -> dict[str, int]:
    """The ranking: a document's place is that of its best passage; scores are falling numbers."""
    run: dict[str, dict[str, float]] = {}
    for row in each(folder.results):
        ranked = _ranked(row, documents)
        if odd := next((name for name in ranked if len(name.split()) != 1), None):
            raise DataError(
                f"{folder.results}: question {row['id']}: {odd!r} is no name that a TREC run can hold"
            )
        run[row["id"]] = {name: float(len(ranked) - i) for i, name in enumerate(ranked)}
    _require_ranking(folder, run.values())
    write_run(out, run, "raypipe")
    return {"lines": sum(map(len, run.values()))}


def _oag(folder: RunFolder, out: Path, documents: Mapping[str, list[str]]) -> dict[str, int]:
    """OAG-QA's submission: a line for each question, by id and so as its file has them; the ids of its best
    papers with commas between them. The line of a question that failed is empty, and counted."""
    run = {row["id"]: _ranked(row, documents)[:SUBMITTED] for row in each(folder.results)}
    _require_ranking(folder, run.values())
    if odd := next((name for names in run.values() for name in names if set(name) & set(",\n\r")), None):
        raise DataError(f"{folder.results}: {odd!r} is no id that a list with commas can hold")
    with replaced(out) as stream:
        for id in sorted(run):
            stream.write(",".join(run[id]) + "\n")
    return {"lines": len(run), "failed": sum(not names for names in run.values())}


def _ranked(row: Mapping[str, Any], documents: Mapping[str, list[str]]) -> list[str]:
    """The documents of a question, each at the place of its best passage."""
    found: dict[str, None] = {}
    for hit in row["hits"]:
        if hit["ranked"]:
            source, _ = parse_chunk_id(hit["chunk"])
            for name in documents.get(source) or [hit["url"] or source]:
                found.setdefault(name)
    return list(found)


def _require_ranking(folder: RunFolder, rankings: Collection[Collection[str]]) -> None:
    if not any(rankings):
        raise DataError(f"{folder.results}: expected a ranking, found none: the recipe ranks nothing")
