"""Answers of `local` without a language model: right, wrong or none, next to the same step of another tree.

    python bench/figures/extract.py --against TREE    tables of before and after; needs RAYPIPE_DATA
    python bench/figures/extract.py --fit             fits conf/fitted/local-extract.yaml again first
    python bench/figures/extract.py --sets sheets     facts in tables (`spec_sheets`) alone
    python bench/figures/extract.py --sets manuals,products     questions in other words than the text's
    python bench/figures/extract.py --sentences       counts sentences of passages, for `Extract.sentences`

TREE is a checkout of the commit to compare with (`git worktree add TREE COMMIT`). Both answer the same
questions from the five passages that BM25 finds, each from the texts that it parses itself, and the
differences are paired:

- an invented world of another seed than the one fitted on, and the demo;
- the half of Natural Questions and of SQuAD (XQuAD's English part) that the fit has not seen; all of their
  passages are searched;
- ten real CRAG questions. Their pages hold the answer to one of them;
- facts in tables of five kinds of files;
- "unanswered": the questions of all sets but CRAG's once more, over the same texts without those that hold
  a gold. Whatever is said is wrong. The fit has such rows, too.

A reply is right if it holds a gold (lower case, without punctuation and articles, one spelling for dates) in
at most 45 words, and is the gold where the question offers a choice. Score: right less wrong, per question.
Vectors and scores are cached in one file, so a second run takes a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import extract_fit
import numpy as np
import product_sheets
import spec_sheets
from extract_replies import EMBEDDER, kit_of, model
from extract_sets import CRAG, FALSE, crag, demo, digests, fit_sets, nq, plain, squad, strictly
from rich.console import Console
from rich.table import Table

from raypipe.core.digests import FittedOn, seen_rows
from raypipe.core.errors import RaypipeError
from raypipe.metrics.paired_tests import paired, rate_interval
from raypipe.steps.extract import Extract
from raypipe.text.candidates import SourceText, candidates
from raypipe.text.typed_answers import read

ROOT = Path(__file__).parents[2]
FITTED = ROOT / "conf" / "fitted" / "local-extract.yaml"
SETS = "synth,demo,NQ,SQuAD,CRAG,sheets"
WEIGHTS = {"NQ": 1.0, "SQuAD": 1.0, "synth": 2.0}
"""Of a question in the fit; of one about a table `TABLES`. Those of the invented world are few, and have
prices and false premises."""
TABLES = 0.25
PRODUCTS = 0.1  # of one about the lists of `product_sheets`; its other sets are reported alone
UNANSWERED = 0.25
"""Weight of a question in the fit once more, without the texts that answer it."""


def score(row: dict[str, Any]) -> int:
    """1 for a right answer, -1 for a wrong one, 0 for none."""
    golds = () if any(plain(g) == plain(FALSE) for g in row["golds"]) else row["golds"]
    if row["label"] != "answered":
        return 0
    return 1 if strictly(read(row["question"]), row["text"], golds) else -1


def of_tree(tree: Path, sets: str, memo: Path, embedder: str, out: Path) -> dict[str, list[dict[str, Any]]]:
    """The replies of a tree's step, from a process that imports that tree: set -> rows."""
    command = [sys.executable, str(Path(__file__).with_name("extract_replies.py")), "--sets", sets]
    command += ["--conf", str(tree / "conf"), "--memo", str(memo), "--out", str(out), "--embedder", embedder]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tree / "src")}, check=True)
    found: dict[str, list[dict[str, Any]]] = json.loads(out.read_text(encoding="utf-8"))
    return found


def add(table: Table, name: str, when: str, rows: Sequence[dict[str, Any]]) -> None:
    scores = [score(r) for r in rows]
    n, right = sum(s != 0 for s in scores), scores.count(1)
    low, high = rate_interval(right, n) if n else (0.0, 1.0)
    false = [
        s for r, s in zip(rows, scores, strict=True) if any(plain(g) == plain(FALSE) for g in r["golds"])
    ]
    chars = [len(r["text"]) for r, s in zip(rows, scores, strict=True) if s]
    table.add_row(
        f"{name} ({len(rows)})",
        when,
        f"{np.mean(scores):+.3f}",
        str(right),
        str(n - right),
        f"{n / len(rows):.2f}",
        f"{right / n:.2f} [{low:.2f}, {high:.2f}]" if n else "-",
        f"{np.percentile(chars, 95):.0f}" if n else "-",
        f"{sum(s != 0 for s in false)} of {len(false)}",
    )


def difference(name: str, before: Sequence[int], after: Sequence[int]) -> str:
    d = paired(list(before), list(after), 2)
    low, high = d.interval or (float("nan"), float("nan"))
    return f"{name}: {d.difference:+.3f} [{low:+.2f}, {high:+.2f}], p {d.p:.4f}, {d.up} up, {d.down} down"


