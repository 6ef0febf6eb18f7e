"""Names of a server's graph that stand in a question: found by its searches, by few requests."""

import asyncio
from contextlib import aclosing

import pytest
from smallgraph import ASKED, GRAMMAR, build

from raypipe.contrib.crag.client import ServerConnection
from raypipe.contrib.crag.graph import GraphFault, ServerBackend
from raypipe.contrib.crag.graph_adapter import find_mentions, open_server
from raypipe.contrib.crag.records import MOST_SEARCHES
from raypipe.contrib.crag.references import GraphRef
from raypipe.contrib.crag.server import serve
from raypipe.core.records import Fault
from raypipe.models.kit import LocalKit
from raypipe.text.moments import moment

REF = GraphRef("small", "", "small@1", "server", GRAMMAR)


@pytest.fixture(scope="module")
def seen():
    """text -> the names in it, as (kind, name), and how many requests that took."""

    def of(url, text):
        sent = []

        async def go():
            async with aclosing(ServerConnection(url)) as server:

                async def counted(path, body):
                    sent.append(path)
                    return await server.ask(path, body)

                return await find_mentions(ServerBackend(counted), text, moment(ASKED))

        found = asyncio.run(go())
        assert [text[slice(*m.span)] for m in found] == sorted(
            (text[slice(*m.span)] for m in found), key=text.index
        )
        return {(kind, name) for m in found for kind, name in m.names.items()}, len(sent)

    tables = build().tables
    # Among two companies no word is rare enough to count.
    tables.insert("company", [{"ticker": t, "name": f"{t} Inc."} for t in ("AAA", "BBB", "CCC", "DDD")])
    with serve(tables) as url:
        yield lambda text: of(url, text)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("when did the maze runner come out?", {("movie", "The Maze Runner")}),
        ("when did amélie come out?", {("movie", "Amélie")}),
        ("which films did walt becker direct?", {("person", "Walt Becker")}),
        ("what is the population of florida city?", {("entity", "Florida City")}),
        ("who did the lakers play yesterday?", {("nba", "Los Angeles Lakers")}),
        ("did nott'ham forest win last week?", {("soccer", "Nott'ham Forest")}),
        ("did nottingham forest win last week?", {("soccer", "Nott'ham Forest")}),
        ("did the gunners win last week?", {("soccer", "Arsenal")}),
        ("when does sevilla play next?", {("soccer", "Sevilla")}),
        ("What did MSFT close at?", {("company", "MSFT")}),
        ("how did $bbb do yesterday?", {("company", "BBB")}),
        ("who runs the company with the ticker DDD?", {("company", "DDD")}),
        ("which has the larger market cap, aaa or ccc?", {("company", "AAA"), ("company", "CCC")}),
        ("which ZZZ is quite another?", set()),
        ("is it raining?", set()),
    ],
)
def test_the_names_in_a_question_are_found_by_what_the_searches_give(seen, text, names):
    found, requests = seen(text)
    assert names <= found and bool(found) == bool(names), found
    assert requests <= MOST_SEARCHES


@pytest.mark.parametrize("written", ["Microsoft Corporation Common Stock", "microsoft"])
def test_a_company_is_found_with_its_ticker_and_without_its_legal_form(seen, written):
    found, requests = seen(f"what did {written} close at?")
    assert found == {("company", "MSFT")} and requests <= MOST_SEARCHES


def test_a_server_that_is_down_and_a_moment_that_is_none_are_faults_of_their_text():
    async def down(path, body):
        raise GraphFault("unreachable", "no server", transient=True)

    graph = open_server(REF, down, LocalKit(None).embedder, lambda: 0.0)
    first, second = asyncio.run(graph.mentions(["who?", "when?"], [ASKED, "soon"]))
    assert first == Fault("match_calls", "unreachable", "no server", True)
    assert (second.reason, second.transient) == ("bad_time", False)
