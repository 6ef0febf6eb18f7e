"""Entity linking: maps a written name to a name of the graph. Source: db3, sections 2.3 and 2.6.

Levels are tried in order until one finds a name. `exact`: equal in folded form; nicknames, marked tickers and
shortened company names count too. `substring`: the words of one name occur in a row in the other. `tokens`:
enough common words. `embedding`: vectors are near enough. Each kind of name has its own levels (`LEVELS`),
since strictness differs: a wrong song is worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from raypipe.contrib.crag.names import fold, known_names, mark_before, short_company, ticker
from raypipe.contrib.crag.records import MOST_NEAR, Level, Link, Mention, Vectors
from raypipe.contrib.crag.schema import NAMES
from raypipe.contrib.crag.tables import Tables, quoted
from raypipe.core.errors import ConfError

MOST_WORDS: Final = 16  # of the longest name searched for in a text; an apostrophe separates words
_WORD: Final = re.compile(r"\w+")

LEVELS: Final[Mapping[str, tuple[Level, ...]]] = {
    "person": ("exact", "substring", "tokens"),
    "movie": ("exact", "substring", "tokens"),
    "company": ("exact", "tokens"),
    "artist": ("exact", "substring"),
    "song": ("exact", "substring"),
    "nba": ("exact", "substring", "tokens"),
    "soccer": ("exact", "substring", "tokens"),
    "entity": ("exact", "substring"),
}


@dataclass(frozen=True, slots=True)
class Strictness:
    levels: Mapping[str, tuple[Level, ...]] = field(default_factory=lambda: LEVELS)  # kind of name -> levels
    least_shared: float = 0.5  # tokens: least Jaccard of the two sets of words, 0..1
    least_inside: float = 0.5  # substring: least share of a longer written name's words in the graph's name
    least_near: float = 0.85  # embedding: least cosine, -1..1


class Linker:
    """Index of one graph's names by kind, read on first use. Call `forget` after rows are added."""

    def __init__(
        self, tables: Tables, strictness: Strictness | None = None, vectors: Vectors | None = None
    ) -> None:
        """Takes the tables that hold the names. Without `vectors` the level `embedding` is skipped."""
        self._tables = tables
        self._strict = strictness or Strictness()
        self._vectors = vectors
        self._pools: dict[str, NamePool] = {}

    def forget(self) -> None:
        self._pools.clear()

    async def link(self, written: str, kind: str) -> Link | None:
        pool = self._pool(kind)
        for level in self._strict.levels.get(kind, ("exact",)):
            if level == "embedding" and self._vectors is None:
                continue
            if found := await pool.at(level, written, self._strict, self._vectors):
                key, score = found
                return Link(written, kind, key, pool.names[key], level, score)
        return None

    def mentions(self, text: str) -> list[Mention]:
        """Finds names of every kind in a text, compared in folded form; returns them in the text's order. Of
        overlapping names the longest counts."""
        words = [m.span() for m in _WORD.finditer(text)]
        mentions: list[Mention] = []
        for i, (start, _) in enumerate(words):
            for _, end in words[i : i + MOST_WORDS]:
                key = fold(text[start:end]) or ""
                names = {
                    kind: pool.names[pool.aliases[key]]
                    for kind, pool in ((k, self._pool(k)) for k in NAMES)
                    if key in pool.aliases
                }
                if names:
                    marked = mark_before(text[:start]) if "company" in names else 0
                    mentions.append(Mention((start - marked, end), names))
        mentions.sort(key=lambda m: (m.span[0] - m.span[1], m.span[0]))
        kept: list[Mention] = []
        for m in mentions:
            if all(m.span[1] <= k.span[0] or k.span[1] <= m.span[0] for k in kept):
                kept.append(m)
        return sorted(kept, key=lambda m: m.span)

    def _pool(self, kind: str) -> NamePool:
        if kind not in self._pools:
            self._pools[kind] = _read_pool(self._tables, kind)
        return self._pools[kind]


