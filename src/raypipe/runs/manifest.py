"""The manifest: what a finished run was made of, written last. Plans, `why`, releases, changes read it.

One JSON file in the run's own folder and one in the store, next to the keys of the run's answers. Knows how a
recipe is described so that two of them can be compared stage by stage; does not know how a run is made.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from raypipe.core import config
from raypipe.core.config import Where
from raypipe.core.digests import model_identity, stable
from raypipe.core.errors import DataError, RaypipeError
from raypipe.core.protocols import Model
from raypipe.core.records import digest
from raypipe.memo.memo import replies_of
from raypipe.metrics.kinds import MeasureSummary
from raypipe.metrics.textfile import write_text
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.report.report import FaultCount, RunFolder, StepLine
from raypipe.store import Store
from raypipe.store.layout import ANSWER_KEYS, MANIFESTS

FORMAT = 2

Kind = Literal["model", "prompt", "parameter"]


@dataclass(frozen=True, slots=True)
class FieldRecord:
    """One field of a step as it was."""

    kind: Kind
    form: str  # canonical: core.digests.stable


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One stage of a recipe as it was."""

    half: Literal["corpus", "question"]
    name: str
    step: str  # class; its path, where it comes from outside
    version: int
    digest: str
    chain: str  # digest of the stage and of all stages that what it reads comes from
    when: str  # canonical
    writes: tuple[str, ...]
    fields: Mapping[str, FieldRecord]
    source: str = ""  # digest of the source file of a step from outside; "": raypipe ships it


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """One model as it was."""

    name: str
    kind: str
    identity: str
    weights: str
    dtype: str
    replies: str = ""  # memo table of what it replied; "": it is no generator


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a run came from, as far as its command knows. In no digest."""

    commit: str = ""  # of the code, with -dirty where files differ; "" where there is no checkout
    packages: Mapping[str, str] = field(default_factory=dict)  # name -> version
    host: str = ""
    chip: str = ""  # of that host: its GPUs, else its CPU; "": not known
    ray_submission: str = ""  # id of the submitted Ray job; "" for none
    ray_metadata: Mapping[str, str] = field(default_factory=dict)  # that the job was submitted with


@dataclass(frozen=True, slots=True)
class Manifest:
    """One finished run."""

    format: int
    run: str
    store: str  # URI
    started: float  # seconds since the epoch
    finished: float
    previous: str  # run that had finished before on this store; "" for none
    digest: str  # of the recipe
    recipe: Mapping[str, Any]  # whole: recipes.serialize.to_plain
    stages: tuple[StageRecord, ...]
    models: tuple[ModelRecord, ...]
    questions: int
    snapshot: str  # names all that the store could search
    tables: Mapping[str, int]  # name -> version that the answers were made from
    memo: Mapping[str, int]  # table -> version before the run; what is in it was not computed by this run
    counts: Mapping[str, int]
    score: Mapping[str, Any]
    plan: Mapping[str, Any]  # as `plan --json` prints it
    steps: tuple[StepLine, ...]
    faults: tuple[FaultCount, ...]
    backend: str
    device: str
    origin: Origin
    rows_by_worker: Mapping[str, Mapping[str, int]] = field(
        default_factory=dict
    )  # pool -> who did parts -> rows
    rule: str = ""  # of scoring
    judge: str = ""  # its model or rule; "": none
    kind: str = ""  # of the data; "": written by a raypipe that had no kinds
    lead: str = ""  # the measure that the report begins with
    measures: Mapping[str, MeasureSummary] = field(default_factory=dict)  # by name
    seen: int = 0  # scored questions that a fit of the recipe has seen
    oracle: str = ""  # passages or answer: golds stood in the place of a stage; labels: in one; "": none

    def stage(self, name: str) -> StageRecord | None:
        return next((s for s in self.stages if s.name == name), None)


@dataclass(frozen=True, slots=True)
class AnswerKey:
    """The answer of one question in a run."""

    question: str  # id
    key: str  # answer_sources.answer_key
    row: str  # recipe.row_key
    reused: bool  # stored before the run began
    absent: str = ""  # names what of its evidence was not there (AnswerSources.absent); "": nothing
    verdict: str | None = None  # as metrics.crag scores it; None: the dataset has no answer
    measures: Mapping[str, float] | None = None  # as the kind of the data scores it; None: it has no gold


def describe(recipe: Recipe) -> tuple[StageRecord, ...]:
    """The stages of a recipe, corpus half first."""
    chained = chains(recipe)
    corpus = [_describe("corpus", s, chained[s.name]) for s in recipe.corpus]
    return (*corpus, *(_describe("question", s, chained[s.name]) for s in recipe.question))


def _describe(half: Literal["corpus", "question"], stage: Stage[Any], chain: str) -> StageRecord:
    step = stage.step
    return StageRecord(
        half=half,
        name=stage.name,
        step=stage.kind(),
        version=step.version,
        digest=stage.digest(),
        chain=chain,
        when=stable(dict(stage.when)),
        writes=tuple(sorted(step.writes())),
        fields={f.name: _field(f.name, getattr(step, f.name)) for f in dataclasses.fields(step)},
        source="" if stage.plugin is None else stage.plugin.source,
    )


def chains(recipe: Recipe) -> dict[str, str]:
    """Stage -> digest of it and of everything that what it reads comes from.

    Two recipes in which a stage has the same chain ask the same of its model about an equal row.
    """
    writers: dict[str, list[str]] = {}  # what is read -> chains of those that write it
    out: dict[str, str] = {}

    def add(stage: Stage[Any], reads: Iterable[str], writes: Iterable[str]) -> None:
        before = dict.fromkeys(c for r in sorted(reads) for c in writers.get(r, ()))
        out[stage.name] = digest("chain", stage.digest(), *before)
        for name in writes:
            writers.setdefault(name, []).append(out[stage.name])

    for c in recipe.corpus:
        add(c, [f"index.{r}" for r in c.step.reads()], [f"index.{w}" for w in c.step.writes()])
    for q in recipe.question:
        reads = q.step.reads() | q.gate_reads()
        if any(r.startswith("index.") and r != "index.text" for r in reads):
            reads |= {"index.start"}  # a search reads passages, which the split made
        add(q, reads, q.step.writes())
    return out


def _field(name: str, value: Any) -> FieldRecord:
    kind: Kind = "parameter"
    if isinstance(value, Model):
        kind = "model"
    elif name == "prompt":
        kind = "prompt"
    return FieldRecord(kind, stable(value))


def models_of(recipe: Recipe) -> tuple[ModelRecord, ...]:
    return tuple(
        ModelRecord(
            m.name, m.kind, model_identity(m), m.weights, m.dtype,
            replies_of(m).name if m.kind == "generator" else "",
        )
        for m in recipe.models()
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Difference:
    """What is not as it was in one stage: the first thing that differs."""

    stage: str
    kind: Literal["model", "prompt", "parameter", "version"]
    field: str  # field, "when", "version", "source" or "step"
    before: str  # "" where there was no such stage
    after: str  # "" where there is none now
    lines: tuple[str, ...] = ()  # the same for people, of a text its changed lines (`runs.field_diff`)


def differences(old: Sequence[StageRecord], new: Sequence[StageRecord]) -> dict[str, Difference]:
    """Stage -> what differs in the stage itself. Matched by name; one that is gone is listed too."""
    was = {s.name: s for s in old}
    found = [_difference(was.get(s.name), s) for s in new]
    gone = [s for s in old if s.name not in {n.name for n in new}]
    found += [Difference(s.name, "parameter", "step", s.step, "") for s in gone]
    return {d.stage: d for d in found if d is not None}


def _difference(old: StageRecord | None, new: StageRecord) -> Difference | None:
    if old is None or old.step != new.step:
        return Difference(new.name, "parameter", "step", old.step if old else "", new.step)
    if old.digest == new.digest:
        return None
    if old.version != new.version:
        return Difference(new.name, "version", "version", str(old.version), str(new.version))
    if old.source != new.source:
        return Difference(new.name, "version", "source", old.source, new.source)
    for name, now in sorted(
        new.fields.items(), key=lambda f: ("model", "prompt", "parameter").index(f[1].kind)
    ):
        form = old.fields[name].form if name in old.fields else ""
        if form != now.form:
            return Difference(new.name, now.kind, name, form, now.form)
    return Difference(new.name, "parameter", "when", old.when, new.when)


def reason(old: Manifest | None, new: StageRecord, own: Mapping[str, Difference]) -> str:
    """Why a row that an earlier run had is to be done again by a stage: model, prompt, parameter, version,
    upstream; row, where nothing that the stage depends on differs."""
    if new.name in own:
        return own[new.name].kind
    before = old.stage(new.name) if old else None
    return "upstream" if before is not None and before.chain != new.chain else "row"


def write(store: Store, manifest: Manifest, keys: Sequence[AnswerKey], folder: Path) -> None:
    """Keeps a run in the store and in its own folder, there last: a folder with a manifest is a whole one."""
    sink = pa.BufferOutputStream()
    plain = [dataclasses.asdict(k) | {"measures": k.measures and list(k.measures.items())} for k in keys]
    rows = pa.Table.from_pylist(plain, schema=_KEYS)
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows)
    store.files.write(f"{ANSWER_KEYS}/{manifest.run}.arrow", sink.getvalue().to_pybytes())
    text = json.dumps(to_json(manifest), allow_nan=False, indent=1) + "\n"
    last = store.files.names(MANIFESTS)[-1:]
    number = int(last[0].partition("-")[0]) + 1 if last else 1  # names sort in the order of runs; clocks jump
    store.files.write(f"{MANIFESTS}/{number:015d}-{manifest.run}.json", text.encode())
    write_text(RunFolder(folder).manifest, text)


_KEYS = pa.schema(
    [
        ("question", pa.string()),
        ("key", pa.string()),
        ("row", pa.string()),
        ("reused", pa.bool_()),
        ("absent", pa.string()),
        ("verdict", pa.string()),
        ("measures", pa.map_(pa.string(), pa.float64())),
    ]
)


def read(folder: Path) -> Manifest:
    """The manifest of a run's folder. Raises DataError if there is none: the run did not finish."""
    path = RunFolder(folder).manifest
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        raise DataError(
            f"{folder}: expected the --out folder of a finished eval, found no manifest.json: {e.strerror}"
        ) from e
    return _parsed(text, str(path))


