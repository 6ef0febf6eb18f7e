"""Canary and shadow: who answers, that the other answers after, and that a worse release goes by itself."""

import asyncio
import json
import time

import httpx
import pytest
from http_app import OPEN
from reruns import FAKES, Bench, refusing

from raypipe.api.compare import compare
from raypipe.api.release import rollback, show_trials, start_canary, start_shadow, stop_trials
from raypipe.cli.main import main
from raypipe.core.errors import ConfError, DataError, Unavailable
from raypipe.core.plain import json_lines
from raypipe.models.kit import LocalKit
from raypipe.runs.manifest import read
from raypipe.runs.prune import prune
from raypipe.runs.release import live, promote
from raypipe.runs.trials import ReleaseTrial, TrialEvidence, read_trial
from raypipe.serving.access import CaptureConfig
from raypipe.serving.capture import Capture, RedactionFailed
from raypipe.serving.http import create_app
from raypipe.serving.release_follower import ReleaseFollowers
from raypipe.serving.serve_kit import InFlight, YieldingKit, background
from raypipe.serving.trials import SecondAnswers, TrialRouter
from raypipe.store import Store, StoreError

pytestmark = pytest.mark.slow

SURE = FAKES.replace("threshold: 0.5\n", "threshold: 0.0\n")
WORSE = FAKES.replace("threshold: 0.5\n", "threshold: 1.0\n").replace("top: 10}", "top: 1}")
COUNT = 24


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A store with two runs over the same questions, the better of which is live; their folders, and the
    questions."""
    from raypipe.synth import write

    world = tmp_path_factory.mktemp("trials")
    write(world, COUNT, pages=2, seed=5, page_chars=1000)
    bench = Bench(tmp_path_factory.mktemp("two"), world)
    for name, recipe in (("good", SURE), ("bad", WORSE)):
        bench.run(recipe, out=name)
    store = Store.open(str(bench.folder / "store"))
    promote(store, read(bench.folder / "good"), [])
    return store, bench.folder, [line["query"] for line in bench.lines()]


@pytest.fixture(autouse=True)
def no_trial(two):
    """Each test begins and ends with the first run live and nothing on trial."""
    yield
    store, folder, _ = two
    if any(read_trial(store, role) for role in ("canary", "shadow")):
        stop_trials(store)
    promote(store, read(folder / "good"), [])


class Endpoint:
    """An endpoint in this process that follows the live release and what is on trial."""

    def __init__(self, store, redact=None, capture=None):
        self.store, self.in_flight = store, InFlight()
        kit = YieldingKit(LocalKit(None, "transformers"), self.in_flight)
        self.events = []
        more = {} if redact is None else {"redact": redact}
        self.seconds = SecondAnswers(store, self.in_flight, self, **more)
        self.router = TrialRouter(ReleaseFollowers(kit, store.uri), self.seconds)
        self.app = create_app(self.router, OPEN, capture=capture)

    def event(self, role, event):
        self.events.append((role, event))

    def looked(self, report):
        self.events.append((report.trial.role, report.verdict))

    def ask(self, queries, **options):
        """The replies, one after the other, and the report of the look after them."""

        async def all_of_them():
            transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
                self.router._polled_at = 0.0
                await http.post("/v1/answer", json={"query": "who is there?"})
                await self.router._poll_task
                found = []
                for query in queries:
                    found.append(await http.post("/v1/answer", json={"query": query} | options))
                    while len(self.seconds._waiting) > 8:
                        await asyncio.sleep(0.01)
                while self.seconds._waiting:
                    await asyncio.sleep(0.01)
                return found, await self.seconds.flush()

        return asyncio.run(all_of_them())


def test_a_canary_that_is_worse_is_rolled_back_by_itself_and_the_report_says_why(two, capsys):
    store, folder, queries = two
    good = live(store).id
    assert main(["promote", str(folder / "bad"), "--canary", "1", "--gate", "not-worse:0.05"]) == 0
    assert "gate not-worse:0.05: running" in capsys.readouterr().out
    trial = read_trial(store, "canary")
    endpoint = Endpoint(store)
    replies, _ = endpoint.ask(queries)
    assert {r.status_code for r in replies} == {200}
    assert replies[0].json()["versions"]["release"] == trial.release
    assert read_trial(store, "canary") is None and live(store).id == good
    ended = show_trials(store).ended
    assert ended.verdict == "rolled back" and "worse than" in ended.why and good in ended.why
    assert ended.trial == trial and ended.examples and ended.questions >= 8
    assert ended.f1.live > ended.f1.trial
    assert main(["trial", "--store", store.uri]) == 0
    assert f"canary {trial.release} against {good}" in (said := capsys.readouterr().out)
    assert "rolled back" in said and "p 0.0" in said
    again, none = endpoint.ask(queries[:2])
    assert {r.json()["versions"]["release"] for r in again} == {good} and none is None


def test_a_canary_takes_its_share_by_the_question_and_each_reply_says_who_gave_it(two):
    store, folder, queries = two
    trial = start_canary(folder / "bad", 0.4, ["better"]).running[0].trial
    asked = [*queries[:6], *queries[:6]]
    replies, _ = Endpoint(store).ask(asked)
    for query, reply in zip(asked, replies, strict=True):
        release = reply.json()["versions"]["release"]
        assert release == (trial.release if trial.takes(query) else trial.live)
    many = [ReleaseTrial(1, "canary", "r1", "r0", 0.05, "", 0.0).takes(f"question {i}") for i in range(4000)]
    assert 0.04 < sum(many) / len(many) < 0.06


def test_a_canary_that_is_better_goes_live_by_its_gate(two):
    store, folder, queries = two
    promote(store, read(folder / "bad"), [])
    trial = start_canary(folder / "good", 1.0, ["better"]).running[0].trial
    assert trial.live == live(store).id
    Endpoint(store).ask(queries)
    ended = show_trials(store).ended
    assert ended.verdict == "live" and live(store).id == trial.release == ended.trial.release
    assert rollback(store).release.id == trial.live, "it can be rolled back as any other"


def test_a_shadow_never_answers_and_is_compared_with_live(two, capsys):
    store, folder, queries = two
    assert main(["trial", str(folder / "bad"), "--shadow", "1", "--store", store.uri]) == 0
    trial = read_trial(store, "shadow")
    assert f"shadow {trial.release} against {trial.live}, share 1: running" in capsys.readouterr().out
    with pytest.raises(DataError, match="answered 0 questions"):
        compare("live", "shadow", store=store)
    endpoint = Endpoint(store)
    replies, _ = endpoint.ask(queries[:20])
    assert {r.json()["versions"]["release"] for r in replies} == {trial.live}
    [found] = show_trials(store).running  # a look may have been taken while they were asked
    assert found.verdict == "running" and found.questions >= 20 and found.f1.questions == 20
    [side] = compare("live", "shadow", store=store).comparisons
    assert side.after == f"shadow ({trial.release})" and side.score.n == 20
    assert side.score.before > side.score.after
    assert main(["compare", "live", "shadow", "--store", store.uri, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["comparisons"][0]["measure"] == "f1"
    with pytest.raises(ConfError, match="expected `live shadow`"):
        compare("live", "shadow", "x", store=store)
    prune(store, dry_run=False)
    assert read_trial(store, "shadow") == trial and live(store).id == trial.live
    Endpoint(store).ask(queries[:1])


def test_what_users_said_is_right_scores_both_sides(two, tmp_path):
    store, folder, _ = two
    start_shadow(folder / "bad", 1.0, store)
    capture = Capture(store.uri, CaptureConfig(1.0))
    endpoint = Endpoint(store, capture=capture)
    asked = "who is it that no one stored?"
    [reply], _ = endpoint.ask([asked])
    asyncio.run(capture.feedback("default", reply.json()["answer_id"], "wrong", "ada lovelace"))
    [side] = compare("live", "shadow", store=store).comparisons
    assert side.score.n == 1


def test_a_canary_that_fails_is_answered_by_live_and_counts_against_it(two):
    store, folder, queries = two
    trial = start_canary(folder / "bad", 1.0, ["better"]).running[0].trial
    endpoint = Endpoint(store)

    async def fails(request, listener):
        raise Unavailable("no model")

    class Broken:
        answer = staticmethod(fails)

    endpoint.ask([])
    endpoint.router._open = endpoint.router._open[0], Broken()
    replies, _ = endpoint.ask(queries)
    assert {r.status_code for r in replies} == {200}
    assert {r.json()["versions"]["release"] for r in replies} == {trial.live}
    ended = show_trials(store).ended
    assert ended.verdict == "rolled back" and ended.failed >= 8
    assert ("canary", "failed") in endpoint.events


def test_a_second_answer_waits_until_no_request_is_in_flight(two):
    store, folder, queries = two
    start_shadow(folder / "bad", 1.0, store)
    in_flight, calls = InFlight(), []

    class Kit(LocalKit):
        def reranker(self, model):
            score = super().reranker(model)

            async def timed(pairs):
                calls.append((background.get(), in_flight.requests))
                return await score(pairs)

            return timed

        def with_index(self, index):
            other = Kit.__new__(Kit)
            other.__dict__.update(super().with_index(index).__dict__)
            return other

    kit = YieldingKit(Kit(None, "transformers"), in_flight)
    seconds = SecondAnswers(store, in_flight)
    router = TrialRouter(ReleaseFollowers(kit, store.uri), seconds)
    endpoint = Endpoint(store)
    endpoint.router, endpoint.seconds, endpoint.app = router, seconds, create_app(router, OPEN)
    endpoint.ask(queries[:6])
    second = [busy for back, busy in calls if back]
    assert second and set(second) == {0}, "no call of a second answer began next to a request"
    assert any(busy for back, busy in calls if not back)


def test_answers_of_a_pair_are_redacted_and_a_function_that_raises_keeps_none(two):
    store, folder, queries = two
    start_shadow(folder / "bad", 1.0, store)

    def raises(text):
        raise RedactionFailed("my:redact raised ValueError")

    before = store.files.walk("_trials/pairs")
    Endpoint(store, redact=raises).ask(queries[:2])
    assert store.files.walk("_trials/pairs") == before
    Endpoint(store, redact=lambda text: "[gone]").ask(["who wrote none of it?"])
    [name] = set(store.files.walk("_trials/pairs")) - set(before)
    for pair in map(json.loads, store.files.read(name).splitlines()):
        assert (pair["live"]["answer"], pair["trial"]["answer"]) == ("[gone]", "[gone]")


def test_pairs_that_an_unavailable_store_does_not_take_are_written_with_the_next_flush(two):
    store, folder, queries = two
    start_shadow(folder / "bad", 1.0, store)
    before, endpoint = set(store.files.walk("_trials/pairs")), Endpoint(store)
    with refusing(store, "_trials/pairs"):
        endpoint.ask(queries[:3])
    asyncio.run(endpoint.seconds.flush())
    asyncio.run(endpoint.seconds.flush())
    [name] = set(store.files.walk("_trials/pairs")) - before
    asked = [pair["question"] for pair in json_lines(store.files.read(name))]
    assert len(asked) == len(set(asked)) == 3


def test_a_look_that_broke_off_is_made_again_with_all_of_its_golds(two):
    store, folder, queries = two
    trial = start_shadow(folder / "bad", 1.0, store)
    Endpoint(store).ask(queries[:3])
    evidence = TrialEvidence(store, trial)
    with refusing(store, "golds.lance"), pytest.raises(StoreError):
        evidence.read()
    assert len(evidence.read()) == len(evidence.pairs) == 3


def test_what_cannot_be_tried_is_refused_and_live_stays(two, capsys, tmp_path):
    store, folder, _ = two
    now = live(store).id
    for run, share, gates, says in (
        ("bad", 0.05, [], "expected one gate that ends it"),
        ("bad", 0.05, ["score>=0.1"], "expected one gate that ends it"),
        ("bad", 0.05, ["better", "not-worse"], "found better, not-worse"),
        ("bad", 0.0, ["better"], "expected a share above 0"),
        ("good", 0.05, ["better"], "is live already"),
    ):
        with pytest.raises(ConfError, match=says):
            start_canary(folder / run, share, gates)
    empty = Store.create(str(tmp_path / "empty"))
    with pytest.raises(ConfError, match="nothing is live"):
        start_canary(folder / "bad", 0.05, ["better"], empty)
    first = start_canary(folder / "bad", 0.05, ["better"]).running[0].trial
    assert start_canary(folder / "bad", 0.05, ["better"]).running[0].trial == first, "again changes nothing"
    with pytest.raises(ConfError, match="is one already"):
        start_canary(folder / "bad", 0.1, ["better"])
    assert main(["promote", str(folder / "bad"), "--canary", "0.05"]) == 2
    assert "expected one gate that ends it" in capsys.readouterr().err
    promote(store, read(folder / "bad"), [])
    Endpoint(store).ask([])
    ended = show_trials(store).ended
    assert ended.verdict == "stopped" and "is live now" in ended.why
    with pytest.raises(ConfError, match="no canary and no shadow"):
        stop_trials(store)
    rollback(store)
    assert live(store).id == now
    assert main(["trial", str(folder / "bad"), "--store", store.uri]) == 2
    assert "expected DIR and --shadow SHARE together" in capsys.readouterr().err


def test_stopping_a_canary_and_a_shadow_names_both(two, capsys):
    store, folder, _ = two
    start_canary(folder / "bad", 0.5, ["better"])
    start_shadow(folder / "bad", 0.5, store)
    assert main(["trial", "--stop", "--store", store.uri]) == 0
    said = capsys.readouterr().out
    assert said.index("no canary and no shadow") < said.index("canary r") < said.index("shadow r")
    assert said.count("it was stopped by hand") == 2 and "the last" not in said
    start_canary(folder / "bad", 0.5, ["better"])
    start_shadow(folder / "bad", 0.5, store)
    found = stop_trials(store)
    assert [(r.trial.role, r.verdict) for r in found.stopped] == [
        ("canary", "stopped"),
        ("shadow", "stopped"),
    ]
    assert [r["role"] for r in found.rows()] == ["canary", "shadow"] and not found.running
    assert found.ended == found.stopped[1] and show_trials(store).over == (found.ended,)


def test_a_release_that_cannot_be_opened_is_not_tried_and_live_answers(two):
    store, folder, queries = two
    trial = start_canary(folder / "bad", 1.0, ["better"]).running[0].trial
    name = f"_releases/{trial.release}.json"
    whole = store.files.read(name)
    store.files.write(name, b"{}")
    try:
        endpoint = Endpoint(store)
        start = time.monotonic()
        replies, _ = endpoint.ask(queries[:2])
        assert {r.json()["versions"]["release"] for r in replies} == {trial.live}
        assert endpoint.router._refused[0] == trial and time.monotonic() - start < 30
    finally:
        store.files.write(name, whole)