@dataclass(slots=True)
class NamePool:
    """Names of one kind with their aliases, searched at one level at a time. Queries are folded first."""

    company: bool  # ignore legal forms and "common stock" in names; accept marked tickers ("$TSLA")
    names: dict[str, str] = field(default_factory=dict)  # key -> first spelling in the tables
    aliases: dict[str, str] = field(default_factory=dict)  # folded name -> key; the first key added is kept
    by_word: dict[str, list[str]] = field(default_factory=dict)  # word -> aliases that contain it
    vectors: np.ndarray | None = None  # (names, dim) float32, unit rows, as in `names`; None: not needed yet

    def add(self, alias: str, key: str) -> None:
        if alias and alias not in self.aliases:
            self.aliases[alias] = key
            for word in set(alias.split()):
                self.by_word.setdefault(word, []).append(alias)

    async def at(
        self, level: Level, written: str, strict: Strictness, vectors: Vectors | None
    ) -> tuple[str, float] | None:
        """Links a written name at one level. Returns key and score, or None if no name fits."""
        query = fold(written) or ""
        if not query:
            return None
        match level:
            case "exact":
                same = [query]
                if self.company:
                    same += [short_company(query), fold(ticker(written)) or ""]
                key = next((self.aliases[s] for s in same if s in self.aliases), None)
                return None if key is None else (key, 1.0)
            case "substring":
                return self._best(query, lambda alias: _inside(query, alias, strict.least_inside))
            case "tokens":
                words, least = self._words(query), strict.least_shared
                return self._best(" ".join(words), lambda a: _jaccard(words, self._words(a), least))
            case "embedding":
                assert vectors is not None  # a rule with this level has an embedder
                return await self._near(written, vectors, strict.least_near)

    def _words(self, folded: str) -> set[str]:
        return set((short_company(folded) if self.company else folded).split())

    def _best(self, query: str, score: Callable[[str], float | None]) -> tuple[str, float] | None:
        """Finds the alias with the highest score among those that share a word with the query."""
        sharing = {alias for word in query.split() for alias in self.by_word.get(word, ())}
        rated = ((-rate, alias) for alias in sharing if (rate := score(alias)))
        return next(((self.aliases[alias], -rate) for rate, alias in sorted(rated)), None)

    async def _near(self, written: str, vectors: Vectors, least: float) -> tuple[str, float] | None:
        """Finds the name with the largest cosine; None if that is below `least`. All calls must pass vectors
        of the same model. Raises ConfError if there are more than MOST_NEAR names."""
        if not self.names:
            return None
        if len(self.names) > MOST_NEAR:
            found = f"{len(self.names)} such as {next(iter(self.names.values()))!r}"
            raise ConfError(
                f"levels: expected at most {MOST_NEAR} names of a kind that is linked by embedding, "
                f"found {found}. Leave embedding out of its levels"
            )
        if self.vectors is None:
            self.vectors = await vectors(list(self.names.values()))
        scores = self.vectors @ (await vectors([written]))[0]
        score, key = max(zip(scores.tolist(), self.names, strict=True))
        return (key, score) if score >= least else None


def _jaccard(words: set[str], theirs: set[str], least: float) -> float | None:
    score = len(words & theirs) / len(words | theirs)
    return score if score >= least else None


def _inside(query: str, alias: str, least: float) -> float | None:
    """Returns the ratio of the shorter name's words to the longer's; None if neither contains the other. The
    words must occur in a row. If `query` is the longer name, the ratio must be at least `least`."""
    size, length = len(query.split()), len(alias.split())
    if f" {query} " in f" {alias} ":
        return size / length
    return length / size if f" {alias} " in f" {query} " and length / size >= least else None


def _read_pool(tables: Tables, kind: str) -> NamePool:
    pool = NamePool(company=kind == "company")
    later: list[tuple[str, str]] = []
    for table, column, meant in NAMES[kind]:
        wanted = quoted(meant)
        rows = tables.query(
            f"SELECT DISTINCT {quoted(column)}, {wanted} FROM {quoted(table)} "
            f"WHERE {quoted(column)} IS NOT NULL AND {wanted} IS NOT NULL ORDER BY 1, 2"
        )
        for name, target in rows:
            alias, key = fold(name) or "", fold(target) or ""
            pool.names.setdefault(key, str(target))
            pool.add(alias, key)
            if pool.company and column != "ticker":
                later.append((short_company(alias), key))
    if kind in ("nba", "soccer"):  # a sport's teams
        sql = "SELECT name, alias FROM team WHERE sport = ? AND name IS NOT NULL ORDER BY 1"
        rows = tables.query(sql, (kind,))
        for name, alias in rows:  # a team without games is a known name too
            key = fold(name) or ""
            pool.names.setdefault(key, str(name))
            pool.add(key, key)
            later.append((fold(alias) or "", key))
    later += [(a, fold(n) or "") for a, n in known_names()["aliases"].get(kind, {}).items()]
    for alias, key in later:
        if key in pool.names:
            pool.add(alias, key)
    return pool
