"""The whole life of a store, which drills disturb: what is done to it, and how what is left is compared.

Ingest, eval, an eval with other passages, promote, an eval with other pages of one question, prune. Four
questions over an invented world, on models that compute from words. Knows raypipe's functions as its commands
call them; knows nothing of kills.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

from write_events import kind

from raypipe.api.session import load_recipe
from raypipe.contrib.world.write import write
from raypipe.core.conf import Conf
from raypipe.core.progress import Progress
from raypipe.core.textfile import json_lines
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.recipes.step_contract import asked_models
from raypipe.runs.pipeline.driver import Pipeline, TaskSizes
from raypipe.runs.pipeline.ingest import ingest
from raypipe.runs.pipeline.tasks import Runner, WorkerConfig, inline
from raypipe.runs.plan.records import Plan
from raypipe.runs.prune import prune
from raypipe.runs.record import read
from raypipe.runs.release import history, promote, releases
from raypipe.store import Store
from raypipe.store.housekeeping import tables

ROOT = Path(__file__).parents[2]
QUESTIONS, PAGES, PAGE_CHARS = 4, 3, 1500
SIZES = TaskSizes(sources=6, questions=2)  # two or three parts of every table

RECIPE = """
corpus:
  - parse: {html: lxml, via: fast, kinds: [page, snippet]}
  - tokenize: {words: stems}
  - split: {child_chars: 200, child_overlap: 50, parent_chars: 700, parent_overlap: 150}
  - embed: {model: hash-embedder}
question:
  - dense: {model: hash-embedder, top: 30}
  - bm25: {words: stems, variant: okapi, top: 30}
  - fuse: {weights: {dense: 1.0, bm25: 1.0}, missing: min, top: 20}
  - rerank: {model: overlap-reranker, candidates: 20, top: 10}
  - generate:
      model: scripted
      prompt:
        variables: [context, text]
        system: From pages.
        user: "{{ context }}\\nQuestion: {{ text }}"
      into: web
      passages: 3
      context_chars: 2000
      max_tokens: 30
  - decide: {prefer: [web]}
