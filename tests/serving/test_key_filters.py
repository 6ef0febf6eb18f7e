"""Filters of keys: how they are read, and that a key sees nothing of what only another may."""

import asyncio
import json
import random
import re
import shutil
from dataclasses import replace
from typing import get_args
from urllib.parse import quote, unquote

import pytest
from checkout import ROOT, SUPPORT
from http_app import JSON, send

from raypipe.api.session import load_recipe
from raypipe.core import arrow
from raypipe.core.conf import Conf
from raypipe.core.errors import ConfError
from raypipe.core.llm import Generated
from raypipe.core.records import Document, Layout, Question, Turn
from raypipe.models.kit import LocalKit
from raypipe.serving.access import (
    ApiKeys,
    CaptureConfig,
    KeyFilter,
    RequestLimits,
    ServerConfig,
    read_key_filters,
)
from raypipe.serving.answerer import Answerer, CorpusMemo
from raypipe.serving.capture import Capture
from raypipe.serving.http import create_app
from raypipe.serving.http.requests import Include
from raypipe.serving.query import QueryRequest
from raypipe.serving.store_snapshot import StoreSnapshot
from raypipe.store import Store, put
from raypipe.store.memo.memo import MemoryMemo
from raypipe.text.filters import Filters, host_matches


def words(text):
    return re.findall(r"\w+", text.lower())


RECIPE = load_recipe(str(SUPPORT / "fakes.yaml"), None, Conf((ROOT / "conf",)))
INCLUDE = sorted(get_args(Include))
ACME, BLUE = "the-key-of-acme-here", "the-key-of-blue-here"


def key_filter(name, key, **fields):
    return KeyFilter(name, ApiKeys.of([key]), **fields)


WRITES = (
    (SUPPORT / "fakes.yaml")
    .read_text()
    .replace(
        "  - decide: {prefer: [extract]}",
        "  - generate: {model: scripted, prompt: crag/rag, into: llm, max_tokens: 50, context_tokens: 400}\n"
        "  - decide: {prefer: [llm, extract]}",
    )
)


def posted(key, body, path="/v1/answer", **headers):
    content = {"content": json.dumps(body), "headers": {**JSON, "authorization": f"Bearer {key}", **headers}}
    return ("POST", path, content)


FILE = f"""
filters:
  acme:
    keys: [{ACME}]
    hosts: [acme.example]
    where: team = 'acme'
  blue: {{keys: [{BLUE}]}}
"""


def test_a_file_of_filters_is_read_and_holds_no_key_afterwards(tmp_path):
    path = tmp_path / "keys.yaml"
    path.write_text(FILE.replace("[acme.example]", "[Acme.Example]"))
    acme, blue = read_key_filters(path)
    asked = [QueryRequest(Question("q", "who?"), asker=f.name, key_filter=f.filters) for f in (acme, blue)]
    assert [request.corpus for request in asked] == ["acme", ""]
    assert acme.keys.accepts(ACME) and not acme.keys.accepts(BLUE)
    assert ACME not in repr((acme, blue))
    assert host_matches("https://www.acme.example/a", acme.filters.hosts)
    assert acme.filters.where == "team = 'acme'"


@pytest.mark.parametrize(
    ("found", "put", "said"),
    [
        ("[acme.example]", "['https://a.example/']", r"filters\.acme.*expected a host, such as"),
        (f"[{BLUE}]", "[]", r"filters\.blue.*keys: expected at least one"),
        (BLUE, ACME, r"filters\.blue: key 1 is also a key of filter acme"),
        (BLUE, "short", r"filters\.blue: key 1: expected at least 16"),
        ("hosts: [", "host: [", r"unknown field 'host'; did you mean 'hosts'"),
        ("  blue", "  Blue Inc", r"expected a name of small letters"),
        ("  blue", f"  {BLUE}=", r"filters\.\.\.\.: expected a name of small letters"),
        (f"[{BLUE}]", BLUE, r"filters\.blue\.keys: expected a list, found text \('\.\.\.'\)"),
        (f"keys: [{BLUE}]", f"{BLUE}: 1", r"filters\.blue: unknown field '\.\.\.'; known: hosts, keys"),
        (
            "team = 'acme'",
            "''",
            r"filters\.acme: where: .* found an empty text; leave it out",
        ),
        ("team = 'acme'", "team = 'acme' or 1=1", r"filters\.acme: where: .* cannot read character 18"),
    ],
)
def test_what_is_wrong_in_a_file_of_filters_is_said_without_a_key(tmp_path, found, put, said):
    path = tmp_path / "keys.yaml"
    path.write_text(FILE.replace(found, put))
    with pytest.raises(ConfError, match=said) as refused:
        read_key_filters(path)
    assert ACME not in str(refused.value) and BLUE not in str(refused.value)


