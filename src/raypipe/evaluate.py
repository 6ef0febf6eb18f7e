"""A data set through a recipe to a score: ingest, index, answer, score, and the report of it all.

Knows the pipeline and the metrics. The only reader of golds and labels after ingest.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from raypipe import arrow
from raypipe.account import account
from raypipe.errors import DataError
from raypipe.index import LanceIndex
from raypipe.ingest import Ingested, ingest
from raypipe.judge import Judge, Judged, judged
from raypipe.kit import LocalKit
from raypipe.manifest import Manifest, Origin
from raypipe.memo import Tally, remembering
from raypipe.memo.disk import StoreMemo, fold_memo, memo_versions
from raypipe.metrics.crag import Rule, Scored, mark, pair
from raypipe.metrics.hygiene import Obeyed, obeyed
from raypipe.pipeline import Done, Pipeline, searched
from raypipe.plan import Plan, plan
from raypipe.readers import Format
from raypipe.records import Gold, Question
from raypipe.report.report import EvalReport, FaultCount, JudgeLine, Outputs, StepLine, write_report
from raypipe.run import StageCount
from raypipe.steps.embed import Embed
from raypipe.steps.generate import Generate

# Counts of the readers that say what was put right on the way in, for the report.
NORMALISED = (
    "blank_lines", "byte_order_marks", "crlf_lines", "nul_lines", "null_fields", "number_golds",
    "repeated_rows", "questions_without_pages",
)  # fmt: skip
NOWHERE = Origin()


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an eval came to."""

    report: EvalReport
    outputs: Outputs
    reused: int  # questions whose answers were there before this run
    resumed: int  # parts that a killed run had done
    manifest: Manifest


def questions_of(pipeline: Pipeline, ids: Sequence[str] | None, limit: int | None) -> list[Question]:
    """Stored questions by id, in that order; None: all of them, by id. Only the first `limit`."""
    if ids is None:
        table = pipeline.store.dataset("questions").to_table()
        return sorted(arrow.question.records(table), key=lambda q: q.id)[:limit]
    wanted = list(ids[:limit])
    found = {q.id: q for q in arrow.question.records(pipeline.store.rows("questions", "id", wanted))}
    return [found[id] for id in wanted]


def evaluate(
    pipeline: Pipeline,
    data: Sequence[Path],
    format: Format,
    limit: int | None,
    rule: Rule,
    out: Path,
    judge: tuple[Judge, LocalKit] | None = None,
    fresh: bool = False,
    origin: Origin = NOWHERE,
    show: Callable[[Plan], None] = lambda plan: None,
) -> Evaluation:
    """Runs what is missing, scores every question, and writes the report. Without `data`: all that is stored.

    `judge` is who decides what the rule leaves open, and the kit that asks it; `fresh` asks every language
    model again. `show` gets the plan before anything runs. The manifest is written last.

    Raises DataError if there are no questions, and what ingest, index and answer raise.
    """
    start, started = time.perf_counter(), time.time()
    read = ingest(pipeline.store, data, format, pipeline.progress) if data else None
    questions = questions_of(pipeline, read.questions if read else None, limit)
    if not questions:
        where = ", ".join(map(str, data)) or pipeline.store.uri
        raise DataError(f"{where}: no questions. `raypipe ingest PATH` reads some into a store")
    with pipeline.store.lease("driver", f"plan {pipeline.recipe.name}"):
        fold_memo(pipeline.store)
    memo = memo_versions(pipeline.store)
    planned = plan(pipeline, questions, fresh=fresh)
    show(planned)
    todo = {q.id for q in questions}
    if not fresh:
        todo = set(pipeline.unanswered(questions, pipeline.snapshot()))
    indexed = pipeline.index(questions)
    asked = pipeline.answer(questions, fresh)
    answered = pipeline.answers(questions)
    golds = _golds(pipeline, questions)
    rows, without = pair(answered, golds, {})
    verdict = None
    if judge is not None:
        said, verdict = _judge(pipeline, *judge, rows, questions, fresh)
        rows, without = pair(answered, golds, said)
    report = EvalReport(
        run=uuid.uuid4().hex,
        recipe=pipeline.recipe.name,
        digest=pipeline.recipe.digest(),
        seconds=time.perf_counter() - start,
        questions=len(questions),
        without_truth=len(without),
        normalised=_normalised(read),
        faults=_faults(pipeline, questions, answered, read),
        steps=_steps(pipeline, planned.planned(), indexed, asked),
        marks=mark(rows, rule),
        judge=verdict,
        planted=_planted(pipeline, answered),
        **_corpus(pipeline, questions),
    )
    outputs = write_report(out, report, answered, rows)
    manifest = account(pipeline, questions, todo, report, planned, memo, started, origin, out)
    new = next(iter(asked.counts.values()), StageCount()).rows
    return Evaluation(report, outputs, len(questions) - new, indexed.resumed + asked.resumed, manifest)


def _planted(pipeline: Pipeline, answered: Sequence[Question]) -> Obeyed | None:
    """How often an order that a page gives reached an answer; None for recipes that ask no language model."""
    if not any(isinstance(s.step, Generate) for s in pipeline.recipe.question):
        return None
    chunks = list(dict.fromkeys(c for q in answered for c in q.order))
    index = LanceIndex(searched(pipeline.store, pipeline.recipe))
    texts = dict(zip(chunks, asyncio.run(index.texts(chunks)), strict=True))
    return obeyed(([texts[c] for c in q.order], q.answer) for q in answered)


