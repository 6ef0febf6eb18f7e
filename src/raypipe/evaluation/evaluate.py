"""Eval of a dataset through a recipe: ingest, plan, index, answer, score, report.

An eval makes no call to answer or judge that its plan did not count. It begins to compute only if the disk
has room for the planned bytes. The plan also covers an oracle (golds in the place of a stage's output),
expired replies of a knowledge graph, and answers that an unfinished command was to compute again. Steps see
no golds, except in a run with an oracle or for training labels.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from raypipe.core.call_context import about
from raypipe.core.errors import ConfError
from raypipe.core.records import Question
from raypipe.core.textfile import write_text
from raypipe.evaluation import ann
from raypipe.evaluation.collect import collect
from raypipe.evaluation.eval_report import ScoredAnswers, run_record, score_answers
from raypipe.evaluation.export import write_predictions
from raypipe.evaluation.fault_budget import RowFaults, retry, row_faults
from raypipe.evaluation.golds import (
    Scoring,
    StoredQuestions,
    golds_of,
    kept_answers,
    questions_of,
    require_questions,
    scoring_of,
)
from raypipe.evaluation.judge import Judge, ModelJudge, judge_plan
from raypipe.evaluation.judged_run import PersonLabels
from raypipe.evaluation.losses import misses
from raypipe.evaluation.options import EvalOptions
from raypipe.evaluation.oracle import require_stage, with_oracle
from raypipe.evaluation.result_table import ResultTable
from raypipe.evaluation.view.pages import report_page
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import holds_golds, requested_by
from raypipe.runs.changes import earlier_run
from raypipe.runs.pipeline.counters import RunCounters, WallClock
from raypipe.runs.pipeline.driver import Pipeline
from raypipe.runs.pipeline.ingest import ingest
from raypipe.runs.pipeline.ingest_log import IngestSummary, driving, noted
from raypipe.runs.pipeline.ingest_tasks import reading_of
from raypipe.runs.pipeline.recipe_tables import AnswerSources, table_names
from raypipe.runs.plan.costs import priced
from raypipe.runs.plan.planner import SAMPLE, plan
from raypipe.runs.plan.records import JudgePlan, Plan
from raypipe.runs.plan.staleness import uncached
from raypipe.runs.record import AnswerKey, Origin, Run, replaced_run, withdraw, write
from raypipe.runs.run_parts import RunFolder
from raypipe.store.files import need
from raypipe.store.memo.disk import memo_versions, mend_memo

NOWHERE = Origin()


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of an eval."""

    record: Run
    scored: ScoredAnswers
    folder: RunFolder
    reused: int  # questions that needed no new answer, without kept ones
    faults: RowFaults


def evaluate(
    pipeline: Pipeline,
    data: Sequence[Path],
    out: Path,
    how: EvalOptions,
    judge: Judge | None = None,
    labels: PersonLabels | None = None,
    origin: Origin = NOWHERE,
    measured: Sequence[Run] = (),
) -> Evaluation:
    """Reads the data, computes missing answers, scores them, and writes the run's folder.

    `data` are files to read first; `how` has their format. The option `only` names the questions. Without it,
    the questions are those of `data`, and without `data` all stored ones. `judge` and `labels` are the judge
    and label file that `how` names, already opened. `measured` are runs on this machine, on any store, which
    show its speed. The record is written last. Raises DataError without questions or golds of the given kind,
    ConfError for options that do not fit, DiskFull, CapReached, and as ingest, index and answer do."""
    _require_options(pipeline, how)
    started, clock, store = time.time(), WallClock(began=how.began), pipeline.store
    pipeline = replace(pipeline, clock=clock)
    with driving(store, f"eval {pipeline.recipe.name}"):
        with clock.part("reading"):
            read = _read(pipeline, data, how)
        questions = questions_of(pipeline, how.only or (read.questions if read else None), how.limit)
        require_questions(questions, data, store)
        kept = kept_answers(store, questions) if how.only_new else {}
        asked = replace(questions, ids=tuple(id for id in questions.ids if id not in kept))
        scoring = scoring_of(pipeline, read, questions.ids, how.kind, how.rule, judge is not None, labels)
        counted = pipeline.recipe.digest() + (f"-oracle-{how.oracle}" if how.oracle else "")
        done = RunCounters.load(store, counted)
        recipe, golds, indexed = oracle_recipe(pipeline, asked, scoring, done, how, measured)
        pipeline = replace(pipeline, recipe=recipe)
        if how.retry_faults:
            retry(pipeline, asked)
        with clock.part("storing"):
            damaged = mend_memo(store) + pipeline.builder.merge_memo()
            memo = memo_versions(store)
        with clock.part("planning"):
            plan, expired, renewed = plan_eval(pipeline, asked, scoring, judge, how, measured, indexed)
        pipeline = replace(pipeline, twice=SAMPLE if plan.twice else 0)
        with clock.part("storing"):
            pipeline.index(asked, done)
            recalls = ann.recalls(pipeline)
            sources = _evidence(pipeline, questions, kept)
            new = asked.ids if how.fresh else pipeline.unanswered(pipeline.keys(asked, sources))
            todo = {*new, *(renewed & set(asked.ids))}
            pipeline.answer(asked, how.fresh, done, expired)
        folder, run = RunFolder(out), uuid.uuid4().hex
        scored = _scored(pipeline, folder, run, questions, sources, scoring, done, judge, labels, how, read)
        done.memo_damaged += damaged
        mark = how.oracle or ("labels" if any(holds_golds(s.step) for s in pipeline.recipe.question) else "")
        known = {"run": run, "started": started, "memo": memo, "origin": origin, "oracle": mark}
        known |= {"oracle_golds": golds if mark else 0, "questions": len(questions), "ann": tuple(recalls)}
        keys = _answer_keys(pipeline.recipe.digest(), questions, sources, todo, scored)
        record_of = partial(run_record, pipeline, scored, plan, done, read, measured, **known)
        record = _write_run(pipeline, folder, keys, record_of)
        done.clear()
        faults = row_faults(pipeline, asked, read.counts if read else {}, scored.answers.faults)
        reused = len(questions) - len(sources.kept_answers) - len(todo)
        return Evaluation(record, scored, folder, reused, faults)


