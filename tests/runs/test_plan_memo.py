"""A plan asks the memo, not only the answers: what the memo has lost is planned, and no other call."""

import shutil

import pytest
from reruns import FAKES, Bench

from raypipe.evaluation.golds import questions_of
from raypipe.runs.pipeline.tasks import inline
from raypipe.runs.plan.planner import plan
from raypipe.store.memo.disk import merge_memo

pytestmark = pytest.mark.slow

DECIDED = FAKES.replace("prefer: [extract]", "prefer: [extract], lower: true")
REPLIES = """
corpus: [{parse: {kinds: [page]}}, {split: {child_chars: 200}}]
question:
  - generate: {model: scripted, prompt: crag/vanilla, into: first, max_tokens: 50}
  - generate:
      model: scripted
      prompt: {variables: [text, replies.first], system: Again., user: "{{ text }} {{ replies.first }}"}
      into: llm
      max_tokens: 50
  - decide: {prefer: [llm]}
"""
ANSWERS = ("shortlist", "dense", "bm25", "fuse", "rerank", "extract", "decide")


def damaging(store, tables):
    """A runner that cuts the cache files of some tables as a worker leaves them: before they are merged."""

    def runner(verb, work, tasks):
        yield from inline(verb, work, tasks)
        if verb == "answer":
            for file in (store / "_memo").glob(f"{tables}-*/*.arrow"):
                file.write_bytes(file.read_bytes()[:-20])

    return runner


@pytest.mark.drill
@pytest.mark.parametrize(
    ("tables", "asked"),
    [("scores", {"shortlist", "rerank"}), ("embeddings", {"dense", "extract"})],
)
def test_values_that_were_damaged_before_they_were_merged_are_planned_by_the_next_change(
    world, tmp_path, tables, asked
):
    bench = Bench(tmp_path, world)
    bench.run(pipe=bench.pipeline(runner=damaging(tmp_path / "store", tables)))
    counts, steps = bench.run(DECIDED)  # which holds the run to its plan
    assert {s for s in ANSWERS if counts[s][1]} == asked
    assert all(steps[s].reasons == {"lost": steps[s].max_calls} for s in asked)
    assert counts["bm25"] == (0, 0)


def test_damage_is_seen_before_the_files_are_merged(bench):
    pipe = bench.pipeline(DECIDED)
    questions = questions_of(pipe, None, None)
    assert not any(s.max_calls for s in plan(pipe, questions).steps)
    [table] = [t.name for t in (bench.folder / "store").glob("scores-*.lance")]
    waiting = bench.folder / "store/_memo" / table.removesuffix(".lance")
    waiting.mkdir(parents=True, exist_ok=True)
    (waiting / "0f0f.arrow").write_bytes(b"half a fi")
    found = {s.step: s for s in plan(pipe, questions).steps}
    assert not found["rerank"].exact and found["rerank"].max_calls == 6 * 20
    assert found["extract"].max_calls > 0 == found["bm25"].max_calls
    assert merge_memo(pipe.store).damaged == 1
    assert {s.step: s.max_calls for s in plan(pipe, questions).steps} == {
        name: s.max_calls for name, s in found.items()
    }, "the loss is noted"


def test_a_memo_table_that_is_gone_is_planned_and_what_another_table_holds_is_not(bench):
    for table in (bench.folder / "store").glob("embeddings-*.lance"):
        shutil.rmtree(table)
    counts, steps = bench.run(DECIDED)
    assert counts["dense"] == (6, 6) and steps["dense"].exact and counts["shortlist"] == (0, 0)
    assert 0 < counts["extract"][1] <= counts["extract"][0]


def test_another_split_is_planned_before_its_tables_are_there_though_replies_are_in_doubt(world, tmp_path):
    scripted = "scripted: {kind: generator, loader: scripted, max_model_len: 4096}"
    bench = Bench(tmp_path, world, models=scripted)
    bench.run(REPLIES)
    [table] = (tmp_path / "store").glob("replies-*.lance")
    waiting = tmp_path / "store/_memo" / table.stem
    waiting.mkdir(parents=True, exist_ok=True)
    (waiting / "0f0f.arrow").write_bytes(b"half a fi")
    other = bench.pipeline(REPLIES.replace("child_chars: 200", "child_chars: 300"))
    found = {s.step: s.max_calls for s in plan(other, questions_of(other, None, None)).steps}
    assert found["split"] > 0 == found["generate:first"] == found["generate:llm"]
