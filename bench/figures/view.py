"""How large the pages of a run of CRAG's size are, and how fast a browser shows, filters and sorts it.

    python bench/figures/view.py --run DIR                    DIR: the folder of any finished eval
    python bench/figures/view.py --run DIR --questions 2706   as many rows as CRAG's first task

The rows of the run are repeated with invented texts: 50 passages a question of some 650 characters, ten of
them ranked, each by four rankers, a prompt that holds these ten, a reply and two quotes. Then the run is
served as `raypipe view` serves it, opened in Chromium, and timed: first contentful paint of the browser's own
clock; a filter and a sort from the change of the menu until the page is laid out; a question from the click
until its passages stand there. Median of five.

Prints one JSON object. Needs playwright and chromium, as the tests do.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raypipe.contrib.world.styles import Prose
from raypipe.core.records import chunk_id, source_id
from raypipe.evaluation.result_table import SCHEMA, each
from raypipe.evaluation.view.pages import report_page
from raypipe.evaluation.view.run_list import RunList
from raypipe.evaluation.view.viewer import Viewer, ViewServer
from raypipe.runs.record import read
from raypipe.runs.run_parts import RunFolder

HITS, RANKED, CHARS = 50, 10, 650  # passages of a question; of these in the ranking; characters of one
RANKERS = ("dense", "bm25", "fuse", "rerank")
BATCH = 100
TIMES = 5


class Inventor:
    """Rows of results with invented texts."""

    def __init__(self, template: list[dict[str, Any]]) -> None:
        self._rows, self._random, self._prose = template, random.Random(0), Prose(random.Random(1))

    def _text(self, chars: int) -> str:
        text = ""
        while len(text) < chars:
            text += self._prose.sentence(self._random) + " "
        return text.strip()

    def row(self, i: int) -> dict[str, Any]:
        """Row i: the labels, verdict and measures of one of the run, all texts new."""
        row = dict(self._rows[i % len(self._rows)])
        hits, texts = [], []
        for n in range(HITS):
            source, text = source_id("page", f"{i}-{n % 20}"), self._text(CHARS)
            span = (n * CHARS, (n + 1) * CHARS)
            scores = [(r, round(self._random.random(), 6)) for r in RANKERS]
            url = f"https://example.org/{i}/{n % 20}/{self._text(20).replace(' ', '-').lower()}"
            kept = text if n < 20 else None  # what the table keeps
            hits.append(
                {
                    "chunk": chunk_id(source, span),
                    "url": url,
                    "start": span[0],
                    "end": span[1],
                    "scores": scores,
                    "ranked": n < RANKED,
                    "text": kept,
                }
            )
            texts.append(text)
        shown = "\n\n".join(f"<DOC>\n{t}\n</DOC>" for t in texts[:RANKED])
        prompt = [
            {"role": "system", "content": "Answer in a few words from the documents."},
            {"role": "user", "content": f"{shown}\n\nQuestion: {row['query']}"},
        ]
        said = {
            "step": "web",
            "text": self._text(60),
            "label": "answered",
            "confidence": None,
            "logprob": -1.5,
            "prompt": prompt,
            "prompt_tokens": 1900,
            "generated_tokens": 14,
            "finish": "stop",
        }
        quotes = [
            {
                "source": source_id("page", f"{i}-{n}"),
                "start": n * CHARS,
                "end": n * CHARS + 120,
                "text": texts[n][:120],
            }
            for n in range(2)
        ]
        pairs = {k: list(v.items()) if isinstance(v, dict) else v for k, v in row.items()}
        return {
            **pairs,
            "id": f"q{i:04d}",
            "query": f"{row['query']} ({i})",
            "hits": hits,
            "replies": [said],
            "quotes": quotes,
        }


def invented(run: Path, out: Path, questions: int) -> RunFolder:
    """A copy of a run's folder with that number of rows."""
    shutil.copytree(run, out)
    folder = RunFolder(out)
    made, schema = Inventor(list(each(folder.results))), pq.read_schema(folder.results)
    with pq.ParquetWriter(folder.results, SCHEMA.with_metadata(schema.metadata), compression="zstd") as file:
        for start in range(0, questions, BATCH):
            rows = [made.row(i) for i in range(start, min(start + BATCH, questions))]
            file.write_table(pa.Table.from_pylist(rows, SCHEMA))
    return folder


TIMED = """async ([selector, value]) => {
  const menu = document.querySelector(selector), start = performance.now();
  menu.value = value;
  menu.dispatchEvent(new Event("change", { bubbles: true }));
  document.body.getBoundingClientRect(); // lays out what is seen
  return performance.now() - start;
}"""
PAINTED = """() => new Promise(done => {
  const found = () => performance.getEntriesByName("first-contentful-paint")[0];
  const look = () => found() ? done(found().startTime) : setTimeout(look, 20);
  look();
})"""


OPENED = """async () => {
  const start = performance.now();
  document.querySelector(".row a.q").click();
  while (!document.querySelector(".detail .passage")) await new Promise(requestAnimationFrame);
  return performance.now() - start;
}"""


def timed(url: str) -> dict[str, Any]:
    """Milliseconds in a browser."""
    from playwright.sync_api import sync_playwright

    paints, filters, sorts, opens = [], [], [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for _ in range(TIMES):
            page = browser.new_page(viewport={"width": 1100, "height": 820})
            page.goto(url, wait_until="commit")
            paints.append(page.evaluate(PAINTED))
            page.wait_for_load_state("load")
            facet = page.evaluate("facts.facets.find(f => f.values.length > 1)")
            menu = f"#bar select[name='{facet['name']}']"
            filters.append(page.evaluate(TIMED, [menu, facet["values"][0]]))
            filters.append(page.evaluate(TIMED, [menu, ""]))
            name = page.evaluate("facts.numbers[0].name")
            sorts.append(page.evaluate(TIMED, ["#sort", f"-{name}"]))
            opens.append(page.evaluate(OPENED))
            page.close()
        browser.close()
    measured = {"first_paint_ms": paints, "filter_ms": filters, "sort_ms": sorts, "open_ms": opens}
    return {name: round(statistics.median(times), 1) for name, times in measured.items()}


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--run", metavar="DIR", type=Path, required=True)
    args.add_argument("--questions", type=int, default=2706, metavar="N")
    given = args.parse_args()
    with tempfile.TemporaryDirectory(prefix="raypipe-view-") as home:
        folder = invented(given.run, Path(home) / "run", given.questions)
        record = read(folder.path)
        sizes = {
            "report_html_mb": len(report_page(folder, record, None).encode()) / 1e6,
            "results_parquet_mb": folder.results.stat().st_size / 1e6,
        }
        with ViewServer(Viewer(RunList([folder.path], None), None), 0) as server:
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            times = timed(f"{server.address}/run/{record.run}/")
            server.shutdown()
            thread.join()
    rounded = {name: round(size, 2) for name, size in sizes.items()}
    print(json.dumps({"questions": given.questions, **rounded, **times}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
