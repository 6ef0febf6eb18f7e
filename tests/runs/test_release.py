"""Releases: switched at once and back, gated, protected; and what nobody names any more goes."""

import asyncio
import json
import re
import shutil
from dataclasses import replace

import pytest
from reruns import FAKES, Bench

from raypipe.api.cli.main import main
from raypipe.api.release import ReleaseResult
from raypipe.contrib.world.write import write
from raypipe.core import arrow
from raypipe.core.errors import ConfError
from raypipe.evaluation.scored_run import stored_run
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import QuestionExecutor
from raypipe.runs.gates import GateFailed, gate
from raypipe.runs.prune import prune
from raypipe.runs.record import read
from raypipe.runs.release import live, promote, releases, rollback, summary
from raypipe.store import Store, StoreError
from raypipe.store.housekeeping import drop, tagged
from raypipe.store.index import LanceIndex

pytestmark = pytest.mark.slow

SURE = FAKES.replace("threshold: 0.5\n", "threshold: 0.0\n")
OTHER = SURE.replace("hash-embedder", "other-embedder").replace("top: 10}", "top: 3}")


def ask(store, questions):
    """Every question answered by the live release, one request each."""
    release = live(store)
    recipe, spec = release.opened(store)
    kit = LocalKit(LanceIndex(spec), "transformers")
    answered = asyncio.run(QuestionExecutor(recipe, kit)(questions))
    return release.id, [(q.answer, q.hits) for q in answered]


@pytest.fixture
def store(bench):
    return Store.open(str(bench.folder / "store"))


QUESTIONS = 12


@pytest.mark.drill
def test_live_follows_promote_and_rollback_while_another_embedder_is_indexed(tmp_path):
    write(tmp_path / "world", QUESTIONS, pages=8, seed=9, page_chars=1500)
    bench = Bench(tmp_path, tmp_path / "world")
    bench.run(SURE, out="one")
    store = Store.open(str(tmp_path / "store"))
    questions = arrow.question.records(store.dataset("questions").to_table())
    first = promote(store, read(bench.folder / "one"), [])
    id, old = ask(store, questions)
    assert id == first.id
    seen = []

    def asks_between_parts(verb, fill, parts):
        from raypipe.runs.pipeline.tasks import inline

        for part in inline(verb, fill, parts):
            seen.append(ask(store, questions))
            yield part

    bench.run(pipe=bench.pipeline(OTHER, runner=asks_between_parts), out="two")
    assert len(seen) > 2 and all(s == (first.id, old) for s in seen)
    second = promote(store, read(bench.folder / "two"), [])
    id, new = ask(store, questions)
    assert id == second.id and sum(a != b for a, b in zip(old, new, strict=True)) >= 10
    assert rollback(store).id == first.id and ask(store, questions) == (first.id, old)
    with pytest.raises(ConfError, match="no earlier release"):
        rollback(store)
    assert [r.id for r in releases(store)] == [first.id, second.id] and live(store).id == first.id


def test_a_gate_holds_against_what_is_live_when_the_release_is_made(bench, store):
    bench.run(SURE, out="one")
    first = promote(store, read(bench.folder / "one"), [])
    for name in ("two", "three"):
        bench.run(SURE.replace("child_chars: 200", f"child_chars: {len(name)}00"), out=name)
    two, three = (read(bench.folder / name) for name in ("two", "three"))
    second = promote(store, two, [], passed=["better"], against=first)
    with pytest.raises(GateFailed, match=rf"compared with release {first.id}, but now {second.id} is"):
        promote(store, three, [], passed=["better"], against=first)
    assert live(store) == second


def test_a_release_of_an_older_raypipe_is_compared_with_and_said_not_to_be_followed(bench, store):
    bench.run(SURE, out="one")
    record = read(bench.folder / "one")
    made = promote(store, record, [])
    older = {**record.recipe, "digest": "0" * 32}
    assert ReleaseResult(made, store.uri).not_followed() == ""
    assert "step's version was raised" in ReleaseResult(replace(made, recipe=older), store.uri).not_followed()
    assert (
        stored_run(store, record.model_copy(update={"recipe": older})).values
        == stored_run(store, record).values
    )


@pytest.mark.drill
def test_a_rollback_to_a_release_that_is_gone_changes_nothing(bench, store):
    bench.run(SURE, out="one")
    first = promote(store, read(bench.folder / "one"), [])
    bench.run(SURE.replace("child_chars: 200", "child_chars: 180"), out="two")
    second = promote(store, read(bench.folder / "two"), [])
    store.files.remove(f"_releases/{first.id}.json")
    with pytest.raises(ConfError, match="is missing: promote a run again"):
        rollback(store)
    assert live(store) == second


