"""Two real runs compared, and gates that hold one against the other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from reruns import FAKES, Bench

from raypipe.api.cli.main import main
from raypipe.api.compare import compare
from raypipe.contrib.world.write import write
from raypipe.core.records import Question, Reply
from raypipe.runs.changes import changes, compared_steps, parting
from raypipe.runs.record import AnswerKey, read
from raypipe.runs.release import live
from raypipe.runs.stage_records import StageRecord, describe
from raypipe.store import Store

pytestmark = pytest.mark.slow

SURE = FAKES.replace("threshold: 0.5\n", "threshold: 0.0\n")
OTHER = SURE.replace("top: 10}", "top: 3}")
FITTED = """fitted: {threshold: 0.6, bias: 0.0, weights: {confidence: 2.0}, means: {confidence: 0.0},
      fitted_on: {data: none, split: none, metric: none}}"""
DOUBTS = SURE.replace("{prefer: [extract]}", f"{{prefer: [extract], {FITTED}}}")
DEMOTES = SURE.replace("  - decide", "  - demote: {reply: extract, facts: extract_others}\n  - decide")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home: Path = tmp_path_factory.mktemp("runs")
    write(home / "world", 8, pages=3, seed=9, page_chars=1000)
    bench = Bench(home, home / "world")
    for name, recipe in (("sure", SURE), ("again", SURE), ("other", OTHER), ("doubts", DOUBTS)):
        bench.run(recipe, out=name)
    return home


@pytest.mark.drill
def test_a_run_is_never_better_than_itself(folder: Path) -> None:
    (found,) = compare(folder / "sure", folder / "again").comparisons
    assert found.verdict == "cannot tell" and found.score.difference == 0 and found.causes == ()
    (itself,) = compare(folder / "sure", f"{folder}/./sure").comparisons
    assert itself.same_run and not found.same_run


def test_the_causes_name_the_changed_step_and_their_shares_sum_to_the_difference(folder: Path) -> None:
    (found,) = compare(folder / "sure", folder / "other").comparisons
    assert found.causes and sum(c.difference for c in found.causes) == pytest.approx(found.score.difference)
    assert {c.field for c in found.causes} == {"rerank.top"}


@pytest.mark.parametrize("runs", [("sure", "doubts"), ("doubts", "sure")])
def test_a_fit_that_restates_a_confidence_is_the_cause_and_no_noise(
    folder: Path, runs: tuple[str, str]
) -> None:
    (found,) = compare(folder / runs[0], folder / runs[1]).comparisons
    assert [(c.step, c.field) for c in found.causes] == [("decide", "decide.fitted")]
    store, (old, new) = Store.open(str(folder / "store")), (read(folder / name) for name in runs)
    told = changes(store, old, new)
    assert told.changed and {c.step for c in told.changed} | set(told.other_path) == {"decide"}
    assert {c.cause.field for c in told.changed if c.cause} == {"fitted"}


def test_an_added_step_that_replaces_a_reply_is_where_paths_diverge_and_not_the_unchanged_step_before(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, tmp_path / "world")
    stages, more = (describe(bench.pipeline(text).recipe) for text in (SURE, DEMOTES))
    replies = Reply("an invalid one", "answered", 0.9), Reply("i don't know", "abstained")
    said, withdrawn = (Question("q", "who?", replies={"extract": r}) for r in replies)
    key = AnswerKey("q", "key", "row", False)
    where = parting(said, withdrawn, key, key, compared_steps(stages, more))
    assert isinstance(where, StageRecord) and where.step == "Demote"


def test_the_changed_step_of_a_run_in_a_copy_of_the_store_is_named(folder: Path, tmp_path: Path) -> None:
    for name in ("store", "other"):
        shutil.copytree(folder / name, tmp_path / name)
    record = tmp_path / "other" / "run.json"
    record.write_text(record.read_text().replace(str(folder / "store"), str(tmp_path / "store")))
    (found,) = compare(folder / "sure", tmp_path / "other").comparisons
    assert {c.field for c in found.causes} == {"rerank.top"}


def test_gates_hold_a_run_against_the_live_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store.open(str(folder / "store"))
    assert main(["promote", str(folder / "sure"), "--gate", "better"]) == 2
    assert "nothing is live to compare with" in capsys.readouterr().err
    assert main(["promote", str(folder / "sure")]) == 0
    first = live(store)
    assert main(["promote", str(folder / "again"), "--gate", "better"]) == 7
    said = capsys.readouterr().err
    assert "gate better: " in said and "cannot tell" in said and "live stays as it is" in said
    assert main(["promote", str(folder / "again"), "--gate", "not-worse:0.001"]) == 7
    assert "worse, 0.001 is allowed" in capsys.readouterr().err
    assert live(store) == first
    gates = ["--gate", "not-worse:2", "--against", str(folder / "other"), "--json"]
    assert main(["promote", str(folder / "again"), *gates]) == 0
    assert json.loads(capsys.readouterr().out)["gates"] == ["not-worse:2"]


def test_a_release_and_a_run_of_another_question_with_the_same_id_are_not_compared_on_it(
    tmp_path: Path,
) -> None:
    write(tmp_path / "world", 8, pages=3, seed=9, page_chars=1000)
    bench = Bench(tmp_path, tmp_path / "world")
    bench.run(SURE, out="before")
    assert main(["promote", str(tmp_path / "before")]) == 0
    first, *others = bench.lines()
    bench.run(SURE, data=bench.data([{**first, "query": "who else?"}, *others]), out="after")
    (found,) = compare("live", tmp_path / "after", store=tmp_path / "store").comparisons
    assert found.other_questions == (first["interaction_id"],)


@pytest.mark.parametrize("gate", ["better:0.1", "not-worse:0", "not-better"])
def test_a_gate_that_is_none_says_what_is_expected(
    folder: Path, gate: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["promote", str(folder / "sure"), "--gate", gate]) == 2
    assert f"gate {gate!r}: expected" in capsys.readouterr().err


def test_answers_that_rest_on_other_evidence_are_no_noise(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raypipe.runs.changes.parting", lambda *_: "evidence")
    (found,) = compare(folder / "sure", folder / "other").comparisons
    assert {(c.step, c.field) for c in found.causes} == {("evidence", "")}
