"""The recipes of the QASPER pipeline: their prompts, what they never touch, and answers with fakes."""

import asyncio
import io
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from checkout import ROOT, SUPPORT, TESTS
from small_data import QUESTION, paper

from raypipe import readers
from raypipe.api.cli.main import main
from raypipe.api.finished_runs import export_run
from raypipe.api.scores import score_qasper
from raypipe.api.session import load_recipe
from raypipe.core import arrow
from raypipe.core.conf import Conf
from raypipe.core.digests import model_identity
from raypipe.core.progress import Progress
from raypipe.core.records import Question
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.metrics.overlap import answer_f1
from raypipe.models.fake import Scripted, echo
from raypipe.models.kit import LocalKit
from raypipe.readers.example_pool import ExampleRow, write_pool
from raypipe.readers.qasper import ARXIV, annotators
from raypipe.recipes.executor import CorpusExecutor, QuestionExecutor
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.serving.answerer import Answerer
from raypipe.serving.query import QueryRequest
from raypipe.store import Store
from raypipe.store.index import MemoryIndex

CONF = Conf((ROOT / "conf",))
MODELS = str(SUPPORT / "fake_models.yaml")
RECIPES = (
    "qasper-llm",
    "qasper-fewshot",
    "qasper-documents",
    "qasper-documents-free",
    "qasper-documents-fewshot",
    "qasper-documents-fewshot-cot",
)
REPLIES = [f"Reasoning: the first passage says so.\nAnswer: {said}" for said in ("Yes", "No")]
MARKED = [f"generate:llm.choices={json.dumps(REPLIES)}"]
"""For the recipe that reasons: a model that knows no better chooses between two replies with an answer."""


class CountingKit(LocalKit):
    """Says how often the index was asked for, and keeps the chats."""

    def __init__(self, script=echo):
        super().__init__(None, "transformers")
        self.index_asked = 0
        self.llm = Scripted(script, max_model_len=8192)

    def index(self):
        self.index_asked += 1
        return super().index()

    def with_index(self, index):
        self._index = index
        return self

    def generator(self, model):
        return self.llm.generate


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return made(tmp_path_factory.mktemp("qasper"))


def made(folder):
    """Two papers and a pool, in a folder."""
    (folder / "papers.json").write_text(json.dumps({id: paper(id) for id in ("a1", "b2")}))
    of = ["a1" if n < 3 else str(n) for n in range(12)]
    rows = [ExampleRow(f"What is number {n}?", f"It is {n}", ARXIV + id, "Since.") for n, id in enumerate(of)]
    write_pool(folder / "pool.jsonl", rows)
    return folder


def opened(name, data):
    pool = str(data / "pool.jsonl")
    graphs = {"qasper-train": pool, "qasper-train-explained": pool}
    return load_recipe(name, MODELS, CONF, graphs)


def answered(name, data, kit, batch=50, recipe=None):
    """Every question over its own paper."""
    recipe = recipe or opened(name, data)
    rows = list(readers.open([data / "papers.json"], "qasper", readers.ReadCounts()))
    sources = [s for r in rows for s in r.sources]

    async def run():
        corpus = await CorpusExecutor(recipe, kit)(arrow.corpus_table(sources))
        vectors = {model_identity(m): corpus.vectors[m.name] for m in recipe.embedders()}
        ask = QuestionExecutor(
            recipe, kit.with_index(MemoryIndex(corpus.texts, corpus.passages, vectors)), None
        )
        given = [r.question for r in rows if r.question]
        return [q for i in range(0, len(given), batch) for q in await ask(given[i : i + batch])]

    return asyncio.run(run())


def script(chat, sampling, adapter):
    """A rewriter that is sometimes too wordy, and an answerer that reasons where it is asked to."""
    text = chat[-1].content
    if text.rstrip().endswith("Query:"):
        return (
            "training corpora"
            if "corpora" in text
            else "far more words than the question has in it, and more"
        )
    answer = "Unanswerable" if "long" in text.splitlines()[-2] else "corpus a1"
    return f"Reasoning: it says so.\nAnswer: {answer}" if '"Reasoning:"' in text else answer


def asked(kit):
    """The prompts for answers, whole, in the order in which they were sent."""
    chats = ["\n\n".join(f"{m.role}:\n{m.content}" for m in c.chat) + "\n" for c in kit.llm.asked]
    return [chat for chat in chats if not chat.rstrip().endswith("Query:")]


def first_prompt(name, data):
    kit = CountingKit(script)
    answered(name, data, kit, batch=1)
    return asked(kit)[0]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_answers_papers_alike_in_one_batch_and_one_by_one(name, data):
    whole = answered(name, data, CountingKit(script))
    alone = answered(name, data, CountingKit(script), batch=1)
    assert [(q.answer, q.order) for q in whole] == [(q.answer, q.order) for q in alone]
    assert {q.outcome for q in whole} == {"answered"}
    assert whole[0].answer == "corpus a1"


