"""Refresh periods: proposed by a model for a person to accept, or derived from how often replies changed."""

import asyncio
import json
import math
from typing import get_args

import pytest
import yaml
from checkout import ROOT, SUPPORT

from raypipe.api.cli.main import main
from raypipe.contrib.crag.api.kg_refresh import HELD, ChangeRate, change_rates
from raypipe.contrib.crag.graph_adapter import open_server
from raypipe.contrib.crag.language.example_bank import Domain
from raypipe.contrib.crag.references import GraphRef
from raypipe.contrib.crag.schema import TABLES
from raypipe.models.kit import LocalKit
from raypipe.store import Store
from raypipe.store.memo.cached import CallCounts, cached
from raypipe.store.memo.disk import StoreMemo, memo_versions, merge_memo
from raypipe.store.memo.memo import expired, period_of

MODELS = str(SUPPORT / "fake_models.yaml")
GRAMMAR = (ROOT / "conf/grammar/calls.lark").read_text("utf-8")
DAY = 86400.0
DOMAINS = get_args(Domain)


@pytest.fixture
def graphs(tmp_path, monkeypatch):
    """A graphs.yaml of its own: the one that ships."""
    monkeypatch.setenv("RAYPIPE_CONF", str(tmp_path))
    path = tmp_path / "graphs.yaml"
    path.write_text((ROOT / "conf/graphs.yaml").read_text())
    return path


def propose(*more, graph="crag-mock", model="llama-3-8b"):
    return main(["kg", "refresh", "--graph", graph, "--propose", model, "--models", MODELS, *more])


def test_a_proposal_is_shown_as_the_line_to_put_in_and_changes_nothing(graphs, capsys):
    before = graphs.read_text()
    assert propose() == 0
    shown = capsys.readouterr().out
    assert "to accept it, put into" in shown and all(d in shown for d in DOMAINS)
    assert propose("--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["now"] == yaml.safe_load(before)["crag-mock"]["refresh"] != said["proposed"]
    assert said["proposed"].keys() == set(DOMAINS)
    assert set(said["proposed"].values()) <= {"static", "daily", "live"}
    assert yaml.safe_load(shown.splitlines()[-1]) == {"refresh": said["proposed"]}
    assert graphs.read_text() == before


def test_every_table_that_holds_facts_of_a_domain_is_told_to_the_model():
    told = {t for tables in HELD.values() for t in tables}
    assert tuple(sorted(HELD)) == tuple(sorted(DOMAINS)) and told < TABLES.keys()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"graph": "world"}, "no server 'world'"),
        ({"graph": "crag-mok"}, "did you mean 'crag-mock'?"),
        ({"model": "bge-base-en-v1.5"}, "expected a generator"),
    ],
)
def test_what_cannot_propose_or_be_asked_is_refused(graphs, capsys, other, said):
    assert propose(**other) == 2
    assert said in capsys.readouterr().err


def pairs(n, changed, domain="movie", apart=DAY):
    """Replies to n requests in two periods, of which some differ."""
    return {(f"{domain} {i}", domain, apart): {1: "a", 2: "b" if i < changed else "a"} for i in range(n)}


@pytest.mark.parametrize(
    ("n", "changed", "period"),
    [
        (20, 10, 6_624),  # rate -ln(10.5 / 20.5) = .6690 a day; .05129 / .6690 of a day
        (20, 20, 1_193),  # every one: -ln(.5 / 20.5) = 3.714 a day
        (100, 0, 147_725),  # none of a hundred: at most 3 in a hundred days
        (19, 10, None),
    ],
)
def test_the_period_is_that_after_which_one_reply_in_twenty_has_changed(n, changed, period):
    assert change_rates(pairs(n, changed)) == {"movie": ChangeRate(n, changed, period)}


def test_what_changes_within_a_minute_is_live_and_domains_do_not_mix():
    found = change_rates(pairs(20, 20, "finance", 300.0) | pairs(30, 0))
    assert found["finance"].period == "live" and found["movie"].changed == 0


def test_a_reply_is_compared_with_the_one_of_the_period_before_it_that_was_fetched():
    texts = {(f"r{i}", "movie", DAY): {3: "a", 1: "a", 4: "b"} for i in range(10)}
    texts["s", "movie", DAY] = {9: "x"}
    period = -math.log(0.95) * 1.5 * DAY / -math.log(10.5 / 20.5)  # two days without a change, one with
    assert change_rates(texts) == {"movie": ChangeRate(20, 10, round(period))}


def test_a_key_of_before_domains_were_kept_is_still_read():
    assert period_of("abc@60.0*2") == ("abc", "", 60.0, 2)
    assert expired("abc@60.0*2", 180.0) and not expired("abc@60.0*2*movie", 179.0)


@pytest.mark.drill
@pytest.mark.slow
def test_the_command_derives_periods_from_the_replies_that_a_store_keeps(tmp_path, monkeypatch, capsys):
    """Twenty-five days: a film's revenue moves every day, an entry of a person never does."""
    monkeypatch.setenv("RAYPIPE_CONF", str(tmp_path))
    path = tmp_path / "graphs.yaml"
    path.write_text((ROOT / "conf/graphs.yaml").read_text())
    store = Store.create(str(tmp_path / "store"))
    refresh = {"movie": DAY, "music": DAY}
    ref = GraphRef("crag-mock", "http://x", "crag-mock-api-v5", "server", GRAMMAR, {}, refresh)
    now = [0.0]

    async def answer(route, body):
        if route == "/movie/get_movie_info":
            return [{"id": 1, "title": "Velora", "release_date": "1994-01-01", "revenue": now[0]}]
        return ["Larks"] if route.startswith("/music/search") else None

    class Stub(LocalKit):
        def data(self, of):
            return open_server(of, answer, self.embedder, lambda: 0.0)

    async def days():
        for day in range(25):
            now[0] = day * DAY + 1
            memo = StoreMemo(store.uri, memo_versions(store))
            kit = cached(Stub(None), memo, CallCounts(), clock=lambda: now[0])
            program = 'get_movie("velora")["revenue"]\nget_person("larks")["birth_place"]'
            await kit.data(ref).run(program, "03/05/2024, 23:18:31 PT")

    asyncio.run(days())
    merge_memo(store)
    command = ["kg", "refresh", "--graph", "crag-mock", "--observed", "--store", store.uri]
    assert main([*command, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["seen"]["movie"] == {"pairs": 24, "changed": 24}
    assert said["seen"]["music"]["changed"] == 0 and said["seen"]["music"]["pairs"] >= 24
    assert said["proposed"]["movie"] == round(-math.log(0.95) * DAY / -math.log(0.5 / 24.5))
    assert said["proposed"]["music"] > said["proposed"]["movie"]
    assert said["proposed"]["finance"] == said["now"]["finance"] == "live", "nothing of it is stored"
    assert path.read_text() == (ROOT / "conf/graphs.yaml").read_text()
    assert main(command) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "movie 24 of 24 changed" in shown
    assert f"refresh: {{movie: {said['proposed']['movie']}, music:" in shown
