"""What prompts show a model must be so: every example of calls parses and runs on the small graph."""

import asyncio
import re
from pathlib import Path

import pytest
import yaml
from smallgraph import ASKED

from raypipe.graph.execute import run
from raypipe.text.program import Bad, print_program
from raypipe.text.times import moment

PROMPTS = Path(__file__).parents[2] / "conf/prompts/db3"
DOMAINS = ("movie", "finance", "music", "sports", "open")
_EXAMPLE = re.compile(r"Query: (?P<query>[^{\n]+)\nCalls:\n(?P<calls>(?:(?!Query:|Now is|\n).+\n)+)")


def examples(domain):
    text = yaml.safe_load((PROMPTS / f"calls-{domain}.yaml").read_text("utf-8"))["user"]
    return [(m["query"], m["calls"].strip()) for m in _EXAMPLE.finditer(text)]


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_domain_has_eight_examples_or_more_and_one_that_no_call_fits(domain):
    found = examples(domain)
    assert len({query for query, _ in found}) == len(found) >= 9
    assert [calls for _, calls in found].count("None") == 1


@pytest.mark.parametrize(
    ("domain", "query", "calls"), [(d, *example) for d in DOMAINS for example in examples(d)]
)
def test_every_example_of_a_prompt_parses_runs_and_finds_something(graph, parse, domain, query, calls):
    program = parse(calls)
    assert not [line for line in program.lines if isinstance(line, Bad)]
    assert parse(print_program(program)) == program
    results = asyncio.run(run(program, graph, moment(ASKED), domain))
    assert [r.fault for r in results] == [None] * len(results)
    assert not [name for r in results for name in r.unknown]
    assert calls == "None" or (results[-1].values and results[-1].sentences)


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_time_of_asking_is_told_where_calls_depend_on_it(domain):
    variables = yaml.safe_load((PROMPTS / f"calls-{domain}.yaml").read_text("utf-8"))["variables"]
    assert ("asked_at" in variables) == (domain in ("finance", "sports"))
