"""Experiments with recipes: `sweep` compares recipes or field values, `evaluate_repeatedly` shows how much an
engine's answers vary, `fit_decide` and `fit_fuse` fit a step's numbers to a finished run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic_core import to_jsonable_python

from raypipe.api.captured_data import open_data
from raypipe.api.data import docs_store, ingest
from raypipe.api.paths import SWEEP, Data, deliver, run_folder, several
from raypipe.api.pipelines import offline_pipeline, prices_of
from raypipe.api.plans import planned_questions
from raypipe.api.release import finished
from raypipe.api.results import Result, outside_loop
from raypipe.api.run import check_names, evaluate, measured
from raypipe.api.session import Named, Place, Session
from raypipe.core.errors import ConfError
from raypipe.core.records import Question
from raypipe.core.textfile import replaced, require_file, require_writable, write_json
from raypipe.evaluation import fit_decide as deciding
from raypipe.evaluation import fit_fuse as fusing
from raypipe.evaluation import sweep as sweeping
from raypipe.evaluation.evaluate import Evaluation
from raypipe.evaluation.fit_decide import DecideFitReport
from raypipe.evaluation.fit_fuse import FuseFitReport
from raypipe.evaluation.golds import kind_of_data, require_questions
from raypipe.evaluation.options import EvalOptions
from raypipe.evaluation.scored_run import scored_run
from raypipe.evaluation.sweep import PlannedPoint, Point, PointResult, Repeats, Sweep, repeats
from raypipe.metrics.kinds import Measure
from raypipe.metrics.paired_tests import MARGIN
from raypipe.readers.formats import kind_of
from raypipe.readers.object_store import is_remote
from raypipe.recipes.recipe import Recipe
from raypipe.runs.plan import planner
from raypipe.runs.plan.records import NewSources, Plan
from raypipe.steps.decide import AnswerProbability
from raypipe.steps.fuse import FusionWeights
from raypipe.store import Store


@dataclass(frozen=True, slots=True, repr=False)
class DecideFitResult(Result, rows="report.unseen"):
    """Fit of `decide`. The fit and the policies that it is compared with are rows, on the unseen half."""

    file: Path  # file of the numbers, for the step's field `fitted`; the report is next to it, as .json
    fitted: AnswerProbability
    report: DecideFitReport
    step: str = "decide"  # the step that takes the numbers


@dataclass(frozen=True, slots=True, repr=False)
class FuseFitResult(Result, rows="report.unseen"):
    """Fit of `fuse`. The fit and the weightings that it is compared with are rows, on the unseen half."""

    file: Path  # file of the numbers, for the step's field `fitted`; the report is next to it, as .json
    fitted: FusionWeights
    report: FuseFitReport
    step: str  # the step that takes the numbers


F = TypeVar("F", DecideFitResult, FuseFitResult)


def fit_decide(
    run: str | Path,
    split: int = 0,
    out: str | Path | None = None,
    group: str | None = None,
    measure: str | None = None,
) -> DecideFitResult:
    """Fits the probability that an answer is right, and the least probability at which an answer is given.

    An answer with a lower probability becomes "i don't know". The threshold maximizes the mean of `measure`;
    None: the report's first measure. `run` is the folder of an eval. One half of its questions, chosen by
    `split` (0 or 1), serves to fit. The other half serves to report, without questions that an earlier fit
    has seen. A hash of a question's id, or of its label `group`, decides its half. `group` None means the
    group label of the data's kind, or else the id. `out` is the file for `decide.fitted`; None:
    fit-decide.yaml in the run's folder. Raises ConfError if the recipe's decide cannot be fitted, and
    DataError for too few answers.
    """
    file = _out(run, out, "fit-decide.yaml")
    fitted, report = deciding.fit_decide(Session().local_run(run), split, group, measure)
    return _written(DecideFitResult(file, fitted, report), f"P(right) of an answer of {report.recipe}")


def fit_fuse(
    run: str | Path,
    split: int = 0,
    out: str | Path | None = None,
    step: str | None = None,
    scores: Sequence[str] = (),
    group: str | None = None,
    measure: str | None = None,
    store: Place = None,
    session: Session | None = None,
) -> FuseFitResult:
    """Fits the weights of a `fuse` step to a ranking measure.

    No model is called: the run's hits have all scores. `step` is the stage to fit, such as `fuse:final`; None
    means the last `fuse`. `scores` are the names of the scores to weigh; (): those that the step weighs in
    the recipe. `store` has the run's documents; None means the store that the run used. The other arguments
    and errors are those of `fit_decide`. Raises DataError for data without judged documents.
    """
    file = _out(run, out, "fit-fuse.yaml")
    session = session or Session()
    _, opened = finished(run, store, session)
    fitted, report = fusing.fit_fuse(session.local_run(run), opened, split, step, scores, group, measure)
    made = FuseFitResult(file, fitted, report, report.step)
    return _written(made, f"Weights of {report.step} of {report.recipe}")


def _out(run: str | Path, out: str | Path | None, name: str) -> Path:
    """Returns the file to write: `out`, or `name` in the folder of a run on this machine. Raises ConfError if
    the file's name does not end with .yaml, or if it cannot be written."""
    if out is None and is_remote(str(run)):
        raise ConfError(f"{run}: lies in an object store. Name the file to write: --out {name}")
    file = Path(run) / name if out is None else Path(out)
    if file.suffix != ".yaml":
        raise ConfError(f"--out {file}: expected a name that ends with .yaml")
    require_file(file, "--out")
    return file.absolute()


