"""Comparing scored runs."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raypipe.api.cli.main import main
from raypipe.api.release import check_gate
from raypipe.core.errors import DataError
from raypipe.evaluation.compare import NOISE, compare
from raypipe.evaluation.scored_run import ScoredRun, scored_run
from raypipe.evaluation.sweep import repeats
from raypipe.metrics.paired_tests import holm
from raypipe.metrics.verdict_rules import VALUES
from raypipe.runs.gates import GateFailed, RelativeGate

VERDICTS = ["exact"] * 40 + ["missing"] * 40 + ["hallucination"] * 35


def run(name: str, verdicts: list[str], rule: str = "official", judge: str = "") -> ScoredRun:
    ids = [f"q{i:03d}" for i in range(len(verdicts))]
    labels = {id: {"domain": "movie" if i % 2 else "open", "language": "en"} for i, id in enumerate(ids)}
    found = dict(zip(ids, verdicts, strict=True))
    return ScoredRun(name, rule, judge, {q: values(v) for q, v in found.items()}, labels, verdicts=found)


def values(verdict: str) -> dict[str, float]:
    """What a verdict measures."""
    if (value := VALUES.get(verdict)) is None:
        return {}
    return {"score": value, "accuracy": float(value > 0), "hallucination": float(value < 0)}


def changed(most: int) -> list[str]:
    """The verdicts with the first wrong answers turned into right ones."""
    return ["exact" if i >= 80 and i < 80 + most else v for i, v in enumerate(VERDICTS)]


def test_few_better_answers_cannot_tell_and_many_are_better() -> None:
    (few,) = compare([run("a", VERDICTS), run("b", changed(4))])
    assert few.verdict == "cannot tell" and few.p == 0.125 and few.score.n == 115
    assert few.score.minimum_detectable and few.score.questions_needed and few.score.questions_needed > 115
    (many,) = compare([run("a", VERDICTS), run("b", changed(30))])
    assert many.verdict == "better" and many.score.difference == pytest.approx(60 / 115)
    (back,) = compare([run("b", changed(30)), run("a", VERDICTS)])
    assert back.verdict == "worse"
    assert {r.metric: round(r.found.difference * 115) for r in many.rates} == {
        "accuracy": 30,
        "hallucination": -30,
    }


def test_several_runs_and_slices_are_corrected_for_their_number() -> None:
    first, second, third = compare([run("a", VERDICTS), *(run(n, changed(6)) for n in "bcd")])
    alone = compare([run("a", VERDICTS), run("b", changed(6))])[0]
    assert alone.verdict == "better" and alone.p == pytest.approx(0.03125)
    assert [c.p for c in (first, second, third)] == pytest.approx([0.09375] * 3)
    assert first.verdict == "cannot tell"
    assert {(s.label, s.value) for s in alone.slices} == {("domain", "movie"), ("domain", "open")}
    lesser, larger = sorted(alone.slices, key=lambda s: s.found.p)
    assert lesser.p == pytest.approx(2 * lesser.found.p) and larger.p == pytest.approx(
        max(lesser.p, larger.found.p)
    )
    assert sum(s.found.difference * s.found.n for s in alone.slices) == pytest.approx(
        alone.score.difference * 115
    )


def test_what_is_only_in_one_of_them_or_not_scored_is_named_and_left_out() -> None:
    b = run("b", [*changed(4)[:-1], "unscored", "exact"])
    (found,) = compare([run("a", VERDICTS), b])
    assert found.only_after == ("q115",) and found.only_before == () and found.unscored == ("q114",)
    assert found.score.n == 114


def test_wrong_answers_without_a_verdict_prove_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = predictions(tmp_path / "a.jsonl", ["i don't know"] * 30)
    after = predictions(tmp_path / "b.jsonl", ["ann"] * 8 + ["banana"] * 22)
    assert main(["compare", str(before), str(after)]) == 0
    said = capsys.readouterr().out
    assert "cannot tell: score +1.000 over 8 questions" in said and "between -0.467 and +1.000" in said
    assert (
        "22 of 30 questions are scored in only one run or in none, so it is" in said
        and "--rejudge MODEL decides them" in said
    )
    a, b = (scored_run(path, "official") for path in (before, after))
    with pytest.raises(GateFailed, match="cannot tell; 22 of 30 questions are scored in only one run"):
        check_gate(RelativeGate("better", True, 0.02), b, a)
    with pytest.raises(GateFailed, match=r"may be 0\.\d+ worse"):
        check_gate(RelativeGate("not-worse", False, 0.02), b, a)
    assert main(["compare", str(before), str(after), "--rule", "words"]) == 0
    assert "worse: score -0.467 over 30 questions" in capsys.readouterr().out


def test_a_verdict_that_no_judge_can_change_holds_without_one() -> None:
    b = run("b", ["unscored" if i in (0, 41, 114) else v for i, v in enumerate(changed(30))])
    (found,) = compare([run("a", VERDICTS), b])
    assert found.verdict == "better" and found.open == 0 and (found.score.n, found.at_worst.n) == (112, 115)
    bounds = found.at_worst.difference, found.at_best.difference
    assert bounds == pytest.approx(((60 - 2 - 1) / 115, (60 + 1 + 2) / 115))
    few = run("b", ["unscored" if i == 114 else v for i, v in enumerate(changed(6))])
    (found,) = compare([run("a", VERDICTS), few])
    assert found.verdict == "better" and found.open == 0  # one wrong answer can become no worse
    turned = run("a", ["unscored" if i == 114 else v for i, v in enumerate(VERDICTS)])
    (found,) = compare([turned, run("b", changed(6))])
    assert found.verdict == "cannot tell" and found.open == 1


def test_an_id_that_names_another_question_in_each_run_joins_nothing() -> None:
    a, b = (replace(run(n, VERDICTS), texts={f"q{i:03d}": f"who is {i}?" for i in range(115)}) for n in "ab")
    (found,) = compare([a, replace(b, texts={**b.texts, "q007": "who  is 7?", "q008": "who was 8?"})])
    assert found.other_questions == ("q008",) and found.score.n == 114 and found.unscored == ()
    other = {id: f"of other data: {text}" for id, text in b.texts.items()}
    with pytest.raises(
        DataError, match=r"of which 115 name other questions \(q000: 'who is 0\?' and 'of oth"
    ):
        compare([a, replace(b, texts=other)])


def test_groups_of_questions_count_as_one_each() -> None:
    (found,) = compare([run("a", VERDICTS), run("b", changed(30))], group="domain")
    assert found.score.groups == 2 and found.verdict == "cannot tell"


def test_questions_of_one_paper_count_as_one_by_their_kind_alone() -> None:
    papers = [1.0] * 9 + [-1.0] * 3 + [0.0] * 8  # of ten questions each, which gain or lose together
    ids = [(f"q{p}-{i}", f"p{p}", gain) for p, gain in enumerate(papers) for i in range(10)]
    labels = {id: {"paper": paper, "answer_type": "none"} for id, paper, _ in ids}
    before = {id: {"answer_f1": 0.5 - gain / 2} for id, _, gain in ids}
    after = {id: {"answer_f1": 0.5 + gain / 2} for id, _, gain in ids}
    runs = [ScoredRun(n, "", "", v, labels, kind="qasper") for n, v in (("a", before), ("b", after))]
    (found,) = compare(runs)
    assert (
        found.score.groups == 20
        and found.verdict == "cannot tell"
        and found.p == pytest.approx(0.146, abs=0.001)
    )
    assert found.slices == ()  # papers are none
    with pytest.raises(GateFailed, match="cannot tell"):
        check_gate(RelativeGate("better", True, 0.02), runs[1], runs[0])
    alone = compare([replace(r, labels={q: {} for q in r.values}) for r in runs])[0]
    assert alone.score.groups == 200 and alone.verdict == "better"


def test_a_run_against_itself_is_the_same() -> None:
    (found,) = compare([run("a", VERDICTS), run("a", VERDICTS)])
    assert found.verdict == "cannot tell" and found.causes == ()  # 115 questions show no 2 points
    (wider,) = compare([run("a", VERDICTS), run("a", VERDICTS)], margin=0.05)
    assert wider.verdict == "same"


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (run("b", VERDICTS, rule="accuracy"), "found rule official and accuracy"),
        (run("b", VERDICTS, judge="llama"), "found judge none and llama"),
        (ScoredRun("b", "official", "", {"x": {"score": 1.0}}, {"x": {}}), "found 0 common ids of 115 and 1"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(other: ScoredRun, message: str) -> None:
    with pytest.raises(DataError, match=message):
        compare([run("a", VERDICTS), other])


def test_an_unknown_group_is_refused_with_those_there_are() -> None:
    with pytest.raises(DataError, match="label 'paper' at every question, question q000 has domain"):
        compare([run("a", VERDICTS), run("b", VERDICTS)], group="paper")


def predictions(path: Path, answers: list[str]) -> Path:
    lines: list[dict[str, Any]] = [
        {"id": f"q{i}", "query": "?", "answer": "ann", "prediction": a} for i, a in enumerate(answers)
    ]
    path.write_text("".join(json.dumps(x) + "\n" for x in lines))
    return path


def test_files_of_predictions_are_compared_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = predictions(tmp_path / "a.jsonl", ["ann"] * 10 + ["i don't know"] * 30)
    after = predictions(tmp_path / "b.jsonl", ["ann"] * 25 + ["i don't know"] * 15)
    assert main(["compare", str(before), str(after)]) == 0
    said = capsys.readouterr().out
    assert "better: score +0.375 over 40 questions, p 6.1e-05" in said and "not known" in said
    assert main(["compare", str(before), str(after), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert found["verdict"] == "better" and found["score"]["difference"] == 0.375
    assert sum(c["difference"] for c in found["causes"]) == pytest.approx(found["score"]["difference"])
    assert main(["compare", str(before), str(before)]) == 0
    assert "both are one run, so nothing can differ: name two" in capsys.readouterr().out
    assert main(["compare", str(before)]) == 2
    assert "expected two runs or more, found 1" in capsys.readouterr().err


def test_a_measure_over_other_questions_than_the_headline_has_its_own_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = predictions(tmp_path / "a.jsonl", ["ann"] * 10 + ["banana"] * 30)
    after = predictions(tmp_path / "b.jsonl", ["ann"] * 14 + ["banana"] * 26)
    assert main(["compare", str(before), str(after)]) == 0
    said = capsys.readouterr().out
    assert "over 10 questions" in said and "30 questions scored in only one of them or in none" in said
    rows = {line.split()[0]: line.split()[1] for line in said.splitlines() if line.split()}
    assert (rows["metric"], rows["score"], rows["f1"]) == ("questions", "10", "40")
    assert main(["compare", str(before), str(after), "--rule", "words"]) == 0
    heads = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("metric"))
    assert heads.split()[:3] == ["metric", "before", "after"]


def test_the_first_line_of_a_comparison_says_that_its_p_is_corrected_and_for_how_many(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = {"a": 3, "b": 5, "c": 5}
    files = [
        predictions(tmp_path / f"{name}.jsonl", ["ann"] * n + ["i don't know"] * (12 - n))
        for name, n in right.items()
    ]
    assert main(["compare", *map(str, files)]) == 0
    assert capsys.readouterr().out.count("questions, p 1 corrected for 2 comparisons (Holm)") == 2
    assert main(["compare", *map(str, files[:2])]) == 0
    assert "corrected" not in capsys.readouterr().out


def test_four_more_right_of_115_and_none_lost_cannot_tell_and_the_command_says_what_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = predictions(tmp_path / "a.jsonl", ["ann"] * 40 + ["i don't know"] * 75)
    after = predictions(tmp_path / "b.jsonl", ["ann"] * 44 + ["i don't know"] * 71)
    assert main(["compare", str(before), str(after)]) == 0
    said = capsys.readouterr().out
    assert "cannot tell: score +0.035 over 115 questions, p 0.125" in said
    assert main(["compare", str(before), str(after), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert found["score"]["exact"] and found["score"]["questions_needed"] > 115
    assert f"{found['score']['minimum_detectable']:.3f}" in said


def test_a_doubled_id_is_refused(tmp_path: Path) -> None:
    path = predictions(tmp_path / "a.jsonl", ["ann"])
    path.write_text(path.read_text() * 2)
    with pytest.raises(DataError, match=r"a\.jsonl: expected each question once, found 'q0' twice"):
        scored_run(path, "official")


def test_repeats_have_a_mean_and_a_spread_for_each_question() -> None:
    noisy = [run(n, v) for n, v in (("a", VERDICTS), ("b", changed(3)), ("c", changed(1)))]
    found = repeats(noisy)
    assert found.moved == 3 and found.scores == pytest.approx([5 / 115, 11 / 115, 7 / 115])
    assert found.mean == pytest.approx(23 / 345) and found.spread == pytest.approx(0.0266, abs=1e-3)
    assert found.verdicts == ("cannot tell", "cannot tell")
    moved = {q.question: q for q in found.questions if q.spread}
    assert set(moved) == {"q080", "q081", "q082"} and moved["q081"].mean == pytest.approx(-1 / 3)
    assert moved["q080"].verdicts == ("hallucination", "exact", "exact")
    with pytest.raises(DataError, match="b: expected the questions of a"):
        repeats([run("a", VERDICTS), run("b", VERDICTS[:-1])])


def test_lines_without_ids_are_joined_by_their_questions(tmp_path: Path) -> None:
    lines = [{"query": f"who {i}?", "answer": "ann", "prediction": "ann"} for i in range(8)]
    for name, some in (("a", lines), ("b", lines[::-1])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in some))
    (found,) = compare([scored_run(tmp_path / f"{n}.jsonl", "official") for n in "ab"])
    assert found.score.n == 8 and not found.only_before and not found.only_after


@pytest.mark.parametrize("many", [5, pytest.param(14, marks=pytest.mark.drill)])
def test_the_given_runs_are_compared_with_each_other_and_corrected(
    capsys: pytest.CaptureFixture[str], many: int
) -> None:
    if not (data := os.environ.get("RAYPIPE_DATA")):
        pytest.skip("RAYPIPE_DATA is not set")
    runs = [scored_run(f, "accuracy") for f in sorted((Path(data) / "crag/runs").glob("*.gz"))[:many]]
    found = [compare([a, b])[0] for i, a in enumerate(runs) for b in runs[i + 1 :]]
    corrected = holm([c.p for c in found])
    told = sum(p < 0.05 for p in corrected)
    with capsys.disabled():
        print(f" {len(found)} pairs, {sum(c.p < 0.05 for c in found)} below .05, {told} after Holm", end="")
    assert len(found) == many * (many - 1) / 2 and 0 < told < sum(c.p < 0.05 for c in found)
    assert all(c.score.n == 1335 for c in found)
    with pytest.raises(DataError, match=r"a score of 0 or 1; .* score with --rule accuracy"):
        scored_run(Path(data) / "crag/runs/system-06.jsonl.gz", "official")


def test_what_moved_without_a_known_cause_says_so() -> None:
    (found,) = compare([run("a", VERDICTS), run("b", changed(4))])
    assert [(c.step, c.moved, c.up, c.down) for c in found.causes] == [("not known", 4, 4, 0)]
    assert NOISE not in {c.step for c in found.causes}