@pytest.mark.parametrize("name", RECIPES)
def test_a_prompt_has_documents_and_examples_as_its_variant_says(name, data):
    kit = CountingKit(script)
    [first, *_] = answered(name, data, kit, batch=1)
    prompts = asked(kit)
    assert prompts[0] == (TESTS / f"recipes/prompts/{name}.txt").read_text("utf-8")
    documents, shots = "documents" in name, "fewshot" in name
    assert ("<DOC>" in prompts[0]) == documents and prompts[0].count("What is number") == 6 * shots
    assert "number 0?" not in prompts[0] and "number 2?" not in prompts[0]  # of the paper itself
    assert bool(first.order) == documents and len(first.order) <= 6
    assert ("Reasoning: Since." in prompts[0]) == name.endswith("cot")


@pytest.mark.parametrize("name", ["qasper-llm", "qasper-fewshot"])
def test_a_variant_without_documents_touches_no_index(name, data):
    kit = CountingKit(script)
    answered(name, data, kit)
    assert kit.index_asked == 0 and opened(name, data).embedders() == ()


@pytest.mark.parametrize("name", RECIPES)
def test_the_budgets_of_a_prompt_add_up_to_less_than_4000_tokens(name, data):
    steps = {s.name: s.step for s in opened(name, data).question}
    generate, examples = steps["generate:llm"], steps.get("examples")
    own = sum(len(f"{p.system} {p.user}".split()) for p in generate.prompt.values())
    parts = [generate.context_tokens or 0, generate.max_tokens, examples.tokens if examples else 0]
    assert sum(parts) + 2 * own < 4000  # a word of the prompt is at most two tokens on average


def test_a_rewrite_that_is_no_shorter_query_falls_back_to_the_question(data):
    found = answered("qasper-documents", data, CountingKit(script))
    said = {q.text: q.replies["query"] for q in found}
    assert (said[QUESTION].text, said[QUESTION].label) == ("training corpora", "answered")
    kept = said["Is paper a1 long?"]
    assert (kept.text, kept.label) == ("Is paper a1 long?", "kept")
    silent = answered("qasper-documents", data, CountingKit(lambda *_: "  "))
    assert {q.replies["query"].label for q in silent} == {"kept"}
    thinks = answered("qasper-documents", data, CountingKit(lambda *_: "<think> on and on"))
    assert {q.replies["query"].label for q in thinks} == {"kept"}
    assert {q.replies["query"].fault.reason for q in thinks} == {"unreadable"} and kept.fault is None


def test_with_scope_all_passages_of_other_papers_are_found(data):
    own = answered("qasper-documents", data, CountingKit(script))
    assert all({h.source for h in q.hits} <= set(q.sources()) for q in own)
    recipe = opened("qasper-documents", data)
    everywhere = tuple(
        replace(s, step=replace(s.step, scope="all")) if s.name == "dense" else s for s in recipe.question
    )
    whole = replace(recipe, question=everywhere)
    assert whole.searches_all() and not recipe.searches_all()
    found = answered("", data, CountingKit(script), recipe=whole)
    assert any({h.source for h in q.hits} - set(q.sources()) for q in found)


def said(**answer):
    return {"answer": answer}


@pytest.mark.slow
def test_odd_papers_and_questions_are_answered_and_scored_by_their_best_annotator(tmp_path):
    shown = ["We train on corpus nine.", "FLOAT SELECTED: Table 1: Another corpus."]
    spans = said(extractive_spans=["corpus nine"], evidence=shown)
    asked = {
        "split": ("What is the corpus nine that we train on?", [said(unanswerable=True), spans]),
        "open": ("Which corpus is it?", []),
        "bare": ("Is the paper without text long?", [said(yes_no=True)]),
    }
    qas = {
        id: {"question": text, "question_id": id, "answers": answers} for id, (text, answers) in asked.items()
    }
    papers = {
        "p1": {"title": "Nine", "abstract": "We train on corpus nine.", "qas": [qas["split"], qas["open"]]},
        "p2": {"title": "", "abstract": None, "full_text": [], "qas": [qas["bare"]]},
    }
    (tmp_path / "papers.json").write_text(json.dumps(papers))
    store = Store.create(str(tmp_path / "store"))
    with Progress(io.StringIO(), silent=True) as progress:
        place = WorkerConfig(store.uri, "transformers", "cpu", 1)
        recipe = load_recipe("qasper-documents", MODELS, CONF)
        pipeline = Pipeline(store, recipe, place, TaskSizes(100, 100), inline, progress)
        done = evaluate(pipeline, [tmp_path / "papers.json"], tmp_path / "out", EvalOptions("qasper"))
    lines = [json.loads(x) for x in (tmp_path / "out/predictions.jsonl").read_text().splitlines()]
    assert {x["id"]: (x["outcome"], bool(x["hits"])) for x in lines} == {
        "split": ("answered", True),
        "open": ("answered", True),
        "bare": ("answered", False),
    }
    golds = {qa["question_id"]: annotators(qa) for p in papers.values() for qa in p["qas"] if qa["answers"]}
    found = done.scored.scores.values
    assert found.keys() == golds.keys() == {"split", "bare"} and not done.record.faults
    for line in lines:
        if line["id"] in golds:
            f1, kind = answer_f1(line["prediction"], golds[line["id"]])
            assert found[line["id"]]["answer_f1"] == found[line["id"]][f"answer_f1_{kind}"] == f1
    assert export_run(tmp_path / "out", "qasper", tmp_path / "said.jsonl").counts == {"lines": 3, "failed": 0}
    means = {m.measure: m.mean for m in done.scored.scores.measures}
    for text_only, name in ((False, "evidence_f1"), (True, "text_evidence_f1")):
        official = score_qasper(tmp_path / "papers.json", tmp_path / "said.jsonl", text_only).means
        assert official["Answer F1"] == pytest.approx(means["answer_f1"])
        assert official["Evidence F1"] == pytest.approx(means[name])
    assert 0 < means["evidence_f1"] < means["text_evidence_f1"], "the evidence has a figure"


