"""Every route of the HTTP API, with the recipe in this process: streams, batches, rankings, chats. No Ray."""

import asyncio
import gc
import json
import logging
import socket
import time
import weakref
from dataclasses import replace

import httpx
import openai
import pytest
from checkout import ROOT, SUPPORT
from http_app import OPEN, ask, events, listening, send, served

from raypipe.api.session import load_recipe
from raypipe.core.conf import Conf
from raypipe.core.errors import ConfError
from raypipe.core.records import Citation
from raypipe.models.kit import LocalKit
from raypipe.serving.access import ApiKeys, RequestLimits
from raypipe.serving.answerer import Answerer, NotReady
from raypipe.serving.crag_harness import EndpointModel
from raypipe.serving.http.middleware import JsonLines, RequestMetrics
from raypipe.serving.serve_kit import ServeKit
from raypipe.store.fields import SourceFields
from raypipe.text.filters import Filters

pytestmark = pytest.mark.slow

KEY, NEXT_KEY = "first-key-of-sixteen", "second-key-of-sixteen"


def app_over(filled, config=OPEN, metrics=None):
    """The recipe of the fakes over the filled store, as an app."""
    return served(Answerer(filled.recipe, LocalKit(None, "transformers"), filled.store.uri), config, metrics)


@pytest.fixture(scope="module")
def app(filled):
    return app_over(filled)


@pytest.fixture(scope="module")
def job(filled):
    """What the job answered to a question that has an answer."""
    return next(q for q in filled.answers if q.outcome == "answered")


