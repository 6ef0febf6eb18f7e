"""Questions that join several facts about games and teams, or presume a wrong one."""

from __future__ import annotations

from datetime import date, timedelta
from random import Random

from raypipe.synth.ask.core import Asked, Now, counted, invalid, later, long_date, month, plain, quoted
from raypipe.synth.ask.sports import MONTHS, call, neighbours, refs, some_game, some_team, told, unit
from raypipe.synth.world.names import pick
from raypipe.synth.world.world import World


def scored_more(w: World, r: Random, now: Now) -> Asked | None:
    """Two teams on one day, not against each other."""
    t, s = some_game(w, r, "nba")
    others = [x for x in w.sport.nba if x.name not in (t.name, s.opponent) and w.sport.on(x.name, s.date)]
    if not others:
        return None
    o = pick(r, others)
    them = w.sport.on(o.name, s.date)
    if them is None or s.scored is None or them.scored is None or s.scored == them.scored:
        return None
    (best, top), (worst, low) = sorted(((t.name, s.scored), (o.name, them.scored)), key=lambda x: -x[1])
    said = (
        f"On {long_date(s.date)} {best} scored {top} points and {worst} only {low}.",
        f"{best} outscored {worst} on {long_date(s.date)}, {top} to {low}, in different games.",
    )
    calls = later([f'get_nba_on_date({quoted(x)}, "{s.date}")["GF"]' for x in (t.name, o.name)])
    return Asked(
        {"a": t.name, "b": o.name, "day": long_date(s.date)},
        best.lower(),
        (),
        said,
        refs(w, t.name, o.name),
        frozenset({"games"}),
        calls,
        "most",
    )


def founded_first(w: World, r: Random, now: Now) -> Asked | None:
    a, b = some_team(w, r), some_team(w, r)
    if a.founded == b.founded:
        return None
    old, young = sorted((a, b), key=lambda t: t.founded)
    said = (
        f"{old.name} is older than {young.name}.",
        f"{old.name} was founded in {old.founded}, {young.name} in {young.founded}.",
    )
    calls = later([f'get_open({quoted(t.name)})["founded"]' for t in (a, b)])
    return Asked(
        {"a": a.name, "b": b.name},
        old.name.lower(),
        (),
        said,
        refs(w, a.name, b.name),
        frozenset({"founded"}),
        calls,
        "least",
    )


def wins_in_month(w: World, r: Random, now: Now) -> Asked | None:
    t, (year, number) = some_team(w, r), pick(r, MONTHS)
    n = sum(s.result == "W" for s in w.sport.within(t.name, year, number))
    if not n:
        return None
    words = month(year, number)
    said = (f"{t.name} won {n} games in {words}.", f"{words}: {n} victories for {t.name}.")
    return Asked(
        {"t": t.name, "month": words},
        *counted(n),
        said,
        refs(w, t.name),
        frozenset({"games"}),
        later((f'ALL {call(t)}({quoted(t.name)}, "{year}-{number:02d}")', "sort(eq(result, W), date)[len]")),
    )


def mean_points(w: World, r: Random, now: Now) -> Asked | None:
    t, (year, number) = some_team(w, r), pick(r, MONTHS)
    games = [s.scored for s in w.sport.within(t.name, year, number) if s.scored is not None]
    if len(games) < 3:
        return None
    mean, words = round(sum(games) / len(games), 2), month(year, number)
    said = (
        f"{t.name} scored {plain(mean)} {unit(t)} a game in {words}.",
        f"In {words} the average of {t.name} was {plain(mean)} {unit(t)}.",
    )
    return Asked(
        {"t": t.name, "unit": unit(t), "month": words},
        plain(mean),
        (f"{mean:.2f}",),
        said,
        refs(w, t.name),
        frozenset({"games"}),
        f'AVG(ALL {call(t)}({quoted(t.name)}, "{year}-{number:02d}")["GF"])',
        "round",
    )


def opponents_in_month(w: World, r: Random, now: Now) -> Asked | None:
    t, (year, number) = some_team(w, r, "soccer"), pick(r, MONTHS)
    met = [s.opponent for s in w.sport.within(t.name, year, number)]
    if len(met) < 2:
        return None
    words, text = month(year, number), ", ".join(met)
    said = (f"In {words} {t.name} played against {text}.", f"Opponents of {t.name} in {words}: {text}.")
    return Asked(
        {"t": t.name, "month": words},
        text.lower(),
        (),
        said,
        refs(w, t.name),
        frozenset({"games"}),
        later(
            (
                f'ALL get_soccer_on_date({quoted(t.name)}, "{year}-{number:02d}")',
                'sort(None, date)["opponent"]',
            )
        ),
        "list",
    )


