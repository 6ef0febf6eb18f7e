"""Thousands of broken pages through the corpus half: none hangs, exceeds its limits or is lost.

    python bench/drills/mutants.py --pages 10000 --seed 1

Pages of an invented world, and real ones where RAYPIPE_DATA names them, are cut, doubled, flipped, nested and
filled with what parsers dislike; each goes into a store as a source and through parse, split and embed, in
this process. Prints one JSON object: rows in must equal rows done, dead letters and pending rows together,
and no page may raise (`unparsable`).
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from raypipe.api.session import load_recipe
from raypipe.core import arrow
from raypipe.core.conf import Conf
from raypipe.core.progress import Progress
from raypipe.core.records import Question, Source, source_id
from raypipe.evaluation.fault_budget import row_faults
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.tasks import WorkerConfig, inline
from raypipe.store import Store, put
from raypipe.text.page_parser import ParserLimits, storable

ROOT = Path(__file__).parents[2]
TAGS = ("div", "table", "td", "font", "a", "p", "script", "style", "svg", "template", "select", "b", "!--")
POISON = (
    "\0",
    "\x0b",
    "\ufeff",
    "\u202e",
    "&#x110000;",
    "&#0;",
    "&amp" * 50,
    "<![CDATA[",
    "]]>",
    "<!DOCTYPE",
    "<?xml",
    "<plaintext>",
    "<noscript>",
    "</" + "x" * 500 + ">",
    "<p " + "a=1 " * 300 + ">",
    "%PDF-1.4",
    "\U0001f469\u200d\U0001f52c",
    "<textarea>",
    "<frameset>",
    "<math><mi>",
    "\r\n\r\n",
    "<title>",
    "\ud83d",
)
Mutate = Callable[[random.Random, str], str]


def _cut(rng: random.Random, html: str) -> str:
    return html[: rng.randrange(len(html) + 1)]


def _gap(rng: random.Random, html: str) -> str:
    a, b = sorted(rng.randrange(len(html) + 1) for _ in range(2))
    return html[:a] + html[b:]


def _double(rng: random.Random, html: str) -> str:
    a, b = sorted(rng.randrange(len(html) + 1) for _ in range(2))
    return html[:b] + html[a:b] * rng.randrange(1, 4) + html[b:]


def _flip(rng: random.Random, html: str) -> str:
    raw = bytearray(html.encode("utf-8", "surrogatepass"))
    for _ in range(rng.randrange(1, 40)):
        if raw:
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return raw.decode("utf-8", "replace")


def _nest(rng: random.Random, html: str) -> str:
    at, tag, times = rng.randrange(len(html) + 1), rng.choice(TAGS), int(10 ** rng.randrange(1, 5))
    return html[:at] + f"<{tag}>" * times + html[at:]


def _poison(rng: random.Random, html: str) -> str:
    at = rng.randrange(len(html) + 1)
    return html[:at] + rng.choice(POISON) * int(10 ** rng.randrange(0, 3)) + html[at:]


def _shuffle(rng: random.Random, html: str) -> str:
    pieces = html.split("<")
    rng.shuffle(pieces)
    return "<".join(pieces)


def _binary(rng: random.Random, html: str) -> str:
    """Turns one page in ten into bytes that are no page."""
    if rng.random() > 0.1:
        return html
    return rng.choice(("%PDF-1.4\n" + html, rng.randbytes(len(html) + 2000).decode("latin-1")))


MUTATIONS: tuple[Mutate, ...] = (_cut, _gap, _double, _flip, _nest, _poison, _shuffle, _binary)


def mutants(pages: Sequence[str], count: int, seed: int) -> Iterator[str]:
    """`count` distinct broken pages, by the seed alone."""
    rng, seen = random.Random(seed), set[str]()
    while len(seen) < count:
        html = rng.choice(pages)
        for _ in range(rng.randrange(1, 5)):
            html = rng.choice(MUTATIONS)(rng, html)
        html = storable(html)
        if html.strip() and html not in seen:
            seen.add(html)
            yield html


def originals(folder: Path, data: str | None) -> list[str]:
    """Pages to break: of an invented world, and real ones."""
    from raypipe import readers
    from raypipe.contrib.world.write import write

    write(folder, 20, pages=30, seed=5, page_chars=3000)
    found = list(readers.open([folder], "synth", readers.ReadCounts()))
    for file in sorted(Path(data).glob("crag/*.jsonl*")) if data else ():
        found += list(readers.open([file], "crag", readers.ReadCounts()))
    return sorted({s.content for row in found for s in row.sources if s.kind == "page"})


def run(pages: Sequence[str], folder: Path) -> dict[str, Any]:
    """Outcomes of these pages, and the seconds of the slowest part."""
    store = Store.create(str(folder / "store"))
    sources = [Source(source_id("page", html), "page", html) for html in pages]
    put(store, "sources", arrow.source.table(sources))
    recipe = load_recipe(str(ROOT / "tests" / "support" / "fakes.yaml"), None, Conf((ROOT / "conf",)))
    silent = Progress(io.StringIO(), silent=True)
    took: list[float] = []

    def timed(verb: Any, fill: Any, parts: Any) -> Iterator[Any]:
        start = time.perf_counter()
        for done in inline(verb, fill, parts):
            took.append(time.perf_counter() - start)
            yield done
            start = time.perf_counter()

    pipe = Pipeline(
        store, recipe, WorkerConfig(store.uri, "transformers", "cpu", 1), TaskSizes(20, 1), timed, silent
    )
    start = time.perf_counter()
    pipe.index(None)
    whole = Question("all", "of everything", citations=None)
    lost = row_faults(pipe, [whole], {})
    of = next(t for t in lost.counts if t.kind == "sources")
    return {
        "pages": len(pages),
        "done": of.done,
        "failed": of.failed,
        "pending": of.pending,
        "reasons": dict(Counter(x.reason for x in lost.rows)),
        "seconds": round(time.perf_counter() - start, 1),
        "slowest_part_s": round(max(took), 2),
        "bytes": sum(len(html.encode()) for html in pages),
    }


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--pages", type=int, default=10_000, metavar="N")
    args.add_argument("--seed", type=int, default=1)
    given = args.parse_args()
    with tempfile.TemporaryDirectory(prefix="raypipe-mutants-") as temporary:
        folder = Path(temporary)
        pages = list(
            mutants(originals(folder / "world", os.environ.get("RAYPIPE_DATA")), given.pages, given.seed)
        )
        found = run(pages, folder)
    print(json.dumps(found))
    whole = found["done"] + found["failed"] + found["pending"] == given.pages
    raised = "unparsable" in found["reasons"]
    return 0 if whole and not raised and found["slowest_part_s"] < 20 * ParserLimits().wall_s else 1


if __name__ == "__main__":
    sys.exit(main())
