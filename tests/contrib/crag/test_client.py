"""A graph behind HTTP gives what the same tables give embedded; a broken server is a line's fault."""

import asyncio
import json
import os
import time
from contextlib import aclosing
from pathlib import Path

import httpx
import minikg
import pytest
from smallgraph import ASKED, GRAMMAR, build

from raypipe.contrib.crag.calls.sports import requested_dates
from raypipe.contrib.crag.client import HttpLimits, ServerConnection
from raypipe.contrib.crag.execute import run
from raypipe.contrib.crag.graph import FolderBackend, GraphFault, ServerBackend
from raypipe.contrib.crag.language.parser import parser
from raypipe.contrib.crag.language.time_words import when
from raypipe.contrib.crag.link import Linker
from raypipe.contrib.crag.server import serve
from raypipe.text.moments import moment

parse = parser(GRAMMAR)
QUICK = HttpLimits(timeout_s=0.5, tries=3, wait_s=0.001, most_bytes=1000, at_once=4)


def remote(url, program, asked=ASKED, limits=None, transport=None, count=None):
    async def go():
        async with aclosing(ServerConnection(url, limits, transport)) as server:

            async def counted(path, body):
                if count is not None:
                    count.append(path)
                return await server.ask(path, body)

            return await run(parse(program), ServerBackend(counted), moment(asked))

    return asyncio.run(go())


PROGRAMS = (
    'get_movie("greater meaning of water")["release_date"]',
    'get_movie("AMÉLIE")["length"]',
    'get_movie_person_crew(None, "walt becker", eq(job, Director))\nsort(None, -year)["movie_name"][:3]',
    'get_movie_person_cast(None, ["Zak Santiago", "Brenda Crichlow"], None)["len"]',
    'ALL get_movie_person_cast("small town ecstasy", None)\nsort(None, order)["name"]',
    'get_movie_person_oscar(None, None, [eq(year, 2012), eq(category, "best actor")])["name"]',
    "get_movie_person_oscar(None, None, 2025)[name]",
    "get_movie_person_crew(amélie, None, eq(job, director))[name]\nget_person(*)[birthday]",
    "get_stock_market_cap(microsoft)\nget_stock_pe_ratio(MSFT)\nget_stock_eps(us steel)",
    "ALL get_stock_price(msft, '2024-02-01', today)\nsort(ge(close, open), time)[time]",
    "get_stock_market_cap('$msft')\nget_stock_market_cap('ticker MSFT')\nget_stock_pe_ratio('NYSE: X')",
    "get_stock_price(x, latest)[open]\nget_stock_price(x, yesterday)[close]",
    "AVG(get_stock_price(x, 2024-02)[close])",
    "ALL get_stock_dividend(microsoft)\nsort(ge(date, 2024), -date)[date]",
    "ALL get_person('the larks')[music]\nALL get_song(*)\nsort(None, -release_date)[name]",
    "ALL get_person('the larks')[members]\nget_person('the larks')[birth_place]",
    "get_grammy_person('the larks')[award_count]",
    "get_grammy_song('first song')\nget_grammy_year(2001)[best_song]\nget_grammy_year(1901)[best_song]",
    "get_nba_on_date(lakers, yesterday)[GF]\nALL get_nba_on_date('chicago bulls', 2024)[result]",
    "get_nba_on_date(lakers, 2024-03-05)[GF]\nget_nba_on_date(lakers, 'last time')[opponent]",
    "get_soccer_last_game('nottingham forest')[date]\nget_soccer_next_game(\"Nott'ham Forest\")[opponent]",
    "ALL get_soccer_on_date('nottingham forest', 2024-03)[date]",
    "get_open('florida city')[mayor]\nget_open(*)[birth_place]",
    "get_open(nowhere)[x]\nget_movie(nothing)[title]\nget_song(nothing)",
)


