"""What the step `extract` of one tree replies to the questions of a file.

    PYTHONPATH=TREE/src python bench/figures/extract_replies.py --cases F --conf TREE/conf --memo M --out R

Runs in an older tree, too: `bench/figures/extract.py --against TREE` compares both. Vectors and scores are
cached by value in one file, under the same keys in every tree.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raypipe.core import config
from raypipe.core.protocols import Kit
from raypipe.core.records import Question, parse_chunk_id
from raypipe.models import catalog
from raypipe.models.kit import LocalKit
from raypipe.steps.extract import Extract
from raypipe.store.memo.counts import CallCounts
from raypipe.store.memo.memo import MemoTable, Values, cached
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


class CaseIndex:
    """The texts of a file of cases (`core.index.Index`, as far as `extract` reads it)."""

    def __init__(self, pages: dict[str, Any]) -> None:
        self._pages = pages

    async def texts(self, chunks: Sequence[str]) -> list[str]:
        return [self._pages[s]["text"][slice(*span)] for s, span in map(parse_chunk_id, chunks)]

    async def source_texts(self, sources: Sequence[str]) -> list[str | None]:
        return [self._pages[s]["text"] for s in sources]

    async def hidden(self, sources: Sequence[str]) -> list[tuple[tuple[int, int], ...]]:
        return [tuple((a, b) for a, b in self._pages[s]["hidden"]) for s in sources]

    async def blocks(self, sources: Sequence[str]) -> list[tuple[Any, ...]]:
        from raypipe.core.records import Block  # which an older tree does not have

        return [tuple(Block(*b) for b in self._pages[s]["blocks"]) for s in sources]


def models(conf: Path, embedder: str, maxsim: str) -> tuple[Any, Any]:
    read = catalog.read(config.read_yaml(conf / "models.yaml"), conf / "models.yaml")
    return read.model(embedder), read.model(maxsim)


def kit_of(tree: dict[str, Any], memo: Path) -> Kit:
    """Models behind the cache, over the texts of a file of cases."""
    kit: Any = LocalKit(CaseIndex(tree["pages"]), backend="transformers")  # type: ignore[arg-type]
    return cached(kit, SqliteMemo(memo), CallCounts())


async def replies(tree: dict[str, Any], step: Any, kit: Kit) -> list[dict[str, Any]]:
    """The reply to each case, in order."""
    ask, out = step.open(kit), []
    cases = [
        Question(c["id"], c["text"], asked_at=c["asked_at"], order=tuple(c["order"])) for c in tree["cases"]
    ]
    for at in range(0, len(cases), AT_ONCE):
        for q in await ask(cases[at : at + AT_ONCE]):
            r = q.replies["extract"]
            quotes = [(x.source, *x.span) for x in r.quotes]
            out.append({"text": r.text, "label": r.label, "confidence": r.confidence, "quotes": quotes})
        print(f"\r{len(out)} of {len(cases)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, about in (
        ("cases", "what bench/figures/extract.py wrote"),
        ("conf", "the tree's conf"),
        ("memo", "file of cached vectors and scores"),
        ("out", "file to write"),
    ):
        parser.add_argument(f"--{name}", type=Path, required=True, help=about)
    parser.add_argument("--embedder", default=EMBEDDER, help="its name in models.yaml")
    parser.add_argument("--maxsim", default=MAXSIM, help="the reranker's")
    args = parser.parse_args()
    tree = json.loads(args.cases.read_text(encoding="utf-8"))
    path = args.conf / "fitted" / "local-extract.yaml"
    fitted = config.build(Fitted, config.read_yaml(path), config.Where(str(path)))
    embedder, maxsim = models(args.conf, args.embedder, args.maxsim)
    step = Extract(embedder=embedder, maxsim=maxsim, fitted=fitted)
    found = asyncio.run(replies(tree, step, kit_of(tree, args.memo)))
    args.out.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
