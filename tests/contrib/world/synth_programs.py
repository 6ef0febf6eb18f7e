"""A small reading of the call language over the Parquet tables, for tests only and independent of the source.

It covers the forms that synth writes, looks everything up in plain Python rows, and applies the rules.
"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

Row = dict[str, Any]
NOTHING = object()


def split(text: str) -> list[str]:
    """At commas that stand in no bracket and no string."""
    parts, depth, quoted, start = [], 0, False, 0
    for i, c in enumerate(text):
        quoted ^= c == '"'
        if not quoted:
            depth += (c in "([") - (c in ")]")
            if c == "," and not depth:
                parts.append(text[start:i].strip())
                start = i + 1
    return [*parts, text[start:].strip()] if text.strip() else []


def literal(text: str) -> Any:
    if text == "None":
        return None
    if re.fullmatch(r"-?\d+(\.\d+)?", text):
        return float(text)
    return text.strip('"')


def conditions(text: str) -> list[tuple[str, str, Any]]:
    if text == "None":
        return []
    if text.startswith("["):
        return [c for part in split(text[1:-1]) for c in conditions(part)]
    op, inside = re.fullmatch(r"(eq|neq|ge|le|gt|lt)\((.*)\)", text).groups()
    key, value = split(inside)
    return [(op, key, literal(value))]


def holds(row: Row, op: str, key: str, value: Any) -> bool:
    have, want = row.get(key), row.get(value, value) if isinstance(value, str) else value
    if isinstance(have, bool):
        have = str(have)
    if isinstance(have, str):
        have, want = have.lower(), str(want).lower()
    if have is None:
        return False
    return {
        "eq": have == want,
        "neq": have != want,
        "ge": have >= want,
        "le": have <= want,
        "gt": have > want,
        "lt": have < want,
    }[op]


class Graph:
    def __init__(self, folder: Path) -> None:
        self.tables = {p.stem: pq.read_table(p).to_pylist() for p in folder.glob("*.parquet")}
        self.index: dict[tuple[str, str], dict[str, list[Row]]] = {}

    def rows(self, table: str, key: str, names: list[str]) -> list[Row]:
        if (table, key) not in self.index:
            found: dict[str, list[Row]] = {}
            for row in self.tables[table]:
                found.setdefault(str(row[key]).lower(), []).append(row)
            self.index[table, key] = found
        return [row for name in names for row in self.index[table, key].get(name.lower(), [])]

    def company(self, names: list[str]) -> Row:
        for key in ("ticker", "name", "short_name"):
            if rows := self.rows("company", key, names):
                return rows[0]
        raise LookupError(names)

    def price(self, names: list[str], times: list[str], today: date, clock: str) -> list[Row]:
        ticker = [self.company(names)["ticker"]]
        if times == ["latest"]:
            rows = self.rows("price_detail", "ticker", ticker)
            return [
                max(
                    (r for r in rows if (r["date"], r["time"]) <= (str(today), clock)),
                    key=lambda r: (r["date"], r["time"]),
                )
            ]
        rows = [{**r, "time": r["date"]} for r in self.rows("price", "ticker", ticker)]
        if times == ["yesterday"]:
            times = [str(today - timedelta(days=1))]
        if times == ["last trading day"]:
            times = [max(r["date"] for r in rows if r["date"] < str(today))]
        return [r for r in rows if times[0] <= r["date"] <= times[-1]]

    def games(self, sport: str, names: list[str]) -> list[Row]:
        if sport == "soccer":
            return sorted(self.rows("soccer_game", "team", names), key=lambda r: r["date"])
        rows = []
        for side, other in (("home", "away"), ("away", "home")):
            for r in self.rows("nba_game", f"team_name_{side}", names):
                rows.append(
                    {
                        "date": r["date"],
                        "opponent": r[f"team_name_{other}"],
                        "result": r[f"wl_{side}"],
                        "GF": r[f"pts_{side}"],
                        "GA": r[f"pts_{other}"],
                    }
                )
        return sorted(rows, key=lambda r: r["date"])

    def call(self, name: str, args: list[str], before: list[Any], domain: str, now: datetime) -> list[Row]:
        today, clock = now.date(), f"{now.hour + 3:02d}:{now.minute:02d}"

        def named(i: int) -> list[str] | None:
            if args[i] == "*":
                return [str(v) for v in before]
            if args[i].startswith("["):
                return [literal(a) for a in split(args[i][1:-1])]
            value = literal(args[i])
            return None if value is None else [str(value)]

        match name:
            case "person" if domain == "movie":
                return self.rows("person", "name", named(0))
            case "person":
                return self.rows("artist", "name", named(0))
            case "movie":
                return self.rows("movie", "title", named(0))
            case "movie_person_cast" | "movie_person_crew" | "movie_person_oscar":
                table = name.rpartition("_")[2]
                film = "film" if table == "oscar" else "movie_name"
                movies, people = named(0), named(1)
                rows = self.rows(table, film, movies) if movies else self.tables[table]
                if people and len(people) > 1:
                    both = [{r[film] for r in self.rows(table, "name", [p])} for p in people]
                    rows = [
                        r for r in self.rows(table, "name", people[:1]) if r[film] in set.intersection(*both)
                    ]
                elif people:
                    rows = [r for r in rows if r["name"].lower() == people[0].lower()]
                return [r for r in rows if all(holds(r, *c) for c in conditions(args[2]))]
            case "stock_price":
                return self.price(named(0), [str(literal(a)) for a in args[1:]], today, clock)
            case "stock_market_cap" | "stock_pe_ratio" | "stock_eps":
                return [{"value": self.company(named(0))[name.removeprefix("stock_")]}]
            case "stock_dividend":
                ticker = self.company(named(0))["ticker"]
                return [r for r in self.rows("dividend", "ticker", [ticker]) if r["date"] < str(today)]
            case "song":
                return self.rows("song", "name", named(0))
            case "grammy_person":
                theirs = [r for r in self.rows("grammy", "artist", named(0)) if r["winner"]]
                return [{"award_count": len(theirs), "award_date": sorted({r["year"] for r in theirs})}]
            case "grammy_year":
                won = {
                    r["category"]: r["nominee"] for r in self.rows("grammy", "year", [args[0]]) if r["winner"]
                }
                return [
                    {
                        "best_new_artist": won.get("Best New Artist"),
                        "best_song": won.get("Song Of The Year"),
                        "best_album": won.get("Album Of The Year"),
                    }
                ]
            case "nba_on_date" | "soccer_on_date":
                when = str(today - timedelta(days=1)) if literal(args[1]) == "yesterday" else literal(args[1])
                return [r for r in self.games(name.partition("_")[0], named(0)) if r["date"].startswith(when)]
            case "soccer_last_game":
                return [r for r in self.games("soccer", named(0)) if r["date"] < str(today)][-1:]
            case "soccer_next_game":
                return [r for r in self.games("soccer", named(0)) if r["date"] > str(today)][:1]
            case "open":
                found = self.rows("entity", "name", named(0))
                return [{"name": r["name"], **dict(r["summary_structured"])} for r in found]
        raise LookupError(name)

    def line(
        self, text: str, rows: list[Row], values: list[Any], everything: bool, domain: str, now: datetime
    ) -> tuple[list[Row], list[Any], bool]:
        """Rows, values, and whether the line said ALL."""
        if text.startswith("AVG("):
            _, found, _ = self.line(text[4:-1], rows, values, everything, domain, now)
            return [], [sum(map(float, found)) / len(found)], False
        if everyone := text.startswith("ALL "):
            text = text[4:]
        if sort := re.fullmatch(r"sort\((.*), (-?)(\w+)\)(?:\[\"?(\w+)\"?\])?(?:\[:(\d+)\])?", text):
            where, minus, by, key, first = sort.groups()
            kept = [r for r in rows if all(holds(r, *c) for c in conditions(where))]
            kept.sort(key=lambda r: r[by], reverse=bool(minus))
            if key == "len":
                return kept, [len(kept)], False
            taken = [r[key] for r in kept]
            return kept, taken[: int(first)] if first else taken if everything else taken[:1], everything
        name, inside, tail = re.fullmatch(r"get_(\w+)\((.*?)\)((?:\[[^\]]*\])*)", text).groups()
        found = self.call(name, split(inside), values, domain, now)
        keys = [k.strip('"') for k in re.findall(r"\[([^\]]*)\]", tail)]
        out: list[Any] = [r.get("value", r) for r in found]
        for key in keys:
            if key == "len":
                return found, [len(out)], False
            out = [v for r in out for v in (r[key] if isinstance(r[key], list) else [r[key]])]
        return found, out if everyone or not keys else out[:1], everyone

    def run(self, program: str, domain: str, stamp: str) -> list[list[Any]]:
        """The values of each line."""
        now = datetime.strptime(stamp, "%m/%d/%Y, %H:%M:%S PT")
        rows: list[Row] = []
        values: list[Any] = []
        everything, out = False, []
        for text in program.split("\n"):
            rows, values, everything = self.line(text, rows, values, everything, domain, now)
            out.append([v for v in values if v is not None])
        return out


def plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.10g}"
    return str(value).lower()


def first_argument(line: str) -> str:
    found = re.search(r'"([^"]*)"', line)
    return found.group(1) if found else ""


def years(a: date, b: date) -> int:
    a, b = sorted((a, b))
    return b.year - a.year - ((b.month, b.day) < (a.month, a.day))


def answer(rule: str, program: str, lines: list[list[Any]], stamp: str) -> str:
    """What the rule makes of the values of the lines."""
    names = [first_argument(x) for x in program.split("\n")]
    firsts = [v[0] if v else NOTHING for v in lines]
    today = datetime.strptime(stamp, "%m/%d/%Y, %H:%M:%S PT").date()

    def numbers() -> list[float]:
        return [float(x) for x in firsts]

    def ordered() -> list[Any]:
        return [
            float(x) if str(x).replace(".", "").replace("-", "").isdigit() and "-" not in str(x)[1:] else x
            for x in firsts
        ]

    match rule:
        case "value":
            return plain(lines[-1][0])
        case "round":
            return plain(round(lines[-1][0], 2))
        case "list":
            return ", ".join(plain(v) for v in lines[-1])
        case "least":
            return min(zip(ordered(), names, strict=True))[1]
        case "most":
            return max(zip(ordered(), names, strict=True))[1]
        case "difference":
            return plain(round(abs(numbers()[0] - numbers()[1]), 2))
        case "sum":
            return plain(sum(numbers()))
        case "years_between":
            return str(years(*(date.fromisoformat(x) for x in firsts)))
        case "years_since":
            text = str(firsts[0])
            return str(today.year - int(text) if len(text) == 4 else years(date.fromisoformat(text), today))
        case "percent_change":
            a, b = numbers()
            return plain(round((b - a) / a * 100, 2))
        case "weekday":
            return f"{date.fromisoformat(firsts[0]):%A}".lower()
        case "yes_if_less":
            return "yes" if firsts[0] < firsts[1] else "no"
        case "premise":
            return "invalid question" if not lines[-1] else f"found {lines[-1]}"
    raise LookupError(rule)
