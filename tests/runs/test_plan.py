"""The plan before the run: no call that it did not name, and exactly those where it says so."""

import io
import json
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa
import pytest
from reruns import FAKES, Bench, TaskSizes
from rich.console import Console

from raypipe.api.plans import Placed, PlanResult
from raypipe.core.plugins import Plugin
from raypipe.evaluation.golds import questions_of
from raypipe.evaluation.report.plans import print_plan
from raypipe.recipes.recipe import Stage
from raypipe.runs.pipeline.tasks import Workers, inline
from raypipe.runs.plan.planner import plan
from raypipe.runs.plan.staleness import unfinished_answers, unfinished_ids
from raypipe.runs.record import answer_keys, read, recent
from raypipe.runs.stage_records import chains
from raypipe.store import Store, begin
from raypipe.store.ids import Ids

pytestmark = pytest.mark.slow


def zero(counts, *but):
    """The steps that planned or asked something, other than those named."""
    return {s: c for s, c in counts.items() if c != (0, 0) and s not in but}


def test_the_first_plan_names_every_row_and_is_exact_where_nothing_has_to_be_parsed_first(ran):
    counts, steps = ran.first
    assert min(n for _, n in (counts[s] for s in ("parse", "split", "embed", "dense", "rerank"))) > 0
    assert {s.exact for s in steps.values() if s.step in ("parse", "tokenize", "dense")} == {True}
    assert all(set(s.reasons) <= {"row"} for s in steps.values())


def test_nothing_changed_plans_and_asks_nothing_whatever_the_sizes_of_parts(bench):
    counts, steps = bench.run(pipe=bench.pipeline(sizes=TaskSizes(3, 1)))
    assert not zero(counts) and all(s.exact for s in steps.values())
    assert steps["dense"].cached == steps["dense"].rows == 6
    assert steps["embed"].cached == steps["embed"].rows > 100


def test_a_step_after_all_models_asks_nothing_again(bench):
    counts, _ = bench.run(FAKES.replace("prefer: [extract]", "prefer: [extract], lower: true"))
    assert not zero(counts)


@pytest.mark.drill
def test_a_killed_run_is_planned_to_its_end(world, tmp_path):
    def dies(verb, fill, parts):
        for i, part in enumerate(inline(verb, fill, parts), 1):
            if verb == "answer" and i == 3:
                raise KeyboardInterrupt
            yield part

    bench = Bench(tmp_path, world)
    with pytest.raises(KeyboardInterrupt):
        bench.run(pipe=bench.pipeline(sizes=TaskSizes(50, 1), runner=dies))
    counts, steps = bench.run(pipe=bench.pipeline(sizes=TaskSizes(50, 1)))
    assert not zero({s: counts[s] for s in ("parse", "split", "embed")})
    assert steps["rerank"].rows - steps["rerank"].cached == 6 - 3
    assert counts["dense"][0] == counts["dense"][1]


def test_questions_that_a_killed_run_was_not_asked_are_planned_after_those_that_it_left(tmp_path):
    store = Store.create(str(tmp_path / "store"))
    begin(store, "work", ["a", "b", "c"], per_part=2)
    assert unfinished_answers(store, "work", {}, ["new", "b", "a", "c"]) == ["a", "b", "c", "new"]
    missing = Ids.of(["new", "b", "a", "c"], pa.string())
    assert list(unfinished_ids(store, "work", f"passages-{'d' * 32}", missing)) == ["a", "b", "c", "new"]


@pytest.mark.drill
@pytest.mark.parametrize("tables", [1, 2])
def test_what_a_killed_run_parsed_or_split_and_had_not_committed_is_planned_for_the_stages_after_it(
    world, tmp_path, tables
):
    begun = []

    def dies(verb, fill, parts):
        begun.append(verb)
        yield from inline(verb, fill, parts)
        if len(begun) == tables:
            raise KeyboardInterrupt  # all parts are done, and their table has none of their rows

    bench = Bench(tmp_path, world)
    with pytest.raises(KeyboardInterrupt):
        bench.run(pipe=bench.pipeline(runner=dies))
    again, _ = bench.run()
    assert again["parse"] == (0, 0) and again["split"][0] >= again["split"][1]
    assert 0 < again["embed"][1] <= again["embed"][0]


@pytest.mark.drill
def test_a_text_of_several_sources_is_planned_as_often_as_several_workers_may_ask_it(bench):
    lines = bench.lines()
    for line in lines[:3]:  # one text as a page of its own, and as a snippet
        said = "the same short words stand in several places"
        line["search_results"][0] |= {"page_result": f"<p>{said}</p>", "page_snippet": said}
    data = bench.data(lines)
    counts, steps = bench.run(FAKES, data)
    assert counts["embed"] == (1, 1) and steps["parse"].max_calls == 2
    pipe = bench.pipeline(FAKES.replace("hash-embedder", "other-embedder"))
    questions = questions_of(pipe, None, None)
    plans = [plan(replace(pipe, workers=lambda verb, n=n: Workers(n)), questions) for n in (1, 2)]
    one, two = ({s.step: s for s in p.steps}["embed"] for p in plans)
    assert one.exact and not two.exact and two.max_calls == one.max_calls + 1
    assert bench.run(FAKES.replace("hash-embedder", "other-embedder"), data)[0]["embed"][1] == one.max_calls


