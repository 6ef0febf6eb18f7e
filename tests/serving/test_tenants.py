"""Tenants: keys with names, shares, quotas, releases and filters; and what one sees of another: nothing."""

import asyncio
import json
import re
from dataclasses import replace

import pytest
from checkout import ROOT, SUPPORT
from http_app import JSON, send

from raypipe.api.session import load_recipe
from raypipe.api.usage import usage
from raypipe.core.config import Conf
from raypipe.core.errors import ConfError, DataError, Overloaded
from raypipe.core.llm import Generated
from raypipe.memo.memo import MemoryMemo
from raypipe.models.kit import LocalKit
from raypipe.runs.forget.mentions import words
from raypipe.serving.access import ApiKeys, CaptureConfig, RequestLimits, ServerConfig
from raypipe.serving.answerer import Answerer, CorpusMemo
from raypipe.serving.capture import Capture
from raypipe.serving.http import create_app
from raypipe.serving.http.errors import RequestRefused
from raypipe.serving.http.limits import Admission, FairSlots
from raypipe.serving.http.middleware import RequestMetrics
from raypipe.serving.query import Filters, host_matches
from raypipe.serving.tenants import Quotas, Tenant, read_tenants
from raypipe.store import Store

RECIPE = load_recipe(str(SUPPORT / "fakes.yaml"), None, Conf((ROOT / "conf",)))
ACME, BLUE = "the-key-of-acme-here", "the-key-of-blue-here"


def tenant(name, key, **fields):
    return Tenant(name, ApiKeys.of([key]), **fields)


WRITES = (
    (SUPPORT / "fakes.yaml")
    .read_text()
    .replace(
        "  - decide: {prefer: [extract]}",
        "  - generate: {model: scripted, prompt: crag/rag, into: llm, max_tokens: 50, context_tokens: 400}\n"
        "  - decide: {prefer: [llm, extract]}",
    )
)


class Clock:
    """Seconds that a test moves."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def posted(key, body, path="/v1/answer", **headers):
    content = {"content": json.dumps(body), "headers": {**JSON, "authorization": f"Bearer {key}", **headers}}
    return ("POST", path, content)


FILE = f"""
tenants:
  acme:
    keys: [{ACME}]
    share: 3
    requests_per_minute: 600
    releases: [live@acme, live]
    filters: {{hosts: [acme.example]}}
  blue: {{keys: [{BLUE}]}}
