"""The record of a finished run, written once and last: reports, pages, plans, releases, comparisons read it.

One JSON file in the run's own folder and one in the store, next to the keys of the run's answers. How it
describes a recipe is in `stage_records`; how a run is made it does not know.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, ValidationError

from raypipe.core import arrow
from raypipe.core.errors import DataError, RaypipeError
from raypipe.core.index import AnnRecall
from raypipe.core.textfile import write_text, writing
from raypipe.metrics.calibration import CalibrationReport
from raypipe.metrics.crag import CragScore, RuleScore
from raypipe.metrics.kinds import MeasureSlice, MeasureSummary
from raypipe.metrics.losses import Losses, PromptInjection, Routing
from raypipe.recipes.recipe import titled
from raypipe.runs import run_parts
from raypipe.runs.stage_records import Difference, ModelRecord, StageRecord
from raypipe.store import Store
from raypipe.store.files import ANSWER_KEYS, RECORDS


@dataclass(frozen=True, slots=True)
class Origin:
    """The code, machine and Ray job that made a run, as far as they are known. In no digest."""

    commit: str = ""  # of the code, with -dirty where files differ; "" where there is no checkout
    packages: Mapping[str, str] = field(default_factory=dict)  # name -> version
    host: str = ""
    chip: str = ""  # of that host: its GPUs, else its CPU; "": not known
    ray_submission: str = ""  # id of the submitted Ray job; "" for none
    ray_metadata: Mapping[str, str] = field(default_factory=dict)  # that the job was submitted with


class Run(BaseModel):
    """A finished run: its inputs, its work, its scores. It is run.json, and what `eval --json` prints."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1  # JSON_FORMAT
    run: str  # its id
    store: str  # URI
    previous: str = ""  # run before it on this store (`changes.earlier_run`); "" for none
    started: float  # seconds since the epoch
    finished: float
    seconds: float = 0.0  # wall time from the start of the command until this record
    clock: Mapping[str, float] = {}  # of that, seconds of each part (`counters.PARTS`); they add up

    # The recipe, and where it ran.
    digest: str  # of the recipe
    recipe: Mapping[str, Any]  # whole: recipes.serialize.to_plain
    stages: tuple[StageRecord, ...]
    models: tuple[ModelRecord, ...]
    backend: str
    device: str
    batch_invariant: bool = False  # engines gave the same reply whatever stood in its batch
    origin: Origin
    rows_by_worker: Mapping[str, Mapping[str, int]] = {}  # pool -> worker -> rows

    # The questions, and all that could be searched.
    questions: int
    without_truth: int = 0  # questions that cannot be scored: the dataset has no answer
    snapshot: str  # names all that the store could search
    tables: Mapping[str, int]  # name -> version that the answers were made from
    memo: Mapping[str, int]  # table -> version before the run; what is in it was not computed by this run
    citations: int = 0
    distinct_pages: int = 0  # not empty, equal pages once
    empty_pages: int = 0  # citations without a page
    chunks: int = 0
    pages_compared: int = 0  # parsed a second time by the reference parser
    parser_fallbacks: int = 0  # pages that the fast parser left to the reference parser
    normalized: Mapping[str, int] = {}  # what was put right on the way in -> how often
    replaced: tuple[run_parts.ReplacedRows, ...] = ()  # by the files of this run when they were read
    oracle: Literal["passages", "answer", "labels", ""] = ""
    """Golds stood in the place of a stage, passages or answer; labels: in one; "": none."""
    kept: Mapping[str, int] = {}  # earlier run -> its answers, which --only-new kept in place of the recipe's
    oracle_golds: int = 0  # questions of which they did; the others ran as without

    # The work.
    steps: tuple[run_parts.StepLine, ...]  # corpus steps, then question steps, in recipe order
    faults: tuple[run_parts.FaultCount, ...]
    cost: run_parts.CostReport | None = None  # None: not counted
    resumed: int = 0  # parts that attempts before this one did, which were stopped; the steps count them
    memo_damaged: int = 0  # tables and files of the memo; what they held and a run needs is computed again
    cut_replies: tuple[run_parts.CutReplies, ...] = ()  # of the steps of which some were cut
    answer_cut: run_parts.AnswerCut | None = None  # None: answers are as long as they are
    flips: run_parts.FlipRate | None = None  # None: no engine, or its replies are the same in every batch
    ann: tuple[AnnRecall, ...] = ()  # of the approximate indexes that were searched

    # The scores.
    kind: str  # of the data; of one from outside its path and source
    answers: Mapping[str, int] = {}
    """right, wrong, i don't know, not scored -> questions with a gold; none of a ranking."""
    lead: str = ""  # the measure that a report begins with
    measures: tuple[MeasureSummary, ...] = ()  # in the order of the kind
    measure_slices: tuple[MeasureSlice, ...] = ()  # of the leading measure
    blocks: tuple[str, ...] = ()  # parts of the report that the kind shows: measures, verdicts
    by_rule: RuleScore | None = None  # None: no rule scores this kind
    judge: run_parts.JudgeLine | None = None  # None: there was no judge
    labels: run_parts.LabelLine | None = None  # None: no labels were given
    answered_by: Mapping[str, int] = {}  # name of a reply -> its answers, most first
    losses: Losses | None = None  # where the misses were lost; None: not looked for
    fits: tuple[run_parts.FitLine, ...] = ()  # fitted numbers and adapters of the recipe
    unseen: MeasureSummary | None = None  # the leading measure without what a fit has seen; None: it saw none
    routing: Routing | None = None  # routers and calls against golds; None: not looked at
    calibration: CalibrationReport | None = None  # of stated confidence; None: too few, or none
    prompt_injection: PromptInjection | None = None  # None: the recipe has no language model

    @property
    def title(self) -> str:
        """The recipe's name, with what --set gave."""
        return titled(self.recipe["name"], self.recipe.get("sets", ()))

    @property
    def rule(self) -> str:
        """The rule of scoring; "": none."""
        return self.by_rule.rule if self.by_rule else ""

    @property
    def score(self) -> CragScore | None:
        """The score by that rule; None: no rule scores this kind."""
        return self.by_rule.score if self.by_rule else None

    @property
    def judged_by(self) -> str:
        """The judge's model, or its path; "": none."""
        return self.judge.model if self.judge else ""

    @property
    def seen(self) -> int:
        """Scored questions that a fit or adapter of the recipe has seen."""
        return self.fits[0].of - self.unseen.of if self.unseen else 0

    @property
    def failed_rows(self) -> int:
        """Rows with faults that no other step made good."""
        return sum(f.rows for f in self.faults if not f.recovered)

    def stage(self, name: str) -> StageRecord | None:
        return next((s for s in self.stages if s.name == name), None)

    def measure(self, name: str) -> MeasureSummary | None:
        """The summary of one measure; None: the kind has no such."""
        return next((m for m in self.measures if m.measure == name), None)

    def text(self) -> str:
        """The file. Raises ValueError for a number that JSON has not."""
        return json.dumps(self.model_dump(mode="json"), allow_nan=False, indent=1) + "\n"


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
    kept: str = ""  # the earlier run that it is of, kept on purpose; "": it is of this run's recipe


