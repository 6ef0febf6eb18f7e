"""Sentences for rows: each names the entity, the attribute and the value.

A model that reads them can thus notice that a fact is about something else, and abstain.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping
from typing import Any, Final

from raypipe.contrib.crag.relation import FACTS, Relation

MOST_SENTENCES: Final = 10  # rows described; a model reads no more (db3, section 2.6)
MOST_CHARS: Final = 600  # of one value
_HIDDEN: Final = frozenset({"id", "order", "website", "associated_acts", "coordinates", "mottoeng"})
_MARKUP: Final = re.compile(  # a name in MediaWiki has 255 bytes at most; a tag seldom has 100
    r"<ref\b[^>]{0,1000}+>.*?(?:</ref>|\Z)|\[\[(?:[^\]|]{0,300}+\|)?|\]\]", re.DOTALL
)

Row = Mapping[str, Any]


def sentences(
    relation: Relation,
    rows: tuple[Row, ...],
    key: str | None,
    count: int | None = None,
    mean: float | None = None,
) -> tuple[str, ...]:
    """Describes rows in sentences: one per row, at most ten, then the number of further rows. A count or a
    mean gives one sentence.

    `key`: the attribute that each sentence tells; None: all attributes."""
    about = f" of {relation.about}" if relation.about else ""
    if count is not None:
        what = f"{_words(key)} values" if key else f"{_words(relation.noun)} rows"
        return (f"The number of {what}{about} is {count}.",)
    if mean is not None:
        of = f"the {len(rows)} {_words(relation.noun)} rows{about}"
        return (f"The average {_words(key or '')} of {of} is {mean:.10g}.",)
    if not rows and relation.noun.endswith("game"):
        return (f"There is no match{about}.",)
    out = list(relation.notes)
    out += [s for s in (_row(relation, row, key) for row in rows[:MOST_SENTENCES]) if s]
    if len(rows) > MOST_SENTENCES:
        out.append(f"There are {len(rows) - MOST_SENTENCES} more {_words(relation.noun)} rows.")
    return (*out, *_together(relation, rows))


def _row(relation: Relation, row: Row, key: str | None) -> str:
    template = _TEMPLATES.get(relation.noun)
    if template is not None:
        return template(row, key, relation)
    entity = _text(row.get(relation.label))
    value = None if key is None else _value(relation, row, key)
    if key is not None and value is not None:
        return f"The {_words(key)} of the {_words(relation.noun)} {entity} is {_text(value)}."
    if key is not None and key in relation.columns:
        return ""
    # All values of a row, and an entity's facts, except the hidden ones.
    flat = [(k, v) for k, v in row.items() if k != FACTS] + list((row.get(FACTS) or {}).items())
    known = [(k, v) for k, v in flat if v not in (None, "", []) and not _hidden(k.lower())]
    facts = [f"the {_words(k)} is {_text(v)}" for k, v in known if k != relation.label]
    return f"About the {_words(relation.noun)} {entity}: {'; '.join(facts)}." if facts else ""


def _hidden(key: str) -> bool:
    return key in _HIDDEN or key.startswith("_") or key.endswith("_id") or "image" in key or "logo" in key


def _value(relation: Relation, row: Row, key: str) -> Any:
    column = relation.column(key)
    if column is not None and column.kind is not None:
        return row.get(column.name)
    wanted = _words(key).lower()
    return next((v for k, v in (row.get(FACTS) or {}).items() if _words(k).lower() == wanted), None)


def _words(key: str) -> str:
    return key.replace("_", " ")


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join("unknown" if v is None else _text(v) for v in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.10g}"
    return " ".join(_MARKUP.sub("", str(value)).split())[:MOST_CHARS]


# ---------------------------------------------------------------- one sentence by kind of row


def _film(row: Row) -> str:
    year = f" ({row['year']})" if row.get("year") is not None else ""
    return f"the movie {row.get('movie_name')}{year}"


def _cast(row: Row, key: str | None, relation: Relation) -> str:
    role = f" played {row['character']}" if row.get("character") else " acted"
    return f"{row.get('name')}{role} in {_film(row)}."


def _crew(row: Row, key: str | None, relation: Relation) -> str:
    return f"The {row.get('job')} of {_film(row)} was {row.get('name')}."


def _oscar(row: Row, key: str | None, relation: Relation) -> str:
    number = row.get("ceremony")
    ceremony = "" if number is None else f", at the {ordinal(number)} Academy Awards"
    film = f" for the film {row['film']}" if row.get("film") else ""
    won = "won the Oscar" if row.get("winner") else "was nominated for the Oscar but did not win"
    who = f"{row.get('name')} {won} in the category {row.get('category')}"
    return f"In {row.get('year')}{ceremony}, {who}{film}."


def ordinal(n: int) -> str:
    """Formats a number as 1st, 2nd, 3rd, 11th, 92nd.

    >>> ordinal(11), ordinal(92), ordinal(103)
    ('11th', '92nd', '103rd')
    """
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


_BARS: Final = ("open", "high", "low", "close", "volume")


def _price(row: Row, key: str | None, relation: Relation) -> str:
    minute = f" at {row['time']} Eastern" if ":" in str(row.get("time")) else ""
    who = f"{row.get('name') or row.get('ticker')} ({row.get('ticker')})"
    if key in (None, "time", "date", "name"):
        prices = ", ".join(f"{k} {_text(row[k])}" for k in _BARS if row.get(k) is not None)
        return f"On {row.get('date')}{minute} the prices of {who} were {prices}."
    return f"On {row.get('date')}{minute} the {_words(key)} of {who} was {_text(_value(relation, row, key))}."


def _dividend(row: Row, key: str | None, relation: Relation) -> str:
    who = f"{row.get('name')} ({row.get('ticker')})"
    return f"On {row.get('date')} {who} paid a dividend of {_text(row.get('value'))} a share."


def _game(row: Row, key: str | None, relation: Relation) -> str:
    team, opponent = row.get("team"), row.get("opponent")
    where = {"home": "at home", "away": "away"}.get(str(row.get("venue")).lower(), "")
    day = f"On {row.get('date')}" + (f" at {row['time']}" if row.get("time") else "")
    if row.get("result") is None and row.get("GF") is None:
        text = f"{day} {team} plays {where} against {opponent}; the result is not known."
    else:
        ended = {"W": "won", "L": "lost", "D": "drew"}.get(str(row.get("result")), "played")
        text = f"{day} {team} {ended} {row.get('GF')}-{row.get('GA')} {where} against {opponent}."
    value = None if key is None else _value(relation, row, key)
    said = ("gf", "ga", "date", "time", "opponent", "result", "venue")
    if value is not None and key is not None and key.lower() not in said:
        text += f" The {_words(key)} of {team} was {_text(value)}."
    return " ".join(text.split())


_TEMPLATES: Final[Mapping[str, Callable[[Row, str | None, Relation], str]]] = {
    "cast": _cast,
    "crew": _crew,
    "oscar": _oscar,
    "price": _price,
    "dividend": _dividend,
    "nba game": _game,
    "soccer game": _game,
}


def _together(relation: Relation, rows: tuple[Row, ...]) -> tuple[str, ...]:
    if len(rows) < 2:
        return ()
    if relation.noun == "price" and len({r.get("ticker") for r in rows}) == 1:
        first, last, name = rows[0], rows[-1], rows[0].get("name")
        days = sorted((str(first.get("date")), str(last.get("date"))))
        parts = []
        for key in _BARS:
            values = [r[key] for r in rows if r.get(key) is not None]
            if values:
                parts.append(f"{key} {_text(round(statistics.fmean(values), 4))}")
        return (
            f"The averages of {name} over {len(rows)} trading days from {days[0]} to {days[1]}: "
            f"{', '.join(parts)}.",
        )
    if relation.noun.endswith("game") and len({r.get("team") for r in rows}) == 1:
        return (_season(rows),)
    return ()


def _season(rows: tuple[Row, ...]) -> str:
    done = [r for r in rows if r.get("result") is not None]
    counts = []
    for result, word in (("W", "won"), ("L", "lost"), ("D", "drew")):
        home = sum(r["result"] == result and str(r.get("venue")).lower() == "home" for r in done)
        every = sum(r["result"] == result for r in done)
        if every or result != "D":
            counts.append(f"{word} {every} ({home} at home, {every - home} away)")
    goals, against = (sum(r.get(k) or 0 for r in done) for k in ("GF", "GA"))
    return (
        f"In these {len(rows)} games {rows[0].get('team')} {', '.join(counts)}; it scored {goals} and its "
        f"opponents {against} in all."
    )
