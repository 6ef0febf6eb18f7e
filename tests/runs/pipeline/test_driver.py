"""What is missing and no more: a second run asks nothing, a killed one goes on, bad rows are counted."""

import contextlib
import io
import json
from dataclasses import asdict, replace

import pytest
from checkout import ROOT, SUPPORT

from raypipe.api.session import load_recipe
from raypipe.core import arrow
from raypipe.core.arrow import id_texts
from raypipe.core.conf import Conf
from raypipe.core.errors import ClusterTooSmall, DataError
from raypipe.core.progress import Progress
from raypipe.core.records import Fault, Question
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.golds import questions_of
from raypipe.evaluation.options import EvalOptions
from raypipe.runs.pipeline.dead_letters import FailedRow, faults_table
from raypipe.runs.pipeline.driver import ANSWERS_AT_ONCE, Pipeline, TaskSizes
from raypipe.runs.pipeline.ingest import ingest
from raypipe.runs.pipeline.tasks import WorkerConfig, Workers, inline
from raypipe.store import Store, commit, write_part

pytestmark = pytest.mark.slow
DRILL = pytest.mark.drill

CONF = Conf((ROOT / "conf",))
FAKES = SUPPORT / "fakes.yaml"


@pytest.fixture
def progress():
    with Progress(io.StringIO(), silent=True) as p:
        yield p


def pipeline(uri, progress, recipe=FAKES, runner=inline):
    store = Store.create(str(uri))
    made = load_recipe(str(recipe), None, CONF)
    return Pipeline(
        store, made, WorkerConfig(store.uri, "transformers", "cpu", 1), TaskSizes(15, 2), runner, progress
    )


def evaluated(pipe, world, out):
    return evaluate(pipe, [world], out, EvalOptions("crag", rule="official"))


def asked(done):
    return {s.step: s.computed for s in done.record.steps}


def work(report):
    """Step -> what it did, but for its time, and for what a later part found remembered."""
    return {s.step: (s.rows, s.computed + s.cached, s.skipped, s.faults) for s in report.steps}


def rows(store, table):
    """All rows of a table, in an order of their own."""
    return sorted(
        json.dumps(r, sort_keys=True, default=str) for r in store.dataset(table).to_table().to_pylist()
    )


def lines_of(world):
    return [line for f in sorted(world.glob("questions*.jsonl")) for line in f.read_text().splitlines()]


def contents(pipe):
    """Everything that a run leaves for later ones."""
    [model] = pipe.recipe.embedders()
    tables = (
        pipe.recipe.texts_table,
        pipe.recipe.passages_table,
        pipe.recipe.vectors_table(model),
        "answers",
        "questions",
        "golds",
    )
    return {t: rows(pipe.store, t) for t in (*tables, "sources")}


def test_questions_and_answers_are_read_a_batch_at_a_time(tmp_path, progress):
    taken = []

    def questions():
        for i in range(2 * ANSWERS_AT_ONCE + 50):
            taken.append(f"q{i}")
            yield Question(f"q{i}", "who?", citations=())

    pipe = pipeline(tmp_path / "store", progress)
    answers = pipe.answers(questions(), pipe.answer_sources([]))
    assert next(answers).id == "q0" and len(taken) == ANSWERS_AT_ONCE
    assert [q.id for q in answers] == taken[1:]


@pytest.mark.drill
def test_a_log_names_each_phase_by_what_it_did_and_its_own_time(world, tmp_path):
    log, at = io.StringIO(), iter(range(10_000))
    with Progress(log, now=lambda: next(at)) as progress:
        evaluated(pipeline(tmp_path / "store", progress), world, tmp_path / "out")
    said = [line for line in log.getvalue().splitlines() if " in 0:" in line]
    assert [line.split()[0] for line in said] == ["read", "parsed", "split", "embedded", "answered"]
    assert "answered 6/6 questions" in said[-1]