async def refit(data: Path, step: Extract, memo: Path, console: Console) -> None:
    sets = [(s, WEIGHTS[s.name]) for s in fit_sets(data)] + [(s, TABLES) for s in spec_sheets.fit_sets()]
    sets += [(product_sheets.product_list(), PRODUCTS)]
    rows, asked = [], list[str]()
    for some, weight in sets:
        kit, other = kit_of(some, memo), some.unanswered()
        rows += await extract_fit.scored(some, step, kit, weight)
        rows += await extract_fit.scored(other, step, kit, weight * UNANSWERED)
        asked += [c.text for c in some.cases]
        console.print(f"{some.name}: {len(some.cases)} questions")
    on = FittedOn(
        data=f"{digests(data)}, synth seed 3, tables of bench/figures/spec_sheets.py and product_sheets.py",
        split="even rows of NQ, even articles of SQuAD, all of synth, tables of 25 packages and 24 products; "
        f"each once more, with weight {UNANSWERED:g}, without the texts that hold a gold",
        metric="log loss of: a candidate, or its span, holds a gold",
        n=len(asked),
        seen=seen_rows(asked),
    )
    extract_fit.write(extract_fit.fit(rows, step, on), FITTED)
    console.print(f"wrote conf/fitted/{FITTED.name}")


def run(args: argparse.Namespace, data: Path, console: Console) -> None:
    if args.fit:
        step = Extract(embedder=model(ROOT / "conf", args.embedder))
        asyncio.run(refit(data, step, args.memo, console))
    with tempfile.TemporaryDirectory() as folder:
        out = args.out or Path(folder) / "after.json"
        after = of_tree(ROOT, args.sets, args.memo, args.embedder, out)
        before: dict[str, list[dict[str, Any]]] = {}
        if args.against:
            out = out.with_name(f"{out.stem}-before.json")
            before = of_tree(args.against, args.sets, args.memo, args.embedder, out)
    table = Table()
    for name in (
        "set",
        "",
        "score",
        "right",
        "wrong",
        "answered",
        "right when answered",
        "95th chars",
        "false premises",
    ):
        table.add_column(name)
    lines, five = list[str](), (list[int](), list[int]())
    for name, rows in after.items():
        if old := before.get(name):
            add(table, name, "before", old)
            both = [score(r) for r in old], [score(r) for r in rows]
            lines.append(difference(name, *both))
            if name in args.sets.split(","):
                five[0].extend(both[0])
                five[1].extend(both[1])
        add(table, name, "after", rows)
    console.print(table)
    for line in lines:
        console.print(line)
    if five[0]:
        console.print(difference("all of the five sets", *five))


def count_sentences(data: Path, console: Console) -> int:
    """A table of sentences per passage. 7 where the default of `Extract.sentences` would leave one out."""
    table = Table(title="passages of 700 characters")
    for name in ("", "passages", "mean", "50th", "95th", "99th", "most"):
        table.add_column(name)
    most = 0
    for asked in (nq(data), squad(data)[0], crag("CRAG", [data / CRAG]), demo()):
        counts = []
        for chunk in dict.fromkeys(c for case in asked.cases for c in case.order):
            source, _, span = chunk.rpartition(":")
            page = asked.pages[source]
            start, end = map(int, span.split("-"))
            counts.append(
                len(candidates([(source, (start, end))], {source: SourceText(page.text, page.blocks)}))
            )
        cells = [f"{np.mean(counts):.1f}", *(f"{np.percentile(counts, p):.0f}" for p in (50, 95, 99, 100))]
        table.add_row(asked.name, str(len(counts)), *cells)
        most = max(most, *counts)
    console.print(table)
    reads: int = inspect.signature(Extract).parameters["sentences"].default
    return 0 if most <= reads else 7


def main(sets: str = SETS) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    home = Path(os.environ.get("RAYPIPE_HOME", "~/.cache/raypipe")).expanduser()
    parser.add_argument("--against", type=Path, metavar="TREE", help="another checkout, to compare with")
    parser.add_argument("--fit", action="store_true", help="fit conf/fitted/local-extract.yaml again first")
    parser.add_argument("--sentences", action="store_true", help="only count the sentences of passages")
    parser.add_argument("--sets", default=sets, help=f"which of them (default: {sets})")
    parser.add_argument("--embedder", default=EMBEDDER, help="its name in models.yaml")
    parser.add_argument("--memo", type=Path, default=home / "bench" / "extract.sqlite", help="cached vectors")
    parser.add_argument("--out", type=Path, help="a file for every reply, as JSON")
    args = parser.parse_args()
    console = Console(width=140)
    data = os.environ.get("RAYPIPE_DATA")
    if not data:
        console.print("RAYPIPE_DATA is not set: it must name the folder that has openqa/, squad/ and crag/")
        return 3
    if args.sentences:
        return count_sentences(Path(data), console)
    try:
        run(args, Path(data), console)
    except RaypipeError as e:
        console.print(str(e))
        return e.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
