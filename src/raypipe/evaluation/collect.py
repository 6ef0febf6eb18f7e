"""All answers of a run, passed once, a batch at a time: each leaves its line in predictions.jsonl, and what
scoring and the report need of it. Later the lines get their truths and verdicts.

Knows the pipeline, the metrics and the report's records; decides no verdict. Never are more than a batch of
answers in memory, however many there are.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import tee
from pathlib import Path
from typing import TextIO

from raypipe.core import arrow
from raypipe.core.records import Question, Quote, chunk_id
from raypipe.metrics.crag import Prediction, Rule, Verdict, pair
from raypipe.metrics.prompt_injection import PromptInjection, followed
from raypipe.metrics.textfile import replaced
from raypipe.pipeline.answer_sources import AnswerSources
from raypipe.pipeline.driver import Pipeline, batches
from raypipe.pipeline.recipe_tables import searched
from raypipe.report.page import HITS_SHOWN, SHOWN, ReportPassage, ShownQuestion
from raypipe.report.report import prediction, prediction_line, ranking, urls
from raypipe.store.index import LanceIndex

AT_ONCE = 100  # answers in memory: some 40 kB each with fifty citations and twenty hits


@dataclass(slots=True)
class Collected:
    """What stays of the answers when they have passed."""

    rows: list[Prediction] = field(default_factory=list)  # those with a truth, in order
    texts: dict[str, str] = field(default_factory=dict)  # question id -> question, of the same
    without_truth: int = 0  # questions that the dataset has no answer to
    shown: list[ShownQuestion] = field(default_factory=list)  # the first SHOWN questions
    faults: Counter[tuple[str, str, bool]] = field(default_factory=Counter)  # step, reason, transient
    citations: int = 0
    empty_pages: int = 0  # citations without a page
    pages: set[str] = field(default_factory=set)  # ids of the cited pages
    sources: set[str] = field(default_factory=set)  # ids of all that is cited
    everything: bool = False  # True: some question may search everything in the store
    prompt_injection: PromptInjection | None = (
        None  # orders in pages that reached an answer; None: not looked for
    )


def collect(
    pipeline: Pipeline, questions: Iterable[Question], sources: AnswerSources, lines: TextIO, injections: bool
) -> Collected:
    """Passes the answers of these questions, in order. `sources`: what they are answered from. `injections`:
    whether to look for prompt injections that answers follow. Raises KeyError for a passage without a text,
    which is a defect: no step makes one.
    """
    found, index = Collected(), LanceIndex(searched(pipeline.store, pipeline.recipe))
    with asyncio.Runner() as loop:
        asked, questions = tee(questions)
        for pairs in batches(zip(asked, pipeline.answers(questions, sources), strict=True), AT_ONCE):
            batch = [answered for _, answered in pairs]
            for question, answered in pairs:
                lines.write(prediction_line(answered))
                _count(question, answered, found)
            _pair(pipeline, batch, found)
            found.shown += loop.run(_shown(index, batch[: SHOWN - len(found.shown)]))
            if injections:
                before = found.prompt_injection or PromptInjection(0, 0)
                found.prompt_injection = loop.run(_injected(index, batch, before))
    return found


def _count(question: Question, answered: Question, found: Collected) -> None:
    """Counts what a question may search, which a step may have narrowed since, and what stopped it."""
    found.faults.update((f.step, f.reason, f.transient) for f in answered.faults)
    if not answered.outcome and not answered.faults:
        found.faults["answer", "not_reached", True] += 1
    found.everything |= question.citations is None
    cited = question.citations or ()
    found.citations += len(cited)
    found.empty_pages += sum(c.page is None for c in cited)
    found.pages.update(c.page for c in cited if c.page)
    found.sources.update(s for c in cited for s in c.sources())


def _pair(pipeline: Pipeline, batch: Sequence[Question], found: Collected) -> None:
    stored = pipeline.store.rows("golds", "question", [q.id for q in batch])
    rows, without = pair(batch, {g.question: g for g in arrow.gold.records(stored)}, {})
    found.rows += rows
    found.without_truth += len(without)
    text = {q.id: q.text for q in batch}
    found.texts.update((r.question, text[r.question]) for r in rows)


def add_truths(
    predictions: Path, rows: Sequence[Prediction], verdicts: Iterable[Verdict], rule: Rule
) -> None:
    """Adds to each line of predictions.jsonl what `raypipe score crag` needs: the right answer, its
    alternatives, and the judge's reply with the rule that it was asked by; and the verdict.

    `verdicts` are those of `rows`, in order. A question without a truth has the answer null.
    """
    truths = {r.question: (r, v) for r, v in zip(rows, verdicts, strict=True)}
    with predictions.open(encoding="utf-8") as lines, replaced(predictions) as out:
        for line in map(json.loads, lines):
            row, verdict = truths.get(line["id"], (None, None))
            hits = line.pop("hits")
            line["answer"] = row.truths[0] if row else None
            line["alternatives"] = list(row.truths[1:]) if row else []
            line["verdict"] = verdict.outcome if verdict else None
            if row and row.judge_response is not None:
                line |= {"judge_response": row.judge_response, "judge_rule": rule}
            out.write(json.dumps({**line, "hits": hits}, ensure_ascii=False, allow_nan=False) + "\n")


async def _shown(index: LanceIndex, batch: Sequence[Question]) -> list[ShownQuestion]:
    """What the page shows of these questions, with what the passages say and the quotes that are cited."""
    best = {q.id: ranking(q)[:HITS_SHOWN] for q in batch}
    cited = {q.id: _quotes(q) for q in batch}
    chunks = [h.chunk for hits in best.values() for h in hits]
    chunks += [chunk_id(c.source, c.span) for quotes in cited.values() for c in quotes]
    distinct = list(dict.fromkeys(chunks))
    text = dict(zip(distinct, await index.texts(distinct), strict=True))
    out = []
    for q in batch:
        url, quotes = urls(q), cited[q.id]
        passages = tuple(ReportPassage.of(h, url.get(h.source), text[h.chunk], quotes) for h in best[q.id])
        said = tuple(text[chunk_id(c.source, c.span)] for c in quotes)
        answer = prediction(q)["prediction"]
        out.append(ShownQuestion(q.id, q.text, answer, q.origin, len(q.hits), passages, said))
    return out


def _quotes(question: Question) -> tuple[Quote, ...]:
    reply = question.replies.get(question.origin)
    return reply.quotes if reply else ()


async def _injected(index: LanceIndex, batch: Sequence[Question], before: PromptInjection) -> PromptInjection:
    """How often an order that a page gives reached an answer, with what was counted before."""
    chunks = list(dict.fromkeys(c for q in batch for c in q.order))
    text = dict(zip(chunks, await index.texts(chunks), strict=True))
    here = followed(([text[c] for c in q.order], q.answer) for q in batch)
    return PromptInjection(before.exposed + here.exposed, before.followed + here.followed)
