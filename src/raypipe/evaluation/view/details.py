"""Questions with all that is known of them, in blocks: what the page opens on click.

A block is a few rows of results.parquet of each run, with each passage's text once. Knows the table and what
may be left out of it; not how a block travels.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from raypipe.core.records import parse_chunk_id
from raypipe.evaluation.result_table import about, open_table

BLOCK = 16  # questions read at once: some 60 kB packed, opened in 30 to 90 ms
TOP = 10  # passages of the ranking whose texts are shown though the answer does not rest on them
GROUPS = 3  # row groups kept in memory, of a hundred questions each

Part = Literal["prompts", "pages"]
"""What a page can do without: prompts of language models; texts of pages, and prompts, which hold them."""
Kept = Literal["all", "best", "used"]
"""Which passages a page has. all: every candidate; best: those that are ranked, cited or among the first TOP;
used: of these no text that the answer does not rest on, unless it holds the gold."""


class RunTable:
    """The results of a finished run, its rows by id. Reads a row group at a time."""

    def __init__(self, path: Path) -> None:
        """Raises DataError for a file that is no table of results."""
        self.about, file = about(path), open_table(path, ["id"])
        self._file = file
        self._place: dict[str, tuple[int, int]] = {}
        for group in range(self._file.num_row_groups):
            ids = self._file.read_row_group(group, ["id"])["id"].to_pylist()
            self._place |= {id: (group, i) for i, id in enumerate(ids)}

        @lru_cache(GROUPS)
        def rows(group: int) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = file.read_row_group(group).to_pylist(maps_as_pydicts="strict")
            return found

        self._rows = rows

    @property
    def ids(self) -> list[str]:
        return list(self._place)

    def __contains__(self, id: str) -> bool:
        return id in self._place

    def row(self, id: str) -> dict[str, Any]:
        """One row. Raises KeyError for an id that the run does not have."""
        group, at = self._place[id]
        return self._rows(group)[at]

    def close(self) -> None:
        self._file.close()


def block(
    runs: Sequence[RunTable], ids: Sequence[str], without: Sequence[Part] = (), kept: Kept = "all"
) -> dict[str, Any]:
    """Some questions of each run, and the texts of their passages by id."""
    texts: dict[str, str] = {}
    rows = [[_trimmed(run.row(id), texts, without, kept) for run in runs] for id in ids]
    return {"rows": rows, "texts": texts}


def _trimmed(
    row: Mapping[str, Any], texts: dict[str, str], without: Sequence[Part], kept: Kept
) -> dict[str, Any]:
    golds = [re.compile(rf"(?<!\w){re.escape(g)}(?!\w)", re.IGNORECASE) for g in row["golds"] if g.strip()]
    hits = []
    for i, hit in enumerate(row["hits"]):
        text, source = None if "pages" in without else hit["text"], parse_chunk_id(hit["chunk"])[0]
        used = hit["ranked"] or any(
            q["source"] == source and q["start"] < hit["end"] and hit["start"] < q["end"]
            for q in row["quotes"]
        )
        golden = text is not None and any(g.search(text) for g in golds)
        if text is not None and (used or golden or (i < TOP and kept != "used")):
            texts[hit["chunk"]] = text
        if used or golden or i < TOP or kept == "all":
            hits.append({**hit, "text": None})
    shown = [h for h in hits if h["chunk"] in texts]
    quotes = []
    for q in row["quotes"]:
        repeated = any(
            q["source"] == parse_chunk_id(h["chunk"])[0] and h["start"] <= q["start"] and q["end"] <= h["end"]
            for h in shown
        )
        quotes.append({**q, "text": None if "pages" in without or repeated else q["text"]})
    replies = [{**r, "prompt": None} for r in row["replies"]] if without else row["replies"]
    return {**row, "hits": hits, "quotes": quotes, "replies": replies}


def packed(found: Mapping[str, Any]) -> str:
    """A block as a file holds it: base64 of zlib of JSON. No character of it is markup. Texts stand next to
    the first question that has them: zlib looks back 32 kB, so a prompt that holds them costs little more."""
    left, questions = dict(found["texts"]), []
    for rows in found["rows"]:
        own = {h["chunk"]: left.pop(h["chunk"]) for row in rows for h in row["hits"] if h["chunk"] in left}
        questions.append({"texts": own, "rows": rows})
    text = json.dumps(questions, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return base64.b64encode(zlib.compress(text, 6)).decode()
