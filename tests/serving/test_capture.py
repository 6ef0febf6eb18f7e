"""Captured answers: what is kept, what is not, and that a job over them gives the same answers."""

import asyncio
import json
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from http_app import OPEN
from reruns import CONF, FAKES, Bench, refusing

from raypipe.api.captured_data import captured_span, write_captured
from raypipe.api.cli.main import main
from raypipe.api.endpoint import ServeArgs
from raypipe.api.session import from_environment
from raypipe.core import arrow
from raypipe.core.arrow import with_id_texts
from raypipe.core.errors import ConfError, DataError
from raypipe.core.records import CAPTURED_ID, Question
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.models.kit import LocalKit
from raypipe.runs.captured_answers import captured_answers, feedback_since
from raypipe.runs.pipeline.ingest_staging import Tombstone, write_tombstone
from raypipe.runs.record import read
from raypipe.runs.release import live
from raypipe.serving.access import ApiKeys, CaptureConfig, KeyFilter, ServerConfig
from raypipe.serving.answerer import Answerer
from raypipe.serving.capture import Capture
from raypipe.serving.http import create_app
from raypipe.store import Store
from raypipe.text.filters import Filters

pytestmark = pytest.mark.slow

SURE = FAKES.replace("threshold: 0.5\n", "threshold: 0.0\n")
MARK = "s3cr3t-7731"


class Endpoint:
    """An endpoint in this process that captures, over the store of a bench."""

    def __init__(self, bench, **config):
        self.pipe = bench.pipeline(SURE)
        self.events = []
        server = config.pop("server", OPEN)
        config = CaptureConfig(**{"rate": 1.0, **config})
        self.now = 1_800_000_000.0
        self.capture = Capture(self.pipe.store.uri, config, self.events.append, lambda: self.now)
        online = Answerer(self.pipe.recipe, LocalKit(None, "transformers"), self.pipe.store.uri)
        self.app = create_app(online, server, capture=self.capture)

    def send(self, *bodies, path="/v1/answer", key=None):
        """The replies to bodies that are sent together; what is captured is written when it returns."""

        async def all_of_them():
            transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
                headers = {"authorization": f"Bearer {key}"} if key else {}
                came = await asyncio.gather(*(http.post(path, json=b, headers=headers) for b in bodies))
            self.capture._closing.set()
            await self.capture.close()
            return came

        return asyncio.run(all_of_them())

    def captured(self):
        return {a.answer_id: a for a in captured_answers(self.pipe.store, 0.0)}


@pytest.fixture(scope="module")
def asked(ran, tmp_path_factory):
    """An endpoint, and its replies: to stored questions, about the whole store, and over own pages."""
    folder = tmp_path_factory.mktemp("captured")
    shutil.copytree(ran.folder / "store", folder / "store")
    bench = Bench(folder, ran.world)
    endpoint = Endpoint(bench)
    lines = bench.lines()[:6]
    stored = [{"query": line["query"]} for line in lines]
    own = [{"query": f"{line['query']} ", "documents": line["search_results"]} for line in lines]
    whole = [{"query": f"tell me: {line['query']}"} for line in lines]
    return endpoint, endpoint.send(*stored, *whole, *own)


def job(endpoint, data, out, store=None):
    pipe = endpoint.pipe if store is None else replace(endpoint.pipe, store=store)
    pipe = pipe if store is None else replace(pipe, worker=replace(pipe.worker, store=store.uri))
    return evaluate(pipe, [data], out, EvalOptions("captured", fresh=True)), pipe


def answers_of(pipe, ids):
    asked = arrow.question.records(pipe.store.rows("questions", "id", ids))
    return {q.id: q for q in pipe.answers(asked)}


