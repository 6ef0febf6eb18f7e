"""Relation: a call's result as a SELECT with its parameters, and the meaning of its columns. Its projections
are rows, values of a column, and counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from raypipe.contrib.crag.graph import GraphFault
from raypipe.contrib.crag.language.program import Cond, Nothing, Number, Star, Text, Value
from raypipe.contrib.crag.language.time_words import when
from raypipe.contrib.crag.names import fold
from raypipe.contrib.crag.records import Value as GraphValue
from raypipe.contrib.crag.schema import Kind
from raypipe.contrib.crag.tables import Tables, named_values, quoted, read
from raypipe.text.moments import Moment

Sql = tuple[str, tuple[Any, ...]]
Stars: TypeAlias = Mapping[int, Sequence[Any]]
"""Number of the call that a `*` names (0: the line before) -> the values that it stands for."""

ORDER: Final = "_n"  # column with 1, 2, ... in the relation's order
FACTS: Final = "summary_structured"
MOST_ROWS: Final = 1_000  # most rows or values of one line's result; counts, means and sorts use all rows


@dataclass(frozen=True, slots=True)
class Relation:
    """Ordered rows of a call's result. `sql` selects `columns` and ORDER."""

    sql: str
    params: tuple[Any, ...]
    columns: Mapping[str, Kind]
    noun: str  # what one row is about: "movie", "game"
    label: str  # column that names the row
    named: Mapping[str, str] = field(default_factory=dict)  # kind of name -> column, for `*` without a key
    default: str | None = None  # column to use without a key; None: the label
    aliases: Mapping[str, str] = field(default_factory=dict)  # other word -> column
    about: str = ""  # the names and the time of the call, in words
    notes: tuple[str, ...] = ()  # caveats for the reader: a day without trading, ...

    def column(self, key: str) -> Column | None:
        """Resolves a key to a column, or to a fact of an entity; None if there is neither."""
        wanted = (fold(key) or "").replace(" ", "_")
        names = {(fold(name) or "").replace(" ", "_"): name for name in self.columns}
        name = names.get(wanted) or names.get(self.aliases.get(wanted, ""))
        if name is not None:
            return Column(name, f"r.{quoted(name)}", (), self.columns[name])
        if FACTS in self.columns:
            path = f"(SELECT j.value FROM json_each(r.{quoted(FACTS)}) AS j WHERE fold(j.key) = ? LIMIT 1)"
            return Column(key, path, (fold(key.replace("_", " ")),), None)
        return None

    def where(self, conds: Sequence[Cond], now: Moment, stars: Stars) -> Relation:
        """Keeps the rows for which all conditions hold, in their order."""
        if not conds:
            return self
        text, params = conditions(self, conds, now, stars)
        kept = ", ".join([f"r.{quoted(c)}" for c in self.columns] + [f"r.{ORDER}"])
        sql = f"SELECT {kept} FROM ({self.sql}) AS r WHERE {text}"
        return replace(self, sql=sql, params=(*self.params, *params))

    def sorted(self, key: str, descending: bool) -> Relation:
        column = self.column(key)
        if column is None or column.kind in ("list", "map"):
            raise GraphFault("unknown_key", f"sort: there is no column {key} to sort by; {self.known()}")
        by, params = column.ordered()
        kept = ", ".join(f"r.{quoted(c)}" for c in self.columns)
        down = " DESC" if descending else ""
        sql = (
            f"SELECT {kept}, row_number() OVER (ORDER BY {by}{down} NULLS LAST, r.{ORDER}) AS {ORDER} "
            f"FROM ({self.sql}) AS r"
        )
        return replace(self, sql=sql, params=(*params, *self.params))

    def known(self) -> str:
        shown = [c for c in self.columns if c != FACTS]
        return f"a {self.noun} has {', '.join(shown)}"


@dataclass(frozen=True, slots=True)
class Column:
    """SQL expression for a value of a relation's row `r`."""

    name: str
    sql: str
    params: tuple[Any, ...]
    kind: Kind | None  # None: a fact; only its text shows if it is a number

    def ordered(self) -> Sql:
        """Returns the SQL expression to sort or compare by."""
        function = {None: "typed", "text": "fold"}.get(self.kind, "")
        return f"{function}({self.sql})", self.params


