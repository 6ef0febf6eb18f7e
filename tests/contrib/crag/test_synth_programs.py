"""The programs of invented questions of all domains give the gold answers, embedded and behind HTTP."""

import asyncio
import json
import runpy
from contextlib import aclosing

import pytest
from checkout import TESTS
from smallgraph import GRAMMAR

from raypipe.contrib.crag.client import ServerConnection
from raypipe.contrib.crag.execute import run
from raypipe.contrib.crag.graph import ServerBackend, open_folder
from raypipe.contrib.crag.language.parser import parser
from raypipe.contrib.crag.server import serve
from raypipe.contrib.world.write import write
from raypipe.text.moments import moment

parse = parser(GRAMMAR)
# What a question's rule makes of the values: the independent reading that the dataset itself is tested with.
answer = runpy.run_path(str(TESTS / "contrib/world/synth_programs.py"))["answer"]


def world(folder, questions):
    """Its graph, and its questions."""
    write(folder, questions, pages=1, seed=7, page_chars=1000)
    lines = (folder / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    return open_folder(folder), [json.loads(line) for line in lines]


def plain(text: str) -> str:
    return text.lower().strip("$%").replace(",", "")


@pytest.mark.drill
@pytest.mark.slow
def test_every_answerable_question_and_every_false_premise_gets_its_gold(tmp_path):
    graph, questions = world(tmp_path, 300)
    wrong, done = [], set()
    for q in questions:
        if not q["kg_program"]:
            continue
        results = asyncio.run(run(parse(q["kg_program"]), graph, moment(q["query_time"])))
        if any(r.fault for r in results):
            wrong.append((q["template"], results))
            continue
        lines = [list(r.values) for r in results]
        found = answer(q["kg_rule"], q["kg_program"], lines, q["query_time"])
        if plain(found) not in {plain(a) for a in (q["answer"], *q["alt_ans"])}:
            wrong.append((q["template"], found, q["answer"]))
        done.add((q["domain"], q["premise_false"]))
    assert wrong == []
    assert len(done) == 10, "five domains, true and false premises"


@pytest.mark.slow
def test_what_a_server_gives_equals_the_tables_it_serves(tmp_path):
    graph, questions = world(tmp_path, 24)

    async def go(url):
        async with aclosing(ServerConnection(url)) as server:
            for q in [q for q in questions if q["kg_program"]]:
                program, now = parse(q["kg_program"]), moment(q["query_time"])
                here, there = (
                    await run(program, graph, now),
                    await run(program, ServerBackend(server.ask), now),
                )
                assert [r.values for r in there] == [r.values for r in here], q["kg_program"]

    with serve(graph.tables) as url:
        asyncio.run(go(url))
