"""A small invented graph, made of rows in place."""

from checkout import ROOT

from raypipe.contrib.crag.graph import FolderBackend
from raypipe.contrib.crag.link import Linker
from raypipe.contrib.crag.tables import Tables

GRAMMAR = (ROOT / "conf/grammar/calls.lark").read_text(encoding="utf-8")
ASKED = "03/05/2024, 10:00:00 PT"

MOVIES = [
    {
        "id": 1,
        "title": "Greater Meaning of Water",
        "release_date": "2010-11-14",
        "year": 2010,
        "rating": 6.5,
        "genres": ["Drama"],
        "length": 90,
        "budget": 5,
        "revenue": 40,
    },
    {
        "id": 2,
        "title": "Small Town Ecstasy",
        "release_date": "2002-01-12",
        "year": 2002,
        "rating": 7.1,
        "genres": ["Documentary", "Drama"],
        "length": 80,
        "budget": 9,
        "revenue": 3,
    },
    {
        "id": 3,
        "title": "The Maze Runner",
        "release_date": "2014-09-10",
        "year": 2014,
        "rating": 7.2,
        "genres": ["Action"],
        "length": 113,
        "budget": 34,
        "revenue": 348,
    },
    {
        "id": 4,
        "title": "Maze Runner: The Death Cure",
        "release_date": "2018-01-10",
        "year": 2018,
        "rating": None,
        "genres": [],
        "length": 143,
        "budget": 62,
        "revenue": 288,
    },
    {
        "id": 5,
        "title": "Amélie",
        "original_title": "Le Fabuleux Destin",
        "release_date": "2001-04-25",
        "year": 2001,
        "rating": 7.9,
        "genres": ["Romance"],
        "length": 122,
        "budget": 10,
        "revenue": 173,
    },
    {
        "id": 6,
        "title": "Not Yet Out",
        "release_date": "2024-06-01",
        "year": 2024,
        "rating": 9.9,
        "genres": ["Drama"],
        "length": 99,
        "budget": 1,
        "revenue": None,
    },
]
CREW = [
    ("Walt Becker", "Director", 3),
    ("Walt Becker", "Director", 2),
    ("Walt Becker", "Director", 6),
    ("Walt Becker", "Writer", 1),
    ("Ana Lima", "Director", 5),
]
CAST = [
    ("Zak Santiago", "Tom", 2, 0),
    ("Brenda Crichlow", "Ann (young)", 2, 1),
    ("Zak Santiago", "Joe", 3, 4),
    ("Brenda Crichlow", "Sue", 3, 5),
    ("Zak Santiago", "Max", 5, 1),
    ("Zak Santiago", "Max's twin", 2, 9),
]
OSCARS = [
    (2012, "actor in a leading role", "Jean Dujardin", "The Artist", True),
    (2012, "actor in a leading role", "George Clooney", "The Descendants", False),
    (2012, "best picture", "Thomas Langmann and Ana Lima", "The Artist", True),
    (2024, "directing", "Someone", "Something", True),
    (2025, "directing", "Later One", "Later", True),
]
DAYS = {
    "2024-02-29": (10, 11),
    "2024-03-01": (12, 11),
    "2024-03-04": (11, 14),
    "2024-03-05": (14, 15),
    "2024-03-06": (99, 99),
}


