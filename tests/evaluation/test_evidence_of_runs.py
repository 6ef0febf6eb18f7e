"""What a finished run can be asked: prompts, other shapes, repeats, releases, other judges."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from chat_server import serving
from reruns import CONF, FAKES, MODELS, Bench

from raypipe.api.cli.main import main
from raypipe.api.session import load_recipe, swap_steps
from raypipe.contrib.world.write import write
from raypipe.core.errors import ConfError
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.judged_run import judged_run
from raypipe.evaluation.options import EvalOptions
from raypipe.evaluation.result_table import each
from raypipe.evaluation.scored_run import scored_run
from raypipe.evaluation.sweep import repeats
from raypipe.metrics.ranking import read_run
from raypipe.models.hosts import EndpointAddress
from raypipe.recipes.read_recipe import swapped
from raypipe.runs.release import live
from raypipe.runs.run_parts import RunFolder
from raypipe.store import Store

pytestmark = pytest.mark.slow

SURE = FAKES.replace("threshold: 0.5", "threshold: 0.0")
OTHER = SURE.replace("top: 10}", "top: 3}")
ASKING = (
    FAKES[: FAKES.index("\n  - extract")]
    + "\n  - generate: {model: scripted, prompt: crag/vanilla, into: llm, max_tokens: 50}"
    + "\n  - decide: {prefer: [llm]}\n"
)
BRIEF = ASKING.replace(
    "prompt: crag/vanilla",
    'prompt: {system: "Answer in three words.", user: "{{ text }}", variables: [text]}',
)
PICKED = "compress: {model: scripted, prompt: rag/sentences, tokens: 9, tokenizer: whitespace, max_tokens: 3}"
SHORT = ASKING.replace("generate:", f"{PICKED}\n  - generate:").replace("max_tokens: 50", "max_tokens: 2")
JUDGES = """
def kind(question, prediction, truths):
    return True


def strict(question, prediction, truths):
    return any(t.lower() in prediction.lower() for t in truths)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home: Path = tmp_path_factory.mktemp("evidence")
    write(home / "world", 8, pages=2, seed=9, page_chars=1000)
    bench = Bench(home, home / "world")
    for name, recipe in (
        ("sure", SURE),
        ("other", OTHER),
        ("asking", ASKING),
        ("brief", BRIEF),
        ("short", SHORT),
    ):
        bench.run(recipe, out=name)
        (home / f"{name}.yaml").write_text(recipe)
    (home / "evidencejudges.py").write_text(JUDGES)
    return home


@pytest.fixture
def said(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Any:
    """Runs a command: exit code, what it printed, what it said on stderr."""
    monkeypatch.setenv("RAYPIPE_CONF", str(CONF.folders[0]))
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path / "home"))
    monkeypatch.syspath_prepend(str(folder))

    def run(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(w) for w in words])
        out, err = capsys.readouterr()
        return code, out, err

    yield run
    sys.modules.pop("evidencejudges", None)


def test_the_table_has_the_prompts_of_replies_with_their_tokens(folder: Path) -> None:
    rows = list(each(RunFolder(folder / "asking").results))
    for row in rows:
        (reply,) = row["replies"]
        assert [m["role"] for m in reply["prompt"]] == ["system", "user"]
        assert row["query"] in reply["prompt"][1]["content"]
        assert reply["prompt_tokens"] > 5 and reply["generated_tokens"] > 0 and reply["finish"]
    assert all(
        r["prompt"] is None for row in each(RunFolder(folder / "sure").results) for r in row["replies"]
    )


def test_replies_that_were_cut_are_counted_and_are_wrong_by_the_rule_words(folder: Path, said: Any) -> None:
    report = json.loads(RunFolder(folder / "short").record.read_text())
    cut = [(c["step"], c["cut"], c["replies"], c["tokens"]) for c in report["cut_replies"]]
    assert cut == [("compress", 8, 8, 3), ("generate:llm", 8, 8, 2)]
    _, out, _ = said("inspect", folder / "short", "--losses")
    assert "8 of 8 replies of compress were cut at 3 tokens" in out
    assert "8 of 8 replies of generate:llm were cut at 2 tokens" in out
    run = judged_run(folder / "short", "words")
    open_ = [v for v in run.marks().verdicts if v.outcome != "unscored"]
    assert open_ and all((v.outcome, v.reason) == ("hallucination", "cut") for v in open_)
    assert json.loads(RunFolder(folder / "sure").record.read_text())["cut_replies"] == []


