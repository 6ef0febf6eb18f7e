"""HTML to text, the text alone, in this process."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import turbohtml
from bench_data import pages, soup_texts, unequal_texts
from bench_rows import BenchRow, Contest
from machine import Machine

from raypipe.text.page_parser import fast_text


@contextmanager
def contest(quick: bool, machine: Machine) -> Iterator[Contest]:
    html = pages(quick)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield Contest(
            len(html),
            lambda: [fast_text(page) for page in html],
            lambda: soup_texts(html),
            unequal_texts,
            lambda: [turbohtml.parse(page, positions=False) for page in html],
        )


ROW = BenchRow(
    "HTML to text of the real pages, text alone",
    "pages",
    contest,
    "BeautifulSoup, lxml",
    "turbohtml's tree alone",
    least=20,
    short="It keeps positions and zero-width characters; another record of the day has 21.4.",
    needs=("bs4", "lxml"),
)