def last_then_next(w: World, r: Random, now: Now) -> Asked | None:
    t = some_team(w, r, "soccer")
    s, _ = neighbours(w, t, now)
    if s is None:
        return None
    _, after = neighbours(w, w.sport.teams[s.opponent], now)
    if after is None:
        return None
    said = (
        f"{s.opponent}, who {t.name} met last, will play {after.opponent} next.",
        f"Next for {s.opponent}: {after.opponent} on {long_date(after.date)}.",
    )
    return Asked(
        {"t": t.name},
        after.opponent.lower(),
        (),
        said,
        refs(w, t.name, s.opponent),
        frozenset({"games"}),
        later((f'get_soccer_last_game({quoted(t.name)})["opponent"]', 'get_soccer_next_game(*)["opponent"]')),
    )


def city_population(w: World, r: Random, now: Now) -> Asked | None:
    t = some_team(w, r)
    n = w.places.named[t.city].number("population")
    said = (
        f"{t.city}, home of {t.name}, has a population of {n:,}.",
        f"{t.name} play in {t.city}, a city of {n:,} people.",
    )
    return Asked(
        {"t": t.name},
        *counted(n),
        said,
        (("team", t.name), ("entity", t.city)),
        frozenset({"population"}),
        later((f'get_open({quoted(t.name)})["city"]', 'get_open(*)["population"]')),
    )


def margin(w: World, r: Random, now: Now) -> Asked | None:
    t, s = some_game(w, r, "nba")
    if s.scored is None or s.let_in is None:
        return None
    gap = abs(s.scored - s.let_in)
    said = (
        f"The game of {t.name} on {long_date(s.date)} was decided by {gap} points.",
        f"{long_date(s.date)}, {t.name} against {s.opponent}: a margin of {gap}.",
    )
    calls = later([f'get_nba_on_date({quoted(t.name)}, "{s.date}")["{k}"]' for k in ("GF", "GA")])
    return Asked(
        {"t": t.name, "day": long_date(s.date), "o": s.opponent},
        str(gap),
        (f"{gap} points",),
        said,
        refs(w, t.name, s.opponent),
        frozenset({"games"}),
        calls,
        "difference",
    )


def founded_apart(w: World, r: Random, now: Now) -> Asked | None:
    a, b = some_team(w, r), some_team(w, r)
    gap = abs(a.founded - b.founded)
    if not gap:
        return None
    said = (
        f"{a.name} and {b.name} were founded {gap} years apart.",
        f"Between the founding of {a.name} and of {b.name} lie {gap} years.",
    )
    calls = later([f'get_open({quoted(t.name)})["founded"]' for t in (a, b)])
    return Asked(
        {"a": a.name, "b": b.name},
        str(gap),
        (f"{gap} years",),
        said,
        refs(w, a.name, b.name),
        frozenset({"founded"}),
        calls,
        "difference",
    )


def false_game(w: World, r: Random, now: Now) -> Asked | None:
    t, day = some_team(w, r), date(2023, 11, 1) + timedelta(days=int(r.random() * 120))
    if w.sport.on(t.name, day):
        return None
    near = next(s for s in w.sport.sides[t.name] if s.date > day)
    said = (
        f"{t.name} had no game on {long_date(day)}.",
        f"{t.name} did not play on {long_date(day)}. {told(t, near)}",
    )
    return invalid(
        {"t": t.name, "unit": unit(t), "day": long_date(day)},
        said,
        refs(w, t.name),
        frozenset({"games"}),
        f'{call(t)}({quoted(t.name)}, "{day}")["GF"]',
    )


def false_opponent(w: World, r: Random, now: Now) -> Asked | None:
    t, s = some_game(w, r)
    other = some_team(w, r, t.sport)
    if other.name in (t.name, s.opponent) or other.league != t.league:
        return None
    said = (f"On {long_date(s.date)} {t.name} played {s.opponent}, not {other.name}.", told(t, s))
    return invalid(
        {"t": t.name, "o": other.name, "unit": unit(t), "day": long_date(s.date)},
        said,
        refs(w, t.name, other.name),
        frozenset({"games"}),
        later(
            (
                f'ALL {call(t)}({quoted(t.name)}, "{s.date}")',
                f'sort(eq(opponent, {quoted(other.name)}), date)["GF"][:1]',
            )
        ),
    )
