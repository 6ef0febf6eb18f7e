"""Running programs over the small graph."""

import asyncio

import pytest
from smallgraph import ASKED, GRAMMAR, build

from raypipe.contrib.crag.execute import run
from raypipe.contrib.crag.language.parser import parser
from raypipe.text.moments import moment


@pytest.fixture(scope="session")
def parse():
    return parser(GRAMMAR)


@pytest.fixture(scope="session")
def graph():
    return build()


@pytest.fixture(scope="session")
def ask(graph, parse):
    """Runs a program and gives its lines' results."""

    def results(program: str, asked: str = ASKED, domain: str = ""):
        return asyncio.run(run(parse(program), graph, moment(asked), domain))

    return results


@pytest.fixture(scope="session")
def values(ask):
    """Runs a program that must not fail and gives the last line's values."""

    def last(program: str, asked: str = ASKED, domain: str = ""):
        found = ask(program, asked, domain)
        assert [r.fault for r in found] == [None] * len(found)
        return list(found[-1].values)

    return last