def test_a_stream_has_the_stages_in_order_and_ends_with_the_answer_of_a_plain_request(app, job, filled):
    plain = ask(app, {"query": job.text}).json()
    reply = ask(app, {"query": job.text, "stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    found = [(name, json.loads(data)) for name, data in events(reply.text)]
    stages = [data["stage"] for name, data in found if name == "stage" and "ms" in data]
    assert stages == [s.name for s in filled.recipe.question]
    last, said = found[-1]
    assert last == "answer"
    assert {**said, "timings_ms": 0} == {**plain, "timings_ms": 0}


def test_a_stream_that_cannot_begin_is_a_status_and_one_that_breaks_is_an_event(filled, tmp_path):
    absent = served(Answerer(filled.recipe, LocalKit(None, "transformers"), str(tmp_path / "none")))
    assert ask(absent, {"query": " ", "stream": True}).status_code == 400
    [(name, data)] = events(ask(absent, {"query": "x", "stream": True}).text)
    assert name == "error" and json.loads(data)["status"] == 503


def test_a_batch_is_answered_like_its_questions_one_by_one(app, filled):
    queries = [{"query": q.text, "include": ["hits"]} for q in filled.answers]
    together = ask(app, {"queries": queries}, "/v1/answer:batch").json()["answers"]
    apart = [ask(app, q).json() for q in queries]
    for a, b in zip(together, apart, strict=True):
        assert {**a, "timings_ms": 0} == {**b, "timings_ms": 0}
    assert ask(app, {"queries": []}, "/v1/answer:batch").status_code == 400
    assert ask(app, {"queries": queries * 16}, "/v1/answer:batch").status_code == 400


def test_a_ranking_has_the_texts_of_the_passages_that_the_answer_was_made_from(app, job, filled):
    found = ask(app, {"query": job.text, "top": 3}, "/v1/retrieve").json()
    assert [p["chunk"] for p in found["passages"]] == list(job.order[:3])
    for p in found["passages"]:
        source, (start, end) = p["chunk"].split(":")[0], p["span"]
        [text] = filled.texts(source)
        assert text[start:end] == p["text"].replace("\n", " ")  # a line for each block
    assert "extract" not in found["timings_ms"]  # no answer was generated


def test_filters_keep_everything_else_out_of_sight(app, job):
    everything = ask(app, {"query": job.text}, "/v1/retrieve").json()["passages"]
    url = everything[0]["url"]
    host = httpx.URL(url).host
    found = ask(app, {"query": job.text, "filters": {"hosts": [host]}}, "/v1/retrieve").json()["passages"]
    assert found and {httpx.URL(p["url"]).host for p in found} == {host}
    source = everything[0]["chunk"].split(":")[0]
    for query in (job.text, job.text + " or else"):  # a stored question, and one about the whole store
        body = {"query": query, "filters": {"sources": [source]}}
        found = ask(app, body, "/v1/retrieve").json()["passages"]
        assert {p["chunk"].split(":")[0] for p in found} == {source}
    none = {"query": job.text, "filters": {"hosts": ["nowhere.example"]}}
    assert ask(app, none).json()["outcome"] == "abstained"


def test_a_quote_has_its_page_around_it_where_that_is_asked_for(app, job, filled):
    [citation] = ask(app, {"query": job.text, "include": ["context"]}).json()["citations"]
    [text] = filled.texts(citation["source"])
    assert citation["before"] + citation["quote"] + citation["after"] in text


def test_index_and_models_say_what_answers(app, filled):
    index, models = send(app, ("GET", "/v1/index", {}), ("GET", "/v1/models", {}))
    said = index.json()
    assert said["recipe"] == {"name": filled.recipe.name, "digest": filled.recipe.digest()}
    assert said["rows"]["texts"] > 0 and said["embedders"] == ["hash-embedder"]
    assert said["examples"] and set(said["examples"]) <= {q.text for q in filled.answers}
    assert [m["id"] for m in models.json()["data"]] == ["raypipe", filled.recipe.name]


def test_a_deadline_that_passes_while_pages_are_made_ready_is_i_dont_know_too(app, filled):
    pages = next(iter(filled.lines.values()))["search_results"]
    start = time.perf_counter()
    said = ask(app, {"query": "who?", "documents": pages, "deadline_s": 0.001}).json()
    assert time.perf_counter() - start < 2
    assert (said["answer"], said["outcome"]) == ("i don't know", "abstained") and said["degraded"]


class Counting:
    """An answerer that sleeps, and counts its calls and cancellations."""

    release = None

    def __init__(self, recipe, seconds):
        self.recipe, self.seconds = recipe, seconds
        self.begun = self.cancelled = 0

    async def current(self):
        return self

    async def answer(self, request, listener=None):
        self.begun += 1
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        raise ConfError("no caller should wait for this")


def until(true, seconds=5.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/answer", "/v1/chat/completions"])
def test_a_disconnected_client_cancels_the_work_and_frees_its_slot(filled, path, stream):
    counting = Counting(filled.recipe, 60)
    with listening(served(counting, replace(OPEN, limits=RequestLimits(max_ongoing_requests=1)))) as url:
        body = {"query": "x", "stream": stream}
        if path.endswith("completions"):
            body = {"model": "raypipe", "messages": [{"role": "user", "content": "x"}], "stream": stream}
        for times in (1, 2):  # the second finds the slot free
            with httpx.Client(base_url=url, timeout=httpx.Timeout(5, read=0.5)) as client:
                try:
                    with client.stream("POST", path, json=body) as reply:
                        for _ in reply.iter_raw():
                            pass
                except httpx.ReadTimeout:
                    pass
            until(lambda times=times: counting.cancelled == times)
        assert counting.begun == 2


def test_requests_over_the_limit_get_429_with_retry_after_and_the_others_are_answered(filled, job):
    limits = RequestLimits(max_ongoing_requests=2)
    app = served(
        Answerer(filled.recipe, LocalKit(None, "transformers"), filled.store.uri),
        replace(OPEN, limits=limits),
    )
    replies = send(app, *[("POST", "/v1/answer", {"json": {"query": job.text}})] * 10)
    assert sorted({r.status_code for r in replies}) == [200, 429]
    assert sum(r.is_success for r in replies) == 2
    for r in replies:
        if r.status_code == 429:
            assert int(r.headers["retry-after"]) > 0
            assert r.headers["content-type"] == "application/problem+json"
    assert ask(app, {"query": job.text}).is_success  # the slots are free again


class Separators(Counting):
    """An answerer that drafts every character at which `str.splitlines` splits."""

    async def answer(self, request, listener=None):
        listener.on_draft(SEPARATORS)
        raise NotReady("it has no answer")


SEPARATORS = "a\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029b"


def test_a_draft_with_any_line_separator_is_one_event_with_one_line_of_data(filled):
    reply = ask(served(Separators(filled.recipe, 0)), {"query": "x", "stream": True})
    assert all(len(block.split("\n")) == 2 for block in reply.text.strip("\n").split("\n\n"))
    (name, data), _ = events(reply.text)
    assert name == "draft" and json.loads(data)["text"] == SEPARATORS


class Flooding(Counting):
    """An answerer that sends more than any connection buffers."""

    async def answer(self, request, listener=None):
        for _ in range(1000):
            listener.on_draft("x" * 10_000)
        raise NotReady("it has no answer")


class Drafting(Counting):
    """An answerer that drafts until it is cancelled."""

    async def answer(self, request, listener=None):
        self.begun += 1
        self.listener = weakref.ref(listener)
        try:
            while True:
                listener.on_draft("x" * 1000)
                await asyncio.sleep(0.002)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


@pytest.mark.parametrize("path", ["/v1/answer", "/v1/chat/completions"])
def test_a_client_that_drops_amid_a_stream_leaves_no_work_slot_bytes_or_memory(filled, path, caplog):
    held = [0]

    class Watched(RequestMetrics):
        def bytes_in_flight(self, count):
            held.append(count)

    drafting = Drafting(filled.recipe, 0)
    one = replace(OPEN, limits=RequestLimits(max_ongoing_requests=1))
    body = {"query": "x", "stream": True}
    if path.endswith("completions"):
        body = {"model": "raypipe", "messages": [{"role": "user", "content": "x"}], "stream": True}
    with caplog.at_level(logging.WARNING), listening(served(drafting, one, Watched())) as url:
        for times in (1, 2, 3):  # each finds the slot free
            with httpx.stream("POST", f"{url}{path}", json=body) as reply:
                assert reply.status_code == 200 and len(next(reply.iter_raw())) > 0
            until(lambda times=times: drafting.cancelled == drafting.begun == times)
            until(lambda: gc.collect() >= 0 and drafting.listener() is None)
    assert max(held) > 0 and held[-1] == 0
    assert not caplog.records


def test_a_client_that_never_reads_its_stream_holds_no_slot(filled):
    limits, body = RequestLimits(max_ongoing_requests=1), b'{"query": "x", "stream": true}'
    head = "POST /v1/answer HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(body)}\r\n\r\n"
    app = served(Flooding(filled.recipe, 0), replace(OPEN, limits=limits))
    with listening(app) as url, socket.create_connection(("127.0.0.1", httpx.URL(url).port)) as client:
        client.sendall(head.encode() + body)
        assert client.recv(12) == b"HTTP/1.1 200", "it has the slot"
        until(lambda: httpx.post(f"{url}/v1/answer", json={"query": "x"}).status_code == 503)


def test_a_slow_body_takes_no_slot_and_is_cut(filled):
    limits = RequestLimits(max_ongoing_requests=1, body_timeout_s=0.5)
    counting = Counting(filled.recipe, 0)
    with listening(served(counting, replace(OPEN, limits=limits))) as url:

        def slowly():
            yield b'{"query": '
            time.sleep(2)
            yield b'"x"}'

        with httpx.Client(base_url=url) as client:
            header = {"content-type": "application/json"}
            start = time.perf_counter()
            late = client.post("/v1/answer", content=slowly(), headers=header).status_code
            assert late in (408, 503), "503: on a busy machine, the gateway blames itself"
            assert time.perf_counter() - start < 4
            assert client.get("/healthz").is_success
    assert counting.begun == 0


def test_a_client_that_disconnects_in_the_middle_of_its_body_is_no_defect(filled, caplog):
    head = "POST /v1/answer HTTP/1.1\r\nhost: here\r\n"
    head += "content-type: application/json\r\ncontent-length: 90\r\n\r\n"

    def logged_statuses():
        lines = [r for r in caplog.records if r.name == "raypipe.serving.requests"]
        return [r.fields["status"] for r in lines]

    with (
        caplog.at_level(logging.INFO, logger="raypipe"),
        listening(served(Counting(filled.recipe, 0))) as url,
    ):
        with socket.create_connection(("127.0.0.1", httpx.URL(url).port)) as client:
            client.sendall(head.encode() + b'{"query": ')
            time.sleep(0.2)
        until(lambda: logged_statuses() == [499])
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


def test_a_source_that_was_cited_from_several_hosts_is_found_by_each():
    s1, s2 = "1" * 32, "2" * 32
    here, there = "https://a.example/1", "https://b.example/2"
    places = (s1, here), (s1, there), (s2, here)
    fields = SourceFields.of([Citation("q1", n, u, "", s, None, None) for n, (s, u) in enumerate(places)])
    for hosts, found in (
        (("a.example",), [(s1, here), (s2, here)]),
        (("b.example",), [(s1, there)]),
        (("c.example",), []),
        ((), [(s1, here), (s2, here)]),
    ):
        citations = fields.within(Filters(hosts)).citations("q")
        assert [(c.page, c.url) for c in citations] == found
    assert fields.urls([s1]) == {s1: here}


def test_a_request_needs_a_key_and_keys_can_be_rotated(filled, job):
    config = replace(OPEN, keys=ApiKeys.of([KEY, NEXT_KEY]))
    app = app_over(filled, config)
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {KEY}"}):
        for method, path in (("POST", "/v1/answer"), ("GET", "/v1/index"), ("GET", "/openapi.json")):
            [reply] = send(app, (method, path, {"headers": headers}))
            assert reply.status_code == 401 and reply.headers["www-authenticate"] == "Bearer"
            assert KEY not in reply.text and "wrong" not in reply.text
    for key in (KEY, NEXT_KEY):
        assert ask(app, {"query": job.text}, authorization=f"Bearer {key}").is_success
    for path in ("/", "/healthz", "/readyz"):  # neither a question nor an answer
        assert send(app, ("GET", path, {}))[0].is_success
    assert KEY not in repr(config) and KEY.encode() not in b"".join(config.keys.digests)


def test_a_key_that_can_be_guessed_is_refused_and_not_repeated():
    for key in ("short", "with space and length", "zwölf-und-mehr-zeichen"):
        with pytest.raises(ConfError, match="key 2") as e:
            ApiKeys.of([KEY, key])
        assert key not in str(e.value)


def test_without_keys_it_answers_its_own_machine_alone(filled, job):
    app = served(
        Answerer(filled.recipe, LocalKit(None, "transformers"), filled.store.uri),
        replace(OPEN, keys=ApiKeys()),
    )

    def status(client, host):
        request = ("POST", "/v1/answer", {"json": {"query": job.text}, "headers": {"host": host}})
        return send(app, request, client=(client, 1234))[0].status_code

    assert status("127.0.0.1", "127.0.0.1:8000") == status("::1", "[::1]:8000") == 200
    assert status("127.0.0.1", "localhost") == 200
    assert status("10.0.0.7", "127.0.0.1:8000") == 403
    assert status("127.0.0.1", "rebound.example") == 403  # a name that a web page points here


def test_no_other_site_may_read_an_answer_and_the_page_may_call_no_other_host(app):
    origin = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    preflight, page = send(app, ("OPTIONS", "/v1/answer", {"headers": origin}), ("GET", "/", {}))
    assert preflight.status_code == 405
    assert not [h for h in preflight.headers if h.startswith("access-control")]
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy and "unsafe" not in policy
    for path in ("/docs", "/redoc"):
        assert send(app, ("GET", path, {}))[0].status_code == 404


def test_the_log_has_a_line_for_a_request_with_its_id_and_none_of_its_words(app, job, caplog):
    with caplog.at_level(logging.INFO, logger="raypipe"):
        reply = ask(app, {"query": job.text}, **{"x-request-id": "abc-1"})
        bad = ask(app, {"query": "s3cr3t", "s3cr3t": 1}, **{"x-request-id": "no\tid"})
    assert reply.headers["x-request-id"] == "abc-1" and bad.headers["x-request-id"] != "no\tid"
    lines = [
        json.loads(JsonLines().format(r)) for r in caplog.records if r.name == "raypipe.serving.requests"
    ]
    first, second = lines
    assert first["route"] == "/v1/answer" and first["status"] == 200 and first["outcome"] == "answered"
    assert second["status"] == 400
    # An answer may be a number, which a time may contain.
    text = json.dumps([{k: v for k, v in line.items() if k not in ("at", "ms")} for line in lines])
    assert job.text not in text and "s3cr3t" not in text and job.answer not in text


class Numbers(RequestMetrics):
    """Metrics that keep what they count."""

    def __init__(self):
        self.in_flight, self.statuses, self.outcomes = 0, [], []

    def request_started(self):
        self.in_flight += 1

    def request_ended(self, route, status, seconds):
        self.in_flight -= 1
        self.statuses.append((route, status))

    def question_answered(self, result):
        self.outcomes.append(result.question.outcome)


def test_every_request_is_counted_once_however_it_ends(filled, job):
    numbers = Numbers()
    app = app_over(filled, OPEN, numbers)
    ask(app, {"query": job.text})
    ask(app, {"query": job.text, "stream": True})
    ask(app, b"{")
    ask(app, {}, "/nowhere-to-be-found")
    expected = [("/v1/answer", 200), ("/v1/answer", 200), ("/v1/answer", 400), ("unknown", 404)]
    assert numbers.statuses == expected and numbers.in_flight == 0
    assert numbers.outcomes == ["answered", "answered"]


def chat_client(url, **options):
    return openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, **options)


@pytest.fixture(scope="module")
def with_key(filled):
    config = replace(OPEN, keys=ApiKeys.of([KEY]))
    with listening(app_over(filled, config)) as url:
        yield url


def test_the_openai_client_reads_an_answer_with_its_citations(with_key, job):
    client = chat_client(with_key)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "another question"},
        {"role": "assistant", "content": "i don't know"},
        {"role": "user", "content": [{"type": "text", "text": job.text}]},
    ]
    said = client.chat.completions.create(model="raypipe", messages=messages, temperature=0.2, max_tokens=9)
    [choice] = said.choices
    assert (choice.message.content, choice.finish_reason) == (job.answer, "stop")
    [annotation] = choice.message.annotations
    cited = annotation.url_citation
    assert cited.url.startswith("http") and (cited.start_index, cited.end_index) == (0, len(job.answer))
    assert said.raypipe["outcome"] == "answered" and said.raypipe["citations"][0]["quote"]
    assert said.usage.total_tokens == said.usage.prompt_tokens + said.usage.completion_tokens
    assert "raypipe" in [m.id for m in client.models.list()]
    for listed in client.models.list():
        assert client.models.retrieve(listed.id) == listed
    with pytest.raises(openai.NotFoundError, match="Unknown model: GET /v1/models lists the names"):
        client.models.retrieve("gpt-4")


