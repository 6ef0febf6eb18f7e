"""`raypipe ask`: one question, from the store or from pages in a file."""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from raypipe import readers
from raypipe.cli import options
from raypipe.cli.opened import addresses, asking, cluster_file, recipe_of
from raypipe.cli.settings import Settings
from raypipe.core.errors import ConfError, DataError
from raypipe.core.records import Question, digest
from raypipe.memo.disk import StoreMemo, memo_versions
from raypipe.models.kit import LocalKit
from raypipe.recipes.recipe import Recipe
from raypipe.recipes.serialize import from_plain
from raypipe.runs.release import Release, live
from raypipe.serving.answerer import Answerer, NotReady
from raypipe.serving.query import QueryRequest, QueryResult
from raypipe.store import Store, StoreError

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
    options.recipe(made, live=True)
    about = "the question; one that is stored, by its id or in its words, has its own pages"
    made.add_argument("question", metavar="QUESTION", help=about)
    made.add_argument(
        "--pages", metavar="FILE", type=Path, help="a CRAG line: its search results are searched"
    )
    made.add_argument("--time", metavar="T", default="", help='when it is asked: "03/05/2024, 23:18:31 PT"')
    options.store(made)
    options.cluster(made)
    options.as_json(made)


def _ask(args: argparse.Namespace, settings: Settings) -> int:
    if not args.question.strip():
        raise ConfError("expected a question, found an empty text")
    release = _live(args, settings) if args.recipe == "live" else None
    recipe = asking(recipe_of(args, settings)) if release is None else from_plain(release.recipe)
    answered = asyncio.run(_answered(args, recipe, settings, release))
    if args.json:
        from raypipe.serving.http import answer_response  # the web framework takes half a second to import

        options.print_json(answer_response(answered, ("hits", "replies", "faults")))
    else:
        _show(answered)
    return 0


def _live(args: argparse.Namespace, settings: Settings) -> Release:
    """The release that answers, pinned for this question. Raises ConfError before the first."""
    store = Store.open(settings.store_to_use(args.store))
    found = live(store)
    if found is None:
        raise ConfError(f"{store.uri}: nothing is live; `raypipe promote DIR` releases a finished eval")
    return found


async def _answered(
    args: argparse.Namespace, recipe: Recipe, settings: Settings, release: Release | None
) -> QueryResult:
    kit = _kit(args, recipe, settings)
    try:
        if args.pages:
            online = Answerer(recipe, kit, "", release=release)
            return await online.answer(replace(_from_file(args), include_passages=not args.json))
        uri = settings.store_to_use(args.store)
        memo = StoreMemo(uri, memo_versions(Store.open(uri)))
        question = Question(digest("ask", args.question), args.question, asked_at=args.time)
        online = Answerer(recipe, kit, uri, memo, release)
        return await online.answer(QueryRequest(question, include_passages=not args.json))
    except NotReady as e:
        raise StoreError(str(e)) from e
    finally:
        await kit.close()


def _kit(args: argparse.Namespace, recipe: Recipe, settings: Settings) -> LocalKit:
    """A kit that computes here. Only a language model needs to know of a cluster file: what its engine may
    take, or where it is asked."""
    if not any(m.loader in ("vllm", "openai") for m in recipe.models()):
        return LocalKit(None, "transformers")
    file = cluster_file(args, settings)
    return LocalKit(
        None,
        file.engine,
        file.device,
        endpoints=addresses(file, recipe.models(), settings.keys),
        engine_limits=file.engines.limits(file.device) if file.engines else None,
        sink=None if args.json else _hear,
    )


def _hear(piece: str) -> None:
    """A piece of a reply, as it is written: what a step makes of the whole is printed at the end."""
    print(piece, end="", file=sys.stderr, flush=True)


def _from_file(args: argparse.Namespace) -> QueryRequest:
    """The question with the search results of the one line in a file, as CRAG writes them."""
    rows = list(readers.open([args.pages], "crag", readers.ReadCounts()))
    if len(rows) != 1 or rows[0].question is None:
        why = "; ".join(f.detail for r in rows for f in r.faults) or f"found {len(rows)}"
        raise DataError(f"{args.pages}: expected one CRAG line with search_results, {why}")
    question = rows[0].question
    asked = replace(question, text=args.question, asked_at=args.time or question.asked_at)
    return QueryRequest(asked, tuple(rows[0].sources), rows[0].faults)


def _show(answered: QueryResult) -> None:
    out, question = Console(), answered.question
    out.print(Text(question.answer or "(no answer)", "bold"), Text(f"  [{question.outcome}]"))
    for fault in (*answered.faults, *question.faults):
        out.print(Text(f"{fault.step}: {fault.reason}: {fault.detail}", "red"))
    for e in answered.evidence[:SHOWN]:
        out.print(Text(f"evidence: {e.quote[:SHOWN_CHARS]}"), Text(f"  {e.url or e.source}", "dim"))
    for passage in answered.passages[:5]:
        scores = " ".join(f"{name} {value:.3f}" for name, value in passage.hit.scores.items())
        out.print(Text(f"  {scores}", "dim"), Text(f" {passage.text[:SHOWN_CHARS]}"))
    out.print(Text("  ".join(f"{name} {ms:.0f} ms" for name, ms in answered.timings_ms.items()), "dim"))