def _written(found: F, what: str) -> F:
    """Writes the fitted numbers and, next to them, the report of their quality. Returns the fit."""
    table = found.file.with_suffix(".json")
    table.unlink(missing_ok=True)  # the report of an earlier fit
    with replaced(found.file) as out:
        verb, numbers = found.step.partition(":")[0], to_jsonable_python(found.fitted)
        out.write(f"# {what}. Made by `raypipe fit {verb}`; {table.name} reports its quality.\n")
        out.write(yaml.safe_dump(numbers, sort_keys=False, width=110, allow_unicode=True))
    write_json(table, found.to_dict())
    return found


@dataclass(frozen=True, slots=True, repr=False)
class SweepResult(Result):
    """A finished sweep, or only its plan. Each point is a row. The first point has no difference."""

    recipe: str  # name of the recipe, or names of several recipes, separated by commas
    plans: tuple[PlannedPoint, ...]
    sweep: Sweep | None  # None: only planned (--dry-run)
    folder: Path  # holds sweep.json, and a folder for each run

    def rows(self) -> Sequence[PointResult | PlannedPoint]:
        return self.sweep.points if self.sweep else self.plans


@outside_loop
def sweep(
    recipe: str | Path | Sequence[str | Path],
    sets: str | Sequence[str] = (),
    data: Data = (),
    store: Place = None,
    out: str | Path | None = None,
    sample: int | None = None,
    seed: int = 0,
    margin: float = MARGIN,
    dry_run: bool = False,
    on_plan: Callable[[Sequence[PlannedPoint]], None] = lambda plans: None,
    session: Session | None = None,
    measure: str | None = None,
    docs: str | Path | None = None,
    **options: Any,
) -> SweepResult:
    """Evaluates recipes at each combination of field values, and compares each point with the first point.

    A point is one recipe at one combination; `sets` has one `STEP[:INTO].FIELD=V1,V2,...` for each field. All
    points answer the same questions: all, or `sample` of them, drawn by `seed`. After a sample, the best and
    the first point also answer up to as many other questions. The best point has the highest mean of
    `measure` (default: the first measure of the data's `kind`). `margin` is as in `compare`, `docs` as in
    `evaluate`. `on_plan` receives all plans; with `dry_run`, nothing runs after that. Of `options`
    (`EvalOptions`), only format, fields, kind, rule and judge are used. Raises ConfError and DataError before
    a point runs, and DataError if no question is scored at all points."""
    if margin <= 0:
        raise ConfError(f"expected a margin above 0, found {margin:g}")
    how, given, session = EvalOptions.of(**options), several(data), session or Session()
    session = session.over(docs_store(docs, store, session, out), bool(given))

    def load(one: str | Path, settings: Sequence[str]) -> Recipe:
        at_point = replace(session, sets=(*session.sets, *settings))
        return check_names(one, given, how.judge, how.rule, at_point, how.kind)

    points = sweeping.points(load, several(recipe), [sets] if isinstance(sets, str) else sets)
    name, first = ",".join(dict.fromkeys(p.recipe.name for p in points)), points[0].recipe
    folder = run_folder(out, session.settings, session.adopting, f"{first.name}-sweep")
    require_writable(folder, "--out")
    if how.kind is not None:
        sweeping.measure_of(how.kind, measure)  # before any file is read
    with tempfile.TemporaryDirectory(prefix="raypipe-plan-") as scratch:
        place = Path(scratch) if dry_run else None
        filled, every, coming, by = _questions(session, first, given, store, how, place, docs, measure)
        ids, unseen = sweeping.drawn([q.id for q in every], sample, seed)
        drawn = set(ids)
        plans = _plans(session, filled, points, [q for q in every if q.id in drawn], coming)
    on_plan(plans)
    if dry_run:
        return SweepResult(name, plans, None, folder)

    def run(one: Recipe, some: Sequence[str], where: Path) -> Evaluation:
        scored: dict[str, Any] = {"rule": how.rule, "judge": how.judge, "kind": how.kind}
        return evaluate(one, (), filled, where, session, only=some, **scored).evaluation

    (folder / SWEEP).unlink(missing_ok=True)  # belongs to an earlier sweep, whose runs are replaced
    done = sweeping.sweep(points, run, ids, unseen, seed, margin, folder, by)
    result = SweepResult(name, plans, done, folder)
    write_json(folder / SWEEP, result.to_dict())
    deliver(out, folder)
    return result


