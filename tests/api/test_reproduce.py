"""Runs held against expected numbers: OK, OKish or FAIL, and what the papers' own numbers need."""

import gzip
import json
import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from checkout import SUPPORT
from reruns import CONF

from raypipe.api.cli.main import main
from raypipe.api.cli.main import parser as parser_of
from raypipe.api.reproduce import (
    ExpectedNumber,
    NotReproduced,
    ReproduceResult,
    reproduce,
    reproductions,
    worst,
)
from raypipe.api.session import Session, from_environment, load_recipe
from raypipe.core.errors import ConfError, DataError
from raypipe.metrics.ranking import MEASURES, read_qrels
from raypipe.readers.beir import write_pool
from raypipe.recipes.recipe import ranking_of

RUNS = Path(os.environ.get("RAYPIPE_DATA", ".")) / "crag/runs"
GIVEN = {
    "nq": "openqa/nq_gold_passage_odd.jsonl.gz",
    "qasper": "qasper/train10_full_papers.json.gz",
    "scifact": "scifact",
}


def session(folder, text=None):
    """A session whose conf is the shipped one; `text`: with another reproduce.yaml in front."""
    conf = str(CONF.folders[0])
    if text is not None:
        (folder / "conf").mkdir()
        (folder / "conf/reproduce.yaml").write_text(text)
        conf = str(folder / "conf")
    return Session(from_environment({"RAYPIPE_CONF": conf, "RAYPIPE_HOME": str(folder / "home")}, folder))


@pytest.mark.parametrize(
    ("found", "verdict"),
    [(0.7, "OK"), (0.7049, "OK"), (0.68, "OKish"), (0.73, "FAIL"), (None, "FAIL"), (float("nan"), "FAIL")],
)
def test_a_number_is_ok_okish_or_fails(found, verdict):
    assert ExpectedNumber(measure="f1", value=0.7, ok=0.005, okish=0.02).checked(found).verdict == verdict


def test_a_run_is_as_good_as_its_worst_number():
    expected = ExpectedNumber(measure="f1", value=0.7, ok=0.005, okish=0.02)

    def result(*verdicts):
        numbers = tuple(replace(expected.checked(0.5), verdict=v) for v in verdicts)
        return ReproduceResult("x", "", worst(numbers), numbers)

    together = [result("OK"), result("OK", "OKish"), result("OKish", "FAIL")]
    assert [r.verdict for r in together] == ["OK", "OKish", "FAIL"]
    result("OK", "OKish").check()
    with pytest.raises(NotReproduced, match=r"1 of 2 numbers differ .* f1: expected 0\.7, found 0\.5"):
        result("OK", "FAIL").check()
    assert NotReproduced.exit_code == 7


def test_every_run_names_recipes_scores_and_measures_that_there_are(tmp_path):
    known = reproductions(session(tmp_path))
    assert set(known.runs) == {*GIVEN, "crag-runs"}
    for run in known.runs.values():
        if run.how in ("rank", "pool"):
            ranks = ranking_of(load_recipe(run.recipe, conf=CONF))
            scores = {w.removeprefix("hits.") for s in ranks.question for w in s.step.writes()}
            assert {e.by for e in run.expected} <= {*scores, "final"}
            assert {e.measure for e in run.expected} <= set(MEASURES)
        elif run.recipe:
            load_recipe(run.recipe, conf=CONF)
        assert all(0 <= e.ok <= max(e.ok, e.okish) and e.value == e.value for e in run.expected)


@pytest.mark.slow
def test_every_published_number_names_a_recipe_and_a_command_that_can_be_typed(tmp_path):
    every, parser = reproductions(session(tmp_path)).published, parser_of()
    for recipe in {published.recipe for published in every}:
        load_recipe(recipe, str(SUPPORT / "fake_models.yaml"), CONF)  # two have no pinned commit
    for published in every:
        program, *rest = shlex.split(published.command)
        args = parser.parse_args(rest)
        assert program == "raypipe" and args.recipe == published.recipe
        cluster = getattr(args, "cluster", "laptop")
        assert (CONF.folders[0] / "clusters" / f"{cluster}.yaml").is_file()


