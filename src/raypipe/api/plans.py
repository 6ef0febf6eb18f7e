"""Plans: the model calls, time and memory of an eval, computed before anything runs. `calibrate` measures
rates for them with a small invented dataset, in a temporary store."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from raypipe.api.captured_data import open_data
from raypipe.api.data import docs_store, documents_folder
from raypipe.api.paths import Data, several
from raypipe.api.pipelines import as_declared, offline_pipeline, open_pipeline, prices_of, workers_of
from raypipe.api.results import Result, outside_loop
from raypipe.api.run import evaluate, measured
from raypipe.api.served_models import open_judge, read_judge
from raypipe.api.session import Named, Place, Session
from raypipe.api.starting_points import DATASETS
from raypipe.core.errors import ConfError
from raypipe.core.protocols import Model
from raypipe.core.records import Gold, Question
from raypipe.evaluation.evaluate import expired_answers
from raypipe.evaluation.golds import (
    StoredQuestions,
    golds_of,
    kept_answers,
    require_golds,
    require_questions,
    stored_questions,
)
from raypipe.evaluation.judge import judge_plan
from raypipe.evaluation.options import EvalOptions
from raypipe.metrics.kinds import GoldForm, gold_form, open_kind
from raypipe.metrics.verdict_rules import DEFAULT_RULE
from raypipe.models.kit import LocalKit
from raypipe.readers.formats import Format
from raypipe.recipes.recipe import Recipe
from raypipe.runs.cluster.capacity import declared_nodes, fitting, is_here
from raypipe.runs.cluster.placement import Placement, asked_by, placement, refuse, sharing
from raypipe.runs.pipeline.ingest_folder import FolderRead
from raypipe.runs.plan import planner
from raypipe.runs.plan.assumed import Assumed, AssumedPlan, assumed_plan
from raypipe.runs.plan.costs import priced
from raypipe.runs.plan.planner import read_questions
from raypipe.runs.plan.records import NewSources, Plan
from raypipe.runs.record import recent
from raypipe.store import Store


@dataclass(frozen=True, slots=True)
class Placed:
    """Machines and memory that each pool of worker processes takes for a recipe."""

    cluster: str  # name of the cluster file
    about: str  # description of the cluster file
    pools: tuple[Placement, ...]


@dataclass(frozen=True, slots=True, repr=False)
class PlanResult(Result, rows="plan.steps"):
    """Plan of an eval. Each step is a row."""

    plan: Plan
    expired: int  # answers that depend on expired replies of a graph
    placement: Placed

    def record(self) -> Any:
        known = to_jsonable_python(self, inf_nan_mode="null")  # an unknown number is infinite in a plan
        return {**known.pop("plan"), **known}


@outside_loop
def plan(
    recipe: Named,
    data: Data = (),
    store: Place = None,
    format: Format | None = None,
    check_run: bool = False,
    session: Session | None = None,
    docs: str | Path | None = None,
    **options: Any,
) -> PlanResult:
    """Estimates the model calls, time and memory of an eval, with the reason for each. Runs no step.

    `docs` is a folder of documents, in its own store unless `store` names one. Reading and indexing its
    changed files is planned, too. Nothing else is planned if this store and `data` have no questions and
    `check_run` is False. `check_run` also connects to the cluster, looks for every model, and sends test
    requests to servers, as the eval does before its first row. `options` are fields of `EvalOptions`. With a
    `judge`, calls of a model that judges by `rule` are counted. With `refresh`, answers that depend on
    expired replies of a graph count as missing. Raises ClusterTooSmall, ConfError and ModelMissing. Raises
    DataError for unreadable data, if there are no questions, and if no question has a gold of a given `kind`.
    """
    how, session = EvalOptions.of(format=format, **options), session or Session()
    store = docs_store(docs, store, session)
    session = session.over(store, bool(several(data)))
    with tempfile.TemporaryDirectory(prefix="raypipe-plan-") as scratch:
        if docs is not None:
            filled = session.store_to_fill(store, Path(scratch))
            if not (check_run or several(data) or stored_questions(filled).ids):  # only the corpus steps
                found = session.recipe(recipe)
                coming = coming_documents(docs, filled, session)
                fast = measured(session.settings, session.cluster_file())
                indexed = planner.plan(offline_pipeline(session, filled, found), None, coming, measured=fast)
                priced_plan = priced(indexed, prices_of(session, found), found)
                return PlanResult(priced_plan, 0, _placement(session, found))
        return _planned(session, recipe, several(data), store, how, check_run, Path(scratch), docs)


def coming_documents(docs: str | Path, store: Store, session: Session) -> NewSources:
    """Returns the sources that a read of the folder `docs` would add to a store and remove from it."""
    changes = FolderRead(store, documents_folder(docs, session))
    with session.shown() as progress:
        coming = planner.new_sources(store, changes.sources(progress))
    return replace(coming, gone=changes.gone().get("sources", ()))


def planned_questions(
    session: Session,
    opened: Store,
    files: Sequence[Path],
    format: Format,
    docs: str | Path | None,
    limit: int | None = None,
) -> tuple[list[Question], NewSources]:
    """Returns the first `limit` questions (None: all) of the files, or of the store if there are no files.
    Also returns the sources of the files and of the folder `docs` that the store lacks."""
    if files:
        questions, coming = read_questions(opened, files, format)
        questions = questions[:limit]
    else:
        stored = StoredQuestions(opened, stored_questions(opened).ids[:limit])
        questions, coming = list(stored), NewSources()
    if docs is not None:
        coming = coming_documents(docs, opened, session).joined(coming)
    return questions, coming


def _planned(
    session: Session,
    recipe: Named,
    given: Sequence[str | Path],
    store: Place,
    how: EvalOptions,
    check_run: bool,
    scratch: Path,
    docs: str | Path | None,
) -> PlanResult:
    rule, judge = how.rule or DEFAULT_RULE, how.judge
    scoring = None if how.kind is None else open_kind(how.kind, how.rule, judge is not None)
    resolved = session.recipe(recipe, given)
    opened, files, wanted = open_data(resolved, given, store, session, how.format, how.fields, scratch, docs)
    if check_run:
        with (
            open_judge(session, judge, rule) as (_, kit),
            open_pipeline(session, opened, resolved, judge=kit) as connecting,
        ):
            connecting.connect()
    pipeline = offline_pipeline(session, opened, resolved)
    questions, coming = planned_questions(session, opened, files, wanted, docs, how.limit)
    if how.only is not None:
        only = set(how.only)
        questions = [q for q in questions if q.id in only]
    require_questions(questions, files, opened)
    if how.only_new:
        kept = kept_answers(opened, questions)
        questions = [q for q in questions if q.id not in kept]
    form: GoldForm = "answers" if scoring is None else gold_form(scoring)
    ids, golds = {q.id for q in questions}, list[Gold]()
    judging = read_judge(session, judge, rule)
    if scoring is not None or isinstance(judging, Model):
        stored = () if coming.golds is not None else golds_of(opened, sorted(ids), form).values()
        golds = [g for g in coming.golds or stored if g.question in ids]
    if scoring is not None:
        where = ", ".join(map(str, files)) or opened.uri
        require_golds(golds, len(ids), str(how.kind), form, where)
    old = expired_answers(pipeline, questions)
    fast = measured(session.settings, session.cluster_file())
    planned = planner.plan(pipeline, questions, coming, old=old if how.refresh else (), measured=fast)
    if isinstance(judging, Model):
        planned = replace(planned, judge=judge_plan(judging, rule, golds))
    planned = priced(planned, prices_of(session, resolved, judging), resolved)
    return PlanResult(planned, len(old), _placement(session, resolved))


@dataclass(frozen=True, slots=True, repr=False)
class AssumedResult(Result, rows="plan.steps", record="plan"):
    """Cost of a corpus of an assumed size. Each step is a row."""

    plan: AssumedPlan


@outside_loop
def assume(recipe: Named, assumed: str, store: Place = None, session: Session | None = None) -> AssumedResult:
    """Estimates the cost of a recipe's corpus steps for pages that do not exist yet.

    `assumed` gives the number of pages: `pages=1e8`. Further numbers describe pages that differ from CRAG's:
    `pages=1e7,html_bytes=20000,text_chars=9000`. `chunks` is the number of chunks per page; without it, the
    recipe splits a made-up page. The speed of a step comes from the last runs on this machine and of `store`.
    Hours are unknown for a step that is in none of these runs. Raises ConfError for invalid numbers and if
    the split makes no chunks here, and ClusterTooSmall.
    """
    session = session or Session()
    size, found = Assumed.parse(assumed, "--assume"), session.recipe(recipe)
    file = as_declared(session.cluster_file(), found.models())
    runs = list(measured(session.settings, session.cluster_file()))
    if store is not None:
        runs = [*recent(session.store(store), planner.LOOKED_BACK), *runs]
    made = assumed_plan(
        found,
        size,
        session.cluster,
        file.sources_per_task,
        workers_of(file, found),
        (file.backend, file.device),
        runs,
        prices_of(session, found),
        LocalKit(None, file.backend),
    )
    return AssumedResult(made)


def _placement(session: Session, recipe: Recipe) -> Placed:
    """Returns the machines and memory for a recipe's pools on the cluster that the session's cluster file
    declares. Raises ClusterTooSmall if this cluster cannot hold them."""
    asked = asked_by(recipe)
    written = sharing(session.cluster_file(), asked)
    cluster = fitting(written, [m for m in asked if m.loader == "vllm"], declared_nodes(written))
    refuse(cluster, recipe.embedders(), asked)
    return Placed(session.cluster, cluster.about, tuple(placement(cluster, recipe.embedders(), asked)))


QUESTIONS, PAGES, PAGE_CHARS = 6, 6, 6000  # some 200 chunks: enough for a rate, half a minute on two cores


def calibrate(recipe: str | Path, session: Session) -> None:
    """Measures the speed of each step of a recipe by an eval of a few invented questions. A plan finds the
    speed in the eval's record under $RAYPIPE_HOME. Models on servers are called, too. Raises ConfError for a
    cluster file of other machines."""
    if not is_here(session.cluster_file()):
        other = f"expected a cluster file for only this machine, {session.cluster} is for others"
        raise ConfError(f"--calibrate: {other}. An eval there measures them")
    with tempfile.TemporaryDirectory(prefix="raypipe-calibrate-") as folder:
        world = Path(folder) / "world"
        DATASETS["synth"](world, QUESTIONS, pages=PAGES, seed=1, page_chars=PAGE_CHARS)
        store, out = Path(folder) / "store", Path(folder) / "run"
        evaluate(recipe, world, store, out, session=session, check=False)