# ---------------------------------------------------------------- projections


def column_values(relation: Relation, column: Column, tables: Tables, limit: int) -> list[GraphValue]:
    """Returns the first `limit` values of a column, in the order of rows, without the nulls among them. Items
    of a list count one by one."""
    if column.kind == "list":
        items = f"({relation.sql}) AS r, json_each({column.sql}) AS j"
        sql = f"SELECT j.value FROM {items} ORDER BY r.{ORDER}, j.key"
        params = (*relation.params, *column.params)
    else:
        sql = f"SELECT {column.sql} FROM ({relation.sql}) AS r ORDER BY r.{ORDER}"
        params = (*column.params, *relation.params)
    found = tables.query(f"{sql} LIMIT {limit}", params)
    kind = "text" if column.kind in (None, "list") else column.kind
    return [read(v, kind) for (v,) in found if v is not None]


def first_rows(relation: Relation, tables: Tables, limit: int) -> tuple[Mapping[str, Any], ...]:
    listed = ", ".join(f"r.{quoted(c)}" for c in relation.columns)
    sql = f"SELECT {listed} FROM ({relation.sql}) AS r ORDER BY r.{ORDER} LIMIT {limit}"
    return tuple(named_values(relation.columns, row) for row in tables.query(sql, relation.params))


def counted(relation: Relation, column: Column | None, tables: Tables) -> int:
    """Counts the rows, or the values of a column."""
    rows, params = f"({relation.sql}) AS r", relation.params
    if column is None:
        sql = f"SELECT count(*) FROM {rows}"
    elif column.kind == "list":
        sql = f"SELECT count(j.value) FROM {rows}, json_each({column.sql}) AS j"
        params = (*params, *column.params)
    else:
        sql = f"SELECT count({column.sql}) FROM {rows}"
        params = (*column.params, *params)
    return int(tables.query(sql, params)[0][0])


# ---------------------------------------------------------------- conditions

_SIGNS: Final = {"eq": "=", "neq": "<>", "ge": ">=", "le": "<=", "gt": ">", "lt": "<"}
_TRUE: Final = {"true": 1, "yes": 1, "1": 1, "won": 1, "false": 0, "no": 0, "0": 0, "lost": 0}
_GENDERS: Final = {"male": 2, "man": 2, "actor": 2, "m": 2, "female": 1, "woman": 1, "actress": 1, "f": 1}
_CATEGORIES: Final[Mapping[str, tuple[str, ...]]] = {
    "picture": (
        "best picture",
        "best motion picture",
        "outstanding picture",
        "outstanding motion picture",
        "outstanding production",
    ),
    "actor": ("actor in a leading role", "actor"),
    "leading actor": ("actor in a leading role", "actor"),
    "actress": ("actress in a leading role", "actress"),
    "leading actress": ("actress in a leading role", "actress"),
    "supporting actor": ("actor in a supporting role",),
    "supporting actress": ("actress in a supporting role",),
    "director": ("directing",),
    "animated feature": ("animated feature film",),
    "original screenplay": ("writing original screenplay",),
    "adapted screenplay": ("writing adapted screenplay",),
    "original score": ("music original score",),
    "original song": ("music original song",),
    "documentary": ("documentary feature", "documentary feature film"),
    "foreign language film": ("foreign language film", "international feature film"),
    "international film": ("foreign language film", "international feature film"),
}
"""Common name of an Oscar category, without "best" -> its folded names in the tables."""


def conditions(rel: Relation, conds: Sequence[Cond], now: Moment, stars: Stars) -> Sql:
    parts = [_condition(rel, c, now, stars) for c in conds]
    return " AND ".join(text for text, _ in parts), tuple(p for _, params in parts for p in params)