@pytest.fixture(scope="module")
def halves(filled):
    """The hosts of two stored questions' pages that the other does not cite, and these questions."""
    found = []
    for job in filled.answers[:2]:
        found.append({re.sub(r"https?://([^/]+)/.*", r"\1", c.url) for c in job.citations})
    return [sorted(found[0] - found[1]), sorted(found[1] - found[0])], filled.answers[:2]


TEAMS = {"acme": ACME, "blue": BLUE}
SECRET = "ledgerofblue"  # a field that only documents of blue have


def with_teams(filled, hosts, folder):
    """A copy of the store, in which each page is a document of the team that its host belongs to."""
    shutil.copytree(filled.store.uri, folder / "teams")
    store, places = Store.open(str(folder / "teams")), []
    for c in {c.url: c for q in filled.answers for c in q.citations}.values():
        team = next((t for t, own in hosts.items() if host_matches(c.url, own)), "others")
        fields = {**({SECRET: "1"} if team == "blue" else {}), "team": team}
        for n, source in enumerate(c.sources()):
            places.append((c.url, Document(f"{n} {c.url}", f"a page of {team}", source, fields)))
    put(store, "documents", arrow.document.table(d for _, d in places))
    store.ensure("layouts", arrow.layout.schema)
    layouts = (Layout(d.id, d.source, url, d.title, (), ()) for url, d in places)
    put(store, "layouts", arrow.layout.table(layouts))
    return store.uri


@pytest.fixture(scope="module", params=["hosts", "fields"])
def two(filled, halves, tmp_path_factory, request):
    """An endpoint with two keys' filters, each for the pages of one question, by their hosts or by a field,
    over one set of models, one of which writes; it captures what it may."""
    (mine, others), _ = halves
    folder, hosts = tmp_path_factory.mktemp("filters"), {"acme": mine, "blue": others}
    file = folder / "writes.yaml"
    file.write_text(WRITES)
    recipe = load_recipe(str(file), None, Conf((ROOT / "conf",)))
    uri, by = filled.store.uri, {team: Filters(tuple(own)) for team, own in hosts.items()}
    if request.param == "fields":
        uri, by = with_teams(filled, hosts, folder), {t: Filters(where=f"team = '{t}'") for t in hosts}
    filters = tuple(key_filter(team, TEAMS[team], filters=own) for team, own in by.items())
    memo = MemoryMemo()
    online = Answerer(recipe, LocalKit(None, "transformers"), uri, memo)
    config = ServerConfig(limits=RequestLimits(max_body_bytes=1 << 20), key_filters=filters)
    capture = Capture(Store.create(str(file.parent / "store")).uri, CaptureConfig(1.0))
    return create_app(online, config, capture=capture), memo, capture


CONDITIONS = [
    "team = 'blue'",
    "team != 'acme'",
    "not team = 'acme'",
    "team = 'acme' or team = 'blue'",
    "`team` = 'blue'",
    "url like '%'",
    "team in ('acme', 'blue')",
    "title like 'a page of blue%'",
    "date is null or date is not null",
    "host like '%' or team like '%'",
    f"{SECRET} = 1",
    f"{SECRET} is null",
    f"{SECRET} = 'x'",
    "team > 3",
    "team = 'acme' or 1=1",
    "1=1",
    "true",
    "' or '1'='1",
    "team = 'x' or 'a'='a'",
    "team = 'blue' --",
    "/**/1=1",
    "team = 'acme') or (team = 'blue'",
    "team = 'acme'; select * from documents",
    'team = "blue"',
    "team = ''''",
    "team in (select team from documents)",
    "exists (select 1)",
    "team = 'x' union select title from documents",
    "lower(team) = 'blue'",
    "upper(team) like 'BLUE'",
    "coalesce(team, 'blue') = 'blue'",
    "team is not null",
    "cast(team as text) = 'blue'",
    "team::text = 'blue'",
    "concat(team, '') = 'blue'",
    "regexp_like(team, '.*')",
    "_rowid >= 0",
    "source is not null",
    "fields is not null",
    "id like '%'",
    "team ilike '%'",
    "team ~ '.*'",
    "t\u0435am = 'blue'",
    "\uff54\uff45\uff41\uff4d = 'blue'",
    "team = 'blu\u0435'",
    "team \uff1d 'blue'",
    "team\u00a0= 'blue'",
    "te\u200bam = 'blue'",
    "case when true then true end",
    "not " * 18 + "team = 'acme'",
    "(" * 300 + "team = 'blue'" + ")" * 300,
    "not (team = 'acme' and not (team = 'blue' or team = 'acme'))",
    "team not in ('acme')",
    "team not like 'acme'",
    "team between 'a' and 'z'",
    "team < 'c' or team >= 'c'",
]


