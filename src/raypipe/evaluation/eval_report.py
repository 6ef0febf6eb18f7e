"""Scoring of a run's answers by rule, judge and people, and the run's record.

`score_answers` computes verdicts and measures, and calls the judge. `run_record` puts verdicts, measures,
counters, plan and statistics of tables into the record (`runs.record.Run`). No answers are computed here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raypipe.core.bounded_rows import batches
from raypipe.core.records import IDK
from raypipe.evaluation.collect import CollectedAnswers
from raypipe.evaluation.golds import Scoring
from raypipe.evaluation.judge import Judge
from raypipe.evaluation.judged_run import PersonLabels, labelled
from raypipe.evaluation.result_table import verdict_of
from raypipe.metrics import kinds
from raypipe.metrics.calibration import stated_calibration
from raypipe.metrics.kinds import kind_id
from raypipe.metrics.losses import Losses, losses
from raypipe.metrics.verdict_rules import Marks, Prediction
from raypipe.recipes.executor import StageCounters
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.serialize import to_plain
from raypipe.recipes.step_contract import answer_cut, answering, asked_models, chat_kinds
from raypipe.recipes.wiring import fits_of, has_seen
from raypipe.runs.pipeline.counters import Counts, RunCounters
from raypipe.runs.pipeline.driver import Pipeline
from raypipe.runs.pipeline.ingest_log import IngestSummary
from raypipe.runs.plan.costs import asking, estimated, spent
from raypipe.runs.plan.planner import known_rate, measured_rate
from raypipe.runs.plan.records import Plan
from raypipe.runs.record import Run
from raypipe.runs.run_parts import (
    AnswerCut,
    CostReport,
    CutReplies,
    FaultCount,
    FitLine,
    JudgeLine,
    LabelLine,
    StepLine,
)
from raypipe.runs.stage_records import describe, models_of
from raypipe.steps.generate import Generate

# Names of the counts of repairs that readers made to the input.
NORMALISED = (
    "blank_lines",
    "byte_order_marks",
    "crlf_lines",
    "nul_lines",
    "null_fields",
    "number_golds",
    "unknown_golds",
    "repeated_rows",
    "questions_without_pages",
    "dropped_rows",
    "made_questions",
    "unreviewed_questions",
)
SOURCES_AT_ONCE = 4096  # sources whose chunks are counted in one read: some 10 MB


@dataclass(frozen=True, slots=True)
class ScoredAnswers:
    """Verdicts and measures of a run's answers."""

    answers: CollectedAnswers
    kind: kinds.DataKind
    rows: Sequence[Prediction]  # answers with a gold, with the verdicts of judge and people
    marks: Marks
    scores: kinds.RunScores
    right: Mapping[str, bool | None]  # question id -> whether its answer is right; None: not scored
    lost: Losses | None  # wrong answers by place of the loss, without kept answers
    judge: JudgeLine | None  # None: no judge
    labels: LabelLine | None  # None: no labels given
    cut: tuple[CutReplies, ...]


def score_answers(
    pipeline: Pipeline,
    answers: CollectedAnswers,
    scoring: Scoring,
    done: RunCounters,
    judge: Judge | None,
    labels: PersonLabels | None,
    fresh: bool,
) -> ScoredAnswers:
    """Scores the collected answers of a run. `judge` decides answers that the rule leaves open; without it,
    only `labels` do. `labels` are people's, and outrank rule and judge. `fresh` ignores the judge's cached
    replies. `done` has the counters of the run; a cap on them also stops the judge."""
    rows, said = list(answers.rows), None
    if judge is not None:
        caps = pipeline.caps
        spend = (lambda asked: caps.check(done, pipeline.clock.total(), asked)) if caps.any else None
        replies, said = judge.ask(pipeline.store, rows, answers.texts, fresh, spend)
        rows = [replace(r, judge_response=replies.get(r.question)) for r in rows]
    if labels is not None:
        rows = labelled(rows, labels)
    cut = list[CutReplies]()
    for stage in pipeline.recipe.question:
        calls = done.counts.get(stage.name, StageCounters()).calls
        short, replies_of = calls.tokens.cut, calls.replies.computed + calls.replies.cached
        if isinstance(step := stage.step, Generate):  # its replies are stored, at most one per question
            short, replies_of = answers.cut[step.into], answers.replies[step.into]
        if short:
            [most, *_] = [sampling.max_tokens for _, sampling, _ in chat_kinds(step)]
            cut.append(CutReplies(stage.name, short, replies_of, most))
    if said is not None and said.cut:
        cut.append(CutReplies("the judge", said.cut, said.computed + said.cached, said.max_tokens))
    marks, scores = kinds.marks_of(scoring.kind, rows), kinds.score(scoring.kind, kind_id(scoring.name), rows)
    right = verdicts(scoring.kind, rows, scores)
    own = {id: fine for id, fine in right.items() if id not in answers.kept}
    used = sum(r.person is not None for r in rows)
    of_labels = (
        LabelLine(labels.file, len(labels.by_answer), used, marks.people) if labels is not None else None
    )
    return ScoredAnswers(
        answers=answers,
        kind=scoring.kind,
        rows=rows,
        marks=marks,
        scores=scores,
        right=right,
        lost=losses(own, answers.lost, (*answers.loss_notes, *(c.sentence() for c in cut))),
        cut=tuple(cut),
        judge=said,
        labels=of_labels,
    )


