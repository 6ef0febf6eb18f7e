"""Where answers are lost: one loss is planted at each place, and found there and nowhere else."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import golden
import pytest
from reruns import Bench

from raypipe.api.finished_runs import losses as losses_of
from raypipe.contrib.crag.steps.kg_query import KgQuery
from raypipe.core.errors import ConfError, DataError
from raypipe.core.records import ABSTAINED, ANSWERED, SKIPPED_REPLY, Citation, Question, Reply
from raypipe.evaluation.eval_report import verdicts
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.loss_paths import GoldEvidence, RecipePaths
from raypipe.evaluation.options import EvalOptions
from raypipe.evaluation.result_table import each
from raypipe.metrics.kinds import Measure, score
from raypipe.metrics.losses import GoldText, Loss, LostAt, losses, place, places
from raypipe.metrics.verdict_rules import Prediction
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import QuestionExecutor
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.runs.run_parts import JudgeLine, RunFolder
from raypipe.steps.bm25 import Bm25
from raypipe.steps.decide import Decide
from raypipe.store import Store

ASKED = "Who keeps the lantern of Orvik?"
KEEPER = "Tessa Blume"
LONG = (
    "Tessa Blume, whom all of the harbour town calls the warden of the seven northern lights, "
    "the bell and the two old harbour gates"
)
OLD = "<p>The lantern of Orvik is old.</p>"
STREET = "<p>Orvik has a street.</p>"
PAGES: Mapping[str, tuple[str, ...]] = {
    "right": (f"<p>The lantern of Orvik: {KEEPER} keeps it.</p>",),
    "pages": (OLD,),
    "parsing": (f"<script>var keeper = '{KEEPER}'</script>{OLD}",),
    "splitting": (f"<p>{LONG} keeps it. {'It shines. ' * 9}</p>",),
    "shortlist": (*(f"<p>Orvik has street {i}.</p>" for i in range(12)), f"<p>{KEEPER} keeps it.</p>"),
    "recall": (OLD, f"<p>{KEEPER} walks.</p>"),
    "fusion": (
        *(f"<p>The lantern of Orvik keeps lantern {i}.</p>" for i in range(4)),
        f"<p>In Orvik {KEEPER} and a good many others live quite well.</p>",
    ),
    "rerank": (
        "<p>Who keeps the lantern of Orvik is not known.</p>",
        "<p>The lantern of Orvik keeps a light.</p>",
        f"<p>In Orvik {KEEPER} and a good many others live quite well.</p>",
    ),
    "budget": (
        f"<p>The lantern of Orvik is what one keeps. {'It shines. ' * 6}</p>",
        f"<p>In Orvik: {KEEPER}.</p>",
    ),
    "answer": ("<p>Who keeps the lantern of Orvik?</p>", f"<p>In Orvik: {KEEPER}.</p>"),
}
RECIPE = """
about: each step loses what is planted for it
corpus:
  - parse: {html: lxml, via: fast, kinds: [page]}
  - tokenize: {words: stems}
  - split: {child_chars: 120, child_overlap: 0}
question:
  - shortlist: {pages: 12}
  - bm25: {words: stems, top: 6}
  - fuse: {weights: {bm25: 1.0}, top: 4}
  - rerank: {model: overlap-reranker, top: 2}
  - generate:
      model: scripted
      prompt: {system: "Answer.", user: "{{ context }}\\n{{ text }}", variables: [context, text]}
      into: llm
      layout: list
      context_chars: 95
      max_tokens: 40
  - decide: {prefer: [llm]}
