"""The release that answers: followed within seconds, opened before it answers, pinned for each request."""

import asyncio
import gc
import json
import shutil
import time
from datetime import timedelta
from typing import ClassVar

import httpx
import pytest
from http_app import ask, listening, served
from load import fire
from reruns import FAKES, Bench

from raypipe.core.errors import Unavailable
from raypipe.models.kit import LocalKit
from raypipe.runs.pipeline.ingest import ingest
from raypipe.runs.prune import prune
from raypipe.runs.record import read
from raypipe.runs.release import end_releases, live, promote, rollback
from raypipe.serving.answerer import Answerer, NotReady
from raypipe.serving.release_follower import POLL_S, REOPEN_S, ReleaseFollower
from raypipe.store import Store

pytestmark = pytest.mark.slow

SURE = FAKES.replace("threshold: 0.5\n", "threshold: 0.0\n")
OTHER = SURE.replace("hash-embedder", "other-embedder").replace("top: 10}", "top: 3}")


@pytest.fixture(scope="module")
def both(ran, tmp_path_factory):
    """A store with two runs that may be released."""
    made = Bench(tmp_path_factory.mktemp("both"), ran.world)
    shutil.copytree(ran.folder / "store", made.folder / "store")
    made.run(SURE, out="one")
    made.run(OTHER, out="two")
    return made.folder


@pytest.fixture
def two(both, tmp_path):
    """A copy of that store, and the records of its runs."""
    shutil.copytree(both, tmp_path, dirs_exist_ok=True)
    return Store.open(str(tmp_path / "store")), [read(tmp_path / n) for n in ("one", "two")]


def app_over(store):
    return served(ReleaseFollower(LocalKit(None, "transformers"), store.uri))


def test_before_the_first_release_it_is_not_ready_and_with_it_ready_without_a_restart(two):
    store, (first, _) = two
    app = app_over(store)
    assert ask(app, {"query": "x"}).status_code == 503
    promote(store, first, [])
    time.sleep(POLL_S)
    said = ask(app, {"query": "x"}).json()
    assert said["versions"]["release"] == live(store).id and said["versions"]["recipe"] == first.digest


def test_no_release_answers_any_more_once_the_last_one_is_ended(two):
    store, (first, second) = two
    before, last = promote(store, first, []), promote(store, second, [])
    app, answered = app_over(store), []
    for ended in ([], [last.id], [before.id]):
        end_releases(store, ended)
        time.sleep(POLL_S)
        said = ask(app, {"query": "x"})
        answered.append(said.json()["versions"]["release"] if said.status_code == 200 else said.status_code)
    assert answered == [last.id, before.id, 503]


@pytest.mark.drill
def test_promote_and_roll_back_are_followed_and_no_request_fails_or_mixes_two_releases(two):
    store, (first, second) = two
    promote(store, first, [])
    models = {first.digest: "hash-embedder", second.digest: "other-embedder"}
    with listening(app_over(store)) as url:
        httpx.post(f"{url}/v1/answer", json={"query": "x"}).raise_for_status()

        came, over = [], asyncio.Event()

        async def load():
            while not over.is_set():
                came.extend(await fire(url, [{"query": "who wrote it?"}] * 8, 8, {}))

        async def answers(digest):
            async with asyncio.timeout(60):
                while not came or came[-1].body["versions"]["recipe"] != digest:
                    await asyncio.sleep(0.05)

        async def scene():
            loading = asyncio.ensure_future(load())
            await answers(first.digest)
            await asyncio.to_thread(promote, store, second, [])
            await answers(second.digest)
            await asyncio.to_thread(rollback, store)
            await answers(first.digest)
            over.set()
            await loading

        asyncio.run(scene())
    assert {c.status for c in came} == {200}
    for c in came:
        assert models[c.body["versions"]["recipe"]] in c.body["versions"]["models"]


@pytest.mark.drill
def test_each_release_has_a_memo_of_its_own(two, ran):
    store, runs = two
    app = served(ReleaseFollower(LocalKit(None, "transformers"), store.uri, memo_bytes=1 << 20))
    query = ran.lines()[0]["query"]
    for run in (*runs, runs[0]):
        promote(store, run, [])
        time.sleep(POLL_S)
        replies = [ask(app, {"query": query}).json() for _ in range(2)]
        assert {r["versions"]["recipe"] for r in replies} == {run.digest}
        first, again = (r["usage"]["scored"] for r in replies)
        assert first > 0 == again, "what one release computed is no other's; the same asks no model again"


