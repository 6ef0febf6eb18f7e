"""What a store may forget and what it may not; and a disk that is full, before a run and amid one."""

import asyncio
import gc
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
from reruns import FAKES, Bench, TaskSizes

from raypipe.api.cli.main import main
from raypipe.core import arrow
from raypipe.core.errors import DiskFull, is_full
from raypipe.core.records import Question
from raypipe.models.kit import LocalKit
from raypipe.runs.pipeline.store_tasks import compact_all
from raypipe.runs.pipeline.table_build import no_connection
from raypipe.runs.pipeline.tasks import inline
from raypipe.runs.prune import prune
from raypipe.runs.record import read
from raypipe.runs.release import promote
from raypipe.serving.answerer import Answerer
from raypipe.serving.query import QueryRequest
from raypipe.store import Store, StoreError, begin, end, read_now, sweep
from raypipe.store.files import need
from raypipe.store.housekeeping import clean, compact, tables, unfinished
from raypipe.store.lease import FORGOTTEN_S, STALE_S

pytestmark = pytest.mark.slow

SURE = FAKES.replace("threshold: 0.5\n", "threshold: 0.0\n")
AGE = timedelta(0)  # for tests: every version is old


def contents(store):
    return {
        t: sorted(map(repr, store.dataset(t).to_table().to_pylist()))
        for t in tables(store)
        if not t.startswith(("embeddings-", "scores-", "replies-"))
    }


@pytest.fixture
def store(bench):
    return Store.open(str(bench.folder / "store"))


@pytest.mark.drill
def test_compaction_keeps_every_row_every_old_version_and_the_work_of_the_next_run(bench, store):
    bench.run(SURE, pipe=bench.pipeline(SURE, sizes=TaskSizes(5, 1)), out="one")
    release = promote(store, read(bench.folder / "one"), [])
    before, versions = contents(store), {t: store.version(t) for t in tables(store)}
    worker = bench.pipeline(SURE).worker
    compact_all(store, worker, inline, no_connection, most=2, here=0)
    assert len(store.dataset("answers").get_fragments()) == 1 and store.files.names("_parts/answers") == []
    assert contents(store) == before
    for table, version in versions.items():
        assert store.dataset(table, version).count_rows() == store.dataset(table).count_rows()
    _, spec = release.opened(store)
    assert spec.texts.version == release.tables[spec.texts.table]
    counts, _ = bench.run(SURE)
    assert all(c == (0, 0) for c in counts.values())


@pytest.mark.drill
def test_compaction_while_parts_are_written_loses_and_doubles_nothing(world, tmp_path):
    whole, disturbed = Bench(tmp_path / "whole", world), Bench(tmp_path / "disturbed", world)
    for bench in (whole, disturbed):
        bench.folder.mkdir()
    whole.run(pipe=whole.pipeline(sizes=TaskSizes(5, 1)))
    store = Store.create(str(disturbed.folder / "store"))
    stop = threading.Event()

    def compacts():
        while not stop.is_set():
            for table in tables(store):
                if "-" in table or table == "answers":
                    try:
                        compact(store, table, most=1)
                    except OSError:  # the run committed meanwhile: Lance leaves the table to the run
                        continue
            time.sleep(0.02)

    thread = threading.Thread(target=compacts)
    thread.start()
    try:
        disturbed.run(pipe=disturbed.pipeline(sizes=TaskSizes(5, 1)))
    finally:
        stop.set()
        thread.join()

    def of(bench):
        rows = contents(Store.open(str(bench.folder / "store")))
        return {t: r for t, r in rows.items() if t != "faults"}

    assert of(disturbed) == of(whole)


@pytest.mark.drill
def test_no_version_goes_that_a_tag_a_release_or_the_last_run_of_a_recipe_names(bench, store):
    bench.run(SURE, out="one")
    release = promote(store, read(bench.folder / "one"), [])
    lines = bench.lines()
    for line in lines:
        line["search_results"] = line["search_results"][1:]
    bench.run(FAKES, data=bench.data(lines), out="two")
    two = read(bench.folder / "two")
    questions = arrow.question.records(store.dataset("questions").to_table())
    keep = {t: {v} for t, v in two.tables.items()}
    freed = sum(clean(store, t, keep.get(t, set()), kept=AGE) for t in tables(store))
    assert freed > 0
    for named in (release.tables, two.tables):
        for table, version in named.items():
            assert store.dataset(table, version).count_rows() >= 0
    assert len(store.dataset("answers").versions()) < 12 and questions
    counts, _ = bench.run(FAKES, data=bench.data(lines))
    assert all(c == (0, 0) for c in counts.values())