def build() -> FolderBackend:
    tables = Tables()
    film = {m["id"]: m for m in MOVIES}

    def ties(i):
        return {
            "movie_id": i,
            "movie_name": film[i]["title"],
            "year": film[i]["year"],
            "release_date": film[i]["release_date"],
        }

    tables.insert("movie", MOVIES)
    people = dict.fromkeys(n for n, *_ in CREW + CAST)
    ids = {n: i for i, n in enumerate(people)}
    tables.insert("person", [{"id": i, "name": n, "birthday": f"196{i}-02-03"} for i, n in enumerate(people)])
    tables.insert("crew", [{"name": n, "job": j, "person_id": ids[n], **ties(i)} for n, j, i in CREW])
    roles = [{"name": n, "character": c, "order": o, **ties(i)} for n, c, i, o in CAST]
    tables.insert("cast", [{**r, "person_id": ids[r["name"]]} for r in roles])
    tables.insert(
        "oscar", [dict(zip(("year", "category", "name", "film", "winner"), o, strict=True)) for o in OSCARS]
    )
    tables.insert(
        "company",
        [
            {
                "ticker": "MSFT",
                "name": "Microsoft Corporation Common Stock",
                "market_cap": 3000,
                "eps": 11.5,
                "pe_ratio": 36.0,
            },
            {
                "ticker": "X",
                "name": "United States Steel Corp.",
                "short_name": "US Steel",
                "market_cap": 11,
                "eps": None,
            },
        ],
    )
    tables.insert(
        "price",
        [
            {"ticker": t, "date": d, "open": o, "high": 20, "low": 1, "close": c, "volume": 100}
            for t in ("MSFT", "X")
            for d, (o, c) in DAYS.items()
        ],
    )
    tables.insert(
        "price_detail",
        [
            {"ticker": "X", "date": "2024-03-05", "time": t, "open": o, "close": o}
            for t, o in (("09:30", 14.001), ("12:59", 14.126), ("13:00", 14.5049), ("13:01", 77.0))
        ],
    )
    tables.insert(
        "dividend",
        [
            {"ticker": "MSFT", "date": d, "value": v}
            for d, v in (("2023-11-15", 0.75), ("2024-01-10", 0.5), ("2024-02-14", 0.75), ("2024-05-15", 0.8))
        ],
    )
    tables.insert(
        "artist",
        [
            {
                "name": "The Larks",
                "group": True,
                "birth_place": "NZ",
                "birth_date": "1990-01-01",
                "members": ["Ann Lee", "Bo Li"],
                "music": ["First Song", "Last Song", "Next Song"],
            },
            {
                "name": "Ann Lee",
                "group": False,
                "birth_place": "SE",
                "birth_date": "1970-05-06",
                "members": [],
                "music": [],
            },
        ],
    )
    tables.insert(
        "song",
        [
            {
                "name": "First Song",
                "author": "The Larks",
                "release_country": "NZ",
                "release_date": "1999-03-01",
            },
            {
                "name": "Last Song",
                "author": "The Larks",
                "release_country": "GB",
                "release_date": "2020-07-01",
            },
            {
                "name": "Next Song",
                "author": "The Larks",
                "release_country": "GB",
                "release_date": "2025-01-01",
            },
        ],
    )
    tables.insert(
        "grammy",
        [
            {
                "year": 2001,
                "category": "Best New Artist",
                "nominee": "The Larks",
                "artist": "The Larks",
                "winner": True,
            },
            {
                "year": 2001,
                "category": "Song Of The Year",
                "nominee": "First Song",
                "artist": "The Larks",
                "winner": True,
            },
            {
                "year": 2003,
                "category": "Song Of The Year",
                "nominee": "First Song",
                "artist": "The Larks",
                "winner": True,
            },
            {
                "year": 2003,
                "category": "Album Of The Year",
                "nominee": "An Album",
                "artist": "Ann Lee",
                "winner": False,
            },
            {
                "year": 2026,
                "category": "Album Of The Year",
                "nominee": "To Come",
                "artist": "The Larks",
                "winner": True,
            },
        ],
    )
    tables.insert(
        "team",
        [
            {"name": "Los Angeles Lakers", "sport": "nba", "alias": "Lakers", "city": "Los Angeles"},
            {"name": "Nott'ham Forest", "sport": "soccer", "alias": "Forest", "city": "Nottingham"},
        ],
    )
    tables.insert(
        "nba_game",
        [
            {
                "game_id": str(i),
                "season_type": "Regular Season",
                "date": d,
                "team_name_home": h,
                "team_name_away": a,
                "wl_home": w,
                "wl_away": "L" if w == "W" else "W",
                "pts_home": p,
                "pts_away": q,
            }
            for i, (d, h, a, w, p, q) in enumerate(
                (
                    ("2024-02-26", "Los Angeles Lakers", "Chicago Bulls", "W", 110, 100),
                    ("2024-03-04", "Chicago Bulls", "Los Angeles Lakers", "W", 120, 99),
                    ("2024-03-05", "Los Angeles Lakers", "Chicago Bulls", "W", 130, 98),
                )
            )
        ],
    )
    tables.insert(
        "soccer_game",
        [
            {
                "team": "Nott'ham Forest",
                "date": d,
                "time": t,
                "venue": v,
                "opponent": o,
                "result": r,
                "GF": f,
                "GA": g,
                "league": "ENG-Premier League",
                "season": "2324",
                "Captain": "R. Yates",
            }
            for d, t, v, o, r, f, g in (
                ("2024-02-24", "15:00", "Away", "Aston Villa", "L", 2, 4),
                ("2024-03-02", "15:00", "Home", "Liverpool", "L", 0, 1),
                ("2024-03-05", "19:45", "Home", "Arsenal", "W", 9, 9),
                ("2024-03-09", "15:00", "Away", "Brighton", "W", 7, 7),
            )
        ],
    )
    tables.insert(
        "entity",
        [
            {
                "name": "Florida City",
                "summary_text": "A city.",
                "summary_structured": {"population": "13,085", "mayor": "Otis Wallace", "image": "x.png"},
            },
            {
                "name": "Orlando",
                "summary_text": "Another.",
                "summary_structured": {"population": "307573", "county": "[[Orange County]]<ref>1</ref>"},
            },
            {
                "name": "Otis Wallace",
                "summary_text": "A mayor.",
                "summary_structured": {"birth_place": "Homestead"},
            },
        ],
    )
    return FolderBackend(tables, Linker(tables))
