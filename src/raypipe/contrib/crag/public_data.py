"""Public data as sentences: built once from published CSV files, then looked up by year or name.

There are four kinds (db3, the public-data pathway): Oscar nominations and Grammy winners by year, films of
MovieLens by title, shares by ticker and company. The table is a Parquet file of texts with a year or names.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raypipe.contrib.crag.link import NamePool, Strictness
from raypipe.contrib.crag.names import fold, short_company
from raypipe.contrib.crag.records import Level, Near
from raypipe.contrib.crag.sentences import ordinal
from raypipe.core.errors import ConfError, DataError

if TYPE_CHECKING:
    from raypipe.contrib.crag.references import FactsRef  # it imports this module


Kind: TypeAlias = Literal["oscar", "grammy", "movielens", "stocks"]
Form: TypeAlias = Literal["prose", "attributes"]
"""Form of the sentences: prose as in db3's code, which differs by kind, or attributes as in its paper."""
SCHEMA: Final = pa.schema([("year", pa.int32()), ("names", pa.list_(pa.string())), ("text", pa.string())])
MOST_CHARS: Final = 4_000  # of one text: a film's cast alone can have hundreds of names
_MAKE: Final = "`raypipe facts build` makes such a file"
STRICT: Final = Strictness()  # db3 takes the best Jaccard of words; here the best must be at least .5

Row: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PublicFact:
    text: str
    year: int | None = None  # of a fact that is looked up by year
    names: tuple[str, ...] = ()  # of a fact that is looked up by name


Maker: TypeAlias = Callable[[Row, Mapping[str, str]], PublicFact | None]
"""Function that makes a fact from a CSV line and the texts of casts; None if a value is missing."""


@dataclass(frozen=True, slots=True)
class BuildSummary:
    facts: int
    lines: int  # of the CSV, without its header
    skipped: int  # lines that lack a required column


def build(
    source: Path, kind: Kind, out: Path, credits: Path | None = None, form: Form = "prose"
) -> BuildSummary:
    """Builds the table from a CSV file. `credits` is MovieLens' other file, with casts and crews.

    Raises DataError if a file lacks an expected column, and ConfError if `credits` comes with another kind.
    """
    if credits is not None and kind != "movielens":
        raise ConfError(f"--credits {credits}: expected only with --source movielens")
    needed, make = _KINDS[kind]
    rows = list(_rows(source, needed))
    people = {} if credits is None else _people(credits)
    made = [make(row, people) for row in rows]
    if form == "attributes":
        texts = (_described(row, people) for row in rows)
        made = [fact and replace(fact, text=text) for fact, text in zip(made, texts, strict=True)]
    facts = [fact for fact in made if fact is not None and fact.text]
    if kind == "grammy" and form == "prose":
        years: dict[int, list[str]] = {}
        for fact in facts:
            years.setdefault(fact.year or 0, []).append(fact.text)
        facts = [PublicFact(f"Grammy awards of {y}: {' '.join(years[y])}", y) for y in sorted(years)]
    if not facts:
        raise DataError(f"{source}: expected lines of kind {kind}, found none that could be used")
    valid = (f.text.encode("utf-8", "replace").decode().replace("\0", " ") for f in facts)
    columns = {
        "year": [f.year for f in facts],
        "names": [list(f.names) for f in facts],
        "text": [" ".join(text.split())[:MOST_CHARS] for text in valid],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns, schema=SCHEMA), out, compression="zstd")
    return BuildSummary(len(facts), len(rows), made.count(None))


def _rows(source: Path, needed: Sequence[tuple[str, ...]]) -> Iterator[Row]:
    """Yields each line as column -> value, with columns in lower case. Raises DataError if the file lacks all
    names of a group in `needed`, or cannot be read."""
    csv.field_size_limit(min(sys.maxsize, 16 << 20))
    try:
        with source.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            reader = csv.DictReader(file)
            columns = {(name or "").strip().lower() for name in reader.fieldnames or ()}
            for names in needed:
                if not columns & set(names):
                    found = ", ".join(sorted(columns))[:200]
                    raise DataError(f"{source}: expected a column {' or '.join(names)}, found {found}")
            for row in reader:
                yield {
                    k.strip().lower(): (v or "").strip() if isinstance(v, str) else ""
                    for k, v in row.items()
                    if isinstance(k, str)
                }
    except (OSError, csv.Error) as e:
        raise DataError(f"{source}: cannot be read as CSV: {e}") from e