def reason(old: Run | None, new: StageRecord, own: Mapping[str, Difference]) -> str:
    """Why a row that an earlier run had is to be done again by a stage: model, prompt, parameter, version,
    upstream; row, where nothing that the stage depends on differs."""
    if new.name in own:
        return own[new.name].kind
    before = old.stage(new.name) if old else None
    return "upstream" if before is not None and before.chain != new.chain else "row"


def write(store: Store, record: Run, keys: Sequence[AnswerKey], folder: Path) -> None:
    """Keeps a run in the store and in its own folder, there last: a folder with a record is a whole one
    (`withdraw`)."""
    plain = [dataclasses.asdict(k) | {"measures": k.measures and list(k.measures.items())} for k in keys]
    rows = pa.Table.from_pylist(plain, schema=_KEYS)
    store.files.write(f"{ANSWER_KEYS}/{record.run}.arrow", arrow.file_of(rows))
    text = record.text()
    last = store.files.names(RECORDS)[-1:]
    number = int(last[0].partition("-")[0]) + 1 if last else 1  # names sort in the order of runs; clocks jump
    store.files.write(f"{RECORDS}/{number:015d}-{record.run}.json", text.encode())
    write_text(run_parts.RunFolder(folder).record, text)


def withdraw(folder: Path) -> None:
    """Removes the record of a run's folder, before another run replaces its files."""
    run = run_parts.RunFolder(folder)
    for file in (run.record, run.changes):  # the changes are of this record against an earlier one
        with writing(file):
            file.unlink(missing_ok=True)


