"""Questions about share prices, dividends and companies: one fact, asked with or without a condition."""

from __future__ import annotations

from calendar import monthrange
from datetime import date, timedelta
from random import Random

from raypipe.synth.ask.core import (
    Asked,
    Now,
    counted,
    large,
    later,
    long_date,
    plain,
    price,
    priced,
    quoted,
    sized,
)
from raypipe.synth.world.market import SNAPSHOT, Company
from raypipe.synth.world.names import pick, skewed
from raypipe.synth.world.world import World


def some_company(w: World, r: Random) -> tuple[Company, str]:
    """A company, and what the question calls it: its short name or its ticker."""
    c = skewed(r, w.market.companies)
    return c, c.short if r.random() < 0.65 else c.ticker


def refs(*companies: Company) -> tuple[tuple[str, str], ...]:
    return tuple(("company", c.name) for c in companies)


def past_day(w: World, r: Random, now: Now) -> date:
    """A trading day in the year before the question."""
    return pick(r, [d for d in w.market.days if d <= SNAPSHOT])


def _last_trading(w: World, now: Now) -> date:
    return max(d for d in w.market.days if d < now.day)


def price_now(w: World, r: Random, now: Now) -> Asked | None:
    c, name = some_company(w, r)
    m = w.market.latest(c.ticker, now.day, now.eastern)
    said = (
        f"{c.short} ({c.ticker}) trades at {price(m.open)} as of {m.time} EST on {long_date(m.date)}.",
        f"{c.ticker} last price: {price(m.open)} ({m.time} EST, {long_date(m.date)}).",
    )
    return Asked(
        {"c": name},
        *priced(m.open),
        said,
        refs(c),
        frozenset({"prices"}),
        f'get_stock_price({quoted(name)}, "latest")["open"]',
    )


def market_cap(w: World, r: Random, now: Now) -> Asked | None:
    c, name = some_company(w, r)
    said = (
        f"{c.name} has a market capitalization of {large(c.market_cap)}.",
        f"The market cap of {c.ticker} stands at {large(c.market_cap)}.",
    )
    return Asked(
        {"c": name},
        *sized(c.market_cap),
        said,
        refs(c),
        frozenset({"market_cap"}),
        f"get_stock_market_cap({quoted(name)})",
    )


def ratio(w: World, r: Random, now: Now) -> Asked | None:
    c, name = some_company(w, r)
    if c.pe_ratio is None:
        return None
    said = (f"The p/e ratio of {c.short} is {plain(c.pe_ratio)}.", f"{c.ticker}: P/E {plain(c.pe_ratio)}.")
    return Asked(
        {"c": name},
        plain(c.pe_ratio),
        (f"{c.pe_ratio:.2f}",),
        said,
        refs(c),
        frozenset({"pe_ratio"}),
        f"get_stock_pe_ratio({quoted(name)})",
    )


def earnings(w: World, r: Random, now: Now) -> Asked | None:
    c, name = some_company(w, r)
    written = f"-${-c.eps:.2f}" if c.eps < 0 else price(c.eps)
    said = (f"Earnings per share of {c.short} are {written}.", f"{c.name} earned {written} a share.")
    return Asked(
        {"c": name},
        written,
        tuple(dict.fromkeys((plain(c.eps), f"{c.eps:.2f}"))),
        said,
        refs(c),
        frozenset({"eps", "pe_ratio"}),
        f"get_stock_eps({quoted(name)})",
    )


def first_product(w: World, r: Random, now: Now) -> Asked | None:
    c, _ = some_company(w, r)
    said = (f"The first product of {c.short} was {c.product}.", f"{c.short} began by selling {c.product}.")
    return Asked(
        {"c": c.short},
        c.product.lower(),
        (c.product.removeprefix("the ").lower(),),
        said,
        refs(c),
        frozenset({"product"}),
    )


def close_on(w: World, r: Random, now: Now) -> Asked | None:
    (c, name), day, key = some_company(w, r), past_day(w, r, now), pick(r, ("open", "close", "high", "low"))
    value = getattr(w.market.bars[c.ticker][day], key)
    spoken = {"open": "opening", "close": "closing", "high": "highest", "low": "lowest"}[key]
    long = long_date(day)
    said = (
        f"On {long} the {spoken} price of {c.short} was {price(value)}.",
        f"{c.ticker}, {long}: {spoken} price {price(value)}.",
    )
    return Asked(
        {"c": name, "day": long, "spoken": spoken},
        *priced(value),
        said,
        refs(c),
        frozenset({"prices"}),
        f'get_stock_price({quoted(name)}, "{day}")["{key}"]',
    )


def close_last_day(w: World, r: Random, now: Now) -> Asked | None:
    c, name = some_company(w, r)
    day = _last_trading(w, now)
    value = w.market.bars[c.ticker][day].close
    said = (
        f"{c.short} closed at {price(value)} on {long_date(day)}.",
        f"After the bell on {long_date(day)}: {c.ticker} {price(value)}.",
    )
    return Asked(
        {"c": name},
        *priced(value),
        said,
        refs(c),
        frozenset({"prices"}),
        f'get_stock_price({quoted(name)}, "last trading day")["close"]',
    )


def volume_yesterday(w: World, r: Random, now: Now) -> Asked | None:
    c, name = some_company(w, r)
    day = now.day - timedelta(days=1)
    if day not in w.market.days:
        return None
    n = w.market.bars[c.ticker][day].volume
    said = (
        f"On {long_date(day)} {n:,} shares of {c.short} changed hands.",
        f"{c.ticker} volume on {long_date(day)}: {n:,}.",
    )
    return Asked(
        {"c": name},
        *counted(n),
        said,
        refs(c),
        frozenset({"prices"}),
        f'get_stock_price({quoted(name)}, "yesterday")["volume"]',
    )


def quarter_dividend(w: World, r: Random, now: Now) -> Asked | None:
    c, name = some_company(w, r)
    if not w.market.dividends[c.ticker]:
        return None
    paid = pick(r, w.market.dividends[c.ticker])
    quarter = (paid.date.month - 1) // 3
    first = date(paid.date.year, 3 * quarter + 1, 1)
    last = date(first.year, first.month + 2, monthrange(first.year, first.month + 2)[1])
    words = f"the {('first', 'second', 'third', 'fourth')[quarter]} quarter of {first.year}"
    value = plain(paid.value)
    said = (
        f"In {words} {c.short} paid a dividend of ${value} a share.",
        f"{c.ticker} paid ${value} a share on {long_date(paid.date)}.",
    )
    condition = f'[ge(date, "{first}"), le(date, "{last}")]'
    return Asked(
        {"c": name, "quarter": words},
        f"${value}",
        (value,),
        said,
        refs(c),
        frozenset({"dividends"}),
        later((f"get_stock_dividend({quoted(name)})", f'sort({condition}, -date)["value"]')),
    )