def test_a_query_of_another_model_than_the_table_is_refused(bench, store):
    bench.run(SURE, out="one")
    promote(store, read(bench.folder / "one"), [])
    _, spec = live(store).opened(store)
    kit = LocalKit(LanceIndex(spec), "transformers")
    questions = arrow.question.records(store.dataset("questions").to_table())
    with pytest.raises(ConfError, match="no vectors of model other-embedder"):
        asyncio.run(QuestionExecutor(bench.pipeline(OTHER).recipe, kit)(questions))


def test_a_gate_that_fails_is_exit_code_7_and_leaves_live_as_it_was(bench, store, capsys):
    bench.run(SURE, out="one")
    folder = str(bench.folder / "one")
    assert main(["promote", folder, "--gate", "score>=2"]) == 7
    assert "score>=2" in capsys.readouterr().err and live(store) is None
    assert main(["promote", folder, "--gate", "scor>=0.1"]) == 2
    assert "did you mean 'score'?" in capsys.readouterr().err
    gates = ["--gate", "score>=-1", "--gate", "questions==6"]
    assert main(["promote", folder, *gates, "--min-scored", "0", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["live"] and said["gates"] == ["score>=-1", "questions==6"]
    assert main(["promote", folder]) == 0 and len(releases(store)) == 1, "the same run again changes nothing"
    with pytest.raises(ConfError, match="or METRIC"):
        gate("score is good")
    with pytest.raises(GateFailed, match="hallucination"):
        promote(store, read(bench.folder / "one"), [gate("hallucination<0")])


def test_a_run_that_this_raypipe_would_compute_otherwise_is_not_released(bench, store):
    bench.run(SURE, out="one")
    run = read(bench.folder / "one")
    recipe = {**run.recipe, "digest": "0" * 32}  # as if a step's version was raised since
    other = run.model_copy(update={"recipe": recipe})
    with pytest.raises(ConfError, match="a step's version was raised"):
        promote(store, other, [])
    assert live(store) is None and releases(store) == []


def test_a_gate_refuses_a_score_that_rests_on_few_of_the_questions_and_says_how_to_allow_it(
    bench, store, capsys
):
    bench.run(SURE, out="one")
    folder, score = str(bench.folder / "one"), read(bench.folder / "one").score
    scored = score.total - score.n_unscored
    assert 0 < scored < 0.95 * score.total, "the rule leaves some of these questions open"
    assert main(["promote", folder, "--gate", "hallucination<=1"]) == 7
    said = capsys.readouterr().err
    assert f"{scored} of 6 questions of run" in said and "expected at least 95%" in said
    allowed = re.search(r"--min-scored (\S+)\. ", said)[1]
    assert live(store) is None
    assert main(["releases", "--store", store.uri]) == 0
    assert capsys.readouterr().out.startswith("no releases; `raypipe promote DIR`")
    assert main(["promote", folder, "--gate", "n_unscored<=6", "--gate", "questions==6"]) == 0
    assert main(["promote", folder, "--gate", "hallucination<=1", "--min-scored", allowed]) == 0
    with pytest.raises(SystemExit, match="2"):
        main(["promote", folder, "--min-scored", "95"])
    assert "expected a share from 0 to 1, found 95" in capsys.readouterr().err
    assert main(["releases", "--store", store.uri]) == 0
    assert f"{score.score:+.3f} on {scored} of 6" in capsys.readouterr().out


def test_promote_names_the_store_it_writes_to_and_takes_another(bench, store, capsys):
    bench.run(SURE, out="one")
    shutil.copytree(bench.folder / "store", bench.folder / "moved")
    folder, moved = str(bench.folder / "one"), str(bench.folder / "moved")
    assert main(["promote", folder, "--store", moved]) == 0
    assert f"live in {moved}: r0001-" in capsys.readouterr().out
    promoted = live(Store.open(moved))
    assert promoted is not None and live(store) is None
    tried = replace(promoted, recipe={**promoted.recipe, "sets": ["rerank.top=3"]})
    assert summary(tried, "").recipe == f"{promoted.name} (rerank.top=3)", "what --set gave is named"
    assert main(["promote", folder]) == 0
    assert f"live in {store.uri}: r0001-" in capsys.readouterr().out
    assert main(["promote", folder, "--store", str(bench.folder / "absent")]) == 2
    assert "there is no store at" in capsys.readouterr().err


def test_ask_live_names_the_release_and_needs_one(bench, store, capsys):
    bench.run(SURE, out="one")
    row = bench.lines()[0]["interaction_id"]
    assert main(["ask", "live", row, "--store", store.uri]) == 2
    assert "nothing is live" in capsys.readouterr().err
    release = promote(store, read(bench.folder / "one"), [])
    assert main(["ask", "live", row, "--store", store.uri, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["versions"]["release"] == release.id and said["hits"]
    predictions = (bench.folder / "one" / "predictions.jsonl").read_text().splitlines()
    [stored] = [p for p in map(json.loads, predictions) if p["id"] == row]
    assert said["answer"] == stored["prediction"] and said["hits"] == stored["hits"]


@pytest.mark.drill
def test_prune_keeps_what_releases_and_last_runs_name_and_removes_the_rest(bench, store, capsys):
    pipe = bench.pipeline(SURE)
    bench.run(SURE, out="one")
    release = promote(store, read(bench.folder / "one"), [])
    middle = FAKES.replace("child_chars: 200", "child_chars: 190")
    bench.run(middle, out="two")
    bench.run(OTHER, out="three")
    gone = bench.pipeline(middle).recipe.passages_table
    assert main(["prune", "--store", store.uri, "--dry-run", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["dry_run"] and {"kind": "table", "name": gone, "rows": store.count(gone)} in said["removed"]
    assert store.has(gone)
    assert prune(store, dry_run=False) and not store.has(gone)
    assert prune(store, dry_run=True) == []
    assert release.id in tagged(store, pipe.recipe.passages_table)
    with pytest.raises(StoreError, match="protected by"):
        drop(store, pipe.recipe.passages_table)
    ask(store, arrow.question.records(store.dataset("questions").to_table()))
    counts, _ = bench.run(SURE)
    assert all(c == (0, 0) for c in counts.values())
    counts, _ = bench.run(OTHER)
    assert all(c == (0, 0) for c in counts.values())
    assert counts and bench.run(middle)[0]["split"][1] > 0


def test_sources_that_no_question_cites_any_more_go_and_released_answers_stay(bench, store):
    bench.run(SURE, out="one")
    promote(store, read(bench.folder / "one"), [])
    questions = arrow.question.records(store.dataset("questions").to_table())
    before = ask(store, questions)
    lines = bench.lines()
    for line in lines:
        line["search_results"] = line["search_results"][:2]
    bench.run(SURE, data=bench.data(lines), out="two")
    sources = store.count("sources")
    [removed] = [r for r in prune(store, dry_run=False) if r.kind == "sources"]
    assert store.count("sources") == sources - removed.rows > 0
    assert ask(store, questions) == before
    counts, _ = bench.run(SURE, data=bench.data(lines))
    assert all(c == (0, 0) for c in counts.values())


def test_a_damaged_pointer_or_record_is_an_error_that_names_the_file_and_what_to_do(bench, store, capsys):
    bench.run(SURE)
    folder, uri = str(bench.folder / "out"), ["--store", store.uri]
    assert main(["promote", folder]) == 0
    for bad in ("", "[1]", '{"live": 1, "history": [1]}', "\ufffd"):
        store.files.write("_releases/live.json", bad.encode())
        for command in (["promote", folder], ["rollback", *uri], ["releases", *uri]):
            assert main(command) == 2
            said = capsys.readouterr().err
            assert "_releases/live.json" in said and "remove the file" in said
    (bench.folder / "out/run.json").write_text('{"format": ')
    assert main(["promote", folder]) == 3 and "run.json" in capsys.readouterr().err


@pytest.mark.drill
def test_releases_are_listed_in_the_order_of_their_promotion_whatever_was_pruned(bench, store):
    runs = []
    for n, threshold in enumerate(("0.1", "0.2", "0.3")):
        made = FAKES.replace("threshold: 0.5\n", f"threshold: {threshold}\n")
        bench.run(made, out=f"run{n}")
        runs.append(read(bench.folder / f"run{n}"))
    first, _, _ = (promote(store, run, []) for run in runs)
    rollback(store)
    rollback(store)
    fourth = promote(store, runs[2], [])
    prune(store, dry_run=False)  # takes the second and the third away
    fifth = promote(store, runs[1], [])
    assert [r.id for r in releases(store)] == [first.id, fourth.id, fifth.id]