"""
OTHER_PASSAGES = RECIPE.replace("child_chars: 200", "child_chars: 190")
OTHER_RANKS = OTHER_PASSAGES.replace("candidates: 20, top: 10", "candidates: 12, top: 6")


def write_world(folder: Path) -> None:
    """The dataset `first.jsonl`, and `second.jsonl`, where one question of the same id cites fewer pages."""
    write(folder / "synth", QUESTIONS, pages=PAGES, seed=3, page_chars=PAGE_CHARS)
    files = sorted((folder / "synth").glob("questions*.jsonl"))
    first, *others = [line for file in files for line in json_lines(file.read_text())]
    changed = {**first, "search_results": first["search_results"][:1]}
    for name, line in (("first", first), ("second", changed)):
        written = [json.dumps(x) + "\n" for x in (line, *others)]
        (folder / f"{name}.jsonl").write_text("".join(written))


@dataclass(frozen=True, slots=True)
class Asked:
    """What one command might ask of models."""

    planned: float = 0  # at most, as its plan said
    over: tuple[str, ...] = ()  # steps that computed more than was planned


@dataclass(frozen=True, slots=True)
class Life:
    """A store and the folders of its runs in `folder / "kept"`, and the commands that make them."""

    folder: Path
    world: Path
    runner: Runner = inline

    @property
    def kept(self) -> Path:
        return self.folder / "kept"

    @property
    def store(self) -> Store:
        return Store.open(str(self.kept / "store"))

    def ingest(self) -> Asked:
        """Reads the first file."""
        store = Store.create(str(self.kept / "store"))
        ingest(store, [self.world / "first.jsonl"], "crag", _silent())
        return Asked()

    def eval(self) -> Asked:
        """A run that no release and no later run of its recipe needs."""
        return self._eval(RECIPE, "first")

    def other_passages(self) -> Asked:
        """The run that is released."""
        return self._eval(OTHER_PASSAGES, "first")

    def promote(self) -> Asked:
        promote(self.store, read(self.kept / "other_passages"), [])
        return Asked()

    def other_pages(self) -> Asked:
        """A file whose questions have the same ids, and one of them fewer pages."""
        return self._eval(OTHER_RANKS, "second", "other_pages")

    def prune(self) -> Asked:
        prune(self.store, dry_run=False, kept=timedelta(0))
        return Asked()

    def _eval(self, recipe: str, data: str, out: str | None = None) -> Asked:
        out = out or {RECIPE: "eval", OTHER_PASSAGES: "other_passages"}[recipe]
        (self.folder / "life.yaml").write_text(recipe)
        conf = Conf((ROOT / "conf",))
        made = load_recipe(str(self.folder / "life.yaml"), str(ROOT / "conf" / "models.yaml"), conf)
        made = replace(made, file="life.yaml")  # the same file, whichever copy of the store this is
        store = Store.create(str(self.kept / "store"))
        worker = WorkerConfig(store.uri, "transformers", "cpu", 1)
        pipeline = Pipeline(store, made, worker, SIZES, self.runner, _silent())
        plans: list[Plan] = []
        file = [self.world / f"{data}.jsonl"]
        done = evaluate(
            pipeline, file, self.kept / out, EvalOptions("crag", rule="official", on_plan=plans.append)
        )
        asking = {s.name for s in (*made.corpus, *made.question) if asked_models(s.step)}
        planned = sum(s.max_calls for s in plans[0].steps if s.step in asking)
        known = [s for s in done.record.steps if s.planned is not None]
        return Asked(planned, tuple(s.step for s in known if s.computed > (s.planned or 0)))


def _silent() -> Progress:
    return Progress(io.StringIO(), silent=True)


COMMANDS = ("ingest", "eval", "other_passages", "promote", "other_pages", "prune")
"""Methods of `Life`, in their order."""

Contents: TypeAlias = dict[str, list[str]]
"""Table -> its rows, in an order of their own."""

MEMO = ("embeddings-", "scores-", "replies-")


def contents(store: Store) -> Contents:
    """Every row of every table, and of those that a release pins; of the memo its keys, each as often as it
    stands there. `run` names no result."""
    found = {name: _rows(store, name, None) for name in tables(store)}
    # One that promote had written and not pointed to when it was ended is none: prune takes it.
    for number, release in enumerate(r for r in releases(store) if r.id in history(store)):
        found |= {f"release {number}: {t}": _rows(store, t, v) for t, v in release.tables.items()}
    return found


def _rows(store: Store, table: str, version: int | None) -> list[str]:
    dataset = store.dataset(table, version)
    if table.startswith(MEMO):
        return sorted(dataset.to_table(["key"])["key"].to_pylist())
    rows = dataset.to_table().to_pylist()
    return sorted(repr({k: v for k, v in r.items() if k != "run"}) for r in rows)


def differences(expected: Contents, found: Contents) -> list[str]:
    """Tables that are not equal, each with the number of rows that are missing and too many."""
    out = []
    for table in sorted(expected.keys() | found.keys()):
        want, have = Counter(expected.get(table, ())), Counter(found.get(table, ()))
        if want != have or (table in expected) != (table in found):
            there = "" if table in found else ", no such table"
            there = there if table in expected else ", not expected"
            out.append(f"{table}: {(want - have).total()} missing, {(have - want).total()} more{there}")
    return out


def files(life: Life) -> Counter[str]:
    """Kind of file -> how many there are: everything but the files of tables, and of those what no version
    names."""
    found: Counter[str] = Counter()
    for path in life.kept.rglob("*"):
        name = str(path.relative_to(life.kept))
        if path.is_file() and ".lance/" not in name:
            found[kind(name)] += 1
    for table in tables(life.store):
        found.update(
            {f"unnamed {what} of {table}": n for what, n in _unnamed(life.store, table).items() if n}
        )
    return found


def _unnamed(store: Store, table: str) -> Counter[str]:
    """Files of a table that no version names, by folder."""
    named: set[str] = set()
    newest = store.dataset(table)
    versions = [v["version"] for v in newest.versions()]
    for version in versions:
        dataset = store.dataset(table, version)
        for fragment in dataset.get_fragments():
            named |= {f"data/{f.path}" for f in fragment.data_files()}
            if (deletions := fragment.deletion_file()) is not None:
                named.add(deletions)
        named |= {f"_indices/{i['uuid']}" for i in dataset.list_indices()}
    folder = Path(store.uri, f"{table}.lance")
    out: Counter[str] = Counter()
    for part in ("data", "_deletions", "_indices"):
        there = {f"{part}/{f.name}" for f in folder.glob(f"{part}/*")}
        out[part] = len(there - named)
    out["_transactions"] = max(0, len(list(folder.glob("_transactions/*"))) - len(versions))
    return out


@dataclass(slots=True)
class Calls:
    """Inputs that models got."""

    total: int = 0
    largest: int = 0  # of one call
    by_model: Counter[str] = field(default_factory=Counter)


@contextmanager
def counted() -> Iterator[Calls]:
    """Counts what reaches the models of this process while the block runs."""
    from raypipe.models.fake import HashEmbedder, OverlapReranker, Scripted

    calls = Calls()
    put_back: list[tuple[type, str, Callable[..., Any]]] = []

    def count(owner: type, method: str) -> None:
        held = getattr(owner, method)
        put_back.append((owner, method, held))

        def call(self: Any, inputs: Any, *args: Any, **named: Any) -> Any:
            calls.total += len(inputs)
            calls.largest = max(calls.largest, len(inputs))
            calls.by_model[owner.__name__] += len(inputs)
            return held(self, inputs, *args, **named)

        setattr(owner, method, call)

    count(HashEmbedder, "embed")
    count(OverlapReranker, "score")
    count(Scripted, "generate")
    try:
        yield calls
    finally:
        for owner, method, held in put_back:
            setattr(owner, method, held)
