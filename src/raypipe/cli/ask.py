"""`raypipe ask`: one question, from the store or from pages in a file."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from raypipe import arrow, readers
from raypipe.cli import options
from raypipe.cli.opened import addresses, cluster_file, recipe_of
from raypipe.cli.settings import Settings
from raypipe.errors import DataError
from raypipe.index import LanceIndex
from raypipe.kit import LocalKit
from raypipe.pipeline import searched
from raypipe.recipe import Recipe
from raypipe.records import Question, Source, digest
from raypipe.report.report import prediction, ranking, urls
from raypipe.request import answer_over
from raypipe.run import Questions, StageCount
from raypipe.step import Index
from raypipe.store import Store

SHOWN, SHOWN_CHARS = 3, 160  # quotes of a reply and characters of each on a terminal; `--json` has all


def add(commands: options.Commands) -> None:
    """Declares `ask`."""
    made = options.command(
        commands,
        "ask",
        "answer one question, from the store or from pages in a file",
        'raypipe ask local "who directed the film?" --pages pages.jsonl',
        _ask,
    )
    options.recipe(made)
    made.add_argument("question", metavar="QUESTION", help="the question; or the id of a stored one")
    made.add_argument(
        "--pages", metavar="FILE", type=Path, help="a CRAG line: its search results are searched"
    )
    made.add_argument("--time", metavar="T", default="", help='when it is asked: "03/05/2024, 23:18:31 PT"')
    options.store(made)
    options.cluster(made)
    options.as_json(made)


def _ask(args: argparse.Namespace, settings: Settings) -> int:
    recipe = recipe_of(args, settings)
    start = time.perf_counter()
    answered, counts, index = asyncio.run(_answered(args, recipe, settings))
    timings = {name: round(c.seconds * 1000, 1) for name, c in counts.items()}
    timings["total"] = round((time.perf_counter() - start) * 1000, 1)
    if args.json:
        said = answered.replies.get(answered.origin)
        options.print_json(
            {
                **prediction(answered),
                "answer": answered.answer,
                "confidence": said.confidence if said else None,
                "replies": {name: asdict(r) for name, r in answered.replies.items()},
                "faults": [asdict(f) for f in answered.faults],
                "timings_ms": timings,
                "versions": {
                    "recipe": recipe.digest(),
                    "models": {m.name: m.weights for m in recipe.models()},
                },
            }
        )
    else:
        asyncio.run(_show(answered, index, timings))
    return 0


async def _answered(
    args: argparse.Namespace, recipe: Recipe, settings: Settings
) -> tuple[Question, Mapping[str, StageCount], Index]:
    kit = _kit(args, recipe, settings)
    try:
        return await _with(kit, args, recipe, settings)
    finally:
        await kit.close()


def _kit(args: argparse.Namespace, recipe: Recipe, settings: Settings) -> LocalKit:
    """A kit that computes here. Only a language model needs to know of a cluster file: what its engine may
    take, or where it is asked."""
    if not any(m.loader in ("vllm", "openai") for m in recipe.models()):
        return LocalKit(None, "sorted")
    file = cluster_file(args, settings)
    return LocalKit(
        None,
        file.engine,
        file.device,
        endpoints=addresses(file, recipe.models(), settings.keys),
        room=file.engines.room(file.device) if file.engines else None,
        heard=None if args.json else _hear,
    )


def _hear(piece: str) -> None:
    """A piece of a reply, as it is written: what a step makes of the whole is printed at the end."""
    print(piece, end="", file=sys.stderr, flush=True)


async def _with(
    kit: LocalKit, args: argparse.Namespace, recipe: Recipe, settings: Settings
) -> tuple[Question, Mapping[str, StageCount], Index]:
    if args.pages:
        done = await answer_over(recipe, kit, *_from_file(args))
        return done.question, done.counts, done.index
    store = Store.open(settings.store_uri(args.store, "demo"))
    question = _from_store(args, store)
    index = LanceIndex(searched(store, recipe))
    ask = Questions(recipe, kit.with_index(index))
    [answered] = await ask([question])
    return answered, ask.counts, index


def _from_file(args: argparse.Namespace) -> tuple[Question, list[Source]]:
    """The question with the search results of the one line in a file, as CRAG writes them."""
    rows = list(readers.open([args.pages], "crag", readers.Counts()))
    if len(rows) != 1 or rows[0].question is None:
        why = "; ".join(f.detail for r in rows for f in r.faults) or f"found {len(rows)}"
        raise DataError(f"{args.pages}: expected one CRAG line with search_results, {why}")
    question = rows[0].question
    asked = replace(question, text=args.question, asked_at=args.time or question.asked_at)
    return asked, list(rows[0].sources)


def _from_store(args: argparse.Namespace, store: Store) -> Question:
    """A stored question by id or by its exact text, with its own pages; else one about the whole store."""
    for column in ("id", "text"):
        found = arrow.question.records(store.rows("questions", column, [args.question]))
        if found:
            first = min(found, key=lambda q: q.id)
            return replace(first, asked_at=args.time or first.asked_at)
    return Question(digest("ask", args.question), args.question, asked_at=args.time)


async def _show(question: Question, index: Index, timings: Mapping[str, float]) -> None:
    out = Console()
    out.print(Text(question.answer or "(no answer)", "bold"), Text(f"  [{question.outcome}]"))
    for fault in question.faults:
        out.print(Text(f"{fault.step}: {fault.reason}: {fault.detail}", "red"))
    url = urls(question)
    for reply in question.replies.values():
        for quote in reply.quotes[:SHOWN]:
            [text] = await index.source_texts([quote.source])
            said = (text or "")[quote.span[0] : quote.span[1]][:SHOWN_CHARS]
            out.print(Text(f"evidence: {said}"), Text(f"  {url.get(quote.source, quote.source)}", "dim"))
    for hit in ranking(question)[:5]:
        [text] = await index.texts([hit.chunk])
        scores = " ".join(f"{name} {value:.3f}" for name, value in hit.scores.items())
        out.print(Text(f"  {scores}", "dim"), Text(f" {text[:SHOWN_CHARS]}"))
    out.print(Text("  ".join(f"{name} {ms:.0f} ms" for name, ms in timings.items()), "dim"))