"""
STEPS = {
    "pages": None,
    "parsing": "parse",
    "splitting": "split",
    "shortlist": "shortlist",
    "recall": "bm25",
    "fusion": "fuse",
    "rerank": "rerank",
    "budget": "generate:llm",
    "answer": "generate:llm",
}


class Zeros:
    """A kind that scores what failed, too."""

    measures = (Measure("words", "words of the answer"),)

    def values(self, row: Prediction) -> dict[str, float]:
        return {"words": float(bool(row.prediction))}


class Never:
    """A judge that calls every answer wrong."""

    def ask(
        self, store: Store, rows: Sequence[Prediction], texts: Mapping[str, str], fresh: bool, spend: object
    ) -> tuple[Mapping[str, str], JudgeLine]:
        said = {r.question: json.dumps({"score": 0}) for r in rows}
        return said, JudgeLine("never", len(said), len(said), 0, 0, 0, {}, 0, 0, 0)


def _line(id: str, pages: tuple[str, ...]) -> dict[str, Any]:
    results = [
        {
            "page_name": "",
            "page_url": f"https://example.org/{id}/{i}",
            "page_snippet": "",
            "page_last_modified": "",
            "page_result": page,
        }
        for i, page in enumerate(pages)
    ]
    return {
        "interaction_id": id,
        "query": ASKED,
        "query_time": "03/05/2024, 23:18:31 PT",
        "domain": "open",
        "answer": LONG if id == "splitting" else KEEPER,
        "alt_ans": [],
        "search_results": results,
    }


def planted(folder: Path) -> Bench:
    """A store in which a loss is planted at each place."""
    (folder / "data.jsonl").write_text("\n".join(json.dumps(_line(i, p)) for i, p in PAGES.items()))
    return Bench(folder, folder / "data.jsonl")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = planted(tmp_path_factory.mktemp("planted"))
    evaluate(made.pipeline(RECIPE), [made.world], made.folder / "qa", EvalOptions("crag", kind="qa"))
    return made


@pytest.mark.slow
def test_each_planted_loss_is_found_at_its_place_and_at_no_other(bench: Bench) -> None:
    found = {r["id"]: (r["lost"], r["lost_step"]) for r in each(RunFolder(bench.folder / "qa").results)}
    assert found.pop("right") == (None, None)
    assert found == {id: (id, step) for id, step in STEPS.items()}


@pytest.mark.slow
def test_the_report_counts_them_and_they_add_up_to_the_misses(bench: Bench) -> None:
    report = json.loads((bench.folder / "qa" / "run.json").read_text())["losses"]
    assert (report["right"], report["misses"], report["unscored"]) == (1, 9, 0)
    assert [p["loss"] for p in report["places"]] == list(places())
    assert sum(p["questions"] for p in report["places"]) == 9
    assert {p["loss"]: p["steps"] for p in report["places"] if p["questions"]}["rerank"] == {"rerank": 1}
    page = (bench.folder / "qa" / "report.html").read_text()
    assert "Where answers are lost" in page and Loss.BUDGET.about in page


@pytest.mark.slow
def test_an_answer_with_the_gold_that_a_judge_calls_wrong_is_lost_at_the_verdict(bench: Bench) -> None:
    done = evaluate(
        bench.pipeline(RECIPE), (), bench.folder / "crag", EvalOptions("crag", kind="crag"), judge=Never()
    )
    assert done.reused == len(PAGES)
    found = {r["id"]: r["lost"] for r in each(RunFolder(bench.folder / "crag").results)}
    assert found == {id: id for id in STEPS} | {"right": "verdict"}


def test_a_question_that_failed_is_lost_nowhere_though_its_kind_scores_it() -> None:
    rows = [Prediction("failed", None, ("a",)), Prediction("wrong", "", ("a",))]
    right = verdicts(Zeros(), rows, score(Zeros(), "zeros", rows))
    assert right == {"failed": None, "wrong": False}
    assert losses(right, {"wrong": LostAt(Loss.PAGES)}).unscored == 1


# ------------------------------------------------------------ the graph

TIME = "03/05/2024, 23:18:31 PT"
GRAPH = Recipe(
    "graph",
    "",
    (),
    (
        Stage(
            "kg_query:facts",
            KgQuery(
                graph=golden.GRAPH, calls="calls", rule="rule", answer="kg", domain="domain", trace="trace"
            ),
        ),
        Stage("decide", Decide(prefer=("web", "kg"))),
    ),
)
LENGTH = Reply('get_movie("velora")["length"]', ANSWERED)
GRAPH_CASES = {
    "abstained": (Reply("None", ABSTAINED), "102", LostAt(Loss.ROUTING)),
    "skipped": (SKIPPED_REPLY, "102", LostAt(Loss.ROUTING)),
    "unreadable": (Reply("get_nothing(", ANSWERED), "102", LostAt("program", "kg_query:facts")),
    "unknown": (
        Reply('get_movie("no such")["length"]', ANSWERED),
        "102",
        LostAt("linking", "kg_query:facts"),
    ),
    "no rows": (
        Reply('get_movie_person_crew("velora", None, eq(job, "Editor"))["name"]', ANSWERED),
        "Ann",
        LostAt("rows", "kg_query:facts"),
    ),
    "other rows": (LENGTH, "97", LostAt("rule", "kg_query:facts")),
}


def _asked(calls: Reply, domain: str = "movie", web: Reply = SKIPPED_REPLY) -> Question:
    given = {"calls": calls, "rule": Reply("value", "value"), "domain": Reply(domain, domain), "web": web}
    return asyncio.run(_answered(Question("q", "?", asked_at=TIME, replies=given)))


async def _answered(question: Question) -> Question:
    [out] = await QuestionExecutor(GRAPH, LocalKit(None))([question])
    return out


def _at(answered: Question, gold: str, **labels: str) -> LostAt:
    return RecipePaths(GRAPH).place(GoldEvidence(answered, answered, GoldText((gold,)), labels))


@pytest.mark.parametrize("case", list(GRAPH_CASES))
def test_each_loss_on_the_way_through_the_graph_is_found_there(case: str) -> None:
    calls, gold, lost = GRAPH_CASES[case]
    assert _at(_asked(calls), gold) == lost


def test_a_question_that_is_taken_for_another_domain_is_lost_at_routing() -> None:
    assert _at(_asked(LENGTH, domain="sports"), "97", domain="movie").loss is Loss.ROUTING
    assert _at(_asked(LENGTH, domain="sports"), "97", domain="sports").loss == "rule"


def test_a_right_answer_of_the_graph_that_another_overrules_is_lost_at_the_decision() -> None:
    other = _asked(LENGTH, web=Reply("ninety", ANSWERED))
    assert other.answer == "ninety" and _at(other, "102") == LostAt(Loss.DECISION, "decide")


def test_a_right_reply_from_pages_that_another_overrules_is_lost_at_the_decision() -> None:
    other = replace(_asked(LENGTH, web=Reply("ninety-seven", ANSWERED)), answer="102", origin="kg")
    assert _at(other, "ninety-seven") == LostAt(Loss.DECISION, "decide")


def test_a_search_of_all_pages_is_held_against_all_pages() -> None:
    question = Question("q", "?", citations=(Citation("q", 0, "u", "", "p", None, None),))
    everything = Recipe("all", "", (), (Stage("dense", Bm25(words="stems", top=5, scope="all")),))
    assert RecipePaths(everything).searched(question) is None
    assert RecipePaths(GRAPH).searched(question) == question.sources()


def test_no_rows_speak_for_a_false_premise_and_the_rule_denied_it() -> None:
    calls = GRAPH_CASES["no rows"][0]
    assert _at(_asked(calls), "invalid question").loss == "rule"


# ------------------------------------------------------------ golds and counts


@pytest.mark.parametrize(
    ("truths", "text", "held"),
    [
        (("Jean-Pierre Jeunet",), "directed by <b>jeanpierre jeunet</b>", False),
        (("1,234",), "It cost 1234 in all.", True),
        (("the U.S.", "america"), "Made in the US.", True),
        (("31 minutes",), "31 long minutes", False),
        (("yes",), "Any text", True),
        (("invalid question",), "  ", False),
        (("yes", "in May"), "Any text", False),
    ],
)
def test_a_text_holds_a_gold_by_its_words(truths: tuple[str, ...], text: str, held: bool) -> None:
    assert GoldText(truths).held(text) is held


def test_a_source_holds_a_gold_between_tags_and_in_markup() -> None:
    gold = GoldText(("Tessa Blume",))
    assert gold.in_source("<b>Tessa</b> <i>Blume</i>") and gold.in_source('<img alt="Tessa Blume">')
    assert gold.in_source("Tessa&nbsp;Blume") and not gold.in_source("<p>Tessa of Blume</p>")


def test_losses_add_up_to_the_misses_whatever_is_right_or_unscored() -> None:
    found = {q: LostAt(loss, "x") for q, loss in zip("abcd", list(Loss)[:4], strict=True)}
    made = losses({"a": False, "b": True, "c": None, "d": False}, found)
    assert (made.right, made.misses, made.unscored) == (1, 2, 1)
    assert {p.loss for p in made.places if p.questions} == {Loss.PAGES, Loss.SHORTLIST}
    with pytest.raises(KeyError):
        losses({"e": False}, found)


@pytest.mark.slow
def test_the_command_names_the_places_and_refuses_what_is_none(bench: Bench) -> None:
    done = losses_of(bench.folder / "qa")
    assert [q.id for q in losses_of(bench.folder / "qa", "recall").questions] == ["recall"]
    assert Counter(q.lost for q in done.questions) == Counter(list(STEPS))
    assert done.table().num_rows == len(STEPS)
    with pytest.raises(ConfError, match="recal"):
        place("recal")
    with pytest.raises(DataError, match="finished eval"):
        losses_of(bench.folder)
