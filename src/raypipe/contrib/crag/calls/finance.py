"""Prices, dividends and metrics of companies, as of the moment of asking in New York time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from raypipe.contrib.crag.calls.core import CLOSE, LinkedCall, numbered, simple
from raypipe.contrib.crag.graph import FetchedTables, GraphFault, RowRequest, mapping, strings
from raypipe.contrib.crag.names import ticker
from raypipe.contrib.crag.relation import ORDER, Relation
from raypipe.contrib.crag.schema import ENDPOINT_OF, Kind
from raypipe.contrib.crag.tables import quoted


def metric(column: str, call: LinkedCall) -> Relation:
    rel = simple(call, "company", "ticker", "company", "company")
    kind = rel.columns[column]
    columns: dict[str, Kind] = {"ticker": "text", "name": "text", column: kind, "value": kind}
    sql = (
        f"SELECT r.ticker, coalesce(r.name, r.ticker) AS name, r.{quoted(column)}, "
        f"r.{quoted(column)} AS value, r.{ORDER} FROM ({rel.sql}) AS r"
    )
    return replace(rel, sql=sql, columns=columns, label="name", default=column)


_NAMED: Final = "coalesce((SELECT c.name FROM company AS c WHERE fold(c.ticker) = fold(t.ticker)), t.ticker)"
_DATED: Final[dict[str, tuple[str, Kind]]] = {"name": (_NAMED, "text"), "time": ("t.date", "date")}


def dividend(call: LinkedCall) -> Relation:
    seen = ("t.date <= ?", (str(call.now.eastern.date()),))
    rel = simple(call, "dividend", "ticker", "dividend", "company", seen, _DATED)
    return replace(rel, label="name", default="value")


def price(call: LinkedCall) -> Relation:
    """Selects daily bars, or the minute of "latest". A day without bars gives the next session, else the
    last."""
    time = call.when
    assert time is not None
    if time.kind == "latest":
        minute = _minute(call)
        return minute if _any(call, minute) else _edge(call, "max")
    if time.kind == "earliest":
        return _edge(call, "min")
    if time.kind != "days":
        raise GraphFault("bad_time", "expected a day, a period, latest or ipo of a price")
    text, params = _closed(call, "t")
    days = (str(time.first), str(time.last))
    rel = _bars(call, f"t.date BETWEEN ? AND ? AND {text}", (*days, *params))
    if time.first != time.last or _any(call, rel):
        return rel
    for edge, side in (("min", ">"), ("max", "<")):
        nearest = _edge(call, edge, f"u.date {side} ? AND ", days[:1])
        if dates := call.tables.query(f"SELECT r.date FROM ({nearest.sql}) AS r LIMIT 1", nearest.params):
            note = f"There is no trading record of {time.first}; the nearest is of {dates[0][0]}."
            return replace(nearest, notes=(note,))
    return rel


def _any(call: LinkedCall, rel: Relation) -> bool:
    return bool(call.tables.query(f"SELECT 1 FROM ({rel.sql}) LIMIT 1", rel.params))


def _closed(call: LinkedCall, row: str) -> tuple[str, tuple[str, ...]]:
    """Returns the SQL condition, with parameters, that the session of a row's day has closed."""
    east = call.now.eastern
    params = (str(east.date()), str(east.date()), f"{east:%H:%M}", CLOSE)
    return f"({row}.date < ? OR ({row}.date = ? AND ? >= ?))", params


def _bars(call: LinkedCall, text: str, params: tuple[Any, ...]) -> Relation:
    rel = simple(call, "price", "ticker", "price", "company", (text, params), _DATED)
    sql = numbered(rel.columns, rel.sql, "b.ticker, b.date") if call.places[0].keys is None else rel.sql
    return replace(rel, sql=sql, label="name", default="close", aliases={"day": "date"})


def _edge(call: LinkedCall, edge: str, where: str = "", more: tuple[str, ...] = ()) -> Relation:
    """Selects the first ("min") or last ("max") daily bar of each company."""
    text, params = _closed(call, "u")
    day = f"SELECT {edge}(u.date) FROM price AS u WHERE u.ticker = t.ticker AND {where}{text}"
    return _bars(call, f"t.date = ({day})", (*more, *params))


