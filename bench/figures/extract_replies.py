"""Replies of the step `extract` of one tree to sets of questions.

    PYTHONPATH=TREE/src python bench/figures/extract_replies.py --sets synth,NQ --conf TREE/conf --out FILE

Runs in an older tree, too: `bench/figures/extract.py --against TREE` compares both. Each tree reads and
parses the
files itself. Vectors and scores are cached by value in one file, under the same keys in every tree.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import os
import sqlite3
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import extract_sets
import manuals
import numpy as np
import product_sheets
import spec_sheets
from extract_sets import QuestionSet

from raypipe.core import config
from raypipe.core.protocols import Kit
from raypipe.core.records import Question, parse_chunk_id
from raypipe.models import catalog
from raypipe.models.kit import LocalKit
from raypipe.steps.extract import Extract
from raypipe.store.memo.cached import CallCounts, cached
from raypipe.store.memo.memo import MemoTable, Values
from raypipe.text.evidence import Fitted

EMBEDDER, MAXSIM = "all-MiniLM-L6-v2", "minilm-maxsim"
AT_ONCE = 40  # questions per call of the step
KEYS = 900  # of one look-up


class SqliteMemo:
    """A memo in one file (`memo.Memo`)."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, timeout=60)
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS memo (name TEXT, key TEXT, value BLOB, PRIMARY KEY (name, key))"
        )

    async def get_many(self, table: MemoTable, keys: Sequence[str]) -> tuple[np.ndarray, Values]:
        found: dict[str, bytes] = {}
        for at in range(0, len(keys), KEYS):
            some = list(keys[at : at + KEYS])
            marks = ",".join("?" * len(some))
            sql = f"SELECT key, value FROM memo WHERE name = ? AND key IN ({marks})"
            found.update(self._db.execute(sql, [table.name, *some]))
        known = np.array([k in found for k in keys], bool)
        values = table.empty(int(known.sum()))
        for i, key in enumerate(k for k in keys if k in found):
            row = np.frombuffer(found[key], np.float32)
            values[i] = row if table.dim else row[0]
        return known, values

    async def put_many(self, table: MemoTable, keys: Sequence[str], values: Values) -> None:
        rows = [
            (table.name, k, np.asarray(v, np.float32).tobytes()) for k, v in zip(keys, values, strict=True)
        ]
        self._db.executemany("INSERT OR IGNORE INTO memo VALUES (?, ?, ?)", rows)
        self._db.commit()


class PagesIndex:
    """The texts of a set of questions (`core.index.Index`, as far as `extract` reads it)."""

    def __init__(self, pages: dict[str, extract_sets.Page]) -> None:
        self._pages = pages

    async def texts(self, chunks: Sequence[str]) -> list[str]:
        return [self._pages[s].text[slice(*span)] for s, span in map(parse_chunk_id, chunks)]

    async def source_texts(self, sources: Sequence[str]) -> list[str | None]:
        return [self._pages[s].text for s in sources]

    async def hidden(self, sources: Sequence[str]) -> list[tuple[Any, ...]]:
        return [self._pages[s].hidden for s in sources]

    async def blocks(self, sources: Sequence[str]) -> list[tuple[Any, ...]]:
        return [self._pages[s].blocks for s in sources]

    async def layouts(self, sources: Sequence[str]) -> list[None]:
        return [None] * len(sources)


def model(conf: Path, name: str) -> Any:
    return catalog.read(config.read_yaml(conf / "models.yaml"), conf / "models.yaml").model(name)


def fitted_in(conf: Path) -> Fitted:
    path = conf / "fitted" / "local-extract.yaml"
    return config.build(Fitted, config.read_yaml(path), config.Where(str(path)))


def kit_of(asked: QuestionSet, memo: Path) -> Kit:
    """Models behind the cache, over the texts of a set."""
    kit: Any = LocalKit(PagesIndex(asked.pages), backend="transformers")  # type: ignore[arg-type]
    return cached(kit, SqliteMemo(memo), CallCounts())


async def replies(asked: QuestionSet, step: Any, kit: Kit) -> list[dict[str, Any]]:
    """The reply to each case, in order, with what it quotes."""
    ask, out = step.open(kit), []
    cases = [Question(c.id, c.text, asked_at=c.asked_at, order=c.order) for c in asked.cases]
    for at in range(0, len(cases), AT_ONCE):
        for q in await ask(cases[at : at + AT_ONCE]):
            r = q.replies["extract"]
            quoted = [asked.pages[x.source].text[slice(*x.span)] for x in r.quotes]
            out.append({"text": r.text, "label": r.label, "confidence": r.confidence, "quoted": quoted})
        print(f"\r{len(out)} of {len(cases)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return out


def sets_named(names: Sequence[str], data: Path) -> list[QuestionSet]:
    """The sets that are reported, with the same questions over texts that do not answer them."""
    plain = extract_sets.test_sets(data, names)
    tables = spec_sheets.test_sets() if "sheets" in names else []
    tables += manuals.sets() if "manuals" in names else []
    tables += product_sheets.sets() if "products" in names else []
    return [
        s
        for some in (*plain, *tables)
        for s in ([some] if some.name == "CRAG" else [some, some.unanswered()])
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", required=True, help="names, with commas between")
    for name, about in (
        ("conf", "the tree's conf"),
        ("memo", "file of cached vectors and scores"),
        ("out", "file to write"),
    ):
        parser.add_argument(f"--{name}", type=Path, required=True, help=about)
    parser.add_argument("--embedder", default=EMBEDDER, help="its name in models.yaml")
    args = parser.parse_args()
    fields: dict[str, Any] = {"embedder": model(args.conf, args.embedder), "fitted": fitted_in(args.conf)}
    if "maxsim" in inspect.signature(Extract).parameters:  # of an older tree
        fields["maxsim"] = model(args.conf, MAXSIM)
    found, step = {}, Extract(**fields)
    for asked in sets_named(args.sets.split(","), Path(os.environ["RAYPIPE_DATA"])):
        begin = time.perf_counter()
        said = asyncio.run(replies(asked, step, kit_of(asked, args.memo)))
        found[asked.name] = [
            {"question": c.text, "golds": c.golds, **r} for c, r in zip(asked.cases, said, strict=True)
        ]
        print(f"{asked.name}: {len(said)} questions, {time.perf_counter() - begin:.1f} s", file=sys.stderr)
        args.out.write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
