"""A dataset through a recipe to a score: ingest, index, answer, score, and the report of it all.

Knows the pipeline and the metrics. With `collect`, which passes the answers, the only reader of golds and
labels after ingest.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core.errors import ConfError
from raypipe.evaluation.collect import Collected, collect
from raypipe.evaluation.expiry import expired_answers
from raypipe.evaluation.fault_budget import UndoneRows, retry, undone_rows
from raypipe.evaluation.golds import Scoring, golds_of, require_rule, scoring_of
from raypipe.evaluation.judge import Judge, ModelJudge, Spend, judge_plan
from raypipe.evaluation.labelling import holds_truths
from raypipe.evaluation.labels import PersonLabels, label_line, labelled
from raypipe.evaluation.losses import misses
from raypipe.evaluation.oracle import Oracle, OracleRecipe, require_stage, with_oracle
from raypipe.evaluation.result_table import ResultTable, write_predictions
from raypipe.evaluation.seen import marked_by_fits
from raypipe.evaluation.stored_questions import StoredQuestions, questions_of, require_questions
from raypipe.evaluation.write_manifest import write_manifest
from raypipe.memo.disk import memo_versions, merge_memo
from raypipe.memo.mend import mend_memo
from raypipe.metrics.calibration import stated_calibration
from raypipe.metrics.crag import Marks, Prediction, Rule
from raypipe.metrics.kinds import DataKind, RunScores, kind_id, marks_of, right_of, score
from raypipe.metrics.kinds import golds_of as gold_form
from raypipe.metrics.losses import Losses, losses
from raypipe.pipeline.approximate import require_measured
from raypipe.pipeline.caps import NO_CAPS, Caps
from raypipe.pipeline.counters import Counts, RunCounters
from raypipe.pipeline.driver import Pipeline, batches
from raypipe.pipeline.ingest import ingest
from raypipe.pipeline.ingest_log import IngestSummary, driving
from raypipe.pipeline.ingest_tasks import reading_of
from raypipe.pipeline.wall_clock import WallClock
from raypipe.readers import Format
from raypipe.recipes.executor import StageCounters
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import answer_cut, asked_models, models_of
from raypipe.report.report import (
    AnswerCut,
    CostReport,
    EvalReport,
    FaultCount,
    JudgeLine,
    RunFolder,
    StepLine,
    write_report,
)
from raypipe.runs.manifest import Manifest, Origin
from raypipe.runs.plan.money import asking, estimated, priced, spent
from raypipe.runs.plan.planner import plan
from raypipe.runs.plan.records import JudgePlan, Plan
from raypipe.store import Store
from raypipe.store.disk_space import need
from raypipe.store.keep import compact, tables

# Counts of the readers that say what was put right on the way in, for the report.
NORMALISED = (
    "blank_lines", "byte_order_marks", "crlf_lines", "nul_lines", "null_fields", "number_golds",
    "unknown_golds", "repeated_rows", "questions_without_pages", "dropped_rows", "made_questions",
    "unreviewed_questions",
)  # fmt: skip
NOWHERE = Origin()
SOURCES_AT_ONCE = 4096  # whose chunks are counted in one look: some 10 MB


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of an eval."""

    report: EvalReport
    folder: RunFolder
    reused: int  # questions whose answers were there before this run
    manifest: Manifest
    undone: UndoneRows