"""


def test_a_file_of_tenants_is_read_and_holds_no_key_afterwards(tmp_path):
    path = tmp_path / "tenants.yaml"
    path.write_text(FILE.replace("[acme.example]", "[Acme.Example]"))
    acme, blue = read_tenants(path)
    assert (acme.share, acme.releases, acme.corpus) == (3, ("live@acme", "live"), "acme")
    assert (blue.share, blue.releases, blue.corpus) == (1, ("live",), "")
    assert acme.keys.accepts(ACME) and not acme.keys.accepts(BLUE)
    assert ACME not in repr((acme, blue))
    assert host_matches("https://www.acme.example/a", acme.scope.hosts)


@pytest.mark.parametrize(
    ("found", "put", "said"),
    [
        ("share: 3", "share: 0", r"tenants\.acme.*share: expected a number above 0, found 0"),
        (
            "share: 3",
            "share: .nan",
            r"tenants\.acme\.share: expected a finite number, found .*nan",
        ),
        ("live@acme", "dead", r"tenants\.acme: pointer 'dead': expected live, or live@NAME"),
        ("[acme.example]", "['https://a.example/']", r"tenants\.acme.*expected a host, such as"),
        (BLUE, ACME, r"tenants\.blue: key 1 is a key of tenant acme"),
        (BLUE, "short", r"tenants\.blue: key 1: expected at least 16"),
        ("requests_per_minute: 600", "request_per_minute: 6", r"unknown field 'request_per_minute'; did you"),
        ("  blue", "  Blue Inc", r"expected a name of small letters"),
        ("  blue", f"  {BLUE}=", r"tenants\.\.\.\.: expected a name of small letters"),
        (f"[{BLUE}]", BLUE, r"tenants\.blue\.keys: expected a list, found text \('\.\.\.'\)"),
        (f"keys: [{BLUE}]", f"{BLUE}: 1", r"tenants\.blue: unknown field '\.\.\.'; known: filters, keys"),
    ],
)
def test_what_is_wrong_in_a_file_of_tenants_is_said_without_a_key(tmp_path, found, put, said):
    path = tmp_path / "tenants.yaml"
    path.write_text(FILE.replace(found, put))
    with pytest.raises(ConfError, match=said) as refused:
        read_tenants(path)
    assert ACME not in str(refused.value) and BLUE not in str(refused.value)


def test_slots_are_shared_by_weight_and_what_is_free_is_borrowed():
    acme, blue, clock = tenant("acme", ACME, share=3), tenant("blue", BLUE), Clock()

    async def scene():
        slots = FairSlots(8, [acme, blue], clock)
        assert (slots.part("acme"), slots.part("blue")) == (6, 2)
        held = [slots.acquire(blue) for _ in range(8)]
        for slot in held:  # acme has not asked for long: all of its part is borrowed
            await slot.__aenter__()
        with pytest.raises(Overloaded):
            await slots.acquire(blue).__aenter__()
        waiting = slots.acquire(acme)
        turn = asyncio.ensure_future(waiting.__aenter__())
        await asyncio.sleep(0)
        assert not turn.done(), "a slot of its own is borrowed: it waits for the next that is free"
        await held.pop().__aexit__(None, None, None)
        assert slots.taken == 8, "a slot that is handed on is taken, before its request runs"
        await turn
        await held.pop().__aexit__(None, None, None)
        with pytest.raises(Overloaded):  # acme asked lately: its part is kept free
            await slots.acquire(blue).__aenter__()
        clock.now += 61
        async with slots.acquire(blue):
            assert slots.taken == 8

    asyncio.run(scene())


def test_a_quota_fills_evenly_over_all_gateways_and_says_when_to_come_again():
    clock = Clock()
    acme = tenant("acme", ACME, requests_per_minute=6, tokens_per_minute=60)
    blue = tenant("blue", BLUE)
    shared = Quotas([acme, blue], clock)
    gateways = [Admission(8, [acme, blue], quotas=shared) for _ in range(3)]

    async def scene():
        for gateway in gateways * 2:
            await gateway.admit(acme)
        for gateway in gateways:
            with pytest.raises(RequestRefused, match=r"6 requests a minute are used up") as refused:
                await gateway.admit(acme)
            assert refused.value.headers == {"retry-after": "10"}
        clock.now += 10
        await gateways[0].admit(acme)
        await gateways[0].spend(acme, 100)  # more than a minute's tokens: a debt, which is paid first
        clock.now += 10
        with pytest.raises(RequestRefused, match=r"60 tokens a minute are used up") as refused:
            await gateways[1].admit(acme)
        assert refused.value.headers == {"retry-after": "31"}
        await gateways[1].admit(blue)

    asyncio.run(scene())


def test_a_refusal_is_counted_for_its_tenant():
    async def scene():
        seen = []

        class Metrics(RequestMetrics):
            def tenant_used(self, *event):
                seen.append(event)

        acme = tenant("acme", ACME, requests_per_minute=1)
        admission = Admission(1, [acme], Metrics())
        async with admission.slot(acme):
            with pytest.raises(Overloaded):
                await admission.slot(acme).__aenter__()
        await admission.spend(acme, 7)
        await admission.admit(acme)
        with pytest.raises(RequestRefused):
            await admission.admit(acme)
        assert seen == [("acme", "refused", 0), ("acme", "admitted", 7), ("acme", "refused", 0)]

    asyncio.run(scene())


@pytest.fixture(scope="module")
def halves(filled):
    """The hosts of two stored questions' pages that the other does not cite, and these questions."""
    found = []
    for job in filled.answers[:2]:
        found.append({re.sub(r"https?://([^/]+)/.*", r"\1", c.url) for c in job.citations})
    return [sorted(found[0] - found[1]), sorted(found[1] - found[0])], filled.answers[:2]


@pytest.fixture(scope="module")
def two(filled, halves, tmp_path_factory):
    """An endpoint of two tenants, each with the pages of one question, over one set of models, one of which
    writes; it captures what it may."""
    (mine, others), _ = halves
    file = tmp_path_factory.mktemp("tenants") / "writes.yaml"
    file.write_text(WRITES)
    recipe = load_recipe(str(file), None, Conf((ROOT / "conf",)))
    tenants = (
        tenant("acme", ACME, scope=Filters(tuple(mine))), tenant("blue", BLUE, scope=Filters(tuple(others))),
    )  # fmt: skip
    memo = MemoryMemo()
    online = Answerer(recipe, LocalKit(None, "transformers"), filled.store.uri, memo)
    config = ServerConfig(limits=RequestLimits(max_body_bytes=1 << 20), tenants=tenants)
    capture = Capture(Store.create(str(file.parent / "store")).uri, CaptureConfig(1.0))
    return create_app(online, config, capture=capture), memo, capture