def _condition(rel: Relation, cond: Cond, now: Moment, stars: Stars) -> Sql:
    column = rel.column(cond.key)
    if column is None:
        raise GraphFault("unknown_key", f"{cond.op}: there is no key {cond.key}; {rel.known()}")
    value, sign = cond.value, _SIGNS[cond.op]
    if isinstance(value, Nothing | Star):
        what = "None" if isinstance(value, Nothing) else "*"
        if cond.op not in ("eq", "neq"):
            raise GraphFault("bad_condition", f"{cond.op}({cond.key}, {what}): {what} is only equal or not")
        if isinstance(value, Nothing):
            return f"{column.sql} IS {'NOT ' if cond.op == 'neq' else ''}NULL", column.params
        return _among(column, cond.op, [fold(v) for v in stars[value.call]])
    bare = value.value if isinstance(value, Text) and value.bare else ""
    if bare in rel.columns and (other := rel.column(bare)):
        # between two columns >= and <= are strict: close >= open means that it rose
        strict = {"ge": ">", "le": "<"}.get(cond.op, sign)
        (a, before), (b, after) = column.ordered(), other.ordered()
        return f"{a} {strict} {b}", (*before, *after)
    return _compared(column, cond.op, sign, value, now)


def _among(column: Column, op: str, values: Sequence[str | None]) -> Sql:
    marks = ", ".join("?" * len(values)) or "NULL"
    return f"fold({column.sql}) {'NOT ' if op == 'neq' else ''}IN ({marks})", (*column.params, *values)


def _compared(column: Column, op: str, sign: str, value: Value, now: Moment) -> Sql:
    text = str(value.value) if isinstance(value, Text | Number) else ""
    match column.kind:
        case "list":
            equal = "=" if op == "neq" else sign
            found = f"EXISTS (SELECT 1 FROM json_each({column.sql}) AS j WHERE fold(j.value) {equal} ?)"
            if op == "neq":
                both = (*column.params, *column.params, fold(text))
                return f"({column.sql} IS NOT NULL AND NOT {found})", both
            return f"({found})", (*column.params, fold(text))
        case "bool":
            if text.lower() not in _TRUE:
                raise GraphFault("bad_condition", f"{column.name} is true or false, found {text!r}")
            return f"{column.sql} {sign} ?", (*column.params, _TRUE[text.lower()])
        case "int" | "real":
            return f"{column.sql} {sign} ?", (*column.params, _number(column, value, now))
        case "date":
            return _dates(column, op, text, now)
        case None:
            number = isinstance(value, Number)
            there = value.value if isinstance(value, Number) else text
            return f"typed({column.sql}) {sign} {'?' if number else 'typed(?)'}", (*column.params, there)
        case _:
            return _texts(column, op, sign, text)


def _number(column: Column, value: Value, now: Moment) -> float:
    if isinstance(value, Number):
        return value.value
    text = value.value if isinstance(value, Text) else ""
    if column.name == "gender" and text.lower() in _GENDERS:
        return _GENDERS[text.lower()]
    try:
        return float(text.replace(",", ""))
    except ValueError:
        time = when(text, now) if column.name == "year" else None
    if time is not None and time.kind == "days" and time.first.year == time.last.year:
        return time.first.year
    raise GraphFault("bad_condition", f"{column.name} is a number, found {text!r}")


def _dates(column: Column, op: str, text: str, now: Moment) -> Sql:
    """Compares a date with a day, month, year or words for one. After 2023 means from 2024-01-01 on."""
    time = when(text, now)
    if time is None:
        raise GraphFault("bad_condition", f"{column.name} is a date, found {text!r}")
    first, last = str(time.first), str(time.last)
    if op in ("eq", "neq"):
        between = f"{column.sql} {'NOT ' if op == 'neq' else ''}BETWEEN ? AND ?"
        return between, (*column.params, first, last)
    return f"{column.sql} {_SIGNS[op]} ?", (*column.params, first if op in ("ge", "lt") else last)


def _texts(column: Column, op: str, sign: str, text: str) -> Sql:
    folded, sql, params = fold(text) or "", column.sql, column.params
    if op in ("eq", "neq") and column.name == "category":
        short = folded.removeprefix("best ")
        return _among(column, op, sorted({folded, short, *_CATEGORIES.get(short.removesuffix(" award"), ())}))
    if op == "eq" and column.name == "character":  # "Jack" fits "Jack Dawson (young)", and the reverse
        return f"(instr(fold({sql}), ?) > 0 OR instr(?, fold({sql})) > 0)", (*params, folded, folded, *params)
    return f"fold({sql}) {sign} ?", (*params, folded)