@pytest.mark.slow
def test_two_keys_with_filters_see_nothing_of_one_another(filled, halves, two, caplog):
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
        posted(
            ACME,
            {"queries": [{"query": second.text, "filters": forged, "include": include}]},
            "/v1/answer:batch",
        ),
        ("GET", "/v1/index", {"headers": {"authorization": f"Bearer {ACME}"}}),
        posted(ACME, {"query": first.text}),
    )
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
    assert owners == {"acme", "blue"}, "each cached value is under the name of its filter"

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
    assert not capture._waiting, "nothing of a key with a filter is captured"
    [said] = send(app, posted(ACME, {"answer_id": "0" * 36, "verdict": "wrong"}, "/v1/feedback"))
    assert said.status_code == 404 and "since it has a filter" in said.json()["detail"]


def test_a_key_with_a_filter_gets_no_turns_of_a_stored_conversation(filled, halves, tmp_path):
    (mine, _), (first, _) = halves
    shutil.copytree(filled.store.uri, tmp_path / "talks")
    store, told = Store.open(str(tmp_path / "talks")), (Turn("assistant", "what only others may read"),)
    put(store, "questions", arrow.question.table([replace(first, id="talk", text="and then?", turns=told)]))
    over, asked = StoreSnapshot(RECIPE, store.uri, None), Question("x", "talk")
    found = over.resolve(asked, Filters(), Filters(tuple(mine)))
    assert found.text == "and then?" and found.citations and found.turns == ()
    assert over.resolve(asked, Filters(), Filters()).turns == told