def test_other_shapes_are_made_from_the_table(folder: Path, said: Any, tmp_path: Path) -> None:
    assert said("export", folder / "sure", "--as", "predictions", "--out", tmp_path / "p.jsonl")[0] == 0
    assert (tmp_path / "p.jsonl").read_text() == (folder / "sure/predictions.jsonl").read_text()
    code, out, _ = said("export", folder / "sure", "--as", "crag", "--out", tmp_path / "c.jsonl", "--json")
    assert code == 0 and json.loads(out)["counts"]["lines"] == 8
    lines = [json.loads(x) for x in (tmp_path / "c.jsonl").read_text().splitlines()]
    rows = list(each(RunFolder(folder / "sure").results))
    assert [x["prediction"] for x in lines] == [r["answer"] for r in rows]
    assert [x["interaction_id"] for x in lines] == [r["id"] for r in rows]
    assert said("export", folder / "sure", "--as", "trec", "--out", tmp_path / "r.trec")[0] == 0
    run = read_run(tmp_path / "r.trec")
    first = next(r for r in rows if r["hits"])
    best = max(run[first["id"]], key=lambda name: run[first["id"]][name])
    assert best == first["hits"][0]["url"]
    code, _, err = said("export", folder / "world", "--as", "crag", "--out", tmp_path / "x")
    assert code == 3 and "expected the table of a finished eval" in err


def test_a_folder_is_scored_as_its_report_says(folder: Path, said: Any) -> None:
    report = json.loads((folder / "sure/run.json").read_text())
    for place in (folder / "sure", folder / "sure/predictions.jsonl"):
        found = json.loads(said("score", "crag", place, "--json")[1])
        assert found["by_rule"] == report["by_rule"]


def test_runs_of_other_judges_are_refused_until_one_judges_them_all(
    folder: Path, said: Any, tmp_path: Path
) -> None:
    judged = tmp_path / "judged.jsonl"
    words = ("score", "crag", folder / "sure", "--judge", "evidencejudges:kind", "--out", judged)
    code, out, _ = said(*words)
    assert code == 0 and "judge: evidencejudges:kind@" in out and "0 unscored" in out
    code, _, err = said("compare", judged, folder / "other")
    assert code == 3 and "found judge evidencejudges:kind@" in err and "--rejudge MODEL" in err
    code, out, _ = said("compare", judged, folder / "other", "--rejudge", "--json")
    (alike,) = json.loads(out)["comparisons"]
    assert code == 0 and alike["judge"].startswith("evidencejudges:kind@")
    code, out, _ = said("compare", judged, folder / "other", "--rejudge", "evidencejudges:strict", "--json")
    (strict,) = json.loads(out)["comparisons"]
    assert code == 0 and strict["judge"].startswith("evidencejudges:strict@")
    assert strict["score"]["before"] < alike["score"]["before"]
    code, _, err = said("compare", folder / "sure", folder / "other", "--rejudge")
    assert code == 2 and "names no judge to take for all" in err


@pytest.mark.parametrize(("before", "after"), [("asking", "brief"), ("sure", "other")])
def test_the_shares_of_a_change_sum_to_the_difference_and_none_of_it_is_noise(
    folder: Path, said: Any, before: str, after: str
) -> None:
    words = ("compare", folder / before, folder / after, "--rejudge", "evidencejudges:strict", "--json")
    (found,) = json.loads(said(*words)[1])["comparisons"]
    assert found["score"]["n"] == 8 and found["causes"]
    assert sum(c["difference"] for c in found["causes"]) == pytest.approx(found["score"]["difference"])
    changed = {"brief": "generate:llm.prompt", "other": "rerank.top"}[after]
    assert {c["field"] for c in found["causes"]} == {changed}


