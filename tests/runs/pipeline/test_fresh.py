"""Answers that are asked for afresh: the old ones go with the commit of the new ones, whatever dies."""

import pytest
from reruns import FAKES, TaskSizes

from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.runs.pipeline.tasks import inline
from raypipe.store import Store
from raypipe.store.housekeeping import unfinished

pytestmark = pytest.mark.slow

LLM = FAKES.replace(
    "  - decide: {prefer: [extract]}",
    "  - generate: {model: scripted, prompt: crag/vanilla, into: llm, max_tokens: 50}\n"
    "  - decide: {prefer: [llm]}",
)
SIZES = TaskSizes(50, 2)


def run(bench, runner=inline, **options):
    """Calls that a language model was sent, and those that the memo answered."""
    pipe = bench.pipeline(LLM, SIZES, runner)
    done = evaluate(
        pipe, [bench.world], bench.folder / "out", EvalOptions("crag", rule="official", **options)
    )
    [line] = [s for s in done.record.steps if s.step == "generate:llm"]
    assert line.computed <= line.planned
    return line.computed, line.cached


def dies_after(tasks):
    """A runner that is stopped after so many tasks of the question half."""

    def runner(verb, work, parts):
        for i, done in enumerate(inline(verb, work, parts)):
            if verb == "answer" and i == tasks:
                raise KeyboardInterrupt
            yield done

    return runner


def answers(store):
    """Key -> row id, of all answers of the recipe with a language model."""
    rows = store.dataset("answers").to_table(with_row_id=True).to_pylist()
    return {r["key"]: r["_rowid"] for r in rows if "llm" in dict(r["replies"])}


@pytest.mark.drill
@pytest.mark.parametrize("tasks", [0, 2])
def test_a_plain_eval_after_the_death_of_a_fresh_one_asks_what_was_to_be_asked(bench, tasks):
    assert run(bench) == (6, 0)
    store = Store.open(str(bench.folder / "store"))
    before = answers(store)
    with pytest.raises(KeyboardInterrupt):
        run(bench, dies_after(tasks), fresh=True)
    assert answers(store) == before and len(before) == 6, "old answers stay until new ones come"
    assert run(bench) == (6, 0), "none of the old replies is remembered"
    after = answers(store)
    assert after.keys() == before.keys() and not set(after.values()) & set(before.values())
    assert run(bench) == (0, 0) and not unfinished(store)
    for version in store.dataset("answers").versions()[-3:]:
        rows = store.dataset("answers", version["version"]).to_table().to_pylist()
        assert sum("llm" in dict(r["replies"]) for r in rows) == 6, "at no moment was one missing"


def test_a_fresh_eval_replaces_answers_and_replies_and_leaves_nothing_to_do(bench):
    assert run(bench) == (6, 0)
    store = Store.open(str(bench.folder / "store"))
    before, count = answers(store), store.count("answers")
    assert run(bench, fresh=True) == (6, 0)
    assert not set(answers(store).values()) & set(before.values()) and store.count("answers") == count
    assert run(bench) == (0, 0)