def test_the_openai_client_reads_a_stream(with_key, job):
    stream = chat_client(with_key).chat.completions.create(
        model="raypipe",
        messages=[{"role": "user", "content": job.text}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == job.answer
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage is not None


def test_a_chat_that_streams_sends_no_comment_for_what_its_client_does_not_see(app, job):
    chat = {"model": "raypipe", "messages": [{"role": "user", "content": job.text}], "stream": True}
    assert "ping" not in ask(app, chat, "/v1/chat/completions").text


def test_metadata_of_a_client_has_no_effect_and_appears_in_no_error(app, job):
    chat = {"model": "raypipe", "messages": [{"role": "user", "content": job.text}]}
    for metadata in ({"s3cr3t": "x"}, {"s3cr3t": 1}, {"s3cr3t": [[{}] * 500]}):
        reply = ask(app, {**chat, "metadata": metadata}, "/v1/chat/completions")
        assert reply.json()["choices"][0]["message"]["content"] == job.answer
    for wrong in ({"metadata": "s3cr3t"}, {"stop": {"s3cr3t": 1}}, {"raypipe": {"s3cr3t": 1}}):
        reply = ask(app, {**chat, **wrong}, "/v1/chat/completions")
        assert reply.status_code == 400 and "s3cr3t" not in reply.text


TOOL = {"type": "function", "function": {"name": "search", "parameters": {}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": None, "tool_choice": "none", "parallel_tool_calls": True, "unheard_of": None},
        {"tools": [TOOL], "tool_choice": "none", "functions": [], "function_call": "none"},
        {
            "response_format": {"type": "text"},
            "modalities": ["text"],
            "logprobs": False,
            "n": 1,
            "stream": None,
        },
        {
            "reasoning_effort": "low",
            "service_tier": "auto",
            "logit_bias": {"9": 1},
            "top_k": 5,
            "raypipe": None,
        },
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_fields_whose_value_changes_nothing_are_taken(app, job, fields):
    chat = {"model": "raypipe", "messages": [{"role": "user", "content": job.text}], **fields}
    reply = ask(app, chat, "/v1/chat/completions")
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["message"]["content"] == job.answer


def test_turns_before_the_question_may_hold_anything(app, job):
    cached = {"type": "text", "text": job.text, "cache_control": {"type": "ephemeral"}}
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Be brief.", "cache_control": {}}]},
        {"role": "user", "content": [PICTURE, {"type": "text", "text": "what is this?"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "a pump"}]},
        {"role": "function", "name": "search", "content": "a pump"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "user", "name": "ada", "content": [cached]},
        {"role": "assistant", "content": "", "prefix": True},
    ]
    reply = ask(app, {"model": "raypipe", "messages": messages}, "/v1/chat/completions")
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["message"]["content"] == job.answer
    with_picture = [{"role": "user", "content": [PICTURE, cached]}]
    reply = ask(app, {"model": "raypipe", "messages": with_picture}, "/v1/chat/completions")
    assert reply.status_code == 400 and "messages[0].content[0].type" in reply.text


def test_the_openai_client_sees_errors_as_its_own(with_key):
    client, messages = chat_client(with_key), [{"role": "user", "content": "x"}]
    with pytest.raises(openai.NotFoundError, match="Unknown model"):
        client.chat.completions.create(model="gpt-4", messages=messages)
    with pytest.raises(openai.BadRequestError, match="Invalid request"):
        client.chat.completions.create(model="raypipe", messages=messages, n=2)
    with pytest.raises(openai.BadRequestError, match="allowed: model, messages, stream"):
        client.chat.completions.create(model="raypipe", messages=messages, extra_body={"tols": []})
    with pytest.raises(openai.BadRequestError, match="a recipe calls no tools"):
        client.chat.completions.create(model="raypipe", messages=messages, tools=[TOOL])
    with pytest.raises(openai.BadRequestError, match="expected a user message"):
        client.chat.completions.create(model="raypipe", messages=[{"role": "system", "content": "x"}])
    with pytest.raises(openai.AuthenticationError, match="Unknown key") as refused:
        openai.OpenAI(base_url=f"{with_key}/v1", api_key="x", max_retries=0).models.list()
    assert refused.value.type == "invalid_request_error"


def test_crags_own_loop_gets_the_answers_of_the_job(with_key, filled):
    participant = EndpointModel(with_key, KEY)
    lines = [filled.lines[q.id] for q in filled.answers]
    size, said = participant.get_batch_size(), []
    assert 1 <= size <= 16
    for i in range(0, len(lines), size):
        part = lines[i : i + size]
        batch = {
            f: [line[f] for line in part] for f in ("interaction_id", "query", "query_time", "search_results")
        }
        said += participant.batch_generate_answer(batch)
    assert said == [q.answer for q in filled.answers]


def test_no_address_in_a_request_or_a_page_is_ever_opened(app):
    """Every url points to a listener of our own."""
    reached = []

    async def canary(scope, receive, send):
        reached.append(scope.get("path"))

    with listening(canary) as url:
        html = (
            f"<html><head><link rel=stylesheet href='{url}/css'><script src='{url}/js'></script>"
            f"<base href='{url}/'><meta http-equiv=refresh content='0;{url}/next'></head><body>"
            f"<img src='{url}/img'>"
            f"<iframe src='{url}/frame'></iframe>"
            f"<a href='{url}/link'>Ada wrote the first program.</a></body></html>"
        )
        page = {
            "page_url": f"{url}/page",
            "page_name": f"{url}/name",
            "page_snippet": f"see {url}",
            "page_result": html,
        }
        body = {"query": f"who wrote {url}/query ?", "documents": [page], "include": ["context", "passages"]}
        said = ask(app, {**body, "filters": {"hosts": ["127.0.0.1"]}}).json()
        assert said["outcome"] in ("answered", "abstained") and said["passages"]
        assert said["passages"][0]["url"] == f"{url}/page"
        messages = [{"role": "user", "content": [{"type": "text", "text": f"read {url}/chat"}]}]
        assert ask(app, {"model": "raypipe", "messages": messages}, "/v1/chat/completions").is_success
        picture = [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"{url}/picture"}}]}
        ]
        assert ask(app, {"model": "raypipe", "messages": picture}, "/v1/chat/completions").status_code == 400
    assert reached == []


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "texts-x'; DROP TABLE questions; --", "a/../../b", "%2e%2e%2f"]
)
def test_a_name_that_climbs_or_quotes_is_only_a_text(app, name):
    assert ask(app, {"query": name}).json()["outcome"] in ("answered", "abstained")
    found = ask(app, {"query": "x", "filters": {"sources": [name]}}, "/v1/retrieve")
    assert found.is_success and found.json()["passages"] == []
    assert send(app, ("GET", f"/v1/{name}", {}))[0].status_code == 404