@pytest.mark.slow
def test_two_tenants_see_nothing_of_one_another(filled, halves, two, caplog):
    (mine, others), (first, second) = halves
    app, memo, capture = two
    caplog.set_level("INFO", "raypipe")
    include = ["hits", "replies", "prompts", "passages"]
    forged = {"hosts": others[:50], "sources": [h.source for h in second.hits][:20]}
    replies = send(
        app,
        posted(BLUE, {"query": second.text, "include": include}),
        posted(ACME, {"query": second.text, "include": include}),
        posted(ACME, {"query": second.id, "include": include}),
        posted(ACME, {"query": second.text, "include": include, "filters": forged}),
        posted(ACME, {"query": second.text, "filters": forged}, "/v1/retrieve"),
        posted(ACME, {"queries": [{"query": second.text, "filters": forged, "include": include}]},
               "/v1/answer:batch"),
        ("GET", "/v1/index", {"headers": {"authorization": f"Bearer {ACME}"}}),
        posted(ACME, {"query": first.text}),
    )  # fmt: skip
    assert [r.status_code for r in (*replies, *send(app, posted(BLUE, {"query": second.text})))] == [200] * 9
    own = replies[0].json()
    assert own["hits"] and all(p["url"].split("/")[2] in others for p in own["passages"])
    secret = {c.url for c in second.citations if c.url.split("/")[2] in others}
    texts = {p["text"] for p in own["passages"]}
    for reply in replies[1:]:
        assert not [url for url in secret if url in reply.text]
        assert not [t for t in texts if json.dumps(t)[1:-1] in reply.text]
    assert second.text not in replies[2].text, "an id names no question of another"
    assert replies[3].json()["hits"] == [] and replies[4].json()["passages"] == []
    assert replies[6].json()["examples"] == [] and replies[6].json()["rows"] == {}
    owners = {key.partition("/")[0] for _, key in memo._rows}
    assert owners == {"acme", "blue"}, "each cached value is under the name of its tenant"

    # Words that only pages of blue have, in whatever acme got, and in all that was written down.
    own_pages = [c for q in (first, second) for c in q.citations if host_matches(c.url, mine)]
    known = " ".join(t for c in own_pages for s in c.sources() for t in filled.texts(s))
    [said] = send(app, posted(ACME, {"query": f"{first.text} {second.text}", "include": include}))
    poison = {w for w in words(" ".join(texts)) if len(w) > 4 and w.isalpha()}
    poison -= set(words(f"{known} {said.text}"))
    assert len(poison) > 10 and poison & set(words(replies[0].text)), "blue itself sees them"
    kept = [block[row] for (_, key), (block, row) in memo._rows.items() if key.startswith("acme/")]
    written = [*(r.text for r in replies[1:]), *map(str, kept), caplog.text]
    assert any(isinstance(v, Generated) for v in kept), "replies of a model are among it"
    assert [sorted(poison & set(words(text))) for text in written] == [[]] * len(written)
    assert not capture._waiting, "nothing of a tenant with pages of its own is captured"


def test_a_cached_value_of_one_corpus_is_not_found_by_another():
    from raypipe.memo.memo import MemoTable

    async def scene():
        import numpy as np

        memo, table = MemoryMemo(), MemoTable("scores-" + "0" * 32)
        await CorpusMemo(memo, "acme").put_many(table, ["k"], np.array([0.5], np.float32))
        for corpus, expected in (("acme", [True]), ("blue", [False])):
            known, _ = await CorpusMemo(memo, corpus).get_many(table, ["k"])
            assert known.tolist() == expected
        assert (await memo.get_many(table, ["k"]))[0].tolist() == [False]

    asyncio.run(scene())


@pytest.mark.slow
def test_keys_releases_and_quotas_of_tenants_over_http(filled, halves, two):
    app, *_ = two
    ask = {"query": "who?"}
    foreign, unknown = send(
        app, posted(ACME, ask, **{"raypipe-release": "live@blue"}), posted("a-key-that-no-one-has", ask)
    )
    assert (foreign.status_code, unknown.status_code) == (403, 401)
    assert (
        foreign.json()["detail"] == "This endpoint serves one recipe and no releases."
        and "blue" not in foreign.text
    )
    few = replace(tenant("few", ACME), requests_per_minute=1)
    online = Answerer(RECIPE, LocalKit(None, "transformers"), filled.store.uri)
    limited = create_app(online, ServerConfig(tenants=(few,)))
    replies = send(limited, *[posted(ACME, ask)] * 3)
    assert sorted(r.status_code for r in replies) == [200, 429, 429]
    last = next(r for r in replies if r.status_code == 429)
    assert last.headers["retry-after"] == "60" and "1 requests a minute" in last.json()["detail"]
    everything = replace(RECIPE, question=tuple(s for s in RECIPE.question))
    assert not everything.searches_all()


def test_what_tenants_used_is_a_table_from_the_log(tmp_path):
    log = tmp_path / "serve.jsonl"
    lines = [
        {"event": "request", "method": "POST", "status": 200, "ms": 20.0, "tenant": "acme", "tokens": 9,
         "questions": 1},
        {"event": "request", "method": "POST", "status": 429, "ms": 1.0, "tenant": "acme"},
        {"event": "request", "method": "POST", "status": 400, "ms": 1.0},
        {"event": "request", "method": "GET", "status": 200, "ms": 1.0, "tenant": "acme"},
        {"event": "release r0001 answers now"},
    ]  # fmt: skip
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    acme, default = usage([log]).tenants
    assert (acme.tenant, acme.requests, acme.refused, acme.questions, acme.tokens) == ("acme", 2, 1, 1, 9)
    assert (default.tenant, default.failed, default.p99_ms) == ("default", 1, None)
    log.write_text("no json\n")
    with pytest.raises(DataError, match=r"serve.jsonl:1: expected a JSON object"):
        usage([log])