@pytest.mark.drill
def test_a_job_over_captured_questions_gives_the_answers_of_the_endpoint_byte_for_byte(
    asked, tmp_path, monkeypatch, capsys
):
    endpoint, replies = asked
    said = {r.json()["answer_id"]: r.json() for r in replies}
    rows = endpoint.captured()
    assert set(rows) == set(said) and len(said) == 18
    span = captured_span(["captured:20000d"])
    here = write_captured(span, endpoint.pipe.store, endpoint.pipe.store, tmp_path)
    assert (here.questions, here.left_out) == (12, {"own": 6})
    other = Store.create(str(tmp_path / "other"))
    there = write_captured(span, endpoint.pipe.store, other, tmp_path)
    assert (there.questions, there.left_out) == (12, {"whole": 6})
    for files, store in ((here, None), (there, other)):
        done, pipe = job(endpoint, files.data, tmp_path / f"out-{store is None}", store)
        lines = [json.loads(line) for line in files.answers.read_text().splitlines()]
        answers = answers_of(pipe, [line["id"] for line in lines])
        assert done.record.questions == 12 == len(answers)
        for line in lines:
            assert answers[line["id"]].answer.encode() == line["prediction"].encode()
            assert answers[line["id"]].outcome == line["outcome"]
    assert "answered" in {r.json()["outcome"] for r in replies}
    monkeypatch.setenv("RAYPIPE_CONF", str(CONF.folders[0]))
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path / "home"))
    folder = endpoint.pipe.store.uri.removesuffix("/store")
    words = ["eval", f"{folder}/fakes.yaml", "--models", f"{folder}/models.yaml", "--data", "captured:20000d"]
    words += ["--store", endpoint.pipe.store.uri, "--out", str(tmp_path / "by-command"), "--json"]
    assert main(words) == 0
    by_command, err = capsys.readouterr()
    assert json.loads(by_command)["questions"] == 12 and "6 captured questions brought documents" in err
    lines = map(json.loads, (tmp_path / "by-command/predictions.jsonl").read_text().splitlines())
    told = {line["id"]: line["prediction"] for line in lines}
    captured = [json.loads(line) for line in here.answers.read_text().splitlines()]
    assert {line["id"]: line["prediction"] for line in captured} == told


