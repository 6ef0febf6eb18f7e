"""Fits of `decide` and `fuse` on small runs: what is written, what it does, and where it is marked."""

from __future__ import annotations

import io
import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from outputs import schemas
from reruns import FAKES, Bench
from rich.console import Console

from raypipe.api.cli.main import main
from raypipe.api.compare import compare
from raypipe.api.experiments import DecideFitResult, fit_decide, fit_fuse
from raypipe.contrib.world.write import write
from raypipe.core.digests import half_of
from raypipe.core.errors import ConfError, DataError
from raypipe.core.plugins import Plugin
from raypipe.evaluation.evaluate import Evaluation, evaluate
from raypipe.evaluation.fit_run import question_of
from raypipe.evaluation.judge import OwnJudge
from raypipe.evaluation.options import EvalOptions
from raypipe.evaluation.report.experiments import print_fit
from raypipe.evaluation.result_table import each
from raypipe.steps.decide import features_of

pytestmark = [pytest.mark.slow, pytest.mark.drill]

SURE = FAKES.replace("threshold: 0.5", "threshold: 0.0")
RANKS = SURE[: SURE.index("  - rerank:")]


def agrees(question: str, prediction: str, truths: tuple[str, ...]) -> bool:
    return any(t.lower() in prediction.lower() for t in truths)


JUDGE = OwnJudge(agrees, Plugin("fits:agrees", "0" * 32), "official")


@dataclass(frozen=True)
class FittedRun:
    """A run that answers all it can, a fit to its half 0, and a run with that fit."""

    bench: Bench
    always: Evaluation
    fit: DecideFitResult
    done: Evaluation

    def rows(self, done: Evaluation) -> dict[str, dict[str, Any]]:
        return {r["id"]: r for r in each(done.folder.results)}


def run(bench: Bench, text: str, out: str, **more: Any) -> Evaluation:
    return evaluate(
        bench.pipeline(text), [bench.world], bench.folder / out, EvalOptions("crag", **more), JUDGE
    )


def with_fit(file: Path, text: str = SURE) -> str:
    return text.replace("{prefer: [extract]}", f"{{prefer: [extract], fitted: {file}}}")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> FittedRun:
    home: Path = tmp_path_factory.mktemp("fits")
    write(home / "world", 60, pages=2, seed=6, page_chars=1000)
    bench = Bench(home, home / "world")
    always = run(bench, SURE, "always")
    fit = fit_decide(always.folder.path, 0, home / "abstain.yaml")
    # Few answers of this world are worth to be kept back: a higher threshold lets the tests see some.
    written = fit.file.read_text()
    fit.file.write_text(written.replace(f"threshold: {fit.fitted.threshold}\n", "threshold: 0.75\n"))
    found = FittedRun(bench, always, fit, always)
    return replace(found, done=run(bench, with_fit(fit.file), "fitted"))


def test_a_fit_of_decide_says_what_it_is_worth_on_the_other_half(made: FittedRun) -> None:
    report, found = made.fit.report, made.fit.to_dict()["report"]
    jsonschema.validate(
        json.loads(made.fit.file.with_suffix(".json").read_text()), dict(schemas())["fit decide"]
    )
    ours = {id for id in made.rows(made.always) if half_of(id) == 0}
    assert found["fitted_questions"] == len(ours) and found["unseen_questions"] == 60 - len(ours)
    assert made.fit.fitted.fitted_on.n == len(ours) == len(made.fit.fitted.fitted_on.seen.split())
    always = next(p for p in found["unseen"] if p["policy"] == "every answer")
    values = [r["measures"]["score"] for id, r in made.rows(made.always).items() if id not in ours]
    assert always["score"] == pytest.approx(sum(values) / len(values))
    assert {p["policy"].partition(",")[0] for p in found["unseen"]} >= {"fitted", "stated confidence"}
    assert 0 <= found["calibration"]["ece"] <= 1 and found["stated"]["n"] == found["unseen_answers"]
    shown = io.StringIO()
    print_fit(Console(file=shown, width=200), report)
    for b in found["calibration"]["bins"]:
        assert re.search(rf"{b['mean']:.2f} +{b['n']} +{b['right']:.2f} ", shown.getvalue())
    assert made.fit.table().num_rows == len(found["unseen"])


def test_a_run_with_the_fit_abstains_below_its_threshold_by_the_probability_that_the_table_gives(
    made: FittedRun,
) -> None:
    fitted = made.fit.fitted
    before, after = made.rows(made.always), made.rows(made.done)
    kept = 0
    for id, row in before.items():
        if row["outcome"] != "answered":
            assert after[id]["outcome"] == row["outcome"]
            continue
        p = fitted.probability(features_of(question_of(row), "extract", ("extract",)))
        reply = next(r for r in after[id]["replies"] if r["step"] == "extract")
        assert reply["confidence"] == pytest.approx(p, abs=1e-12)
        assert after[id]["outcome"] == ("answered" if p >= 0.75 else "abstained")
        kept += p >= 0.75
        if p >= 0.75:
            assert after[id]["answer"] == row["answer"] and after[id]["confidence"] == reply["confidence"]
    assert 0 < kept < sum(r["outcome"] == "answered" for r in before.values())