def test_a_release_that_cannot_be_opened_is_not_followed_and_the_log_says_why(two, caplog):
    store, (first, second) = two
    promote(store, first, [])
    app = app_over(store)
    assert ask(app, {"query": "x"}).json()["versions"]["recipe"] == first.digest
    release = promote(store, second, [])
    file = f"_releases/{release.id}.json"
    tree = json.loads(store.files.read(file))
    tree["tables"] = {name: 10_000 for name in tree["tables"]}  # versions that are not there
    store.files.write(file, json.dumps(tree).encode())
    time.sleep(POLL_S)
    assert ask(app, {"query": "x"}).json()["versions"]["recipe"] == first.digest
    assert any(release.id in r.getMessage() for r in caplog.records if r.levelname == "ERROR")


@pytest.mark.drill
def test_models_that_no_open_release_names_are_closed(two):
    store, runs = two
    kit = LocalKit(None, "transformers")
    app = served(ReleaseFollower(kit, store.uri, close_after_s=0))
    held = []
    for run in (*runs, *runs):
        promote(store, run, [])
        for _ in range(2):  # one request finds the release, the next finds the earlier one's requests ended
            time.sleep(POLL_S)
            assert ask(app, {"query": "who wrote it?"}).json()["versions"]["recipe"] == run.digest
        gc.collect()
        held.append({m.dim for m in kit._loaded if m.kind == "embedder"})
    assert held == [{256}, {128}] * 2


class Elsewhere(LocalKit):
    """Models of which one is unavailable for a while."""

    here: ClassVar[set[str]] = set()

    def embedder(self, model):
        embed = super().embedder(model)

        async def embed_or_raise(texts, role):
            if model.name == "other-embedder" and model.name not in self.here:
                raise Unavailable("it is starting")
            return await embed(texts, role)

        return embed_or_raise


def test_a_release_whose_model_is_unavailable_is_followed_once_it_is_back(two):
    store, (first, second) = two
    promote(store, first, [])
    app = served(ReleaseFollower(Elsewhere(None, "transformers"), store.uri))
    assert ask(app, {"query": "x"}).json()["versions"]["recipe"] == first.digest
    promote(store, second, [])
    time.sleep(POLL_S)
    said = ask(app, {"query": "x"}).json()
    assert (said["versions"]["recipe"], said["degraded"]) == (first.digest, [])
    Elsewhere.here.add("other-embedder")
    time.sleep(POLL_S)
    assert ask(app, {"query": "x"}).json()["versions"]["recipe"] == second.digest


class Broken(LocalKit):
    """Models of which one cannot be loaded, or only slowly, as a library has it."""

    load: ClassVar[list[float | Exception]] = []  # of the next loads: seconds, or the error

    def embedder(self, model):
        embed = super().embedder(model)

        async def embed_or_raise(texts, role):
            if model.name == "other-embedder" and self.load:
                how = self.load.pop()
                if isinstance(how, Exception):
                    raise how
                await asyncio.sleep(how)
            return await embed(texts, role)

        return embed_or_raise


@pytest.mark.drill
def test_a_release_whose_model_a_library_cannot_load_is_tried_again_after_a_while(two, caplog, monkeypatch):
    store, (first, second) = two
    promote(store, first, [])
    app = served(ReleaseFollower(Broken(None, "transformers"), store.uri))
    assert ask(app, {"query": "x"}).json()["versions"]["recipe"] == first.digest
    release = promote(store, second, [])
    Broken.load[:] = [RuntimeError("out of memory")]
    time.sleep(POLL_S)
    assert ask(app, {"query": "x"}).json()["versions"]["recipe"] == first.digest
    said = [r for r in caplog.records if r.levelname == "ERROR"]
    assert [release.id in r.getMessage() and "out of memory" in str(r.exc_info[1]) for r in said] == [True]
    time.sleep(POLL_S)
    assert ask(app, {"query": "x"}).json()["versions"]["recipe"] == first.digest, "not so soon"
    now = time.monotonic
    monkeypatch.setattr("raypipe.serving.release_follower.time.monotonic", lambda: now() + REOPEN_S)
    assert ask(app, {"query": "x"}).json()["versions"]["recipe"] == second.digest