@pytest.mark.drill
@pytest.mark.ray
def test_a_candidate_answers_captured_questions_as_a_job_and_its_gate_promotes_it(
    asked, tmp_path, monkeypatch, capsys
):
    endpoint, _ = asked
    monkeypatch.setenv("RAYPIPE_CONF", str(CONF.folders[0]))
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path / "home"))
    store = endpoint.pipe.store
    folder = store.uri.removesuffix("/store")
    Path(f"{folder}/next.yaml").write_text(SURE.replace("top: 10}", "top: 9}"))
    now, after = tmp_path / "now", tmp_path / "next"
    given = ["--models", f"{folder}/models.yaml", "--data", "captured:20000d", "--store", store.uri, "--out"]
    assert main(["eval", f"{folder}/fakes.yaml", *given, str(now)]) == 0
    assert main(["eval", f"{folder}/next.yaml", *given, str(after)]) == 0
    capsys.readouterr()
    assert main(["compare", str(now), str(after), "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)["comparisons"]
    assert found["score"]["n"] >= 6, "the stored questions have golds"
    assert main(["promote", str(after), "--gate", "better", "--against", str(now)]) == 7
    assert main(["promote", str(after), "--gate", "not-worse:0.9", "--against", str(now)]) == 0
    assert live(store).run == read(after).run and live(store).gates == ("not-worse:0.9",)


def test_what_one_user_asked_is_offered_to_no_other_and_answers_no_other(asked, tmp_path):
    endpoint, _ = asked
    files = write_captured(captured_span(["captured:20000d"]), *[endpoint.pipe.store] * 2, tmp_path)
    job(endpoint, files.data, tmp_path / "out")
    stored = endpoint.pipe.store.scan("questions", ["id", "text"]).to_pylist()
    mine = [q for q in stored if q["id"].startswith(CAPTURED_ID)]
    assert len(mine) == 6, "those over the whole store; the others were stored before"
    online = Answerer(endpoint.pipe.recipe, LocalKit(None, "transformers"), endpoint.pipe.store.uri)

    snapshot = asyncio.run(online.snapshot())
    assert not {q["text"] for q in mine} & set(snapshot.examples())
    for words in (mine[0]["text"], mine[0]["id"]):
        found = snapshot.resolve(Question("another", words), Filters(), Filters())
        assert found.id == "another", "not even by its id"


def test_a_captured_question_is_evaluated_under_the_filter_it_was_asked_with(ran, tmp_path):
    shutil.copytree(ran.folder / "store", tmp_path / "store")
    endpoint = Endpoint(Bench(tmp_path, ran.world))
    asked = endpoint.pipe.store.scan("questions").to_pylist()
    hosts = sorted({c["url"].split("/")[2] for q in asked for c in q["citations"]})[:6]
    query = {"query": f"tell me: {asked[0]['text']}"}
    bodies = [{**query, "filters": {"where": f"host = '{h}'"}} for h in hosts]
    bodies += [{**query, "filters": {"hosts": [h]}} for h in hosts[:2]]
    replies = [r.json() for r in endpoint.send(*bodies)]
    assert len({r["answer"] for r in replies}) > 1, "the filter decides the answer"
    files = write_captured(captured_span(["captured:20000d"]), *[endpoint.pipe.store] * 2, tmp_path)
    _, pipe = job(endpoint, files.data, tmp_path / "out")
    lines = [json.loads(line) for line in files.answers.open()]
    answers = answers_of(pipe, [line["id"] for line in lines])
    assert sorted(line["prediction"] for line in lines) == sorted(r["answer"] for r in replies)
    assert [answers[line["id"]].answer for line in lines] == [line["prediction"] for line in lines]


def test_feedback_makes_golds_and_labels_and_the_last_word_counts(asked, tmp_path):
    endpoint, replies = asked
    whole = [r.json() for r in replies[6:12]]
    first, second, third = whole[0]["answer_id"], whole[1]["answer_id"], whole[2]["answer_id"]
    bodies = [
        {"answer_id": first, "verdict": "wrong", "text": "ada lovelace"},
        {"answer_id": second, "verdict": "wrong"},
        {"answer_id": third, "text": "grace hopper"},
    ]
    for body in bodies:
        [reply] = endpoint.send(body, path="/v1/feedback")
        assert reply.status_code == 200 and reply.json() == {"answer_id": body["answer_id"], "kept": True}
    assert len(feedback_since(endpoint.pipe.store, 0.0)) == 3
    files = write_captured(captured_span(["captured:20000d"]), *[endpoint.pipe.store] * 2, tmp_path)
    golds = {line["query"]: line["answers"] for line in map(json.loads, files.data.open())}
    assert golds[whole[0]["query"]] == ["ada lovelace"] and golds[whole[2]["query"]] == ["grace hopper"]
    assert golds[whole[1]["query"]] == []
    stored = [golds[r.json()["query"]] for r in replies[:6]]
    assert all(stored), "a stored question keeps its golds"
    labels = [json.loads(line) for line in files.labels.open()]
    assert sorted((x["prediction"], x["label"], x["picked"]) for x in labels) == sorted(
        (said["answer"], "wrong", "chosen") for said in whole[:2]
    )
    before = endpoint.pipe.store.scan("golds").to_pylist()
    done, _ = job(endpoint, files.data, tmp_path / "out")
    after = endpoint.pipe.store.scan("golds").to_pylist()
    assert [g for g in before if g["answers"]] == [g for g in after if g in before and g["answers"]]
    assert done.scored.scores.kind == "qa" and done.record.without_truth == len(golds) - 6 - 2


def test_feedback_for_an_answer_that_was_not_captured_is_refused_and_repeats_nothing(bench):
    endpoint = Endpoint(bench)
    [reply] = endpoint.send({"query": "who wrote it?"})
    known = reply.json()["answer_id"]
    forged = known[:-1] + ("0" if known[-1] != "0" else "1")
    other = known[:8] + "0" * 12 + known[20:]
    for id in (MARK, forged, other, "é" * 36, "0" * 36):
        [reply] = endpoint.send({"answer_id": id, "verdict": "right"}, path="/v1/feedback")
        assert (
            reply.status_code == 404 and "Unknown answer" in reply.json()["detail"] and id not in reply.text
        )
    for body, status in (
        ({"answer_id": known}, 400),
        ({"answer_id": known, "verdict": MARK}, 400),
        ({"answer_id": known, "text": " "}, 400),
    ):
        [reply] = endpoint.send(body, path="/v1/feedback")
        assert reply.status_code == status and MARK not in reply.text
    endpoint.now += 8 * 86400
    [reply] = endpoint.send({"answer_id": known, "verdict": "right"}, path="/v1/feedback")
    assert reply.status_code == 404, "it is older than the retention"
    assert feedback_since(endpoint.pipe.store, 0.0) == {}


def test_a_store_that_was_taken_away_is_said_and_no_feedback_makes_its_folder_again(bench):
    endpoint = Endpoint(bench)
    [reply] = endpoint.send({"query": "who wrote it?"})
    known, store = reply.json()["answer_id"], endpoint.pipe.store.uri
    os.rename(store, store + ".taken")
    [reply] = endpoint.send({"answer_id": known, "verdict": "right"}, path="/v1/feedback")
    assert reply.status_code == 503 and "the log says which" in reply.json()["detail"]
    assert not os.path.exists(store)


def test_feedback_counts_for_the_key_that_asked_and_no_other_learns_of_the_answer(bench):
    filters = tuple(KeyFilter(n, ApiKeys.of([f"key-of-{n}-with-16-chars"])) for n in ("acme", "blue"))
    endpoint = Endpoint(bench, server=ServerConfig(key_filters=filters))
    keys = [f"key-of-{name}-with-16-chars" for name in ("acme", "blue")]
    [reply] = endpoint.send({"query": "who wrote it?"}, key=keys[0])
    said = {"answer_id": reply.json()["answer_id"], "verdict": "wrong"}
    [known] = endpoint.send(said, path="/v1/feedback", key=keys[1])
    [never] = endpoint.send({**said, "answer_id": "0" * 36}, path="/v1/feedback", key=keys[1])
    assert known.status_code == never.status_code == 404
    assert known.json()["detail"] == never.json()["detail"], "one that exists reads as one that does not"
    assert feedback_since(endpoint.pipe.store, 0.0) == {}
    [reply] = endpoint.send(said, path="/v1/feedback", key=keys[0])
    assert reply.status_code == 200 and list(feedback_since(endpoint.pipe.store, 0.0)) == [said["answer_id"]]
    [line] = endpoint.captured().values()
    assert "acme" not in str(line), "a captured answer does not say who asked"


def test_without_capture_there_is_no_answer_id_and_no_feedback(bench):
    pipe = bench.pipeline(SURE)
    app = create_app(Answerer(pipe.recipe, LocalKit(None, "transformers"), pipe.store.uri), OPEN)
    endpoint = Endpoint(bench, rate=1e-9)
    [reply] = endpoint.send({"query": "who wrote it?"})
    assert "answer_id" not in reply.json() and endpoint.captured() == {}
    endpoint.app = app
    [reply] = endpoint.send({"answer_id": "x", "verdict": "right"}, path="/v1/feedback")
    assert reply.status_code == 404 and "without `--capture`" in reply.json()["detail"]


HOOK = """
def redact(text):
    return text.replace("{mark}", "[gone]")

def raises(text):
    if "{mark}" in text:
        raise ValueError(text)
    return text

def none(text):
    return None
"""


@pytest.fixture
def hooks(tmp_path, monkeypatch):
    (tmp_path / "my_redaction.py").write_text(HOOK.format(mark=MARK))
    monkeypatch.syspath_prepend(str(tmp_path))


def everything(store):
    return b"".join(store.files.read(name) for name in store.files.walk("_captured"))


def test_redacted_text_is_in_no_file_and_a_changed_page_is_another_source(bench, hooks):
    endpoint = Endpoint(bench, redact="my_redaction:redact")
    page = {
        "page_name": MARK,
        "page_url": f"https://{MARK}.org",
        "page_result": f"<p>It was {MARK} who wrote it.",
    }
    replies = endpoint.send(
        {"query": f"who is {MARK}?", "documents": [page]}, {"query": f"who is {MARK}, then?"}
    )
    assert all(r.status_code == 200 for r in replies)
    [reply] = endpoint.send(
        {"answer_id": replies[0].json()["answer_id"], "text": f"it is {MARK}"}, path="/v1/feedback"
    )
    assert reply.status_code == 200
    kept = endpoint.captured()[replies[0].json()["answer_id"]]
    assert kept.query == "who is [gone]?" and kept.id == ""
    assert {s.content for s in kept.sources} == {"<p>It was [gone] who wrote it.", "[gone]"}
    assert {s.id for s in kept.sources} == set(kept.citations[0].sources())
    assert MARK.encode() not in everything(endpoint.pipe.store)


def test_a_redaction_function_that_raises_captures_nothing_delays_no_answer_and_leaks_nothing(
    bench, hooks, caplog
):
    endpoint = Endpoint(bench, redact="my_redaction:raises")
    with caplog.at_level(logging.INFO):
        refused, fine = endpoint.send({"query": f"who is {MARK}?"}, {"query": "who wrote it?"})
        assert refused.status_code == fine.status_code == 200
        body = {"answer_id": fine.json()["answer_id"], "text": MARK}
        [reply] = endpoint.send(body, path="/v1/feedback")
    assert reply.status_code == 500 and "cannot be redacted" in reply.json()["detail"]
    assert set(endpoint.captured()) == {fine.json()["answer_id"]}
    assert sorted(endpoint.events) == ["redaction failed", "written"]
    assert "my_redaction:raises raised ValueError" in caplog.text
    assert MARK not in caplog.text and MARK not in reply.text
    assert MARK.encode() not in everything(endpoint.pipe.store)


def test_a_redaction_function_that_cannot_work_is_refused_before_anything_starts(bench, hooks, capsys):
    uri = bench.pipeline(SURE).store.uri
    for path, says in (
        ("my_redaction:none", "returned NoneType, expected a text"),
        ("my_redaction:absent", "has no 'absent'"),
        ("no_such_module:redact", "found no module"),
        ("redact", "expected a redaction function of one text as MODULE:NAME"),
    ):
        with pytest.raises(ConfError, match=says):
            ServeArgs(
                str(bench.folder / "fakes.yaml"),
                str(bench.folder / "models.yaml"),
                uri,
                capture=CaptureConfig(0.5, 7, path),
            ).check(replace(from_environment(), conf=CONF))
    for given, says in (
        (["--capture", "2"], "expected a share above 0"),
        (["--capture", "0"], "expected a share above 0"),
        (["--redact", "a:b"], "--redact: expected --capture RATE with it"),
        (["--capture", "1", "--retention", "0"], "expected a number above 0"),
    ):
        try:
            assert main(["serve", "local", "--store", uri, *given]) == 2
        except SystemExit as e:
            assert e.code == 2
        assert says in capsys.readouterr().err


def test_rows_older_than_the_retention_go_and_a_full_queue_drops_rows_and_no_request(bench):
    endpoint = Endpoint(bench, retention_days=1)
    endpoint.send({"query": "who wrote it?"})
    assert len(endpoint.captured()) == 1
    endpoint.now += 2 * 86400
    endpoint.send({"query": "who else?"})
    assert [a.query for a in endpoint.captured().values()] == ["who else?"]
    endpoint.capture._bytes = 1 << 30
    [reply] = endpoint.send({"query": "and who?"})
    assert reply.status_code == 200 and "answer_id" not in reply.json() and endpoint.events[-1] == "dropped"


def test_answers_that_an_unavailable_store_does_not_take_are_written_with_the_next_try(bench):
    endpoint = Endpoint(bench)
    capture = endpoint.capture

    async def two_tries():
        transport = httpx.ASGITransport(app=endpoint.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
            [first, second] = [await http.post("/v1/answer", json={"query": q}) for q in ("who?", "when?")]
            with refusing(endpoint.pipe.store, "_captured/answers"):
                await capture._write_waiting()
                assert endpoint.events == [] and capture._bytes == 0
            third = await http.post("/v1/answer", json={"query": "where?"})
            await capture._write_waiting()
        return {r.json()["answer_id"] for r in (first, second, third)}

    assert asyncio.run(two_tries()) == set(endpoint.captured())
    assert endpoint.events == ["written"] * 3
    last = Endpoint(bench)
    with refusing(endpoint.pipe.store, "_captured/answers"):
        last.send({"query": "and who?"})
    assert last.events == ["dropped"], "the last try, when it closes"


def test_captured_data_is_named_by_days_or_hours_and_says_what_is_wrong(bench, tmp_path):
    store = bench.pipeline(SURE).store
    assert captured_span(["a.jsonl"]) is None
    assert captured_span(["captured:12h@/data/s"]).days == 0.5
    for data in (["captured:7"], ["captured:0d"], ["captured:"], ["captured:7d", "a.jsonl"]):
        with pytest.raises(ConfError, match="--data captured:"):
            captured_span(data)
    with pytest.raises(DataError, match="no answers were captured in the last 7d"):
        write_captured(captured_span(["captured:7d"]), store, store, tmp_path)


def test_an_answer_that_rests_on_what_is_forgotten_is_not_written_whenever_the_tombstone_comes(ran, tmp_path):
    shutil.copytree(ran.folder / "store", tmp_path / "store")
    endpoint = Endpoint(Bench(tmp_path, ran.world))
    line = with_id_texts(endpoint.pipe.store.scan("questions").to_pylist()[0])
    stone = Tombstone(1, "0" * 32, "source", "told to", 0.0, sources=(line["citations"][0]["page"],))

    class Files(type(endpoint.capture._store.files)):
        def write(self, name, content):
            super().write(name, content)
            if name.startswith("_captured/answers"):
                write_tombstone(endpoint.pipe.store, stone)  # while the file is written

    endpoint.capture._store.files = Files(endpoint.pipe.store.uri)
    other = {
        "query": "tell me",
        "documents": [{"page_result": "<p>Nothing.</p>", "page_url": "https://a.example/"}],
    }
    for _ in range(2):  # the tombstone comes with the first, and is there before the second
        endpoint.send({"query": line["text"]}, other)
    assert {a.query for a in endpoint.captured().values()} == {"tell me"}
    assert sorted(endpoint.events) == ["dropped"] * 2 + ["written"] * 2