def _first(row: Row, *names: str) -> str:
    return next((row[n] for n in names if row.get(n)), "")


def _year(text: str) -> int | None:
    return int(text[:4]) if len(text) >= 4 and text[:4].isdecimal() and text[:4].isascii() else None


def _oscar(row: Row, people: Mapping[str, str]) -> PublicFact | None:
    year, category, name, film = _year(row["year_ceremony"]), row["category"], row["name"], row["film"]
    if year is None or not category or not (name or film):
        return None
    number = row.get("ceremony", "")
    at = f" at the {ordinal(int(number))} Academy Awards" if number.isdecimal() else ""
    won = row["winner"].lower() in ("true", "1", "yes")
    did = "won the Oscar" if won else "was nominated for the Oscar but did not win"
    of = f" for the film {film}" if name and film else ""
    return PublicFact(f"In {year}{at}, {name or film} {did} in the category {category}{of}.", year)


_BEST: Final = frozenset({"best new artist", "song of the year", "album of the year"})


def _grammy(row: Row, people: Mapping[str, str]) -> PublicFact | None:
    """Describes a best new artist, song or album of the year with its maker; other winners have no text."""
    year, category, nominee = _year(row["year"]), fold(row["category"]) or "", row["nominee"]
    if year is None or not nominee or row["winner"].lower() in ("false", "0", "no"):
        return None
    maker = _first(row, "artist", "workers")
    by = f" by {maker}" if maker and category != "best new artist" else ""
    return PublicFact(f"The {category} is {nominee}{by}." if category in _BEST else "", year)


_DULL_COLUMNS = "id imdb_id poster_path homepage video backdrop_path overview img published_at updated_at"
_DULL: Final = frozenset(_DULL_COLUMNS.split())


def _described(row: Row, people: Mapping[str, str]) -> str:
    """Describes each column of a line in a sentence. A list of objects becomes a list of their names."""
    named = (
        (k, ", ".join(x["name"] for x in _items(v)) if v.startswith("[") else v)
        for k, v in row.items()
        if k not in _DULL
    )
    parts = [f"The {key.replace('_', ' ')} is {value}." for key, value in named if value]
    return " ".join([*parts, people.get(row.get("id", ""), "")])


def _movielens(row: Row, people: Mapping[str, str]) -> PublicFact | None:
    names = tuple(dict.fromkeys(n for n in (row["title"], row.get("original_title", "")) if n))
    if not names:
        return None
    rest = {k: v for k, v in row.items() if k != "title"}
    return PublicFact(f"The title is {names[0]}. {_described(rest, people)}", names=names)


def _people(credits: Path) -> dict[str, str]:
    """Reads casts and crews: film id -> "the <job> is X; X plays Y;"."""
    people = {}
    for row in _rows(credits, [("id", "movie_id"), ("cast",), ("crew",)]):
        cast = [f"{p['name']} plays {p['character']};" for p in _items(row["cast"]) if p.get("character")]
        crew = [f"the {p['job']} is {p['name']};" for p in _items(row["crew"]) if p.get("job")]
        # The head of each list: an extra in a crowd must not push the director out of a bounded text.
        people[_first(row, "id", "movie_id")] = " ".join([*crew[:20], *cast[:30]])
    return people


def _items(text: str) -> list[dict[str, Any]]:
    """Parses a list of objects in JSON or as a Python literal (MovieLens has both), without running code."""
    if not text.startswith("["):
        return []
    try:
        items = json.loads(text)
    except ValueError:
        try:
            items = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return []
    return [x for x in items if isinstance(x, dict) and isinstance(x.get("name"), str)]


def _stocks(row: Row, people: Mapping[str, str]) -> PublicFact | None:
    ticker, name = _first(row, *_TICKER), _first(row, *_COMPANY)
    parts = [f"the {what} is {v}" for what, names in _MEASURES if (v := _first(row, *names))]
    if not ticker or not name or not parts:
        return None
    return PublicFact(f"the information of {name}({ticker}): {', '.join(parts)}.", names=(ticker, name))


