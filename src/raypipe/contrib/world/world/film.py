"""The invented film world: people, films, casts, crews, Oscars. Its records become rows of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from random import Random

from raypipe.contrib.world.world.names import NameSource, grouped, number, pick, skewed

PEOPLE, ACTORS, DIRECTORS = 640, 480, 110
YEARS = range(1987, 2025)
FILMS_A_YEAR = 13
LAST_RELEASE = date(2024, 2, 23)  # before the earliest question
GENRES = ("Drama", "Comedy", "Thriller", "Adventure", "Science Fiction", "Family", "Mystery", "Western")
LANGUAGES = {
    "en": "English",
    "fr": "French",
    "es": "Spanish",
    "de": "German",
    "ja": "Japanese",
    "ko": "Korean",
}
JOBS = ("Director", "Producer", "Screenplay", "Original Music Composer")
PICTURE, DIRECTING = "best picture", "directing"
LEADING = {"actor in a leading role": (2, "best actor"), "actress in a leading role": (1, "best actress")}
SUPPORTING = {
    "actor in a supporting role": (2, "best supporting actor"),
    "actress in a supporting role": (1, "best supporting actress"),
}
SPOKEN = {PICTURE: "best picture", DIRECTING: "best director"} | {
    c: words for c, (_, words) in (LEADING | SUPPORTING).items()
}
"""Category in the table -> its words in a question."""


@dataclass(frozen=True, slots=True)
class Person:
    id: int
    name: str
    birthday: date
    gender: int  # 1 female, 2 male, as in CRAG's mock API


@dataclass(frozen=True, slots=True)
class Movie:
    id: int
    title: str
    release_date: date
    original_title: str
    original_language: str  # ISO 639-1
    budget: int  # dollars
    revenue: int  # dollars
    rating: float  # 0..10, one decimal
    genres: tuple[str, ...]
    length: int  # minutes
    town: str  # filming location; on pages only, not in the graph

    @property
    def name(self) -> str:
        return self.title

    @property
    def year(self) -> int:
        return self.release_date.year


@dataclass(frozen=True, slots=True)
class Role:
    movie: Movie
    person: Person
    character: str
    order: int  # 0 is billed first


@dataclass(frozen=True, slots=True)
class Credit:
    movie: Movie
    person: Person
    job: str


@dataclass(frozen=True, slots=True)
class Oscar:
    year: int  # of the ceremony
    ceremony: int
    category: str
    name: str
    film: str
    winner: bool


@dataclass(frozen=True, slots=True)
class Film:
    people: tuple[Person, ...]  # early ones get more questions
    movies: tuple[Movie, ...]  # early ones get more questions
    cast: tuple[Role, ...]
    crew: tuple[Credit, ...]
    oscars: tuple[Oscar, ...]
    roles_in: Mapping[str, tuple[Role, ...]]  # by film title, in billing order
    roles_of: Mapping[str, tuple[Role, ...]]  # by person, in order of release
    credits_in: Mapping[str, tuple[Credit, ...]]  # by film title
    directed: Mapping[str, tuple[Movie, ...]]  # by person, in order of release
    won: Mapping[str, tuple[Oscar, ...]]  # by person, winners only
    directors: tuple[str, ...]  # most films first

    def director(self, movie: Movie) -> Person:
        return next(c.person for c in self.credits_in[movie.title] if c.job == "Director")

    def oscar(self, year: int, category: str) -> Oscar | None:
        """Returns the winner of a category, or None if the category had no nominees."""
        return next((o for o in self.oscars if o.winner and (o.year, o.category) == (year, category)), None)


def _people(rng: Random, names: NameSource) -> list[Person]:
    start = date(1938, 1, 1)
    return [
        Person(10_000 + 7 * i, names.person(), start + timedelta(days=int(rng.random() * 23_000)), 1 + i % 2)
        for i in range(PEOPLE)
    ]


def _movie(rng: Random, names: NameSource, year: int, earlier: list[Movie], towns: list[str]) -> Movie:
    last = min(date(year, 12, 28), LAST_RELEASE)
    released = date(year, 1, 3) + timedelta(days=int(rng.random() * (last - date(year, 1, 3)).days))
    title = names.sequel(pick(rng, earlier).title) if earlier and rng.random() < 0.06 else names.film()
    language = "en" if rng.random() < 0.6 else pick(rng, list(LANGUAGES))
    original = title if language == "en" else names.film()
    budget = int(rng.lognormvariate(17, 0.9)) // 1000 * 1000
    revenue = int(budget * rng.lognormvariate(0.7, 0.8)) // 100 * 100
    genres = tuple(sorted(rng.sample(GENRES, 1 + int(rng.random() * 3))))
    rating = round(min(9.4, max(2.1, rng.gauss(6.3, 1.2))), 1)
    length, town, id = number(rng, 78, 95), pick(rng, towns), 3_000 + 11 * len(earlier)
    return Movie(id, title, released, original, language, budget, revenue, rating, genres, length, town)


def _team_of(
    rng: Random, movie: Movie, people: list[Person], names: NameSource
) -> tuple[list[Role], list[Credit]]:
    adults = [p for p in people if movie.year - 72 < p.birthday.year < movie.year - 18]
    actors = [p for p in adults if p.id < 10_000 + 7 * ACTORS]
    others = [p for p in adults if p.id >= 10_000 + 7 * (PEOPLE - 160)]
    chosen: dict[str, Person] = {}
    for _ in range(6 + int(rng.random() * 5)):
        p = skewed(rng, actors)
        chosen.setdefault(p.name, p)
    parts: dict[str, Person] = {}
    for p in chosen.values():
        parts.setdefault(names.character(), p)
    cast = [Role(movie, p, c, i) for i, (c, p) in enumerate(parts.items())]
    director = skewed(rng, [p for p in others if p.id >= 10_000 + 7 * (PEOPLE - DIRECTORS)])
    crew = [Credit(movie, director, "Director")]
    crew += [Credit(movie, pick(rng, others), job) for job in JOBS[1:]]
    return cast, crew


def _oscars(rng: Random, year: int, cast: list[Role], crew: list[Credit]) -> list[Oscar]:
    """Returns the nominations of one ceremony, for films of the year before. A category has up to five
    nominees and one winner."""
    runs: dict[str, list[tuple[str, str]]] = {
        PICTURE: [(c.person.name, c.movie.title) for c in crew if c.job == "Producer"],
        DIRECTING: [(c.person.name, c.movie.title) for c in crew if c.job == "Director"],
    }
    for orders, categories in (((0, 1), LEADING), ((2, 3, 4), SUPPORTING)):
        for category, (gender, _) in categories.items():
            runs[category] = [
                (r.person.name, r.movie.title)
                for r in cast
                if r.order in orders and r.person.gender == gender
            ]
    rows = []
    for category, able in runs.items():
        distinct = list({name: (name, film) for name, film in able}.values())
        nominees = rng.sample(distinct, min(5, len(distinct)))
        best = int(rng.random() * len(nominees)) if nominees else 0
        rows += [Oscar(year, year - 1928, category, n, f, i == best) for i, (n, f) in enumerate(nominees)]
    return rows


def build_film(rng: Random, names: NameSource, towns: list[str]) -> Film:
    people = _people(rng, names)
    movies: list[Movie] = []
    cast: list[Role] = []
    crew: list[Credit] = []
    oscars: list[Oscar] = []
    for year in YEARS:
        first_cast, first_crew = len(cast), len(crew)
        for _ in range(FILMS_A_YEAR):
            movie = _movie(rng, names, year, movies, towns)
            roles, credits = _team_of(rng, movie, people, names)
            movies.append(movie)
            cast += roles
            crew += credits
        if year < YEARS[-1] - 1:
            oscars += _oscars(rng, year + 1, cast[first_cast:], crew[first_crew:])
    directors = grouped((c for c in crew if c.job == "Director"), lambda c: c.person.name)
    directed = {
        name: tuple(sorted((c.movie for c in of), key=lambda m: m.release_date))
        for name, of in directors.items()
    }
    rng.shuffle(movies)
    return Film(
        people=tuple(people),
        movies=tuple(movies),
        cast=tuple(cast),
        crew=tuple(crew),
        oscars=tuple(oscars),
        roles_in=grouped(cast, lambda r: r.movie.title),
        roles_of=grouped(cast, lambda r: r.person.name, lambda r: r.movie.release_date),
        credits_in=grouped(crew, lambda c: c.movie.title),
        directed=directed,
        won=grouped((o for o in oscars if o.winner), lambda o: o.name),
        directors=tuple(sorted(directed, key=lambda n: (-len(directed[n]), n))),
    )