def recent(store: Store, most: int) -> list[Manifest]:
    """The last finished runs of a store, the latest first."""
    found: list[Manifest] = []
    for name in reversed(store.files.names(MANIFESTS)[-most:]):
        raw = store.files.read(f"{MANIFESTS}/{name}")
        if raw is not None:  # forgotten meanwhile
            found.append(_parsed(raw.decode(), f"{store.uri}/{MANIFESTS}/{name}"))
    return found


def readable(store: Store, most: int) -> tuple[list[Manifest], int]:
    """The last finished runs of a store that can be read, the latest first, and how many cannot."""
    found, unread = [], 0
    for name in reversed(store.files.names(MANIFESTS)[-most:]):
        raw = store.files.read(f"{MANIFESTS}/{name}")
        try:
            if raw is not None:  # forgotten meanwhile
                found.append(_parsed(raw.decode(errors="replace"), f"{store.uri}/{MANIFESTS}/{name}"))
        except RaypipeError:
            unread += 1
    return found, unread


def remove(store: Store, run: str) -> None:
    """Removes the manifest of a run and the keys of its answers."""
    store.files.remove(f"{ANSWER_KEYS}/{run}.arrow")
    for name in store.files.names(MANIFESTS):
        if name.endswith(f"-{run}.json"):
            store.files.remove(f"{MANIFESTS}/{name}")


