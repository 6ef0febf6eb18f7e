"""Translation of JSON function calls, in two forms, to programs of the call language.

WeKnow's form is one JSON object: `calls`, each a function with its arguments, and the `operation` on their
results. The text "$2" as a name or a condition's value stands for the values of call 2, which comes before.

The flat form is that of CRAG's official RAG + KG baseline: a `domain`, and names with the aspect in question.
As in the baseline, only films, their people and years, and entries of an encyclopaedia are looked up. Text in
neither form raises UnreadableReply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from raypipe.contrib.crag.language import program as p
from raypipe.contrib.crag.language.answer_rules import RULES
from raypipe.contrib.crag.schema import TABLES
from raypipe.text.replies import UnreadableReply

FUNCTIONS: Final[Mapping[str, str]] = {
    "movie": "get_movie",
    "person": "get_person",
    "cast": "get_movie_person_cast",
    "crew": "get_movie_person_crew",
    "oscar": "get_movie_person_oscar",
    "price": "get_stock_price",
    "dividend": "get_stock_dividend",
    "pe_ratio": "get_stock_pe_ratio",
    "market_cap": "get_stock_market_cap",
    "eps": "get_stock_eps",
    "artist": "get_person",
    "song": "get_song",
    "grammy_artist": "get_grammy_person",
    "grammy_song": "get_grammy_song",
    "year": "get_grammy_year",
    "nba": "get_nba_on_date",
    "soccer": "get_soccer_on_date",
    "last_game": "get_soccer_last_game",
    "next_game": "get_soccer_next_game",
    "entity": "get_open",
}
"""Function in a reply -> call of the language. WeKnow's three for music are artist, song and year."""

OPS: Final = ("eq", "neq", "ge", "le", "gt", "lt")
TAKES: Final = ("first", "all", "count", "mean")
MOST_CALLS: Final = 4
MOST_CONDITIONS: Final = 3
_TIED: Final = frozenset({"cast", "crew", "oscar"})
_TIMED: Final = frozenset({"price", "nba", "soccer"})
_BEFORE = re.compile(r"\$([0-9])")


def program_of(text: str) -> tuple[str, str]:
    """Converts a reply in WeKnow's form to a program and its rule (`answer_rules.RULES`). Without calls the
    program is "None". Fields that may be empty may be omitted. Raises UnreadableReply if the text is no
    object of conf/schemas/functions.yaml.

    >>> call = {"function": "song", "name": "last song", "attribute": "author"}
    >>> program_of(json.dumps({"calls": [call], "operation": "value"}))
    ('get_song("last song")["author"]', 'value')
    """
    tree = _json(text, "JSON object of function calls")
    if not isinstance(tree, dict) or not isinstance(tree.get("calls"), list):
        raise UnreadableReply('expected a JSON object with a list of "calls"')
    calls, rule = list(tree["calls"]), tree.get("operation", "value")
    if not isinstance(rule, str) or rule not in RULES:
        raise UnreadableReply(f"operation: expected one of {', '.join(RULES)}, found {str(rule)[:40]!r}")
    if len(calls) > MOST_CALLS:
        raise UnreadableReply(f"calls: expected at most {MOST_CALLS}, found {len(calls)}")
    if not calls:
        return "None", rule
    if isinstance(calls[-1], dict):
        rule, calls[-1] = _whole(rule, calls[-1])
    lines = [line for n, call in enumerate(calls, 1) for line in _lines(n, call)]
    return p.print_program(p.Program(tuple(lines))), rule


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:
        raise UnreadableReply(f"expected a {what}: {e}") from e


