"""The graph before the web: who is believed, in which domain, and what sends a row on to the web."""

import asyncio
import json

import pytest

from raypipe.contrib.crag.steps.demote import Demote
from raypipe.contrib.crag.steps.function_calls import FunctionCalls
from raypipe.core.records import SKIPPED_REPLY, Question, Reply
from raypipe.models.kit import LocalKit
from raypipe.steps.decide import Decide
from raypipe.text.replies import read_certainty, read_label
from raypipe.text.template import ByLabel

DOMAINS = ("finance", "music", "sports", "movie")


def run(step, text="?", **replies):
    [out] = asyncio.run(step.open(LocalKit(None))([Question("q", text, replies=replies)]))
    return out


def demoted(said, facts="The Larks are a band.", text="who are they?"):
    reply = said if isinstance(said, Reply) else Reply(said, "answered")
    step = Demote(reply="kg", facts="facts")
    return run(step, text, kg=reply, facts=Reply(facts, "answered" if facts else "abstained")).replies["kg"]


@pytest.mark.parametrize(
    "said",
    [Reply("invalid question", "invalid"), "That is an INVALID question.", "the premise is invalid"],
)
def test_invalid_from_the_graph_does_not_outrank_the_web(said):
    assert demoted(said) == Reply("i don't know", "abstained")


@pytest.mark.parametrize(
    "said", [Reply("i don't know", "abstained"), Reply("a band", "answered"), SKIPPED_REPLY]
)
def test_any_other_reply_stays_as_it_is(said):
    assert demoted(said) == said


NONE = "There is no match of Lakers, 2024-03-04."


@pytest.mark.parametrize(
    ("facts", "text", "label"),
    [
        (NONE, "did the lakers win last night?", "invalid"),
        (NONE, "what did the lakers score yesterday?", "invalid"),
        (NONE, "what did the lakers score on march 4?", "answered"),
        (NONE, "what was the latest result of the lakers?", "invalid"),  # "late" is a part of it
        (NONE, "any updates on the lakers?", "invalid"),
        (NONE, "how did the blast go?", "invalid"),  # the price of reading parts of words, as db3 does
        (f"{NONE}\n{NONE}", "did the lakers win last night?", "answered"),
        ("On 2024-03-04 Lakers won.", "did the lakers win last night?", "answered"),
    ],
)
def test_no_match_in_a_recent_time_is_a_false_premise(facts, text, label):
    assert demoted("they won", facts, text).label == label


POLICY = Decide(prefer=ByLabel(("web", "kg"), "domain", {"finance": ("kg", "web"), "open": ("kg",)}))


@pytest.mark.parametrize(
    ("domain", "origin"), [("finance", "kg"), ("open", "kg"), ("music", "web"), ("fault", "web")]
)
def test_the_order_of_sources_is_a_table_by_domain(domain, origin):
    replies = {"kg": Reply("from the graph", "answered"), "web": Reply("from the web", "answered")}
    assert run(POLICY, domain=Reply(domain, domain), **replies).origin == origin


def test_a_table_declares_all_that_it_may_read():
    assert POLICY.reads() == {"replies.domain", "replies.kg", "replies.web"}


@pytest.mark.parametrize(
    ("said", "label"),
    [
        ("Finance.", "finance"),
        ("other", "open"),
        ("???", "open"),
        ("sports or movie", "sports"),
        ("x" * 999, "open"),
    ],
)
def test_one_word_names_the_domain_and_anything_else_is_open(said, label):
    assert read_label(said, DOMAINS, "open").label == label


@pytest.mark.parametrize(
    ("said", "label"),
    [
        ({"domain": "movie", "certainty": 91}, "movie"),
        ({"domain": "movie", "certainty": 90}, "open"),
        ({"domain": "movie", "certainty": 89}, "open"),
        ({"domain": "movie"}, "open"),
        ({"domain": "movie", "certainty": True}, "open"),
        ({"domain": "cooking", "certainty": 100}, "open"),
        ({"domain": "movie", "certainty": 91, "invalid": True}, "invalid"),
        ({"domain": "movie", "certainty": 91, "invalid": "yes"}, "movie"),
    ],
)
def test_a_domain_counts_from_more_than_ninety_percent_on(said, label):
    assert read_certainty(json.dumps(said), DOMAINS, 90, "open").label == label


@pytest.mark.parametrize("said", ["", "movie", "{", "[]", '{"domain": {"a": 1}, "certainty": "high"}'])
def test_a_domain_that_cannot_be_read_is_open(said):
    assert read_certainty(said, DOMAINS, 90, "open").label == "open"


def functions(said):
    out = run(FunctionCalls(reply="json"), json=Reply(said, "answered")).replies
    return out["calls"], out["rule"]


WON = {"key": "result", "op": "eq", "value": "W"}
SINCE = {"key": "year", "op": "ge", "value": "2001"}


def one(**call):
    return json.dumps({"calls": [call], "operation": "value"})


@pytest.mark.parametrize(
    ("said", "program"),
    [
        (one(function="year", name="2001", attribute="best_song"), 'get_grammy_year(2001)["best_song"]'),
        (one(function="price", name="x", time="yesterday"), 'get_stock_price("x", "yesterday")'),
        (
            one(function="nba", name="x", time="2024", conditions=[WON], take="count"),
            'ALL get_nba_on_date("x", "2024")\nsort(eq(result, "W"), result)["len"]',
        ),
        (
            one(function="cast", name="", other="z", attribute="movie_name", order="-year"),
            'ALL get_movie_person_cast(None, "z", None)\nsort(None, -year)["movie_name"][:1]',
        ),
        (
            one(function="crew", name="a", other="", conditions=[SINCE], take="mean", attribute="order"),
            'AVG(ALL get_movie_person_crew("a", None, ge(year, 2001))["order"])',
        ),
        ('{"calls": []}', "None"),
    ],
)
def test_function_calls_become_a_program(said, program):
    calls, rule = functions(said)
    assert (calls.text, rule.label) == (program, "value")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("no json", "expected a JSON object"),
        ("[]", 'list of "calls"'),
        (one(function="weather", name="x"), "there is no function 'weather'"),
        (one(function="movie"), "expected a name"),
        (one(function="movie", name="$1"), "expected a name, as no call comes before"),
        (one(function="movie", name=["a"]), "expected text"),
        (one(function="movie", name="a", take="most"), "take: expected one of"),
        (one(function="movie", name="a", conditions=[{"key": "a"}]), "expected key, op"),
        ('{"calls": [], "operation": "guess"}', "operation: expected one of"),
        (json.dumps({"calls": [{}] * 9}), "at most 4"),
        ("[" * 5000, "expected a JSON object"),
    ],
)
def test_what_is_no_function_call_is_a_fault_that_sends_the_row_to_the_web(said, why):
    calls, rule = functions(said)
    assert calls.label == "fault" and why in calls.fault.detail and not calls.fault.transient
    assert rule.label == "skipped"


def test_quotes_and_brackets_in_a_name_stay_in_the_name(graph_free='a") get_movie("b'):
    calls, _ = functions(one(function="movie", name=graph_free))
    assert calls.text == 'get_movie("a ) get_movie( b")'
