"""What is ingested, and who may drive."""

import contextlib
import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time

import psutil
import pyarrow as pa
import pytest
from checkout import SUPPORT
from storerows import hex_id

from raypipe import store as tables
from raypipe.core import arrow
from raypipe.core.errors import DataError
from raypipe.core.records import Citation, Fault, Gold, Hit, Question, Quote, Reply, Source, source_id
from raypipe.store import Store, StoreError, lease
from raypipe.store import lease as claims
from raypipe.store.errors import StoreInUse, StoreUnavailable
from raypipe.store.files import Files
from raypipe.store.lease import STALE_S, Lease


def put(store, table, rows):
    """How many rows are added, replaced and left alone."""
    found = tables.put(store, table, rows)
    return len(found.added), len(found.replaced), found.equal


def question(name, pages):
    cites = tuple(Citation(name, i, f"http://{p}", "", hex_id(p), None, None) for i, p in enumerate(pages))
    return Question(name, f"what is {name}?", asked_at="01/02/2024, 10:00:00 PT", citations=cites)


def put_questions(store, questions):
    return put(store, "questions", arrow.question.table(questions))


def stored(store, table, codec):
    return sorted(codec.records(store.dataset(table).to_table()), key=repr)


def test_putting_the_same_again_changes_nothing(store):
    questions = [
        question("q1", "abc"),
        question("it's", "bcd"),
        Question("bare", "no pages"),
        Question("none", "none found", citations=()),
    ]
    golds = [Gold("q1", ("yes", "yep"), {"domain": "movie"})]
    sources = [Source(source_id("page", p), "page", p) for p in ("<p>a", "<p>b")]

    def all_of_it():
        return (
            put_questions(store, questions),
            put(store, "golds", arrow.gold.table(golds)),
            put(store, "sources", arrow.source.table(sources)),
        )

    assert all_of_it() == ((4, 0, 0), (1, 0, 0), (2, 0, 0))
    versions = {t: store.version(t) for t in ("questions", "golds", "sources")}
    assert all_of_it() == ((0, 0, 4), (0, 0, 1), (0, 0, 2))
    assert versions == {t: store.version(t) for t in versions}
    assert stored(store, "questions", arrow.question) == sorted(questions, key=repr)
    assert stored(store, "golds", arrow.gold) == golds
    for table in versions:
        store.check_indexes(table)


def test_a_question_whose_pages_changed_is_replaced_and_no_other(store):
    before = [question("q1", "abc"), question("q2", "abc"), question("q3", "c")]
    after = [question("q1", "ax"), question("q2", "abc"), question("q4", "d")]
    put_questions(store, before)
    assert put_questions(store, after) == (1, 1, 1)
    now = [after[0], before[1], before[2], after[2]]
    assert stored(store, "questions", arrow.question) == sorted(now, key=repr)


def test_a_question_given_twice_is_refused(store):
    with pytest.raises(DataError, match="are duplicates"):
        put(store, "questions", arrow.question.table([question("q", "a"), question("q", "a")]))


def test_nothing_is_a_fine_thing_to_put(store):
    assert put(store, "sources", arrow.source.table([])) == (0, 0, 0)


def test_a_question_may_hold_all_that_a_question_can(store):
    full = Question(
        "q",
        "t",
        body="b",
        asked_at="now",
        citations=question("q", "a").citations,
        replies={"web": Reply("x", "answered", 0.5, -1.0, (Quote(hex_id("s"), (1, 2)),))},
        hits=(Hit("s:0-3", hex_id("s"), (0, 3), {"dense": 0.1, "bm25": 2.0}),),
        order=("s:0-3",),
        answer="é\u2028",
        outcome="answered",
        origin="web",
        faults=(Fault("s", "r", "d", True),),
        degraded=("rerank",),
        due=1e9,
    )
    put(store, "questions", arrow.question.table([full]))
    assert stored(store, "questions", arrow.question) == [full]


