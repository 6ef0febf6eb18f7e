"""Files of predictions: what is normalised, what is refused, and how the message helps."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raypipe.api.scores import score_crag
from raypipe.core.errors import DataError
from raypipe.core.textfile import replaced
from raypipe.metrics.prediction_files import read_predictions

ROW = {"query": "who?", "answer": "ann", "prediction": "ann"}


def written(path: Path, *rows: Any) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def test_numbers_stand_for_their_text_and_are_counted(tmp_path: Path) -> None:
    rows = [{**ROW, "answer": 7, "prediction": "7"}, {**ROW, "alternatives": [1.5], "prediction": "1.5"}]
    found = score_crag(written(tmp_path / "p.jsonl", *rows, ""), "official")
    assert (found.by_rule.score.n_correct_exact, found.by_rule.score.total) == (2, 2)
    assert found.normalized == {"answer_number": 1, "alternatives_number": 1, "blank_line": 1}


def test_byte_order_mark_crlf_and_gzip_change_nothing(tmp_path: Path) -> None:
    text = "\ufeff" + json.dumps(ROW) + "\r\n" + json.dumps({**ROW, "prediction": "b\u2028c"}) + "\r\n"
    plain, packed = tmp_path / "p.jsonl", tmp_path / "p.jsonl.gz"
    plain.write_bytes(text.encode())
    packed.write_bytes(gzip.compress(text.encode()))
    found = read_predictions(plain, "official")
    assert found == read_predictions(packed, "official")
    assert [r.prediction for r in found.rows] == ["ann", "b\u2028c"]


def test_a_null_prediction_says_that_the_question_could_not_be_done(tmp_path: Path) -> None:
    found = score_crag(written(tmp_path / "p.jsonl", ROW, {**ROW, "prediction": None}), "accuracy")
    score = found.by_rule.score
    assert (score.score, score.n_unscored, score.total) == (1, 1, 2)


def test_a_table_is_refused_by_its_kind(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("query,answer,prediction\na,b,b\n")
    with pytest.raises(DataError, match=r"expected lines of JSON .*, found \.csv"):
        score_crag(tmp_path / "p.csv", "official")


def test_an_answer_of_null_is_not_scored_and_counted(tmp_path: Path) -> None:
    found = score_crag(written(tmp_path / "p.jsonl", ROW, {**ROW, "answer": None}), "official")
    assert (found.by_rule.score.score, found.by_rule.score.total) == (1, 1)
    assert found.normalized == {"no_answer": 1}


def test_a_number_that_a_table_made_a_fraction_is_the_whole_number(tmp_path: Path) -> None:
    row = {**ROW, "answer": 2011.0, "alternatives": [5.5], "prediction": "2011"}
    assert score_crag(written(tmp_path / "p.jsonl", row), "official").by_rule.score.n_correct_exact == 1


REPLIES = {
    "official": ('{"score": 1, "explanation": "true to it"}', '{"score": 0, "explanation": "no"}'),
    "accuracy": ("Accuracy: True", "false"),
}


@pytest.mark.parametrize(("rule", "other"), [("official", "accuracy"), ("accuracy", "official")])
def test_replies_most_of_which_fit_another_rule_are_refused_with_its_name(
    tmp_path: Path, rule: str, other: str
) -> None:
    open_rows = [{**ROW, "prediction": "b", "judge_response": r} for r in (*REPLIES[other], REPLIES[rule][0])]
    file = written(tmp_path / "p.jsonl", ROW, *open_rows)
    with pytest.raises(DataError, match=f"2 of 3 are .*: score with --rule {other}"):
        score_crag(file, rule)
    assert score_crag(file, other).by_rule.score.total == 4
    nonsense = [{**ROW, "prediction": "b", "judge_response": r} for r in ("yes", "no")]
    with pytest.raises(DataError, match=r"found 0 in 2; the others fit no other rule"):
        score_crag(written(tmp_path / "p.jsonl", *nonsense), rule)


@pytest.mark.parametrize("number", range(1, 15))
def test_a_published_run_has_its_published_score_by_the_rule_that_the_refusal_names(
    data: Path, number: int
) -> None:
    [run] = [
        r
        for r in json.loads((data / "crag" / "runs_index.json").read_text())
        if f"-{number:02d}." in r["file"]
    ]
    with pytest.raises(DataError, match="score with --rule accuracy"):
        score_crag(data / "crag" / run["file"])
    found = score_crag(data / "crag" / run["file"], "accuracy").by_rule.score
    assert {name: getattr(found, name) for name in run["published"]} == pytest.approx(run["published"])


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        ('{"query": "who?", "answer"', "a JSON object"),
        ("[1]", "a JSON object"),
        ('{"query": "who?", "answer": NaN, "prediction": "a"}', "NaN is not JSON"),
        ("[" * 100_000, "a JSON object"),
        ({"query": "who?", "answer": "a"}, "a field 'prediction'"),
        ({**ROW, "answer": ["a"]}, "text as 'answer'"),
        ({**ROW, "answer": True}, "text as 'answer'"),
        ({**ROW, "answer": " "}, "an answer to score against"),
        ({**ROW, "alternatives": "[]"}, "a list of texts as 'alternatives'"),
        ({**ROW, "judge_response": {}}, "text as 'judge_response'"),
        ({**ROW, "judge_response": "true", "judge_rule": "accuracy"}, "score with --rule accuracy"),
    ],
)
def test_a_bad_line_is_named_with_file_line_and_what_was_expected(
    tmp_path: Path, bad: Any, expected: str
) -> None:
    path = written(tmp_path / "p.jsonl", ROW, bad)
    with pytest.raises(DataError) as caught:
        score_crag(path, "official")
    message = str(caught.value)
    assert message.startswith(f"{path}:2: expected ") and expected in message and ", found " in message
    assert len(message) < 400


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("p.jsonl.gz", gzip.compress(json.dumps(ROW).encode() * 5000)[:-20], "a whole gzip file"),
        ("p.jsonl.gz", json.dumps(ROW).encode(), "a whole gzip file"),
        ("p.jsonl", gzip.compress(b"{}"), "name it p.jsonl.gz"),
        ("p.jsonl", b'{"query": "\xff"}', "UTF-8"),
        (".", b"", "a readable file"),
    ],
)
def test_a_damaged_or_mislabelled_file_is_refused(
    tmp_path: Path, name: str, content: bytes, expected: str
) -> None:
    path = tmp_path / name
    if content:
        path.write_bytes(content)
    with pytest.raises(DataError, match=expected):
        read_predictions(path, "official")


@pytest.mark.parametrize("text", ["", json.dumps({**ROW, "answer": None}) + "\n"])
def test_a_file_without_an_answer_to_score_against_is_refused(tmp_path: Path, text: str) -> None:
    (path := tmp_path / "p.jsonl").write_text(text)
    with pytest.raises(
        DataError, match=r"p.jsonl: expected lines with an answer to score against, found none"
    ):
        score_crag(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.jsonl: expected a readable file, found: No such file"):
        score_crag(tmp_path / "none.jsonl", "official")


def test_what_a_killed_process_left_of_a_file_goes_when_it_is_replaced(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, other = (tmp_path / f".p.jsonl.{pid}.tmp" for pid in (ended.pid, os.getppid()))
    left.touch()
    other.touch()
    with replaced(tmp_path / "p.jsonl") as out:
        out.write("whole")
    assert sorted(f.name for f in tmp_path.iterdir()) == sorted([other.name, "p.jsonl"])


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run.json"
    with replaced(path) as out:
        out.write("old")
    with pytest.raises(ZeroDivisionError), replaced(path) as out:
        out.write(f"half {1 / 0}")
    assert path.read_text() == "old"
    with replaced(path) as out:
        out.write('"\ud800"')
    assert json.loads(path.read_text()) == "\ud800"
    assert [p.name for p in path.parent.iterdir()] == ["run.json"]
