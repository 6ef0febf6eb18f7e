"""Commands that make invented data and models: synth, standins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from raypipe.api.cli.command import Args, called, command, printed
from raypipe.core.errors import ConfError

if TYPE_CHECKING:
    from raypipe.contrib.world.api import StandinsResult


@command
def _synth(args: Args) -> int:
    """raypipe synth demo --questions 20 --pages 50 --seed 1 --page-chars 2000
    folder DIR {path}
    --questions N {required 1..}
    --pages P {1..}: search results each (50)
    --papers N {1..}: write a collection of papers for all questions in place of pages for each: corpus.jsonl,
      queries.jsonl and qrels.trec; at most a question for 20 papers
    --seed S {int = 1}: other worlds for other seeds (1)
    --page-chars N {1000..}: characters of HTML a page, about (default: spread like real pages, 3 KB to 1.5
      MB)
    json
    """
    from raypipe.contrib.world.api import synthesize, synthesize_papers

    if args.papers is None:
        pages = 50 if args.pages is None else args.pages
        return printed(args, called(synthesize, args, pages=pages), lambda made: print(made.title))
    if args.pages is not None or args.page_chars is not None:
        raise ConfError("--papers: expected without --pages and --page-chars, which are of questions' pages")
    return printed(args, called(synthesize_papers, args), lambda made: print(made.title))


@command
def _standins(args: Args) -> int:
    """raypipe standins .cache/standins
    folder DIR: where to build a chat model with two adapters, embedders and a reranker
    --trainable: the chat model can learn to end its replies, so that `finetune` can teach it
    json
    """
    from raypipe.contrib.world.api import build_standins

    return printed(args, build_standins(Path(args.folder), args.trainable), _print_standins)


def _print_standins(made: StandinsResult) -> None:
    chat = made.made.chat
    print(f"{chat.parent}: a chat model, {len(made.made.adapters)} adapters, an embedder, a reranker")
    print("use them: raypipe eval RECIPE --models conf/models.standin.yaml ...")