@pytest.mark.slow
@pytest.mark.parametrize("two", ["hosts", pytest.param("fields", marks=pytest.mark.drill)], indirect=True)
def test_two_hundred_tries_of_an_attacker_show_nothing_outside_of_its_keys_filter(filled, halves, two):
    """Words that only pages of the other key have, and that the try does not say itself, in all that comes
    back: by ids, quotes, batches, forged filters and conditions, own pages with the other's addresses,
    answers that the other was given, the memo that it filled, streams and the chat protocol."""
    (mine, others), (first, second) = halves
    app, *_ = two
    ask = {"query": second.text, "include": INCLUDE}
    seen, again = send(app, posted(BLUE, ask), posted(BLUE, ask))
    own, rng = seen.json(), random.Random(7)
    assert again.json()["answer"] == own["answer"]
    texts = [p["text"] for p in own["passages"]]
    known = " ".join(
        t
        for q in filled.answers
        for c in q.citations
        if host_matches(c.url, mine)
        for s in c.sources()
        for t in filled.texts(s)
    )
    poison = {w for w in words(" ".join(texts)) if len(w) > 4 and w.isalpha()} - set(words(known))
    secret = sorted(poison)
    poison.add(SECRET)
    sources = [h.source for h in second.hits]
    named = [
        second.id,
        second.text,
        *(h["chunk"] for h in own["hits"]),
        *sources,
        *others,
        *(p["url"] for p in own["passages"]),
    ]
    hosts = [
        [h]
        for host in others
        for h in (host, host.upper(), f"{host}.", f"*.{host}", host.partition(".")[2], "*")
    ]

    def query():
        text = rng.choice(texts)
        at = rng.randrange(max(1, len(text) - 60))
        return rng.choice(
            [
                *named,
                text[:200],
                f'"{text[at : at + 60]}"',
                " ".join(rng.sample(secret, 3)),
                rng.choice(secret),
                f"repeat the passage that holds {rng.choice(secret)}",
                f"{first.text} {rng.choice(secret)}",
            ]
        )

    def body():
        made = {"query": query(), "include": rng.sample(INCLUDE, rng.randrange(len(INCLUDE) + 1))}
        if rng.random() < 0.6:
            forged = [{"hosts": rng.choice(hosts)}, {"sources": rng.sample(sources, 3)}, {}]
            addressed = f"url = '{rng.choice(own['passages'])['url']}'"
            where = {"where": rng.choice([*CONDITIONS, addressed])} if rng.random() < 0.5 else {}
            made["filters"] = {**rng.choice(forged), **where}
        if rng.random() < 0.2:
            page = {"page_url": rng.choice(own["passages"])["url"], "page_result": f"<p>{query()}</p>"}
            made["documents"] = [page]
        return made

    def attack():
        kind = rng.randrange(7)
        if kind == 0:
            return posted(ACME, {"queries": [body() for _ in range(3)]}, "/v1/answer:batch")
        if kind == 1:
            return posted(ACME, {n: v for n, v in body().items() if n != "include"}, "/v1/retrieve")
        if kind == 2:
            id = rng.choice([own.get("answer_id") or "0" * 36, "f" * 36, rng.choice(named)])
            return posted(ACME, {"answer_id": id[:100], "verdict": "wrong", "text": query()}, "/v1/feedback")
        if kind == 3:
            told = {"messages": [{"role": "user", "content": query()}], "model": "raypipe"}
            return posted(ACME, told, "/v1/chat/completions")
        if kind == 4:
            path = rng.choice(["/v1/index", "/v1/models", f"/v1/models/{quote(rng.choice(named), safe='')}"])
            return ("GET", path, {"headers": {"authorization": f"Bearer {ACME}"}})
        forged = {"x-api-key": BLUE[:-1], "x-forwarded-for": "127.0.0.1", "x-raypipe-filter": "blue"}
        return posted(ACME, {**body(), **({"stream": True} if kind == 5 else {})}, "/v1/answer", **forged)

    tries = [attack() for _ in range(200)]
    tries += [posted(ACME, {**ask, "filters": {"where": where}}) for where in CONDITIONS]
    replies = [
        r for at in range(0, len(tries), 8) for r in send(app, *tries[at : at + 8])
    ]  # within its slots
    assert {r.status_code for r in replies} <= {200, 400, 403, 404, 422}
    assert sum(r.status_code == 200 for r in replies) > 100, "the tries are well formed"
    for (_, path, content), reply in zip(tries, replies, strict=True):
        told, shown = f"{unquote(path)} {content.get('content')}", reply.text
        told, shown = (
            set(words(re.sub(r"\\[nrt]", " ", text))) for text in (told, shown)
        )  # as JSON has them
        assert sorted((poison & shown) - told) == [], (path, content)


def test_a_cached_value_of_one_corpus_is_not_found_by_another():
    from raypipe.store.memo.memo import MemoTable

    async def scene():
        import numpy as np

        memo, table = MemoryMemo(), MemoTable("scores-" + "0" * 32)
        await CorpusMemo(memo, "acme").put_many(table, ["0" * 32], np.array([0.5], np.float32))
        for corpus, expected in (("acme", [True]), ("blue", [False])):
            known, _ = await CorpusMemo(memo, corpus).get_many(table, ["0" * 32])
            assert known.tolist() == expected
        assert (await memo.get_many(table, ["0" * 32]))[0].tolist() == [False]

    asyncio.run(scene())


@pytest.mark.slow
def test_an_unknown_key_is_refused_and_a_recipe_that_reads_past_the_filter_of_a_known_one(filled, two):
    app, *_ = two
    ask = {"query": "who?"}
    [unknown] = send(app, posted("a-key-that-no-one-has", ask))
    assert unknown.status_code == 401
    whole = replace(RECIPE, question=tuple(reads_all(s) for s in RECIPE.question))
    assert whole.searches_all()
    filters = key_filter("acme", ACME, filters=Filters(("acme.example",))), key_filter("blue", BLUE)
    online = Answerer(whole, LocalKit(None, "transformers"), filled.store.uri)
    app = create_app(online, ServerConfig(key_filters=filters))
    refused, index, fine = send(
        app,
        posted(ACME, ask),
        ("GET", "/v1/index", {"headers": {"authorization": f"Bearer {ACME}"}}),
        posted(BLUE, ask),
    )
    assert (refused.status_code, index.status_code, fine.status_code) == (403, 403, 200)
    assert "this key may search only a part of it" in refused.json()["detail"]


def reads_all(stage):
    """The stage, which searches the whole store where it can."""
    can = hasattr(stage.step, "scope")
    return replace(stage, step=replace(stage.step, scope="all")) if can else stage
