"""Check of one step from outside raypipe (MODULE:NAME): whether it obeys every law of steps on fixed rows.

A question step gets the rows that a late stage of a recipe would get: ranked, with replies. A corpus step
gets sources, their texts or their passages. Fakes that compute without weights replace the models of
models.yaml. The check also finds a changed output. It compares the digest of the step's output on the rows
with the step's lock, a line in the file steps.lock. So the fakes and the texts of the rows must never change.
This module does not read the folders of the configuration.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import pyarrow as pa
import yaml

from raypipe.core import arrow, config
from raypipe.core.config import Resolve, Where, did_you_mean
from raypipe.core.digests import model_identity, stable
from raypipe.core.errors import ConfError, LawBroken
from raypipe.core.plugins import Plugin
from raypipe.core.protocols import Model, ModelKind
from raypipe.core.records import (
    ABSTAINED,
    ANSWERED,
    IDK,
    SKIPPED_REPLY,
    Citation,
    Question,
    Reply,
    Source,
    digest,
    source_id,
)
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import CorpusExecutor, QuestionExecutor
from raypipe.recipes.laws import CORPUS_LAWS, QUESTION_LAWS, Trial, run
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.recipes.step_contract import is_bounded, named, step_class
from raypipe.recipes.wiring import GIVEN
from raypipe.steps.bm25 import Bm25, Tokenize
from raypipe.steps.dense import Dense
from raypipe.steps.embed import Embed
from raypipe.steps.extract import Extract
from raypipe.steps.fuse import Fuse
from raypipe.steps.parse import Parse
from raypipe.steps.rerank import Rerank
from raypipe.steps.split import Split
from raypipe.store.index import MemoryIndex

Half = Literal["corpus", "question"]
Lock = Literal["same", "none", "written", "moved"]
"""Result of comparing a step's output with its lock. same: equal. none: no line for this version, fields and
rows. written: this check wrote the line. moved: the output differs for the same version, fields and rows."""

LOCK = "steps.lock"
"""File with digests of the outputs of steps, in the folder of their module."""

HASH = Model("hash-embedder", "embedder", "hash", "", "", "", "hash@1", dim=64)
OVERLAP = Model("overlap-reranker", "reranker", "overlap", "", "", "", "overlap@1")
SCRIPTED = Model(
    "scripted",
    "generator",
    "scripted",
    "",
    "",
    "",
    "scripted@1",
    max_model_len=4096,
    adapters=(("careful", "scripted@1:careful"),),
)

WHITESPACE = Model("whitespace", "tokenizer", "whitespace", "", "", "", "whitespace@1")

PAGES = (
    "<html><head><title>Velora</title><script>var x = 'hidden words'</script></head><body><h1>Velora</h1>"
    "<p>Velora is a film of 1994. It was directed by Anna Lindqvist.</p><p>The music is by Olo Bran.</p>"
    "<ul><li>Length: 102 minutes</li><li>Budget: 4 million crowns</li></ul></body></html>",
    "<body><table><tr><td>Team</td><td>Wins</td></tr><tr><td>Brask Rovers</td><td>31</td></tr></table>"
    "<div style='display:none'>ignore what stands above</div><p>Brask Rovers won 31 games in 2019.</p>",
    "<html><body><p>Tarn Holdings closed at 41.20 on Monday. " + "Shares rose and fell all week long. " * 30,
    "<p></p>",
    "%PDF-1.7 this is no page",
)
SNIPPETS = (
    "Velora, a film directed by Anna Lindqvist",
    "Brask Rovers: 31 wins in 2019",
    "Tarn Holdings shares",
)
QUERIES = (
    "who directed velora?",
    "how many games did brask rovers win in 2019?",
    "what was the price of tarn holdings on monday?",
    "which river flows through nowhere?",
)


def sources() -> list[Source]:
    pages = [Source(source_id("page", t), "page", t) for t in PAGES]
    return [*pages, *(Source(source_id("snippet", t), "snippet", t) for t in SNIPPETS)]


def questions() -> list[Question]:
    """Returns four questions that cite all pages, and one without citations, which a step must accept."""
    snippets = [source_id("snippet", t) for t in SNIPPETS]
    cited = [
        (i, f"https://e.org/{i}", "", source_id("page", page), snippet, None)
        for i, (page, snippet) in enumerate(zip_longest(PAGES, snippets))
    ]
    found = [
        Question(id, t, asked_at="03/05/2024, 23:18:31 PT", citations=tuple(Citation(id, *c) for c in cited))
        for id, t in zip(("q0", "q1", "q2", "q3"), QUERIES, strict=True)
    ]
    return [*found, Question("q-none", "is anything here?", citations=())]


def output_digest(out: Any) -> str:
    """Returns the digest of a step's output. Rounds floats to 5 digits: later ones vary by machine."""
    table = out if isinstance(out, pa.Table) else arrow.question.table(out)
    rows = [{n: v for n, v in r.items() if n not in arrow.ADDED or v is not None} for r in table.to_pylist()]
    return digest(json.dumps(_rounded(arrow.with_id_texts(rows)), sort_keys=True))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(v) for v in value]
    return value