def _require_options(pipeline: Pipeline, how: EvalOptions) -> None:
    """Raises ConfError if options exclude each other, or the oracle has no stage to replace."""
    if how.oracle is not None:
        require_stage(pipeline.recipe, how.oracle)
    if how.only_new and (no := [n for n in ("fresh", "refresh", "oracle") if getattr(how, n)]):
        raise ConfError(
            f"--only-new: expected without --{no[0]}, since it keeps the answers of an earlier run"
        )


def _say_replaced(pipeline: Pipeline, out: Path, questions: StoredQuestions) -> None:
    """Prints which finished run of another recipe or of other questions this run replaces."""
    if old := replaced_run(pipeline.store, out, pipeline.recipe.digest(), set(questions.ids)):
        pipeline.progress.say(f"{out}: replaces run {old.run[:8]} of recipe {old.title}")


def _scored(
    pipeline: Pipeline,
    folder: RunFolder,
    run: str,
    questions: StoredQuestions,
    sources: AnswerSources,
    scoring: Scoring,
    done: RunCounters,
    judge: Judge | None,
    labels: PersonLabels | None,
    how: EvalOptions,
    read: IngestSummary | None,
) -> ScoredAnswers:
    """Collects and scores the answers. Deletes the folder's old record, and writes the table of results."""
    with pipeline.clock.part("scoring"), ResultTable(folder.results) as results:
        answers = collect(pipeline, questions, sources, results, scoring.golds, done.seconds)
        with about(recipe=pipeline.recipe.digest()):
            scored = score_answers(pipeline, answers, scoring, done, judge, labels, how.fresh)
        if read is not None and how.kind is not None:
            noted(pipeline.store, read.fingerprint, how.kind)  # only a kind that could score is kept
        _say_replaced(pipeline, folder.path, questions)
        withdraw(folder.path)  # deletes the old record: the folder is incomplete until the new one is written
        results.about |= {"run": run, "store": pipeline.store.uri}
        results.finish(scored.rows, scored.marks, scored.scores, misses(answers.lost, scored.right))
    return scored


def _evidence(pipeline: Pipeline, questions: StoredQuestions, kept: Mapping[str, AnswerKey]) -> AnswerSources:
    """Returns the questions' AnswerSources. An answer with this recipe's own key does not count as kept."""
    sources, own = pipeline.answer_sources(questions), pipeline.recipe.digest()
    keys = {q.id: sources.key(own, q) for q in questions if q.id in kept}
    return replace(sources, kept_answers={id: kept[id] for id, key in keys.items() if kept[id].key != key})


def _read(pipeline: Pipeline, data: Sequence[Path], how: EvalOptions) -> IngestSummary | None:
    """Reads the files into the store; returns None if there are none. Before that, refuses a cluster that is
    too small, because reading may take an hour. The option `kind` is stored once it has scored the data."""
    if not data:
        return None
    assert how.format is not None
    place = pipeline.progress, pipeline.start_early, None, reading_of(pipeline)
    return ingest(pipeline.store, data, how.format, *place)


def _write_run(
    pipeline: Pipeline, folder: RunFolder, keys: Sequence[AnswerKey], record_of: Callable[..., Run]
) -> Run:
    """Compacts the tables, and writes a run's files and page. Then writes the run's record, first to the
    store and then to the folder. `record_of` makes the record from `tables` (name -> version) and `previous`
    (id of the run to compare with)."""
    store, recipe = pipeline.store, pipeline.recipe
    with pipeline.clock.part("storing"):
        pipeline.builder.compact()
    write_text(folder.graphs, "\n\n".join(pipeline.stats))
    tables = (*table_names(store, recipe), "answers", "questions", "golds", "documents")
    tables += ("layouts",) if store.has("layouts") else ()
    before = earlier_run(store, {k.question for k in keys})
    versions = {t: store.version(t) for t in tables}
    record = record_of(tables=versions, previous=before.run if before else "")
    write_predictions(folder, record)
    write_text(folder.page, report_page(folder, record, before))
    write(store, record, keys, folder.path)
    return record


