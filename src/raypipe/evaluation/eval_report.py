"""The report of an eval, put together once from what was planned, done and scored.

Knows counters, plans and stored tables; scores nothing and writes no file.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core.ann import AnnRecall
from raypipe.evaluation.collect import Collected
from raypipe.evaluation.score_answers import ScoredAnswers
from raypipe.evaluation.seen import fit_lines, unseen_summary
from raypipe.metrics.calibration import stated_calibration
from raypipe.pipeline.counters import Counts, RunCounters
from raypipe.pipeline.driver import Pipeline, batches
from raypipe.pipeline.ingest_log import IngestSummary
from raypipe.recipes.executor import StageCounters
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.step_contract import answer_cut, asked_models
from raypipe.report.costs import CostReport
from raypipe.report.report import AnswerCut, EvalReport, FaultCount, JudgeLine, StepLine
from raypipe.runs.plan.money import asking, estimated, spent
from raypipe.runs.plan.records import Plan
from raypipe.store import Store

# Counts of the readers that say what was put right on the way in.
NORMALISED = (
    "blank_lines", "byte_order_marks", "crlf_lines", "nul_lines", "null_fields", "number_golds",
    "unknown_golds", "repeated_rows", "questions_without_pages", "dropped_rows", "made_questions",
    "unreviewed_questions",
)  # fmt: skip
SOURCES_AT_ONCE = 4096  # whose chunks are counted in one look: some 10 MB


@dataclass(frozen=True, slots=True)
class EvalWork:
    """What an eval did before it scored."""

    questions: int
    read: IngestSummary | None  # of the files it was given; None: it was given none
    plan: Plan
    done: RunCounters
    ann: tuple[AnnRecall, ...]  # of the approximate indexes that were searched
    oracle: str  # whose golds stood in the place of a stage: EvalReport.oracle
    oracle_golds: int  # questions of which they did


def eval_report(pipeline: Pipeline, work: EvalWork, scored: ScoredAnswers) -> EvalReport:
    """The report of a run whose answers are scored. Its id is made here."""
    recipe, answers, planned, done = pipeline.recipe, scored.answers, work.plan.planned(), work.done
    seconds = pipeline.clock.total()
    return EvalReport(
        run=uuid.uuid4().hex,
        recipe=recipe.title,
        digest=recipe.digest(),
        seconds=seconds,
        clock=pipeline.clock.parts(),
        resumed=done.resumed,
        memo_damaged=done.memo_damaged,
        questions=work.questions,
        without_truth=answers.without_truth,
        normalized=_normalized(work.read),
        replaced=work.read.replaced if work.read else (),
        cost=_cost(pipeline, work.plan, done, seconds, scored.judge),
        faults=_faults(pipeline, answers, work.read),
        steps=_lines(recipe, planned, done.counts, done.earlier.counts),
        marks=scored.marks,
        scores=scored.scores,
        judge=scored.judge,
        labels=scored.labels,
        answer_cut=_answer_cut(recipe),
        prompt_injection=answers.prompt_injection,
        losses=scored.lost,
        routing=answers.routing,
        calibration=stated_calibration(answers.stated, scored.right),
        fits=fit_lines(recipe, answers.texts),
        unseen=unseen_summary(recipe, scored.kind, scored.scores, answers.texts),
        oracle=work.oracle,
        oracle_golds=work.oracle_golds,
        ann=work.ann,
        **_corpus(pipeline, answers),
    )


def _cost(
    pipeline: Pipeline, planned: Plan, done: RunCounters, seconds: float, judge: JudgeLine | None
) -> CostReport:
    """What the plan of this attempt expected, and what the attempt cost."""
    asks, prices = asking(pipeline.recipe), pipeline.caps.prices
    lines = _lines(pipeline.recipe, planned.planned(), done.since(), {})
    expected = planned.cost or estimated(planned, prices, asks)
    return CostReport(expected, spent(lines, seconds, prices, asks, judge), prices.unpriced)


def _answer_cut(recipe: Recipe) -> AnswerCut | None:
    """How the recipe cuts its answers, and with whose tokenizer."""
    for stage in recipe.question:
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