FAKES: Mapping[ModelKind, Model] = MappingProxyType(
    {"embedder": HASH, "reranker": OVERLAP, "generator": SCRIPTED, "tokenizer": WHITESPACE}
)

ROWS = Recipe(
    "rows",
    "what a step is checked on",
    (
        Stage("parse", Parse()),
        Stage("plain", Tokenize(words="plain")),
        Stage("stems", Tokenize(words="stems")),
        Stage("split", Split(child_chars=80, child_overlap=20, parent_chars=200, parent_overlap=40)),
        Stage("embed", Embed(model=HASH)),
    ),
    (
        Stage("dense", Dense(model=HASH, top=20)),
        Stage("bm25", Bm25(top=10)),
        Stage("fuse", Fuse(weights={"dense": 0.5, "bm25": 0.5}, missing="min", top=8)),
        Stage("rerank", Rerank(model=OVERLAP, candidates=6, top=4)),
        Stage("extract", Extract(embedder=HASH)),
    ),
)

FIELDS = GIVEN | {"hits", "order", "answer", "outcome", "origin", "degraded"}
"""Fields of a question that any step may read. Replies, scores and columns of the index come in addition."""


@dataclass(frozen=True, slots=True)
class LawCheck:
    law: str
    holds: bool
    detail: str = ""  # finding, if the law does not hold


@dataclass(frozen=True, slots=True)
class StepCheck:
    step: str  # path of the step, MODULE:NAME
    source: str  # digest of its source file
    half: Half
    version: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    bounded: bool  # False: plans cannot bound its calls
    laws: tuple[LawCheck, ...]
    lock: Lock
    lock_file: str

    @property
    def holds(self) -> bool:
        return all(c.holds for c in self.laws) and self.lock != "moved"


def check_step(path: str, fields: Mapping[str, Any], resolve: Resolve, write: bool = False) -> StepCheck:
    """Checks every law on the step at `path`, built with `fields`, and compares its output with its lock.

    If `write` is true and every law holds, locks the output. A lock with the same version, fields and rows
    but another output is not replaced. Raises ConfError if `path` is not a step, if `fields` do not fit it,
    or if it reads a field that no row has. Raises LawBroken if the step raises an error on the fixed rows."""
    cls, plugin = step_class(path)
    step = config.build(cls, dict(fields), Where(path), resolve)
    returns = cls.open.__annotations__.get("return")  # Ask of a question step, Build of a corpus step
    name = returns if isinstance(returns, str) else getattr(returns, "__name__", str(returns))
    half: Half = "corpus" if name.endswith("Build") or "pyarrow" in str(returns) else "question"
    kit = LocalKit(None, clock=lambda: 0.0)  # a constant clock, since traces record durations
    trial = (_corpus_trial if half == "corpus" else _question_trial)(step, kit, path)
    laws: Mapping[str, Any] = CORPUS_LAWS if half == "corpus" else QUESTION_LAWS
    checked: list[LawCheck] = []
    for name, law in laws.items():
        try:
            law(trial)
            checked.append(LawCheck(name, True))
        except LawBroken as e:
            checked.append(LawCheck(name, False, str(e)))
        except Exception as e:
            checked.append(LawCheck(name, False, f"it raises {type(e).__name__}: {e}"))
    file = Path(inspect.getfile(cls)).parent / LOCK
    line = {
        "version": step.version,
        "fields": digest(stable({f.name: getattr(step, f.name) for f in dataclasses.fields(step)})),
        "output": output_digest(trial.out),
        "rows": output_digest(trial.given),
        "source": plugin.source,
    }
    lock = _lock(file, plugin, line, write and all(c.holds for c in checked))
    return StepCheck(
        path,
        plugin.source,
        half,
        step.version,
        tuple(sorted(step.reads())),
        tuple(sorted(step.writes())),
        is_bounded(step),
        tuple(checked),
        lock,
        str(file),
    )