@pytest.fixture(scope="module")
def served():
    folder = build()
    for table, column in (
        ("movie", "title"),
        ("person", "name"),
        ("company", "name"),
        ("artist", "name"),
        ("song", "name"),
        ("entity", "name"),
    ):
        # Its searches rate words by how rare they are: among a handful of names none is.
        folder.tables.insert(
            table, [{column: f"filler{i}", "id": 1000 + i, "ticker": f"F{i}"} for i in range(200)]
        )
    # The original counts every award there is; one from the future would be counted too.
    folder.tables._db.execute("DELETE FROM grammy WHERE year > 2024")
    folder.linker.forget()
    with serve(folder.tables) as url:
        yield folder, url


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_gives_the_same_behind_http_as_on_embedded_tables(served, program):
    folder, url = served
    here = asyncio.run(run(parse(program), folder, moment(ASKED)))
    there = remote(url, program)
    assert [r.fault for r in there] == [r.fault for r in here] == [None] * len(here)
    assert [r.values for r in there] == [r.values for r in here]


@pytest.mark.parametrize(
    "program",
    [
        "get_stock_dividend(x)[value]",
        "get_stock_eps('$x')",
        "get_nba_on_date(lakers, 2024-01-01)[result]",
        "get_soccer_on_date(gunners, 2024-01-01)[result]",
    ],
)
def test_a_company_or_a_team_of_which_there_is_nothing_is_known_nevertheless(served, program):
    [result] = remote(served[1], program)
    assert (result.fault, result.unknown, result.values) == (None, (), ())


def test_an_entity_is_fetched_once_a_program(served):
    asked = []
    remote(served[1], "get_song('first song')[author]\nget_song('first song')[release_date]", count=asked)
    assert asked.count("/music/get_song_author") == 1


def answering(reply):
    """A server made of a function: request number -> reply."""
    calls = []

    async def handle(request):
        calls.append(request.url.path)
        found = reply(len(calls))
        if isinstance(found, Exception):
            raise found
        return found

    return httpx.MockTransport(handle), calls


def fault_of(transport, limits=QUICK):
    first, second = remote(
        "http://graph", "get_open('florida city')[mayor]\nNone", limits=limits, transport=transport
    )
    assert second.fault is None
    return first


@pytest.mark.parametrize(
    ("reply", "reason", "transient", "tries"),
    [
        (lambda n: httpx.ConnectError("refused"), "unreachable", True, 3),
        (lambda n: httpx.ReadTimeout("slow"), "unreachable", True, 3),
        (lambda n: httpx.Response(503), "unreachable", True, 3),
        (lambda n: httpx.Response(500, text="Internal Server Error"), "unreachable", True, 3),
        (lambda n: httpx.Response(422, json={"detail": []}), "bad_request", False, 1),
        (lambda n: httpx.Response(404, json={"detail": "Not Found"}), "bad_request", False, 1),
        (lambda n: httpx.Response(200, text="<html>hello"), "garbage", True, 1),
        (lambda n: httpx.Response(200, json=[1, 2]), "garbage", True, 1),
        (lambda n: httpx.Response(200, json={"result": {"a": 1}}), "garbage", True, 1),
        (lambda n: httpx.Response(200, text="[" * 900), "garbage", True, 1),
        (lambda n: httpx.Response(200, text="x" * 5000), "too_large", False, 1),
    ],
)
def test_a_server_that_is_down_slow_or_talks_garbage_is_a_fault_of_the_line(reply, reason, transient, tries):
    transport, calls = answering(reply)
    result = fault_of(transport)
    assert (result.fault.reason, result.fault.transient, len(calls)) == (reason, transient, tries)
    assert result.values == ()


def test_a_request_that_fails_once_is_tried_again():
    def reply(n):
        return httpx.Response(503) if n == 1 else httpx.Response(200, json={"result": []})

    transport, calls = answering(reply)
    assert fault_of(transport).fault is None
    assert len(calls) == 2


def test_a_server_that_asks_for_a_pause_gets_it():
    def reply(n):
        if n == 1:
            return httpx.Response(429, headers={"Retry-After": "0.3"})
        return httpx.Response(200, json={"result": []})

    transport, _ = answering(reply)
    started = time.perf_counter()
    assert fault_of(transport).fault is None
    assert time.perf_counter() - started >= 0.3