def _whole(rule: str, last: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Reconciles the operation with the last call's `take`: both may set how many values are wanted. A list
    or a count takes all values if the call has no `take`. If the call itself counts, its count is the
    value."""
    take = last.get("take")
    if rule in ("list", "count") and not take:
        return rule, {**last, "take": "all"}
    if (rule, take) == ("count", "count"):
        return "value", last
    return rule, last


def _lines(n: int, call: Any) -> list[p.Line]:
    """Translates the n-th call to a line, or to a line and a `sort`. The `sort` orders the rows; it also
    filters them if the function itself takes no conditions."""
    if not isinstance(call, dict):
        raise UnreadableReply(f"calls: expected objects, found {str(call)[:40]!r}")
    function = _text(call, "function", n)
    if function not in FUNCTIONS:
        known = ", ".join(FUNCTIONS)
        raise UnreadableReply(f"call {n}: there is no function {function[:40]!r}; known: {known}")
    take = _text(call, "take", n) or "first"
    if take not in TAKES:
        raise UnreadableReply(f"call {n}: take: expected one of {', '.join(TAKES)}, found {take[:40]!r}")
    where, order = _conditions(call, n), _text(call, "order", n)
    tied = where if function in _TIED else ()
    rest = () if function in _TIED else where
    tail = p.Tail(_text(call, "attribute", n) or None, take == "count")
    query = p.Query(FUNCTIONS[function], _args(function, call, n), tied, everything=take != "first")
    if not order and not rest:
        whole = p.Query(query.name, query.args, tied, tail, take in ("all", "mean"))
        return [p.Mean(whole)] if take == "mean" else [whole]
    everything = p.Query(query.name, query.args, tied, everything=True)
    key = order.removeprefix("-") or rest[0].key
    tail = tail if take != "first" else p.Tail(tail.key, first=1)
    sort = p.Sort(rest, key, order.startswith("-"), tail)
    return [everything, p.Mean(sort) if take == "mean" else sort]


def _args(function: str, call: Mapping[str, Any], n: int) -> tuple[p.Arg, ...]:
    names: list[p.Arg] = [_name(call, "name", n)]
    if function in _TIED:
        names.append(_name(call, "other", n))
    elif isinstance(names[0], p.Nothing):
        raise UnreadableReply(f"call {n}: {function}: expected a name, found none")
    if function == "year" and isinstance(names[0], p.Text) and names[0].value.isdecimal():
        names = [p.Number(int(names[0].value[:9]))]
    if function in _TIMED:
        names.append(p.Text(_text(call, "time", n) or "latest"))
    return tuple(names)


def _name(call: Mapping[str, Any], field: str, n: int) -> p.Arg:
    value = _text(call, field, n)
    if (number := _earlier(value, field, n)) is not None:
        return p.Star() if number == n - 1 else p.Star(number)
    return p.Text(value) if value else p.Nothing()


def _earlier(value: str, field: str, n: int) -> int | None:
    """Parses a reference to an earlier call: "$1" -> 1; else None. Raises UnreadableReply for later calls."""
    if (found := _BEFORE.fullmatch(value)) is None:
        return None
    number = int(found[1])
    if not 1 <= number < n:
        known = f"$1 to ${n - 1}" if n > 1 else "a name, as no call comes before"
        raise UnreadableReply(f"call {n}: {field}: expected {known}, found {value}")
    return number


def _conditions(call: Mapping[str, Any], n: int) -> tuple[p.Cond, ...]:
    given = call.get("conditions", [])
    if not isinstance(given, list) or len(given) > MOST_CONDITIONS:
        raise UnreadableReply(f"call {n}: conditions: expected a list of at most {MOST_CONDITIONS}")
    out = []
    for c in given:
        if not isinstance(c, dict) or c.get("op") not in OPS:
            raise UnreadableReply(f"call {n}: conditions: expected key, op ({', '.join(OPS)}) and value")
        key, value = _text(c, "key", n), _text(c, "value", n)
        if not key or not value:
            raise UnreadableReply(f"call {n}: conditions: expected a key and a value, found none")
        number, earlier = re.fullmatch(r"-?\d{1,12}", value, re.ASCII), _earlier(value, "value", n)
        meant = p.Number(int(value)) if number else p.Text(value) if earlier is None else p.Star(earlier)
        out.append(p.Cond(c["op"], key, meant))
    return tuple(out)


def _text(tree: Mapping[str, Any], field: str, n: int) -> str:
    """Returns a field's text or number as text of at most 100 characters, without quotes, backslashes, line
    ends and control characters: no name of the language contains them."""
    value = tree.get(field, "")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UnreadableReply(f"call {n}: {field}: expected text, found {str(value)[:40]!r}")
    return " ".join(re.sub(r'["\\\x00-\x1f]', " ", str(value)).split())[:100]


_YEAR = re.compile(r"\d{4}", re.ASCII)
MOST_NAMES: Final = 5  # used of one field; a longer list just enumerates everything
_FIELDS: Final = TABLES["movie"].keys() - {"id", "year"}
"""Fields of a film itself; casts and crews have their own tables."""


def flat_program(text: str) -> str:
    """Converts a reply in the flat form to a program: "None" if there is nothing to look up.

    Raises UnreadableReply if the text is no JSON object.

    >>> flat_program('{"domain": "movie", "movie_name": "velora, echo", "movie_aspect": "length"}')
    'get_movie("velora")["length"]\\nget_movie("echo")["length"]'
    >>> flat_program('{"domain": "music", "song_name": "last song"}')
    'None'
    """
    tree = _json(text, "flat JSON object")
    if not isinstance(tree, dict):
        raise UnreadableReply("expected a flat JSON object")
    match tree.get("domain"):
        case "encyclopedia" | "other":
            lines = [p.Query("get_open", (p.Text(n),)) for n in _names(tree, "main_entity")[:1]]
        case "movie":
            lines = [
                *(q for n in _names(tree, "movie_name") for q in _film(n, tree.get("movie_aspect"))),
                *(q for n in _names(tree, "person") for q in _person(n, tree.get("person_aspect"))),
                *(q for n in _names(tree, "year") if _YEAR.fullmatch(n) for q in _year(int(n))),
            ]
        case _:
            lines = []
    return p.print_program(p.Program(tuple(lines))) if lines else "None"


def _names(tree: Mapping[str, Any], field: str) -> list[str]:
    """Returns the names in a field, which holds text with commas, a number, or a list of texts."""
    given = tree.get(field)
    names = given if isinstance(given, list) else [] if given is None else str(given).split(",")
    clean = (" ".join(str(n).replace('"', " ").replace("\\", " ").split())[:100] for n in names)
    return [n for n in clean if n and n.isprintable()][:MOST_NAMES]


def _film(name: str, aspect: Any) -> list[p.Query]:
    if aspect in ("cast", "crew"):
        return [_tied(aspect, p.Text(name), p.Nothing(), key="name")]
    return [p.Query("get_movie", (p.Text(name),), tail=p.Tail(aspect))] if aspect in _FIELDS else []


def _person(name: str, aspect: Any) -> list[p.Query]:
    match aspect:
        case "birthday":
            return [p.Query("get_person", (p.Text(name),), tail=p.Tail("birthday"))]
        case "oscar_awards":
            return [_tied("oscar", p.Nothing(), p.Text(name))]
        case "acted_movies":
            return [_tied("cast", p.Nothing(), p.Text(name), key="movie_name")]
        case "directed_movies":
            job = p.Cond("eq", "job", p.Text("Director"))
            return [_tied("crew", p.Nothing(), p.Text(name), job, key="movie_name")]
    return []


def _year(year: int) -> list[p.Query]:
    """Returns the calls for all films of a year and for its Oscars."""
    at = p.Cond("eq", "year", p.Number(year))
    films = p.Query("get_movie", (p.Nothing(),), (at,), p.Tail("title"), everything=True)
    return [films, _tied("oscar", p.Nothing(), p.Nothing(), at, key="film")]


def _tied(function: str, film: p.Arg, person: p.Arg, *where: p.Cond, key: str | None = None) -> p.Query:
    return p.Query(FUNCTIONS[function], (film, person), where, p.Tail(key), everything=True)
