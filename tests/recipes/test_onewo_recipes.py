"""The Onewo recipes on an invented collection in OAG-QA's files: union, columns, weights, output."""

import asyncio
import io
import json
from dataclasses import replace

import numpy as np
import pytest
import yaml
from checkout import ROOT, SUPPORT
from small_data import oag

from raypipe import readers
from raypipe.api.cli.main import main
from raypipe.api.experiments import fit_fuse
from raypipe.api.finished_runs import export_run
from raypipe.api.session import load_recipe
from raypipe.core import arrow, config
from raypipe.core.arrow import id_texts
from raypipe.core.conf import Conf
from raypipe.core.digests import model_identity
from raypipe.core.errors import ConfError
from raypipe.core.progress import Progress
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.evaluation.result_table import each
from raypipe.metrics import ranking
from raypipe.models.fake import Scripted
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import CorpusExecutor, QuestionExecutor
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.store import Store
from raypipe.store.index import MemoryIndex
from raypipe.text.sanitize import clean

CONF = Conf((ROOT / "conf",))
MODELS = str(SUPPORT / "fake_models.yaml")
RECIPES = ("onewo-recall", "onewo-concat", "onewo-llm", "onewo-submitted")
PAPERS, QUESTIONS = 240, 6


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return oag(tmp_path_factory.mktemp("onewo"), PAPERS, QUESTIONS)


def said(chat, sampling, adapter):
    """What a language model writes: keywords in bullets, or a text, of the question's own words."""
    line = next(x for x in chat[-1].content.splitlines() if x.startswith("Question: "))
    words = line.removeprefix("Question: ").split()
    if chat[-1].content.endswith("Keywords:"):
        return "Keywords:\n" + "\n".join(f"- {w}" for w in words[-4:])
    return "I don't know all of it: " + " ".join(reversed(words))


class WatchedKit(LocalKit):
    """Keeps what each embedder was asked, and the chats."""

    def __init__(self):
        super().__init__(None, "transformers")
        self.texts: dict[tuple[str, str], list[str]] = {}
        self.llm = Scripted(said, max_model_len=8192)

    def with_index(self, index):
        self._index = index
        return self

    def embedder(self, model):
        embed = super().embedder(model)

        async def watched(texts, role):
            self.texts.setdefault((model.name, role), []).extend(texts)
            return await embed(texts, role)

        return watched

    def generator(self, model):
        return self.llm.generate


def opened(name, **sets):
    return load_recipe(name, MODELS, CONF, sets=[f"{k}={v}" for k, v in sets.items()])


@pytest.fixture(scope="module")
def done(data):
    """Recipe -> its questions and kit, ranked in this process; and the vectors that were searched."""
    made = {}

    def of(name):
        if name not in made:
            recipe, kit = opened(name), WatchedKit()
            rows = list(readers.open([data], "oag", readers.ReadCounts()))
            sources = {s.id: s for r in rows for s in r.sources}

            async def run():
                corpus = await CorpusExecutor(recipe, kit)(arrow.corpus_table(list(sources.values())))
                vectors = {model_identity(m): corpus.vectors[m.name] for m in recipe.embedders()}
                index = MemoryIndex(corpus.texts, corpus.passages, vectors)
                ask = QuestionExecutor(recipe, kit.with_index(index), None)
                return await ask([r.question for r in rows if r.question]), corpus.vectors

            made[name] = (recipe, kit, *asyncio.run(run()))
        return made[name]

    return of


def recalled(question):
    """Recall model -> the passages that it found."""
    found: dict[str, set[str]] = {}
    for h in question.hits:
        for name in h.scores:
            if name.startswith("recall-"):
                found.setdefault(name, set()).add(h.chunk)
    return found


