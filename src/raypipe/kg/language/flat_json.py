"""The flat JSON of CRAG's official RAG + KG baseline, and the program of calls that it means.

A reply is one object: `domain`, and what of that domain the question is about. As in the baseline, films and
entries of an encyclopaedia are looked up and nothing else. Pure functions; knows no graph.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from raypipe.kg.language.program import Arg, Cond, Nothing, Number, Program, Query, Tail, Text, print_program
from raypipe.text.replies import UnreadableReply

_YEAR = re.compile(r"\d{4}", re.ASCII)
MOST_NAMES: Final = 5  # of one field: more is a list of everything
_FIELDS: Final = frozenset({
    "budget", "genres", "original_language", "original_title", "release_date", "revenue", "title", "rating",
    "length",
})  # fmt: skip
"""What is asked of a film itself; its cast and crew are tables of their own."""


def flat_program(text: str) -> str:
    """The program in the call language, "None" where nothing is looked up.

    Raises UnreadableReply for text that is no JSON object.

    >>> flat_program('{"domain": "movie", "movie_name": "velora, echo", "movie_aspect": "length"}')
    'get_movie("velora")["length"]\\nget_movie("echo")["length"]'
    >>> flat_program('{"domain": "music", "song_name": "last song"}')
    'None'
    """
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise UnreadableReply(f"expected a flat JSON object: {e}") from e
    if not isinstance(tree, dict):
        raise UnreadableReply("expected a flat JSON object")
    match tree.get("domain"):
        case "encyclopedia" | "other":
            lines = [Query("get_open", (Text(n),)) for n in _names(tree, "main_entity")[:1]]
        case "movie":
            lines = [
                *(q for n in _names(tree, "movie_name") for q in _film(n, tree.get("movie_aspect"))),
                *(q for n in _names(tree, "person") for q in _person(n, tree.get("person_aspect"))),
                *(q for n in _names(tree, "year") if _YEAR.fullmatch(n) for q in _year(int(n))),
            ]
        case _:
            lines = []
    return print_program(Program(tuple(lines))) if lines else "None"


def _names(tree: Mapping[str, Any], field: str) -> list[str]:
    """The names of a field: a text with commas, a number, or a list of texts."""
    given = tree.get(field)
    names = given if isinstance(given, list) else [] if given is None else str(given).split(",")
    clean = (" ".join(str(n).replace('"', " ").replace("\\", " ").split())[:100] for n in names)
    return [n for n in clean if n and n.isprintable()][:MOST_NAMES]


def _film(name: str, aspect: Any) -> list[Query]:
    if aspect in ("cast", "crew"):
        return [_tied(f"get_movie_person_{aspect}", Text(name), Nothing(), key="name")]
    return [Query("get_movie", (Text(name),), tail=Tail(aspect))] if aspect in _FIELDS else []


def _person(name: str, aspect: Any) -> list[Query]:
    who = Text(name)
    match aspect:
        case "birthday":
            return [Query("get_person", (who,), tail=Tail("birthday"))]
        case "oscar_awards":
            return [_tied("get_movie_person_oscar", Nothing(), who)]
        case "acted_movies":
            return [_tied("get_movie_person_cast", Nothing(), who, key="movie_name")]
        case "directed_movies":
            job = Cond("eq", "job", Text("Director"))
            return [_tied("get_movie_person_crew", Nothing(), who, job, key="movie_name")]
        case _:
            return []


def _year(year: int) -> list[Query]:
    """All films of a year, and its Oscars."""
    at = Cond("eq", "year", Number(year))
    films = Query("get_movie", (Nothing(),), (at,), Tail("title"), everything=True)
    return [films, _tied("get_movie_person_oscar", Nothing(), Nothing(), at, key="film")]


def _tied(call: str, film: Arg, person: Arg, *where: Cond, key: str | None = None) -> Query:
    return Query(call, (film, person), where, Tail(key), everything=True)
