"""Prices, dividends and metrics of companies, as of the moment of asking in New York time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from raypipe.kg.calls.core import CLOSE, LinkedCall, numbered, simple
from raypipe.kg.graph import GraphFault
from raypipe.kg.relation import ORDER, Relation
from raypipe.kg.schema import Kind
from raypipe.kg.tables import quoted


def metric(column: str) -> Callable[[LinkedCall], Relation]:
    """A company's market cap, earnings per share or P/E ratio."""

    def build(call: LinkedCall) -> Relation:
        rel = simple(call, "company", "ticker", "company", "company")
        columns: dict[str, Kind] = {
            "ticker": "text",
            "name": "text",
            column: rel.columns[column],
            "value": rel.columns[column],
        }
        sql = (
            f"SELECT r.ticker, coalesce(r.name, r.ticker) AS name, r.{quoted(column)}, "
            f"r.{quoted(column)} AS value, r.{ORDER} FROM ({rel.sql}) AS r"
        )
        return Relation(
            sql, rel.params, columns, "company", "name", {"company": "ticker"}, column, about=call.about
        )

    return build


_NAMED: Final = "coalesce((SELECT c.name FROM company AS c WHERE fold(c.ticker) = fold(t.ticker)), t.ticker)"


def dividend(call: LinkedCall) -> Relation:
    seen = ("t.date <= ?", (str(call.now.eastern.date()),))
    rel = simple(
        call, "dividend", "ticker", "dividend", "company", seen,
        {"name": (_NAMED, "text"), "time": ("t.date", "date")},
    )  # fmt: skip
    return Relation(
        rel.sql,
        rel.params,
        rel.columns,
        "dividend",
        "name",
        {"company": "ticker"},
        "value",
        about=call.about,
    )


def price(call: LinkedCall) -> Relation:
    """Daily bars, or the minute of "latest". A day without trading gives the next session, else the last."""
    there, east = call.when, call.now.eastern
    assert there is not None
    if there.kind == "latest":
        minute = _minute(call)
        if call.tables.query(f"SELECT 1 FROM ({minute.sql}) LIMIT 1", minute.params):
            return minute
        return _edge(call, "DESC")
    if there.kind == "earliest":
        return _edge(call, "")
    if there.kind != "days":
        raise GraphFault("bad_time", "expected a day, a period, latest or ipo of a price")
    closed = (
        "(t.date < ? OR (t.date = ? AND ? >= ?))",
        (str(east.date()), str(east.date()), f"{east:%H:%M}", CLOSE),
    )
    text = f"t.date BETWEEN ? AND ? AND {closed[0]}"
    rel = _bars(call, (text, (str(there.first), str(there.last), *closed[1])))
    if there.first != there.last or call.tables.query(f"SELECT 1 FROM ({rel.sql}) LIMIT 1", rel.params):
        return rel
    for order, side in (("min", ">"), ("max", "<")):
        near = (
            f"t.date = (SELECT {order}(u.date) FROM price AS u WHERE u.ticker = t.ticker AND u.date {side} ? "
            f"AND {closed[0].replace('t.', 'u.')})"
        )
        other = _bars(call, (near, (str(there.first), *closed[1])))
        found = call.tables.query(f"SELECT r.date FROM ({other.sql}) AS r LIMIT 1", other.params)
        if found:
            note = f"There is no trading record of {there.first}; the nearest is of {found[0][0]}."
            return _bars(call, (near, (str(there.first), *closed[1])), note)
    return rel


def _bars(call: LinkedCall, seen: tuple[str, tuple[Any, ...]], note: str = "") -> Relation:
    rel = simple(
        call, "price", "ticker", "price", "company", seen,
        {"name": (_NAMED, "text"), "time": ("t.date", "date")},
    )  # fmt: skip
    sql = numbered(rel.columns, rel.sql, "b.ticker, b.date") if call.places[0].keys is None else rel.sql
    notes = (note,) if note else ()
    words = {"day": "date"}
    return Relation(
        sql,
        rel.params,
        rel.columns,
        "price",
        "name",
        {"company": "ticker"},
        "close",
        words,
        call.about,
        notes,
    )


def _edge(call: LinkedCall, down: str) -> Relation:
    """Each company's first or last daily bar."""
    east, order = call.now.eastern, "max" if down else "min"
    closed = "(u.date < ? OR (u.date = ? AND ? >= ?))"
    text = f"t.date = (SELECT {order}(u.date) FROM price AS u WHERE u.ticker = t.ticker AND {closed})"
    return _bars(call, (text, (str(east.date()), str(east.date()), f"{east:%H:%M}", CLOSE)))


def _minute(call: LinkedCall) -> Relation:
    """Each company's last minute that has begun, its opening rounded to cents."""
    east = call.now.eastern
    now = (str(east.date()), f"{east:%H:%M}")
    text = (
        "t.rowid = (SELECT u.rowid FROM price_detail AS u WHERE u.ticker = t.ticker "
        "AND (u.date, u.time) <= (?, ?) ORDER BY u.date DESC, u.time DESC LIMIT 1)"
    )
    rel = simple(call, "price_detail", "ticker", "price", "company", (text, now), {"name": (_NAMED, "text")})
    kept = ", ".join("round(r.open, 2) AS open" if c == "open" else f"r.{quoted(c)}" for c in rel.columns)
    sql = f"SELECT {kept}, r.{ORDER} FROM ({rel.sql}) AS r"
    return Relation(
        sql, rel.params, rel.columns, "price", "name", {"company": "ticker"}, "open", about=call.about
    )