def test_the_candidates_are_the_union_of_six_lists_of_150_each(done):
    _, _, questions, vectors = done("onewo-recall")
    assert len(questions) == QUESTIONS
    for q in questions:
        lists = recalled(q)
        assert len(lists) == 6 and all(len(found) == 150 for found in lists.values())
        union = set().union(*lists.values())
        assert {h.chunk for h in q.hits} == union and 150 < len(union) <= 900
    [q, *_] = questions
    table = vectors["all-MiniLM-L12-v2"]
    matrix = np.stack(table["vector"].to_pylist())
    text = f"{q.text}\n{clean(q.body)}"
    [query] = asyncio.run(LocalKit(None).embedder(load("all-MiniLM-L12-v2"))([text], "query"))
    scores = matrix.astype(np.float64) @ query.astype(np.float64)
    cut = np.sort(scores)[-150]
    sources = np.array(id_texts(table["source"]))
    found = {c.partition(":")[0] for c in recalled(q)["recall-minilm-l12"]}
    assert set(sources[scores > cut]) <= found <= set(sources[scores >= cut]), "numpy's best 150, up to ties"


def load(name):
    return next(m for m in opened("onewo-recall").models() if m.name == name)


@pytest.mark.slow
def test_every_model_reads_queries_and_papers_in_its_own_form(done, data):
    _, kit, questions, _ = done("onewo-llm")
    q = questions[0]
    paper = json.loads((data / "pid-to-title-abs-new.json").read_text())["p0"]
    title, abstract, body = paper["title"], clean(paper["abstract"]), clean(q.body)
    assert body == f"I ask: {q.text} a", "tags and addresses are gone"
    plain, instructed = f"{q.text}\n{body}", f"{q.text}: {body}"
    analysed = f"Question: {q.text}\n\n The Detailed Analysis of the Question: "
    keywords = ", ".join(q.text.split()[-4:])
    answer = "I don't know all of it: " + " ".join(reversed(q.text.split()))
    llm = [
        analysed + body,
        analysed + q.body,
        f"{analysed}{body}\n\n AI-Response: {answer}",
        f"{analysed}{body}\n\n Keywords: {keywords}",
    ]
    for model, texts, passage in (
        ("all-MiniLM-L6-v2", [plain], f"{title}\n{abstract}"),
        ("bge-large-both-sides", [instructed], f"{title}: {abstract}"),
        ("gte-large-both-sides", [instructed], f"{title}: {abstract}"),
        ("sfr-embedding-mistral", llm, f"Title: {title}\n The Abstract of the Title: {abstract}"),
        ("linq-embed-mistral", llm, f"Title: {title}\n The Abstract of the Title: {abstract}"),
    ):
        assert set(texts) <= set(kit.texts[model, "query"]), model
        assert passage in kit.texts[model, "passage"], model
    assert [q.replies[n].label for n in ("response", "keywords", "glm4")] == ["answered"] * 3


def test_instructions_stand_on_both_sides_where_the_paper_has_them():
    models = config.read_yaml(CONF.file("models.yaml"))
    for name in ("bge-large-both-sides", "bge-m3-both-sides", "gte-large-both-sides"):
        said = "Represent this sentence for searching relevant passages: "
        assert models[name]["query_instruction"] == models[name]["passage_instruction"] == said
    both = [models[n] for n in ("sfr-embedding-mistral", "linq-embed-mistral")]
    assert all(m["query_instruction"].startswith("Instruct: ") for m in both)
    assert all(m["query_instruction"].endswith("\nQuery: ") and m["passage_instruction"] for m in both)
    assert both[0]["query_instruction"] != both[1]["query_instruction"], "two task sentences"
    assert {m["loader"] for m in both} == {"last-token"} and {m["max_tokens"] for m in both} == {2048}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_ranks_twenty_by_the_weighted_sum_of_its_columns(name, done):
    recipe, _, questions, _ = done(name)
    fuse = recipe.question[-1].step
    for q in questions:
        assert q.outcome == "ranked" and len(q.order) == 20 and not q.faults
    if name == "onewo-concat":
        columns = recipe.question[-2].step.weighed()
        assert set(columns.values()) == {1.0} and len(columns) == 5
    else:
        columns = fuse.weighed()
    scores = {h.chunk: sum(w * h.scores[n] for n, w in columns.items()) for h in questions[0].hits}
    best = sorted(scores, key=lambda c: -scores[c])[:20]
    assert [scores[c] for c in best] == pytest.approx([scores[c] for c in questions[0].order])


