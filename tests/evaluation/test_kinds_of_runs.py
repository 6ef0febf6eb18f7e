"""Runs over data of each kind: what is measured, kept and compared, and what is refused before any work."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from outputs import schemas
from reruns import FAKES, Bench

from raypipe.api.cli.main import main
from raypipe.api.compare import compare
from raypipe.api.finished_runs import finished_run, why
from raypipe.core.arrow import with_id_texts
from raypipe.core.errors import ConfError, DataError
from raypipe.core.records import Hit, Question
from raypipe.evaluation.evaluate import Evaluation, evaluate
from raypipe.evaluation.golds import golds_of
from raypipe.evaluation.loss_paths import GoldEvidence, RecipePaths
from raypipe.evaluation.options import EvalOptions
from raypipe.evaluation.result_table import each
from raypipe.metrics.losses import GoldText
from raypipe.metrics.ranking import read_qrels, score
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.serialize import from_plain
from raypipe.runs.pipeline.ingest import ingest
from raypipe.runs.pipeline.ingest_log import kinds_of
from raypipe.runs.record import replaced_run

pytestmark = pytest.mark.slow

RANKS = FAKES[: FAKES.index("  - extract:")]
OTHER = RANKS.replace("bm25: 1.0}", "bm25: 0.0}").replace("top: 10}", "top: 1}")
BIRDS = ("heron", "swift", "raven", "crane", "finch", "robin")


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    """Six birds: a document on each, and one on each two; a query for each, with grades from 0 to 3."""
    folder = tmp_path / "beir"
    folder.mkdir()
    pairs = [(a, b) for i, a in enumerate(BIRDS) for b in BIRDS[i + 1 :]]
    texts = {a: f"The {a} lives at the lake. A {a} eats fish." for a in BIRDS}
    texts |= {f"{a}-{b}": f"The {a} and the {b} were seen." for a, b in pairs}
    corpus = [{"_id": id, "title": id, "text": text} for id, text in texts.items()]
    queries = [{"_id": f"q-{a}", "text": f"where does the {a} live?"} for a in (*BIRDS, "eagle")]
    for name, lines in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    judged = [(f"q-{a}", a, 3) for a in BIRDS] + [(f"q-{a}", f"{a}-{b}", 1) for a, b in pairs]
    judged += [(f"q-{b}", f"{a}-{b}", 0) for a, b in pairs]
    (folder / "qrels.trec").write_text("".join(f"{q} 0 {d} {g}\n" for q, d, g in judged))
    return folder


@pytest.fixture
def run(tmp_path: Path, beir: Path) -> Callable[..., Evaluation]:
    bench = Bench(tmp_path, beir)

    def once(
        text: str = RANKS, out: str = "out", data: Any = None, judge: Any = None, **more: Any
    ) -> Evaluation:
        paths = [beir] if data is None else data
        return evaluate(bench.pipeline(text), paths, tmp_path / out, EvalOptions("beir", **more), judge)

    return once


def test_a_recipe_without_decide_ranks_judged_documents(run: Callable[..., Evaluation], beir: Path) -> None:
    done = run()
    found = json.loads(done.folder.record.read_text())
    jsonschema.validate(found, dict(schemas())["eval"])
    assert (found["kind"], found["lead"], found["without_truth"]) == ("ranking", "ndcg_cut_10", 1)
    assert found["by_rule"] is None
    means = {m["measure"]: (m["mean"], m["scored"], m["of"]) for m in found["measures"]}
    rows = {r["id"]: r for r in each(done.folder.results)}
    assert all(r["outcome"] == "ranked" and r["answer"] is None and not r["replies"] for r in rows.values())
    assert rows["q-eagle"]["measures"] is None and rows["q-heron"]["hits"]
    names = {s["step"] for s in found["steps"]}
    assert "extract" not in names and "decide" not in names and not found["faults"]
    # The ranking that was stored, scored as trec_eval scores it.
    qrels = read_qrels(beir / "qrels.trec")
    title = {source: id for id, source in _documents(done)}
    ranked = {
        q: {title[h["chunk"].partition(":")[0]]: float(-i) for i, h in enumerate(r["hits"]) if h["ranked"]}
        for q, r in rows.items()
    }
    expected = score({q: run for q, run in ranked.items() if q in qrels}, qrels)
    for name, mean in expected.means.items():
        assert means[name] == (pytest.approx(mean), 6, 6), name
    assert means["recip_rank"][0] > 0.5
    page = done.folder.page.read_text()
    assert "ndcg_cut_10" in page and "heron (3)" in page and "What became of the questions" not in page


def test_ranked_questions_are_lost_where_their_relevant_documents_were(
    run: Callable[..., Evaluation], beir: Path
) -> None:
    with (beir / "queries.jsonl").open("a") as queries:
        for id in ("ghost", "late"):
            queries.write(
                json.dumps({"_id": f"q-{id}", "text": "what does the robin eat at the lake?"}) + "\n"
            )
    with (beir / "qrels.trec").open("a") as qrels:  # one is in no corpus, one does not match the query
        qrels.write("q-ghost 0 ghost 1\nq-late 0 heron-swift 1\nq-late 0 robin 0\n")
    few = RANKS.replace("top: 30", "top: 2").replace("top: 20}", "top: 2}").replace("top: 10}", "top: 1}")
    done = run(few)
    found = done.record.losses
    assert found is not None and (found.right + found.misses, found.unscored) == (8, 0)
    lost = {r["id"]: (r["lost"], r["lost_step"]) for r in each(done.folder.results)}
    assert lost["q-ghost"] == ("pages", None) and lost["q-late"] == ("recall", "bm25")
    assert {p.loss: p.questions for p in found.places if p.questions} == Counter(
        loss for loss, _ in lost.values() if loss
    )
    assert lost["q-heron"] == (None, None) and lost["q-eagle"] == (None, None)
    paths = RecipePaths(done_recipe := from_plain(done.record.recipe))
    assert done_recipe.question[-1].name == "rerank"

    def place(ranked: tuple[str, ...], *scores: Mapping[str, float]) -> tuple[str, str]:
        hits = tuple(Hit(f"{i}", f"{i}", (0, 1), s) for i, s in enumerate(scores))
        question = Question("q", "?", hits=hits, order=ranked)
        at = paths.place_of_documents(
            GoldEvidence(Question("q", "?"), question, GoldText(()), passages=frozenset({"0"}))
        )
        return at.loss.value, at.step

    first = {"dense": 1.0, "bm25": 1.0, "fuse": 1.0}
    assert place(("0",), {**first, "rerank": 0.5}) == ("rerank", "rerank")  # not among the first ten
    assert place(("1",), {**first, "rerank": 0.5}, {**first, "rerank": 0.9}) == ("rerank", "rerank")
    below = {"dense": 0.1, "bm25": 0.1}
    assert place(("1",), below, {**first, "rerank": 0.9}, {**first, "rerank": 0.8}) == ("fusion", "fuse")


def _documents(done: Evaluation) -> list[tuple[str, str]]:
    from raypipe.store import Store

    rows = with_id_texts(Store.open(done.record.store).scan("documents", ["id", "source"]).to_pylist())
    return [(r["id"], r["source"]) for r in rows]


def test_gates_and_comparisons_take_what_the_kind_measures(
    run: Callable[..., Evaluation], capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = run(out="one"), run(OTHER, out="two")
    first, second = str(one.folder.path), str(two.folder.path)
    (found,) = compare(first, second).comparisons
    assert (found.kind, found.measure, found.score.n) == ("ranking", "ndcg_cut_10", 6)
    assert {r.metric for r in found.rates} >= {"map", "recall_5"}
    assert sum(c.difference for c in found.causes) == pytest.approx(found.score.difference)
    (by_map,) = compare(first, second, measure="map").comparisons
    assert by_map.measure == "map"
    with pytest.raises(ConfError, match="measure 'f1': kind ranking has no such"):
        compare(first, second, measure="f1")
    assert main(["promote", first, "--gate", "ndcg_cut_10>=.1", "--json"]) == 0
    released = json.loads(capsys.readouterr().out)
    assert released["measure"]["measure"] == "ndcg_cut_10" and released["measure"]["scored"] == 6
    assert released["score"] is None
    assert main(["promote", first, "--gate", "f1>=.5"]) == 2
    assert "kind ranking has no such metric" in capsys.readouterr().err
    assert main(["promote", first, "--gate", "map>1"]) == 7
    assert main(["promote", second, "--gate", "not-worse:2"]) == 0  # as the store keeps the live one
    assert main(["promote", second, "--gate", "better", "--against", second]) == 7
    assert "ndcg_cut_10 +0.000 over 6 questions" in capsys.readouterr().err
    assert main(["releases", "--store", one.record.store]) == 0
    assert "ndcg_cut_10" in capsys.readouterr().out


@pytest.mark.drill
def test_a_recipe_that_answers_is_scored_by_its_ranking_too(run: Callable[..., Evaluation]) -> None:
    done = run(FAKES)
    assert done.scored.scores.kind == "ranking" and done.scored.scores.of("map").scored == 6


def test_a_query_that_is_read_again_without_judgements_has_none_any_more(beir: Path, tmp_path: Path) -> None:
    pipeline = Bench(tmp_path, beir).pipeline(RANKS)

    def read() -> tuple[dict[str, Mapping[str, int]], tuple[Any, ...]]:
        summary = ingest(pipeline.store, [beir], "beir", pipeline.progress)
        found = golds_of(pipeline.store, [f"q-{b}" for b in BIRDS], "grades")
        return {q.removeprefix("q-"): g.grades for q, g in found.items()}, summary.replaced

    before, _ = read()
    assert all(before[b] for b in BIRDS)
    lines = [x for x in (beir / "qrels.trec").read_text().splitlines() if not x.startswith("q-heron ")]
    (beir / "qrels.trec").write_text("\n".join(lines) + "\n")
    after, (replaced,) = read()
    assert after["heron"] == {} and {b: after[b] for b in BIRDS[1:]} == {b: before[b] for b in BIRDS[1:]}
    assert (replaced.rows, replaced.ids) == (1, ("q-heron",))


PAPER = {
    "title": "On birds",
    "abstract": "Birds at a lake.",
    "full_text": [{"section_name": "Data", "paragraphs": ["The heron eats fish.", "The swift eats flies."]}],
    "figures_and_tables": [],
    "qas": [
        {
            "question": "What does the heron eat?",
            "question_id": "q",
            "answers": [
                {
                    "answer": {
                        "unanswerable": False,
                        "extractive_spans": ["fish"],
                        "yes_no": None,
                        "free_form_answer": "",
                        "evidence": ["The heron eats fish."],
                    }
                }
            ],
        }
    ],
}
OWN = """
from raypipe.metrics.kinds import Measure

