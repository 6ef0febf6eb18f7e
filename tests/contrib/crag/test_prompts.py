"""What prompts show a model must be so: every example of calls parses and runs on the small graph."""

import asyncio
import json
import re

import jsonschema
import pytest
import yaml
from checkout import ROOT
from smallgraph import ASKED

from raypipe.contrib.crag.execute import run
from raypipe.contrib.crag.language.answer_rules import RULES, apply_rule
from raypipe.contrib.crag.language.function_calls import (
    FUNCTIONS,
    MOST_CALLS,
    MOST_CONDITIONS,
    OPS,
    TAKES,
    program_of,
)
from raypipe.contrib.crag.language.program import Bad, print_program
from raypipe.core.llm import JsonSchema
from raypipe.models.constraint import longest_reply
from raypipe.text.moments import moment

PROMPTS = ROOT / "conf/prompts/db3"
SCHEMA = PROMPTS.parents[1] / "schemas/functions.yaml"
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


_FUNCTIONS = re.compile(r"Question: (?P<query>[^{\n]+)\n(?P<reply>\{.+\})\n")


def function_examples(domain):
    path = PROMPTS.parent / "weknow" / f"calls-{domain}.yaml"
    text = yaml.safe_load(path.read_text("utf-8"))["user"]
    return [(m["query"], m["reply"]) for m in _FUNCTIONS.finditer(text)]


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_domain_has_eight_examples_of_function_calls_or_more(domain):
    found = function_examples(domain)
    assert len({query for query, _ in found}) == len(found) >= 9
    assert [json.loads(reply)["calls"] for _, reply in found].count([]) == 1


@pytest.mark.parametrize(
    ("domain", "query", "reply"), [(d, *example) for d in DOMAINS for example in function_examples(d)]
)
def test_every_example_of_function_calls_is_read_runs_and_comes_to_an_answer(
    graph, parse, domain, query, reply
):
    program, rule = program_of(reply)
    results = asyncio.run(run(parse(program), graph, moment(ASKED), domain))
    assert [r.fault for r in results] == [None] * len(results)
    if program != "None":
        said = apply_rule(rule, results, moment(ASKED).day)
        assert said.label == ("invalid" if rule == "premise" else "answered")


@pytest.mark.slow
def test_the_schema_allows_every_example_and_bounds_every_reply():
    wanted = yaml.safe_load(SCHEMA.read_text("utf-8"))
    for domain in DOMAINS:
        for _, reply in function_examples(domain):
            jsonschema.validate(json.loads(reply), wanted)
    assert longest_reply(JsonSchema(json.dumps(wanted))) < 12_000, "bytes, of up to four a character"


def test_the_schema_of_the_recipes_allows_what_the_reader_knows():
    reply = yaml.safe_load(SCHEMA.read_text("utf-8"))["properties"]
    call = reply["calls"]["items"]["properties"]
    assert reply["calls"]["maxItems"] == MOST_CALLS and reply["operation"]["enum"] == list(RULES)
    assert call["function"]["enum"] == list(FUNCTIONS) and call["take"]["enum"] == list(TAKES)
    assert call["conditions"]["maxItems"] == MOST_CONDITIONS
    assert call["conditions"]["items"]["properties"]["op"]["enum"] == list(OPS)
