"""A judge held against people's labels, and the answers that people are asked about."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from raypipe.api.cli.main import main
from raypipe.core.errors import DataError
from raypipe.evaluation.judged_run import read_labels

TRUTH = "ann lee"


def line(i: int, prediction: str, judged: int | None, domain: str = "movie") -> dict[str, Any]:
    made = {
        "id": f"q{i:02d}",
        "query": f"who {i}?",
        "answer": TRUTH,
        "prediction": prediction,
        "domain": domain,
    }
    return made if judged is None else {**made, "judge_response": json.dumps({"score": judged})}


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(x) + "\n" for x in lines))
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Forty answers: 5 equal the truth, 5 abstain, 20 judged right (the last 4 are not), 10 judged wrong."""
    lines = [line(i, TRUTH, None) for i in range(5)]
    lines += [line(i, "i don't know", None) for i in range(5, 10)]
    lines += [line(i, f"it is {TRUTH}" if i < 26 else "bob", 1) for i in range(10, 30)]
    lines += [line(i, f"{TRUTH}, i think" if i == 30 else "carl", 0, "open") for i in range(30, 40)]
    return written(tmp_path / "run.jsonl", lines)


def labelled(run: Path, path: Path, picked: str = "random", **but: str) -> Path:
    """A file in which a person has labelled every judged answer by its words."""
    lines = [json.loads(x) for x in run.read_text().splitlines()]
    judged = [x for x in lines if "judge_response" in x]
    for x in judged:
        x |= {"label": "right" if TRUTH in x["prediction"] else "wrong", "picked": picked}
        x["label"] = but.get(x["id"], x["label"])
    return written(path, judged)


