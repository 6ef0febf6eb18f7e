"""A run's rows come into a table once, whatever dies, and whoever else is at work."""

import json
import pickle
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from storerows import DIGEST, hex_id, passage_rows

from raypipe.core import arrow
from raypipe.core.arrow import id_texts
from raypipe.core.records import Source
from raypipe.runs.pipeline.tasks import Task
from raypipe.store import (
    AddedMeanwhile,
    Store,
    StoreError,
    begin,
    begun,
    commit,
    committed,
    done_parts,
    end,
    put,
    write_part,
)
from raypipe.store.commit import append
from raypipe.store.housekeeping import compact, free_table, unfinished
from raypipe.store.ids import Ids
from raypipe.store.parts import PLAN_BATCH, read_record

pytestmark = pytest.mark.slow


def everything(store):
    """Every row of every table, in an order of its own."""
    tables = [n.removesuffix(".lance") for n in store.files.names("") if n.endswith(".lance")]
    return {t: sorted(map(repr, store.dataset(t).to_table().to_pylist())) for t in tables}


def sources_of(store, table):
    return sorted(id_texts(store.dataset(table).to_table()["source"]))


def twice(*ids):
    return sorted([*map(hex_id, ids), *map(hex_id, ids)])


def race(*calls):
    """Calls at the same moment; what each gave or raised."""
    gate = Barrier(len(calls))

    def run(call):
        gate.wait()
        try:
            return call()
        except StoreError as e:
            return e

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def drive(folder, kill):
    script = Path(__file__).with_name("drive.py")
    args = [sys.executable, str(script), str(folder / "store"), str(folder / "log"), kill]
    return subprocess.run(args, capture_output=True, text=True, timeout=300)


POINTS = [
    "call:sync",  # rows written, no record
    "return:write_part",  # record written
    "call:append",  # all parts done, no commit
    "return:append",  # committed, nothing else
    "call:drop_records",  # indexed
    "call:end",  # all tables committed, the plan still there
]