def evaluate(
    pipeline: Pipeline,
    data: Sequence[Path],
    format: Format,
    limit: int | None,
    rule: Rule | None,
    out: Path,
    judge: Judge | None = None,
    fresh: bool = False,
    again: bool = False,
    origin: Origin = NOWHERE,
    show: Callable[[Plan], None] = lambda plan: None,
    refresh: bool = False,
    measured: Sequence[Manifest] = (),
    began: float | None = None,
    only: Sequence[str] | None = None,
    caps: Caps = NO_CAPS,
    kind: str | None = None,
    oracle: Oracle | None = None,
    labels: PersonLabels | None = None,
) -> Evaluation:
    """Runs what is missing, scores every question, and writes the report. Without `data`: all that is stored.

    `kind` of the data says what is measured; None: as it was read. `rule` of scoring, for a kind that has
    rules; None: its own. `judge` decides what the rule leaves open; `fresh` asks every language
    model again; `again` tries failed rows again; `refresh` recomputes what rests on replies of a graph
    that no longer hold. `show` gets the plan before anything runs; `measured` are runs on other stores that
    say how fast this machine is. The manifest is written last. `began`: when the command did, in
    seconds of perf_counter; None: now. `only`: ids of stored questions, of which alone the run is; None: of
    all. `caps`: what it may spend, and at which prices. `oracle`: the stage in whose place golds are put.
    `labels`: verdicts of people, which outrank the judge's and the rule's.

    Raises DataError if there are no questions, or none with a gold of the `kind` that is given, ConfError for
    a rule or judge that the kind cannot use and for an `oracle` that has nothing to put or no such stage,
    CapReached at a cap, and what ingest, index and answer raise.
    """
    if oracle is not None:
        require_stage(pipeline.recipe, oracle)
    started, clock = time.time(), WallClock(began=began)
    pipeline = replace(pipeline, clock=clock, caps=caps)
    with driving(pipeline.store, f"eval {pipeline.recipe.name}"):
        # A cluster that is too small is refused before the hour that a large file may take to read.
        with clock.part("reading"):
            show_files, before = pipeline.progress, pipeline.start
            reading = reading_of(pipeline)
            read = ingest(pipeline.store, data, format, show_files, before, kind, reading) if data else None
        questions = questions_of(pipeline, only or (read.questions if read else None), limit)
        require_questions(questions, data, pipeline.store)
        scoring = scoring_of(pipeline, read, questions.ids, kind, rule, judge is not None)
        require_rule(scoring, labels)
        done = RunCounters.load(pipeline.store, _work(pipeline.recipe, oracle))
        indexed, oracle_golds = None, 0
        if oracle is not None:
            put, indexed = _with_oracle(pipeline, oracle, questions, scoring, done, show, measured)
            pipeline, oracle_golds = replace(pipeline, recipe=put.recipe), put.questions
        if again:
            retry(pipeline, questions)
        with clock.part("storing"):
            damaged = mend_memo(pipeline.store) + merge_memo(pipeline.store).damaged
        memo = memo_versions(pipeline.store)
        with clock.part("planning"):
            old = expired_answers(pipeline, questions) if refresh else {}
            judging = _judging(pipeline, judge, questions, scoring)
            planned, renewed = _planned(pipeline, questions, fresh, old, show, measured, judging)
            if indexed is not None:
                planned = _joined(indexed, planned, pipeline)
        with clock.part("storing"):
            pipeline.index(questions, done)
            recalls = require_measured(pipeline.store, pipeline.recipe)
            sources = pipeline.answer_sources(questions)
            missing = questions.ids if fresh else pipeline.unanswered(pipeline.keys(questions, sources))
            todo = {*missing, *(renewed & set(questions.ids))}
            pipeline.answer(questions, fresh, done, old.keys())
        folder = RunFolder(out)
        orders = any(m.kind == "generator" for s in pipeline.recipe.question for m in models_of(s.step))
        with clock.part("scoring"), ResultTable(folder.results) as results:
            answers = collect(pipeline, questions, sources, results, orders, scoring.golds, done.seconds)
            rows, verdict = answers.rows, None
            if judge is not None:
                spend = _spend(pipeline, done)
                replies, verdict = judge.ask(pipeline.store, rows, answers.texts, fresh, spend)
                rows = [replace(r, judge_response=replies.get(r.question)) for r in rows]
            if labels is not None:
                rows = labelled(rows, labels)
            marks, scores = marks_of(scoring.kind, rows), score(scoring.kind, kind_id(scoring.name), rows)
            done.memo_damaged += damaged
            right = verdicts(scoring.kind, rows, scores)
            lost = losses(right, answers.lost, answers.loss_notes)
            report = _report(
                pipeline,
                len(questions),
                read,
                answers,
                marks,
                scores,
                verdict,
                planned,
                done,
                lost,
            )
            marked = oracle or ("labels" if holds_truths(pipeline.recipe) else "")
            report = replace(report, oracle=marked, oracle_golds=oracle_golds, ann=tuple(recalls))
            report = replace(report, calibration=stated_calibration(answers.stated, right))
            report = replace(report, labels=None if labels is None else label_line(labels, rows, marks))
            report = marked_by_fits(report, pipeline.recipe, scoring.kind, answers.texts)
            results.finish(rows, report, misses(answers.lost, right))
        write_predictions(folder)
        write_report(folder, report)
        for table in tables(pipeline.store):
            compact(pipeline.store, table)
        manifest = write_manifest(
            pipeline,
            questions,
            sources,
            todo,
            report,
            planned,
            memo,
            started,
            origin,
            done.rows_by_worker,
            out,
        )
        done.clear()
        undone = undone_rows(pipeline, questions, read.counts if read else {})
        return Evaluation(report, folder, len(questions) - len(todo), manifest, undone)


