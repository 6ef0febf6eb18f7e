"""Companies with their metrics, prices and dividends."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from raypipe.kg.aliases import ticker
from raypipe.kg.fetch.core import FetchedTables, mapping, strings
from raypipe.kg.graph import GraphFault, RowRequest

_METRICS: Final = {
    "get_stock_market_cap": ("market_cap", "/finance/get_market_capitalization"),
    "get_stock_eps": ("eps", "/finance/get_eps"),
    "get_stock_pe_ratio": ("pe_ratio", "/finance/get_pe_ratio"),
}
_HISTORIES: Final = {
    "get_stock_price": (
        ("price", "/finance/get_price_history"),
        ("price_detail", "/finance/get_detailed_price_history"),
    ),
    "get_stock_dividend": (("dividend", "/finance/get_dividends_history"),),
}


async def company(rows: FetchedTables, need: RowRequest) -> None:
    """Companies, and of them what the call asks: a metric, prices or dividends."""
    probe = _METRICS[need.function][1] if need.function in _METRICS else _HISTORIES[need.function][0][1]
    for name in need.names[0]:
        await _tickers(rows, name, probe)
        rows.linker.forget()
        link = await rows.linker.link(name, "company")
        if link is None:
            continue
        ticker = rows.tables.query("SELECT ticker FROM company WHERE fold(ticker) = ?", (link.key,))[0][0]
        if need.function in _METRICS:
            column, path = _METRICS[need.function]
            if rows.new(column, ticker):
                value = await rows.ask(path, {"query": ticker})
                if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                    raise GraphFault("garbage", f"{path}: expected a number, found {str(value)[:80]}", True)
                rows.tables.change("company", column, value, "ticker", ticker)
            continue
        for table, path in _HISTORIES[need.function]:
            if rows.new(table, ticker):
                _add_history(rows, table, ticker, await rows.ask(path, {"query": ticker}), path)


async def _tickers(rows: FetchedTables, name: str, probe: str) -> None:
    """The tickers of the companies that a name or ticker may mean.

    A ticker is valid if the endpoint in question knows it, or that of all companies: a company without
    values is a company nevertheless."""
    symbol = ticker(name)
    for path in (probe, "/finance/get_info") if symbol is not None else ():
        if await rows.ask(path, {"query": symbol}) is not None:
            if rows.new("company", symbol):
                rows.tables.insert("company", [{"ticker": symbol}])
            return
    path = "/finance/get_company_name"
    names = strings(await rows.ask(path, {"query": name}), path)
    tickers = await rows.all(("/finance/get_ticker_by_name", {"query": n}) for n in names)
    for full, found in zip(names, tickers, strict=True):
        if isinstance(found, str) and rows.new("company", found):
            rows.tables.insert("company", [{"ticker": found, "name": full}])


def _add_history(rows: FetchedTables, table: str, ticker: str, found: Any, path: str) -> None:
    """Rows of {"2024-02-28 00:00:00 EST": {"Open": ...} or a number}."""
    history = mapping(found, path) or {}
    for stamp, value in history.items():
        if not re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d", stamp):
            raise GraphFault("garbage", f"{path}: expected a time, found {stamp[:40]!r}", True)
        row = {k.lower(): v for k, v in value.items()} if isinstance(value, Mapping) else {"value": value}
        rows.tables.insert(table, [{"ticker": ticker, "date": stamp[:10], "time": stamp[11:16], **row}])
