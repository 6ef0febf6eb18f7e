"""Artists, songs and Grammys, and the entities of the open domain."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, Final

from raypipe.kg.fetch.core import FetchedTables, mapping, strings
from raypipe.kg.graph import RowRequest
from raypipe.kg.normalize import fold

MOST_NAMES: Final = 3  # of a search without an exact name, how many are fetched


_ARTISTS, _SONGS = "/music/search_artist_entity_by_name", "/music/search_song_entity_by_name"


async def _found(
    rows: FetchedTables, need: RowRequest, table: str, search: str, parts: tuple[str, ...]
) -> AsyncIterator[tuple[str, list[Any]]]:
    """What a search finds for each name, those that differ only in case and punctuation, else the first few,
    with what endpoints say of it; each once."""
    names = []
    for name in need.names[0]:
        found = strings(await rows.ask(search, {"query": name}), search)
        names += [n for n in found if fold(n) == fold(name)] or found[:MOST_NAMES]
    for name in names:
        if rows.new(table, name):
            yield name, await rows.all((part, {"query": name}) for part in parts)


async def artist(rows: FetchedTables, need: RowRequest) -> None:
    parts = ("birth_place", "birth_date")
    paths = (*(f"/music/get_artist_{p}" for p in parts), "/music/get_members", "/music/get_lifespan",
             "/music/get_artist_all_works")  # fmt: skip
    async for name, (place, born, members, span, works) in _found(rows, need, "artist", _ARTISTS, paths):
        ended = span[1] if isinstance(span, list) and len(span) == 2 else None
        row = {"name": name, "group": bool(members), "birth_place": place, "birth_date": born,
               "end_date": ended, "members": members or [], "music": works or []}  # fmt: skip
        rows.tables.insert("artist", [row])


async def song(rows: FetchedTables, need: RowRequest) -> None:
    parts = ("author", "release_country", "release_date")
    async for name, said in _found(rows, need, "song", _SONGS, tuple(f"/music/get_song_{p}" for p in parts)):
        rows.tables.insert("song", [{"name": name, **dict(zip(parts, said, strict=True))}])


async def grammy_artist(rows: FetchedTables, need: RowRequest) -> None:
    paths = ("/music/grammy_get_award_count_by_artist", "/music/grammy_get_award_date_by_artist")
    async for name, (count, years) in _found(rows, need, "grammy_artist", _ARTISTS, paths):
        seen = sorted({int(y) for y in years or () if int(y) <= need.now.day.year})
        rows.tables.insert("grammy_artist", [{"name": name, "award_count": count, "award_date": seen}])


async def grammy_song(rows: FetchedTables, need: RowRequest) -> None:
    paths = ("/music/grammy_get_award_count_by_song",)
    async for name, (count,) in _found(rows, need, "grammy_song", _SONGS, paths):
        rows.tables.insert("grammy_song", [{"name": name, "award_count": count}])


async def entity(rows: FetchedTables, need: RowRequest) -> None:
    path = "/open/get_entity"
    async for name, (found,) in _found(rows, need, "entity", "/open/search_entity_by_name", (path,)):
        if (said := mapping(found, path)) is not None:
            text, facts = said.get("summary_text"), said.get("summary_structured") or {}
            rows.tables.insert("entity", [{"name": name, "summary_text": text, "summary_structured": facts}])


async def grammy_year(rows: FetchedTables, need: RowRequest) -> None:
    for word in need.names[0]:
        if not re.fullmatch(r"\d{4}", word) or not rows.new("grammy_year", word):
            continue
        parts = ("artist", "album", "song")
        found = await rows.all((f"/music/grammy_get_best_{p}_by_year", {"query": int(word)}) for p in parts)
        names = [", ".join(map(str, f)) if isinstance(f, list) else f for f in found]
        if any(names):
            best = dict(zip(("best_new_artist", "best_album", "best_song"), names, strict=True))
            rows.tables.insert("grammy_year", [{"year": int(word), **best}])