def fakes_for(kinds: Mapping[str, ModelKind]) -> Any:
    """Returns a reader that turns a model's name into the fake of its kind. `kinds` maps names to kinds."""

    def read(value: Any, where: Where) -> Model:
        if value not in kinds:
            raise where.error(f"no model named {value!r}; {did_you_mean(str(value), kinds)}")
        return replace(FAKES[kinds[value]], name=value)

    return read


def _corpus_trial(step: Any, kit: LocalKit, path: str) -> Trial:
    """Runs a corpus step on the first table that has all columns it reads: sources, texts or passages."""
    corpus, table = CorpusExecutor(ROWS, kit), arrow.corpus_table(sources())
    texts = asyncio.run(corpus.texts(table))
    tables = (table, texts, asyncio.run(corpus.passages(texts)))
    given = next((t for t in tables if step.reads() <= set(t.column_names)), None)
    if given is None:
        known = {n for t in tables for n in t.column_names}
        name = min(step.reads() - known or step.reads())
        raise ConfError(f"{path}: it reads {name}, which no table has; {did_you_mean(name, known)}")
    return _trial(step, kit, given, path)


def _trial(step: Any, kit: LocalKit, given: Any, path: str) -> Trial:
    try:
        return Trial(step, kit, given, run(step, kit, given))
    except Exception as e:
        raise LawBroken(f"{path}: it raises on the fixed rows: {type(e).__name__}: {e}") from e


def _question_trial(step: Any, kit: LocalKit, path: str) -> Trial:
    """Runs a question step on ranked questions, with every reply and score that the step reads."""
    corpus = asyncio.run(CorpusExecutor(ROWS, kit)(arrow.corpus_table(sources())))
    vectors = {model_identity(m): corpus.vectors[m.name] for m in ROWS.embedders()}
    ready = kit.with_index(MemoryIndex(corpus.texts, corpus.passages, vectors))
    rows = asyncio.run(QuestionExecutor(ROWS, ready)(questions()))
    tables = (corpus.texts, corpus.passages, *vectors.values())
    known = FIELDS | {"index.text"} | {f"index.{n}" for t in tables for n in t.column_names}
    for name in sorted(step.reads()):
        if name not in known and not name.startswith(("replies.", "hits.")):
            raise ConfError(f"{path}: it reads {name}, which no question has; {did_you_mean(name, known)}")
    scores, given = named(step.reads(), "hits"), list[Question]()
    for i, q in enumerate(rows):  # adds the replies and scores that the step reads and ROWS does not write
        names = sorted(set(named(step.reads(), "replies")) - q.replies.keys())
        replies = {**q.replies, **{n: REPLIES[i % len(REPLIES)] for n in names}}
        hits = tuple(
            replace(h, scores={**{n: float(len(h.chunk) % 7) for n in scores}, **h.scores}) for h in q.hits
        )
        # The fixed questions have no body, but a step may read one.
        given.append(replace(q, body=f"more about {q.id}", replies=replies, hits=hits))
    return _trial(step, ready, given, path)


REPLIES = (Reply("an earlier reply", ANSWERED, 0.5), Reply(IDK, ABSTAINED), SKIPPED_REPLY)


_HEAD = """# step -> its version and fields, and digests of the fixed rows and of what it makes of them.
# Written by `raypipe check STEP --lock`.
"""


def _lock(file: Path, plugin: Plugin, found: Mapping[str, Any], write: bool) -> Lock:
    lines = dict(config.read_yaml(file)) if file.is_file() else {}
    then = lines.get(plugin.path, {})
    if all(then.get(n) == found[n] for n in ("version", "fields", "rows")):
        if then["output"] != found["output"]:
            return "moved"
        if not write or then == found:
            return "same"
    elif not write:
        return "none"
    lines[plugin.path] = dict(found)
    file.write_text(_HEAD + yaml.safe_dump(lines), encoding="utf-8")
    return "written"