def test_a_server_that_never_answers_ends_with_its_time_limit():
    async def handle(request):
        await asyncio.sleep(30)

    started = time.perf_counter()
    result = fault_of(httpx.MockTransport(handle), HttpLimits(timeout_s=0.1, tries=2, wait_s=0.01))
    assert (result.fault.reason, result.fault.transient) == ("unreachable", True)
    assert time.perf_counter() - started < 2


def test_no_server_at_all_is_a_transient_fault():
    result = remote("http://127.0.0.1:9", "get_open(x)[y]", limits=QUICK)[0]
    assert (result.fault.reason, result.fault.transient) == ("unreachable", True)


def test_a_year_outside_the_range_is_not_there_and_no_fault():
    transport, _ = answering(lambda n: httpx.Response(500, text="Internal Server Error"))
    result = remote(
        "http://graph", "get_movie_person_oscar(None, None, 1850)[name]", limits=QUICK, transport=transport
    )[0]
    assert (result.fault, result.values) == (None, ())


def test_requests_go_out_side_by_side_but_not_more_than_allowed():
    under_way, most = 0, 0

    async def handle(request):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.01)
        under_way -= 1
        body = json.loads(request.content)
        if request.url.path == "/movie/get_person_info":
            return httpx.Response(
                200, json={"result": [{"id": 1, "name": "A", "acted_movies": list(range(20))}]}
            )
        film = {"id": body["query"], "title": f"T{body['query']}", "cast": [{"id": 1, "name": "A"}]}
        return httpx.Response(200, json={"result": film})

    result = remote(
        "http://graph",
        "get_movie_person_cast(None, A)[len]",
        limits=QUICK,
        transport=httpx.MockTransport(handle),
    )[0]
    assert result.values == (20,)
    assert most == QUICK.at_once


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("yesterday", ["2024-03-04"]),
        ("2024-02", ["2024-02"]),
        ("last week", ["2024-02", "2024-03"]),
        ("2023", ["2023"]),
        ("last time", ["2024", "2023"]),
        ("next game", ["2024", "2025"]),
    ],
)
def test_games_are_asked_for_in_few_requests(words, expected):
    now = moment(ASKED)
    assert requested_dates(when(words, now), now) == expected


@pytest.mark.skipif("RAYPIPE_DATA" not in os.environ, reason="RAYPIPE_DATA is not set: no small real graph")
def test_real_entities_answer_behind_http_and_embedded_alike():
    tables = minikg.read(Path(os.environ["RAYPIPE_DATA"]) / "crag_mock_api" / "cragkg_mini.tar.gz")
    folder = FolderBackend(tables, Linker(tables))
    program = "\n".join(
        [
            'get_movie("Rings")["release_date"]',
            'get_stock_price("meta", "2024-02-21", "2024-02-21")["close"]',
            'get_stock_dividend("META")["value"]',
            'get_stock_pe_ratio("META")',
            'get_song("i can feel it")["author"]',
            'get_grammy_year(1998)["best_song"]',
            'get_soccer_on_date("Everton", "2024-03")["opponent"]',
            'get_nba_on_date("bulls", "2022-10-11")["GF"]',
            'get_open("florida city, florida")["name"]',
        ]
    )
    here = asyncio.run(run(parse(program), folder, moment("03/15/2024, 10:00:00 PT")))
    with serve(tables) as url:
        there = remote(url, program, "03/15/2024, 10:00:00 PT")
    assert [r.values for r in there] == [r.values for r in here]
    assert [len(r.values) for r in there] == [1] * 9, [r.fault for r in there]


def test_a_request_of_ours_that_is_wrong_raises_what_callers_expect():
    async def go():
        transport, _ = answering(lambda n: httpx.Response(422))
        async with aclosing(ServerConnection("http://graph", QUICK, transport)) as server:
            with pytest.raises(GraphFault, match="status 422"):
                await server.ask("/open/get_entity", {})

    asyncio.run(go())
