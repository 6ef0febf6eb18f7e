"""What a scored run writes down of itself: files, page, manifest, and the key of each of its answers.

Knows pipelines, plans, reports and manifests; computes nothing of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from raypipe.core.records import Question
from raypipe.evaluation.export import write_predictions
from raypipe.evaluation.view.run_page import write_page
from raypipe.pipeline.answer_sources import AnswerSources
from raypipe.pipeline.driver import Pipeline
from raypipe.pipeline.recipe_tables import table_names
from raypipe.recipes.serialize import to_plain
from raypipe.report.report import EvalReport, RunFolder, write_report
from raypipe.runs.changes import earlier_run
from raypipe.runs.manifest import FORMAT, AnswerKey, Manifest, Origin, recent, write
from raypipe.runs.plan.records import Plan
from raypipe.runs.stage_records import describe, models_of
from raypipe.store.keep import compact, tables


def write_run(
    pipeline: Pipeline, questions: Iterable[Question], sources: AnswerSources, todo: set[str],
    report: EvalReport, planned: Plan, memo: Mapping[str, int], started: float, origin: Origin,
    places: Mapping[str, Mapping[str, int]], out: Path,
) -> Manifest:  # fmt: skip
    """Writes the files and the page of a run, compacts the tables, and writes its manifest into the store and
    into its folder `out`, there last.

    `sources`: what the questions were answered from. `todo`: ids of those without an answer when the run
    began to answer. `memo`: the memo tables and their versions before the run. `started`: seconds since the
    epoch. `places`: pool -> who did parts -> rows.
    """
    store, folder = pipeline.store, RunFolder(out)
    write_predictions(folder)
    write_report(folder, report)
    for table in tables(store):
        compact(store, table)
    manifest = _manifest(pipeline, report, planned, memo, started, origin, places)
    recipe, verdicts = pipeline.recipe.digest(), {v.question: v.outcome for v in report.marks.verdicts}
    keys = [
        AnswerKey(
            q.id, sources.key(recipe, q), sources.row(q), q.id not in todo, sources.absent(q),
            verdicts.get(q.id), report.scores.values.get(q.id),
        )
        for q in questions
    ]  # fmt: skip
    write_page(folder, manifest, earlier_run(store, {k.question for k in keys}))
    write(store, manifest, keys, out)
    return manifest


def _manifest(
    pipeline: Pipeline, report: EvalReport, planned: Plan, memo: Mapping[str, int], started: float,
    origin: Origin, places: Mapping[str, Mapping[str, int]],
) -> Manifest:  # fmt: skip
    store, recipe = pipeline.store, pipeline.recipe
    tables = (*table_names(store, recipe), "answers", "questions", "golds")
    tables += ("layouts",) if store.has("layouts") else ()
    before = recent(store, 1)
    names = ("questions", "citations", "distinct_pages", "empty_pages", "chunks", "without_truth")
    return Manifest(
        format=FORMAT,
        run=report.run,
        store=store.uri,
        started=started,
        finished=time.time(),
        previous=before[0].run if before else "",
        digest=recipe.digest(),
        recipe=to_plain(recipe),
        stages=describe(recipe),
        models=models_of(recipe),
        questions=report.questions,
        snapshot=pipeline.snapshot(),
        tables={t: store.version(t) for t in tables},
        memo=memo,
        counts={name: getattr(report, name) for name in names},
        score=asdict(report.marks.score),
        plan=planned.to_json(),
        steps=report.steps,
        faults=report.faults,
        backend=pipeline.worker.backend,
        device=pipeline.worker.device,
        origin=origin,
        rows_by_worker=places,
        rule=report.marks.rule,
        judge=report.judge.model if report.judge else "",
        kind=report.scores.kind,
        lead=report.scores.lead,
        measures={m.measure: m for m in report.scores.measures},
        seen=report.fits[0].of - report.unseen.of if report.unseen else 0,
        oracle=report.oracle,
    )