TWO = """
runs:
  two:
    about: two systems
    how: score
    rule: accuracy
    data: a folder with a.jsonl.gz
    minutes: 1
    expected:
      - {measure: score, by: a, value: 0.5, ok: 0.0001, okish: 0.01}
      - {measure: n_miss, by: a, value: WRONG, ok: 0, okish: 0}
published: []
"""


def predictions(folder):
    """Two right, one abstained, one wrong."""
    said = ["anna", "anna", "i don't know", "berta"]
    rows = [
        {"query": f"q{i}", "answer": "anna", "prediction": p, "judge_response": "False"}
        for i, p in enumerate(said)
    ]
    with gzip.open(folder / "a.jsonl.gz", "wt") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)


def test_files_of_predictions_are_scored_and_compared(tmp_path):
    predictions(tmp_path)
    mine = session(tmp_path, TWO.replace("WRONG", "1").replace("value: 0.5", "value: 0.25"))
    found = reproduce("two", tmp_path, session=mine)
    assert found.verdict == "OK" and [n.found for n in found.rows()] == [0.25, 1]
    (tmp_path / "conf/reproduce.yaml").write_text(TWO.replace("WRONG", "2"))
    with pytest.raises(NotReproduced, match="2 of 2"):
        reproduce("two", tmp_path, session=mine)
    assert reproduce("two", tmp_path, check=False, session=mine).verdict == "FAIL"


def test_gold_passages_of_all_questions_are_one_collection(tmp_path):
    rows = [
        {"question": f"who is {n}?", "answers": [n], "ctxs": [{"title": n, "text": f"{n} lives in a house."}]}
        for n in ("anna", "berta", "anna")
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_pool(file, tmp_path / "pool", 2)
    corpus = [json.loads(line) for line in (tmp_path / "pool/corpus.jsonl").read_text().splitlines()]
    assert [d["title"] for d in corpus] == ["anna", "berta"], "an equal passage is one document"
    judged = read_qrels(tmp_path / "pool/qrels.trec")
    assert judged == {"q0": {corpus[0]["_id"]: 1}, "q1": {corpus[1]["_id"]: 1}}
    file.write_text('{"question": "who?"}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl:1: expected question and ctxs of title and text"):
        write_pool(file, tmp_path / "pool", 2)


def test_another_name_and_data_that_is_not_there_are_said(tmp_path):
    mine = session(tmp_path, TWO.replace("WRONG", "1"))
    with pytest.raises(ConfError, match=r"reproduce three: no such run; known: two"):
        reproduce("three", tmp_path, session=mine)
    with pytest.raises(DataError, match=r"expected a folder with a\.jsonl\.gz; found nothing there"):
        reproduce("two", tmp_path / "none", session=mine)
    with pytest.raises(DataError, match=r"expected a\.jsonl or a\.jsonl\.gz in it, found neither"):
        reproduce("two", tmp_path, session=mine)


@pytest.mark.slow
@pytest.mark.skipif(not RUNS.is_dir(), reason="RAYPIPE_DATA names no folder with crag/runs/")
def test_the_command_says_each_number_and_its_verdict(capsys):
    assert main(["reproduce", "crag-runs", "--check", "--data", str(RUNS), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "OK" and len(found["numbers"]) == 42
    assert main(["reproduce", "scifact", "--check"]) == 2
    assert "--check: expected --data, a folder with corpus.jsonl" in capsys.readouterr().err
    assert main(["reproduce"]) == 0
    said = capsys.readouterr().out
    assert "What papers state" in said and "raypipe eval db3-task3 --data DIR" in said


@pytest.mark.drill
@pytest.mark.ray
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", GIVEN)
def test_a_run_on_real_data_has_the_expected_numbers(name, data, local_ray, tmp_path, monkeypatch):
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RAYPIPE_CONF", str(CONF.folders[0]))
    assert main(["reproduce", name, "--check", "--data", str(data / GIVEN[name])]) == 0