def verdicts(kind: DataKind, rows: Sequence[Prediction], scores: RunScores) -> dict[str, bool | None]:
    """Question -> whether its answer is right; None: not scored. One that failed has no verdict, whatever
    its kind measures of it."""
    return {r.question: None if _failed(kind, r) else right_of(kind, scores.values[r.question]) for r in rows}


def _failed(kind: DataKind, row: Prediction) -> bool:
    return row.ranked is None if gold_form(kind) == "grades" else row.prediction is None


def _work(recipe: Recipe, oracle: Oracle | None) -> str:
    """Names the work of a run before the golds of its oracle are known."""
    return recipe.digest() if oracle is None else f"{recipe.digest()}-oracle-{oracle}"


def _with_oracle(
    pipeline: Pipeline, oracle: Oracle, questions: StoredQuestions, scoring: Scoring, done: RunCounters,
    show: Callable[[Plan], None], measured: Sequence[Manifest],
) -> tuple[OracleRecipe, Plan | None]:  # fmt: skip
    """The recipe with golds in the place of a stage. Those of passages are looked for in the tables, which
    are made before: the plan of that is shown first and returned. Raises ConfError where no question has a
    gold text."""
    golds = golds_of(pipeline.store, questions.ids, scoring.golds)
    if not any(g.answers for g in golds.values()):
        raise ConfError(
            f"--oracle {oracle}: expected questions with gold answers, found none of {len(questions)} with "
            f"one in {pipeline.store.uri}. Use data that has answers, or leave --oracle out"
        )
    planned = None
    if oracle == "passages":
        planned, _ = _planned(pipeline, questions, False, (), show, measured)
        pipeline.index(questions, done)
    return with_oracle(pipeline, oracle, questions, golds), planned


def _judging(
    pipeline: Pipeline, judge: Judge | None, questions: StoredQuestions, scoring: Scoring
) -> JudgePlan | None:
    """The most that a model that judges may be asked; None: no model judges."""
    if not isinstance(judge, ModelJudge):
        return None
    golds = golds_of(pipeline.store, questions.ids, scoring.golds)
    return judge_plan(judge.model, judge.rule, golds.values())


def _spend(pipeline: Pipeline, done: RunCounters) -> Spend | None:
    """What the caps say to a judge; None: there are none."""
    if not pipeline.caps.any:
        return None
    return lambda asked: pipeline.caps.check_judge(done, asked, pipeline.clock.total())


def _joined(indexed: Plan, answered: Plan, pipeline: Pipeline) -> Plan:
    """The plan of a run whose corpus half was planned and done before its question half."""
    steps = (*(s for s in indexed.steps if s.half == "corpus"),
             *(s for s in answered.steps if s.half == "question"))  # fmt: skip
    return priced(replace(answered, steps=steps), pipeline.caps.prices, pipeline.recipe)


def _planned(
    pipeline: Pipeline, questions: StoredQuestions, fresh: bool, old: Collection[str],
    show: Callable[[Plan], None], measured: Sequence[Manifest], judge: JudgePlan | None = None,
) -> tuple[Plan, set[str]]:  # fmt: skip
    """The plan, shown before anything is done, and the ids of the questions that will be answered again:
    those in `old`, and what an earlier command has left. Raises DiskFull where there is no room for what is
    planned."""
    asked, again = list(questions), set(old)
    if (left := pipeline.renewing()) is not None:
        asked += pipeline.questions([id for id in left.ids if id not in set(questions.ids)])
        again |= set(left.ids)
        fresh = fresh or left.fresh
    planned = plan(pipeline, asked, fresh=fresh, old=again, measured=measured)
    planned = priced(replace(planned, judge=judge), pipeline.caps.prices, pipeline.recipe)
    show(planned)
    need(pipeline.store, planned.bytes_at_least(), "what is planned")
    return planned, again


def _report(
    pipeline: Pipeline, questions: int, read: IngestSummary | None, answers: Collected, marks: Marks,
    scores: RunScores, judge: JudgeLine | None, planned: Plan, done: RunCounters, lost: Losses | None,
) -> EvalReport:  # fmt: skip
    corpus, faults = _corpus(pipeline, answers), _faults(pipeline, answers, read)
    seconds = pipeline.clock.total()
    return EvalReport(
        run=uuid.uuid4().hex,
        recipe=pipeline.recipe.title,
        digest=pipeline.recipe.digest(),
        seconds=seconds,
        clock=pipeline.clock.parts(),
        resumed=done.resumed,
        memo_damaged=done.memo_damaged,
        questions=questions,
        without_truth=answers.without_truth,
        normalized=_normalized(read),
        replaced=read.replaced if read else (),
        cost=_cost(pipeline, planned, done, seconds, judge),
        faults=faults,
        steps=_steps(pipeline, planned.planned(), done),
        marks=marks,
        scores=scores,
        judge=judge,
        answer_cut=_answer_cut(pipeline),
        prompt_injection=answers.prompt_injection,
        losses=lost,
        routing=answers.routing,
        **corpus,
    )


