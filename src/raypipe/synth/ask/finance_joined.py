"""Questions that join several facts about shares and companies, or presume a wrong one."""

from __future__ import annotations

from calendar import monthrange
from datetime import date, timedelta
from random import Random

from raypipe.synth.ask.core import (
    Asked,
    Now,
    counted,
    invalid,
    large,
    later,
    long_date,
    month,
    plain,
    price,
    priced,
    quoted,
    sized,
)
from raypipe.synth.ask.finance import past_day, refs, some_company
from raypipe.synth.world.market import FIRST_DAY, SNAPSHOT, Bar, Company
from raypipe.synth.world.names import pick, skewed
from raypipe.synth.world.world import World


def _two(w: World, r: Random) -> tuple[Company, Company] | None:
    a, b = skewed(r, w.market.companies), skewed(r, w.market.companies)
    return None if a is b else (a, b)


def some_month(w: World, r: Random, c: Company) -> tuple[str, str, list[Bar]]:
    """Words for a whole month, the call for its prices, and the prices."""
    year, number = pick(r, [(2023, m) for m in range(FIRST_DAY.month, 13)] + [(2024, 1), (2024, 2)])
    first, last = date(year, number, 1), date(year, number, monthrange(year, number)[1])
    return month(year, number), f'"{first}", "{last}"', w.market.between(c.ticker, first, last)


def _change(w: World, r: Random, now: Now) -> tuple[Company, str, Bar, Bar] | None:
    (c, name), a, b = some_company(w, r), past_day(w, r, now), past_day(w, r, now)
    if a >= b:
        return None
    bars = w.market.bars[c.ticker]
    return c, name, bars[a], bars[b]


def larger_company(w: World, r: Random, now: Now) -> Asked | None:
    if (found := _two(w, r)) is None or found[0].market_cap == found[1].market_cap:
        return None
    big, small = sorted(found, key=lambda c: -c.market_cap)
    said = (
        f"{big.short} is larger than {small.short} by market cap.",
        f"At {large(big.market_cap)} {big.short} is worth more than {small.short}.",
    )
    calls = later([f"get_stock_market_cap({quoted(c.short)})" for c in found])
    return Asked(
        {"a": found[0].short, "b": found[1].short},
        big.short.lower(),
        (big.name.lower(), big.ticker.lower()),
        said,
        refs(*found),
        frozenset({"market_cap"}),
        calls,
        "most",
    )


def lower_ratio(w: World, r: Random, now: Now) -> Asked | None:
    found = _two(w, r)
    if (
        found is None
        or None in (found[0].pe_ratio, found[1].pe_ratio)
        or found[0].pe_ratio == found[1].pe_ratio
    ):
        return None
    low, high = sorted(found, key=lambda c: c.pe_ratio or 0)
    said = (
        f"{low.short} has a lower p/e ratio than {high.short}.",
        f"Measured by P/E, {low.short} is cheaper than {high.short}.",
    )
    calls = later([f"get_stock_pe_ratio({quoted(c.short)})" for c in found])
    return Asked(
        {"a": found[0].short, "b": found[1].short},
        low.short.lower(),
        (low.name.lower(), low.ticker.lower()),
        said,
        refs(*found),
        frozenset({"pe_ratio"}),
        calls,
        "least",
    )


def higher_close(w: World, r: Random, now: Now) -> Asked | None:
    if (found := _two(w, r)) is None:
        return None
    day = past_day(w, r, now)
    high, low = sorted(found, key=lambda c: -w.market.bars[c.ticker][day].close)
    top, bottom = (w.market.bars[c.ticker][day].close for c in (high, low))
    if top == bottom:
        return None
    said = (
        f"On {long_date(day)} {high.short} closed higher than {low.short}.",
        f"{long_date(day)}: {high.short} {price(top)}, {low.short} {price(bottom)}.",
    )
    calls = later([f'get_stock_price({quoted(c.short)}, "{day}")["close"]' for c in found])
    slots = {"a": found[0].short, "b": found[1].short, "day": long_date(day)}
    return Asked(
        slots,
        high.short.lower(),
        (high.name.lower(), high.ticker.lower()),
        said,
        refs(*found),
        frozenset({"prices"}),
        calls,
        "most",
    )