def test_the_ten_columns_are_two_embedders_by_five_queries(done):
    recipe, _, questions, _ = done("onewo-llm")
    weights = recipe.question[-1].step.weighed()
    assert len(weights) == 10
    assert all(weights.keys() <= h.scores.keys() for q in questions for h in q.hits)


def test_scaled_weights_keep_the_order_and_a_weight_of_0_is_a_dropped_column(done):
    recipe, _, questions, _ = done("onewo-submitted")
    fuse = recipe.question[-1].step
    orders = [q.order for q in questions]
    for c in (0.5, 3.0, 1024.0):
        scaled = replace(fuse, weights={n: c * w for n, w in fuse.weights.items()})
        assert [scaled.fused(q).order for q in questions] == orders
    without = {n: w for n, w in fuse.weights.items() if n != "linq"}
    zero, dropped = replace(fuse, weights={**without, "linq": 0.0}), replace(fuse, weights=without)
    assert [zero.fused(q).order for q in questions] == [dropped.fused(q).order for q in questions]
    assert [dropped.fused(q).order for q in questions] != orders


def test_a_missing_column_is_a_fault_of_the_row_and_one_that_no_step_writes_is_refused(done, tmp_path):
    recipe, _, questions, _ = done("onewo-submitted")
    fuse, q = recipe.question[-1].step, questions[0]
    first = replace(q.hits[0], scores={n: s for n, s in q.hits[0].scores.items() if n != "sfr-response"})
    lame = fuse.fused(replace(q, hits=(first, *q.hits[1:]), order=()))
    assert lame.order == () and lame.faults[0].reason == "missing_score"
    assert "'sfr-response'" in lame.faults[0].detail
    file = tmp_path / "wrong.yaml"
    weights = {"sfr": 1.0, "sfr-keyword": 1.0}
    file.write_text(yaml.safe_dump({"like": "onewo-llm", "set": {"fuse:final.weights": weights}}))
    with pytest.raises(
        ConfError, match=r"reads hits.sfr-keyword, which no earlier step writes; did you mean"
    ):
        load_recipe(str(file), MODELS, CONF)


def pipeline(name, store, runner=inline, models=MODELS, **sets):
    recipe = load_recipe(name, models, CONF, sets=[f"{k}={v}" for k, v in sets.items()])
    worker = WorkerConfig(store.uri, "transformers", "cpu", 1)
    return Pipeline(store, recipe, worker, TaskSizes(100, 4), runner, Progress(io.StringIO(), silent=True))


def checked(done, out):
    """What a run put out: a submission in the published shape, whose MAP@20 is the report's."""
    measures = {m.measure: m for m in done.scored.scores.measures}
    rows = {r["id"]: r for r in each(done.folder.results)}
    file = out / "submission.txt"
    assert export_run(done.folder.path, "oag", file).counts == {"lines": QUESTIONS, "failed": 0}
    lines = [line.split(",") for line in file.read_text().splitlines()]
    assert len(lines) == QUESTIONS and all(len(line) == len(set(line)) == 20 for line in lines)
    run = {
        id: {pid: 20.0 - i for i, pid in enumerate(pids)}
        for id, pids in zip(sorted(rows), lines, strict=True)
    }
    return measures["map_cut_20"].mean, run