@pytest.mark.parametrize("of", [12, pytest.param(1, marks=pytest.mark.drill)])
def test_a_run_killed_at_any_point_ends_as_if_nothing_had_happened(tmp_path, of):
    """At one point in so many, the last among them: there all is committed, and the plan still stands."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir(), killed.mkdir()
    assert drive(whole, "never").returncode == 0
    rng = random.Random(1)
    points = [str(rng.randrange(20, 900)), *POINTS][::-of][::-1]
    deaths = 0
    for point in points:
        ended = drive(killed, point)
        assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
        deaths += ended.returncode == -signal.SIGKILL
    last = drive(killed, "never")
    assert last.returncode == 0, last.stderr
    assert deaths == len(points)
    stores = [Store.open(str(f / "store")) for f in (whole, killed)]
    assert everything(stores[0]) == everything(stores[1])
    written = [len((f / "log").read_text().splitlines()) for f in (whole, killed)]
    assert written[0] == 6
    assert written[1] <= 6 + deaths
    assert unfinished(stores[1]) == []
    for folder in ("_lease", "_parts/passages-" + DIGEST, f"_memo/scores-{DIGEST}"):
        assert stores[1].files.names(folder) == []


def test_a_commit_asked_for_again_changes_nothing(store, passages):
    write_part(store, passages, "run", "0", passage_rows(["a"]), {})
    assert committed(store, passages, "run") is None
    version = commit(store, passages, "run", ["0"])
    assert commit(store, passages, "run", ["0"]) == version
    assert committed(store, passages, "run") is not None
    assert sources_of(store, passages) == twice("a")
    store.check_indexes(passages, version)


def test_parts_without_rows_and_a_run_without_rows_count_as_done(store, passages):
    write_part(store, passages, "one", "0", passage_rows([]), {"pages": 3})
    write_part(store, passages, "one", "1", passage_rows(["a"]), {})
    assert done_parts(store, passages, "one") == {"0": {"pages": 3}, "1": {}}
    commit(store, passages, "one", ["0", "1"])
    write_part(store, passages, "two", "0", passage_rows([]), {})
    commit(store, passages, "two", ["0"])
    assert committed(store, passages, "two") is not None
    assert sources_of(store, passages) == twice("a")


def test_a_part_that_is_done_is_not_written_again(store, passages):
    first = write_part(store, passages, "run", "0", passage_rows(["a"]), {"by": 1})
    second = write_part(store, passages, "run", "0", passage_rows(["b"]), {"by": 2})
    assert second.facts == first.facts == {"by": 1}
    assert len(store.files.names(f"{passages}.lance/data")) == 1


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: b"",
        lambda raw: raw[:-1],
        lambda raw: raw.replace(b'"rows": 2', b'"rows": 3'),
        lambda raw: b"\xff\xfe" + raw,
        lambda raw: raw.partition(b"\n")[2],
    ],
)
def test_a_part_with_a_damaged_record_is_done_again(store, passages, spoil):
    write_part(store, passages, "run", "0", passage_rows(["a"]), {})
    record = f"_parts/{passages}/run/0.json"
    store.files.write(record, spoil(store.files.read(record)))
    assert done_parts(store, passages, "run") == {}
    with pytest.raises(StoreError, match="part 0 has an incomplete completion record"):
        commit(store, passages, "run", ["0"])
    write_part(store, passages, "run", "0", passage_rows(["a"]), {})
    commit(store, passages, "run", ["0"])
    assert sources_of(store, passages) == twice("a")


@pytest.mark.parametrize("cut", [None, 100])
def test_a_part_whose_file_is_gone_or_cut_is_done_again(store, passages, cut):
    write_part(store, passages, "run", "0", passage_rows(["a"]), {})
    (name,) = store.files.names(f"{passages}.lance/data")
    path = f"{passages}.lance/data/{name}"
    if cut:
        store.files.write(path, store.files.read(path)[:-cut])
    else:
        store.files.remove(path)
    assert done_parts(store, passages, "run") == {}
    with pytest.raises(StoreError, match="lacks files"):
        commit(store, passages, "run", ["0"])
    assert store.count(passages) == 0
    write_part(store, passages, "run", "0", passage_rows(["a"]), {})
    commit(store, passages, "run", ["0"])
    assert sources_of(store, passages) == twice("a")


def test_a_missing_part_stops_the_commit_and_a_half_written_record_is_none(store, passages):
    write_part(store, passages, "run", "0", passage_rows(["a"]), {})
    store.files.write(f"_parts/{passages}/run/.1.json.tmp", b"half")
    assert list(done_parts(store, passages, "run")) == ["0"]
    with pytest.raises(StoreError, match="part 1"):
        commit(store, passages, "run", ["0", "1"])
    assert store.count(passages) == 0


def test_a_source_in_two_parts_is_refused(store, passages):
    write_part(store, passages, "run", "0", passage_rows(["a"]), {})
    write_part(store, passages, "run", "1", passage_rows(["a", "b"]), {})
    with pytest.raises(StoreError, match="1 values of source are in two parts"):
        commit(store, passages, "run", ["0", "1"])
    assert store.count(passages) == 0


def test_rows_that_are_there_already_make_the_parts_void(store, passages):
    write_part(store, passages, "one", "0", passage_rows(["a"]), {})
    write_part(store, passages, "two", "0", passage_rows(["a", "b"]), {})
    commit(store, passages, "one", ["0"])
    with pytest.raises(AddedMeanwhile, match="1 of 2 values of source"):
        commit(store, passages, "two", ["0"])
    assert sources_of(store, passages) == twice("a")
    assert done_parts(store, passages, "two") == {}


def test_two_drivers_with_other_runs_both_succeed(store, passages):
    for run in ("one", "two", "three"):
        for part in ("0", "1"):
            write_part(store, passages, run, part, passage_rows([f"{run}-{part}"]), {})
    race(
        *(lambda r=r: commit(Store.open(store.uri), passages, r, ["0", "1"]) for r in ("one", "two", "three"))
    )
    assert sources_of(store, passages) == twice(*(f"{r}-{p}" for r in ("one", "two", "three") for p in "01"))
    store.check_indexes(passages)


def test_two_drivers_that_ingest_the_same_leave_it_there_once(store):
    for number in range(4):
        names = [f"{number}-{i}" for i in range(20)]
        rows = [
            arrow.source.table([Source(hex_id(n), "page", n) for n in some])
            for some in (names[:15], names[5:])
        ]
        race(*(lambda r=r: put(Store.open(store.uri), "sources", r) for r in rows))
        for some in rows:
            put(store, "sources", some)  # as the message says: start again
        assert sorted(id_texts(store.dataset("sources").to_table(columns=["id"])["id"])) == sorted(
            hex_id(f"{n}-{i}") for n in range(number + 1) for i in range(20)
        )


def test_two_drivers_with_the_same_run_commit_it_once(store, passages):
    for number in range(4):
        run = f"run{number}"
        write_part(store, passages, run, "0", passage_rows([run]), {})
        results = race(*[lambda r=run: commit(Store.open(store.uri), passages, r, ["0"])] * 2)
        # The slower one may come when the faster has cleaned up, and then says that the part is not there.
        assert any(isinstance(r, int) for r in results)
        assert commit(store, passages, run, ["0"])
        assert sources_of(store, passages) == twice(*(f"run{n}" for n in range(number + 1)))


def staged(store, table, run):
    return list(read_record(store, table, run, "0").fragments)


def test_a_run_that_two_drivers_appended_is_there_once_after_the_next_commit(store, passages):
    write_part(store, passages, "run", "0", passage_rows(["a"]), {})
    for _ in range(2):  # both looked before either wrote
        append(store, passages, "run", staged(store, passages, "run"), 1)
    assert sources_of(store, passages) == twice("a", "a")
    write_part(store, passages, "other", "0", passage_rows(["b"]), {})
    commit(store, passages, "other", ["0"])
    assert sources_of(store, passages) == twice("a", "b")
    assert commit(store, passages, "run", ["0"])
    assert sources_of(store, passages) == twice("a", "b")


def test_of_two_runs_that_appended_the_same_rows_the_later_is_withdrawn(store, passages):
    for run in ("one", "two"):
        write_part(store, passages, run, "0", passage_rows(["a", run]), {})
    for run in ("one", "two"):
        append(store, passages, run, staged(store, passages, run), 1)
    with pytest.raises(AddedMeanwhile):
        commit(store, passages, "two", ["0"])
    commit(store, passages, "one", ["0"])
    assert sources_of(store, passages) == twice("a", "one")
    assert committed(store, passages, "two") is None
    write_part(store, passages, "three", "0", passage_rows(["two"]), {})
    commit(store, passages, "three", ["0"])
    assert sources_of(store, passages) == twice("a", "one", "two")


def test_a_reader_of_an_old_version_sees_nothing_of_a_new_commit(store, passages):
    write_part(store, passages, "one", "0", passage_rows(["a"]), {})
    version = commit(store, passages, "one", ["0"])
    write_part(store, passages, "two", "0", passage_rows(["b"]), {})
    commit(store, passages, "two", ["0"])
    assert sources_of(store, passages) == twice("a", "b")
    assert store.dataset(passages, version).count_rows() == 2


def test_a_run_that_was_begun_is_gone_on_with_until_it_ends(store):
    ids = [hex_id(i) for i in range(5)]
    run = begin(store, "work", ids, 2)
    assert [list(run.part(p)) for p in run.parts] == [ids[:2], ids[2:4], ids[4:]]
    assert begun(Store.open(store.uri), "work") == run
    rows = Ids.of(ids)
    assert (
        begin(store, "rows", rows, 2).part("000001") == tuple(ids[2:4]) == begun(store, "rows").part("000001")
    )
    assert begin(store, "work", ["other"], 1) == run
    assert begun(store, "elsewhere") is None
    end(store, "work")
    assert begun(store, "work") is None
    assert begin(store, "work", ids, 2).name != run.name


def test_two_drivers_that_begin_at_once_share_one_run(store):
    runs = race(*(lambda i=i: begin(Store.open(store.uri), "work", [str(i)], 1) for i in range(4)))
    assert len({json.dumps([r.name, list(r.ids)]) for r in runs}) == 1
    assert len(store.files.names("_runs/ids")) == 1, "the others take theirs back"


@pytest.mark.parametrize("damage", ["plan", "ids", "no ids"])
def test_a_damaged_plan_is_none_and_the_work_is_planned_anew(store, damage):
    first = begin(store, "work", ["a", "b"], 1)
    plan, ids = "_runs/work.json", f"_runs/ids/{first.name}.arrow"
    if damage == "plan":
        store.files.write(plan, store.files.read(plan).replace(b'"starts": [0, 1]', b'"starts": [0]'))
    elif damage == "ids":
        raw = bytearray(store.files.read(ids))
        raw[raw.rindex(b"ab")] ^= 1
        store.files.write(ids, bytes(raw))
    else:
        store.files.remove(ids)
    assert begun(store, "work") is None
    again = begin(store, "work", ["a", "b"], 1)
    assert again.name != first.name and list(again.ids) == list(first.ids)


def test_a_task_reads_its_own_ids_alone_from_the_plan_of_its_run(store):
    ids = [hex_id(i) for i in range(3 * PLAN_BATCH)]
    run = begin(store, "work", ids, PLAN_BATCH // 2 + 1)
    tasks = [Task(part, planned=run.rows(part)) for part in run.parts]
    assert sum(t.rows for t in tasks) == len(ids)
    assert all(len(pickle.dumps(t)) < 500 for t in tasks), "what goes to a worker does not grow"
    for task in (tasks[0], tasks[1], tasks[-1]):
        assert task.with_ids(Store.open(store.uri)).ids == run.part(task.name)
    assert list(run.ids_of(["000005", "000001"])) == [*run.part("000001"), *run.part("000005")]
    for none in ("000006", "-1", "x"):
        with pytest.raises(KeyError):
            run.rows(none)
    end(store, "work")
    assert store.files.names("_runs/ids") == []
    with pytest.raises(StoreError, match="another command ended this run"):
        tasks[0].with_ids(store)


def test_a_table_takes_rows_after_its_indexed_fragments_were_compacted(tmp_path):
    store = Store.create(str(tmp_path / "s"))
    rows = [arrow.source.table([Source(f"{n:032x}", "page", f"text {n}")]) for n in range(6)]
    for some in rows[:3]:
        put(store, "sources", some)
    assert compact(store, "sources", most=1)
    put(store, "sources", rows[3])
    free_table(store, "sources")
    for some in rows[4:]:
        put(store, "sources", some)
    assert store.count("sources") == 6