def _judge(
    pipeline: Pipeline,
    judge: Judge,
    kit: LocalKit,
    rows: Sequence[Scored],
    questions: Sequence[Question],
    fresh: bool,
) -> tuple[Mapping[str, str], JudgeLine]:
    """The judge's replies by question id, remembered like any others, and what they took."""
    store, tally = pipeline.store, Tally()
    known = {n: v for n, v in memo_versions(store).items() if not (fresh and n.startswith("replies-"))}
    generate = remembering(kit, StoreMemo(store.uri, known), tally).generator(judge.model)

    async def ask() -> Judged:
        try:
            return await judged(judge, generate, rows, {q.id: q.text for q in questions})
        finally:
            await kit.close()

    done = asyncio.run(ask())
    with store.lease("driver", f"judge {pipeline.recipe.name}"):
        fold_memo(store, fresh)
    line = JudgeLine(
        model=judge.model.name,
        pairs=done.pairs,
        asked=tally.replies.asked,
        remembered=tally.replies.remembered,
        unreadable=done.unreadable,
        no_reply=done.no_reply,
        faults=dict(done.faults),
        prompt_tokens=tally.tokens.prompt,
        cached_tokens=tally.tokens.cached,
        generated_tokens=tally.tokens.generated,
    )
    return done.replies, line


def _golds(pipeline: Pipeline, questions: Sequence[Question]) -> Mapping[str, Gold]:
    rows = pipeline.store.rows("golds", "question", [q.id for q in questions])
    return {g.question: g for g in arrow.gold.records(rows)}


def _normalised(read: Ingested | None) -> dict[str, int]:
    counts = read.counts if read else {}
    return {name: counts[name] for name in NORMALISED if counts.get(name)}


def _corpus(pipeline: Pipeline, questions: Sequence[Question]) -> dict[str, Any]:
    """What these questions may search, counted in the stored tables."""
    cited = [c for q in questions for c in q.citations or ()]
    pages = list(dict.fromkeys(c.page for c in cited if c.page))
    sources = list(dict.fromkeys(s for c in cited for s in c.sources()))
    if any(q.citations is None for q in questions):
        texts = pipeline.store.dataset(pipeline.texts_table).to_table(["source"])
        sources = texts["source"].to_pylist()
    spans = pipeline.store.rows(pipeline.passages_table, "source", sources, ["start", "end"])
    parsed = pipeline.store.rows(pipeline.texts_table, "source", sources, ["parser"])
    parsers = Counter(parsed["parser"].to_pylist())
    return {
        "citations": len(cited),
        "distinct_pages": len(pages),
        "empty_pages": sum(c.page is None for c in cited),
        "chunks": int(pc.sum(pc.greater(spans["end"], spans["start"])).as_py() or 0),
        "pages_compared": parsers["compared"] + parsers["fallback"],
        "parser_fallbacks": parsers["fallback"],
    }


def _faults(
    pipeline: Pipeline, questions: Sequence[Question], answered: Sequence[Question], read: Ingested | None
) -> tuple[FaultCount, ...]:
    """Everything that could not be done, by step and reason: lines, sources, questions."""
    sources = {s for q in questions for s in q.sources() or ()}
    vectors = map(pipeline.vectors_table, pipeline.recipe.embedders())
    tables = {pipeline.texts_table, pipeline.passages_table, *vectors}
    found: Counter[tuple[str, str, bool]] = Counter()
    for row in pipeline.store.dataset("faults").to_table().to_pylist():
        of_source = row["digest"] in tables and (row["id"] in sources or not sources)
        of_line = row["digest"] == "ingest" and read is not None
        if of_source or of_line:
            found[row["step"], row["reason"], row["transient"]] += 1
    for q in answered:
        for f in q.faults:
            found[f.step, f.reason, f.transient] += 1
        if not q.outcome:
            found["answer", "not_reached", True] += 1
    return tuple(FaultCount(*key, rows) for key, rows in sorted(found.items()))


def _steps(
    pipeline: Pipeline, planned: Mapping[str, int], indexed: Done, asked: Done
) -> tuple[StepLine, ...]:
    lines = []
    for stage in pipeline.recipe.corpus:
        count = indexed.counts.get(stage.name, StageCount())
        works = not isinstance(stage.step, Embed)  # asks no model: what it did is its rows
        lines.append(_line(stage.name, planned, count, count.rows if works else count.tally.asked))
    for question in pipeline.recipe.question:
        count = asked.counts.get(question.name, StageCount())
        lines.append(_line(question.name, planned, count, count.tally.asked))
    return tuple(lines)


def _line(name: str, planned: Mapping[str, int], count: StageCount, asked: int) -> StepLine:
    tokens = count.tally.tokens
    return StepLine(
        name, count.rows, planned[name], asked, count.tally.remembered, count.skipped, count.faults,
        count.seconds, tokens.prompt, tokens.cached, tokens.generated,
    )  # fmt: skip
