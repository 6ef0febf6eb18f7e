"""Every operator equals the same question written by hand in SQL, on random tables."""

import asyncio
import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raypipe.contrib.crag.execute import run
from raypipe.contrib.crag.graph import FolderBackend
from raypipe.contrib.crag.link import Linker
from raypipe.contrib.crag.tables import Tables
from raypipe.text.moments import moment

pytestmark = pytest.mark.slow

NOW = moment("03/05/2024, 10:00:00 PT")
TITLES, PEOPLE, JOBS = ("ash", "birch", "cedar", "dogwood"), ("ann", "bob", "cyd"), ("director", "writer")
SIGNS = {"eq": "=", "neq": "<>", "ge": ">=", "le": "<=", "gt": ">", "lt": "<"}
small = st.integers(0, 5)
MOVIES = st.lists(
    st.fixed_dictionaries(
        {
            "title": st.sampled_from(TITLES),
            "year": st.none() | st.integers(2000, 2004),
            "budget": st.none() | small,
            "revenue": st.none() | small,
            "rating": st.none() | st.integers(0, 8).map(lambda n: n / 2),
        }
    ),
    max_size=8,
)
CREW = st.lists(
    st.fixed_dictionaries(
        {
            "movie_name": st.sampled_from(TITLES),
            "name": st.sampled_from(PEOPLE),
            "job": st.sampled_from(JOBS),
            "year": st.integers(2000, 2004),
        }
    ),
    max_size=12,
)
CONDS = st.lists(
    st.tuples(st.sampled_from(sorted(SIGNS)), st.sampled_from(["year", "budget", "rating"]), small),
    max_size=3,
)


def make(movies, crew) -> tuple[FolderBackend, sqlite3.Connection]:
    """The same rows as a graph and as a database of one's own."""
    tables, db = Tables(), sqlite3.connect(":memory:")
    db.execute("CREATE TABLE movie (title, year, budget, revenue, rating)")
    db.execute("CREATE TABLE crew (movie_name, name, job, year)")
    db.executemany("INSERT INTO movie VALUES (:title, :year, :budget, :revenue, :rating)", movies)
    db.executemany("INSERT INTO crew VALUES (:movie_name, :name, :job, :year)", crew)
    tables.insert("movie", movies)
    tables.insert("crew", crew)
    return FolderBackend(tables, Linker(tables)), db


def last(graph, parse, program):
    results = asyncio.run(run(parse(program), graph, NOW))
    assert [r.fault for r in results] == [None] * len(results), program
    return list(results[-1].values)


def by_hand(db, sql, *params):
    return [v for (v,) in db.execute(sql, params) if v is not None]


def written(conds):
    """Conditions as a program and as SQL."""
    conds = [(op, key, value + 2000 if key == "year" else value) for op, key, value in conds]
    text = ", ".join(f"{op}({key}, {value})" for op, key, value in conds)
    sql = " AND ".join(f"{key} {SIGNS[op]} {value}" for op, key, value in conds) or "1"
    return (f"[{text}]" if conds else "None"), sql


@settings(max_examples=60, deadline=None)
@given(MOVIES, CONDS, st.none() | st.sampled_from(TITLES), st.integers(1, 4))
def test_conditions_all_first_and_slices(parse, movies, conds, title, n):
    graph, db = make(movies, [])
    text, sql = written(conds)
    name = f'"{title}"' if title else "None"
    sql = f"SELECT revenue FROM movie WHERE {sql} AND (?1 IS NULL OR title = ?1) ORDER BY rowid"
    assert last(graph, parse, f"ALL get_movie({name}, {text})[revenue]") == by_hand(db, sql, title)
    assert last(graph, parse, f"get_movie({name}, {text})[revenue]") == by_hand(db, f"{sql} LIMIT 1", title)
    assert last(graph, parse, f"get_movie({name}, {text})[revenue][:{n}]") == by_hand(
        db, f"{sql} LIMIT {n}", title
    )
    assert last(graph, parse, f"{n} get_movie({name}, {text})[revenue]") == by_hand(
        db, f"{sql} LIMIT {n}", title
    )