def test_answers_are_cut_by_a_tokenizer_that_is_here_and_by_no_other(
    folder: Path, said: Any, tmp_path: Path
) -> None:
    lines = [
        {"query": "a?", "answer": "x y", "prediction": "x y", "judge_response": '{"score": 1}'},
        {"query": "b?", "answer": "x", "prediction": "w " * 80, "judge_response": '{"score": 1}'},
    ]
    file, cut = tmp_path / "p.jsonl", tmp_path / "cut.jsonl"
    file.write_text("".join(json.dumps(x) + "\n" for x in lines))
    code, out, _ = said("score", "crag", file, "--trim", "whitespace", "--out", cut, "--json")
    found = json.loads(out)
    score = found["by_rule"]["score"]
    assert code == 0 and found["trim"].startswith("75 tokens of whitespace")
    assert (score["n_correct"], score["n_unscored"]) == (1, 1), "the judge had read the longer answer"
    written = [json.loads(x) for x in cut.read_text().splitlines()]
    assert [len(x["prediction"].split()) for x in written] == [2, 75]
    code, _, err = said("compare", file, cut)
    assert code == 3 and "found trim none and 75 tokens of whitespace" in err
    assert said("compare", file, cut, "--trim", "whitespace")[0] == 0
    code, _, err = said("score", "crag", file, "--trim")
    assert code == 4 and "llama-2-tokens" in err
    code, _, err = said("score", "crag", file, "--trim", "hash-embedder")
    assert code == 2 and "expected a tokenizer, found a model of kind embedder" in err


def test_releases_are_compared_by_their_ids_or_as_live(folder: Path, said: Any) -> None:
    store = folder / "store"
    assert said("promote", folder / "sure")[0] == said("promote", folder / "other")[0] == 0
    first, second = (r["id"] for r in json.loads(said("releases", "--store", store, "--json")[1])["releases"])
    code, out, _ = said("compare", first, "live", "--store", store, "--json")
    (found,) = json.loads(out)["comparisons"]
    assert code == 0 and (found["before"], found["after"]) == (f"release {first}", f"release {second}")
    (by_folder,) = json.loads(said("compare", folder / "sure", folder / "other", "--json")[1])["comparisons"]
    for name in ("score", "slices", "causes", "verdict"):
        assert found[name] == by_folder[name]
    assert found["slices"] and found["causes"]
    code, _, err = said("compare", first, "r0009-aaaa", "--store", store)
    assert code == 2 and "has no such release" in err
    code, _, err = said("compare", folder / "sure", folder / "absent")
    assert code == 3 and "absent" in err
    code, _, err = said("compare", first, "live", "--store", store, "--rejudge", "evidencejudges:kind")
    assert code == 2 and "Name the folder of run" in err


def test_a_bound_holds_for_the_end_of_the_interval_and_says_what_is_missing(folder: Path, said: Any) -> None:
    score = json.loads((folder / "sure/run.json").read_text())["by_rule"]["score"]["score"]
    before = live(Store.open(str(folder / "store")))
    gate = ("promote", folder / "sure", "--min-scored", "0", "--gate")
    code, _, err = said(*gate, f"score>={score - 0.05:.3f}")
    assert code == 7 and "95 % interval" in err and "live stays as it is" in err
    assert "; not scored: " in err
    code, _, err = said("promote", folder / "sure", "--gate", f"score>={score - 0.05:.3f}")
    assert code == 7 and "questions of run" in err and " more; not scored: " in err
    code, _, err = said(*gate, f"score>={score + 0.05:.3f}")
    assert code == 7 and f"has score {score:g}. live" in err
    assert live(Store.open(str(folder / "store"))) == before