def remove_keys_without_manifest(store: Store) -> None:
    """Removes the keys of runs that were killed before they wrote their manifest, or are removed."""
    runs = {name.removesuffix(".json").partition("-")[2] for name in store.files.names(MANIFESTS)}
    for name in store.files.names(ANSWER_KEYS):
        if name.removesuffix(".arrow") not in runs:
            store.files.remove(f"{ANSWER_KEYS}/{name}")


def find(store: Store, run: str) -> Manifest | None:
    """The manifest of one run; None if the store does not know it."""
    for name in store.files.names(MANIFESTS):
        if name.endswith(f"-{run}.json"):
            raw = store.files.read(f"{MANIFESTS}/{name}")
            return _parsed(raw.decode(), name) if raw is not None else None
    return None


def answer_keys(store: Store, run: str) -> dict[str, AnswerKey]:
    """Question id -> its answer in a finished run; nothing for a run that the store does not know."""
    raw = store.files.read(f"{ANSWER_KEYS}/{run}.arrow")
    if raw is None:
        return {}
    stored = pa.ipc.open_file(raw).read_all().to_pylist(maps_as_pydicts="strict")
    return {r["question"]: AnswerKey(**r) for r in stored}


def _parsed(text: str, file: str) -> Manifest:
    try:
        tree = json.loads(text)
    except ValueError as e:
        raise DataError(f"{file}: expected a manifest, found {text[:60]!r} ({e}). Run the eval again") from e
    found = tree.get("format") if isinstance(tree, dict) else tree
    if found != FORMAT:
        raise DataError(f"{file}: manifest of format {found}, this raypipe reads {FORMAT}")
    return config.build(Manifest, tree, Where(file))


def to_json(value: Any) -> Any:
    """Dataclasses, mappings and tuples as JSON takes them."""
    if dataclasses.is_dataclass(value):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {k: to_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(v) for v in value]
    return value
