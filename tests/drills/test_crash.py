"""A store's life ended at some of its write events (`bench/drills/crash.py`); `make drill` ends it at all."""

import json
import subprocess
import sys

import pytest
from checkout import BENCH

sys.path.insert(0, str(BENCH / "drills"))
from crash import Point, State, points
from life import differences


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_a_life_that_is_ended_at_a_write_event_and_resumed_leaves_what_an_undisturbed_one_leaves():
    command = [sys.executable, str(BENCH / "drills/crash.py"), "--points", "8", "--seed", "1", "--jobs", "1"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    summary = json.loads(ran.stdout.splitlines()[-1])
    assert (summary["points"], summary["failed"]) == (8, 0)


def test_a_table_that_lacks_a_row_has_one_too_many_or_is_not_there_differs():
    whole = {"texts": ["a", "b"], "answers": []}
    assert differences(whole, whole) == []
    found = differences(whole, {"texts": ["a", "a"], "more": []})
    assert found == [
        "answers: 0 missing, 0 more, no such table",
        "more: 0 missing, 0 more, not expected",
        "texts: 1 missing, 1 more",
    ]


def test_a_commit_is_ended_before_its_manifest_and_between_it_and_the_hint_that_names_it():
    hint = "t.lance/_versions/latest_version_hint.json"
    old, new = {hint: "1"}, {hint: "2", "t.lance/data/x.lance": "x", "t.lance/_versions/8.manifest": "m"}
    states = [State("lance commit", 1, 0, old, frozenset()), State("lance commit", 1, 0, new, frozenset(new))]
    found = {(p.how, *sorted(p.listing.items())) for p in list(points(states, 1))[-5:]}
    begun = {hint: "1", "t.lance/data/x.lance": "x", "t.lance/_versions/8.manifest#1": "cut:m"}
    linked = {hint: "1", "t.lance/data/x.lance": "x", "t.lance/_versions/8.manifest": "m"}
    for listing in (begun, linked):
        assert ("within", *sorted(listing.items())) in found
    assert ("killed", *sorted(new.items())) in found
    assert isinstance(next(points(states, 1)), Point)