def test_a_step_of_another_recipe_is_taken_and_what_does_not_fit_is_refused(folder: Path, said: Any) -> None:
    recipes = {n: load_recipe(str(folder / f"{n}.yaml"), None, CONF) for n in ("sure", "other", "asking")}
    made = swapped(recipes["sure"], "rerank", recipes["other"])
    assert made.digest() == recipes["other"].digest() != recipes["sure"].digest()
    assert made.name == "sure+rerank@other" and made.file != recipes["sure"].file
    assert swapped(recipes["sure"], "rerank", recipes["sure"]).digest() == recipes["sure"].digest()
    with pytest.raises(ConfError, match="recipe 'asking' has no such step"):
        swapped(recipes["sure"], "extract", recipes["asking"])
    with pytest.raises(ConfError, match=r"sure with decide@asking.*decide reads replies\.llm"):
        swapped(recipes["sure"], "decide", recipes["asking"])
    words = ("eval", folder / "sure.yaml", "--store", folder / "store", "--swap")
    swapping = swap_steps(folder / "sure.yaml", [f"rerank={folder / 'other.yaml'}"])
    assert swapping.digest() == made.digest()
    out = folder / "swapped"
    code, said_json, _ = said(*words, f"rerank={folder / 'other.yaml'}", "--out", out, "--json")
    assert code == 0 and json.loads(said_json)["recipe"]["name"] == made.name
    (found,) = json.loads(said("compare", folder / "sure", out, "--json")[1])["comparisons"]
    assert {c["field"] for c in found["causes"]} == {"rerank.top"}
    code, _, err = said(*words, "rerank")
    assert code == 2 and "expected STEP=RECIPE, such as rerank=tuned" in err


@pytest.mark.drill
def test_repeats_of_an_eval_are_the_same_or_cannot_tell(folder: Path, said: Any, tmp_path: Path) -> None:
    words = ("eval", folder / "sure.yaml", "--store", folder / "store", "--out", tmp_path / "k")
    code, out, _ = said(*words, "--repeats", "2", "--json")
    found = json.loads(out)
    assert code == 0 and len(found["scores"]) == 2 and found["spread"] == 0 and found["moved"] == 0
    assert set(found["verdicts"]) <= {"same", "cannot tell"} and len(found["questions"]) == 8
    kept = json.loads((tmp_path / "k/repeats.json").read_text())
    assert kept == found and (tmp_path / "k/repeat-2/report.html").exists()
    with pytest.raises(SystemExit, match="2"):
        said(*words, "--repeats", "0")


@pytest.mark.drill
def test_repeats_ask_a_language_model_again_and_say_how_far_its_answers_move(
    folder: Path, tmp_path: Path
) -> None:
    files = sorted((folder / "world").glob("questions*.jsonl"))
    lines = [json.loads(line) for f in files for line in f.read_text().splitlines()]
    golds = {line["query"]: line["answer"] for line in lines}
    asked: list[str] = []

    def reply(request: Any, body: Any) -> Any:
        text = body["messages"][-1]["content"]
        query = next((q for q in golds if q in text), "")
        if not query:  # whether the server answers
            return request.reply("yes")
        asked.append(query)
        lucky = list(golds).index(query) % 2 == asked.count(query) % 2  # half are right at first, half later
        return request.reply(golds[query] if lucky else "nothing of that kind")

    entry = "noisy: {kind: generator, loader: openai, endpoint: here, model: m, max_model_len: 8192}\n"
    with serving(reply) as server:
        bench = Bench(tmp_path, folder / "world", models=MODELS + entry)
        bench.endpoints = {"here": EndpointAddress(server.url)}
        pipe = bench.pipeline(ASKING.replace("model: scripted", "model: noisy"))
        runs = [
            evaluate(
                pipe, [bench.world], tmp_path / f"repeat-{n}", EvalOptions("crag", fresh=n > 0, kind="qa")
            )
            for n in range(2)
        ]
    found = repeats([scored_run(r.folder.path, "official") for r in runs])
    assert {asked.count(q) for q in golds} == {2}, "the second run asks again"
    assert found.moved > len(golds) / 2 and set(found.verdicts) == {"cannot tell"}
    assert max(q.spread for q in found.questions) == 0.5