def _cost(
    pipeline: Pipeline, planned: Plan, done: RunCounters, seconds: float, judge: JudgeLine | None
) -> CostReport:
    """What the plan of this attempt expected, and what the attempt cost."""
    asks, prices = asking(pipeline.recipe), pipeline.caps.prices
    lines = _lines(pipeline.recipe, planned.planned(), done.since(), {})
    expected = planned.cost or estimated(planned, prices, asks)
    return CostReport(expected, spent(lines, seconds, prices, asks, judge), prices.unpriced)


def _answer_cut(pipeline: Pipeline) -> AnswerCut | None:
    """How the recipe cuts its answers, and with whose tokenizer."""
    for stage in pipeline.recipe.question:
        if (cut := answer_cut(stage.step)) is not None:
            tokens, tokenizer = cut
            return AnswerCut(tokens, tokenizer.name, tokenizer.weights)
    return None


def _normalized(read: IngestSummary | None) -> dict[str, int]:
    counts = read.counts if read else {}
    return {name: counts[name] for name in NORMALISED if counts.get(name)}


def _corpus(pipeline: Pipeline, answers: Collected) -> dict[str, Any]:
    """What these questions may search, counted in the stored tables."""
    chunks, parsers = 0, Counter[str]()
    for spans in _rows_of(pipeline.store, pipeline.passages_table, answers, ["start", "end"]):
        chunks += int(pc.sum(pc.greater(spans["end"], spans["start"])).as_py() or 0)
    for parsed in _rows_of(pipeline.store, pipeline.texts_table, answers, ["parser"]):
        parsers.update({r["values"]: r["counts"] for r in pc.value_counts(parsed["parser"]).to_pylist()})
    return {
        "citations": answers.citations,
        "distinct_pages": len(answers.pages),
        "empty_pages": answers.empty_pages,
        "chunks": chunks,
        "pages_compared": parsers["compared"] + parsers["fallback"],
        "parser_fallbacks": parsers["fallback"],
    }


def _rows_of(
    store: Store, table: str, answers: Collected, columns: Sequence[str]
) -> Iterator[pa.Table | pa.RecordBatch]:
    """Columns of a table for the sources that were searched, a batch at a time."""
    if answers.everything:
        return store.batches(table, columns)
    some = batches(sorted(answers.sources), SOURCES_AT_ONCE)
    return (store.rows(table, "source", ids, columns) for ids in some)


def _faults(pipeline: Pipeline, answers: Collected, read: IngestSummary | None) -> tuple[FaultCount, ...]:
    """Everything that failed, by step and reason: lines of the files read, sources, questions."""
    rows = pipeline.failed_sources(None if answers.everything else answers.sources)
    if read is not None:
        rows += pipeline.store.rows("faults", "digest", [read.fingerprint]).to_pylist()
    found = answers.faults + Counter((r["step"], r["reason"], r["transient"]) for r in rows)
    return tuple(FaultCount(step, why, again, n) for (step, why, again), n in sorted(found.items()))


def _steps(pipeline: Pipeline, planned: Mapping[str, int | None], done: RunCounters) -> tuple[StepLine, ...]:
    return _lines(pipeline.recipe, planned, done.counts, done.earlier.counts)


def _lines(
    recipe: Recipe, planned: Mapping[str, int | None], counts: Counts, earlier: Counts
) -> tuple[StepLine, ...]:
    stages = [(s.name, not asked_models(s.step)) for s in recipe.corpus]
    stages += [(s.name, False) for s in recipe.question]
    return tuple(
        _line(name, works, planned[name], *(c.get(name, StageCounters()) for c in (counts, earlier)))
        for name, works in stages
    )


def _line(
    name: str, works: bool, planned: int | None, count: StageCounters, earlier: StageCounters
) -> StepLine:
    """`works`: the stage calls no model; its work is its rows. What earlier attempts computed was in their
    own plans, and is added to this one's."""

    def asked(c: StageCounters) -> int:
        return c.rows - c.skipped if works else c.calls.computed

    tokens = count.calls.tokens
    whole = None if planned is None else planned + asked(earlier)
    return StepLine(
        name, count.rows, whole, asked(count), count.calls.cached, count.skipped,
        count.faults, count.seconds, tokens.prompt, tokens.cached, tokens.generated, asked(earlier),
        count.loading, tokens.thoughts,
    )  # fmt: skip
