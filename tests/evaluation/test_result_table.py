"""The table of a run's results, and the predictions that are made from it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import duckdb
import pandas
import pyarrow.parquet as pq
import pytest
from small_run import small_run

from raypipe.api.scores import score_crag
from raypipe.core.errors import DataError
from raypipe.core.records import Citation, Fault, Gold, Hit, Question, Quote, Reply, chunk_id, source_id
from raypipe.evaluation.export import write_predictions
from raypipe.evaluation.result_table import (
    TEXTS,
    ResultTable,
    each,
    metadata,
    needed_texts,
    read_table,
    row,
)
from raypipe.metrics.kinds import RunScores
from raypipe.metrics.verdict_rules import mark, pair
from raypipe.runs.record import read as read_record
from raypipe.runs.run_parts import RunFolder

PAGE, OTHER = source_id("page", "<p>one</p>"), source_id("page", "<p>two</p>")
FIRST, SECOND = (Hit(chunk_id(s, (3, 9)), s, (3, 9), {"bm25": 1.5}) for s in (OTHER, PAGE))
CITED = (
    Citation("q", 2, "https://example.org/late", "", PAGE, None, None),
    Citation("q", 0, "https://example.org/a?b=1", "", PAGE, None, None),
    Citation("q", 1, "", "", OTHER, None, None),
)
WEB = Reply("Ann", "answered", 0.9, -0.5, quotes=(Quote(PAGE, (4, 6)),))


def question(id: str, answer: str, outcome: str, **more: object) -> Question:
    return replace(
        Question(id, f"who is {id}?", citations=CITED, hits=(FIRST, SECOND), order=(SECOND.chunk,)),
        answer=answer,
        outcome=outcome,
        origin="web",
        replies={"web": WEB},
        **more,
    )


QUESTIONS = [
    question("q1", "Ann", "answered"),
    question("q2", "i don't know", "abstained"),
    question("q3", "bob", "answered"),
    question("q4", "", "fault", faults=(Fault("dense", "timeout", "5 s", True),)),
    question("q5", "carl", "answered"),
]
GOLDS = {id: Gold(id, ("ann", "anna"), {"domain": "movie"}) for id in ("q1", "q2", "q3", "q4")}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run")
    rows, _ = pair(QUESTIONS, GOLDS, {})
    rows = [replace(r, judge_response='{"score": 0}') if r.question == "q3" else r for r in rows]
    marks = mark(rows, "official")
    record = small_run(run="r1", questions=5, without_truth=1, by_rule=marks.total())
    text = {c: f"text of {c[-3:]}" for q in QUESTIONS for c in needed_texts(q)}
    with ResultTable(made.results) as table:
        for batch in (QUESTIONS[:2], QUESTIONS[2:]):
            table.add([row(q, GOLDS.get(q.id), text) for q in batch])
        table.about |= {"run": "r1", "store": "/s"}
        table.finish(rows, marks, RunScores("", "", blocks=("verdicts",)))
    write_predictions(made, record)
    return made


def test_a_row_for_each_question_with_its_verdict_and_evidence(folder: RunFolder) -> None:
    rows = {r["id"]: r for r in each(folder.results, "r1")}
    assert list(rows) == ["q1", "q2", "q3", "q4", "q5"]
    verdicts = {id: (r["verdict"], r["reason"]) for id, r in rows.items()}
    assert verdicts == {
        "q1": ("exact", "equal"),
        "q2": ("missing", "abstained"),
        "q3": ("hallucination", "judge"),
        "q4": ("unscored", "no_prediction"),
        "q5": (None, None),
    }
    first = rows["q1"]
    assert first["golds"] == ["ann", "anna"] and first["labels"] == {"domain": "movie"}
    assert [h["ranked"] for h in first["hits"]] == [True, False]
    assert first["hits"][0]["url"] == "https://example.org/a?b=1"  # of the best-ranked citation
    assert first["hits"][0]["text"] == "text of 3-9"
    assert first["quotes"] == [{"source": PAGE, "start": 4, "end": 6, "text": "text of 4-6"}]
    assert first["confidence"] == 0.9 and first["replies"][0]["logprob"] == -0.5
    assert rows["q4"]["answer"] is None
    assert rows["q4"]["faults"] == [
        {"step": "dense", "reason": "timeout", "detail": "5 s", "transient": True}
    ]


VERDICTS = ["id", "verdict", "reason", "lost", "measures"]


def with_pyarrow(file: Path) -> list[tuple]:
    return [tuple(row.values()) for row in pq.read_table(file, columns=VERDICTS).to_pylist()]


def with_pandas(file: Path) -> list[tuple]:
    return list(pandas.read_parquet(file, columns=VERDICTS).itertuples(index=False))


def with_duckdb(file: Path) -> list[tuple]:
    return duckdb.sql(f"SELECT {', '.join(VERDICTS)} FROM read_parquet(?)", params=[str(file)]).fetchall()


def plain(row: tuple) -> list:
    """Maps as dicts, and what is missing as None, whichever program read them."""
    *words, measures = row
    return [None if pandas.isna(w) else w for w in words] + [dict(measures or ())]


@pytest.mark.parametrize("read", [with_pyarrow, with_pandas, with_duckdb])
def test_each_verdict_is_read_by_other_programs(read, folder: RunFolder, ran) -> None:
    run = RunFolder(ran.folder / "out")
    for file in (folder.results, run.results):
        rows = each(file, metadata(file)["run"])
        assert [plain(row) for row in read(file)] == [plain(tuple(row[c] for c in VERDICTS)) for row in rows]
    counts = Counter(row[1] for row in read(run.results))
    score = read_record(run.path).score
    right = counts["exact"] + counts["correct"]
    assert (right, counts["hallucination"], counts["missing"], counts["unscored"]) == (
        score.n_correct,
        score.n_hallucination,
        score.n_miss,
        score.n_unscored,
    )
    assert sum(counts.values()) == score.total == 6


def test_its_header_says_of_which_run_it_is(folder: RunFolder) -> None:
    assert pq.read_schema(folder.results).metadata == {b"run": b"r1", b"store": b"/s"}


def test_predictions_are_made_from_it_and_score_alike(folder: RunFolder) -> None:
    lines = [json.loads(x) for x in folder.predictions.read_text().splitlines()]
    assert [x["prediction"] for x in lines] == ["Ann", "i don't know", "bob", None, "carl"]
    assert lines[0]["hits"][1] == {"chunk": FIRST.chunk, "url": "", "span": [3, 9], "scores": {"bm25": 1.5}}
    assert lines[2]["judge_response"] and "judge_response" not in lines[0]
    found = score_crag(folder.predictions, "official")
    score = found.by_rule.score
    assert (score.n_correct, score.n_miss, score.n_hallucination) == (1, 1, 1)
    assert found.normalized == {"no_answer": 1}


def test_texts_beyond_the_best_are_left_out() -> None:
    hits = tuple(Hit(chunk_id(PAGE, (i, i + 1)), PAGE, (i, i + 1)) for i in range(TEXTS + 5))
    q = question("q", "x", "answered", hits=hits, order=(hits[-1].chunk,))
    kept = needed_texts(q)
    assert hits[-1].chunk in kept and chunk_id(PAGE, (4, 6)) in kept  # ranked, and quoted
    found = row(q, None, dict.fromkeys(kept, "t"))
    assert sum(h["text"] is not None for h in found["hits"]) == TEXTS
    assert found["hits"][0]["url"] == "https://example.org/a?b=1"
    assert row(replace(q, citations=None), None, dict.fromkeys(kept, "t"))["hits"][0]["url"] is None


def test_nothing_half_made_stays(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), ResultTable(tmp_path / "results.parquet") as table:
        table.add([row(QUESTIONS[0], None, dict.fromkeys(needed_texts(QUESTIONS[0]), ""))])
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [None, b"", b"PAR1 not quite"])
def test_a_file_that_is_none_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "results.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"results\.parquet: expected the table of a finished eval"):
        read_table(path)