_KEYS = pa.schema(
    [
        ("question", pa.string()),
        ("key", pa.string()),
        ("row", pa.string()),
        ("reused", pa.bool_()),
        ("absent", pa.string()),
        ("verdict", pa.string()),
        ("measures", pa.map_(pa.string(), pa.float64())),
        ("kept", pa.string()),
    ]
)


def read(folder: Path) -> Run:
    """The record of a run's folder. Raises DataError if there is none: the run did not finish."""
    path = run_parts.RunFolder(folder).record
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        found = (
            f"no run.json, which is written last. {run_parts.EVAL_AGAIN}"
            if folder.is_dir()
            else "no such folder"
        )
        raise DataError(f"{folder}: expected the --out folder of a finished eval, found {found}") from e
    return _parsed(text, str(path))


def recent(store: Store, most: int) -> list[Run]:
    """The last finished runs of a store, the latest first."""
    names = store.files.names(RECORDS)[-most:]
    return [run for name in reversed(names) if (run := _stored(store, name)) is not None]


def readable(store: Store, most: int) -> tuple[list[Run], int]:
    """The last finished runs of a store that can be read, the latest first, and how many cannot."""
    found, unread = [], 0
    for name in reversed(store.files.names(RECORDS)[-most:]):
        try:
            found += [run] if (run := _stored(store, name)) is not None else []
        except RaypipeError:
            unread += 1
    return found, unread


def _stored(store: Store, name: str) -> Run | None:
    """A record of the store; None: it was forgotten meanwhile."""
    raw = store.files.read(f"{RECORDS}/{name}")
    return None if raw is None else _parsed(raw.decode(errors="replace"), f"{store.uri}/{RECORDS}/{name}")


def remove(store: Store, run: str) -> None:
    """Removes the record of a run, which was written last, and then the keys of its answers."""
    for name in store.files.names(RECORDS):
        if name.endswith(f"-{run}.json"):
            store.files.remove(f"{RECORDS}/{name}")
    store.files.remove(f"{ANSWER_KEYS}/{run}.arrow")


def remove_keys_without_record(store: Store) -> None:
    """Removes the keys of runs that were killed before they wrote their record, or are removed."""
    runs = {name.removesuffix(".json").partition("-")[2] for name in store.files.names(RECORDS)}
    for name in store.files.names(ANSWER_KEYS):
        if name.removesuffix(".arrow") not in runs:
            store.files.remove(f"{ANSWER_KEYS}/{name}")


def find(store: Store, run: str) -> Run | None:
    """The record of one run; None if the store does not know it."""
    name = next((n for n in store.files.names(RECORDS) if n.endswith(f"-{run}.json")), None)
    return None if name is None else _stored(store, name)


def answer_keys(store: Store, run: str) -> dict[str, AnswerKey]:
    """Question id -> its answer in a finished run; nothing for a run that the store does not know."""
    raw = store.files.read(f"{ANSWER_KEYS}/{run}.arrow")
    if raw is None:
        return {}
    stored = arrow.rows_of(raw).to_pylist(maps_as_pydicts="strict")
    return {r["question"]: AnswerKey(**r) for r in stored}


def _parsed(text: str, file: str) -> Run:
    try:
        tree = json.loads(text)
    except ValueError as e:
        raise DataError(
            f"{file}: expected the record of a run, found {text[:60]!r} ({e}). {run_parts.EVAL_AGAIN}"
        ) from e
    found = tree.get("format") if isinstance(tree, dict) else tree
    if found != run_parts.JSON_FORMAT:
        raise DataError(f"{file}: record of format {found}, this raypipe reads {run_parts.JSON_FORMAT}")
    try:
        return Run.model_validate(tree)
    except ValidationError as e:
        first = e.errors()[0]
        place = ".".join(map(str, first["loc"]))
        expected = first["msg"].replace("Input should be", "expected")
        raise DataError(
            f"{file}: {place}: {expected}, found {first['input']!r:.80}. {run_parts.EVAL_AGAIN}"
        ) from e
