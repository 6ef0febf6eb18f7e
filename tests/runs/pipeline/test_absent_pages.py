"""An answer rests on the pages that were there: when others are there later, it is made again."""

import asyncio
from dataclasses import replace

import pytest
from reruns import FAKES, Bench

from raypipe.core import arrow
from raypipe.core.records import Fault, Question
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.golds import questions_of
from raypipe.evaluation.options import EvalOptions
from raypipe.models.kit import LocalKit
from raypipe.readers.crag import cited
from raypipe.recipes.executor import QuestionExecutor
from raypipe.runs.changes import changes, compared_with
from raypipe.runs.explain import why
from raypipe.runs.pipeline.dead_letters import FailedRow
from raypipe.runs.pipeline.ingest import ingest
from raypipe.runs.pipeline.recipe_tables import searched
from raypipe.runs.pipeline.tasks import inline
from raypipe.runs.plan.planner import plan
from raypipe.runs.record import answer_keys, read
from raypipe.store import Store, put
from raypipe.store.index import LanceIndex

pytestmark = pytest.mark.slow

SURE = FAKES.replace("threshold: 0.5\n", "threshold: 0.0\n")


class Stopped(BaseException):
    """The driver dies."""


def failing(sources, transient=True):
    """A runner in which the parser of these sources takes too long."""
    slow = FailedRow(Fault("parse", "timeout", "5 s are over", transient), 1)

    def run(verb, work, tasks):
        def told(task):
            task = task.with_ids(Store.open(work.worker.store))
            return replace(task, failed={i: slow for i in task.ids if i in sources})

        parses = getattr(work, "steps", ()) == ("parse",)
        return inline(verb, work, [told(t) if parses else t for t in tasks])

    return run


def dying(after):
    """A runner whose driver dies when so many parts of the answers are done."""

    def run(verb, work, tasks):
        for i, done in enumerate(inline(verb, work, tasks)):
            if verb == "answer" and i == after:
                raise Stopped
            yield done

    return run


def both(sources, after):
    slow, stop = failing(sources), dying(after)
    return lambda verb, work, tasks: stop(verb, work, tasks) if verb == "answer" else slow(verb, work, tasks)


@pytest.fixture
def bench(world, tmp_path):
    return Bench(tmp_path, world)


@pytest.fixture(scope="module")
def undisturbed(world, tmp_path_factory):
    """The answers of a store on which nothing failed."""
    made = Bench(tmp_path_factory.mktemp("undisturbed"), world)
    made.run(SURE)
    return answers(made.pipeline(SURE))


def evaluated(bench, runner, out, **how):
    """An eval whose tasks this runner runs; a source that it lets fail is not counted as parsed."""
    pipe = bench.pipeline(SURE, runner=runner)
    return evaluate(pipe, [bench.world], bench.folder / out, EvalOptions("crag", rule="official", **how))


def answers(pipe):
    return {q.id: q for q in pipe.answers(questions_of(pipe, None, None))}


def pages_of(bench, number):
    """The id of the question at this place, and its sources."""
    pipe = bench.pipeline(SURE)
    line = bench.lines()[number]
    _, sources, _ = cited(line["interaction_id"], line["search_results"])
    return line["interaction_id"], {s.id for s in sources if s.kind in pipe.recipe.source_kinds()}


@pytest.mark.drill
def test_a_question_is_answered_again_when_a_page_is_there_that_had_failed(bench, undisturbed):
    question, pages = pages_of(bench, 0)
    evaluated(bench, failing(pages), "one")
    pipe = bench.pipeline(SURE)
    others = {i: a for i, a in undisturbed.items() if i != question}
    first = answers(pipe)
    assert not first[question].hits and {i: first[i] for i in others} == others
    counts, steps = bench.run(SURE, out="two")
    assert answers(pipe) == undisturbed, "as if nothing had failed"
    assert set(steps["rerank"].reasons) == {"evidence"} and 0 < counts["rerank"][1] <= counts["rerank"][0]
    recipe, index = pipe.recipe, LanceIndex(searched(pipe.store, pipe.recipe))
    asked = arrow.question.records(pipe.store.rows("questions", "id", [question]))
    online = asyncio.run(QuestionExecutor(recipe, LocalKit(index, "transformers"))(asked))
    assert online == [undisturbed[question]], "offline and online are equal"
    counts, _ = bench.run(SURE, out="three")
    assert all(c == (0, 0) for c in counts.values()), "and then nothing is left to do"