def test_nothing_is_cleaned_or_pruned_while_work_is_unfinished(bench, store, capsys):
    begin(store, "answers-of-a-killed-run", ["a", "b"], 1)
    assert unfinished(store) == ["answers-of-a-killed-run"]
    with pytest.raises(StoreError, match=r"1 pieces of work are unfinished .*Run the same command again"):
        clean(store, "answers", kept=AGE)
    assert main(["prune", "--store", store.uri]) == 2
    assert "unfinished" in capsys.readouterr().err
    assert main(["prune", "--store", store.uri, "--dry-run"]) == 0
    end(store, "answers-of-a-killed-run")
    assert prune(store, dry_run=False) == []


def test_prune_is_refused_while_another_driver_holds_the_store(bench, store):
    code = (
        "import sys, time\nfrom raypipe.store import Store\n"
        f"with Store.open({store.uri!r}).lease('driver', 'an eval'):\n"
        "    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline().strip() == "held"
        with pytest.raises(StoreError, match="in use by an eval"):
            prune(store, dry_run=False)
        other.stdin.close()


@pytest.mark.drill
def test_what_an_endpoint_without_a_release_reads_stays_until_it_ends(bench, store):
    bench.run(SURE, out="one")
    asked = [QueryRequest(Question("new", f"{q['text']} (asked of everything)")) for q in questions_in(store)]
    online = Answerer(bench.pipeline(SURE).recipe, LocalKit(None, "transformers"), store.uri)

    def answers(online):
        done = [asyncio.run(online.answer(a)).question for a in asked]
        return [(q.answer, q.hits) for q in done]

    said = answers(online)
    pinned = asyncio.run(online.snapshot()).spec.pinned()
    held = {t.table: store.dataset(t.table, t.version).count_rows() for t in pinned}
    lines = bench.lines()
    for line in lines:
        line["search_results"] = line["search_results"][:2]
    other = SURE.replace("child_chars: 200", "child_chars: 190")  # now the last run of this recipe
    bench.run(other, data=bench.data(lines), out="two")
    removed = {r.kind for r in prune(store, dry_run=False, kept=AGE)}
    assert "sources" in removed, "something was to go"
    assert sum(held.values()) > 0
    for table in pinned:
        assert store.dataset(table.table, table.version).count_rows() == held[table.table]
    assert answers(online) == said and all(hits for _, hits in said)
    del online
    gc.collect()
    assert store.files.names("_lease") == []
    gone = {r.name for r in prune(store, dry_run=False, kept=AGE) if r.kind == "table"}
    assert gone & {table.table for table in pinned}


def questions_in(store):
    return store.dataset("questions").to_table(["text"]).to_pylist()


def test_a_reader_that_was_killed_protects_nothing(store):
    code = (
        "import sys\nfrom raypipe.store import Reading, Store\n"
        f"Reading(Store.open({store.uri!r}).files, 'an endpoint', {{'answers': 1}}).begin()\n"
        "print('reading', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline().strip() == "reading"
        assert read_now(store.files) == {"answers": {1}}
        prune(store, dry_run=False)
        assert len(store.files.names("_lease")) == 1
        other.kill()
        other.wait()
    assert read_now(store.files) == {}
    prune(store, dry_run=False)
    assert store.files.names("_lease") == []


def test_a_reader_on_another_host_counts_while_it_shows_life_and_its_sign_stays_for_a_day(store):
    def signed(silent_s):
        sign = {"owner": "o", "token": "t", "host": "elsewhere", "pid": 1, "started": 0.0}
        sign |= {"beat": time.time() - silent_s, "reads": {"answers": 3}}
        store.files.write("_lease/reader-t.json", json.dumps(sign).encode())
        sweep(store.files, watch_s=0)
        return read_now(store.files, watch_s=0), len(store.files.names("_lease"))

    assert signed(0) == ({"answers": {3}}, 1)
    assert signed(STALE_S + 1) == ({}, 1)
    assert signed(FORGOTTEN_S + 1) == ({}, 0)


def test_a_store_that_may_not_be_written_is_read_without_a_lease(bench, store, caplog):
    shutil.rmtree(bench.folder / "store" / "_lease")
    (bench.folder / "store" / "_lease").write_text("no folder: nothing can be put into it")
    online = Answerer(bench.pipeline().recipe, LocalKit(None, "transformers"), store.uri)
    assert asyncio.run(online.ready()) == []
    assert "no read lease" in caplog.text


def test_a_clock_that_jumps_takes_no_version_and_no_lease(bench, store, monkeypatch):
    versions = len(store.dataset("answers").versions())
    for jump in (-10 * 365 * 86400, 0):
        now = time.time()
        monkeypatch.setattr(time, "time", lambda now=now, jump=jump: now + jump)
        assert clean(store, "answers") == 0 and len(store.dataset("answers").versions()) == versions
        with store.lease("driver", "first"), store.lease("driver", "within it"):
            pass
        monkeypatch.undo()


def test_work_that_cannot_fit_is_refused_with_numbers_before_it_starts(store):
    need(store.files, 0, "nothing")
    with pytest.raises(DiskFull, match=r"the plan needs at least 1,000,000,000,000.0 MB at .* are free"):
        need(store.files, 10**18, "the plan")
    assert is_full(OSError(28, "No space left on device"))
    assert is_full(OSError("LanceError(IO): ... No space left on device (os error 28)"))
    assert not is_full(OSError(2, "No such file")) and not is_full(ValueError("No space left on device"))


@pytest.mark.drill
def test_a_full_disk_keeps_the_old_version_readable_and_the_run_goes_on_when_there_is_room(world, tmp_path):
    mount = tmp_path / "disk"
    mount.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=24m", "none", mount]
    if subprocess.run(mounting, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs privileges that this process has not")
    try:
        _fill_and_free(world, mount, tmp_path)
    finally:
        subprocess.run(["umount", mount], check=True)


def _fill_and_free(world, mount, tmp_path):
    small, whole = Bench(mount, world), Bench(tmp_path / "whole", world)
    whole.folder.mkdir()
    small.run(SURE, out="one")
    whole.run(SURE, out="one")
    other = SURE.replace("hash-embedder", "other-embedder").replace("child_chars: 200", "child_chars: 190")
    whole.run(other, out="two")
    store = Store.open(str(mount / "store"))
    promote(store, read(mount / "one"), [])
    before = {t: store.dataset(t, v).to_table().num_rows for t, v in read(mount / "one").tables.items()}
    stopped = []

    def fills(left):
        """Leaves so many bytes free once the parts of a run begin."""

        def runner(verb, fill, parts):
            ballast = shutil.disk_usage(mount).free - left
            if ballast > 0:
                with open(mount / f"ballast-{verb}-{time.monotonic_ns()}", "wb") as out:
                    os.posix_fallocate(out.fileno(), 0, ballast)
            yield from inline(verb, fill, parts)

        return runner

    for left in (0, 4096, 40_000, 150_000, 400_000, 1_000_000):
        try:
            small.run(pipe=small.pipeline(other, sizes=TaskSizes(15, 2), runner=fills(left)), out="two")
        except (OSError, StoreError, DiskFull) as e:
            assert is_full(e) or isinstance(e, DiskFull), e
            stopped.append(left)
        now = {t: store.dataset(t, v).to_table().num_rows for t, v in read(mount / "one").tables.items()}
        assert now == before, "what is released stays readable"
        for ballast in mount.glob("ballast-*"):
            ballast.unlink()
    assert len(stopped) >= 2, "the disk must have been full"
    small.run(pipe=small.pipeline(other), out="two")

    def of(bench):
        rows = contents(Store.open(str(bench.folder / "store")))
        return {t: r for t, r in rows.items() if t != "faults"}

    assert of(small) == of(whole)
    assert json.loads((mount / "two" / "run.json").read_text())["questions"] == 6
    assert Path(mount / "two" / "run.json").exists()
