"""Questions about share prices, dividends and companies."""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Mapping
from datetime import date, timedelta

from raypipe.contrib.world.ask import spellings
from raypipe.contrib.world.ask.spellings import long_date, price
from raypipe.contrib.world.ask.templates import (
    Attempt,
    Scene,
    Shape,
    compare,
    count,
    false,
    scene,
    several,
    then,
    value,
)
from raypipe.contrib.world.world.market import FIRST_DAY, SNAPSHOT, Company

SPOKEN = {"open": "opening", "close": "closing", "high": "highest", "low": "lowest"}
QUARTERS = ("first", "second", "third", "fourth")


def _company(d: Attempt) -> Scene:
    """Draws a company. The question uses its short name or its ticker."""
    c = d.skewed(d.world.market.companies)
    name = c.short if d.rng.random() < 0.65 else c.ticker
    return scene(c, ("company", c.name), c=name, short=c.short, ticker=c.ticker, name=c.name)


def _two(d: Attempt) -> Scene | None:
    a, b = d.skewed(d.world.market.companies), d.skewed(d.world.market.companies)
    about = ("company", a.name), ("company", b.name)
    return None if a is b else scene((a, b), *about, a=a.short, b=b.short)


def _past_day(d: Attempt) -> date:
    return d.pick([x for x in d.world.market.days if x <= SNAPSHOT])


def _on_day(d: Attempt, c: Scene) -> Scene:
    day = _past_day(d)
    return c.at(d.world.market.bars[c.it.ticker][day], day=long_date(day), iso=str(day))


def _both_on_day(d: Attempt, found: Scene) -> Scene:
    day = _past_day(d)
    bars = tuple((c, d.world.market.bars[c.ticker][day]) for c in found.it)
    return found.at(bars, day=long_date(day), iso=str(day))


def _one_price(d: Attempt, bar: Scene) -> Scene:
    key = d.pick(list(SPOKEN))
    return bar.at(getattr(bar.it, key), key=key, spoken=SPOKEN[key])


_dividends = then(_company, lambda d, c: c.at(d.world.market.dividends[c.it.ticker]))
_chief = then(_company, lambda d, c: c.at(c.it, ("entity", c.it.ceo), p=c.it.ceo))
_on_a_day = then(_company, _on_day)
_price_on_a_day = then(_on_a_day, _one_price)
_bars = then(_two, _both_on_day)


def _price_now(d: Attempt, c: Scene) -> Scene:
    m = d.world.market.latest(c.it.ticker, d.now.day, d.now.eastern)
    return c.at(m.open, time=m.time, day=long_date(m.date))


def _last_close(d: Attempt) -> Scene:
    c, day = _company(d), max(x for x in d.world.market.days if x < d.now.day)
    return c.at(d.world.market.bars[c.it.ticker][day].close, day=long_date(day))


def _yesterday(d: Attempt) -> Scene | None:
    c, day = _company(d), d.now.day - timedelta(days=1)
    if day not in d.world.market.days:
        return None
    return c.at(d.world.market.bars[c.it.ticker][day].volume, day=long_date(day))


def _one_paid(d: Attempt, c: Scene) -> Scene | None:
    if not c.it:
        return None
    paid = d.pick(c.it)
    quarter = (paid.date.month - 1) // 3
    first = date(paid.date.year, 3 * quarter + 1, 1)
    last = date(first.year, first.month + 2, monthrange(first.year, first.month + 2)[1])
    words = f"the {QUARTERS[quarter]} quarter of {first.year}"
    return c.at(paid.value, quarter=words, begin=str(first), end=str(last), day=long_date(paid.date))


def _month(d: Attempt) -> Scene:
    c = _company(d)
    year, number = d.pick([(2023, m) for m in range(FIRST_DAY.month, 13)] + [(2024, 1), (2024, 2)])
    first, last = date(year, number, 1), date(year, number, monthrange(year, number)[1])
    bars = d.world.market.between(c.it.ticker, first, last)
    return c.at(bars, month=f"{first:%B %Y}", begin=str(first), end=str(last))


def _week(d: Attempt) -> Scene | None:
    c, day = _company(d), _past_day(d)
    monday = day - timedelta(days=day.weekday())
    friday = monday + timedelta(days=4)
    if friday > SNAPSHOT:
        return None
    words = {"first": long_date(monday), "last": long_date(friday), "begin": str(monday), "end": str(friday)}
    return c.at(d.world.market.between(c.it.ticker, monday, friday), **words)


def _of_a_year(d: Attempt, c: Scene) -> Scene:
    year = d.pick((2022, 2023))
    return c.at([x for x in c.it if x.date.year == year], year=str(year))


def _change(d: Attempt) -> Scene | None:
    c, a, b = _company(d), _past_day(d), _past_day(d)
    if a >= b:
        return None
    bars, words = d.world.market.bars[c.it.ticker], {"first": long_date(a), "last": long_date(b)}
    return c.at((bars[a].close, bars[b].close), **words, a=str(a), b=str(b))


def _too_high(d: Attempt) -> Scene:
    found = _month(d)
    top = max(b.high for b in found.it)
    above = int(top * (1.3 + d.rng.random())) + 1
    return found.at(None, high=price(top), above=f"${above}", limit=str(above))


def _aliases(c: Company) -> tuple[str, str]:
    return c.name, c.ticker


FINANCE: Mapping[str, Shape] = {
    "price_now": value(then(_company, _price_now), spellings.priced),
    "market_cap": value(_company, lambda c: spellings.sized(c.market_cap)),
    "ratio": value(_company, lambda c: spellings.decimal(c.pe_ratio) if c.pe_ratio else None),
    "earnings": value(_company, lambda c: spellings.per_share(c.eps)),
    "first_product": value(_company, lambda c: spellings.articled(c.product)),
    "price_on": value(_price_on_a_day, spellings.priced),
    "last_close": value(_last_close, spellings.priced),
    "volume_yesterday": value(_yesterday, spellings.counted),
    "quarter_dividend": value(then(_dividends, _one_paid), lambda x: spellings.dollars(spellings.plain(x))),
    "larger_company": compare(_two, lambda c: c.market_cap, spellings.large, _aliases),
    "lower_ratio": compare(_two, lambda c: c.pe_ratio, others=_aliases),
    "higher_close": compare(_bars, lambda pair: pair[1].close, price, lambda pair: _aliases(pair[0])),
    "mean_close": value(_month, lambda bars: spellings.priced(sum(b.close for b in bars) / len(bars))),
    "month_high": value(_month, lambda bars: spellings.priced(max(b.high for b in bars))),
    "dividend_count": count(then(_dividends, _of_a_year)),
    "up_days": several(_week, lambda bars: [b.date for b in bars if b.close > b.open], form=spellings.dates),
    "dividend_dates": several(
        _dividends, lambda paid: [x.date for x in paid if x.date.year == 2023], form=spellings.dates
    ),
    "close_of_chief": value(then(_chief, _on_day), lambda bar: spellings.priced(bar.close)),
    "cap_of_chief": value(_chief, lambda c: spellings.sized(c.market_cap)),
    "percent_change": value(_change, lambda closes: spellings.percent((closes[1] - closes[0]) / closes[0])),
    "day_range": value(_on_a_day, lambda bar: spellings.priced(bar.high - bar.low)),
    "false_dividend": false(then(_dividends, lambda d, c: None if c.it else _of_a_year(d, c))),
    "false_high": false(_too_high),
}