@settings(max_examples=60, deadline=None)
@given(MOVIES, CONDS, st.sampled_from(sorted(SIGNS)))
def test_counts_means_and_columns_compared(parse, movies, conds, op):
    graph, db = make(movies, [])
    text, sql = written(conds)
    assert last(graph, parse, f"get_movie(None, {text})[len]") == by_hand(
        db, f"SELECT count(*) FROM movie WHERE {sql}"
    )
    assert last(graph, parse, f"get_movie(None, {text})[rating][len]") == by_hand(
        db, f"SELECT count(rating) FROM movie WHERE {sql}"
    )
    mean = last(graph, parse, f"AVG(get_movie(None, {text})[rating])")
    hand = by_hand(db, f"SELECT avg(rating) FROM movie WHERE {sql}")
    assert len(mean) == len(hand) and all(abs(a - b) < 1e-9 for a, b in zip(mean, hand, strict=True))
    sign = {"ge": ">", "le": "<"}.get(op, SIGNS[op])  # between columns >= and <= are strict
    assert last(graph, parse, f"ALL get_movie(None, {op}(revenue, budget))[title]") == by_hand(
        db, f"SELECT title FROM movie WHERE revenue {sign} budget ORDER BY rowid"
    )


@settings(max_examples=60, deadline=None)
@given(MOVIES, CONDS, CONDS, st.sampled_from(["year", "rating", "title"]), st.booleans(), st.integers(1, 4))
def test_sorts_of_sorts(parse, movies, first, second, key, down, n):
    graph, db = make(movies, [])
    (before, sql), (after, more) = written(first), written(second)
    order = f"{key} {'DESC' if down else 'ASC'} NULLS LAST, rowid"
    base = f"SELECT budget FROM movie WHERE {sql} AND {more} ORDER BY {order}"
    minus = "-" * down
    everything = f"ALL get_movie(None, {before})\nsort({after}, {minus}{key})[budget]"
    assert last(graph, parse, everything) == by_hand(db, base)
    assert last(graph, parse, everything.removeprefix("ALL ")) == by_hand(db, f"{base} LIMIT 1")
    assert last(graph, parse, f"{everything}[:{n}]") == by_hand(db, f"{base} LIMIT {n}")
    assert last(graph, parse, f"get_movie(None, {before})\nsort({after}, {key})[len]") == by_hand(
        db, f"SELECT count(*) FROM movie WHERE {sql} AND {more}"
    )
    twice = f"ALL get_movie(None)\nsort(None, {key})\nsort({after}, -year)[budget]"
    assert last(graph, parse, twice) == by_hand(
        db,
        f"SELECT budget FROM movie WHERE {more} ORDER BY year DESC NULLS LAST, {key} ASC NULLS LAST, rowid",
    )


@settings(max_examples=60, deadline=None)
@given(
    MOVIES,
    CREW,
    st.sampled_from(JOBS),
    st.lists(st.sampled_from(PEOPLE), min_size=2, max_size=3, unique=True),
)
def test_joins_intersections_and_chains(parse, movies, crew, job, people):
    graph, db = make(movies, crew)
    known = {c["name"] for c in crew}
    who = people[0]
    films = "SELECT movie_name FROM crew WHERE name = ? AND job = ? ORDER BY rowid"
    call = f'get_movie_person_crew(None, "{who}", eq(job, {job}))'
    assert last(graph, parse, f"ALL {call}[movie_name]") == by_hand(db, films, who, job)
    both = " INTERSECT ".join(f"SELECT movie_name FROM crew WHERE name = '{p}'" for p in people)
    names = ", ".join(f'"{p}"' for p in people)
    assert last(graph, parse, f"get_movie_person_crew(None, [{names}], None)[len]") == by_hand(
        db, f"SELECT count(*) FROM ({both})"
    )
    together = last(graph, parse, f"ALL get_movie_person_crew(None, [{names}], None)[movie_name]")
    assert sorted(together) == sorted(by_hand(db, both))
    if who in known:  # one hop: the ratings of the films; two: who else worked on them
        chained = f"ALL {call}[movie_name]\nAVG(get_movie(*)[rating])"
        found = last(graph, parse, chained)
        made = by_hand(db, films, who, job)
        hand = [r for m in made for r in by_hand(db, "SELECT rating FROM movie WHERE title = ?", m)]
        assert found == ([sum(hand) / len(hand)] if hand else [])
        hops = f"ALL {call}[movie_name]\nALL get_movie_person_crew(*, None)[name]"
        hops += "\nALL get_movie_person_crew(None, *)[job]"
        people_there = [
            p
            for m in made
            for p in by_hand(db, "SELECT name FROM crew WHERE movie_name = ? ORDER BY rowid", m)
        ]
        jobs = [
            j
            for p in people_there
            for j in by_hand(db, "SELECT job FROM crew WHERE name = ? ORDER BY rowid", p)
        ]
        assert last(graph, parse, hops) == jobs[:1000]
