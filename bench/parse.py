"""HTML to text on the real pages: pages per second against BeautifulSoup with lxml.

    python bench/parse.py        a table; needs RAYPIPE_DATA, takes about 20 seconds

All ways read the same pages in turn in one warm process, a few rounds; the best round of each counts. Seconds
are wall time, on one core except for the child process, which works while this one feeds it. Exits with 7
where a text differs from BeautifulSoup's or the fast way is less than 20 times as fast.
"""

from __future__ import annotations

import argparse
import bz2
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from bs4 import BeautifulSoup
from rich.console import Console
from rich.table import Table

from raypipe.text.html import ParsedPage, fast_text, fold, to_text
from raypipe.text.page_parser import ParseJob, SandboxedParser

PAGES = "crag/dev_data.jsonl.bz2"
ROUNDS = 6
WANTED = 20.0


def read_pages(path: Path) -> list[str]:
    """The distinct pages of the search results, the empty one left out."""
    with bz2.open(path, "rt", encoding="utf-8") as lines:
        found = [r["page_result"] for line in lines for r in json.loads(line)["search_results"]]
    return list(dict.fromkeys(page for page in found if page))


def reference(pages: list[str]) -> list[str]:
    return [fold(BeautifulSoup(p, "lxml").get_text(" ", strip=True)) for p in pages]


def limited(child: SandboxedParser) -> Callable[[list[str]], list[str | None]]:
    def run(pages: list[str]) -> list[str | None]:
        answers = child.run([ParseJob(p.encode()) for p in pages])
        return [a.text if isinstance(a, ParsedPage) else None for a in answers]

    return run


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=raw).parse_args()
    if not (folder := os.environ.get("RAYPIPE_DATA")):
        print("bench/parse.py: set RAYPIPE_DATA to the folder of shared data", file=sys.stderr)
        return 2
    warnings.simplefilter("ignore")
    pages = read_pages(Path(folder) / PAGES)
    with SandboxedParser() as child:
        ways: dict[str, Callable[[list[str]], list[str] | list[str | None]]] = {
            "BeautifulSoup, lxml": reference,
            "text alone": lambda ps: [fast_text(p) for p in ps],
            "with hidden text marked": lambda ps: [to_text(p).text for p in ps],
            "and in a child under limits": limited(child),
        }
        best = dict.fromkeys(ways, float("inf"))
        texts: dict[str, list[str] | list[str | None]] = {}
        for _ in range(ROUNDS):
            for name, way in ways.items():
                start = time.perf_counter()
                texts[name] = way(pages)
                best[name] = min(best[name], time.perf_counter() - start)
    wanted = texts["BeautifulSoup, lxml"]
    equal = {name: sum(a == b for a, b in zip(t, wanted, strict=True)) for name, t in texts.items()}
    ratio = {name: best["BeautifulSoup, lxml"] / seconds for name, seconds in best.items()}
    table = Table(title=f"{len(pages)} pages, {sum(map(len, pages)) / 1e6:.1f} million characters of HTML")
    for column in ("way", "pages/s", "times", "equal texts"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for name in ways:
        row = f"{len(pages) / best[name]:.0f}", f"{ratio[name]:.1f}", f"{equal[name]}/{len(pages)}"
        table.add_row(name, *row)
    Console().print(table)
    return 0 if set(equal.values()) == {len(pages)} and ratio["text alone"] >= WANTED else 7


if __name__ == "__main__":
    sys.exit(main())
