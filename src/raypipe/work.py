"""One part of work: reads some rows of a store, runs one half of a recipe over them, stores what came out.

Four kinds, one for each table that a recipe fills: texts, passages, vectors, answers. Each is a frozen record
of plain values that any process can be handed; `open` makes it ready once, then it does part after part.
Knows the store and how a recipe is run; knows nothing of Ray, nor of which parts there are.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from raypipe import arrow
from raypipe.index import IndexSpec, LanceIndex
from raypipe.kit import LocalKit
from raypipe.memo.disk import StoreMemo
from raypipe.models.load import Address, Engine, Room
from raypipe.recipe import Recipe, row_key
from raypipe.records import Fault, Question, digest
from raypipe.run import Corpora, Questions, StageCount, fine
from raypipe.step import Index, Model
from raypipe.store import ANSWERS, FAULTS, Store, with_chunkless, write_part

SPANS = ["source", "start", "end", "parent_start", "parent_end"]


Verb: TypeAlias = Literal["parse", "embed", "answer"]
"""What a pool of workers does; the names of the pools in a cluster file."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of the work to do."""

    name: str
    ids: tuple[str, ...]  # of sources, or of questions


@dataclass(frozen=True, slots=True)
class PartDone:
    """What doing a part came to."""

    name: str
    ids: int  # rows that the part was asked to do
    rows: int  # rows stored in the table
    faults: int  # ids that could not be done
    counts: Mapping[str, StageCount] = field(default_factory=dict)  # by stage

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> PartDone:
        tree = json.loads(text)
        return cls(**{**tree, "counts": counts_of(tree)})


def counts_of(facts: Mapping[str, Any]) -> dict[str, StageCount]:
    """By stage, what was counted while a part was done: from the facts of its completion record."""
    return {name: StageCount.of(tree) for name, tree in facts["counts"].items()}


Do: TypeAlias = Callable[[Part], Awaitable[PartDone]]


class Fill(Protocol):
    """One kind of work, as plain values: a frozen dataclass."""

    @property
    def place(self) -> Place: ...

    def open(self) -> Do: ...