def test_what_a_fit_has_seen_is_marked_wherever_its_score_stands(
    made: FittedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = made.rows(made.done)
    assert {id for id, r in rows.items() if r["seen"]} == {id for id in rows if half_of(id) == 0}
    assert not any(r["seen"] for r in made.rows(made.always).values())
    report = json.loads(made.done.folder.record.read_text())
    jsonschema.validate(report, dict(schemas())["eval"])
    mine = next(f for f in report["fits"] if f["step"] == "decide")
    assert mine["seen"] == mine["n"] and mine["of"] == 60 and report["unseen"]["of"] == 60 - mine["n"]
    values = [r["measures"]["score"] for r in rows.values() if not r["seen"]]
    assert report["unseen"]["mean"] == pytest.approx(sum(values) / len(values))
    assert f"seen: {mine['n']} of 60 questions" in made.done.folder.page.read_text()

    first, second = str(made.always.folder.path), str(made.done.folder.path)
    (found,) = compare(first, second).comparisons
    assert found.seen == (0, mine["n"]) and found.score.n == 60
    (rest,) = compare(first, second, unseen=True).comparisons
    assert rest.seen == (0, 0) and rest.score.n == 60 - mine["n"]
    assert main(["compare", first, second]) == 0
    assert f"has seen {mine['n']} of the 60 questions" in capsys.readouterr().out
    assert main(["promote", second, "--gate", "score>=.99"]) == 7
    assert f"{mine['n']} of its questions were seen by a fit" in capsys.readouterr().err
    assert main(["promote", second]) == 0
    assert f"{mine['n']} of its questions were seen by a fit" in capsys.readouterr().out
    (live,) = compare(first, "live", store=made.done.record.store).comparisons
    assert live.seen == (0, mine["n"])


def test_the_table_has_the_seconds_of_each_stage_of_questions_that_the_run_answered(made: FittedRun) -> None:
    rows, steps = made.rows(made.always), {s.step: s for s in made.always.record.steps}
    for stage in ("bm25", "rerank", "extract"):
        took = sum(r["seconds"][stage] for r in rows.values())
        assert took == pytest.approx(steps[stage].seconds) and took > 0
    again = run(made.bench, SURE, "again", only=[*rows][:3])
    assert [r["seconds"] for r in each(again.folder.results)] == [None] * 3


def test_numbers_of_another_recipe_are_refused_before_any_work(made: FittedRun) -> None:
    made.bench.pipeline(with_fit(made.fit.file))
    other = SURE.replace("dense: {model: hash-embedder, top: 30}", "dense: {model: hash-embedder, top: 31}")
    with pytest.raises(
        ConfError, match=r"decide: expected fitted numbers of this recipe .*raypipe fit decide RUN"
    ):
        made.bench.pipeline(with_fit(made.fit.file, other))
    weights = made.bench.folder / "weights.yaml"
    weights.write_text("weights: {bm25: 1.0}\nfitted_on: {data: d, split: s, metric: m}\n")
    with pytest.raises(ConfError, match="field 'threshold' is missing"):
        made.bench.pipeline(with_fit(weights))


def test_what_cannot_be_fitted_is_refused(made: FittedRun, tmp_path: Path) -> None:
    always = made.always.folder.path
    with pytest.raises(ConfError, match="--split 2: expected 0 or 1"):
        fit_decide(always, 2)
    with pytest.raises(ConfError, match="was decided by fitted numbers already"):
        fit_decide(made.done.folder.path)
    with pytest.raises(ConfError, match="measure 'map': kind crag has no such"):
        fit_decide(always, measure="map")
    with pytest.raises(DataError, match="expected a label 'page' at every question"):
        fit_decide(always, group="page")
    with pytest.raises(ConfError, match=r"a name that ends with \.yaml"):
        fit_decide(always, out=tmp_path / "fit.json")
    with pytest.raises(DataError, match="expected judged documents"):
        fit_fuse(always)
    with pytest.raises(DataError, match=r"found no run\.json"):
        fit_decide(tmp_path)
    papers = tmp_path / "papers"
    shutil.copytree(always, papers)
    record = json.loads((papers / "run.json").read_text())
    (papers / "run.json").write_text(json.dumps(record | {"kind": "qasper", "lead": "answer_f1"}))
    with pytest.raises(ConfError, match=r"kind qasper, which scores by annotators.* eval --kind qa"):
        fit_decide(papers)
    few = run(made.bench, SURE, "few", only=[*made.rows(made.always)][:8])
    with pytest.raises(DataError, match=r"at least 5 right and 5 wrong answers.* a run of more questions$"):
        fit_decide(few.folder.path)
    unsure = run(made.bench, FAKES, "unsure", only=[*made.rows(made.always)][:8])
    held = r"this one has extract\.threshold=0\.5, raypipe eval \.\.\. --set extract\.threshold=0 has none$"
    with pytest.raises(DataError, match=held):
        fit_decide(unsure.folder.path)


def test_questions_of_a_group_stay_in_one_half(made: FittedRun) -> None:
    fit = fit_decide(made.always.folder.path, 1, made.bench.folder / "by-domain.yaml", group="domain")
    domains = {r["labels"]["domain"]: set() for r in made.rows(made.always).values()}
    for row in made.rows(made.always).values():
        domains[row["labels"]["domain"]].add(fit.fitted.fitted_on.has_seen(row["query"]))
    assert all(len(seen) == 1 for seen in domains.values())
    assert {d for d, seen in domains.items() if seen == {True}} == {d for d in domains if half_of(d) == 1}
    assert "its domain" in fit.fitted.fitted_on.split


BIRDS = [f"{a}{b}" for a in ("lark", "wren", "kite", "rook", "coot") for b in "abcdefghijkl"]


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bench, Evaluation]:
    """Sixty birds, whose names rare words tell apart and vectors of hashed words do not."""
    home: Path = tmp_path_factory.mktemp("ranked")
    folder = home / "beir"
    folder.mkdir()
    texts = {
        b: f"The {b} lives at lake {i % 7} with {BIRDS[i - 1]}. It eats fish." for i, b in enumerate(BIRDS)
    }
    corpus = [{"_id": id, "title": "", "text": text} for id, text in texts.items()]
    queries = [{"_id": f"q-{b}", "text": f"the {b} lives where, and eats what?"} for b in BIRDS]
    for name, lines in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    (folder / "qrels.trec").write_text("".join(f"q-{b} 0 {b} 1\n" for b in BIRDS))
    bench = Bench(home, folder)
    return bench, evaluate(bench.pipeline(RANKS), [folder], home / "out", EvalOptions("beir"))