def verdicts(
    kind: kinds.DataKind, rows: Sequence[Prediction], scores: kinds.RunScores
) -> dict[str, bool | None]:
    """Maps question ids to whether the answer is right; None: not scored, such as a failed question."""
    ranks = kinds.gold_form(kind) == "grades"
    failed = {r.question for r in rows if (r.ranked if ranks else r.prediction) is None}
    values = ((r.question, scores.values[r.question]) for r in rows)
    return {id: None if id in failed else kinds.right_of(kind, v, id) for id, v in values}


def run_record(
    pipeline: Pipeline,
    scored: ScoredAnswers,
    plan: Plan,
    done: RunCounters,
    read: IngestSummary | None,
    measured: Sequence[Run],
    **known: Any,
) -> Run:
    """Builds the record of a run whose answers are scored. Failed sources and lines count as faults, too.
    `done` has the counters of the run, `read` the summary of the ingested files, `measured` earlier runs on
    this machine, and `known` further fields of the record."""
    recipe, answers, worker = pipeline.recipe, scored.answers, pipeline.worker
    seconds, asks, prices = pipeline.clock.total(), asking(recipe), pipeline.caps.prices
    attempt = _lines(recipe, plan, done.since(), {})
    cut = next((c for s in recipe.question if (c := answer_cut(s.step)) is not None), None)
    failed = pipeline.failed_sources(None if answers.everything else answers.sources)
    if read is not None:
        failed += pipeline.store.rows("faults", "digest", [read.fingerprint]).to_pylist()
    for r in failed:
        answers.faults.count(r["step"], r["reason"], r["detail"], r["transient"])
    return Run(
        **known,
        **_answers(recipe, scored),
        **_corpus(pipeline, answers),
        store=pipeline.store.uri,
        finished=time.time(),
        seconds=seconds,
        clock=pipeline.clock.parts(),
        digest=recipe.digest(),
        recipe=to_plain(recipe),
        stages=describe(recipe),
        models=models_of(recipe.models()),
        backend=worker.backend,
        device=worker.device,
        batch_invariant=worker.engine_limits.batch_invariant,
        rows_by_worker=done.rows_by_worker,
        snapshot=pipeline.snapshot(),
        normalized={n: read.counts[n] for n in NORMALISED if read.counts.get(n)} if read else {},
        replaced=read.replaced if read else (),
        steps=_lines(recipe, plan, done.counts, done.earlier.counts),
        faults=tuple(
            FaultCount(step, why, again, n, mended, answers.faults.details[step, why, again, mended])
            for (step, why, again, mended), n in sorted(answers.faults.causes.items())
        ),
        cost=CostReport(
            plan.cost or estimated(plan, prices, asks),
            spent(attempt, seconds, prices, asks, scored.judge),
            prices.unpriced,
        ),
        resumed=done.resumed,
        memo_damaged=done.memo_damaged,
        answer_cut=cut and AnswerCut(cut[0], cut[1].name, cut[1].weights),
        flips=measured_rate(recipe, done.counts, known["run"]) or known_rate(recipe, worker, measured),
    )