class Elsewhere:
    """A deployment's methods, in this process."""

    def __init__(self, method, pieces=None):
        self.remote, self.stream = method, pieces


def test_what_a_language_model_writes_is_streamed_as_drafts_of_its_stage(filled, tmp_path):
    recipe = load_recipe("crag-baseline", str(SUPPORT / "fake_models.yaml"), Conf((ROOT / "conf",)))
    here = LocalKit(None, "transformers")

    async def pieces(model, chat, sampling, adapter):
        [reply] = await here.generator(model)([chat], sampling, adapter)
        for word in reply.text.split(" "):
            yield f"{word} "
        yield reply

    kit = ServeKit(
        Elsewhere(lambda model, texts, role: here.embedder(model)(texts, role)),
        Elsewhere(lambda model, pairs: here.reranker(model)(pairs)),
        Elsewhere(lambda model, *asked: here.generator(model)(*asked)),
        Elsewhere(None, pieces),
    )
    line = next(iter(filled.lines.values()))
    body = {"query": line["query"], "documents": line["search_results"], "include": ["replies"]}
    app = served(Answerer(recipe, kit, str(tmp_path / "none")))
    found = [(n, json.loads(d)) for n, d in events(ask(app, {**body, "stream": True}).text)]
    drafts = [data for name, data in found if name == "draft"]
    assert {d["stage"] for d in drafts} == {"generate:web"} and len(drafts) > 1
    said = found[-1][1]
    assert "".join(d["text"] for d in drafts).strip() == said["replies"]["web"]["text"]
    plain = ask(app, body).json()
    assert (plain["answer"], plain["citations"]) == (said["answer"], said["citations"])