HOLD = """
import sys, time
from raypipe.store import Store
with Store.open(sys.argv[1]).lease("drive", "the first driver"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_a_second_driver_is_told_who_the_first_is_until_that_one_dies(store):
    first = subprocess.Popen([sys.executable, "-c", HOLD, store.uri], stdout=subprocess.PIPE)
    try:
        assert first.stdout.readline() == b"held\n"
        with (
            pytest.raises(StoreError, match=rf"the first driver \(process {first.pid} on"),
            store.lease("drive", "me"),
        ):
            pass
        with store.lease("other", "me"):
            pass
    finally:
        first.kill()
        first.wait()
    with store.lease("drive", "me"), pytest.raises(StoreError, match="in use by me"):
        Store.open(store.uri).lease("drive", "me too").__enter__()
    assert store.files.names("_lease") == []


def test_a_lease_within_a_lease_is_the_same_one_and_ends_with_the_outer(store):
    other = Store.open(store.uri)
    with store.lease("drive", "an eval"):
        for phase in ("ingest", "index"):
            with store.lease("drive", phase):
                pass
            with pytest.raises(StoreInUse, match="in use by an eval") as held:
                other.lease("drive", "me").__enter__()
            assert held.value.exit_code == 69
    with other.lease("drive", "me"):
        pass


def sign(store, **changes):
    me = psutil.Process()
    content = {"owner": "a stranger", "token": "t", "host": socket.gethostname(), "pid": me.pid}
    boot, space = lease._place_here()
    content |= {"started": me.create_time(), "beat": time.time(), "boot": boot, "space": space, **changes}
    store.files.write("_lease/drive-000000001.json", json.dumps(content).encode())


@pytest.mark.parametrize(
    "there",
    [
        {"boot": "another"},
        *(pytest.param(at, marks=pytest.mark.drill) for at in ({"space": "pid:[7]"}, {"boot": ""})),
    ],
)
def test_a_process_elsewhere_holds_while_its_sign_moves_whatever_its_clock_says(store, there):
    """Another machine, another container of this one, a raypipe that did not name its place: with the host
    name and the pid of a dead process here."""
    there |= {"host": socket.gethostname(), "pid": 2**22 + 1}
    drive = lambda: Lease(store.files, "drive", "me", watch_s=1.5)  # noqa: E731
    sign(store, **there)
    with pytest.raises(StoreError, match="in use by a stranger"):
        drive().__enter__()
    for behind_s in (STALE_S + 30, -STALE_S - 30, 1e9):
        sign(store, **there, beat=time.time() - behind_s)
        beats = threading.Timer(0.5, lambda s=behind_s: sign(store, **there, beat=time.time() - s))
        beats.start()
        with pytest.raises(StoreError, match="in use by a stranger"):
            drive().__enter__()
        beats.join()
        sign(store, **there, beat=time.time() - behind_s)
        with drive():  # it stood still
            pass


def test_a_driver_that_waits_takes_over_from_one_that_ends_soon(store):
    with contextlib.ExitStack() as other:
        other.enter_context(Lease(store.files, "drive", "another"))
        with pytest.raises(StoreError, match="in use by another"), store.lease("drive", "me", wait_s=0.3):
            pass
        ends = threading.Timer(0.3, other.close)
        ends.start()
        with store.lease("drive", "me", wait_s=60):
            ends.join()


def test_a_reader_whose_clock_is_behind_keeps_its_versions(store):
    where = {"boot": "another", "owner": "o", "token": "t", "host": "h", "pid": 1, "started": 0.0}

    def beat(of: float) -> None:
        sign = {**where, "beat": of, "reads": {"answers": 3}}
        store.files.write("_lease/reader-t.json", json.dumps(sign).encode())

    beat(7.0)  # a machine whose clock begins in 1970
    beats = threading.Timer(0.5, beat, [8.0])
    beats.start()
    assert lease.read_now(store.files, 1.5) == {"answers": {3}}
    beats.join()
    assert lease.read_now(store.files, 0.1) == {}
    lease.sweep(store.files, 0.1)
    assert store.files.names("_lease") == []


@pytest.mark.parametrize("content", [b"", b"null", b"{}", b"\xff", b'{"owner": "x"}'])
def test_a_sign_that_nobody_wrote_holds_nobody_back(store, content):
    store.files.write("_lease/drive-000000001.json", content)
    with store.lease("drive", "me"):
        pass


def test_a_process_that_got_a_dead_drivers_number_is_not_that_driver(store):
    sign(store, started=psutil.Process().create_time() - 100)
    with store.lease("drive", "me"):
        pass


class Overtaken(Files):
    """Files of a process that is stopped once, right after it has looked at the signs of a lease."""

    def __init__(self, uri, meanwhile):
        super().__init__(uri)
        self.meanwhile = [meanwhile]

    def read(self, name):
        content = super().read(name)
        if name.startswith("_lease/") and self.meanwhile:
            self.meanwhile.pop()()
        return content


class Refusing(Files):
    """Files that cannot be listed, but for the calls that are let through."""

    let_through = 1

    def names(self, folder):
        self.let_through -= 1
        if self.let_through < 0:
            raise StoreUnavailable(f"{folder} cannot be reached now")
        return super().names(folder)


def test_who_is_stopped_by_the_store_while_taking_a_lease_leaves_none(store):
    with pytest.raises(StoreUnavailable), Lease(Refusing(store.uri), "driver", "one"):
        pass
    assert store.files.names("_lease") == []
    with store.lease("driver", "two"):
        pass


@pytest.mark.parametrize("left_and_taken_again", [False, True])
def test_of_two_that_find_a_dead_lease_one_takes_it_over(store, left_and_taken_again):
    sign(store, pid=2**22 + 1)
    with contextlib.ExitStack() as held:

        def another_is_faster():
            if left_and_taken_again:
                with Store.open(store.uri).lease("drive", "who came and went"):
                    pass
            held.enter_context(Store.open(store.uri).lease("drive", "the faster one"))

        slower = lease.Lease(Overtaken(store.uri, another_is_faster), "drive", "the slower one")
        with pytest.raises(StoreError, match="in use by the faster one"):
            slower.__enter__()
        [name] = store.files.names("_lease")
        assert json.loads(store.files.read(f"_lease/{name}"))["owner"] == "the faster one"
    with store.lease("drive", "me"):
        pass


def test_a_store_that_cannot_create_exclusively_is_refused_with_what_it_lacks(store, monkeypatch):
    monkeypatch.setattr(claims, "_create", lambda files, name, content: True)  # a put without a condition
    monkeypatch.setattr(store.files, "local", False)
    with pytest.raises(StoreError, match="expected an object store with conditional writes"):
        store.lease("drive", "me").__enter__()


WITHOUT_LINKS = """
import sys
from raypipe.store import Store, StoreError
made, new = sys.argv[1:]
for act in (lambda: Store.open(made).lease("drive", "me").__enter__(), lambda: Store.create(new)):
    try:
        act()
    except StoreError as e:
        print(e)
