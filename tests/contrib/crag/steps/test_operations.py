"""WeKnow's operations over calls: a model's JSON, run on a small graph, against answers by hand."""

import asyncio
import json
from dataclasses import replace

import golden
import pytest

from raypipe.contrib.crag.language.answer_rules import RULES
from raypipe.contrib.crag.steps.function_calls import FunctionCalls
from raypipe.contrib.crag.steps.kg_query import KgQuery
from raypipe.contrib.crag.tables import read_files, version_of
from raypipe.core.records import Question, Reply
from raypipe.models.kit import LocalKit

TIME = "03/05/2024, 12:00:00 PT"
TABLES = {
    "company": [{"ticker": t, "name": f"{t} Inc."} for t in ("AAA", "BBB", "CCC", "DDD")],
    "price": [  # ticker, day, open, high
        {"ticker": t, "date": f"2024-02-{day}", "open": start, "high": high}
        for t, day, start, high in [
            ("AAA", 26, 9, 10),
            ("AAA", 27, 8, 14),
            ("AAA", 28, 11, 12),
            ("BBB", 26, 4, 5),
            ("BBB", 27, 6, 7),
            ("BBB", 28, 5, 6),
            ("CCC", 26, 1, 13),
            ("CCC", 27, 2, 14),
        ]
    ],
    "movie": [
        {"title": "Ash", "release_date": "1990-05-01", "year": 1990, "length": 100},
        {"title": "Birch", "release_date": "2000-04-30", "year": 2000, "length": 130},
        {"title": "Cedar", "release_date": "2011-05-03", "year": 2011, "length": 90},
    ],
    "person": [{"name": "Ann Lee", "birthday": "1950-03-01"}, {"name": "Bo Kay", "birthday": "1960-03-01"}],
    "crew": [
        {"movie_name": m, "name": n, "job": "Director", "year": int(d[:4]), "release_date": d}
        for m, n, d in [
            ("Ash", "Ann Lee", "1990-05-01"),
            ("Birch", "Bo Kay", "2000-04-30"),
            ("Cedar", "Ann Lee", "2011-05-03"),
        ]
    ],
    "cast": [
        {"movie_name": "Ash", "name": "Bo Kay", "character": "The Baker", "year": 1990},
        {"movie_name": "Birch", "name": "Ann Lee", "character": "The Judge", "year": 2000},
    ],
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    for name, rows in TABLES.items():
        (folder / f"{name}.json").write_text(json.dumps(rows))
    return replace(golden.GRAPH, where=str(folder), version=version_of(read_files(folder)))


def come_to(world, calls, operation):
    """What the question is answered by the graph, or the label of a reply that answers nothing."""
    said = Reply(json.dumps({"calls": calls, "operation": operation}), "answered")
    steps = (
        FunctionCalls(reply="functions"),
        KgQuery(graph=world, calls="calls", rule="rule", answer="kg"),
    )
    questions = [Question("q", "?", asked_at=TIME, replies={"functions": said})]
    for step in steps:
        questions = asyncio.run(step.open(LocalKit(None))(questions))
    reply = questions[0].replies["kg"]
    return reply.text if reply.label == "answered" else reply.label


def price(name, **more):
    return {"function": "price", "name": name, "time": "2024-02-26", "attribute": "high", **more}


def month(name, **more):
    return price(name, time="february 2024", **more)


def directed(name="", other="", attribute="movie_name", **more):
    return {"function": "crew", "name": name, "other": other, "attribute": attribute, **more}


def born(name):
    return {"function": "person", "name": name, "attribute": "birthday"}


def length(name):
    return {"function": "movie", "name": name, "attribute": "length"}


def where(key, op, value):
    return [{"key": key, "op": op, "value": value}]


ANN_LAST = directed(other="ann lee", order="-year")
BO_LAST = directed(other="bo kay", order="-year")

PAIRS = {  # form -> two operands
    "plain": [price("AAA"), price("BBB")],  # 10 and 5
    "ordered": [month("AAA", order="-high"), month("BBB", order="-high")],  # 14 and 7
    "conditioned": [  # 12 and 6
        month("AAA", conditions=where("open", "gt", "10")),
        month("BBB", conditions=where("open", "eq", "5")),
    ],
    "hop": [BO_LAST, length("$1"), ANN_LAST, length("$3")],  # Birch 130 and Cedar 90
}
DATES = {  # form -> one or two operands that are days
    "plain": [born("ann lee"), born("bo kay")],  # 1950-03-01, 1960-03-01
    "ordered": [  # 2011-05-03, 2000-04-30
        directed(other="ann lee", attribute="release_date", order="-year"),
        directed(other="bo kay", attribute="release_date", order="-year"),
    ],
    "conditioned": [  # 1990-05-01, 2000-04-30
        directed(other="ann lee", attribute="release_date", conditions=where("year", "le", "1995")),
        directed(other="bo kay", attribute="release_date", conditions=where("year", "ge", "1995")),
    ],
    "hop": [  # 1950-03-01, 1960-03-01
        directed("ash", attribute="name"),
        born("$1"),
        directed("birch", attribute="name"),
        born("$3"),
    ],
}
LISTS = {  # form -> a call that finds several values; "take" is left to the operation
    "plain": [directed(other="ann lee")],
    "ordered": [directed(other="ann lee", order="-year")],
    "conditioned": [directed(other="ann lee", conditions=where("year", "ge", "2000"))],
    "hop": [directed("ash", attribute="name"), directed(other="$1")],
}
EDITOR = where("job", "eq", "Editor")
LACKS = {  # form -> a call that finds nothing of names that are known
    "plain": [{"function": "cast", "name": "ash", "other": "ann lee", "attribute": "character"}],
    "ordered": [directed(other="ann lee", conditions=EDITOR, order="-year")],
    "conditioned": [directed("ash", attribute="name", conditions=EDITOR)],
    "hop": [directed("birch", attribute="name"), directed(other="$1", conditions=EDITOR)],
}
SWAPPED = {form: [*calls[len(calls) // 2 :], *calls[: len(calls) // 2]] for form, calls in PAIRS.items()}
SWAPPED["hop"] = [ANN_LAST, length("$1"), BO_LAST, length("$3")]
SAME = {form: [*calls[: len(calls) // 2]] * 2 for form, calls in PAIRS.items()}
SAME["hop"] = [BO_LAST, length("$1"), directed(other="bo kay"), length("$3")]

FORMS = ("plain", "ordered", "conditioned", "hop")
TABLE = [  # operation, operands, the answer of each form
    ("value", PAIRS, ("5", "7", "6", "90")),
    ("round", PAIRS, ("5", "7", "6", "90")),
    ("list", LISTS, ("Ash, Cedar", "Cedar, Ash", "Cedar", "Ash, Cedar")),
    ("count", LISTS, ("2", "2", "1", "2")),
    ("least", PAIRS, ("BBB", "BBB", "BBB", "Cedar")),
    ("most", PAIRS, ("AAA", "AAA", "AAA", "Birch")),
    ("difference", PAIRS, ("5", "7", "6", "40")),
    ("sum", PAIRS, ("15", "21", "18", "220")),
    ("mean", PAIRS, ("7.5", "10.5", "9", "110")),
    ("percent_change", PAIRS, ("-50", "-50", "-50", "-30.77")),
    ("years_between", DATES, ("10", "11", "9", "10")),
    ("years_since", DATES, ("64", "23", "23", "64")),
    ("weekday", DATES, ("tuesday", "sunday", "sunday", "tuesday")),
    ("yes_if_less", SWAPPED, ("yes", "yes", "yes", "yes")),
    ("yes_if_less", PAIRS, ("no", "no", "no", "no")),
    ("yes_if_more", PAIRS, ("yes", "yes", "yes", "yes")),
    ("yes_if_more", SWAPPED, ("no", "no", "no", "no")),
    ("yes_if_equal", PAIRS, ("no", "no", "no", "no")),
    ("yes_if_equal", SAME, ("yes", "yes", "yes", "yes")),
    ("premise", PAIRS, ("5", "7", "6", "90")),
    ("premise", LACKS, ("invalid", "invalid", "invalid", "invalid")),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("operation", "operands", "answers"), TABLE)
def test_an_operation_over_calls_comes_to_the_answer_by_hand(world, operation, operands, answers, form):
    assert come_to(world, operands[form], operation) == answers[FORMS.index(form)]


def test_every_operation_has_its_rows():
    assert {operation for operation, *_ in TABLE} == set(RULES)


def test_two_equal_highs_add_up_to_their_sum_and_not_to_that_of_every_line(world):
    highs = [month("AAA", order="-high"), month("CCC", order="-high")]  # 14 and 14
    assert (come_to(world, highs, "sum"), come_to(world, highs, "mean")) == ("28", "14")
    assert come_to(world, [month("AAA", order="-high")], "difference") == "abstained", "one call is no pair"


def test_calls_that_meet_use_what_any_earlier_call_found(world):
    """A film and a person from calls of their own, in one call: fan-in."""
    meet = [
        directed(other="bo kay"),  # Birch
        directed("ash", attribute="name"),  # Ann Lee
        {"function": "cast", "name": "$1", "other": "$2", "attribute": "character"},
    ]
    assert come_to(world, meet, "value") == "The Judge"
    age = [  # of Ash's director when Birch came out: the director is no operand, being used
        directed("ash", attribute="name"),
        {"function": "movie", "name": "birch", "attribute": "release_date"},
        born("$1"),
    ]
    assert come_to(world, age, "years_between") == "50"


def test_a_conditions_value_may_be_what_an_earlier_call_found(world):
    same_year = [
        {"function": "movie", "name": "birch", "attribute": "year"},
        directed(other="ann lee", conditions=where("year", "neq", "$1"), take="count"),
    ]
    assert come_to(world, same_year, "value") == "2"


@pytest.mark.parametrize(
    ("calls", "operation"),
    [
        ([month("AAA", take="all"), month("BBB", take="all")], "sum"),  # which of three values?
        ([price("AAA"), price("AAA", time="2024-02-27")], "most"),  # one subject twice
        ([price("AAA"), price("nobody")], "least"),
    ],
)
def test_operands_that_leave_open_what_is_meant_are_no_answer(world, calls, operation):
    assert come_to(world, calls, operation) == "abstained"


def test_what_a_call_has_counted_is_the_count(world):
    counted = [directed(other="ann lee", take="count")]
    assert come_to(world, counted, "count") == come_to(world, counted, "value") == "2"
