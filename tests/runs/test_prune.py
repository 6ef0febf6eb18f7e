"""What prune may take and what it may not, after kills, edits and clocks that jump."""

import json
import os
import threading
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import pytest
from reruns import FAKES, MODELS, Bench

from raypipe.api.cli.main import main
from raypipe.core.errors import ConfError
from raypipe.core.records import Fault, digest
from raypipe.runs import release
from raypipe.runs.changes import compared_with
from raypipe.runs.pipeline.dead_letters import faults_table
from raypipe.runs.prune import prune, uncited
from raypipe.runs.record import read, recent, remove
from raypipe.runs.release import promote, releases, rollback
from raypipe.store import Store, StoreError, begin, commit, write_part
from raypipe.store.adapters import RECIPE, adapter_folder, adapter_names, put_adapter, training_lease
from raypipe.store.files import ANSWER_KEYS, CAPTURED, HALF_WRITTEN_S, RECORDS, RELEASES, Files
from raypipe.store.housekeeping import disk_bytes, free, tag, tagged, unfinished
from raypipe.store.ids import Ids
from raypipe.store.segments import write_segment
from raypipe.store.sources import sizes

pytestmark = pytest.mark.slow

SURE = FAKES.replace("threshold: 0.5\n", "threshold: 0.0\n")
EDITED = FAKES.replace("child_chars: 200", "child_chars: 190")

LLM = SURE.replace(
    "  - decide: {prefer: [extract]}",
    "  - generate: {model: scripted, prompt: crag/vanilla, into: llm, max_tokens: 50}\n"
    "  - decide: {prefer: [llm]}",
)


@pytest.fixture
def store(bench):
    return Store.open(str(bench.folder / "store"))


def removed(store, **options):
    return {(r.kind, r.name) for r in prune(store, dry_run=False, **options)}


def test_work_that_no_command_would_finish_is_given_up_by_its_name(bench, store, capsys):
    run = begin(store, "answers-of-an-edited-recipe", ["a", "b"], 1)
    store.files.write(f"_parts/answers/{run.name}/000000.json", b"{}")
    store.files.write("_attempts/0123.json", json.dumps({run.name: {"tasks": 1, "counts": {}}}).encode())
    uri = ["--store", store.uri]
    assert main(["prune", *uri]) == 2
    assert "raypipe prune --abandon answers-of-an-edited-recipe" in capsys.readouterr().err
    assert main(["prune", *uri, "--abandon", "answers-of-another"]) == 2
    assert "answers-of-an-edited-recipe" in capsys.readouterr().err
    assert main(["prune", *uri, "--abandon", "answers-of", "--dry-run"]) == 0 and unfinished(store)
    capsys.readouterr()
    assert main(["prune", *uri, "--abandon", "answers-of", "--json"]) == 0
    assert {"kind": "work", "name": "answers-of-an-edited-recipe", "rows": 0} in json.loads(
        capsys.readouterr().out
    )["removed"]
    assert not unfinished(store) and not store.files.names("_parts") and not store.files.names("_attempts")


@pytest.mark.drill
def test_the_tags_of_a_killed_promote_go_and_hold_nothing_back(bench, store):
    bench.run(EDITED, out="one")
    tables = read(bench.folder / "one").tables
    for table, version in tables.items():
        tag(store, table, "r0001-0123abcd", version)  # and then it was killed
    bench.run(SURE, out="two")
    release = promote(store, read(bench.folder / "two"), [])
    gone = removed(store)
    assert ("tag", "r0001-0123abcd") in gone and any(kind == "table" for kind, _ in gone)
    left = {name for table in release.tables for name in tagged(store, table)}
    assert left == {release.id}


class KilledAfter(Files):
    """Files of a process that is killed when it has removed one whose name begins so."""

    def __init__(self, uri, name):
        super().__init__(uri)
        self._name = name

    def remove(self, name):
        super().remove(name)
        if name.startswith(self._name):
            raise KeyboardInterrupt


