"""The story of a row, and what a run changed: told from records, the memo and stored answers."""

import json

import pytest
from reruns import FAKES

from raypipe.api.cli.main import main
from raypipe.core.errors import DataError
from raypipe.runs.changes import changes, compared_with
from raypipe.runs.explain import why
from raypipe.runs.record import read, recent
from raypipe.store import Store

pytestmark = pytest.mark.slow

SURE = FAKES.replace("threshold: 0.5\n", "threshold: 0.0\n")
OTHER = SURE.replace("rerank: {model: overlap-reranker", "rerank: {model: other-reranker")


def steps(story):
    return {s.step: (s.requests, s.computed, s.cached) for s in story.steps}


def test_a_row_tells_its_key_what_matched_and_what_was_asked_and_why(bench):
    store = Store.open(str(bench.folder / "store"))
    bench.run(SURE, out="one")
    row = bench.lines()[0]["interaction_id"]
    first = why(store, read(bench.folder / "one"), row)
    assert first.state == "computed" and first.outcome == "answered" and first.changed == ()
    assert [(d.stage, d.field, d.kind) for d in first.differences] == [("extract", "threshold", "parameter")]
    assert all(asked == 0 and requests == old for requests, asked, old in steps(first).values())
    assert first.parts["text"] == bench.lines()[0]["query"] and "citation 0" in first.parts
    counts, _ = bench.run(OTHER, out="two")
    stories = [why(store, read(bench.folder / "two"), line["interaction_id"]) for line in bench.lines()]
    assert {s.reason for story in stories for s in story.steps if s.step == "rerank"} == {"model"}
    assert sum(steps(s)["rerank"][1] for s in stories) == counts["rerank"][1]
    assert all(steps(s)["dense"] == (1, 0, 1) for s in stories)
    bench.run(OTHER, out="three")
    again = why(store, read(bench.folder / "three"), row)
    assert again.state == "reused" and {s.reason for s in again.steps} == {""}
    assert all(asked == 0 for _, asked, _ in steps(again).values())
    with pytest.raises(DataError, match="has no question 'nobody'"):
        why(store, read(bench.folder / "three"), "nobody")


@pytest.mark.drill
def test_an_edited_page_changes_the_row_and_the_story_names_the_citation(bench, capsys):
    lines = bench.lines()
    lines[0]["search_results"][0]["page_result"] += "<p>One more sentence stands here now.</p>"
    lines[0]["search_results"][0]["page_url"] = "https://example.org/moved"
    bench.run(data=bench.data(lines), out="edited")
    row = lines[0]["interaction_id"]
    story = why(Store.open(str(bench.folder / "store")), read(bench.folder / "edited"), row)
    assert "citation 0" in story.changed and story.differences == ()
    assert {s.reason for s in story.steps} == {"row"}
    assert main(["inspect", str(bench.folder / "edited"), row, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changed"] == list(story.changed)
    assert main(["inspect", str(bench.folder / "edited"), row]) == 0
    assert "changed  citation 0" in capsys.readouterr().out


def test_changed_answers_are_named_with_the_step_at_which_their_paths_part(bench):
    bench.run(SURE, out="one")
    store = Store.open(str(bench.folder / "store"))
    one, base = recent(store, 2)
    found = changes(store, base, one)
    assert found.common == 6 and found.changed and found.same + len(found.changed) == 6
    assert {c.step for c in found.changed} == {"extract"}
    change = found.changed[0]
    assert change.cause.field == "threshold" and change.before.outcome == "abstained"
    assert change.after.outcome == "answered" and "answered: " in change.after.path
    bench.run(SURE.replace("top: 30}", "top: 3}", 1), out="two")
    two = read(bench.folder / "two")
    found = changes(store, compared_with(store, two), two)
    parted = {c.step for c in found.changed} | set(found.other_path)
    assert found.before == one.run and parted == {"dense"}
    assert all(c.cause.stage == "dense" and c.cause.field == "top" for c in found.changed)


@pytest.mark.drill
def test_changes_count_new_rows_and_say_where_the_row_itself_is_another(bench):
    bench.run(SURE, out="one")
    lines = bench.lines()
    lines[0]["query"] = "which owl sleeps on mount brenn?"
    more = {**lines[1], "interaction_id": "more"}
    bench.run(SURE, data=bench.data([*lines[:-1], more]), out="two")
    store, two = Store.open(str(bench.folder / "store")), read(bench.folder / "two")
    found = changes(store, compared_with(store, two), two)
    assert (found.common, found.new, found.removed) == (5, 1, 1) and found.same == 4
    assert [c.step for c in found.changed] + list(found.other_path) == ["row"]
