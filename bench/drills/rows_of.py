"""Rows of this checkout next to those of another: texts and answers are equal, numbers within 1e-6.

    python bench/drills/rows_of.py --against CHECKOUT           # RAYPIPE_DATA adds real questions and papers
    python bench/drills/rows_of.py --against CHECKOUT --only demo papers

Each tree runs the same commands over the same files, in stores of its own, with Ray and the models of the
recipes `local`, `papers-local` and `collection-local`. Then all rows of their tables are compared, and the
digests of all recipes. It prints a line for each set and ends with 1 where anything differs. Tables are read
with Lance, whatever the trees call their modules.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance

ROOT = Path(__file__).parents[2]
CLOSE = 1e-6  # of vectors and scores: sums in another order differ by 1e-7 in float32
DIGESTS = """
import json, sys
from pathlib import Path
from raypipe.api import session
conf, models = Path(sys.argv[1]), sys.argv[2]
names = sorted(f.stem for f in (conf / "recipes").glob("*.yaml"))
print(json.dumps({name: session.load_recipe(name, models, session.Conf((conf,))).digest() for name in names}))
"""


@dataclass(frozen=True, slots=True)
class RowSet:
    """Files and the recipe that is run over them."""

    recipe: str
    data: Path
    options: tuple[str, ...] = ()


def row_sets(folder: Path, shared: Path | None) -> dict[str, RowSet]:
    """Name -> set, with its files written to `folder` by this checkout. `shared`: $RAYPIPE_DATA."""
    made = {name: folder / name for name in ("demo", "collection")}
    _raypipe(
        ROOT,
        folder,
        "synth",
        made["demo"],
        "--questions",
        20,
        "--pages",
        50,
        "--page-chars",
        2000,
        "--seed",
        7,
    )
    _raypipe(ROOT, folder, "synth", made["collection"], "--papers", 240, "--questions", 12, "--seed", 7)
    (folder / "oag").mkdir()
    _write_oag(made["collection"], folder / "oag")
    sets = {
        "demo": RowSet("local", made["demo"]),
        "oag": RowSet("collection-local", folder / "oag"),
    }
    if shared is not None:
        sets["crag"] = RowSet("local", shared / "crag/dev_data.jsonl.bz2")
        papers = folder / "papers.json"
        papers.write_bytes(gzip.decompress((shared / "qasper/train10_full_papers.json.gz").read_bytes()))
        sets["papers"] = RowSet("papers-local", papers, ("--limit", "20"))
    return sets


def _write_oag(collection: Path, folder: Path) -> None:
    """Writes an invented collection as the files of OAG-QA."""
    with open(collection / "corpus.jsonl", encoding="utf-8") as lines:
        papers = {p["_id"]: {"title": p["title"], "abstract": p["text"]} for p in map(json.loads, lines)}
    (folder / "pid-to-title-abs-new.json").write_text(json.dumps(papers), encoding="utf-8")
    with open(collection / "queries.jsonl", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    asked = [{"question": t, "body": f"<p>{t}</p>", "pids": [*papers][:2]} for t in texts]
    (folder / "qa-train.txt").write_text("".join(json.dumps(a) + "\n" for a in asked), encoding="utf-8")


def _raypipe(tree: Path, folder: Path, *words: object) -> str:
    """Output of a command of a tree, with its own code, conf and home."""
    env = {**os.environ, "PYTHONPATH": str(tree / "src"), "RAYPIPE_CONF": str(tree / "conf")}
    env |= {"RAYPIPE_HOME": str(folder / "home"), "RAY_ADDRESS": "local"}
    command = [sys.executable, "-m", "raypipe", *map(str, words)]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{tree}: {' '.join(command)} ended with {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout


def digests(tree: Path) -> dict[str, str]:
    """Recipe -> digest, with models whose weights are not needed."""
    models = [tree / "tests" / below / "fake_models.yaml" for below in ("support", "")]
    found = next(str(file) for file in models if file.exists())
    command = [sys.executable, "-c", DIGESTS, str(tree / "conf"), found]
    env = {**os.environ, "PYTHONPATH": str(tree / "src")}
    out = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    made: dict[str, str] = json.loads(out)
    return made


def rows(tree: Path, name: str, row_set: RowSet, folder: Path) -> dict[str, dict[str, Any]]:
    """Table -> key -> row of a run of the set by a tree."""
    folder.mkdir(parents=True)
    store = folder / "store"
    words = ("--data", row_set.data, "--store", store, "--out", folder / "run", *row_set.options, "--json")
    report = json.loads(_raypipe(tree, folder, "eval", row_set.recipe, *words))
    tables: dict[str, dict[str, Any]] = {"digest": {name: report["digest"]}}
    for path in sorted(store.glob("*.lance")):
        kind = path.name.removesuffix(".lance").partition("-")[0]
        if kind in KEYS:
            read = [_hex(row) for row in lance.dataset(str(path)).to_table().to_pylist()]
            named = {":".join(str(row[key]) for key in KEYS[kind]): row for row in read}
            tables.setdefault(kind, {}).update(
                {k: {f: row[f] for f in row if f in FIELDS} for k, row in named.items()}
            )
            tables.setdefault("counts", {})[kind] = len(
                read
            )  # a row that stands twice under one name differs
    return tables


def _hex(value: Any) -> Any:
    """A value of a row with ids as text, however the tree stores them."""
    if isinstance(value, dict):
        return {name: _hex(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [_hex(v) for v in value]
    return value.hex() if isinstance(value, bytes) else value


SPAN = ("source", "start", "end", "parent_start", "parent_end")
KEYS: Mapping[str, tuple[str, ...]] = {
    "sources": ("id",),
    "documents": ("id", "source"),
    "questions": ("id",),
    "golds": ("question",),
    "texts": ("source",),
    "passages": SPAN,
    "vectors": SPAN,
    "answers": ("id",),
}
"""Kind of table -> the columns that name a row."""
FIELDS = frozenset(
    {
        "kind",
        "content",
        "title",
        "text",
        "vector",
        "hidden",
        "blocks",
        "answers",
        "labels",
        "answer",
        "outcome",
    }
    | {"origin", "hits", "order", "replies", "citations"}
)


def differences(a: Any, b: Any, at: str = "") -> Iterator[str]:
    """Places at which two rows differ: numbers by more than CLOSE, everything else at all."""
    if isinstance(a, float) and isinstance(b, float):
        if not abs(a - b) <= CLOSE * max(1.0, abs(a)) and not (a != a and b != b):
            yield f"{at}: {a!r}, {b!r}"
    elif isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            if key not in a or key not in b:
                yield f"{at}/{key}: only in {'the second' if key in b else 'the first'}"
            else:
                yield from differences(a[key], b[key], f"{at}/{key}")
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        for n, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from differences(x, y, f"{at}[{n}]")
    elif a != b:
        yield f"{at}: {str(a)[:80]!r}, {str(b)[:80]!r}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the rows of two checkouts.")
    parser.add_argument("--against", type=Path, required=True, help="the other checkout")
    parser.add_argument("--only", nargs="+", help="sets: recipes, demo, oag, crag, papers (all)")
    args = parser.parse_args()
    shared = os.environ.get("RAYPIPE_DATA")
    against, failed = args.against.resolve(), 0
    with tempfile.TemporaryDirectory(prefix="raypipe-rows-") as made:
        folder = Path(made)
        sets = row_sets(folder, Path(shared) if shared else None)
        pairs: dict[str, tuple[Any, Any]] = {}
        if not args.only or "recipes" in args.only:
            pairs["recipes"] = (digests(against), digests(ROOT))
        for name, row_set in sets.items():
            if args.only and name not in args.only:
                continue
            before = rows(against, name, row_set, folder / f"{name}-before")
            pairs[name] = (before, rows(ROOT, name, row_set, folder / f"{name}-after"))
        for name, (old, new) in pairs.items():
            unequal = list(differences(old, new))
            failed += bool(unequal)
            counts = {table: len(taken) for table, taken in new.items()} if name != "recipes" else len(new)
            print(json.dumps({"set": name, "rows": counts, "differ": len(unequal), "first": unequal[:5]}))
    if not shared:
        print("RAYPIPE_DATA is not set: without the real questions and papers", file=sys.stderr)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
