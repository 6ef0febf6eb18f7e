"""The invented stock market: companies, daily and half-hourly prices, dividends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from random import Random

from raypipe.contrib.world.world.names import NameSource, number, pick, words

COMPANIES = 120
FIRST_DAY, LAST_DAY = date(2023, 3, 1), date(2024, 3, 14)
FIRST_DETAIL = date(2024, 2, 29)  # first day with half-hourly prices
SNAPSHOT = date(2024, 3, 4)  # market capitalisation and ratios use the close of this day
CLOSED = words(
    "2023-04-07 2023-05-29 2023-06-19 2023-07-04 2023-09-04 2023-11-23 2023-12-25 "
    "2024-01-01 2024-01-15 2024-02-19"
)
"""Weekdays on which the exchange is closed."""
TIMES = (*tuple(f"{h:02d}:{m:02d}" for h in range(9, 16) for m in (0, 30))[1:], "15:59")
PRODUCTS = ("pump", "ledger", "loom", "lamp", "scale", "kettle", "valve")
ENDINGS = ("Inc.", "Corp.", "Group", "Holdings", "plc")


@dataclass(frozen=True, slots=True)
class Company:
    name: str  # with its legal ending
    short: str  # without its legal ending
    ticker: str
    sector: str
    headquarters: str
    ceo: str
    founded: int
    market_cap: int  # dollars, at SNAPSHOT
    eps: float  # dollars a share
    pe_ratio: float | None  # None: the company makes a loss
    product: str  # its first product; on pages only, not in the graph


@dataclass(frozen=True, slots=True)
class Bar:
    ticker: str
    date: date
    open: float
    high: float
    low: float
    close: float
    volume: int


@dataclass(frozen=True, slots=True)
class Minute(Bar):
    time: str  # HH:MM, Eastern


@dataclass(frozen=True, slots=True)
class Dividend:
    ticker: str
    date: date
    value: float  # dollars a share


@dataclass(frozen=True, slots=True)
class Market:
    companies: tuple[Company, ...]  # early ones get more questions
    days: tuple[date, ...]  # trading days, ascending
    bars: Mapping[str, Mapping[date, Bar]]  # by ticker
    minutes: Mapping[str, tuple[Minute, ...]]  # by ticker, ascending
    dividends: Mapping[str, tuple[Dividend, ...]]  # by ticker, ascending; (): the company pays none

    def between(self, ticker: str, first: date, last: date) -> list[Bar]:
        """Returns a company's bars from `first` to `last`, both included."""
        bars = self.bars[ticker]
        return [bars[d] for d in self.days if first <= d <= last]

    def latest(self, ticker: str, day: date, time: str) -> Minute:
        """Returns the last half-hourly price at or before a moment, in Eastern time."""
        return [m for m in self.minutes[ticker] if (m.date, m.time) <= (day, time)][-1]


def _ticker(rng: Random, short: str, taken: set[str]) -> str:
    letters = [c for c in short.upper() if "A" <= c <= "Z"]
    while True:
        rest = sorted(rng.sample(range(1, len(letters)), 2 + int(rng.random() * 2)))
        ticker = letters[0] + "".join(letters[i] for i in rest)
        if ticker not in taken:
            taken.add(ticker)
            return ticker


def _walk(rng: Random, ticker: str, days: tuple[date, ...]) -> dict[date, Bar]:
    price, gauss, u = rng.lognormvariate(3.8, 0.8), rng.gauss, rng.random
    volume = rng.lognormvariate(14, 1)
    bars = {}
    for day in days:
        start = round(max(1.0, price * (1 + gauss(0, 0.006))), 2)
        end = round(max(1.0, start * (1 + gauss(0.0003, 0.015))), 2)
        high = round(max(start, end) * (1 + 0.01 * u()), 2)
        low = round(min(start, end) * (1 - 0.01 * u()), 2)
        bars[day] = Bar(ticker, day, start, high, low, end, int(volume * (0.5 + u())))
        price = end
    return bars


def _inside(rng: Random, bar: Bar) -> list[Minute]:
    """Returns a day's half-hourly prices: from its open to its close, within its high and low."""
    n, rows, price = len(TIMES), [], bar.open
    for i, time in enumerate(TIMES):
        aim = bar.open + (bar.close - bar.open) * (i + 1) / n
        wide = (bar.high - bar.low) * 0.3 * (rng.random() - 0.5)
        end = bar.close if i == n - 1 else round(min(bar.high, max(bar.low, aim + wide)), 2)
        high, low = max(price, end), min(price, end)
        rows.append(Minute(bar.ticker, bar.date, price, high, low, end, bar.volume // n, time))
        price = end
    return rows


def _dividends(rng: Random, ticker: str, close: float) -> tuple[Dividend, ...]:
    if rng.random() < 0.35:
        return ()
    month, day = number(rng, 1, 3), number(rng, 3, 24)
    value = close * (0.002 + 0.012 * rng.random())
    rows = []
    for i in range(9):
        year, at = 2022 + (month - 1 + 3 * i) // 12, 1 + (month - 1 + 3 * i) % 12
        paid = date(year, at, day)
        if paid < FIRST_DETAIL:
            rows.append(Dividend(ticker, paid, round(max(0.01, value * (1 + 0.02 * i)), 3)))
    return tuple(rows)


def build_market(rng: Random, names: NameSource, towns: list[str]) -> Market:
    span = (FIRST_DAY + timedelta(days=i) for i in range((LAST_DAY - FIRST_DAY).days + 1))
    days = tuple(d for d in span if d.weekday() < 5 and d.isoformat() not in CLOSED)
    taken = set[str]()
    companies, bars, minutes, dividends = [], {}, {}, {}
    for _ in range(COMPANIES):
        short = names.firm()
        ticker = _ticker(rng, short, taken)
        bars[ticker] = _walk(rng, ticker, days)
        minutes[ticker] = tuple(m for d in days if d >= FIRST_DETAIL for m in _inside(rng, bars[ticker][d]))
        close = bars[ticker][SNAPSHOT].close
        dividends[ticker] = _dividends(rng, ticker, close)
        eps = round(close / (4 + rng.random() * 36) * (-1 if rng.random() < 0.12 else 1), 2) or 0.01
        companies.append(
            Company(
                name=f"{short} {pick(rng, ENDINGS)}",
                short=short,
                ticker=ticker,
                sector=short.split()[-1].lower(),
                headquarters=pick(rng, towns),
                ceo=names.person(),
                founded=number(rng, 1880, 135),
                market_cap=round(close * rng.lognormvariate(18, 1.2) / 1e7) * 10_000_000 + 10_000_000,
                eps=eps,
                pe_ratio=round(close / eps, 2) if eps > 0 else None,
                product=f"the {names.coined()} {pick(rng, PRODUCTS)}",
            )
        )
    return Market(tuple(companies), days, bars, minutes, dividends)