def _plans(
    session: Session, store: Store, points: Sequence[Point], questions: Sequence[Question], coming: NewSources
) -> tuple[PlannedPoint, ...]:
    fast = measured(session.settings, session.cluster_file())

    def plan(one: Recipe) -> Plan:
        return planner.plan(offline_pipeline(session, store, one), questions, coming, measured=fast)

    return tuple(sweeping.planned(points, plan, partial(prices_of, session)))


def _questions(
    session: Session,
    recipe: Recipe,
    given: Sequence[str | Path],
    store: Place,
    how: EvalOptions,
    scratch: Path | None,
    docs: str | Path | None,
    measure: str | None,
) -> tuple[Store, list[Question], NewSources, Measure]:
    """Opens the store of a sweep, and ingests its files. With `scratch`, a folder for a plan's files, the
    files are only read. Returns the store, all questions, the sources that the store lacks, and the measure
    that ranks points. Raises DataError if there are no questions."""
    store = docs_store(docs, store, session, read=scratch is None)
    if scratch is None:
        docs = None  # its files are in the store now
    filled, files, wanted = open_data(recipe, given, store, session, how.format, how.fields, scratch, docs)
    read = None
    if files and scratch is None:
        read = ingest(files, filled, wanted, session, kind=how.kind).summary
    every, coming = planned_questions(session, filled, files, wanted, docs)
    require_questions(every, files, filled)
    kind = how.kind or (kind_of(wanted) if files and scratch else None)
    kind = kind or kind_of_data(filled, read, [q.id for q in every])
    return filled, every, coming, sweeping.measure_of(kind, measure)


@dataclass(frozen=True, slots=True, repr=False)
class RepeatsResult(Result, rows="found.questions"):
    """Several runs of one recipe. Each question is a row, with the mean and spread of the first measure."""

    folder: Path
    found: Repeats

    def record(self) -> Mapping[str, Any]:
        return {**asdict(self.found), "folder": self.folder}


@outside_loop
def evaluate_repeatedly(
    recipe: Named,
    times: int,
    data: Data = (),
    store: Place = None,
    out: str | Path | None = None,
    session: Session | None = None,
    fresh: bool = False,
    docs: str | Path | None = None,
    **options: Any,
) -> RepeatsResult:
    """Evaluates a recipe `times` times, and reports how much the score and the verdicts vary.

    From the second run on, language models are called even for cached replies; with `fresh` also in the
    first. The other arguments are those of `evaluate`. `out` gets a folder `repeat-N` for each run, and
    repeats.json. Raises ConfError for less than two times or an `out` in an object store, and errors of
    `evaluate`.
    """
    if times < 2:
        raise ConfError(f"--repeats: expected 2 or more, found {times}")
    if out is not None and is_remote(str(out)):
        raise ConfError(f"--repeats: expected a folder of this machine as --out, found {out}")
    given, session = several(data), session or Session()
    session = session.over(docs_store(docs, store, session, out), bool(given))
    found, uri = session.recipe(recipe, given), session.adopting
    folder = run_folder(out, session.settings, uri, found.name)
    asks = any(m.kind == "generator" for m in found.models())  # only generators may repeat differently
    folders = [folder / f"repeat-{n}" for n in range(1, times + 1)]
    summary = folder / "repeats.json"
    summary.unlink(missing_ok=True)  # belongs to earlier runs, which are replaced
    for n, place in enumerate(folders):
        evaluate(found, given, uri, place, session, docs, fresh=fresh or (asks and n > 0), **options)
    result = RepeatsResult(folder, repeats([scored_run(place, "official") for place in folders]))
    write_json(summary, result.to_dict())
    return result