def _minute(call: LinkedCall) -> Relation:
    """Selects each company's last minute that has begun, with its opening price rounded to cents."""
    east = call.now.eastern
    text = (
        "t.rowid = (SELECT u.rowid FROM price_detail AS u WHERE u.ticker = t.ticker "
        "AND (u.date, u.time) <= (?, ?) ORDER BY u.date DESC, u.time DESC LIMIT 1)"
    )
    seen = (text, (str(east.date()), f"{east:%H:%M}"))
    rel = simple(call, "price_detail", "ticker", "price", "company", seen, {"name": (_NAMED, "text")})
    kept = ", ".join("round(r.open, 2) AS open" if c == "open" else f"r.{quoted(c)}" for c in rel.columns)
    sql = f"SELECT {kept}, r.{ORDER} FROM ({rel.sql}) AS r"
    return replace(rel, sql=sql, label="name", default="open")


# ---------------------------------------------------------------- from a server

_HISTORIES: Final = {
    "price": (
        ("price", "/finance/get_price_history"),
        ("price_detail", "/finance/get_detailed_price_history"),
    ),
    "dividend": (("dividend", "/finance/get_dividends_history"),),
}


async def fetch_company(rows: FetchedTables, need: RowRequest) -> None:
    """Fetches the named companies, and the metric, prices or dividends that the call asks for."""
    asked = need.function.removeprefix("get_stock_")
    metric = ENDPOINT_OF["company"].get(asked)
    for name in need.names[0]:
        await _tickers(rows, name, metric or _HISTORIES[asked][0][1])
        rows.linker.forget()
        link = await rows.linker.link(name, "company")
        if link is None:
            continue
        ticker = rows.tables.query("SELECT ticker FROM company WHERE fold(ticker) = ?", (link.key,))[0][0]
        if metric and rows.new(asked, ticker):
            value = await rows.ask(metric, {"query": ticker})
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise GraphFault("garbage", f"{metric}: expected a number, found {str(value)[:80]}", True)
            rows.tables.change("company", asked, value, "ticker", ticker)
        for table, path in _HISTORIES.get(asked, ()):
            if rows.new(table, ticker):
                _add_history(rows, table, ticker, await rows.ask(path, {"query": ticker}), path)


async def _tickers(rows: FetchedTables, name: str, probe: str) -> None:
    """Inserts the companies that a name or ticker may mean. A ticker is valid if the endpoint `probe` has it,
    or the endpoint of all companies: a company without values is still a company."""
    symbol = ticker(name)
    for path in (probe, "/finance/get_info") if symbol is not None else ():
        if await rows.ask(path, {"query": symbol}) is not None:
            if rows.new("company", symbol):
                rows.tables.insert("company", [{"ticker": symbol}])
            return
    path = "/finance/get_company_name"
    names = strings(await rows.ask(path, {"query": name}), path)
    tickers = await rows.all(("/finance/get_ticker_by_name", {"query": n}) for n in names)
    for full, reply in zip(names, tickers, strict=True):
        if isinstance(reply, str) and rows.new("company", reply):
            rows.tables.insert("company", [{"ticker": reply, "name": full}])


def _add_history(rows: FetchedTables, table: str, ticker: str, reply: Any, path: str) -> None:
    """Inserts rows of {"2024-02-28 00:00:00 EST": {"Open": ...} or a number}. Raises GraphFault for other
    keys."""
    history = mapping(reply, path) or {}
    for stamp, value in history.items():
        if not re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d", stamp):
            raise GraphFault("garbage", f"{path}: expected a time, found {stamp[:40]!r}", True)
        row = {k.lower(): v for k, v in value.items()} if isinstance(value, Mapping) else {"value": value}
        rows.tables.insert(table, [{"ticker": ticker, "date": stamp[:10], "time": stamp[11:16], **row}])