def test_a_fit_of_fuse_is_what_a_run_with_it_scores_on_the_half_that_it_has_not_seen(
    ranked: tuple[Bench, Evaluation], capsys: pytest.CaptureFixture[str]
) -> None:
    bench, done = ranked
    fit = fit_fuse(done.folder.path, 0, bench.folder / "weights.yaml")
    found = fit.to_dict()["report"]
    jsonschema.validate(fit.to_dict(), dict(schemas())["fit fuse"])
    (fitted, own), seen = found["unseen"][:2], found["seen"]
    assert fitted["weighing"] == "fitted" and fitted["score"] >= own["score"]
    assert seen[0]["score"] >= max(w["score"] for w in seen) - 1e-9
    weighed = bench.pipeline(RANKS.replace("missing: min", f"missing: min, fitted: {fit.file}"))
    again = evaluate(weighed, [bench.world], bench.folder / "again", EvalOptions("beir"))
    rows = [r for r in each(again.folder.results) if not r["seen"]]
    assert len(rows) == found["unseen_questions"] < 60
    mean = sum(r["measures"]["ndcg_cut_10"] for r in rows) / len(rows)
    assert mean == pytest.approx(fitted["score"], abs=1e-9)
    assert fit_fuse(again.folder.path, 0, bench.folder / "second.yaml").report.seen_before == 0
    with pytest.raises(
        DataError, match=f"no fit of the recipe has seen, found none \\({60 - len(rows)} questions"
    ):
        fit_fuse(again.folder.path, 1)  # the other half is the one that the weights were fitted to
    assert main(["fit", "fuse", str(done.folder.path), "--scores", "bm25,dense", "--measure", "map"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^weights +map +95 % interval", said, re.MULTILINE), "the measure heads its column"
    assert "that the fit has not seen" in said and "--set fuse.fitted=" in said
    assert (done.folder.path / "fit-fuse.json").exists()


def test_weights_that_cannot_be_fitted_are_refused(ranked: tuple[Bench, Evaluation]) -> None:
    _, done = ranked
    with pytest.raises(ConfError, match=r"no passage of .* has a score 'bm52'; did you mean 'bm25'"):
        fit_fuse(done.folder.path, scores=("bm52", "dense"))
    with pytest.raises(ConfError, match=r"'fuse' is written by fuse or after it.* known: bm25, dense"):
        fit_fuse(done.folder.path, scores=("fuse", "dense"))
    with pytest.raises(ConfError, match="two scores or more to weigh, found dense"):
        fit_fuse(done.folder.path, scores=("dense",))
    with pytest.raises(
        ConfError, match=r"--step fuse:last: .* no such fuse; known: fuse|did you mean 'fuse'"
    ):
        fit_fuse(done.folder.path, step="fuse:last")
    with pytest.raises(ConfError, match="ends with fuse; expected decide"):
        fit_decide(done.folder.path)