def _answers(recipe: Recipe, scored: ScoredAnswers) -> dict[str, Any]:
    """Returns the record's fields about scores and about questions that a fit of the recipe has seen."""
    answers, scores, texts = scored.answers, scored.scores, scored.answers.texts
    fits, rows = fits_of(recipe), scored.rows
    unseen = {q for q, text in texts.items() if not has_seen(fits.values(), text)}
    left = [r for r in rows if r.question in unseen] if len(unseen) < len(texts) else None
    counts = Counter(verdict_of(r.prediction, scored.right[r.question]) for r in rows)
    asks_documents = kinds.gold_form(scored.kind) == "grades"
    by = dict.fromkeys((name for s in recipe.question for name in answering(s.step)), 0)
    lines = []
    for step, on in fits.items():
        seen = sum(map(on.has_seen, texts.values())) if on.seen else None
        lines.append(FitLine(step, on.data, on.split, on.metric, on.recipe, on.n or None, seen, len(texts)))
    return {
        "without_truth": answers.without_truth,
        "kept": Counter(answers.kept.values()),
        "cut_replies": scored.cut,
        "kind": scores.kind,
        "answers": {} if asks_documents else {n: counts[n] for n in ("right", "wrong", IDK, "not scored")},
        "lead": scores.lead,
        "measures": scores.measures,
        "measure_slices": scores.slices,
        "blocks": scores.blocks,
        "by_rule": scored.marks.total() if scored.marks.rule else None,
        "judge": scored.judge,
        "labels": scored.labels,
        "answered_by": dict(sorted((by | answers.answered_by).items(), key=lambda n: -n[1])),
        "losses": scored.lost,
        "fits": tuple(lines),
        "unseen": None if left is None else kinds.summary_of(scored.kind, scores.lead, scores.values, left),
        "routing": answers.routing,
        "calibration": stated_calibration(answers.stated, scored.right),
        "prompt_injection": answers.prompt_injection,
    }


def _corpus(pipeline: Pipeline, answers: CollectedAnswers) -> dict[str, Any]:
    """Returns the record's fields about the searched sources, counted in the stored tables."""
    chunks, parsers = 0, Counter[str]()

    def rows(table: str, *columns: str) -> Iterator[pa.Table | pa.RecordBatch]:
        """Yields columns of a table for the searched sources, a batch at a time."""
        if answers.everything:
            return pipeline.store.batches(table, columns)
        some = batches(sorted(answers.sources), SOURCES_AT_ONCE)
        return (pipeline.store.rows(table, "source", ids, columns) for ids in some)

    for spans in rows(pipeline.recipe.passages_table, "start", "end"):
        chunks += int(pc.sum(pc.greater(spans["end"], spans["start"])).as_py() or 0)
    for parsed in rows(pipeline.recipe.texts_table, "parser"):
        parsers.update({r["values"]: r["counts"] for r in pc.value_counts(parsed["parser"]).to_pylist()})
    return {
        "citations": answers.citations,
        "distinct_pages": len(answers.pages),
        "empty_pages": answers.empty_pages,
        "chunks": chunks,
        "pages_compared": parsers["compared"] + parsers["fallback"],
        "parser_fallbacks": parsers["fallback"],
    }


def _lines(recipe: Recipe, plan: Plan, counts: Counts, earlier: Counts) -> tuple[StepLine, ...]:
    """Returns a line of calls and counters for each stage. A corpus stage that calls no model counts rows in
    place of calls. The plan lacks the work of stopped attempts, so `earlier`, which counts this work, is
    added to the planned and expected calls."""
    planned, likely = plan.planned(), {s.step: s.expected for s in plan.steps}
    reasons = {s.step: tuple(s.reasons) for s in plan.steps}
    works = {s.name for s in recipe.corpus if not asked_models(s.step)}
    out = []
    for name in (s.name for half in (recipe.corpus, recipe.question) for s in half):
        count, before = (c.get(name, StageCounters()) for c in (counts, earlier))
        asked, resumed = (c.rows - c.skipped if name in works else c.calls.computed for c in (count, before))
        tokens, bound = count.calls.tokens, planned[name]
        line = StepLine(
            name,
            count.rows,
            None if bound is None else bound + resumed,
            asked,
            count.calls.cached,
            count.skipped,
            count.faults,
            count.seconds,
            tokens.prompt,
            tokens.cached,
            tokens.generated,
            resumed,
            count.loading,
            tokens.thoughts,
            None if (low_high := likely[name]) is None else (low_high[0] + resumed, low_high[1] + resumed),
            reasons[name],
        )
        out.append(line)
    return tuple(out)
