"""The kinds of data sets: what each measures, and the contract that one from outside keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from raypipe.core.errors import ConfError, DataError
from raypipe.core.records import AnnotatorAnswer
from raypipe.metrics.kinds import KINDS, Measure, kind_id, marks_of, missing_part, open_kind, score
from raypipe.metrics.ranking import score as trec_score
from raypipe.metrics.verdict_rules import Prediction, mark

ANSWERED = Prediction("q1", "the city of Paris", ("Paris",), labels={"domain": "open"})
EXACT = Prediction("q2", "ann", ("Ann", "Anna"), labels={"domain": "movie"})
MISSING = Prediction("q3", "i don't know", ("Bob",), labels={"domain": "movie"})
FAILED = Prediction("q4", None, ("Bob",), labels={"domain": "open"})
ROWS = [ANSWERED, EXACT, MISSING, FAILED]


def test_qa_scores_every_answer_and_a_failed_question_is_not_scored() -> None:
    found = score(open_kind("qa"), "qa", ROWS)
    assert found.values == {
        "q1": {"f1": 0.5, "exact_match": 0.0, "contains": 1.0},
        "q2": {"f1": 1.0, "exact_match": 1.0, "contains": 1.0},
        "q3": {"f1": 0.0, "exact_match": 0.0, "contains": 0.0},
        "q4": {},
    }
    f1 = found.of("f1")
    assert found.lead == "f1" and (f1.mean, f1.scored, f1.of) == (0.5, 3, 4)
    assert f1.interval is not None and f1.interval[0] < 0.5 < f1.interval[1]
    assert [(s.value, s.mean, s.scored, s.of) for s in found.slices] == [
        ("movie", 0.5, 2, 2),
        ("open", 0.5, 1, 2),
    ]
    assert marks_of(open_kind("qa"), ROWS).rule == ""


def test_crag_has_its_score_and_the_measures_of_answers_which_lead_where_it_leaves_much_open() -> None:
    kind = open_kind("crag")
    found = score(kind, "crag", ROWS)
    assert found.lead == "f1" and found.of("f1").scored == 3  # the rule scores two of them
    assert (found.of("score").mean, found.of("score").scored) == (0.5, 2)
    assert "score" not in found.values["q1"] and found.values["q3"]["hallucination"] == 0.0
    marks = marks_of(kind, ROWS)
    assert marks == mark(ROWS, "official") and marks.interval == found.of("score").interval
    judged = [ROWS[1], ROWS[2]]
    assert score(kind, "crag", judged).lead == "score"


def test_questions_of_one_paper_have_the_interval_of_their_papers_and_no_slices_by_paper() -> None:
    yes, no = (AnnotatorAnswer(x, "boolean") for x in ("Yes", "No"))
    rows = [
        Prediction(f"{p}-{i}", "Yes", (), labels={"paper": f"p{p}"}, annotators=(no if p % 3 else yes,))
        for p in range(9)
        for i in range(10)
    ]
    grouped = score(open_kind("qasper"), "qasper", rows)
    alone = score(open_kind("qasper"), "qasper", [replace(r, labels={}) for r in rows])
    widths = [
        high - low
        for s in (grouped, alone)
        if (within := s.of("answer_f1").interval)
        for low, high in [within]
    ]
    assert widths[0] > 2 * widths[1] and not grouped.slices
    few = score(open_kind("qasper"), "qasper", rows[:50]).of("answer_f1")
    assert few.mean == 0.4 and few.interval is None  # five papers


def test_a_value_outside_of_its_measures_range_is_named() -> None:
    class Characters:
        measures = (Measure("characters", "of the answer"),)

        def values(self, row: Prediction) -> dict[str, float]:
            return {"characters": float(len(row.prediction or ""))}

    with pytest.raises(DataError, match="kind mine, question q1: expected characters from 0 to 1, found 17"):
        score(Characters(), "mine", ROWS)


def test_ranking_is_what_trec_eval_says_of_grades() -> None:
    grades = {"a": 3, "b": 1, "c": 0, "d": 2}
    row = Prediction("q", None, (), grades=grades, ranked=("c", "b", "a", "x"))
    found = open_kind("ranking").values(row)
    run = {"c": 4.0, "b": 3.0, "a": 2.0, "x": 1.0}
    assert found == trec_score({"q": run}, {"q": grades}).per_query["q"]
    assert found["recip_rank"] == 0.5 and found["recall_5"] == pytest.approx(2 / 3)
    # gains 0, 1, 3 at ranks 1 to 3, over 3, 2, 1 in the best order
    assert found["ndcg_cut_10"] == pytest.approx((1 / 1.584963 + 3 / 2) / (3 + 2 / 1.584963 + 1 / 2))
    better = Prediction("q", None, (), grades=grades, ranked=("a", "d", "b"))
    assert open_kind("ranking").values(better)["ndcg_cut_10"] == pytest.approx(1.0)


def test_a_query_without_a_ranked_document_counts_0_and_a_failed_one_is_not_scored() -> None:
    kind = open_kind("ranking")
    nothing = Prediction("q", None, (), grades={"a": 1}, ranked=())
    assert set(kind.values(nothing).values()) == {0.0}
    assert kind.values(Prediction("q", None, (), grades={"a": 1})) == {}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_keeps_the_contract(name: str) -> None:
    kind = open_kind(name)
    assert missing_part(kind) is None
    names = [m.name for m in kind.measures]
    assert len(set(names)) == len(names)
    said = (AnnotatorAnswer("ann", "extractive"),)
    row = Prediction("q", "ann", ("ann",), grades={"d": 1}, ranked=("d",), annotators=said)
    values = kind.values(row)
    assert kind.measures[0].name in values and values.keys() <= set(names)
    for m in kind.measures:
        assert m.name not in values or m.low <= values[m.name] <= m.high


OWN = '''"""Answers that are numbers: right where they differ by less than a tenth."""

from raypipe.metrics.kinds import Measure


class Numbers:
    measures = (Measure("close", "within a tenth of the truth"),)

    def values(self, row):
        return {"close": float(abs(float(row.prediction) - float(row.truths[0])) < 0.1)}


class Empty:
    measures = ()


class Stray(Numbers):
    def values(self, row):
        return {"closer": 1.0}


class Text(Numbers):
    def values(self, row):
        return {"close": "near"}


def verdict(row):
    return "correct"


def fails(row):
    return row.labels["colour"]
'''


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"kinds_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_kind_from_outside_is_measured_like_any_other(outside: str) -> None:
    name = f"{outside}:Numbers"
    found = score(open_kind(name), kind_id(name), [Prediction("q", "3.14", ("3.1",))])
    assert found.of("close").mean == 1.0 and found.kind.startswith(f"{name}@")


def test_a_rule_from_outside_is_the_rule_of_crag(outside: str) -> None:
    kind = open_kind("crag", f"{outside}:verdict")
    assert score(kind, "crag", [ANSWERED]).of("score").mean == 1.0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "Numbers",
            "question q1: expected values, found ValueError: .* at .*py:10. Correct",
        ),
        ("Stray", "question q1: expected values of its measures, found 'closer'; did you mean 'close'"),
        ("Text", "question q1: expected close as a number, found 'near'.*--kind NAME scores by another kind"),
    ],
)
def test_what_the_code_of_a_kind_does_wrong_is_its_own_and_names_the_question(
    outside: str, name: str, message: str
) -> None:
    path = f"{outside}:{name}"
    with pytest.raises(DataError, match=f"kind {path}.*{message}"):
        score(open_kind(path), kind_id(path), ROWS)


def test_a_rule_from_outside_that_raises_is_named_with_its_question_and_line(outside: str) -> None:
    rule = f"{outside}:fails"
    with pytest.raises(DataError, match=f"rule {rule}, question q1: .*KeyError: 'colour' at .*py:32"):
        score(open_kind("crag", rule), "crag", ROWS)


@pytest.mark.parametrize(
    ("name", "rule", "judged", "message"),
    [
        ("qaa", None, False, "kind 'qaa': did you mean 'qa'"),
        ("qa", "official", False, "--rule official: kind qa scores by no rule"),
        ("ranking", None, True, "--judge: kind ranking leaves no question open"),
        ("crag", "oficial", False, "unknown rule 'oficial'"),
        ("{}:Empty", None, False, "expected a kind of data with measures, one Measure or more"),
        ("{}:verdict", None, False, "expected a kind of data with measures"),
        ("{}:Nothing", None, False, "expected a kind of data"),
    ],
)
def test_what_is_no_kind_or_cannot_be_used_with_it_is_refused(
    outside: str, name: str, rule: str | None, judged: bool, message: str
) -> None:
    with pytest.raises(ConfError, match=message):
        open_kind(name.format(outside), rule, judged)


def test_a_measure_is_within_its_range() -> None:
    assert missing_part(type("K", (), {"measures": [Measure("x", "")]})) is not None
