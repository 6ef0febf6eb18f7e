"""QASPER's measures: the published evaluator's numbers on the given fixtures and on its edge cases."""

import json
import os
from pathlib import Path

import pytest

from raypipe.api.cli.main import main
from raypipe.core.errors import DataError
from raypipe.core.records import AnnotatorAnswer
from raypipe.metrics import overlap
from raypipe.metrics.kinds import open_kind, score
from raypipe.metrics.overlap import read_predictions, score_files
from raypipe.metrics.verdict_rules import Prediction
from raypipe.readers.qasper import annotators, papers

DATA = os.environ.get("RAYPIPE_DATA")
given = pytest.mark.skipif(DATA is None, reason="RAYPIPE_DATA is not set")
PAPERS = Path(DATA or "") / "qasper/train10_full_papers.json.gz"
YES = AnnotatorAnswer("Yes", "boolean", ("a", "b"))
SPANS = AnnotatorAnswer("two, corpora", "extractive", ("b", "FLOAT SELECTED: Table 1: Sizes."))
NONE = AnnotatorAnswer("Unanswerable", "none")


def test_the_best_annotator_counts_and_gives_the_question_its_kind():
    assert overlap.answer_f1("two corpora", (YES, SPANS)) == (1.0, "extractive")
    assert overlap.answer_f1("nothing of it", (YES, SPANS)) == (0.0, "boolean")  # of equals the first
    assert overlap.answer_f1("", (NONE,)) == (0.0, "none")


def test_evidence_is_compared_by_whole_paragraphs():
    assert overlap.evidence_f1([], (NONE,)) == 1
    assert overlap.evidence_f1(["a"], (NONE,)) == 0
    assert overlap.evidence_f1(["a", "b"], (AnnotatorAnswer("", "none", ("b", "c", "d")),)) == 0.4
    assert overlap.evidence_f1(["a", "a"], (AnnotatorAnswer("", "none", ("a",)),)) == pytest.approx(2 / 3)
    assert overlap.evidence_f1(["a", "b"], (NONE, YES)) == 1


def test_a_missing_prediction_counts_0_and_in_no_kind():
    said = {"q1": ("yes", ("a", "b"))}
    found = overlap.score({"q1": (YES,), "q2": (SPANS,)}, said)
    assert (found.answer_f1, found.evidence_f1, found.missing) == (0.5, 0.5, 1)
    assert found.by_kind == {"extractive": 0, "abstractive": 0, "boolean": 1, "none": 0}


@given
def test_token_f1_is_the_official_evaluators_on_its_fixtures():
    pairs = json.loads((Path(DATA) / "qasper/official_token_f1_pairs.json").read_text("utf-8"))
    for pair in pairs:
        assert overlap.token_f1(pair["prediction"], [pair["gold"]]) == pytest.approx(pair["token_f1"])


@given
def test_the_first_annotator_as_prediction_scores_1_and_less_without_figures(tmp_path, capsys):
    lines = []
    for _, _, paper in papers(PAPERS):
        for qa in paper["qas"]:
            [first, *_] = annotators(qa)
            said = {"predicted_answer": first.answer, "predicted_evidence": first.evidence}
            lines.append(json.dumps({"question_id": qa["question_id"], **said}))
    out = tmp_path / "p.jsonl"
    out.write_text("\n".join(lines))
    command = ["score", "qasper", "--gold", str(PAPERS), "--predictions", str(out)]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["means"].values()) == {1.0} and found["missing"] == 0
    assert main([*command, "--text-evidence-only"]) == 0
    shown = capsys.readouterr().out
    assert "Evidence F1 0.9446" in " ".join(shown.split()) and "51 questions" in shown


def test_a_prediction_that_is_none_names_its_line(tmp_path):
    out = tmp_path / "p.jsonl"
    for line, expected in (
        ('{"question_id": "q"}', "predicted_answer"),
        ('{"question_id": "q", "predicted_answer": "a", "predicted_evidence": "b"}', "a list of texts"),
        ("[]", "a JSON object"),
    ):
        out.write_text(line)
        with pytest.raises(DataError, match=rf"p\.jsonl:1.*{expected}"):
            read_predictions(out)


@pytest.mark.parametrize(
    ("qas", "says"),
    [
        ("no list", "qas: expected a list"),
        (["no question"], r"qas\[0\]: expected an object"),
        ([{"question_id": "q", "answers": ["no answer"]}], r"answers\[0\]: expected an object"),
        ([{"question_id": "q", "answers": [{"answer": {}}]}], "found none of them"),
        ([{"answers": []}], "question_id: expected text"),
    ],
)
def test_golds_that_are_none_name_paper_and_field(tmp_path, qas, says):
    (tmp_path / "gold.json").write_text(json.dumps({"p1": {"qas": qas}}))
    (tmp_path / "p.jsonl").write_text("")
    with pytest.raises(DataError, match=rf"gold\.json:p1: .*{says}"):
        score_files(tmp_path / "gold.json", tmp_path / "p.jsonl")


def test_a_paper_without_questions_adds_none(tmp_path):
    (tmp_path / "gold.json").write_text(json.dumps({"p1": {"qas": None}, "p2": {}}))
    (tmp_path / "p.jsonl").write_text("")
    with pytest.raises(DataError, match=r"gold\.json: expected papers with a question that has an answer"):
        score_files(tmp_path / "gold.json", tmp_path / "p.jsonl")


def test_the_kind_measures_a_run_as_the_evaluator_does():
    rows = [
        Prediction("q1", "two corpora", (), annotators=(YES, SPANS), evidence=("b", "Table 1: Sizes.")),
        Prediction("q2", "I don't know", (), annotators=(NONE, YES), evidence=("a",)),
        Prediction("q3", None, (), annotators=(YES,)),
        Prediction("q4", "two", ("two corpora",)),  # answers, and no annotator
    ]
    found = score(open_kind("qasper"), "qasper", rows)
    assert found.values["q1"] == {
        "answer_f1": 1.0,
        "evidence_f1": 1.0,
        "text_evidence_f1": pytest.approx(2 / 3),
        "answer_f1_extractive": 1.0,
    }
    assert found.values["q2"] == {
        "answer_f1": 1.0,
        "evidence_f1": 1.0,
        "text_evidence_f1": 1.0,
        "answer_f1_none": 1.0,
    }
    assert found.values["q3"] == found.values["q4"] == {} and found.lead == "answer_f1"
    assert found.of("answer_f1").of == 4
    assert (found.of("answer_f1").scored, found.of("answer_f1_boolean").mean) == (2, None)
