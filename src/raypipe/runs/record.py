"""Record of a finished run, written once, after the run's other files.

The record is a JSON file in the run's folder, with a copy in the store. The store also holds the keys of the
run's answers. `stage_records` describes the stages and models in the record, `run_parts` their work and cost.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence, Set
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
from raypipe.metrics.kinds import MeasureSlice, MeasureSummary
from raypipe.metrics.losses import Losses, PromptInjection, Routing
from raypipe.metrics.verdict_rules import CragScore, RuleScore
from raypipe.recipes.recipe import titled
from raypipe.runs import run_parts
from raypipe.runs.stage_records import Difference, ModelRecord, StageRecord
from raypipe.store import Store
from raypipe.store.files import ANSWER_KEYS, RECORDS


@dataclass(frozen=True, slots=True)
class Origin:
    """Code, machine and Ray job of a run, as far as they are known. Part of no digest."""

    commit: str = ""  # commit of the code, with -dirty if files differ; "": no checkout
    packages: Mapping[str, str] = field(default_factory=dict)  # name -> version
    host: str = ""
    chip: str = ""  # the host's GPUs, or its CPU if it has no GPU; "": not known
    ray_submission: str = ""  # id of the submitted Ray job; "": none
    ray_metadata: Mapping[str, str] = field(default_factory=dict)  # metadata of the submitted Ray job


class Run(BaseModel):
    """A finished run: its inputs, its work, its scores. Content of run.json, and output of `eval --json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1  # JSON_FORMAT
    run: str  # id of the run
    store: str  # URI
    previous: str = ""  # earlier run on this store to compare with (`changes.earlier_run`); "": none
    started: float  # seconds since the epoch
    finished: float
    seconds: float = 0.0  # wall time from the start of the command until this record
    clock: Mapping[str, float] = {}  # part of the command (`counters.PARTS`) -> its share of `seconds`

    # The recipe, and where it ran.
    digest: str  # digest of the recipe
    recipe: Mapping[str, Any]  # the whole recipe, by recipes.serialize.to_plain
    stages: tuple[StageRecord, ...]
    models: tuple[ModelRecord, ...]
    backend: str
    device: str
    batch_invariant: bool = False  # engines' replies did not depend on the batch
    origin: Origin
    rows_by_worker: Mapping[str, Mapping[str, int]] = {}  # pool -> worker -> rows

    # The questions, and all that could be searched.
    questions: int
    without_truth: int = 0  # questions that cannot be scored: the dataset has no answer
    snapshot: str  # digest of everything searchable in the store
    tables: Mapping[str, int]  # name -> version that the run read
    memo: Mapping[str, int]  # memo table -> version before the run, with values of earlier runs only
    citations: int = 0
    distinct_pages: int = 0  # non-empty pages, equal ones counted once
    empty_pages: int = 0  # citations without a page
    chunks: int = 0
    pages_compared: int = 0  # pages that the reference parser parsed, too
    parser_fallbacks: int = 0  # pages that the fast parser left to the reference parser
    normalized: Mapping[str, int] = {}  # correction made while reading the data -> times
    replaced: tuple[run_parts.ReplacedRows, ...] = ()  # stored rows that the files read by this run replaced
    oracle: Literal["passages", "answer", "labels", ""] = ""
    """Output that golds replaced. passages: the ranking. answer: the replies. labels: the output of one
    stage, to make training labels. "": none."""
    kept: Mapping[str, int] = {}  # earlier run -> number of its answers that --only-new kept
    oracle_golds: int = 0  # questions whose golds replaced an output; the other questions ran as usual

    # The work.
    steps: tuple[run_parts.StepLine, ...]  # corpus steps, then question steps, in recipe order
    faults: tuple[run_parts.FaultCount, ...]
    cost: run_parts.CostReport | None = None  # None: not counted
    resumed: int = 0  # parts (rows of one task) computed by earlier, stopped attempts; `steps` include them
    memo_damaged: int = 0  # damaged tables and files of the memo; needed values were computed again
    cut_replies: tuple[run_parts.CutReplies, ...] = ()  # one for each step with cut replies
    answer_cut: run_parts.AnswerCut | None = None  # None: answers have no limit
    flips: run_parts.FlipRate | None = None  # None: no engine, not measured, or the batch does not matter
    ann: tuple[AnnRecall, ...] = ()  # recall of the approximate indexes searched

    # The scores.
    kind: str  # kind of the data; for one from outside: its path and source
    answers: Mapping[str, int] = {}
    """right, wrong, i don't know, not scored -> questions with a gold. Empty for rankings."""
    lead: str = ""  # the measure that the report begins with
    measures: tuple[MeasureSummary, ...] = ()  # in the order that the kind defines
    measure_slices: tuple[MeasureSlice, ...] = ()  # slices of the lead measure
    blocks: tuple[str, ...] = ()  # parts of the report that the kind shows, such as measures or verdicts
    by_rule: RuleScore | None = None  # None: no rule scores this kind
    judge: run_parts.JudgeLine | None = None  # None: the run had no judge
    labels: run_parts.LabelLine | None = None  # None: no labels were given
    answered_by: Mapping[str, int] = {}  # name of a reply -> answers taken from it, most first
    losses: Losses | None = None  # places where golds were lost; None: not computed
    fits: tuple[run_parts.FitLine, ...] = ()  # fitted numbers and adapters of the recipe
    unseen: MeasureSummary | None = None  # lead measure of questions unseen by fits; None: all are unseen
    routing: Routing | None = None  # routers and calls against golds; None: not computed
    calibration: CalibrationReport | None = None  # calibration of stated confidence; None: too few states
    prompt_injection: PromptInjection | None = None  # None: the recipe has no language model

    @property
    def title(self) -> str:
        """The recipe's name, with its --set values."""
        return titled(self.recipe["name"], self.recipe.get("sets", ()))

    @property
    def rule(self) -> str:
        """The rule by which answers are scored; "": no rule."""
        return self.by_rule.rule if self.by_rule else ""

    @property
    def score(self) -> CragScore | None:
        """The score by the rule of scoring; None: no rule scores this kind."""
        return self.by_rule.score if self.by_rule else None

    @property
    def judged_by(self) -> str:
        """The name of the judge's model, or the judge's path; "": no judge."""
        return self.judge.model if self.judge else ""

    @property
    def seen(self) -> int:
        """Number of scored questions that a fit or adapter of the recipe has seen."""
        return self.fits[0].of - self.unseen.of if self.unseen else 0

    @property
    def failed_rows(self) -> int:
        """Number of rows with faults that no other step answered."""
        return sum(f.rows for f in self.faults if not f.recovered)

    def stage(self, name: str) -> StageRecord | None:
        return next((s for s in self.stages if s.name == name), None)

    def measure(self, name: str) -> MeasureSummary | None:
        """Returns the summary of one measure; None if the kind does not have it."""
        return next((m for m in self.measures if m.measure == name), None)

    def text(self) -> str:
        """Returns the text of the file. Raises ValueError for a number that JSON cannot express."""
        return json.dumps(self.model_dump(mode="json"), allow_nan=False, indent=1) + "\n"


@dataclass(frozen=True, slots=True)
class AnswerKey:
    """Key and verdict of a question's answer in a run."""

    question: str  # id
    key: str  # digest of recipe, question, evidence and missing evidence (recipe_tables.answer_key)
    row: str  # digest of the question and its evidence (recipe.row_key)
    reused: bool  # True: the answer was stored before the run began
    absent: str = ""  # digest of the missing evidence (AnswerSources.absent); "": none
    verdict: str | None = None  # verdict by metrics.verdict_rules; None: no gold answer
    measures: Mapping[str, float] | None = None  # values of the measures; None: there is no gold
    kept: str = ""  # earlier run whose answer was kept on purpose; "": this run's recipe answered


def reason(old: Run | None, new: StageRecord, own: Mapping[str, Difference]) -> str:
    """Returns why a stage computes a row that the earlier run `old` had. It is model, prompt, parameter or
    version if the stage itself differs, upstream if an earlier stage does. Returns "row" if nothing differs,
    or if `old` is None. `own` maps a stage to the difference of its own step or gate from run `old`."""
    if new.name in own:
        return own[new.name].kind
    before = old.stage(new.name) if old else None
    return "upstream" if before is not None and before.chain != new.chain else "row"


def write(store: Store, record: Run, keys: Sequence[AnswerKey], folder: Path) -> None:
    """Writes a run's record and answer keys to the store, and last the record to the run's folder."""
    plain = [dataclasses.asdict(k) | {"measures": k.measures and list(k.measures.items())} for k in keys]
    rows = pa.Table.from_pylist(plain, schema=_KEYS)
    store.files.write(f"{ANSWER_KEYS}/{record.run}.arrow", arrow.file_of(rows))
    text = record.text()
    last = store.files.names(RECORDS)[-1:]
    number = int(last[0].partition("-")[0]) + 1 if last else 1  # not a time: clocks jump
    store.files.write(f"{RECORDS}/{number:015d}-{record.run}.json", text.encode())
    write_text(run_parts.RunFolder(folder).record, text)


def replaced_run(store: Store, folder: Path, digest: str, questions: Set[str]) -> Run | None:
    """Returns the finished run in a folder, if a run of the recipe with this digest on these questions of the
    store would replace it by something else. None without a readable record."""
    try:
        old = read(folder)
    except DataError:
        return None
    same = (old.store, old.digest) == (store.uri, digest) and answer_keys(store, old.run).keys() == questions
    return None if same else old


def withdraw(folder: Path) -> None:
    """Removes the record and the changes from a run's folder, before another run replaces its files."""
    run = run_parts.RunFolder(folder)
    for file in (run.record, run.changes):  # the changes compare this record with an earlier one
        with writing(file):
            file.unlink(missing_ok=True)


_TYPES = {"reused": pa.bool_(), "measures": pa.map_(pa.string(), pa.float64())}
_KEYS = pa.schema([(f.name, _TYPES.get(f.name, pa.string())) for f in dataclasses.fields(AnswerKey)])


def read(folder: Path) -> Run:
    """Reads the record in a run's folder. Raises DataError if it is missing, damaged or of another format."""
    path = run_parts.RunFolder(folder).record
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        none = f"no run.json, which is written last. {run_parts.EVAL_AGAIN}"
        found = none if folder.is_dir() else "no such folder"
        raise DataError(f"{folder}: expected the --out folder of a finished eval, found {found}") from e
    return _parsed(text, str(path))


def recent(store: Store, most: int) -> list[Run]:
    """Returns at most `most` last finished runs, newest first. Raises DataError for a damaged record."""
    names = store.files.names(RECORDS)[-most:]
    return [run for name in reversed(names) if (run := _stored(store, name)) is not None]


def readable(store: Store, most: int) -> tuple[list[Run], int]:
    """Returns the readable runs among the last `most`, newest first, and the number of unreadable runs."""
    runs, unread = list[Run](), 0
    for name in reversed(store.files.names(RECORDS)[-most:]):
        try:
            runs += filter(None, [_stored(store, name)])
        except RaypipeError:
            unread += 1
    return runs, unread


def _stored(store: Store, name: str) -> Run | None:
    """Reads a record of the store; returns None if another process has removed it."""
    raw = store.files.read(f"{RECORDS}/{name}")
    return None if raw is None else _parsed(raw.decode(errors="replace"), f"{store.uri}/{RECORDS}/{name}")


def remove(store: Store, run: str) -> None:
    """Removes a run's record from the store, then its answer keys, so that no record is without keys."""
    for name in store.files.names(RECORDS):
        if name.endswith(f"-{run}.json"):
            store.files.remove(f"{RECORDS}/{name}")
    store.files.remove(f"{ANSWER_KEYS}/{run}.arrow")


def remove_keys_without_record(store: Store) -> None:
    """Removes answer keys without a record: their runs were killed before they wrote it, or were removed."""
    runs = {name.removesuffix(".json").partition("-")[2] for name in store.files.names(RECORDS)}
    for name in store.files.names(ANSWER_KEYS):
        if name.removesuffix(".arrow") not in runs:
            store.files.remove(f"{ANSWER_KEYS}/{name}")


def find(store: Store, run: str) -> Run | None:
    """Returns the record of one run; None if the store has none."""
    name = next((n for n in store.files.names(RECORDS) if n.endswith(f"-{run}.json")), None)
    return None if name is None else _stored(store, name)


def answer_keys(store: Store, run: str) -> dict[str, AnswerKey]:
    """Maps each question id of a finished run to its answer's key; empty if the store has no such run."""
    raw = store.files.read(f"{ANSWER_KEYS}/{run}.arrow")
    if raw is None:
        return {}
    stored = arrow.rows_of(raw).to_pylist(maps_as_pydicts="strict")
    return {r["question"]: AnswerKey(**r) for r in stored}


def _parsed(text: str, file: str) -> Run:
    try:
        tree = json.loads(text)
    except ValueError as e:
        found = f"found {text[:60]!r} ({e}). {run_parts.EVAL_AGAIN}"
        raise DataError(f"{file}: expected the record of a run, {found}") from e
    number = tree.get("format") if isinstance(tree, dict) else tree
    if number != run_parts.JSON_FORMAT:
        raise DataError(f"{file}: record of format {number}, this raypipe reads {run_parts.JSON_FORMAT}")
    try:
        return Run.model_validate(tree)
    except ValidationError as e:
        first = e.errors()[0]
        place, found = ".".join(map(str, first["loc"])), f"found {first['input']!r:.80}"
        expected = first["msg"].replace("Input should be", "expected")
        raise DataError(f"{file}: {place}: {expected}, {found}. {run_parts.EVAL_AGAIN}") from e