def test_a_request_waits_for_a_release_that_is_being_opened_and_not_for_long(two, monkeypatch):
    store, (first, second) = two
    promote(store, first, [])
    followed = ReleaseFollower(Broken(None, "transformers"), store.uri)
    monkeypatch.setattr("raypipe.serving.release_follower.OPEN_WAIT_S", 0.1)
    monkeypatch.setattr("raypipe.serving.release_follower.POLL_S", 0.0)

    async def scene():
        assert (await followed.current()).recipe.digest() == first.digest
        await asyncio.to_thread(promote, store, second, [])
        Broken.load[:] = [2.0]
        assert (await followed.current()).recipe.digest() == first.digest
        async with asyncio.timeout(60):
            while (await followed.current()).recipe.digest() != second.digest:
                await asyncio.sleep(0.05)

    asyncio.run(scene())


def test_a_pointer_or_a_release_that_is_damaged_or_gone_stops_no_answers(two, caplog):
    store, (first, second) = two
    promote(store, first, [])
    followed = ReleaseFollower(LocalKit(None, "transformers"), store.uri)

    def current():
        followed._polled_at = -POLL_S  # the next look is due
        return asyncio.run(followed.current()).recipe.digest()

    assert current() == first.digest
    pointer = store.files.read("_releases/live.json")
    for bad in (b'{"live": "r0001', b"[]", b'{"live": "r0009-x", "history": ["r0009-x"]}'):
        caplog.clear()
        store.files.write("_releases/live.json", bad)
        assert current() == first.digest
        assert any("cannot be read" in r.getMessage() for r in caplog.records)
        with pytest.raises(NotReady):
            asyncio.run(ReleaseFollower(LocalKit(None, "transformers"), store.uri).current())
    store.files.write("_releases/live.json", pointer)
    promote(store, second, [])
    assert current() == second.digest


def test_a_request_that_began_with_one_release_ends_with_it(two):
    store, (first, second) = two
    promote(store, first, [])
    followed = ReleaseFollower(LocalKit(None, "transformers"), store.uri)

    async def scene():
        pinned = await followed.current()
        promote(store, second, [])
        await asyncio.sleep(POLL_S)
        now = await followed.current()
        return pinned.recipe.digest(), now.recipe.digest()

    assert asyncio.run(scene()) == (first.digest, second.digest)


def test_a_question_that_is_ingested_again_with_other_pages_is_answered_by_the_release_as_before(bench):
    bench.run(SURE, out="one")
    store = Store.open(str(bench.folder / "store"))
    promote(store, read(bench.folder / "one"), [])
    lines = bench.lines()
    id, old = lines[0]["interaction_id"], lines[0]["search_results"]

    def live_answer():
        return ask(app_over(store), {"query": id, "include": ["hits"]}).json()

    before = live_answer()
    assert len(before["hits"]) > 0
    fresh = {"page_result": "<p>nothing of this was there before</p>", "page_snippet": "nothing of this"}
    lines[0]["search_results"] = [{**old[0], **fresh}]
    pipe = bench.pipeline(SURE)
    ingest(pipe.store, [bench.data(lines)], "crag", pipe.progress)
    now = live_answer()
    assert (now["answer"], now["hits"]) == (before["answer"], before["hits"])
    bench.run(SURE, data=bench.data(lines), out="two")
    assert prune(store, dry_run=False, kept=timedelta(0)), "what only the question of before cites"
    assert live_answer()["hits"] == before["hits"], "also when all old versions but the tagged ones went"
    promote(store, read(bench.folder / "two"), [])
    assert live_answer()["hits"] != before["hits"]


def test_an_endpoint_without_a_release_answers_questions_as_they_were_when_it_began(bench):
    bench.run(SURE, out="one")
    pipe = bench.pipeline(SURE)
    lines = bench.lines()
    app = served(Answerer(pipe.recipe, LocalKit(None, "transformers"), pipe.store.uri))
    body = {"query": lines[0]["interaction_id"], "include": ["hits"]}
    before = ask(app, body).json()
    lines[0]["search_results"] = lines[1]["search_results"]
    ingest(pipe.store, [bench.data(lines)], "crag", pipe.progress)
    assert ask(app, body).json()["hits"] == before["hits"] != []
    prune(pipe.store, dry_run=False, kept=timedelta(0))
    assert ask(app, body).json()["hits"] == before["hits"], "its lease names the questions, too"