def checked(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main([str(w) for w in ("judge", "check", *words, "--json")]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_agreement_kappa_slices_and_a_corrected_score(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = labelled(run, tmp_path / "labels.jsonl", q39="unclear")
    found = checked(capsys, labels, "--run", run)
    assert (found["judged"], found["labelled"], found["unclear"]) == (30, 29, 1)
    assert (found["found"]["judge_too_kind"], found["found"]["judge_too_strict"]) == (4, 1)
    assert found["found"]["agreement"] == pytest.approx(24 / 29)
    assert [(s["label"], s["value"], s["found"]["n"]) for s in found["slices"]] == [
        ("domain", "movie", 20),
        ("domain", "open", 9),
    ]
    corrected = found["corrected"]
    assert corrected["judged"] == pytest.approx((25 - 10) / 40)
    assert corrected["corrected"] == pytest.approx((25 - 10 - 2 * 4 + 2 * 10 / 9) / 40)
    assert corrected["interval"][0] < corrected["corrected"] < corrected["interval"][1]
    assert main(["judge", "check", str(labels), "--run", str(run)]) == 0
    said = capsys.readouterr().out
    assert "29 of 30 answers labelled" in said and "left out: 1 labels: unclear" in said and "kappa" in said


def test_chosen_answers_count_for_themselves_and_correct_no_other(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = checked(capsys, labelled(run, tmp_path / "l.jsonl", "chosen"), "--run", run)
    assert found["found"]["n"] == 30 and found["corrected"] is None
    assert "drawn at random" in found["why_not"]


def test_people_outrank_the_judge_and_the_score_says_so(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = labelled(run, tmp_path / "l.jsonl")
    assert main(["score", "crag", str(run), "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    score = before["by_rule"]["score"]
    assert (score["n_correct"], score["n_hallucination"], before["people"]) == (25, 10, 0)
    assert {s["value"] for s in before["by_rule"]["slices"]} == {"movie", "open"}
    assert main(["score", "crag", str(run), "--labels", str(labels), "--json"]) == 0
    after = json.loads(capsys.readouterr().out)
    score = after["by_rule"]["score"]
    assert (score["n_correct"], score["n_hallucination"], after["people"]) == (22, 13, 5)
    assert main(["score", "crag", str(run), "--labels", str(labels)]) == 0
    assert "people's labels changed 5 verdicts: people outrank the judge" in capsys.readouterr().out
    assert main(["compare", str(run), str(run), "--labels", str(labels)]) == 0
    assert "people's labels changed 5 and 5 verdicts" in capsys.readouterr().out


def test_pick_draws_some_and_takes_the_most_doubtful(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "todo.jsonl"
    words = ["judge", "pick", str(run), "--disagreements", "5", "--random", "6", "--out", str(out)]
    assert main([*words, "--seed", "2"]) == 0
    assert "6 answers at random, 5 disagreements" in capsys.readouterr().out
    lines = [json.loads(x) for x in out.read_text().splitlines()]
    assert [x["picked"] for x in lines] == ["random"] * 6 + ["chosen"] * 5
    assert len({x["id"] for x in lines}) == 11 and {x["label"] for x in lines} == {None}
    odd = {"q26", "q27", "q28", "q29", "q30"}  # the words of the truth say the opposite of the judge
    assert odd <= {x["id"] for x in lines}
    assert main(words) == 3 and "may hold labels" in capsys.readouterr().err
    found = checked(capsys, out, "--run", run)
    assert found["unlabelled"] == 11 and found["found"] is None
    done = labelled(run, tmp_path / "done.jsonl")
    more = ["judge", "pick", str(run), "--disagreements", "5", "--labels", str(done)]
    assert main([*more, "--out", str(tmp_path / "none.jsonl")]) == 0
    assert "0 answers at random, 0 disagreements" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", r"labels\.jsonl:1: expected the fields id, prediction and label"),
        ("[1", r"labels\.jsonl:1: expected a JSON object"),
        ('{"id": "q1", "prediction": null, "label": "right"}', "expected text as 'prediction'"),
        ('{"id": "q1", "prediction": "x", "label": "good"}', "a label of right, wrong, unclear, or null"),
        ('{"id": "q1", "prediction": "x", "label": "right", "picked": "?"}', "picked: random, or chosen"),
    ],
)
def test_a_line_that_is_no_label_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text(text + "\n")
    with pytest.raises(DataError, match=message):
        read_labels(path)


def test_labels_of_another_run_are_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = written(tmp_path / "l.jsonl", [{"id": "q10", "prediction": "other", "label": "wrong"}])
    assert main(["judge", "check", str(labels), "--run", str(run)]) == 3
    assert "found 1 of others, such as question 'q10', answer 'other'" in capsys.readouterr().err
    assert main(["judge", "check", str(labels)]) == 2
    assert "is no run's folder; name the run of these labels with --run" in capsys.readouterr().err


def test_a_later_label_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    lines = [{"id": "q", "prediction": "x", "label": x} for x in ("right", "wrong")]
    found = read_labels(written(tmp_path / "l.jsonl", lines))
    assert [x.label for x in found.by_answer.values()] == ["wrong"]


def test_the_judges_of_given_runs_are_measured_by_labels_made_by_the_rules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not (data := os.environ.get("RAYPIPE_DATA")):
        pytest.skip("RAYPIPE_DATA is not set")
    file = Path(data) / "crag/runs/system-06.jsonl.gz"
    out = tmp_path / "todo.jsonl"
    words = ["judge", "pick", str(file), "--rule", "accuracy", "--random", "100", "--out", str(out)]
    assert main(words) == 0
    lines = [json.loads(x) for x in out.read_text().splitlines()]
    for x in lines:  # right where the answer has every word of the truth
        x["label"] = "right" if set(x["answer"].split()) <= set(x["prediction"].lower().split()) else "wrong"
    capsys.readouterr()
    labels = written(tmp_path / "labels.jsonl", lines)
    found = checked(capsys, labels, "--run", file, "--rule", "accuracy")
    assert found["labelled"] == 100 and 0.5 < found["found"]["agreement"] <= 1
    assert found["found"]["kappa"] is not None and found["corrected"]["labelled"] == 100