def with_threads(fill: Fill, threads: int) -> Fill:
    """The same work where a model on a CPU has so many threads."""
    placed: Fill = replace(cast(Any, fill), place=replace(fill.place, threads=threads))
    return placed


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process works: whatever decides speed and no result."""

    store: str  # URI
    engine: Engine
    device: str
    threads: int  # of a model on a CPU
    # Model identity -> names in Ray; None: this process starts an engine of its own.
    engines: Mapping[str, tuple[str, ...]] | None = field(default_factory=dict)
    endpoints: Mapping[str, Address] = field(default_factory=dict)  # by the names that models.yaml uses
    room: Room = field(default_factory=Room)  # of an engine that this process starts

    def kit(self, index: Index | None) -> LocalKit:
        return LocalKit(
            index, self.engine, self.device, self.threads,
            engines=self.engines, endpoints=self.endpoints, room=self.room,
        )  # fmt: skip


def _write(
    store: Store,
    table: str,
    run: str,
    part: Part,
    rows: pa.Table,
    faults: pa.Table,
    corpora: Corpora | Questions,
) -> PartDone:
    """Stores the rows and faults of a part, and says what it came to. `faults` has the columns of FAULTS."""
    counts = {name: count.take() for name, count in corpora.counts.items()}
    write_part(store, "faults", run, part.name, faults, {})
    facts = {"counts": {name: asdict(count) for name, count in counts.items()}}
    write_part(store, table, run, part.name, rows, facts)
    return PartDone(part.name, len(part.ids), rows.num_rows, faults.num_rows, counts)


def _fault_rows(table: pa.Table, ids: str, digest_of: str, run: str) -> pa.Table:
    """The faulty rows of a corpus table as rows of `faults`, one per source."""
    found = [(r[ids], r["fault"]) for r in table.select([ids, "fault"]).to_pylist() if r["fault"]]
    return faults_table([(id, f, digest_of) for id, f in dict(found[::-1]).items()], run)


def faults_table(rows: list[tuple[str, dict[str, Any], str]], run: str) -> pa.Table:
    """(id, fault, digest of the work) -> rows of the table `faults`."""
    out = [{"id": id, **fault, "digest": of, "run": run} for id, fault, of in rows]
    return pa.Table.from_pylist(out, schema=FAULTS)


@dataclass(frozen=True, slots=True)
class FillTexts:
    """Sources through the stages before the split."""

    place: Place
    recipe: Recipe
    table: str
    run: str

    def open(self) -> Do:
        store = Store.open(self.place.store)
        corpora = Corpora(self.recipe, self.place.kit(None))

        async def do(part: Part) -> PartDone:
            rows = store.rows("sources", "id", part.ids)
            texts = await corpora.texts(
                arrow.corpus_table(arrow.source.records(_in_order(rows, "id", part.ids)))
            )
            faults = _fault_rows(texts, "source", self.table, self.run)
            return _write(store, self.table, self.run, part, fine(texts).drop(["fault"]), faults, corpora)

        return do


@dataclass(frozen=True, slots=True)
class FillPassages:
    """Texts through the split."""

    place: Place
    recipe: Recipe
    table: str
    run: str
    texts: str  # table they are read from

    def open(self) -> Do:
        store = Store.open(self.place.store)
        corpora = Corpora(self.recipe, self.place.kit(None))

        async def do(part: Part) -> PartDone:
            texts = _in_order(store.rows(self.texts, "source", part.ids), "source", part.ids)
            chunks = await corpora.passages(
                texts.append_column("fault", arrow.fault_column([None] * texts.num_rows))
            )
            faults = _fault_rows(chunks, "source", self.table, self.run)
            rows = with_chunkless(fine(chunks).select(SPANS), _without(part.ids, faults))
            return _write(store, self.table, self.run, part, rows, faults, corpora)

        return do


@dataclass(frozen=True, slots=True)
class FillVectors:
    """Chunks through one embedder. Texts that were ever embedded by it are not embedded again."""

    place: Place
    recipe: Recipe
    table: str
    run: str
    texts: str  # table
    passages: str  # table
    model: Model
    memo: Mapping[str, int]  # memo table -> pinned version

    def open(self) -> Do:
        store = Store.open(self.place.store)
        memo = StoreMemo(self.place.store, self.memo)
        corpora = Corpora(self.recipe, self.place.kit(None), memo)

        async def do(part: Part) -> PartDone:
            chunks = chunks_of(store, self.texts, self.passages, part.ids)
            vectors = await corpora.vectors(chunks, self.model)
            faults = _fault_rows(vectors, "source", self.table, self.run)
            rows = fine(vectors).select([*SPANS, "vector"])
            return _write(store, self.table, self.run, part, rows, faults, corpora)

        return do


def chunks_of(store: Store, texts: str, passages: str, ids: tuple[str, ...]) -> pa.Table:
    """The chunks of some sources with their text, as the split put them out."""
    text_of = dict(
        zip(*store.rows(texts, "source", ids, ["source", "text"]).to_pydict().values(), strict=True)
    )
    spans = store.rows(passages, "source", ids, SPANS)
    spans = spans.filter(pc.greater(spans["end"], spans["start"])).sort_by([(c, "ascending") for c in SPANS])
    rows = zip(*(spans[c].to_pylist() for c in SPANS[:3]), strict=True)
    chunk_text = pa.array([text_of[s][a:b] for s, a, b in rows], pa.large_string())
    spans = spans.append_column("chunk_text", chunk_text)
    return spans.append_column("fault", arrow.fault_column([None] * spans.num_rows))


@dataclass(frozen=True, slots=True)
class FillAnswers:
    """Questions through the question half."""

    place: Place
    recipe: Recipe
    run: str
    snapshot: str  # names the corpus, for questions that bring no sources
    index: IndexSpec
    memo: Mapping[str, int]  # memo table -> pinned version

    def open(self) -> Do:
        store = Store.open(self.place.store)
        memo = StoreMemo(self.place.store, self.memo)
        ask = Questions(self.recipe, self.place.kit(LanceIndex(self.index)), memo)
        recipe = self.recipe.digest()

        async def do(part: Part) -> PartDone:
            rows = _in_order(store.rows("questions", "id", part.ids), "id", part.ids)
            asked = arrow.question.records(rows)
            keys = [answer_key(recipe, q, self.snapshot) for q in asked]
            answered = await ask(asked)
            # A transient fault, or a stage left out, is not stored as an answer: its row stays to do.
            whole = [_whole(q) for q in answered]
            rows_of = [row_key(q, self.snapshot) for q in asked]  # steps may narrow the citations
            kept = [(k, r, q) for k, r, q, w in zip(keys, rows_of, answered, whole, strict=True) if w]
            lost = [(k, q) for k, q, w in zip(keys, answered, whole, strict=True) if not w]
            faults = faults_table([(q.id, asdict(f), k) for k, q in lost for f in _why(q)[:1]], self.run)
            table = answers_table(kept, recipe)
            return _write(store, "answers", self.run, part, table, faults, ask)

        return do


def _whole(question: Question) -> bool:
    """Its answer may be stored."""
    broken = question.outcome == "fault" or any(f.transient for f in question.faults)
    return not broken and not question.degraded


def _why(question: Question) -> tuple[Fault, ...]:
    """The faults of a question that is not whole; those of a stage that was left out are its reply's."""
    known = [r.fault for r in question.replies.values() if r.fault is not None and r.fault.transient]
    left = [Fault(s, "left_out", "a part was not to be had", True) for s in question.degraded]
    return question.faults or tuple(known) or tuple(left)


def answer_key(recipe: str, question: Question, snapshot: str) -> str:
    """Key of an answer: recipe digest, question id, and what it is answered from."""
    return digest(recipe, question.id, row_key(question, snapshot))


def answers_table(rows: list[tuple[str, str, Question]], recipe: str) -> pa.Table:
    """(key, row key, answered question) -> rows of the table `answers`."""
    table = arrow.question.table(q for _, _, q in rows)
    columns = {
        "key": pa.array([k for k, _, _ in rows], pa.string()),
        "recipe": pa.array([recipe] * len(rows), pa.string()),
        "row": pa.array([r for _, r, _ in rows], pa.string()),
        **{name: table[name] for name in table.schema.names},
    }
    return pa.table(columns, schema=ANSWERS)


def _in_order(rows: pa.Table, column: str, ids: tuple[str, ...]) -> pa.Table:
    """The rows in the order of the ids; ids without a row have none."""
    place = {id: i for i, id in enumerate(rows[column].to_pylist())}
    return rows.take(pa.array([place[id] for id in ids if id in place], pa.int64()))


def _without(ids: tuple[str, ...], faults: pa.Table) -> pa.Array:
    lost = set(faults["id"].to_pylist())
    return pa.array([id for id in ids if id not in lost], pa.string())