@pytest.mark.drill
def test_what_says_that_a_release_or_a_run_is_whole_goes_before_the_rest_of_it(bench, store):
    for name, recipe in (("one", EDITED), ("two", SURE), ("three", FAKES)):
        bench.run(recipe, out=name)
    first, second = (promote(store, read(bench.folder / name), []) for name in ("one", "two"))
    rollback(store)
    prune(store, dry_run=False)
    assert [r.id for r in releases(store)] == [first.id, second.id], "it may be promoted again"
    assert second.id in tagged(store, "answers")
    third = promote(store, read(bench.folder / "three"), [])
    store.files = KilledAfter(store.uri, f"{RELEASES}/r")
    with pytest.raises(KeyboardInterrupt):
        prune(store, dry_run=False)
    assert [r.id for r in releases(store)] == [first.id, third.id]
    assert second.id in tagged(store, "answers"), "while it was listed, it could be opened"
    store.files, run = KilledAfter(store.uri, f"{RECORDS}/"), read(bench.folder / "two").run
    with pytest.raises(KeyboardInterrupt):
        remove(store, run)
    assert run not in {r.run for r in recent(store, 9)} and f"{run}.arrow" in store.files.names(ANSWER_KEYS)
    store.files = Files(store.uri)
    prune(store, dry_run=False)
    assert set(tagged(store, "answers")) == {first.id, third.id}
    assert f"{run}.arrow" not in store.files.names(ANSWER_KEYS)


@pytest.mark.drill
def test_a_run_of_another_raypipe_holds_nothing_back(bench, store):
    bench.run(EDITED, out="one")
    promote(store, read(bench.folder / "one"), [])
    for folder in (RECORDS, RELEASES):  # as if the version of a step was raised since
        for place in (f"{folder}/{name}" for name in store.files.names(folder)):
            text = store.files.read(place).decode().replace(read(bench.folder / "one").digest, "0" * 32)
            store.files.write(place, text.encode())
    bench.run(SURE, out="two")
    assert {kind for kind, _ in removed(store)} <= {"answers"}, "those of the run before them"


@pytest.mark.drill
def test_recipes_in_files_of_one_name_are_apart(bench, store):
    """Neither loses its answers; those of an edited file are superseded."""
    small, big = (Bench(bench.folder / name, bench.world, file=None) for name in ("small", "big"))
    for one in (small, big):
        one.folder.mkdir()
        (one.folder / "store").symlink_to(store.uri)
    small.run(SURE)
    big.run(EDITED)
    first, second = (read(one.folder / "out").digest for one in (small, big))
    gone = removed(store)
    assert not gone & {("answers", first), ("answers", second)}
    small.run(SURE.replace("top: 10}", "top: 3}"))
    gone = removed(store)
    assert ("answers", first) in gone and ("answers", second) not in gone


@pytest.mark.drill
def test_a_clock_a_year_ahead_in_one_run_lets_nothing_newer_go(bench, store, monkeypatch):
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 365 * 86400)
    bench.run(EDITED, out="ahead")
    monkeypatch.undo()
    bench.run(SURE, out="newest")
    newest, ahead = read(bench.folder / "newest"), read(bench.folder / "ahead")
    assert newest.finished < ahead.finished and recent(store, 1)[0].run == newest.run
    assert compared_with(store, newest).run == ahead.run
    gone = removed(store)
    assert ("answers", ahead.digest) in gone and ("answers", newest.digest) not in gone
    assert promote(store, newest, []).run == newest.run


def test_replies_of_a_language_model_go_only_when_they_are_asked_for_by_its_name(bench, store):
    bench.run(LLM, out="llm")
    [model] = [m for m in read(bench.folder / "llm").models if m.kind == "generator"]
    with pytest.raises(ConfError, match=r"--replies 'scripted': expected a model that is no longer in use"):
        prune(store, dry_run=True, replies=["scripted"])
    bench.run(SURE, out="two")  # the same file, edited
    assert ("table", model.replies) not in removed(store) and store.count(model.replies)
    counts, _ = bench.run(LLM)
    assert counts["generate:llm"][1] == 0, "all that was paid for is there"
    bench.run(SURE)
    with pytest.raises(ConfError, match=r"no finished run names it; did you mean 'scripted'"):
        prune(store, dry_run=False, replies=["scriped"])
    assert ("table", model.replies) in removed(store, replies=["scripted"])