def _answer_keys(
    digest: str, questions: Iterable[Question], sources: AnswerSources, todo: set[str], scored: ScoredAnswers
) -> list[AnswerKey]:
    """Returns each answer's key, with verdict and measures. `todo` has the ids of questions answered now."""
    verdicts = {v.question: v.outcome for v in scored.marks.verdicts}
    found = []
    for q in questions:
        key = sources.kept_answers.get(q.id) or AnswerKey(
            q.id, sources.key(digest, q), sources.row(q), q.id not in todo, sources.absent(q)
        )
        values = scored.scores.values.get(q.id)
        found.append(replace(key, verdict=verdicts.get(q.id), measures=values))
    return found


def oracle_recipe(
    pipeline: Pipeline,
    questions: StoredQuestions,
    scoring: Scoring,
    done: RunCounters,
    how: EvalOptions,
    measured: Sequence[Run],
) -> tuple[Recipe, int, Plan | None]:
    """Returns the recipe with the requested oracle, the number of questions whose golds it contains, and a
    plan or None. Oracle `passages` needs the corpus tables: they are planned and built first, and their plan
    is returned. Raises ConfError if no question has a gold answer."""
    if how.oracle is None:
        return pipeline.recipe, 0, None
    golds = golds_of(pipeline.store, questions.ids, scoring.golds)
    if not any(g.answers for g in golds.values()):
        raise ConfError(
            f"--oracle {how.oracle}: expected questions with gold answers, found none of {len(questions)} "
            f"with one in {pipeline.store.uri}. Use data that has answers, or leave --oracle out"
        )
    indexed = None
    if how.oracle == "passages":
        indexed = _shown(pipeline, questions, (), replace(how, fresh=False), measured, None)[0]
        pipeline.index(questions, done)
    return *with_oracle(pipeline, how.oracle, questions, golds), indexed


def plan_eval(
    pipeline: Pipeline,
    questions: StoredQuestions,
    scoring: Scoring,
    judge: Judge | None,
    how: EvalOptions,
    measured: Sequence[Run],
    indexed: Plan | None,
) -> tuple[Plan, Collection[str], frozenset[str]]:
    """Plans a run and shows the plan. Returns the plan, the ids of questions whose answers rest on expired
    replies of a graph, and the ids of all questions to answer again. The last ids include questions of an
    unfinished command. `indexed` is the plan by which the corpus tables were just built. Raises DiskFull."""
    expired, judging = expired_answers(pipeline, questions) if how.refresh else set[str](), None
    if isinstance(judge, ModelJudge):
        golds = golds_of(pipeline.store, questions.ids, scoring.golds)
        judging = judge_plan(judge.model, judge.rule, golds.values())
    planned, renewed = _shown(pipeline, questions, expired, how, measured, judging)
    if indexed is not None:
        before = (s for s in indexed.steps if s.half == "corpus")
        steps = (*before, *(s for s in planned.steps if s.half == "question"))
        planned = priced(replace(planned, steps=steps), pipeline.caps.prices, pipeline.recipe)
    return planned, expired, renewed


def _shown(
    pipeline: Pipeline,
    questions: StoredQuestions,
    expired: Collection[str],
    how: EvalOptions,
    measured: Sequence[Run],
    judge: JudgePlan | None,
) -> tuple[Plan, frozenset[str]]:
    """Plans the eval, shows the plan, and returns it with the ids of the questions to answer again."""
    asked, again, fresh = list(questions), set(expired), how.fresh
    if (left := pipeline.unfinished_again()) is not None:
        asked += pipeline.questions([id for id in left.ids if id not in set(questions.ids)])
        again |= set(left.ids)
        fresh = fresh or left.fresh
    planned = plan(pipeline, asked, fresh=fresh, old=again, measured=measured)
    planned = priced(replace(planned, judge=judge), pipeline.caps.prices, pipeline.recipe)
    how.on_plan(planned)
    need(pipeline.store.files, planned.bytes_at_least(), "what is planned")
    return planned, frozenset(again)


def expired_answers(
    pipeline: Pipeline, questions: Iterable[Question], clock: Callable[[], float] = time.time
) -> set[str]:
    """Returns the ids of questions whose stored answers rest on expired replies of a graph."""
    stages = [s for s in pipeline.recipe.question if any(ref.periods() for ref in requested_by(s.step))]
    if not stages:
        return set()
    answered = [a for a in pipeline.answers(list(questions)) if a.outcome and a.outcome != "fault"]
    found = (uncached(pipeline, stage, answered, clock).items() for stage in stages if answered)
    return {id for whys in found for id, why in whys if why == "expired"}