@pytest.mark.drill
def test_why_and_reprocess_name_the_evidence(bench):
    question, pages = pages_of(bench, 0)
    page = sorted(pages)[0]
    evaluated(bench, failing(pages), "one")
    bench.run(SURE, out="two")
    store = bench.pipeline(SURE).store
    one, two = (read(bench.folder / n) for n in ("one", "two"))
    told = why(store, one, question)
    assert f"{page}: no texts" in told.parts["absent"] and told.parts["absent"].count(": no ") == len(pages)
    told = why(store, two, question)
    assert told.changed == ("absent",) and "absent" not in told.parts and told.state == "computed"
    assert {s.reason for s in told.steps} == {"evidence"}
    found = changes(store, compared_with(store, two), two)
    assert [(c.question, c.step, c.cause) for c in found.changed] == [(question, "evidence", None)]
    keys = answer_keys(store, two.run)
    assert {q: k.reused for q, k in keys.items()} == {q: q != question for q in keys}


@pytest.mark.drill
def test_a_page_that_fails_again_asks_nothing_and_the_plan_says_what_it_may_ask(bench):
    _, pages = pages_of(bench, 0)
    evaluated(bench, failing(pages), "one")
    done = {s.step: s for s in evaluated(bench, failing(pages), "two").record.steps}
    assert done["rerank"].computed == 0 < done["rerank"].planned
    store = bench.pipeline(SURE).store
    assert all(k.reused for k in answer_keys(store, read(bench.folder / "two").run).values())


@pytest.mark.drill
def test_retry_faults_answers_the_questions_of_the_sources_that_are_done_now(bench, undisturbed):
    question, pages = pages_of(bench, 1)
    evaluated(bench, failing(pages, transient=False), "one")
    pipe = bench.pipeline(SURE)
    counts, _ = bench.run(SURE, out="two")
    assert all(c == (0, 0) for c in counts.values()), "what failed for good is not tried"
    assert not answers(pipe)[question].hits
    evaluated(bench, inline, "three", retry_faults=True)
    assert answers(pipe) == undisturbed


@pytest.mark.drill
def test_questions_about_the_whole_store_rest_on_all_that_is_there(bench):
    pipe = bench.pipeline(SURE)
    ingest(pipe.store, [bench.world], "crag", pipe.progress)
    asked = [Question(f"w{i}", line["query"]) for i, line in enumerate(bench.lines()[:2])]
    put(pipe.store, "questions", arrow.question.table(asked))
    pages = set(sorted(pipe.sources(None))[:4])

    def keys():
        return set(pipe.keys(asked, pipe.answer_sources(asked)))

    slow = bench.pipeline(SURE, runner=failing(pages))
    slow.index(asked)
    slow.answer(asked)
    without = keys()
    pipe.index(asked)
    assert keys().isdisjoint(without), "another corpus is searched now"
    pipe.answer(asked)
    assert pipe.unanswered(pipe.keys(asked, pipe.answer_sources(asked))) == []


@pytest.mark.drill
def test_what_a_killed_run_answered_without_a_page_is_answered_again_within_the_plan(bench, undisturbed):
    _, pages = pages_of(bench, 0)
    with pytest.raises(Stopped):
        evaluated(bench, both(pages, 0), "one")
    pipe = bench.pipeline(SURE)
    pipe.index(questions_of(pipe, None, None))  # by another command, so that nothing is pending
    [rerank] = [s for s in plan(pipe, questions_of(pipe, None, None)).steps if s.step == "rerank"]
    assert rerank.rows - rerank.cached == 3, "two of the part that was not done, and this one"
    bench.run(SURE, out="two")
    assert answers(pipe) == undisturbed


def test_keys_of_answers_from_whole_evidence_say_nothing_of_what_was_absent(bench):
    bench.run(SURE, out="one")
    store = bench.pipeline(SURE).store
    keys = answer_keys(store, read(bench.folder / "one").run).values()
    assert {k.absent for k in keys} == {""}
