"""The small knowledge graph in the mock API's own files, as tables. Only for tests: it reads pickles, which
may run code, and these are ours."""

import csv
import io
import json
import pickle
import sqlite3
import tarfile
import tempfile
import warnings
from bz2 import BZ2File
from pathlib import Path

from raypipe.contrib.crag.tables import Tables


def read(archive: Path) -> Tables:
    tables = Tables()
    with tempfile.TemporaryDirectory() as there, tarfile.open(archive) as tar, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        tar.extractall(there, filter="data")
        root = Path(there) / "cragkg"
        for part in (_movie, _finance, _music, _open, _sports):
            part(root / part.__name__.lstrip("_"), tables)
    return tables


def _movie(root: Path, tables: Tables) -> None:
    tables.define("movie", {"raw": "text"})
    tables.define("person", {"raw": "text"})
    for film in json.loads((root / "movie_db.json").read_text()).values():
        tables.insert("movie", [{**film, "year": int(film["release_date"][:4]), "raw": json.dumps(film)}])
    for person in json.loads((root / "person_db.json").read_text()).values():
        tables.insert("person", [{**person, "raw": json.dumps(person)}])
    for year, info in json.loads((root / "year_db.json").read_text()).items():
        tables.insert("film_year", [{"year": int(year), "raw": json.dumps(info)}])


def _stored(path: Path) -> dict:
    with sqlite3.connect(path) as db:
        return {k: pickle.loads(v) for k, v in db.execute("SELECT key, value FROM unnamed")}


def _finance(root: Path, tables: Tables) -> None:
    tables.define("company", {"raw": "text"})
    infos, caps = _stored(root / "finance_info.sqlite"), _stored(root / "finance_marketcap.sqlite")
    for row in csv.DictReader(io.StringIO((root / "company_name.dict").read_text())):
        ticker = row["Symbol"]
        info = infos.get(ticker, {})
        measures = {
            "market_cap": caps.get(ticker),
            "eps": info.get("forwardEps"),
            "pe_ratio": info.get("forwardPE"),
        }
        raw = json.dumps(info) if info else None
        tables.insert("company", [{"ticker": ticker, "name": row["Name"], "raw": raw, **measures}])
    for table, file in (("price", "finance_price"), ("price_detail", "finance_detailed_price")):
        for ticker, bars in _stored(root / f"{file}.sqlite").items():
            rows = ({k.lower(): v for k, v in bar.items()} | {"at": at} for at, bar in bars.items())
            tables.insert(
                table, ({"ticker": ticker, "date": r["at"][:10], "time": r["at"][11:16], **r} for r in rows)
            )
    for ticker, paid in _stored(root / "finance_dividend.sqlite").items():
        tables.insert("dividend", ({"ticker": ticker, "date": d[:10], "value": v} for d, v in paid.items()))


def _music(root: Path, tables: Tables) -> None:
    def held(name):
        return pickle.loads((root / f"{name}.pickle").read_bytes())

    works = held("artist_work_dict")
    for name, a in held("artist_dict_simplified").items():
        # A birth date may be a year here; the column keeps it as it is.
        row = {"name": name, "birth_place": a["country"], "music": works.get(name)}
        tables.insert("artist", [{**row, **{k: a[k] for k in ("birth_date", "end_date", "members")}}])
    for name, s in held("song_dict_simplified").items():
        row = {
            "name": name,
            "author": s["author"],
            "release_country": s["country"],
            "release_date": s["date"],
        }
        tables.insert("song", [row])
    tables.insert("grammy", ({**r, "winner": True} for r in held("grammy_df").to_dict("records")))
    ranks = held("rank_dict_hot100")
    charted = {(s["Date"], s["Song"]): int(rank) for rank, songs in ranks.items() for s in songs}
    for song, days in held("song_dict_hot100").items():
        for day, (_, _, artist, *numbers) in days.items():
            names = ("rank", "rank_last_week", "top_position", "weeks_in_chart")
            row = dict(zip(names, map(int, numbers), strict=True)) | {"rank": charted[day, song]}
            tables.insert("billboard", [{"date": day, "song": song, "artist": artist, **row}])


def _open(root: Path, tables: Tables) -> None:
    tables.define("entity", {"raw": "text"})
    for part in sorted(root.glob("kg.*.jsonl.bz2")):
        with BZ2File(part) as lines:
            for name, entity in map(json.loads, lines):
                tables.insert("entity", [{"name": name, **entity, "raw": json.dumps(entity)}])


def _sports(root: Path, tables: Tables) -> None:
    with sqlite3.connect(root / "nba.sqlite") as db:
        db.row_factory = sqlite3.Row
        for table, name in (("game", "nba_game"), ("play_by_play", "play_by_play")):
            rows = [dict(r) for r in db.execute(f"SELECT * FROM {table}")]
            kinds = {k: _kind([r[k] for r in rows]) for k in rows[0] if k != "game_date"}
            tables.define(name, kinds)
            tables.insert(name, ({**r, "date": r["game_date"]} if "game_date" in r else r for r in rows))
    frame = pickle.loads((root / "soccer_team_match_stats.pkl").read_bytes()).reset_index()
    rows = json.loads(frame.to_json(orient="records", date_format="iso"))
    tables.define("soccer_game", {k: _kind([r[k] for r in rows]) for k in rows[0]})
    tables.insert("soccer_game", rows)


def _kind(values: list) -> str:
    kinds = {type(v) for v in values if v is not None}
    return "int" if kinds == {int} else "real" if kinds and kinds <= {int, float} else "text"