@pytest.mark.drill
@pytest.mark.slow
def test_a_run_stores_what_language_models_wrote_and_a_second_one_asks_none_of_it(data, tmp_path):
    store = Store.create(str(tmp_path / "store"))
    first = evaluate(pipeline("onewo-submitted", store), [data], tmp_path / "one", EvalOptions("oag"))
    asked = {s.step: s.computed for s in first.record.steps}
    assert asked["generate:response"] == QUESTIONS and asked["similarity:sfr-response"] == QUESTIONS
    for row in each(first.folder.results):
        [reply] = [r for r in row["replies"] if r["step"] == "response"]
        assert row["id"].startswith("qa-train-") and reply["label"] == "answered" and reply["text"]
    mean, run = checked(first, tmp_path)
    golds = [json.loads(line)["pids"] for line in (data / "qa-train.txt").read_text().splitlines()]
    grades = {id: dict.fromkeys(g, 1) for id, g in zip(sorted(run), golds, strict=True)}
    found = ranking.score(run, grades).per_query.values()
    assert mean == pytest.approx(np.mean([v["map_cut_20"] for v in found])) and mean > 0.05
    other = {"fuse:final.weights": "{sfr: 1.0, linq: 1.0}"}
    second = evaluate(pipeline("onewo-submitted", store, **other), [], tmp_path / "two", EvalOptions("oag"))
    assert not any(s.computed for s in second.record.steps), "other weights ask no model"


@pytest.mark.drill
def test_weights_are_fitted_to_one_half_and_a_run_with_them_asks_no_model(tmp_path):
    data, store = oag(tmp_path, 1000, 50), Store.create(str(tmp_path / "store"))
    done = evaluate(pipeline("onewo-recall", store), [data], tmp_path / "out", EvalOptions("oag"))
    found = fit_fuse(done.folder.path, 0, tmp_path / "weights.yaml", measure="map_cut_20", store=store)
    names = {"minilm-l6", "minilm-l12", "bge-large", "gte-large", "bge-m3"}
    assert found.report.step == "fuse:final" and set(found.fitted.weights) <= names
    assert found.report.fitted_questions >= 20 and found.report.unseen[0].weighing == "fitted"
    fitted = {"fuse:final.fitted": str(found.file)}
    again = evaluate(pipeline("onewo-recall", store, **fitted), [], tmp_path / "next", EvalOptions("oag"))
    assert not any(s.computed for s in again.record.steps)


@pytest.mark.ray
@pytest.mark.drill
def test_a_recipe_runs_by_command_through_ray_on_stand_ins_by_the_real_classes(
    standins, local_ray, tmp_path, capsys
):
    """On the invented collection. The language model is scripted; its engine has tests of its own."""
    tree = yaml.safe_load(standins.read_text())
    tree["qwen1.5-14b-chat-gptq"] = {"kind": "generator", "loader": "scripted", "max_model_len": 8192}
    models = standins.with_name("models.onewo.yaml")
    models.write_text(yaml.safe_dump(tree))
    data, store, out, file = (tmp_path / n for n in ("papers", "store", "out", "submission.txt"))

    def typed(*words):
        assert main([str(w) for w in words]) == 0
        return capsys.readouterr().out

    typed("synth", data, "--papers", PAPERS, "--questions", QUESTIONS)
    place = ("--models", models, "--data", data, "--store", store, "--out", out, "--json")
    measures = {m["measure"]: m for m in json.loads(typed("eval", "onewo-submitted", *place))["measures"]}
    typed("export", out, "--as", "oag", "--out", file)
    lines = [line.split(",") for line in file.read_text().splitlines()]
    assert len(lines) == QUESTIONS and all(len(line) == len(set(line)) == 20 for line in lines)
    ids = sorted(row["id"] for row in each(out / "results.parquet"))
    run = {id: {p: 20.0 - n for n, p in enumerate(line)} for id, line in zip(ids, lines, strict=True)}
    found = ranking.score(run, ranking.read_qrels(data / "qrels.trec")).means["map_cut_20"]
    assert measures["map_cut_20"]["mean"] == pytest.approx(found) and found > 0
    assert "map_cut_20" in (out / "report.html").read_text()
    here = pipeline("onewo-submitted", Store.create(str(tmp_path / "here")), inline, str(models))
    again = evaluate(here, [data], tmp_path / "again", EvalOptions("beir"))
    assert again.scored.scores.of("map_cut_20").mean == pytest.approx(found)
