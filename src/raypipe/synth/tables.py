"""The world's knowledge graph as Parquet: one file per relation, `kg/NAME.parquet`.

Dates are strings `YYYY-MM-DD`, as the mock API writes them, and what is not known yet is null. Each table's
columns are the keys that programs use (`cast`: movie_name, name, character, ...), so a call compiles to a
query over one or two of them. Their types are those of the world's dataclasses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from datetime import date
from operator import attrgetter
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from raypipe.synth.world.film import Credit, Movie, Oscar, Person, Role
from raypipe.synth.world.market import Bar, Company, Dividend, Minute
from raypipe.synth.world.music import Artist, Charted, Grammy, Song
from raypipe.synth.world.places import Entity
from raypipe.synth.world.sport import NbaGame, Side, Team
from raypipe.synth.world.world import World

TYPES: dict[Any, pa.DataType] = {
    str: pa.string(),
    date: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    tuple[str, ...]: pa.list_(pa.string()),
    tuple[tuple[str, str], ...]: pa.map_(pa.string(), pa.string()),
}


@dataclass(frozen=True, slots=True)
class Table:
    """A relation: the rows of a class, with some of their attributes as columns."""

    row: type
    rows: Callable[[World], Iterable[Any]]
    columns: str = ""  # NAME, or NAME=PATH through attributes; "" for all fields

    def paths(self) -> dict[str, str]:
        """Column -> path of its value in a row."""
        parts = self.columns.split() or [f.name for f in fields(self.row)]
        return {name: path or name for name, _, path in (part.partition("=") for part in parts)}


def _type(row: Any, path: str) -> Any:
    """The type of an attribute of an attribute, without None."""
    name, _, rest = path.partition(".")
    found = getattr(row, name, None)
    hints = get_type_hints(found.fget if isinstance(found, property) else row)
    kind = hints["return" if isinstance(found, property) else name]
    if isinstance(kind, UnionType):
        kind = get_args(kind)[0]
    return _type(kind, rest) if rest else kind


IN_FILM = "movie_id=movie.id movie_name=movie.title person_id=person.id name=person.name"
OF_FILM = "year=movie.year release_date=movie.release_date"
TABLES: dict[str, Table] = {
    "person": Table(Person, lambda w: w.film.people),
    "movie": Table(
        Movie,
        lambda w: w.film.movies,
        "id title release_date original_title original_language budget revenue rating genres length year",
    ),
    "cast": Table(Role, lambda w: w.film.cast, f"{IN_FILM} character gender=person.gender order {OF_FILM}"),
    "crew": Table(Credit, lambda w: w.film.crew, f"{IN_FILM} job {OF_FILM}"),
    "oscar": Table(Oscar, lambda w: w.film.oscars),
    "company": Table(
        Company,
        lambda w: w.market.companies,
        "ticker name short_name=short sector headquarters ceo founded market_cap eps pe_ratio",
    ),
    "price": Table(Bar, lambda w: (b for bars in w.market.bars.values() for b in bars.values())),
    "price_detail": Table(Minute, lambda w: (m for rows in w.market.minutes.values() for m in rows)),
    "dividend": Table(Dividend, lambda w: (d for rows in w.market.dividends.values() for d in rows)),
    "artist": Table(
        Artist, lambda w: w.music.artists, "name group birth_place birth_date end_date members music"
    ),
    "song": Table(Song, lambda w: w.music.songs, "name author release_country release_date"),
    "grammy": Table(Grammy, lambda w: w.music.grammys),
    "billboard": Table(Charted, lambda w: w.music.chart),
    "team": Table(Team, lambda w: w.sport.teams.values(), "name sport league city alias stadium founded"),
    "nba_game": Table(
        NbaGame,
        lambda w: w.sport.nba_games,
        "game_id season_id season_type date team_name_home=home team_name_away=away "
        "wl_home wl_away pts_home pts_away",
    ),
    "soccer_game": Table(
        Side,
        lambda w: (s for t in w.sport.soccer for s in w.sport.sides[t.name]),
        "league season team date time day round venue result GF=scored GA=let_in opponent "
        "Captain=captain Attendance=attendance Referee=referee",
    ),
    "entity": Table(
        Entity, lambda w: w.places.entities, "name type=kind summary_text=summary summary_structured=facts"
    ),
}
"""`price_detail.time` is HH:MM Eastern; soccer has two rows a game, one per team."""

SCHEMAS: dict[str, dict[str, pa.DataType]] = {
    name: {column: TYPES[_type(table.row, path)] for column, path in table.paths().items()}
    for name, table in TABLES.items()
}
"""Table -> column -> type."""


def _cell(value: Any) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    return None if value == "" else value


def write_tables(world: World, folder: Path) -> dict[str, int]:
    """Writes every table under `folder` and gives the number of rows of each."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = {}
    for name, table in TABLES.items():
        schema = pa.schema(list(SCHEMAS[name].items()))
        take = attrgetter(*table.paths().values())
        columns = zip(*(map(_cell, take(row)) for row in table.rows(world)), strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        made = pa.Table.from_arrays(arrays, schema=schema)
        pq.write_table(made, folder / f"{name}.parquet", compression="zstd")
        counts[name] = made.num_rows
    return counts