def mean_close(w: World, r: Random, now: Now) -> Asked | None:
    c, name = some_company(w, r)
    words, span, bars = some_month(w, r, c)
    mean = round(sum(b.close for b in bars) / len(bars), 2)
    said = (
        f"The average closing price of {c.short} in {words} was {price(mean)}.",
        f"{c.ticker} closed at {price(mean)} on average in {words}.",
    )
    return Asked(
        {"c": name, "month": words},
        *priced(mean),
        said,
        refs(c),
        frozenset({"prices"}),
        f'AVG(ALL get_stock_price({quoted(name)}, {span})["close"])',
        "round",
    )


def month_high(w: World, r: Random, now: Now) -> Asked | None:
    c, name = some_company(w, r)
    words, span, bars = some_month(w, r, c)
    top = max(b.high for b in bars)
    said = (
        f"In {words} {c.short} reached a high of {price(top)}.",
        f"{words} high of {c.ticker}: {price(top)}.",
    )
    return Asked(
        {"c": name, "month": words},
        *priced(top),
        said,
        refs(c),
        frozenset({"prices"}),
        later((f"ALL get_stock_price({quoted(name)}, {span})", 'sort(None, -high)["high"][:1]')),
    )


def dividend_count(w: World, r: Random, now: Now) -> Asked | None:
    c, name = some_company(w, r)
    year = pick(r, (2022, 2023))
    n = sum(d.date.year == year for d in w.market.dividends[c.ticker])
    if not n:
        return None
    said = (f"{c.short} paid {n} dividends in {year}.", f"In {year} holders of {c.ticker} got {n} dividends.")
    condition = f'[ge(date, "{year}-01-01"), le(date, "{year}-12-31")]'
    return Asked(
        {"c": name, "year": str(year)},
        *counted(n),
        said,
        refs(c),
        frozenset({"dividends"}),
        later((f"ALL get_stock_dividend({quoted(name)})", f"sort({condition}, date)[len]")),
    )


def up_days(w: World, r: Random, now: Now) -> Asked | None:
    c, name = some_company(w, r)
    monday = past_day(w, r, now)
    monday -= timedelta(days=monday.weekday())
    friday = monday + timedelta(days=4)
    if friday > SNAPSHOT:
        return None
    up = [b.date for b in w.market.between(c.ticker, monday, friday) if b.close > b.open]
    if not up:
        return None
    spoken = ", ".join(long_date(d) for d in up)
    said = (
        f"In the week from {long_date(monday)} {c.short} closed above its open on: {spoken}.",
        f"Days on which {c.ticker} gained between open and close, week of {long_date(monday)}: {spoken}.",
    )
    span = f'"{monday}", "{friday}"'
    slots = {"c": name, "first": long_date(monday), "last": long_date(friday)}
    return Asked(
        slots,
        ", ".join(d.isoformat() for d in up),
        (spoken.lower(),),
        said,
        refs(c),
        frozenset({"prices"}),
        later((f"ALL get_stock_price({quoted(name)}, {span})", 'sort(gt(close, open), time)["time"]')),
        "list",
    )


def dividend_dates(w: World, r: Random, now: Now) -> Asked | None:
    c, name = some_company(w, r)
    days = [d.date for d in w.market.dividends[c.ticker] if d.date.year == 2023]
    if not days:
        return None
    spoken = ", ".join(long_date(d) for d in days)
    said = (
        f"{c.short} paid dividends in 2023 on {spoken}.",
        f"Dividend dates of {c.ticker} in 2023: {spoken}.",
    )
    condition = '[ge(date, "2023-01-01"), le(date, "2023-12-31")]'
    return Asked(
        {"c": name},
        ", ".join(d.isoformat() for d in days),
        (spoken.lower(),),
        said,
        refs(c),
        frozenset({"dividends"}),
        later((f"ALL get_stock_dividend({quoted(name)})", f'sort({condition}, date)["date"]')),
        "list",
    )