@pytest.mark.slow
def test_ask_answers_a_stored_question_from_its_paper_and_any_other_from_all_of_them(data, tmp_path, capsys):
    store = ["--store", str(tmp_path / "store")]
    assert main(["ingest", str(data / "papers.json"), "--format", "qasper", *store]) == 0
    opened_store = Store.open(str(tmp_path / "store"))
    with Progress(io.StringIO(), silent=True) as progress:
        place = WorkerConfig(opened_store.uri, "transformers", "cpu", 1)
        recipe = load_recipe("qasper-documents", MODELS, CONF)
        Pipeline(opened_store, recipe, place, TaskSizes(100, 100), inline, progress).index(None)
    capsys.readouterr()

    def ask(question):
        assert main(["ask", "qasper-documents", question, "--models", MODELS, "--json", *store]) == 0
        return json.loads(capsys.readouterr().out)

    first = answered("qasper-documents", data, CountingKit())[0]
    own, anyones = ask(first.id), ask("What is said of paper b2, and of its corpus?")
    assert (own["answer"], [h["chunk"] for h in own["hits"]]) == (first.answer, list(first.order))
    assert {h["chunk"].partition(":")[0] for h in own["hits"]} == set(first.sources())
    assert len({h["chunk"].partition(":")[0] for h in anyones["hits"]}) == 2
    assert all(h["url"].startswith(ARXIV) for h in own["hits"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(r, marks=[pytest.mark.drill] if r in RECIPES[1:4] else []) for r in RECIPES],
)
def test_an_eval_and_ask_give_equal_answers_and_without_documents_nothing_is_indexed(name, data, tmp_path):
    pool = str(data / "pool.jsonl")
    graphs = {"qasper-train": pool, "qasper-train-explained": pool}
    recipe = load_recipe(name, MODELS, CONF, graphs, sets=MARKED if name.endswith("cot") else [])
    store = Store.create(str(tmp_path / "store"))
    with Progress(io.StringIO(), silent=True) as progress:
        place = WorkerConfig(store.uri, "transformers", "cpu", 1)
        pipeline = Pipeline(store, recipe, place, TaskSizes(100, 2), inline, progress)
        evaluate(pipeline, [data / "papers.json"], tmp_path / "out", EvalOptions("qasper"))
    lines = [json.loads(x) for x in (tmp_path / "out/predictions.jsonl").read_text().splitlines()]
    assert len(lines) == 4 and bool(store.count(pipeline.recipe.passages_table)) == ("documents" in name)

    async def asked(id):  # by its id: two papers have a question of one text
        answerer = Answerer(recipe, LocalKit(None, "transformers"), store.uri)  # no memo: it computes again
        return (await answerer.answer(QueryRequest(Question("asked", id)))).question

    for line in lines:
        alone, ranked = asyncio.run(asked(line["id"])), tuple(h["chunk"] for h in line["hits"])
        assert (alone.answer, alone.order) == (line["prediction"], ranked)


def test_a_question_by_itself_gets_the_examples_that_it_gets_in_a_job(data):
    [first, *_] = answered("qasper-fewshot", data, CountingKit(script))
    recipe, kit = opened("qasper-fewshot", data), CountingKit(script)
    alone = Question("another id", QUESTION, citations=first.citations)
    [again] = asyncio.run(QuestionExecutor(recipe, kit, None)([alone]))
    assert again.replies["examples"] == first.replies["examples"] and again.answer == first.answer


if __name__ == "__main__":  # writes the snapshots
    with tempfile.TemporaryDirectory() as folder:
        papers = made(Path(folder))
        for variant in RECIPES:
            (TESTS / "recipes/prompts").mkdir(exist_ok=True)
            (TESTS / f"recipes/prompts/{variant}.txt").write_text(
                first_prompt(variant, papers), encoding="utf-8"
            )
