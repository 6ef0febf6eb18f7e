"""HTML to text, the text alone, in this process."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import turbohtml
from bench_data import pages
from bench_rows import BenchRow, Contest
from bs4 import BeautifulSoup
from machine import Machine

from raypipe.text.page_parser import fast_text, fold

BREAKS = re.compile(r"<wbr\s*/?>", re.IGNORECASE)  # places of a break: ours splits no word there


def soup_texts(html: tuple[str, ...]) -> list[str]:
    soups = (BeautifulSoup(BREAKS.sub("", page), "lxml") for page in html)
    return [fold(soup.get_text(" ", strip=True)) for soup in soups]


def unequal(ours: list[str | None], peer: list[str]) -> str:
    wrong = sum(a != b for a, b in zip(ours, peer, strict=True))
    return f"{wrong} of {len(peer)} texts differ" if wrong else ""


@contextmanager
def contest(quick: bool, machine: Machine) -> Iterator[Contest]:
    html = pages(quick)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield Contest(
            len(html),
            lambda: [fast_text(page) for page in html],
            lambda: soup_texts(html),
            unequal,
            lambda: [turbohtml.parse(page, positions=False) for page in html],
        )


ROW = BenchRow(
    "HTML to text of the real pages, text alone",
    "pages",
    contest,
    "BeautifulSoup, lxml",
    "turbohtml's tree alone",
    least=20,
    needs=("bs4", "lxml"),
)
