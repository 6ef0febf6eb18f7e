"""The two CRAG rules, on published tables, published runs and hand-made rows."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raypipe.api.scores import score_crag
from raypipe.core.records import Gold, Question
from raypipe.metrics import verdict_rules
from raypipe.metrics.verdict_rules import RULES, Prediction, Rule, Verdict, judge, mark, score, slices, total
from raypipe.text.replies import UNREADABLE, JudgeReply, parse_response

YES, NO = '{"score": 1, "explanation": "ok"}', '{"score": 0, "explanation": "b"}'
GOOSE = '{"score": 0, "explanation": "the truth is nick "goose" bradshaw, not iceman"}'
IDK, INVALID = "i don't know", "invalid question"

needs_data = pytest.mark.skipif("RAYPIPE_DATA" not in os.environ, reason="RAYPIPE_DATA is not set")


def row(prediction: str | None, *truths: str, judged: str | None = None, **labels: str) -> Prediction:
    return Prediction("q", prediction, truths, judged, labels)


@pytest.mark.parametrize(
    ("response", "explanation", "value"),
    [
        (YES, "ok", 1),
        (f"first {YES} and then {NO}", "b", 0),
        (GOOSE, 'the truth is nick "goose" bradshaw, not iceman', 0),
        ('{"score": "1"}', UNREADABLE, -1),
        ("nothing", UNREADABLE, -1),
        ("", UNREADABLE, -1),
        ('{"SCORE": 1}', UNREADABLE, -1),
        ('{"score": 2, "explanation": "very"}', '{"score": 2, "explanation": "very"}', -1),
        ('{"explanation":"has } brace", "score": 1}', UNREADABLE, -1),
        ('{"score": 1}', '{"score": 1}', 1),
        ('{"explanation": "says "yes" twice", "score": 1}', 'says "yes" twice', 1),
        ('{"score": ' + "9" * 5000 + "}", '{"score": ' + "9" * 5000 + "}", -1),
    ],
)
def test_a_judge_reply_is_read_as_the_published_evaluator_reads_it(
    response: str, explanation: str, value: int
) -> None:
    assert parse_response(response) == JudgeReply(explanation, value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scored", "outcome", "reason"),
    [
        (row("  Paris ", "paris"), "exact", "equal"),
        (row("Lutetia", "paris", "LUTETIA"), "exact", "equal"),
        (row("Sorry, I don't know that.", "paris"), "missing", "abstained"),
        (row(IDK, IDK), "missing", "abstained"),
        (row("I don\u2019t know", "paris", judged=NO), "hallucination", "judge"),
        (row("yes.", "yes"), "unscored", "no_judge_reply"),
        (row("yes.", "yes", judged=YES), "correct", "judge"),
        (row("yes.", "yes", judged="well"), "hallucination", "judge_unreadable"),
        (row("this is an invalid one", INVALID), "correct", "both_invalid"),
        (row(INVALID, "paris", judged=YES), "hallucination", "one_invalid"),
        (row("paris", INVALID, judged=YES), "hallucination", "one_invalid"),
        (row("paris, france", INVALID, "paris", judged=YES), "correct", "judge"),
        (row("an invalid one", "paris", INVALID), "correct", "both_invalid"),
        (row(None, "paris", judged=YES), "unscored", "no_prediction"),
    ],
)
def test_the_official_rule_decides_each_kind_of_row(scored: Prediction, outcome: str, reason: str) -> None:
    assert judge(scored, "official") == Verdict("q", outcome, reason)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scored", "outcome"),
    [
        (row("Paris", "paris"), "exact"),
        (row("I don't know.", "paris"), "missing"),
        (row("paris, france", "paris", judged="Accuracy: True"), "correct"),
        (row("rome", "paris", judged="Accuracy: False"), "hallucination"),
        (row("rome", "paris", judged="Cloud"), "hallucination"),
        (row("rome", "paris", judged=""), "hallucination"),
        (row("rome", "paris"), "unscored"),
        (row("an invalid one", INVALID), "unscored"),
        (row(INVALID, "paris", judged="true"), "correct"),
    ],
)
def test_the_accuracy_rule_knows_equality_and_true_and_nothing_of_invalid(
    scored: Prediction, outcome: str
) -> None:
    assert judge(scored, "accuracy").outcome == outcome


def test_four_right_three_missing_and_three_wrong_of_ten_score_one_tenth() -> None:
    rows = [row("a", "a")] * 3 + [row("b", "a", judged=YES)] + [row(IDK, "a")] * 3
    rows += [row("c", "a", judged=NO)] * 3
    found = score(rows, "official")
    assert (found.accuracy, found.missing, found.hallucination) == (0.4, 0.3, 0.3)
    assert found.score == pytest.approx(0.1, abs=1e-15)
    assert (found.n_correct, found.n_correct_exact, found.exact_accuracy) == (4, 3, 0.3)


@pytest.mark.parametrize("rule", RULES)
def test_all_missing_scores_zero_and_all_wrong_minus_one(rule: Rule) -> None:
    assert score([row(IDK, "x")] * 7, rule).score == 0
    assert score([row("b", "x", judged=NO)] * 7, rule).score == -1


@pytest.mark.parametrize("rule", ["official", "accuracy"])
def test_where_nothing_is_scored_shares_are_none_and_never_zero(rule: Rule) -> None:
    for rows in ([], [row("b", "a"), row(None, "a")]):
        marks = mark(rows, rule)
        s = marks.score
        assert (s.score, s.accuracy, s.hallucination, s.missing, s.exact_accuracy) == (None,) * 5
        assert (s.n_unscored, s.total) == (len(rows), len(rows))
        assert marks.interval is None
        assert marks.bounds == ((-1, 1) if rows else None)


outcomes = st.sampled_from(["correct", "exact", "missing", "hallucination", "unscored"])


@given(st.lists(outcomes.map(lambda o: Verdict("q", o, "judge"))))  # type: ignore[arg-type]
def test_shares_are_over_scored_rows_and_the_bounds_hold_the_score_of_any_judge(
    verdicts: list[Verdict],
) -> None:
    s = total(verdicts)
    scored = s.n_correct + s.n_miss + s.n_hallucination
    assert scored == s.total - s.n_unscored == len(verdicts) - s.n_unscored
    if s.score is None:
        assert scored == 0
        return
    assert s.accuracy is not None and s.hallucination is not None and s.missing is not None
    assert s.accuracy + s.hallucination + s.missing == pytest.approx(1)
    assert s.score == pytest.approx(s.accuracy - s.hallucination)
    bounds = verdict_rules.bounds(s)
    assert bounds is not None and -1 <= bounds[0] <= bounds[1] <= 1 + 1e-12
    if not s.n_unscored:
        assert bounds == (s.score, s.score)


@pytest.mark.parametrize("rule", RULES)
def test_the_constant_controls_are_the_floor_on_the_same_truths(rule: Rule) -> None:
    rows = [row("x", "x"), row("b", INVALID), row(None, "c"), row("d", "e", "f")]
    floor = mark(rows, rule).controls
    assert list(floor) == [IDK, INVALID]
    assert (floor[IDK].score, floor[IDK].n_miss) == (0, 4)
    assert (floor[INVALID].n_correct_exact, floor[INVALID].n_hallucination) == (1, 3)
    assert all(s.n_unscored == 0 for s in floor.values())


def test_slices_cover_each_label_once_biggest_value_first() -> None:
    rows = [row("a", "a", domain="movie"), row(IDK, "a", domain="open"), row("b", "a", domain="open")]
    rows += [row("a", "a", domain="music", question_type="simple")]
    parts = slices(rows, [judge(r, "official") for r in rows])
    assert [(p.label, p.value, p.score.total) for p in parts] == [
        ("domain", "open", 2),
        ("domain", "movie", 1),
        ("domain", "music", 1),
        ("question_type", "simple", 1),
    ]
    assert (parts[0].score.score, parts[0].score.n_unscored) == (0, 1)


def test_questions_meet_their_truths_and_a_fault_is_no_wrong_answer() -> None:
    questions = [
        Question("1", "who", answer="ann", outcome="answered"),
        Question("2", "who", outcome="fault"),
        Question("3", "who", answer="bob", outcome="answered"),
        Question("4", "who", answer=IDK, outcome="abstained"),
    ]
    golds = {i: Gold(i, ("ann",), {"domain": "open"}) for i in ("1", "2", "4")}
    rows, without = verdict_rules.pair(questions, golds, {"1": YES})
    assert without == ["3"]
    assert [r.prediction for r in rows] == ["ann", None, IDK]
    assert [r.judge_response for r in rows] == [YES, None, None]
    assert [v.outcome for v in mark(rows, "official").verdicts] == ["exact", "unscored", "missing"]


def test_a_row_without_truths_is_an_error_and_not_a_wrong_answer() -> None:
    with pytest.raises(ValueError, match="'q' has no truth"):
        judge(row("a"), "official")


@needs_data
@pytest.mark.parametrize("number", range(14))
def test_each_published_run_is_recomputed_to_the_last_digit(number: int) -> None:
    data = Path(os.environ["RAYPIPE_DATA"]) / "crag"
    entry = json.loads((data / "runs_index.json").read_text())[number]
    found = score_crag(data / entry["file"], "accuracy")
    score = found.by_rule.score
    assert {k: getattr(score, k) for k in entry["published"]} == entry["published"]
    assert (score.n_unscored, found.normalized) == (0, {"answer_number": 5})


@pytest.mark.parametrize(
    ("prediction", "truths", "cut", "outcome", "reason"),
    [
        ("It flies for 31 minutes.", ("31 minutes",), False, "correct", "words"),
        ("31 minutes", ("31 Minutes!",), False, "exact", "equal"),
        ("31 long minutes", ("31 minutes",), False, "hallucination", "words"),
        ("Sorry, I don't know.", ("31 minutes",), False, "missing", "abstained"),
        ("It flies for 31 minutes, 31", ("31 minutes",), True, "hallucination", "cut"),
        ("31 minutes " + "and so " * 20, ("31 minutes",), False, "hallucination", "wordy"),
        ("Yes, it does.", ("yes",), False, "unscored", "no_words"),
        ("It is in the box", ("in",), False, "unscored", "no_words"),
        ("It is Anna", ("no", "Anna"), False, "correct", "words"),
        ("This is an invalid question.", (INVALID,), False, "correct", "words"),
        (None, ("31 minutes",), False, "unscored", "no_prediction"),
    ],
)
def test_the_rule_words_looks_for_a_truth_in_the_answer(prediction, truths, cut, outcome, reason) -> None:
    found = judge(Prediction("q", prediction, truths, cut=cut), "words")
    assert (found.outcome, found.reason) == (outcome, reason)


def test_the_words_of_an_answer_are_counted_without_abstentions() -> None:
    rows = [row("one two three", "x"), row(IDK, "x"), row("one", "x"), row(None, "x")]
    assert mark(rows, "words").words == 2 and mark([row(IDK, "x")], "words").words is None
