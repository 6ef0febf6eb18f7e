"""What values come to: dates, ages, counts, comparisons, sums, and premises that are false."""

from datetime import date

import pytest

from raypipe.contrib.crag.language.answer_rules import RULES, apply_rule
from raypipe.contrib.crag.records import CallResult
from raypipe.core.records import Fault

TODAY = date(2024, 2, 29)


def said(rule, *lines, **more):
    """lines: (subject, values...)."""
    results = [
        CallResult(f"get_movie({s})", values=tuple(v), subject=s, number=n)
        for n, (s, *v) in enumerate(lines, 1)
    ]
    read = apply_rule(rule, [*results, *more.get("extra", ())], TODAY)
    return read.text if read.label == "answered" else read.label


@pytest.mark.parametrize(
    ("rule", "lines", "answer"),
    [
        ("value", [("a", 1994)], "1994"),
        ("value", [("a", 7.25)], "7.25"),
        ("value", [("a", True)], "yes"),
        ("value", [("a", 1), ("b", "Ann")], "Ann"),
        ("value", [("a",)], "abstained"),
        ("round", [("a", 2.71828)], "2.72"),
        ("round", [("a", "x")], "abstained"),
        ("list", [("a", "x", "y", "z")], "x, y, z"),
        ("count", [("a", "x", "y", "z")], "3"),
        ("least", [("a", "2001-04-25"), ("b", "1994-01-01")], "b"),
        ("least", [("a", "9"), ("b", 10)], "a"),
        ("most", [("a", 1.5), ("b", 2), ("c", -3)], "b"),
        ("most", [("a", 2), ("b", 2)], "abstained"),
        ("most", [("a", 2), ("b",)], "abstained"),
        ("most", [("a", "2001-04-25"), ("b", 7)], "abstained"),
        ("difference", [("a", 12), ("b", "1,000.5")], "988.5"),
        ("difference", [("a", 12), ("b", 3), ("c", 4)], "abstained"),
        ("sum", [("a", 12), ("b", 3), ("c", 4)], "19"),
        ("mean", [("a", 1), ("b", 2), ("c", 2)], "1.67"),
        ("years_between", [("a", "1972-03-01"), ("b", "2000-02-29")], "27"),
        ("years_between", [("b", "2000-03-01"), ("a", "1972-03-01")], "28"),
        ("years_since", [("a", "2000-02-29")], "24"),
        ("years_since", [("a", "2000-03-01")], "23"),
        ("years_since", [("a", 1897)], "127"),
        ("years_since", [("a", "2031-01-01")], "abstained"),
        ("percent_change", [("a", 50), ("b", 49)], "-2"),
        ("percent_change", [("a", 0), ("b", 49)], "abstained"),
        ("weekday", [("a", "2024-02-29")], "thursday"),
        ("weekday", [("a", "2023-02-29")], "abstained"),
        ("yes_if_less", [("a", "1972-03-01"), ("b", "2000-02-29")], "yes"),
        ("yes_if_more", [("a", 3), ("b", 3)], "no"),
        ("yes_if_equal", [("a", "Ann"), ("b", "ann")], "yes"),
        ("premise", [("a", 12)], "12"),
        ("premise", [("a",)], "invalid"),
    ],
)
def test_a_rule_makes_an_answer_of_the_values_or_none(rule, lines, answer):
    assert said(rule, *lines) == answer


def test_every_rule_has_a_case():
    marks = test_a_rule_makes_an_answer_of_the_values_or_none.pytestmark[0].args[1]
    assert {rule for rule, *_ in marks} == set(RULES)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "broken",
    [
        CallResult("x", fault=Fault("kg_query", "unreachable", "", True)),
        CallResult("get_movie(nobody)", unknown=("nobody",)),
    ],
)
def test_a_line_that_failed_or_an_unknown_name_is_neither_an_answer_nor_a_contradiction(rule, broken):
    assert said(rule, ("a", "2001-04-25"), extra=[broken]) == "abstained"
    assert apply_rule(rule, [], TODAY).label == "abstained"


def test_a_rule_that_there_is_not_is_refused():
    with pytest.raises(KeyError):
        apply_rule("guess", [CallResult("x", values=(1,))], TODAY)
