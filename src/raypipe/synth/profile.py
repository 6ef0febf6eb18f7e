"""Facts about one person, film, firm, team or place: key, table cell, sentences.

Every fact follows from the world's tables, so a page about anything is true. The keys are those that a
question's `tells` names: a page that leaves them out does not give the answer away.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raypipe.synth.ask.core import Ref, large, long_date, plain, price
from raypipe.synth.ask.open import patron_of
from raypipe.synth.world.film import LANGUAGES, SPOKEN, Movie, Person
from raypipe.synth.world.market import SNAPSHOT, Company
from raypipe.synth.world.music import COUNTRIES, Artist, Song
from raypipe.synth.world.places import Entity
from raypipe.synth.world.sport import Team
from raypipe.synth.world.world import World


@dataclass(frozen=True, slots=True)
class Fact:
    key: str
    label: str  # of a table row
    value: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Profile:
    ref: Ref
    facts: tuple[Fact, ...]

    @property
    def name(self) -> str:
        return self.ref[1]


def _movie(w: World, m: Movie) -> list[Fact]:
    crew = w.film.credits_in[m.title]
    cast = w.film.roles_in[m.title]
    director, composer = (
        w.film.director(m).name,
        next(c.person.name for c in crew if c.job.endswith("Composer")),
    )
    stars = ", ".join(r.person.name for r in cast[:3])
    long = long_date(m.release_date)
    facts = [
        Fact("genres", "Genre", ", ".join(m.genres), f"{m.title} is a {m.genres[0].lower()} film."),
        Fact("released", "Release date", long, f"The film reached cinemas on {long}."),
        Fact("director", "Directed by", director, f"{director} directed {m.title}."),
        Fact("starring", "Starring", stars, f"The leading parts are played by {stars}."),
        Fact("composer", "Music by", composer, f"The music was written by {composer}."),
        Fact("length", "Running time", f"{m.length} minutes", f"{m.title} runs for {m.length} minutes."),
        Fact("budget", "Budget", f"${m.budget:,}", f"It was made on a budget of ${m.budget:,}."),
        Fact("revenue", "Box office", f"${m.revenue:,}", f"Cinemas took in ${m.revenue:,} with it."),
        Fact("rating", "Rating", f"{m.rating}/10", f"Viewers give {m.title} {m.rating} points out of 10."),
        Fact(
            "language",
            "Language",
            LANGUAGES[m.original_language],
            f"The actors speak {LANGUAGES[m.original_language]}.",
        ),
        Fact("town", "Filmed in", m.town, f"The set stood in {m.town}."),
    ]
    facts += [
        Fact("roles", r.character, r.person.name, f"{r.person.name} appears as {r.character}.") for r in cast
    ]
    return facts


def _person(w: World, p: Person) -> list[Fact]:
    long = long_date(p.birthday)
    facts = [Fact("born", "Born", long, f"{p.name} was born on {long}.")]
    for role in w.film.roles_of.get(p.name, ())[-6:]:
        m = role.movie
        facts.append(
            Fact(
                "acted",
                f"{m.year}",
                f"{m.title} ({role.character})",
                f"In {m.title} {p.name} plays {role.character}.",
            )
        )
    for m in w.film.directed.get(p.name, ())[-6:]:
        facts.append(Fact("directed", f"{m.year} (director)", m.title, f"{p.name} directed {m.title}."))
    for o in w.film.won.get(p.name, ()):
        facts.append(
            Fact(
                "oscars",
                f"Oscar {o.year}",
                f"{SPOKEN[o.category]} ({o.film})",
                f"{p.name} won the Oscar for {SPOKEN[o.category]} in {o.year} with {o.film}.",
            )
        )
    return facts


def _company(w: World, c: Company) -> list[Fact]:
    cap, eps = large(c.market_cap), f"-${-c.eps:.2f}" if c.eps < 0 else price(c.eps)
    ratio = "none" if c.pe_ratio is None else plain(c.pe_ratio)
    facts = [
        Fact("ticker", "Ticker", c.ticker, f"Shares of {c.name} trade under the symbol {c.ticker}."),
        Fact("sector", "Sector", c.sector, f"{c.short} is a {c.sector} company."),
        Fact("headquarters", "Headquarters", c.headquarters, f"Its head office is in {c.headquarters}."),
        Fact("ceo", "CEO", c.ceo, f"{c.ceo} is the chief executive officer of {c.short}."),
        Fact("founded", "Founded", str(c.founded), f"{c.short} was founded in {c.founded}."),
        Fact("market_cap", "Market cap", cap, f"The market values {c.short} at {cap}."),
        Fact("eps", "EPS", eps, f"Its earnings per share are {eps}."),
        Fact("pe_ratio", "P/E", ratio, f"The price-to-earnings ratio is {ratio}."),
        Fact("product", "First product", c.product, f"It began with {c.product}."),
    ]
    for d in w.market.dividends[c.ticker][-4:]:
        facts.append(
            Fact(
                "dividends",
                f"Dividend {d.date}",
                f"${plain(d.value)}",
                f"On {long_date(d.date)} {c.short} paid ${plain(d.value)} a share.",
            )
        )
    for day in [d for d in w.market.days if d <= SNAPSHOT][-6:]:
        bar = w.market.bars[c.ticker][day]
        facts.append(
            Fact(
                "prices",
                long_date(day),
                f"{bar.open:.2f} / {bar.close:.2f}",
                f"On {long_date(day)} {c.ticker} opened at {price(bar.open)} "
                f"and closed at {price(bar.close)}.",
            )
        )
    return facts


def _artist(w: World, a: Artist) -> list[Fact]:
    land, long = COUNTRIES[a.birth_place], long_date(a.birth_date)
    begun = f"{a.name} was formed on {long}." if a.group else f"{a.name} was born on {long}."
    facts = [
        Fact("born", "Formed" if a.group else "Born", long, begun),
        Fact("birth_place", "Origin", land, f"The home country of {a.name} is {land}."),
    ]
    if a.members:
        facts.append(
            Fact("members", "Members", ", ".join(a.members), f"In the group play {', '.join(a.members)}.")
        )
    else:
        facts.append(Fact("instrument", "Instrument", a.instrument, f"{a.name} plays {a.instrument}."))
    for s in w.music.works[a.name][-8:]:
        facts.append(
            Fact(
                "works",
                f"{s.release_date.year}",
                s.name,
                f"{s.name} came out on {long_date(s.release_date)}.",
            )
        )
    for g in w.music.won.get(a.name, ()):
        facts.append(
            Fact(
                "grammys",
                f"Grammy {g.year}",
                f"{g.category} ({g.nominee})",
                f"In {g.year} {a.name} won the Grammy for {g.category.lower()} with {g.nominee}.",
            )
        )
    return facts


def _song(w: World, s: Song) -> list[Fact]:
    long = long_date(s.release_date)
    facts = [
        Fact("author", "Artist", s.author, f"{s.name} is sung by {s.author}."),
        Fact("released", "Released", long, f"The song came out on {long}."),
        Fact(
            "country",
            "Country",
            COUNTRIES[s.release_country],
            f"Sales began in this country: {COUNTRIES[s.release_country]}.",
        ),
        Fact("studio", "Recorded at", s.studio, f"The recording was made at {s.studio}."),
    ]
    if s.name in w.music.ranked:
        last = w.music.ranked[s.name][-1]
        facts.append(
            Fact(
                "chart",
                "Best chart place",
                str(last.top_position),
                f"On the chart it reached place {last.top_position}.",
            )
        )
    return facts


def _team(w: World, t: Team) -> list[Fact]:
    facts = [
        Fact("league", "League", t.league, f"{t.name} play in the {t.league}."),
        Fact("city", "City", t.city, f"The team comes from {t.city}."),
        Fact("stadium", "Stadium", t.stadium, f"Home games are held at {t.stadium}."),
        Fact("founded", "Founded", str(t.founded), f"{t.name} were founded in {t.founded}."),
        Fact("alias", "Known as", t.alias, f"Fans call them {t.alias}."),
        Fact("mascot", "Mascot", t.mascot, f"Their mascot is {t.mascot}."),
    ]
    for s in [s for s in w.sport.sides[t.name] if s.date <= SNAPSHOT][-8:]:
        facts.append(
            Fact(
                "games",
                f"{s.date} {s.opponent}",
                f"{s.scored}-{s.let_in} {s.result}",
                f"On {long_date(s.date)} {t.name} met {s.opponent}; the result was {s.scored}-{s.let_in}.",
            )
        )
    return facts


def _entity(w: World, e: Entity) -> list[Fact]:
    facts = [Fact("summary", "About", e.kind, e.summary)]
    for key, value in e.facts:
        if key == "type":
            continue
        label = key.replace("_", " ")
        shown = f"{int(value):,}" if value.isdigit() and int(value) > 2100 else value
        facts.append(Fact(key, label.capitalize(), shown, f"The {label} of {e.name}: {shown}."))
    if e.kind in ("museum", "university"):
        facts.append(Fact("patron", "Patron", patron_of(e), f"{e.name} owes its house to {patron_of(e)}."))
    return facts


class Profiles:
    """The profiles of a world, made when first asked for and kept: the world is small, questions are many."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._made: dict[Ref, Profile] = {}
        w = world
        self._movies = {m.title: m for m in w.film.movies}
        self._people = {p.name: p for p in w.film.people}
        self._companies = {c.name: c for c in w.market.companies}
        self._songs = {s.name: s for s in w.music.songs}
        crossing = {"basketball team", "soccer team", "company"}
        entities = tuple(e.name for e in w.places.entities if e.kind not in crossing)
        self.refs: Mapping[str, tuple[Ref, ...]] = {
            kind: tuple((kind, n) for n in names)
            for kind, names in {
                "movie": tuple(self._movies),
                "person": tuple(self._people),
                "company": tuple(self._companies),
                "artist": tuple(a.name for a in w.music.artists),
                "song": tuple(self._songs),
                "team": tuple(w.sport.teams),
                "entity": entities,
            }.items()
        }
        alike: dict[str, list[Ref]] = defaultdict(list)
        for refs in self.refs.values():
            for ref in refs:
                for part in set(ref[1].split()):
                    alike[part].append(ref)
        self._alike: Mapping[str, Sequence[Ref]] = alike

    def similar(self, ref: Ref) -> list[Ref]:
        """Others whose name shares a word with this one, in a fixed order; at most thirty."""
        words = [p for p in ref[1].split() if len(p) > 3]
        found = dict.fromkeys(r for p in words for r in self._alike[p][:15] if r != ref)
        return list(found)[:30]

    def of(self, ref: Ref) -> Profile:
        if ref not in self._made:
            self._made[ref] = Profile(ref, tuple(self._facts(ref)))
        return self._made[ref]

    def _facts(self, ref: Ref) -> list[Fact]:
        (kind, name), w = ref, self._world
        match kind:
            case "movie":
                return _movie(w, self._movies[name])
            case "person":
                return _person(w, self._people[name])
            case "company":
                return _company(w, self._companies[name])
            case "artist":
                return _artist(w, w.music.artist[name])
            case "song":
                return _song(w, self._songs[name])
            case "team":
                return _team(w, w.sport.teams[name])
            case "entity":
                return _entity(w, w.places.named[name])
        raise KeyError(f"no profile for {kind} {name!r}")
