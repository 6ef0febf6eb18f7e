"""Oracle runs and routers: golds in the place of one stage, and replies held against labels and programs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import golden
import pytest
from reruns import Bench
from test_losses import PAGES, RECIPE, planted

from raypipe.contrib.crag.steps.kg_query import KgQuery
from raypipe.core.errors import ConfError
from raypipe.core.plugins import Plugin
from raypipe.core.records import ABSTAINED, ANSWERED, INVALID, Gold, Question, Reply
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.losses import RoutingCheck
from raypipe.evaluation.options import EvalOptions
from raypipe.evaluation.oracle import OracleAnswer
from raypipe.evaluation.result_table import each
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.runs import release
from raypipe.runs.record import read
from raypipe.runs.run_parts import RunFolder
from raypipe.steps.decide import Decide
from raypipe.store import Store


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = planted(tmp_path_factory.mktemp("oracles"))
    for name in ("passages", "answer"):
        how = EvalOptions("crag", kind="qa", oracle=name)
        evaluate(made.pipeline(RECIPE), [made.world], made.folder / name, how)
    return made


def _lost(bench: Bench, run: str) -> dict[str, str | None]:
    return {r["id"]: r["lost"] for r in each(RunFolder(bench.folder / run).results)}


@pytest.mark.drill
@pytest.mark.slow
def test_with_gold_passages_nothing_is_lost_between_the_passages_and_the_context(bench: Bench) -> None:
    found = _lost(bench, "passages")
    between = {"shortlist", "recall", "fusion", "rerank", "budget"}
    assert {found[id] for id in ("pages", "parsing", "splitting")} == {"pages", "parsing", "splitting"}
    assert not between & set(found.values())


@pytest.mark.slow
def test_with_gold_answers_only_what_does_not_reach_the_context_is_lost(bench: Bench) -> None:
    found = _lost(bench, "answer")
    assert found == {id: None if id in ("right", "answer") else id for id in PAGES}
    answers = {r["id"]: r["answer"] for r in each(RunFolder(bench.folder / "answer").results)}
    assert answers["answer"] == "Tessa Blume" and answers["recall"] == "i don't know"


@pytest.mark.slow
def test_an_oracle_run_is_marked_and_cannot_be_promoted(bench: Bench) -> None:
    records = [read(bench.folder / name) for name in ("passages", "answer")]
    assert [m.oracle for m in records] == ["passages", "answer"]
    assert records[1].previous == records[0].previous, "an oracle run is nothing to compare with"
    assert len({m.digest for m in records} | {bench.pipeline(RECIPE).recipe.digest()}) == 3
    report = json.loads((bench.folder / "answer" / "run.json").read_text())
    assert report["oracle"] == "answer" and report["oracle_golds"] == len(PAGES)
    page = (bench.folder / "answer/report.html").read_text()
    assert "Oracle run" in page and f"golds of {len(PAGES)} of {len(PAGES)} questions" in page
    with pytest.raises(ConfError, match="oracle run"):
        release.promote(Store.open(records[0].store), records[0], ())


@pytest.mark.slow
def test_what_an_oracle_run_indexes_is_planned_and_counted(bench: Bench) -> None:
    report = json.loads((bench.folder / "passages" / "run.json").read_text())
    steps = {s["step"]: (s["planned"], s["computed"]) for s in report["steps"]}
    assert steps["parse"] == (report["distinct_pages"],) * 2 and steps["split"][1] > 0
    assert 0 < report["oracle_golds"] < len(PAGES)


def test_data_without_gold_answers_have_no_oracle_run(tmp_path: Path) -> None:
    data = tmp_path / "beir"
    data.mkdir()
    (data / "corpus.jsonl").write_text(json.dumps({"_id": "d", "title": "", "text": "Larks sing."}))
    (data / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "what do larks do?"}))
    (data / "qrels.trec").write_text("q 0 d 1\n")
    pipeline = Bench(tmp_path, data).pipeline(RECIPE)
    with pytest.raises(ConfError, match="expected questions with gold answers, found none of 1"):
        evaluate(pipeline, [data], tmp_path / "out", EvalOptions("beir", oracle="passages"))


def test_the_gold_reply_to_a_false_premise_denies_it() -> None:
    oracle = OracleAnswer(step=GRAPH.question[0].step, golds={"q": ("invalid question",), "r": ("102",)})
    found = [oracle._reply(Question(id, "?"), "It is 102.").label for id in "qrs"]
    assert found == [INVALID, ANSWERED, ABSTAINED]


def test_a_step_from_outside_cannot_be_answered_for(tmp_path: Path) -> None:
    pipeline = Bench(tmp_path, tmp_path).pipeline(RECIPE)
    outside = tuple(
        replace(s, plugin=Plugin("mypkg:Answer", "0" * 32)) if s.name == "generate:llm" else s
        for s in pipeline.recipe.question
    )
    pipeline = replace(pipeline, recipe=replace(pipeline.recipe, question=outside))
    with pytest.raises(ConfError, match=r"generate:llm of recipe .* is a step from outside"):
        evaluate(pipeline, (), tmp_path / "out", EvalOptions("crag", kind="qa", oracle="answer"))


@pytest.mark.slow
def test_a_recipe_without_such_a_stage_has_no_oracle(bench: Bench, tmp_path: Path) -> None:
    bare = RECIPE[: RECIPE.index("question:")] + (
        'question:\n  - generate: {model: scripted, prompt: {system: "s", user: "{{ text }}", '
        "variables: [text]}, into: llm, max_tokens: 9}\n  - decide: {prefer: [llm]}\n"
    )
    for oracle in ("passages", "answer"):
        with pytest.raises(ConfError, match="has no step that"):
            evaluate(bench.pipeline(bare), (), tmp_path, EvalOptions("crag", kind="qa", oracle=oracle))


GRAPH = Recipe(
    "graph",
    "",
    (),
    (
        Stage("kg_query:facts", KgQuery(graph=golden.GRAPH, calls="calls", rule="rule", answer="kg")),
        Stage("decide", Decide(prefer=("kg",))),
    ),
)


def test_routers_and_calls_are_held_against_labels_and_programs() -> None:
    check = RoutingCheck(GRAPH)
    program = 'get_movie("velora")["length"]'
    for domain, calls, answer in (
        ("movie", Reply('get_movie( "Velora" ) ["length"]', ANSWERED), "102"),
        ("sports", Reply('get_movie("velora")["year"]', ANSWERED), "1994"),
        ("movie", Reply("None", ABSTAINED), "102"),
    ):
        replies = {
            "domain": Reply(domain, domain),
            "calls": calls,
            "rule": Reply("value", "value"),
            "kg": Reply(answer, ANSWERED if calls.label == ANSWERED else ABSTAINED),
        }
        labels = {"domain": "movie", "kg_program": program, "kg_rule": "value"}
        check.add(Question("q", "?", replies=replies), Gold("q", ("102",), labels))
    found = check.found()
    [router] = found.routers
    assert (router.reply, router.questions, router.right) == ("domain", 3, 2)
    assert router.confusion == {"movie": {"movie": 2, "sports": 1}}
    assert found.calls is not None
    assert (found.calls.questions, found.calls.given, found.calls.same) == (3, 2, 1)
    assert (found.calls.same_rule, found.calls.right) == (1, 1)


def test_where_no_gold_has_labels_or_programs_nothing_is_said() -> None:
    check = RoutingCheck(GRAPH)
    check.add(Question("q", "?", replies={"calls": Reply("None", ABSTAINED)}), Gold("q", ("a",), {}))
    assert check.found().routers == () and check.found().calls is None
