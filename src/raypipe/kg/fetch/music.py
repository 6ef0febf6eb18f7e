"""Artists, songs and Grammys, and the entities of the open domain."""

from __future__ import annotations

import re
from typing import Final

from raypipe.kg.fetch.core import FetchedTables, mapping, strings
from raypipe.kg.graph import RowRequest
from raypipe.kg.normalize import fold

MOST_NAMES: Final = 3  # of a search without an exact name, how many are fetched


async def _names(rows: FetchedTables, need: RowRequest, path: str) -> list[str]:
    """What a search finds for each name: those that differ only in case and punctuation, else the first
    few."""
    names = []
    for name in need.names[0]:
        found = strings(await rows.ask(path, {"query": name}), path)
        names += [n for n in found if fold(n) == fold(name)] or found[:MOST_NAMES]
    return names


async def artist(rows: FetchedTables, need: RowRequest) -> None:
    """Artists of this name."""
    for name in await _names(rows, need, "/music/search_artist_entity_by_name"):
        if not rows.new("artist", name):
            continue
        parts = ("get_artist_birth_place", "get_artist_birth_date", "get_members", "get_lifespan",
                 "get_artist_all_works")  # fmt: skip
        place, born, members, span, works = await rows.all((f"/music/{p}", {"query": name}) for p in parts)
        ended = span[1] if isinstance(span, list) and len(span) == 2 else None
        rows.tables.insert(
            "artist",
            [
                {"name": name, "group": bool(members), "birth_place": place, "birth_date": born,
                 "end_date": ended, "members": members or [], "music": works or []}
            ],
        )  # fmt: skip


async def song(rows: FetchedTables, need: RowRequest) -> None:
    """Songs of this name."""
    for name in await _names(rows, need, "/music/search_song_entity_by_name"):
        if rows.new("song", name):
            parts = ("get_song_author", "get_song_release_country", "get_song_release_date")
            author, country, day = await rows.all((f"/music/{p}", {"query": name}) for p in parts)
            song = {"name": name, "author": author, "release_country": country, "release_date": day}
            rows.tables.insert("song", [song])


async def grammy_artist(rows: FetchedTables, need: RowRequest) -> None:
    """An artist's Grammys, until the year of asking."""
    for name in await _names(rows, need, "/music/search_artist_entity_by_name"):
        if rows.new("grammy_artist", name):
            parts = ("grammy_get_award_count_by_artist", "grammy_get_award_date_by_artist")
            count, years = await rows.all((f"/music/{p}", {"query": name}) for p in parts)
            seen = sorted({int(y) for y in years or () if int(y) <= need.now.day.year})
            rows.tables.insert("grammy_artist", [{"name": name, "award_count": count, "award_date": seen}])


async def grammy_song(rows: FetchedTables, need: RowRequest) -> None:
    """A song's Grammys."""
    for name in await _names(rows, need, "/music/search_song_entity_by_name"):
        if rows.new("grammy_song", name):
            count = await rows.ask("/music/grammy_get_award_count_by_song", {"query": name})
            rows.tables.insert("grammy_song", [{"name": name, "award_count": count}])


async def grammy_year(rows: FetchedTables, need: RowRequest) -> None:
    """The winners of a year."""
    for word in need.names[0]:
        if not re.fullmatch(r"\d{4}", word) or not rows.new("grammy_year", word):
            continue
        parts = ("artist", "album", "song")
        found = await rows.all((f"/music/grammy_get_best_{p}_by_year", {"query": int(word)}) for p in parts)
        names = [", ".join(map(str, f)) if isinstance(f, list) else f for f in found]
        if any(names):
            best = dict(zip(("best_new_artist", "best_album", "best_song"), names, strict=True))
            rows.tables.insert("grammy_year", [{"year": int(word), **best}])


async def entity(rows: FetchedTables, need: RowRequest) -> None:
    """Entities of the open domain."""
    for name in await _names(rows, need, "/open/search_entity_by_name"):
        if rows.new("entity", name):
            found = mapping(await rows.ask("/open/get_entity", {"query": name}), "/open/get_entity")
            if found is not None:
                facts = found.get("summary_structured") or {}
                text = found.get("summary_text")
                row = {"name": name, "summary_text": text, "summary_structured": facts}
                rows.tables.insert("entity", [row])