def test_a_question_that_ends_its_worker_is_a_dead_letter(world, tmp_path, progress):
    def run(verb, work, tasks):
        crash = FailedRow(Fault("worker", "crash", "its worker died three times", transient=False), 3)
        if verb == "answer":
            tasks = [t.with_ids(pipe.store) for t in tasks]
            tasks = [replace(t, failed={t.ids[0]: crash}) for t in tasks]
        return inline(verb, work, tasks)

    pipe = pipeline(tmp_path / "store", progress, runner=run)
    ids = ingest(pipe.store, [world], "crag", progress).questions[:2]
    questions = list(pipe.questions(ids))
    pipe.index(questions)
    pipe.answer(questions)
    assert [q.outcome == "fault" for q in pipe.answers(questions)].count(True) == 1
    assert not pipe.unanswered(pipe.keys(questions, pipe.answer_sources(questions)))


def test_one_lease_covers_all_phases_of_an_eval(world, tmp_path, progress):
    seen = []

    def watched(verb, fill, parts):
        seen.append((verb, json.loads((tmp_path / "store/_lease/driver-000000001.json").read_text())))
        yield from inline(verb, fill, parts)

    evaluated(pipeline(tmp_path / "store", progress, runner=watched), world, tmp_path / "out")
    assert [verb for verb, _ in seen] == ["parse", "parse", "embed", "answer"]
    assert {(sign["owner"], sign["token"]) for _, sign in seen} == {("eval fakes", seen[0][1]["token"])}
    assert not any((tmp_path / "store/_lease").iterdir())


@pytest.mark.drill
def test_another_recipe_on_the_same_store_computes_only_what_differs(world, tmp_path, progress):
    evaluated(pipeline(tmp_path / "store", progress), world, tmp_path / "one")
    other = tmp_path / "other.yaml"
    other.write_text(FAKES.read_text().replace("candidates: 20, top: 10", "candidates: 12, top: 6"))
    done = evaluated(pipeline(tmp_path / "store", progress, other), world, tmp_path / "two")
    calls = asked(done)
    assert calls["parse"] == calls["split"] == calls["embed"] == calls["dense"] == calls["rerank"] == 0
    assert done.reused == 0


@pytest.mark.drill
@pytest.mark.parametrize("after", [pytest.param(0, marks=DRILL), pytest.param(1, marks=DRILL), 3])
def test_a_run_that_died_between_parts_goes_on_where_it_was(world, tmp_path, progress, after):
    whole = pipeline(tmp_path / "whole", progress)
    undisturbed = evaluated(whole, world, tmp_path / "out").record

    def dies(verb, fill, parts):
        for i, part in enumerate(inline(verb, fill, parts)):
            if i == after:
                raise KeyboardInterrupt
            yield part

    broken = pipeline(tmp_path / "broken", progress, runner=dies)
    attempts, done = 0, None
    while done is None:  # each attempt dies in the table that it reaches
        attempts += 1
        with contextlib.suppress(KeyboardInterrupt):
            done = evaluated(broken, world, tmp_path / "out").record
    assert attempts > 1
    assert contents(broken) == contents(whole)
    # All work of the run is counted, whoever did it, and what was done before is said.
    assert work(done) == work(undisturbed)
    assert done.resumed >= attempts - 1 and any(s.resumed for s in done.steps)
    assert all(s.computed <= s.planned for s in done.steps)
    assert not list((tmp_path / "broken" / "_attempts").iterdir())
    again = evaluated(broken, world, tmp_path / "out").record
    assert again.resumed == 0 and not any(s.rows for s in again.steps)


@pytest.mark.drill
@pytest.mark.parametrize("later", [1, 8])
def test_a_run_stopped_with_two_workers_and_resumed_with_another_number_gives_equal_tables(
    world, tmp_path, progress, later
):
    whole = pipeline(tmp_path / "whole", progress)
    evaluated(whole, world, tmp_path / "out")
    reached = {}  # table -> parts that it was cut into

    def dies(verb, fill, parts):
        fresh = fill.run not in reached
        reached.setdefault(fill.run, len(parts))
        for part in inline(verb, fill, parts):
            yield part
            if fresh:
                raise KeyboardInterrupt

    stopped = replace(pipeline(tmp_path / "stopped", progress, runner=dies), sizes=TaskSizes(1000, 1000))
    for count in (2, later, 2, later):  # each ends a table with the parts of the one before, and begins one
        with pytest.raises(KeyboardInterrupt):
            evaluated(replace(stopped, workers=lambda verb, n=count: Workers(n)), world, tmp_path / "out")
    done = evaluated(replace(stopped, workers=lambda verb: Workers(2)), world, tmp_path / "out").record
    assert done.resumed and contents(stopped) == contents(whole)
    texts, passages, vectors, answers = reached.values()
    assert texts >= 4 and vectors >= 4, "two workers"
    assert (passages, answers) == (1, 1) if later == 1 else passages >= 16 and answers == 6