class Fish:
    measures = (Measure("fish", "the answer has fish"),)

    def values(self, row):
        return {} if row.prediction is None else {"fish": float("fish" in row.prediction)}
"""
ASKED = {"question": "what does the heron eat?", "answer": "fish", "domain": "birds"}


@pytest.mark.parametrize(
    "kind",
    ["crag", *(pytest.param(k, marks=pytest.mark.drill) for k in ("qa", "qasper", "ranking")), "birds:Fish"],
)
def test_a_run_of_each_kind_is_a_frame_when_it_is_read_again(
    kind: str, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "birds.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "paper.json").write_text(json.dumps({"1": PAPER}))
    rows = [{"id": "d", "title": "Heron", "text": "The heron eats fish. " * 9}, ASKED]
    for name, row in zip(("docs", "asked"), rows, strict=True):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row))
    data: dict[str, tuple[Any, list[Path]]] = {
        "qasper": ("qasper", [tmp_path / "paper.json"]),
        "ranking": ("beir", [beir]),
    }
    format, files = data.get(kind, ("rows", [tmp_path / "docs.jsonl", tmp_path / "asked.jsonl"]))
    pipeline = Bench(tmp_path, tmp_path).pipeline(RANKS if kind == "ranking" else FAKES)
    done = evaluate(pipeline, files, tmp_path / "out", EvalOptions(format, kind=kind))
    frame = finished_run(tmp_path / "out").to_pandas().set_index("id")
    assert done.record.kind.partition("@")[0] == kind and len(frame) == done.record.questions
    for id, right in done.scored.right.items():
        assert (frame.verdict[id] == "right") is bool(right)
        assert {n: frame[n][id] for n in done.scored.scores.values[id]} == done.scored.scores.values[id]
    if kind == "qa":
        told = why(tmp_path / "out", frame.index[0]).explanation
        assert (told.expected, told.verdict, frame.domain.iloc[0]) == ("fish", "right", "birds")


def test_the_kind_is_kept_with_the_data(run: Callable[..., Evaluation], beir: Path) -> None:
    bare = [beir / "corpus.jsonl", beir / "queries.jsonl"]
    done = run(data=bare)
    assert done.scored.scores.kind == "ranking" and done.record.without_truth == 7
    assert done.scored.scores.of("map").mean is None  # not scored is not 0
    from raypipe.store import Store

    store = Store.open(done.record.store)
    assert kinds_of(store, ["q-heron"]) == {"ranking": ("corpus.jsonl", "queries.jsonl")}
    with pytest.raises(DataError, match="kind ranking scores by golds, and none of 7 questions has one"):
        run(data=bare, kind="ranking")
    run(data=[beir / "qrels.trec", *bare])
    assert run(data=[]).scored.scores.of("map").scored == 6


def test_a_kind_that_fails_is_not_kept_and_a_folder_knows_whose_run_another_would_replace(
    run: Callable[..., Evaluation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kind_that_fails.py").write_text(
        "from raypipe.metrics.kinds import Measure\n"
        "class Ranks:\n"
        "    golds, measures = 'grades', (Measure('found', ''),)\n"
        "    def values(self, row):\n"
        "        return {'found': 7.0}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DataError, match=r"expected found from 0 to 1, found 7.*--kind NAME"):
        run(kind="kind_that_fails:Ranks")
    last = run().record
    assert last.kind == "ranking"
    from raypipe.store import Store

    store = Store.open(last.store)
    ids = {f"q-{bird}" for bird in (*BIRDS, "eagle")}
    assert replaced_run(store, tmp_path / "out", last.digest, ids) is None
    for digest, asked in (("other", ids), (last.digest, ids - {"q-eagle"})):
        assert replaced_run(store, tmp_path / "out", digest, asked) == last


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"kind": "qa"}, ConfError, "kind qa scores answers, and recipe fakes ends without decide"),
        (
            {"text": FAKES, "kind": "qa"},
            DataError,
            "kind qa scores by golds, and none of 7",
        ),
        ({"kind": "qaa"}, ConfError, "kind 'qaa': did you mean 'qa'"),
        ({"judge": object()}, ConfError, "--judge: kind ranking leaves no question open"),
    ],
)
def test_what_cannot_be_scored_is_refused_before_any_work(
    run: Callable[..., Evaluation], more: dict[str, Any], error: type[Exception], message: str
) -> None:
    plans: list[Any] = []
    with pytest.raises(error, match=message):
        run(on_plan=plans.append, **more)
    assert not plans


def test_judgements_of_another_corpus_are_refused(run: Callable[..., Evaluation], beir: Path) -> None:
    (beir / "qrels.trec").write_text("q-heron 0 elsewhere 1\n")
    with pytest.raises(DataError, match="expected the judged documents, found none of elsewhere"):
        run()


def test_answers_of_crag_questions_are_all_measured(bench: Bench) -> None:
    bench.run(out="crag")
    found = json.loads((bench.folder / "crag/run.json").read_text())
    assert found["kind"] == "crag" and found["by_rule"]["rule"] == "official"
    f1 = {m["measure"]: m for m in found["measures"]}["f1"]
    assert f1["scored"] == f1["of"] == 6
    pipe = replace(bench.pipeline())
    done = evaluate(pipe, [bench.world], bench.folder / "qa", EvalOptions("crag", kind="qa"))
    assert done.scored.scores.kind == "qa" and done.reused == 6 and done.scored.marks.rule == ""
    assert done.scored.scores.of("f1").mean == pytest.approx(f1["mean"])
    with pytest.raises(DataError, match="found kind crag and qa"):
        compare(bench.folder / "crag", bench.folder / "qa")


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (
            FAKES.replace("  - decide: {prefer: [extract]}\n", ""),
            "extract does not help to rank, and no dec",
        ),
        (
            FAKES + "  - rerank: {model: overlap-reranker, top: 5}\n",
            "the last step must be decide",
        ),
        (FAKES.partition("question:")[0] + "question: []\n", "the last step must be decide"),
    ],
)
def test_a_recipe_that_neither_decides_nor_only_ranks_is_refused(
    tmp_path: Path, recipe: str, message: str
) -> None:
    with pytest.raises(ConfError, match=message):
        Bench(tmp_path, tmp_path).pipeline(recipe)


def test_what_a_recipe_without_decide_is_made_of(tmp_path: Path) -> None:
    recipe: Recipe = Bench(tmp_path, tmp_path).pipeline(RANKS).recipe
    assert [s.name for s in recipe.question][-1] == "rerank"
