"""The manifest: what a finished run was made of, written last. Plans, `why`, releases, changes read it.

One JSON file in the run's own folder and one in the store, next to the keys of the run's answers. How it
describes a recipe is in `stage_records`; how a run is made it does not know.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from raypipe.core import arrow, config
from raypipe.core.config import Where
from raypipe.core.errors import DataError, RaypipeError
from raypipe.core.plain import to_json
from raypipe.metrics.kinds import MeasureSummary
from raypipe.metrics.textfile import write_text
from raypipe.recipes.recipe import titled
from raypipe.runs.report import EVAL_AGAIN, FaultCount, RunFolder, StepLine
from raypipe.runs.stage_records import Difference, ModelRecord, StageRecord
from raypipe.store import Store
from raypipe.store.layout import ANSWER_KEYS, MANIFESTS

FORMAT = 2


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
    previous: str  # run before it on this store (`changes.earlier_run`); "" for none
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
    rows_by_worker: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # pool -> worker -> rows
    rule: str = ""  # of scoring
    judge: str = ""  # its model or rule; "": none
    kind: str = "crag"  # of the data
    lead: str = ""  # the measure that the report begins with
    measures: Mapping[str, MeasureSummary] = field(default_factory=dict)  # by name
    seen: int = 0  # scored questions that a fit or adapter of the recipe has seen
    batch_invariant: bool = False  # whether engines gave the same reply whatever stood in its batch
    oracle: str = ""  # passages or answer: golds stood in the place of a stage; labels: in one; "": none

    @property
    def title(self) -> str:
        """The recipe's name, with what --set gave."""
        return titled(self.recipe["name"], self.recipe.get("sets", ()))

    def stage(self, name: str) -> StageRecord | None:
        return next((s for s in self.stages if s.name == name), None)


@dataclass(frozen=True, slots=True)
class AnswerKey:
    """The answer of one question in a run."""

    question: str  # id
    key: str  # recipe_tables.answer_key
    row: str  # recipe.row_key
    reused: bool  # stored before the run began
    absent: str = ""  # names what of its evidence was not there (AnswerSources.absent); "": nothing
    verdict: str | None = None  # as metrics.crag scores it; None: the dataset has no answer
    measures: Mapping[str, float] | None = None  # as the kind of the data scores it; None: it has no gold


def reason(old: Manifest | None, new: StageRecord, own: Mapping[str, Difference]) -> str:
    """Why a row that an earlier run had is to be done again by a stage: model, prompt, parameter, version,
    upstream; row, where nothing that the stage depends on differs."""
    if new.name in own:
        return own[new.name].kind
    before = old.stage(new.name) if old else None
    return "upstream" if before is not None and before.chain != new.chain else "row"


def write(store: Store, manifest: Manifest, keys: Sequence[AnswerKey], folder: Path) -> None:
    """Keeps a run in the store and in its own folder, there last: a folder with a manifest is a whole one
    (`withdraw`)."""
    plain = [dataclasses.asdict(k) | {"measures": k.measures and list(k.measures.items())} for k in keys]
    rows = pa.Table.from_pylist(plain, schema=_KEYS)
    store.files.write(f"{ANSWER_KEYS}/{manifest.run}.arrow", arrow.file_of(rows))
    text = json.dumps(to_json(manifest), allow_nan=False, indent=1) + "\n"
    last = store.files.names(MANIFESTS)[-1:]
    number = int(last[0].partition("-")[0]) + 1 if last else 1  # names sort in the order of runs; clocks jump
    store.files.write(f"{MANIFESTS}/{number:015d}-{manifest.run}.json", text.encode())
    write_text(RunFolder(folder).manifest, text)


def withdraw(folder: Path) -> None:
    """Removes the manifest of a run's folder, before another run replaces its files."""
    run = RunFolder(folder)
    run.manifest.unlink(missing_ok=True)
    run.changes.unlink(missing_ok=True)  # of this manifest against an earlier one


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
        found = (
            f"no manifest.json, which is written last. {EVAL_AGAIN}" if folder.is_dir() else "no such folder"
        )
        raise DataError(f"{folder}: expected the --out folder of a finished eval, found {found}") from e
    return _parsed(text, str(path))


def recent(store: Store, most: int) -> list[Manifest]:
    """The last finished runs of a store, the latest first."""
    names = store.files.names(MANIFESTS)[-most:]
    return [run for name in reversed(names) if (run := _stored(store, name)) is not None]


def readable(store: Store, most: int) -> tuple[list[Manifest], int]:
    """The last finished runs of a store that can be read, the latest first, and how many cannot."""
    found, unread = [], 0
    for name in reversed(store.files.names(MANIFESTS)[-most:]):
        try:
            found += [run] if (run := _stored(store, name)) is not None else []
        except RaypipeError:
            unread += 1
    return found, unread


def _stored(store: Store, name: str) -> Manifest | None:
    """A manifest of the store; None: it was forgotten meanwhile."""
    raw = store.files.read(f"{MANIFESTS}/{name}")
    return None if raw is None else _parsed(raw.decode(errors="replace"), f"{store.uri}/{MANIFESTS}/{name}")


def remove(store: Store, run: str) -> None:
    """Removes the manifest of a run, which was written last, and then the keys of its answers."""
    for name in store.files.names(MANIFESTS):
        if name.endswith(f"-{run}.json"):
            store.files.remove(f"{MANIFESTS}/{name}")
    store.files.remove(f"{ANSWER_KEYS}/{run}.arrow")


def remove_keys_without_manifest(store: Store) -> None:
    """Removes the keys of runs that were killed before they wrote their manifest, or are removed."""
    runs = {name.removesuffix(".json").partition("-")[2] for name in store.files.names(MANIFESTS)}
    for name in store.files.names(ANSWER_KEYS):
        if name.removesuffix(".arrow") not in runs:
            store.files.remove(f"{ANSWER_KEYS}/{name}")


def find(store: Store, run: str) -> Manifest | None:
    """The manifest of one run; None if the store does not know it."""
    name = next((n for n in store.files.names(MANIFESTS) if n.endswith(f"-{run}.json")), None)
    return None if name is None else _stored(store, name)


def answer_keys(store: Store, run: str) -> dict[str, AnswerKey]:
    """Question id -> its answer in a finished run; nothing for a run that the store does not know."""
    raw = store.files.read(f"{ANSWER_KEYS}/{run}.arrow")
    if raw is None:
        return {}
    stored = arrow.rows_of(raw).to_pylist(maps_as_pydicts="strict")
    return {r["question"]: AnswerKey(**r) for r in stored}


def _parsed(text: str, file: str) -> Manifest:
    try:
        tree = json.loads(text)
    except ValueError as e:
        raise DataError(f"{file}: expected a manifest, found {text[:60]!r} ({e}). {EVAL_AGAIN}") from e
    found = tree.get("format") if isinstance(tree, dict) else tree
    if found != FORMAT:
        raise DataError(f"{file}: manifest of format {found}, this raypipe reads {FORMAT}")
    return config.build(Manifest, tree, Where(file))