@pytest.mark.parametrize("workers", [2, 3, 8, 100])
def test_each_worker_gets_two_tasks_and_no_task_is_above_the_constant(workers):
    for rows in (1, 2, 7, 10, 73, 99, 1000, 123_456):
        for most in (1, 10, 100):
            size = Workers(workers).per_task(rows, most)
            assert 1 <= size <= most and -(-rows // size) >= min(rows, 2 * workers)
            size = Workers(workers, min_rows=16).per_task(rows, 1000)
            assert size <= 1000 and -(-rows // size) >= min(rows, workers) // 2


@pytest.mark.drill
def test_a_second_run_connects_to_no_cluster_and_a_refused_one_has_read_nothing(world, tmp_path, progress):
    def refuses(*verb):
        raise ClusterTooSmall("pool embed: 3 actors")

    pipe = replace(pipeline(tmp_path / "store", progress), workers=refuses, connect=refuses)
    with pytest.raises(ClusterTooSmall):
        evaluated(pipe, world, tmp_path / "out")
    assert not pipe.store.dataset("sources").count_rows()
    evaluated(replace(pipe, workers=lambda verb: Workers(2), connect=list), world, tmp_path / "out")
    assert not any(s.rows for s in evaluated(pipe, world, tmp_path / "out").record.steps)


@pytest.mark.drill
def test_bad_lines_and_pages_are_counted_faults_and_nothing_else_is_lost(world, tmp_path, progress):
    lines = [json.loads(line) for line in lines_of(world)]
    lines[0]["search_results"][0]["page_result"] = "%PDF-1.7 binary"
    lines[1]["search_results"][0]["page_result"] = "<p>" + "x" * (25 << 20)
    del lines[2]["query"]
    lines[3]["search_results"][0]["page_result"] = "   "
    file = tmp_path / "bad.jsonl"
    file.write_text("\n".join([*(json.dumps(line) for line in lines), '{"broken": ']))
    done = evaluated(pipeline(tmp_path / "store", progress), file, tmp_path / "out")
    reasons = {(f.step, f.reason): f.rows for f in done.record.faults}
    assert reasons == {
        ("parse", "not_html"): 1,
        ("parse", "too_large"): 1,
        ("read", "missing_field"): 1,
        ("read", "bad_json"): 1,
    }
    assert done.record.questions == 5 and done.record.empty_pages >= 1
    steps = {s.step: s for s in done.record.steps}
    assert steps["parse"].computed == steps["parse"].rows
    assert steps["tokenize"].skipped == 2 and steps["tokenize"].computed == steps["parse"].computed - 2
    assert len((tmp_path / "out" / "predictions.jsonl").read_text().splitlines()) == 5
    again = evaluated(pipeline(tmp_path / "store", progress), file, tmp_path / "out")
    assert set(asked(again).values()) == {0}, "a page that cannot be done is not tried on every run"
    assert again.record.faults == done.record.faults


@pytest.mark.drill
def test_a_report_shows_the_faults_of_the_files_that_it_read_and_of_no_others(world, tmp_path, progress):
    good, bad, mended = lines_of(world)[:3], tmp_path / "bad.jsonl", tmp_path / "mended" / "bad.jsonl"
    bad.write_text("\n".join([*good, '{"broken": ', "[]"]))
    mended.parent.mkdir()
    mended.write_text("\n".join([*good, "[]"]))
    pipe = pipeline(tmp_path / "store", progress)

    def reasons(file):
        return {f.reason: f.rows for f in evaluated(pipe, file, tmp_path / "out").record.faults}

    assert reasons(bad) == {"bad_json": 1, "not_object": 1}
    assert reasons(mended) == {"not_object": 1}, "the mended line's fault is gone, the other is still there"
    assert ingest(pipe.store, [bad], "crag", progress).reasons == {"bad_json": 1, "not_object": 1}


@pytest.mark.drill
def test_a_row_that_failed_in_passing_and_was_done_since_is_no_fault(world, tmp_path, progress):
    pipe = pipeline(tmp_path / "store", progress)
    evaluated(pipe, world, tmp_path / "out")
    source = pipe.store.dataset(pipe.recipe.texts_table).to_table(["source"])["source"][0].as_py().hex()
    key, id = (id_texts(pipe.store.dataset("answers").to_table([c])[c])[0] for c in ("key", "id"))
    once = Fault("parse", "timeout", "took too long", transient=True)
    lost = [(source, asdict(once), 1, pipe.recipe.texts_table), (id, asdict(once), 1, key)]
    write_part(pipe.store, "faults", "before", "0", faults_table(lost, "before"), {})
    commit(pipe.store, "faults", "before", ["0"])
    assert evaluated(pipe, world, tmp_path / "out").record.faults == ()
    pipe.store.forget("answers", "key", [key])
    [waiting] = [q for q in pipe.answers(questions_of(pipe, None, None)) if not q.outcome]
    assert (waiting.id, waiting.faults) == (id, (once,))
    pipe.store.forget(pipe.recipe.texts_table, "source", [source])
    assert [r["reason"] for r in pipe.failed_sources(None)] == ["timeout"]


def test_questions_without_any_page_are_answered(world, tmp_path, progress):
    lines = [json.loads(line) for line in next(world.glob("questions*.jsonl")).read_text().splitlines()]
    data = tmp_path / "bare.jsonl"
    data.write_text("\n".join(json.dumps({**line, "search_results": []}) for line in lines))
    done = evaluated(pipeline(tmp_path / "s", progress), data, tmp_path / "o")
    told = [json.loads(line) for line in done.folder.predictions.read_text().splitlines()]
    assert len(told) == len(lines) and {t["outcome"] for t in told} == {"abstained"}
    assert done.record.chunks == 0 and not done.record.faults


def test_a_damaged_file_leaves_the_store_as_it_was(world, tmp_path, progress):
    import bz2

    raw = b"".join(f.read_bytes() for f in sorted(world.glob("questions*.jsonl")))
    file = tmp_path / "cut.jsonl.bz2"
    file.write_bytes(bz2.compress(raw)[:-40])
    store = Store.create(str(tmp_path / "store"))
    with pytest.raises(DataError, match=r"cut\.jsonl\.bz2"):
        ingest(store, [file], "crag", progress)
    assert [store.count(t) for t in ("sources", "questions", "golds", "faults")] == [0, 0, 0, 0]


def test_an_edited_page_is_parsed_again_and_only_the_questions_that_cite_it_are_answered_again(
    world, tmp_path, progress
):
    pipe = pipeline(tmp_path / "store", progress)
    first = evaluated(pipe, world, tmp_path / "one")
    lines = [json.loads(line) for line in lines_of(world)]
    old = lines[0]["search_results"][0]["page_result"]
    new = old.replace("<body", "<body data-edited='yes'", 1) + "<p>One more sentence stands here now.</p>"
    citing = 0
    for line in lines:
        cites = [r for r in line["search_results"] if r["page_result"] == old]
        citing += bool(cites)
        for r in cites:
            r["page_result"] = new
    file = tmp_path / "edited.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines))
    done = evaluated(pipeline(tmp_path / "store", progress), file, tmp_path / "two")
    assert asked(done)["parse"] == 1
    assert done.reused == 6 - citing
    back = evaluated(pipeline(tmp_path / "store", progress), world, tmp_path / "three")
    assert set(asked(back).values()) == {0} and back.reused == 6
    assert back.folder.predictions.read_bytes() == first.folder.predictions.read_bytes()
    assert back.scored.marks == first.scored.marks
    questions = {q.id: q for q in arrow.question.records(pipe.store.dataset("questions").to_table())}
    assert len(questions) == 6