def close_of_chief(w: World, r: Random, now: Now) -> Asked | None:
    c, day = some_company(w, r)[0], past_day(w, r, now)
    value = w.market.bars[c.ticker][day].close
    said = (
        f"On {long_date(day)} {c.short}, the company that {c.ceo} leads, closed at {price(value)}.",
        f"{c.ceo}'s company {c.short} ended {long_date(day)} at {price(value)}.",
    )
    return Asked(
        {"p": c.ceo, "day": long_date(day)},
        *priced(value),
        said,
        (*refs(c), ("entity", c.ceo)),
        frozenset({"prices"}),
        later((f'get_open({quoted(c.ceo)})["company"]', f'get_stock_price(*, "{day}")["close"]')),
    )


def cap_of_chief(w: World, r: Random, now: Now) -> Asked | None:
    c, _ = some_company(w, r)
    said = (
        f"{c.short}, led by {c.ceo}, is valued at {large(c.market_cap)}.",
        f"{c.ceo} runs {c.name}, market cap {large(c.market_cap)}.",
    )
    return Asked(
        {"p": c.ceo},
        *sized(c.market_cap),
        said,
        (*refs(c), ("entity", c.ceo)),
        frozenset({"market_cap"}),
        later((f'get_open({quoted(c.ceo)})["company"]', "get_stock_market_cap(*)")),
    )


def percent_change(w: World, r: Random, now: Now) -> Asked | None:
    if (found := _change(w, r, now)) is None:
        return None
    c, name, a, b = found
    change = round((b.close - a.close) / a.close * 100, 2)
    said = (
        f"From {long_date(a.date)} to {long_date(b.date)} {c.short} changed by {plain(change)}%.",
        f"{c.ticker}, close of {long_date(a.date)} against {long_date(b.date)}: {plain(change)}%.",
    )
    calls = later([f'get_stock_price({quoted(name)}, "{x.date}")["close"]' for x in (a, b)])
    return Asked(
        {"c": name, "first": long_date(a.date), "last": long_date(b.date)},
        f"{plain(change)}%",
        (plain(change), f"{change:.2f}%"),
        said,
        refs(c),
        frozenset({"prices"}),
        calls,
        "percent_change",
    )


def day_range(w: World, r: Random, now: Now) -> Asked | None:
    (c, name), day = some_company(w, r), past_day(w, r, now)
    bar = w.market.bars[c.ticker][day]
    gap = round(bar.high - bar.low, 2)
    said = (
        f"On {long_date(day)} the high and the low of {c.short} were {price(gap)} apart.",
        f"{c.ticker} moved within {price(gap)} on {long_date(day)}.",
    )
    calls = later([f'get_stock_price({quoted(name)}, "{day}")["{key}"]' for key in ("high", "low")])
    return Asked(
        {"c": name, "day": long_date(day)},
        *priced(gap),
        said,
        refs(c),
        frozenset({"prices"}),
        calls,
        "difference",
    )


def false_dividend(w: World, r: Random, now: Now) -> Asked | None:
    c, name = some_company(w, r)
    if w.market.dividends[c.ticker]:
        return None
    year = pick(r, (2022, 2023))
    said = (f"{c.short} has never paid a dividend.", f"{c.ticker} does not pay dividends.")
    condition = f'[ge(date, "{year}-01-01"), le(date, "{year}-12-31")]'
    return invalid(
        {"c": name, "year": str(year)},
        said,
        refs(c),
        frozenset({"dividends"}),
        later((f"get_stock_dividend({quoted(name)})", f'sort({condition}, -date)["value"]')),
    )


def false_high(w: World, r: Random, now: Now) -> Asked | None:
    c, name = some_company(w, r)
    words, span, bars = some_month(w, r, c)
    top = max(b.high for b in bars)
    above = int(top * (1.3 + r.random())) + 1
    said = (
        f"In {words} {c.short} never traded above {price(top)}.",
        f"{words} high of {c.ticker}: {price(top)}.",
    )
    return invalid(
        {"c": name, "month": words, "above": f"${above}"},
        said,
        refs(c),
        frozenset({"prices"}),
        later(
            (f"ALL get_stock_price({quoted(name)}, {span})", f'sort(gt(close, {above}), time)["time"][:1]')
        ),
    )