_TICKER: Final = ("symbol", "ticker")
_COMPANY: Final = ("name", "company", "company name", "security name")
_MEASURES: Final = (
    ("market capitalization", ("market cap", "market_cap", "marketcap", "market capitalization")),
    ("earnings per share (eps)", ("eps", "earnings/share", "earnings per share", "eps (ttm)")),
    ("p/e ratio", ("pe", "p/e", "pe ratio", "pe_ratio", "p/e ratio", "price/earnings", "pe ratio (ttm)")),
)
_KINDS: Final[Mapping[Kind, tuple[Sequence[tuple[str, ...]], Maker]]] = {
    "oscar": ([("year_ceremony",), ("category",), ("name",), ("film",), ("winner",)], _oscar),
    "grammy": ([("year",), ("category",), ("nominee",), ("winner",)], _grammy),
    "movielens": ([("title",)], _movielens),
    "stocks": ([_TICKER, _COMPANY], _stocks),
}
"""Kind -> groups of columns, of which a file has one each, and the function that makes a fact."""


# ---------------------------------------------------------------- looked up


NamedTexts: TypeAlias = tuple[NamePool, Mapping[str, list[str]]]
"""Names of a table, and folded name -> texts about it."""


@dataclass(slots=True)
class FactsTable:
    """Opened table of public data: sentences, looked up by year or by name."""

    years: dict[int, list[str]] = field(default_factory=dict)
    texts: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)  # text, names as written
    shelves: dict[tuple[bool, str], NamedTexts] = field(default_factory=dict)
    """(company or not, identity of the embedder or "") -> indexed texts, built on first use."""

    def of_year(self, year: int) -> tuple[str, ...]:
        """Returns the sentences about a year, in the order of the source; () if there are none."""
        return tuple(self.years.get(year, ()))

    async def about(
        self, name: str, levels: Sequence[Level], company: bool, near: Near | None = None
    ) -> tuple[str, ...]:
        """Returns the sentences about everything with this name; () if the table lacks the name. The first of
        `levels` that finds a name links it. `company`: names are those of companies, so legal forms such as
        "Inc." are ignored. `near` is needed for the level `embedding`."""
        key = (company, near.model if near else "")
        if key not in self.shelves:
            self.shelves[key] = _named_texts(self.texts, company)
        pool, texts = self.shelves[key]
        strict = Strictness(least_near=near.least) if near else STRICT
        for level in levels:
            if found := await pool.at(level, name, strict, near.vectors if near else None):
                return tuple(texts[found[0]])
        return ()

    def add(self, text: str, year: int | None, names: Sequence[str]) -> None:
        if year is not None:
            self.years.setdefault(year, []).append(text)
        if names:
            self.texts.append((text, tuple(names)))
            self.shelves.clear()


def _named_texts(rows: Sequence[tuple[str, tuple[str, ...]]], company: bool) -> NamedTexts:
    pool, texts = NamePool(company), dict[str, list[str]]()
    for text, names in rows:
        forms: dict[str, str] = {}  # folded -> as written
        for name in names:
            folded = fold(name) or ""
            for form in (folded, short_company(folded)) if company else (folded,):
                forms.setdefault(form, name)
        for key, name in forms.items():
            if key:
                texts.setdefault(key, []).append(text)
                pool.names.setdefault(key, name)
                pool.add(key, key)
    return pool, texts


def open_facts(ref: FactsRef) -> FactsTable:
    """Opens an entry's table. Raises ConfError if the entry has no location or the file is not of its
    version, and DataError if the file is no table of facts."""
    ref.require_place()
    table, version = read_facts(Path(ref.where))
    ref.require_version(version)
    opened = FactsTable()
    for row in table.to_pylist():
        opened.add(row["text"], row["year"], row["names"] or ())
    return opened


def facts_version(path: Path) -> str:
    return read_facts(path)[1]


def names_of(table: pa.Table) -> int:
    """Returns the number of names in a table of facts."""
    return pc.sum(pc.list_value_length(table["names"])).as_py() or 0


def read_facts(path: Path) -> tuple[pa.Table, str]:
    """Reads a file once; returns its table and its version, which is a digest of the same bytes."""
    try:
        content = path.read_bytes()
        table = pq.read_table(pa.BufferReader(content))
    except (OSError, pa.ArrowException) as e:
        raise DataError(f"{path}: cannot be read as a table of facts: {e}") from e
    if table.schema.names != SCHEMA.names:
        expected, found = (", ".join(names) for names in (SCHEMA.names, table.schema.names))
        raise DataError(f"{path}: expected the columns {expected}, found {found}. {_MAKE}")
    try:
        table = table.cast(SCHEMA)
    except pa.ArrowException as e:
        raise DataError(f"{path}: expected columns as {_MAKE.split(' makes')[0]} writes them: {e}") from e
    return table, f"facts:{hashlib.blake2b(content, digest_size=16).hexdigest()}"
