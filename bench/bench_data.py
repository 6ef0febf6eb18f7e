"""What rows of the bench compute on: the real pages where RAYPIPE_DATA names them, else invented ones."""

from __future__ import annotations

import bz2
import os
import re
import tempfile
from functools import cache
from pathlib import Path

from raypipe.contrib.world import write as synth
from raypipe.core.textfile import json_lines
from raypipe.text.page_parser import fold, to_text
from raypipe.text.words import character_windows, sentences

REAL = "crag/dev_data.jsonl.bz2"


@cache
def questions_file(quick: bool) -> bytes:
    """A packed file of CRAG's form: the real one of 10 questions, or an invented one of two."""
    folder = os.environ.get("RAYPIPE_DATA")
    if folder and not quick:
        return (Path(folder) / REAL).read_bytes()
    with tempfile.TemporaryDirectory() as made:
        synth.write(Path(made), 2, pages=10, seed=1, page_chars=8000)
        files = sorted(Path(made).glob("*.jsonl*"))
        lines = b"".join(
            bz2.decompress(f.read_bytes()) if f.suffix == ".bz2" else f.read_bytes() for f in files
        )
    return bz2.compress(lines)


@cache
def pages(quick: bool) -> tuple[str, ...]:
    """The distinct pages of these questions; quick: four of them."""
    lines = json_lines(bz2.decompress(questions_file(quick)))
    found = (r["page_result"] for line in lines for r in line.get("search_results", ()))
    distinct = tuple(dict.fromkeys(page for page in found if page))
    return distinct[:4] if quick else distinct


BREAKS = re.compile(r"<wbr\s*/?>", re.IGNORECASE)  # places of a break: ours splits no word there


def soup_texts(html: tuple[str, ...]) -> list[str]:
    """The texts of pages by BeautifulSoup with lxml, the peer of two rows."""
    from bs4 import BeautifulSoup  # imported here: a package of an extra, which few rows need

    soups = (BeautifulSoup(BREAKS.sub("", page), "lxml") for page in html)
    return [fold(soup.get_text(" ", strip=True)) for soup in soups]


def unequal_texts(ours: list[str | None], peer: list[str]) -> str:
    wrong = sum(a != b for a, b in zip(ours, peer, strict=True))
    return f"{wrong} of {len(peer)} texts differ" if wrong else ""


@cache
def texts(quick: bool) -> tuple[str, ...]:
    return tuple(to_text(page).text for page in pages(quick))


def queries(quick: bool) -> list[str]:
    """The questions of the file."""
    return [line["query"] for line in json_lines(bz2.decompress(questions_file(quick)))]


def chunks(quick: bool, count: int, chars: int = 700) -> list[str]:
    """The first distinct chunks of the pages' texts, of as many pages as there are in turn."""
    cut = [[t[a:b] for a, b in character_windows(t, chars, 100)] for t in texts(quick)]
    most = max(map(len, cut))
    found = dict.fromkeys(c[i] for i in range(most) for c in cut if i < len(c))
    return list(found)[:count]


def real_sentences(quick: bool, count: int) -> list[str]:
    """Distinct sentences of the pages' texts, a hundred characters long and so."""
    found = dict.fromkeys(t[a:b] for t in texts(quick) for a, b in sentences(t) if 20 < b - a < 400)
    return list(found)[:: max(1, len(found) // count)][:count]