def leftovers(store):
    """What a process that was killed at every place at once would leave."""
    table = "questions"
    write_part(store, table, "dead", "000000", store.dataset(table).to_table().slice(0, 1), {})
    junk = [
        f"_{n}/.0123.tmp"
        for n in ("runs", "parts", "sizes", "ingested", "runs/answers", f"memo/scores-{'0' * 32}")
    ]
    lance = f"{table}.lance"
    junk += [f"{lance}/data/.tmpAb3", f"{lance}/_transactions/.tmpAb3", f"{lance}/_versions/9.manifest#1"]
    junk += [f"{lance}/_refs/tags/r0001-0123abcd.json.tmp.0a#1", "_changing/.0123.tmp"]
    junk += [f"{lance}/_indices/dead/page.lance", f"{lance}/_deletions/0-1-2.arrow"]
    junk += ["_runs/answers/no-such-run.arrow", f"{lance}/_transactions/1-dead.txn"]
    for name in junk:
        store.files.write(name, b"junk")
        os.utime(Path(store.uri, name), (long_ago := time.time() - HALF_WRITTEN_S - 1, long_ago))
    return set(junk)


def files(store):
    return {str(f.relative_to(store.uri)) for f in Path(store.uri).rglob("*") if f.is_file()}


def test_all_that_killed_processes_left_is_freed_and_nothing_else(bench, store):
    prune(store, dry_run=False)
    before, rows = files(store), store.dataset("questions").to_table().num_rows
    junk = leftovers(store)
    assert len(files(store) - before) == len(junk) + 2  # a part: its record and its data
    assert ("parts", "of runs that were killed") in removed(store)
    assert files(store) - before == set() and store.dataset("questions").to_table().num_rows == rows
    counts, _ = bench.run()
    assert all(c == (0, 0) for c in counts.values())


def test_the_bytes_of_older_versions_are_those_that_a_prune_frees(bench, store):
    def on_disk():
        return sum(f.stat().st_size for f in Path(store.uri).glob("*.lance/**/*") if f.is_file())

    store.dataset("questions").delete("id = ''")  # another version of the same rows
    before = disk_bytes(store)
    assert before.live + before.old == on_disk() and before.live > before.old > 0
    later = time.time() + 3 * 86_400
    prune(store, dry_run=False, clock=lambda: later, kept=timedelta(0))
    after = disk_bytes(store)
    assert after.live + after.old == on_disk() and after.old < before.old


def test_a_file_that_another_process_writes_or_removes_now_stays_its_own(bench, store):
    """An endpoint captures answers without any lease."""
    with store.files.writing(f"{CAPTURED}/1-0.jsonl") as file:
        file.write(b"{}\n")
        prune(store, dry_run=False)
    assert store.files.names(CAPTURED) == ["1-0.jsonl"]
    stop, written, lost = threading.Event(), [], []

    def capture():
        while not stop.is_set():
            try:
                written.append(write_segment(Store.open(store.uri).files, CAPTURED, [{"n": 1}], time.time()))
            except StoreError as e:
                lost.append(e)

    threads = [threading.Thread(target=capture) for _ in range(2)]
    [thread.start() for thread in threads]
    for _ in range(300):
        free(store)
    stop.set()
    [thread.join() for thread in threads]
    assert not lost and {*written, "1-0.jsonl"} == set(store.files.names(CAPTURED))