def test_a_record_says_what_the_run_was_made_of_and_gives_the_next_plan_its_rates(bench):
    [first] = recent(bench.pipeline().store, 5)
    bench.run(FAKES.replace("candidates: 20, top: 10", "candidates: 12, top: 6"), out="second")
    made = read(bench.folder / "second")
    assert made.previous == first.run and made.digest != first.digest
    assert {s.name for s in made.stages} == {line.step for line in made.steps}
    assert made.score and made.questions == 6 and made.models[0].identity
    keys = answer_keys(bench.pipeline().store, made.run)
    assert len(keys) == 6 and not any(k.reused for k in keys.values())
    again = plan(bench.pipeline(), questions_of(bench.pipeline(), None, None))
    assert all(s.cost.seconds == (0.0, 0.0) for s in again.steps)
    third = bench.pipeline(FAKES.replace("candidates: 20, top: 10", "candidates: 9, top: 4"))
    estimates = {s.step: s.cost.seconds for s in plan(third, questions_of(third, None, None)).steps}
    assert estimates["bm25"][1] > 0 and estimates["rerank"][1] > 0


def test_beside_a_bound_stands_what_the_last_run_asked(ran, bench):
    _, steps = ran.first
    assert steps["embed"].expected is not None and not steps["embed"].exact

    other = FAKES.replace("rerank: {model: overlap-reranker", "rerank: {model: other-reranker")
    pipe = bench.pipeline(other)
    planned = plan(pipe, questions_of(pipe, None, None))
    rerank, extract = ({s.step: s for s in planned.steps}[name] for name in ("rerank", "extract"))
    [before] = recent(pipe.store, 5)
    lines = {line.step: line for line in before.steps}
    for step in (rerank, extract):
        line = lines[step.step]
        assert step.expected == (line.computed, line.computed + line.cached)
        assert 0 < step.expected[1] <= step.max_calls and step.cost.nbytes[1] < step.max_calls * 600
    assert planned.bytes_at_least() == 0, "a full disk is refused for what is sure, never for what is likely"
    asked, _ = bench.run(other)
    assert asked["rerank"][1] == rerank.expected[1] == 90

    fewer = bench.pipeline(FAKES.replace("candidates: 20, top: 10", "candidates: 12, top: 6"))
    found = {s.step: s for s in plan(fewer, questions_of(fewer, None, None)).steps}
    assert found["rerank"].expected == (72, 72), "other parameters ask another number of times"
    lines = {line.step: line for line in recent(pipe.store, 1)[0].steps}
    assert found["extract"].expected[1] == lines["extract"].computed + lines["extract"].cached


@pytest.mark.drill
def test_the_texts_of_sources_that_are_not_split_yet_are_known_where_these_are_few(bench):
    lines = bench.lines()[:2]
    for line in lines:
        line["interaction_id"] += "-new"
        for page in line["search_results"]:
            page["page_result"] = page["page_result"].replace("the", "teh")
    counts, steps = bench.run(data=bench.data(lines))
    embed, asked = steps["embed"], counts["embed"][1]
    assert not embed.exact and embed.expected == (asked, asked) and embed.max_calls == asked > 0
    assert embed.cost.seconds[1] > 0


def test_a_chain_changes_with_what_a_stage_reads_and_with_nothing_else(bench):
    base = chains(bench.pipeline().recipe)

    def moved(old, new):
        now = chains(bench.pipeline(FAKES.replace(old, new)).recipe)
        return {s for s in now if now[s] != base[s]}

    assert moved("variant: okapi", "variant: lucene") == {"bm25", "fuse", "rerank", "extract", "decide"}
    after_split = {"split", "embed", "dense", "bm25", "fuse", "rerank", "extract", "decide"}
    assert moved("child_chars: 200", "child_chars: 190") == after_split
    assert moved("pages: 5", "pages: 4") == after_split - {"split", "embed"} | {"shortlist"}


@dataclass(frozen=True, slots=True)
class Unbounded:
    """A step that ranks and says nothing about what it costs."""

    version: ClassVar[int] = 1

    def reads(self):
        return frozenset({"hits", "order"})

    def writes(self):
        return frozenset({"order"})

    def open(self, kit):
        async def ask(questions):
            return [replace(q, order=q.order[::-1]) for q in questions]

        return ask


def test_a_step_without_a_bound_is_planned_as_not_known_and_so_is_what_depends_on_it_and_runs(bench):
    pipe = bench.pipeline()
    stages = pipe.recipe.question
    at = next(i for i, s in enumerate(stages) if s.name == "rerank")
    own = Plugin("mypkg.steps:Unbounded", "0" * 32)
    stages = (*stages[:at], Stage("strange", Unbounded(), plugin=own), *stages[at:])
    pipe = replace(pipe, recipe=replace(pipe.recipe, question=stages))
    questions = questions_of(pipe, None, None)
    found = plan(pipe, questions)
    steps = {s.step: s for s in found.steps}
    printed = PlanResult(found, 0, Placed("laptop", "", ())).to_dict()
    json.dumps(printed, allow_nan=False)
    assert next(s for s in printed["steps"] if s["step"] == "strange")["max_calls"] is None
    assert steps["strange"].reasons == {"parameter": math.inf} and not steps["strange"].exact
    assert steps["dense"].max_calls == 0 == steps["bm25"].max_calls, "what stands before it is known"
    assert steps["rerank"].max_calls == 6 * 20, "it scores 20 however long the ranking is"
    out = io.StringIO()
    print_plan(Console(file=out, width=120), found)
    assert "calls with no known bound; no earlier run shows how many are likely for strange" in out.getvalue()
    pipe.answer(questions)
    assert all(q.outcome for q in pipe.answers(questions))
    assert plan(pipe, questions).planned()["strange"] == 0, "where nothing is to do nothing is asked"
