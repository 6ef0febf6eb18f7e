"""The official baseline's flat JSON: what of it is looked up, and what comes back from a small graph."""

import asyncio
import json

import pytest

from raypipe.contrib.crag.execute import run
from raypipe.contrib.crag.language.function_calls import MOST_NAMES, flat_program
from raypipe.text.moments import moment
from raypipe.text.replies import UnreadableReply

ASKED = "03/05/2024, 10:00:00 PT"


def movie(**fields):
    return json.dumps({"domain": "movie", **fields})


@pytest.mark.parametrize(
    ("said", "values"),
    [
        (movie(movie_name="Amélie", movie_aspect="length"), [(122,)]),
        (movie(movie_name=["Amélie", "The Maze Runner"], movie_aspect="budget"), [(10,), (34,)]),
        (movie(movie_name="amelie, the maze runner", movie_aspect="budget"), [(10,), (34,)]),
        (movie(movie_name="Amélie", movie_aspect="crew"), [("Ana Lima",)]),
        (movie(movie_name="The Maze Runner", movie_aspect="cast"), [("Zak Santiago", "Brenda Crichlow")]),
        (
            movie(person="Walt Becker", person_aspect="directed_movies"),
            [("The Maze Runner", "Small Town Ecstasy")],
        ),
        (
            movie(person="Brenda Crichlow", person_aspect="acted_movies"),
            [("Small Town Ecstasy", "The Maze Runner")],
        ),
        (movie(person="Jean Dujardin", person_aspect="oscar_awards"), [("The Artist",)]),
        (movie(year=2001), [("Amélie",), ()]),
        (json.dumps({"domain": "encyclopedia", "main_entity": "Florida City"}), [("Florida City",)]),
    ],
)
def test_what_the_baseline_looks_up_is_found(graph, parse, said, values):
    results = asyncio.run(run(parse(flat_program(said)), graph, moment(ASKED)))
    assert [r.fault for r in results] == [None] * len(results)
    assert [r.values for r in results] == values


@pytest.mark.parametrize(
    "said",
    [
        {"domain": "music", "song_name": "first song"},
        {"domain": "finance", "market_identifier": "msft", "metric": "price"},
        {"domain": "sports", "team": "lakers"},
        {"domain": "movie"},
        {"domain": "movie", "movie_name": "velora"},  # no aspect: the baseline has nothing of it
        {"domain": "movie", "movie_name": None, "person": "", "year": "soon"},
        {"domain": ["movie"], "movie_name": "velora", "movie_aspect": "length"},
        {},
    ],
)
def test_what_it_does_not_look_up_is_no_call(said):
    assert flat_program(json.dumps(said)) == "None"


@pytest.mark.parametrize("said", ["[]", "no", '"movie"', "[" * 9999])
def test_what_is_no_flat_object_cannot_be_read(said):
    with pytest.raises(UnreadableReply, match="flat JSON object"):
        flat_program(said)


def test_names_are_bounded_and_stay_names(parse):
    said = movie(movie_name=['a") get_movie("b', *["x"] * 50], movie_aspect="length")
    lines = parse(flat_program(said)).lines
    assert len(lines) == MOST_NAMES and lines[0].args[0].value == "a ) get_movie( b"