@pytest.mark.drill
def test_a_prune_killed_after_the_rows_of_some_tables_is_finished_by_the_next(bench, store):
    bench.run(SURE, out="one")
    lines = bench.lines()
    for line in lines:
        line["search_results"] = line["search_results"][:2]
    bench.run(SURE, data=bench.data(lines), out="two")
    tables = read(bench.folder / "two").tables
    [texts] = [t for t in tables if t.startswith("texts-")]
    gone = uncited(store)
    store.forget(texts, "source", gone)  # and then it was killed
    prune(store, dry_run=False)
    for table in tables:
        if table.startswith(("texts-", "passages-", "vectors-")):
            assert store.missing(table, "source", gone) == gone
    assert store.missing("sources", "id", gone) == gone


def test_faults_manifests_and_sizes_that_say_nothing_any_more_go(bench, store, monkeypatch):
    monkeypatch.setattr(release, "LOOKED_BACK", 2)
    every = Ids(store.dataset("sources").to_table()["id"].combine_chunks())
    wanted = sizes(store, every).tolist()
    texts = bench.pipeline().recipe.texts_table
    done = store.dataset(texts).to_table()["source"][0].as_py().hex()
    fault = asdict(Fault("parse", "timeout", "d", True))
    rows = [
        (done, fault, 1, texts),
        (digest("pending"), fault, 1, texts),
        ("gone", fault, 1, "texts-" + "0" * 32),
    ]
    rows += [("q", fault, 1, digest("a key that a run of an unknown kind has"))]
    write_part(store, "faults", "run", "0", faults_table(rows, "run"), {})
    commit(store, "faults", "run", ["0"])
    for _ in range(4):
        bench.run()
    names = store.files.names("_runs/records")
    assert len(names) == 5
    prune(store, dry_run=False)
    assert store.files.names("_runs/records") == names[-2:]
    assert len(store.files.names("_runs/answers")) == 2 and len(store.files.names("_sizes")) == 1
    left = store.dataset("faults").to_table().to_pylist()
    assert {r["id"] for r in left} == {digest("pending"), "q"}
    assert sizes(store, every).tolist() == wanted and min(wanted) > 0
    assert prune(store, dry_run=True) == []


def with_adapter(bench, name, out):
    """A run of the recipe whose model has this adapter alone."""
    bench.models = MODELS.replace(
        "  loader: scripted\n", f"  loader: scripted\n  adapters: {{{name}: folder}}\n", 1
    )
    bench.run(LLM.replace("into: llm,", f"into: llm, adapter: {name},"), out=out)
    put_adapter(bench_store(bench).files, f"{name}-0", {RECIPE: f"adapter: scripted@1:{name}\n".encode()})


def bench_store(bench):
    return Store.open(str(bench.folder / "store"))


@pytest.mark.drill
def test_adapters_stay_while_a_release_or_a_last_run_names_them(bench, store):
    put_adapter(store.files, "unused-0", {RECIPE: b"adapter: sha256:0\n", "adapter_model.safetensors": b"."})
    with_adapter(bench, "one", "a")
    promote(store, read(bench.folder / "a"), [])
    with_adapter(bench, "two", "b")
    with_adapter(bench, "three", "c")
    assert {n for kind, n in removed(store) if kind == "adapter"} == {"two-0"}
    assert adapter_names(store.files) == ["one-0", "three-0", "unused-0"]  # the last: no run named it so far
    assert not {n for kind, n in removed(store) if kind == "adapter"}


def test_a_training_that_no_one_continues_goes_after_a_day(bench, store):
    run, late = "0123456789abcdef" * 2, {"clock": lambda: time.time() + 86_500}
    part = adapter_folder("web", run)
    store.files.write(f"_trainings/{run}/checkpoint_000001/state.pt", b"weights")
    put_adapter(store.files, part, {"adapter_model.safetensors": b"."})  # killed before its recipe
    both = {("training", run), ("adapter", part)}
    assert not removed(store) & both, "the same command would continue it"
    with training_lease(store.files, run, "finetune web"):
        assert not removed(store, **late) & both, "it runs"
    assert {(r.kind, r.name) for r in prune(store, dry_run=True, **late)} >= both
    assert removed(store, **late) >= both and not removed(store, **late) & both
    assert not store.files.names("_trainings") and not store.files.names("_adapters")
