"""A graph asked by a step: sentences, an answer by a rule, and faults that let other replies answer."""

import asyncio
import json
import time
from dataclasses import replace

import golden
import pytest

from raypipe.contrib.crag.graph import GraphFault
from raypipe.contrib.crag.graph_adapter import open_server
from raypipe.contrib.crag.steps.kg_query import KgQuery
from raypipe.core.records import SKIPPED_REPLY, Question, Reply
from raypipe.models.kit import LocalKit
from raypipe.text.template import ByLabel

STEP = KgQuery(graph=golden.GRAPH, calls="calls", rule="rule", answer="kg")
EDITOR = 'get_movie_person_crew("velora", None, eq(job, "Editor"))["name"]'
TIME = "03/05/2024, 23:18:31 PT"


class Stub(LocalKit):
    """A kit whose graph is a server that answers as told."""

    def __init__(self, answer, clock=time.perf_counter):
        super().__init__(None)
        self.answer, self.clock = answer, clock

    def data(self, ref):
        return open_server(ref, self.answer, self.embedder, self.clock)


def look(calls, rule="value", kit=None, asked_at=TIME, step=STEP):
    replies = {"calls": Reply(calls, "answered"), "rule": Reply(rule, rule)}
    [out] = asyncio.run(
        step.open(kit or LocalKit(None))([Question("q", "?", asked_at=asked_at, replies=replies)])
    )
    return out


@pytest.mark.parametrize(
    ("calls", "rule", "label", "text"),
    [
        ('get_movie("velora")["length"]', "value", "answered", "102"),
        ('get_movie("velora")[year]\nget_movie("lantern maker")[year]', "least", "answered", "velora"),
        (EDITOR, "premise", "invalid", "invalid question"),
        (EDITOR, "value", "abstained", "i don't know"),
        ('get_movie("nothing like it")["year"]', "premise", "abstained", "i don't know"),
        ('get_movie("velora")["length"]', "answered", "abstained", "i don't know"),
    ],
)
def test_the_rule_makes_the_answer(calls, rule, label, text):
    assert look(calls, rule).replies["kg"] == Reply(text, label)


def test_facts_are_sentences_and_one_bad_line_of_three_leaves_two():
    out = look('get_movie("velora")["length"]\nget_nothing(\nget_movie("velora")["year"]')
    assert out.replies["facts"].label == "answered"
    assert out.replies["facts"].text.splitlines() == [
        "The length of the movie Velora is 102.",
        "The year of the movie Velora is 1994.",
    ]
    assert out.replies["kg"].label == "abstained", "a program that was not run whole is no ground for a rule"


def test_calls_that_say_none_or_were_skipped_are_an_abstention():
    replies = {"calls": SKIPPED_REPLY, "rule": SKIPPED_REPLY}
    [out] = asyncio.run(STEP.open(LocalKit(None))([Question("q", "?", asked_at=TIME, replies=replies)]))
    assert {out.replies[n].label for n in ("facts", "kg")} == {"abstained"}


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ("get_nothing(", "bad_call"),
        ('get_stock_price("tarn", "100")', "bad_time"),
        ("sort(None, year)", "no_rows"),
    ],
)
def test_lines_that_no_graph_could_answer_are_an_abstention_that_keeps_why(calls, reason):
    written = look(calls)
    facts = written.replies["facts"]
    assert (facts.label, facts.fault.reason, facts.fault.transient) == ("abstained", reason, False)
    assert written.replies["kg"].label == "abstained" and written.faults == ()


def test_a_time_of_the_question_that_is_none_is_a_fault():
    late = look('get_movie("velora")', asked_at="soon").replies["facts"]
    assert (late.label, late.fault.reason) == ("fault", "bad_time")


@pytest.mark.parametrize(("transient", "degraded"), [(True, ("kg_query:facts",)), (False, ())])
def test_a_graph_that_fails_is_a_fault_of_its_reply_and_of_the_moment_if_it_is_down(transient, degraded):
    async def down(path, body):
        raise GraphFault("unreachable", "no server", transient)

    out = look('get_movie("velora")["length"]', kit=Stub(down))
    for name in ("facts", "kg"):
        assert out.replies[name].label == "fault"
        assert out.replies[name].fault.reason == "unreachable"
    assert out.degraded == degraded and out.faults == ()


EXACT = ByLabel(("exact", "substring"), "domain", {"movie": ("exact",)})


@pytest.mark.parametrize(
    ("name", "domain", "label"),
    [
        ("velora", "movie", "answered"),
        ("lantern maker", "movie", "abstained"),  # "The Lantern Maker", by a part of it
        ("lantern maker", "open", "answered"),
    ],
)
def test_where_it_must_be_certain_a_name_that_is_only_like_the_graphs_is_no_ground(name, domain, label):
    step = replace(STEP, certain=EXACT)
    calls = Reply(f'get_movie("{name}")["year"]', "answered")
    replies = {"calls": calls, "rule": Reply("value", "value"), "domain": Reply(domain, domain)}
    [out] = asyncio.run(step.open(LocalKit(None))([Question("q", "?", asked_at=TIME, replies=replies)]))
    assert out.replies["kg"].label == label
    assert out.replies["facts"].label == "answered", "what was found can still be read"


def test_every_line_leaves_a_trace_of_what_it_did():
    step = replace(STEP, trace="trace")
    out = look('get_movie("lantern maker")["year"]\nget_movie("nobody")\nget_nothing(', step=step)
    first, second, third = map(json.loads, out.replies["trace"].text.splitlines())
    assert first["links"] == [["lantern maker", "movie", "The Lantern Maker", "substring"]]
    assert (first["rows"], first["values"], first["sentences"]) == (1, [2001], 1)
    assert second["unknown"] == ["nobody"] and third["fault"][0] == "bad_call"
    assert all(line["ms"] >= 0 and line["requests"] == 0 for line in (first, second, third))
    assert out.replies["trace"].label == "trace"
    assert look("get_movie(velora)").replies.keys() == {"calls", "rule", "facts", "kg"}


def test_a_trace_names_the_requests_to_a_server_and_the_time_that_a_line_took():
    async def films(path, body):
        return [{"id": 1, "title": "Velora", "release_date": "1994-01-01"}] if path == MOVIES else None

    ticks = iter(range(100))
    kit = Stub(films, clock=lambda: next(ticks) / 1000)
    step = replace(STEP, trace="trace")
    out = look('get_movie("velora")["year"]\nget_movie("velora")["length"]', kit=kit, step=step)
    first, second = map(json.loads, out.replies["trace"].text.splitlines())
    assert first["request"] == [f'{MOVIES} {{"query": "velora"}}'] and first["requests"] == 1
    assert (first["values"], first["ms"], second["ms"]) == ([1994], 1.0, 1.0)


MOVIES = "/movie/get_movie_info"


@pytest.mark.parametrize(
    "fields",
    [
        {"rule": None},
        {"answer": None},
        {"into": "kg"},
        {"into": ""},
        {"certain": ByLabel(("nearly",))},
        {"certain": EXACT, "rule": None, "answer": None},
    ],
)
def test_names_that_cannot_be_are_refused(fields):
    with pytest.raises(ValueError, match=r"expected"):
        replace(STEP, **fields)
