"""Commands that make invented data and models: synth, standins.

Modules that call the API are imported only when a command runs, so help is quick.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raypipe.api.cli.arguments import whole
from raypipe.api.cli.command import Shown, arg, command
from raypipe.api.session import Session
from raypipe.core.errors import ConfError

if TYPE_CHECKING:
    from raypipe.contrib.world.api import StandinsResult


@command("synth", "demo --questions 20 --pages 50 --seed 1 --page-chars 2000", keeps=True)
def synth(
    session: Session,
    folder: Path = arg("the folder that gets it", "DIR", needed=True),
    *,
    questions: int = arg("questions", "N", whole(1), needed=True),
    pages: int | None = arg("search results each (50)", "P", whole(1)),
    papers: int | None = arg("papers in place of pages, at least 20 for a question", "N", whole(1)),
    seed: int = arg("other worlds for other seeds (1)", "S", default=1),
    page_chars: int | None = arg("of HTML a page, about (like real pages, 3 KB to 1.5 MB)", "N", whole(1000)),
) -> Shown[Any]:
    from raypipe.contrib.world.api import synthesize, synthesize_papers

    if papers is None:
        made = synthesize(folder, questions, 50 if pages is None else pages, seed, page_chars, session)
        return Shown(made, lambda made: print(made.title))
    if pages is not None or page_chars is not None:
        raise ConfError("--papers: expected without --pages and --page-chars, which are of questions' pages")
    return Shown(synthesize_papers(folder, papers, questions, seed, session), lambda made: print(made.title))


@command("standins", "standins")
def standins(
    folder: Path = arg("gets a chat model, embedders and a reranker", "DIR", needed=True),
    *,
    trainable: bool = arg("the chat model can learn to end its replies, so that `finetune` can teach it"),
) -> Shown[Any]:
    from raypipe.contrib.world.api import build_standins

    return Shown(build_standins(folder, trainable), _print_standins)


def _print_standins(made: StandinsResult) -> None:
    chat = made.made.chat
    print(f"{chat.parent}: a chat model, {len(made.made.adapters)} adapters, an embedder, a reranker")
    print(f"use them: raypipe eval RECIPE --models {shlex.quote(str(made.models))} ...")