"""


def test_a_folder_without_hard_links_is_refused_before_anything_is_written_and_can_be_read(store, tmp_path):
    command = [
        sys.executable,
        SUPPORT / "without_calls.py",
        "link",
        WITHOUT_LINKS,
        store.uri,
        tmp_path / "new",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode == 77:
        pytest.skip("this kernel takes no filter of calls")
    said = done.stdout.splitlines()
    assert len(said) == 2, done.stderr
    assert all("expected a folder with hard links" in line and "Put the store on" in line for line in said)
    assert not [f for f in (tmp_path / "new").rglob("*") if f.is_file()]


def test_a_claim_whose_reply_was_lost_is_held(tmp_path):
    class Once(Files):
        """Files whose link is made before it is asked for."""

        def _staged(self, name):
            staged = super()._staged(name)
            staged.parent.mkdir(parents=True, exist_ok=True)
            staged.touch()
            os.link(staged, self._path(name))
            return staged

    assert Once(str(tmp_path)).create("_lease/sign", b"mine")
    assert not Files(str(tmp_path)).create("_lease/sign", b"another's")
    assert (tmp_path / "_lease/sign").read_bytes() == b"mine"


def test_who_lost_the_lease_does_not_take_it_from_the_next(store):
    lease = store.lease("drive", "me")
    with lease:
        sign(store)
    assert store.files.names("_lease") == ["drive-000000001.json"]


class FullForAWhile(Files):
    """Files on a disk that has no room for a renewed sign until `room` is set."""

    def __init__(self, uri):
        super().__init__(uri)
        self.room, self.refused, self.renewed = threading.Event(), threading.Event(), threading.Event()

    def write(self, name, content):
        if not self.room.is_set():
            self.refused.set()
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(name, content)
        self.renewed.set()


def test_a_lease_that_could_not_be_renewed_is_renewed_when_that_is_possible_again(store, monkeypatch):
    monkeypatch.setattr(lease, "BEAT_S", 0.01)
    files = FullForAWhile(store.uri)
    with lease.Lease(files, "drive", "me"):
        assert files.refused.wait(60)
        files.room.set()
        assert files.renewed.wait(60), "the lease has no more beats: other hosts take its driver for dead"
    assert store.files.names("_lease") == []


def test_a_store_can_be_opened_by_uri(store, tmp_path):
    put(store, "golds", arrow.gold.table([Gold("q", ("a",))]))
    assert Store.open(f"file://{store.uri}").count("golds") == 1
    other = Store.create(f"file://{tmp_path}/by-uri")
    put(other, "golds", arrow.gold.table([Gold("q", ("a",))]))
    assert Store.open(str(tmp_path / "by-uri")).rows("golds", "question", ["q"]).num_rows == 1
    assert isinstance(other.dataset("golds").schema, pa.Schema)
