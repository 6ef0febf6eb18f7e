"""The invented dataset as files, written one question at a time: memory does not grow.

questions.jsonl   one question a line
kg/NAME.parquet   the world's knowledge graph, one file per relation
synth.json        seed, sizes, counts; written last, so a folder that has it is complete

Dates in the graph are strings `YYYY-MM-DD`, as in CRAG's mock API. Values that are not known yet are null.
A table's columns are the keys that programs use (`cast`: movie_name, name, character, ...), so a call
compiles to a query over one or two tables. Column types follow the world's dataclasses.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from datetime import date
from operator import attrgetter
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from raypipe.contrib.world.ask.questions import SynthQuestion, pose
from raypipe.contrib.world.pages import Pages, SearchResult
from raypipe.contrib.world.world.film import Credit, Movie, Oscar, Person, Role
from raypipe.contrib.world.world.market import Bar, Company, Dividend, Minute
from raypipe.contrib.world.world.music import Artist, Charted, Grammy, Song
from raypipe.contrib.world.world.places import Entity
from raypipe.contrib.world.world.sport import NbaGame, Side, Team
from raypipe.contrib.world.world.world import World, build_world
from raypipe.core.errors import ConfError

VERSION = 1  # increased when the same seed gives other questions, pages or tables
FEWEST_CHARS = 1_000  # of HTML; a shorter page has no room for its frame and a fact
QUESTIONS, MANIFEST = "questions.jsonl", "synth.json"


@dataclass(frozen=True, slots=True)
class SynthSummary:
    folder: Path
    questions: int
    citations: int  # search results, repeated and empty ones included
    pages: int  # distinct and not empty
    empty: int  # citations whose page is empty
    bytes: int  # size of questions.jsonl
    seconds: float


def _encoded(posed: SynthQuestion, results: list[SearchResult]) -> bytes:
    """Returns a question's line: CRAG's fields, then fields that only an invented world can fill."""
    asked, stated = posed.asked, any(r.states for r in results)
    tree = {
        "interaction_id": posed.id,
        "query_time": posed.now.stamp,
        "domain": posed.template.domain,
        "question_type": posed.template.type,
        "static_or_dynamic": posed.template.dynamism,
        "query": posed.text,
        "answer": asked.answer,
        "alt_ans": list(asked.alternatives),
        "split": posed.split,
        "popularity": posed.popularity,
        "kg_answerable": posed.kg_answerable,
        "premise_false": posed.premise_false,
        "answer_on_pages": stated,
        "template": f"{posed.template.id}/{posed.phrasing}",
        "kg_program": asked.program,
        "kg_rule": asked.rule if asked.program else "",
        "search_results": [
            {f.name: getattr(r, f.name) for f in fields(r) if f.name.startswith("page_")} for r in results
        ],
    }
    return json.dumps(tree, ensure_ascii=False, separators=(",", ":")).encode()


def _prepare(folder: Path) -> None:
    """Creates the folder, or deletes an earlier dataset's manifest. Raises ConfError for any other file."""
    folder.mkdir(parents=True, exist_ok=True)
    strangers = sorted(p.name for p in folder.iterdir() if p.name not in (QUESTIONS, "kg", MANIFEST))
    if strangers:
        more = f" and {len(strangers) - 1} more" if len(strangers) > 1 else ""
        expected = "expected an empty folder or an earlier dataset of this kind"
        raise ConfError(f"{folder}: {expected}, found {strangers[0]!r}{more}. Name another folder.")
    (folder / MANIFEST).unlink(missing_ok=True)


def write(
    folder: Path,
    questions: int,
    pages: int = 50,
    seed: int = 1,
    page_chars: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SynthSummary:
    """Writes a dataset about the world of `seed`: questions with `pages` search results each.

    `page_chars`: HTML characters of a page, give or take a quarter; None: real sizes (median about 250 KB).
    `progress` is called with (questions done, questions in total). The same arguments give the same bytes,
    and the first n questions do not depend on the number of questions. Raises ConfError if a size is out of
    range, and if the folder holds other files.
    """
    if questions < 1 or pages < 1:
        raise ConfError(f"synth: expected at least one question and page, found {questions} and {pages}.")
    if folder.exists() and not folder.is_dir():
        raise ConfError(f"synth: expected a folder at {folder}, found a file. Name another folder.")
    if page_chars is not None and page_chars < FEWEST_CHARS:
        raise ConfError(f"synth: expected page_chars of at least {FEWEST_CHARS}, found {page_chars}.")
    started = time.perf_counter()
    _prepare(folder)
    world = build_world(seed)
    tables = write_tables(world, folder / "kg")
    maker, shared = Pages(world, page_chars), set[str]()
    distinct = empty = 0
    with (folder / QUESTIONS).open("wb") as file:
        for number in range(questions):
            posed = pose(world, number)
            results = maker.results(posed, pages)
            found = {r.page_result for r in results if r.page_result}
            common = {r.page_url for r in results if r.shared and r.page_result}
            distinct += len(found) - len(common & shared)
            shared |= common
            empty += sum(not r.page_result for r in results)
            file.write(_encoded(posed, results) + b"\n")
            if progress is not None:
                progress(number + 1, questions)
        size = file.tell()
    manifest = {
        "version": VERSION,
        "seed": seed,
        "questions": questions,
        "pages": pages,
        "page_chars": page_chars,
        "tables": tables,
        "citations": questions * pages,
        "distinct_pages": distinct,
        "empty_citations": empty,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    seconds = time.perf_counter() - started
    return SynthSummary(folder, questions, questions * pages, distinct, empty, size, seconds)


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
    """A relation of the graph: rows of one class, and the attributes that become columns."""

    row: type
    rows: Callable[[World], Iterable[Any]]
    columns: str = ""  # NAME, or NAME=PATH such as `name=person.name`; "": all fields

    def paths(self) -> dict[str, str]:
        """Returns column -> attribute path of its value in a row."""
        parts = self.columns.split() or [f.name for f in fields(self.row)]
        return {name: path or name for name, _, path in (part.partition("=") for part in parts)}


def _type(row: Any, path: str) -> Any:
    """Returns the type at a path of attributes (a name, or two with a dot between them), without None."""
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
    "price_detail": Table(
        Minute,
        lambda w: (m for rows in w.market.minutes.values() for m in rows),
        "ticker date time open high low close volume",
    ),
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
"""Name -> table. `price_detail.time` is HH:MM Eastern. `soccer_game` has two rows per game, one per team."""

SCHEMAS: dict[str, dict[str, pa.DataType]] = {
    name: {column: TYPES[_type(table.row, path)] for column, path in table.paths().items()}
    for name, table in TABLES.items()
}
"""Table -> column -> Arrow type."""


def _cell(value: Any) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    return None if value == "" else value


def write_tables(world: World, folder: Path) -> dict[str, int]:
    """Writes every table to `folder` as Parquet. Returns table -> number of rows."""
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
