"""`raypipe kg refresh`: a model proposes for how long a graph's replies hold, by domain; a person accepts.

WeKnow lets a language model decide how often each domain is asked again. Here its word is a proposal:
nothing is changed before somebody has seen it.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from rich.console import Console

from raypipe.cli import options
from raypipe.cli.opened import addresses, catalog_of, cluster_file
from raypipe.cli.settings import Settings
from raypipe.core import config
from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError
from raypipe.core.llm import Choice, Generated, Sampling
from raypipe.kg.schema import TABLES
from raypipe.metrics.textfile import replaced
from raypipe.models.kit import LocalKit
from raypipe.recipes.resolve import REFRESH, prompt_file
from raypipe.report.console import grid

PROMPT: Final = "weknow/refresh"
HELD: Final[Mapping[str, tuple[str, ...]]] = {
    "movie": ("movie", "person", "cast", "crew", "oscar"),
    "finance": ("company", "price", "price_detail", "dividend"),
    "music": ("artist", "song", "grammy", "billboard"),
    "sports": ("nba_game", "soccer_game"),
    "open": ("entity",),
}
"""Domain -> the tables of it, whose columns tell the model what may change."""


def add(kinds: options.Commands) -> None:
    """Declares `kg refresh`."""
    made = options.command(
        kinds,
        "refresh",
        "let a model propose for how long a graph's replies hold, by domain",
        "raypipe kg refresh --graph crag-mock --propose llama-3-8b",
        _refresh,
    )
    made.add_argument("--graph", metavar="NAME", required=True, help="a graph of kind server in graphs.yaml")
    made.add_argument("--propose", metavar="MODEL", required=True, help="a generator of the models file")
    made.add_argument("--models", metavar="FILE", help="models file in place of conf/models.yaml")
    made.add_argument("--accept", action="store_true", help="write the proposal into graphs.yaml")
    options.cluster(made)
    options.as_json(made)


def _refresh(args: argparse.Namespace, settings: Settings) -> int:
    path = settings.conf.file("graphs.yaml")
    entries = config.read_yaml(path)
    if args.graph not in entries or entries[args.graph].get("kind") != "server":
        servers = [n for n, e in entries.items() if e.get("kind") == "server"]
        raise ConfError(f"{path}: no server {args.graph!r}; {did_you_mean(args.graph, servers)}")
    proposed = asyncio.run(_proposed(args, settings))
    written = with_refresh(path, args.graph, proposed)
    if args.accept:
        with replaced(path) as out:
            out.write(written)
    now = entries[args.graph].get("refresh", {})
    if args.json:
        found = {"graph": args.graph, "now": now, "proposed": proposed, "accepted": args.accept}
        options.print_json(found)
    else:
        _print(path, args, now, proposed)
    return 0


async def _proposed(args: argparse.Namespace, settings: Settings) -> dict[str, str]:
    """Domain -> one of REFRESH, in the model's word. Raises ConfError for a model that gives none."""
    model = catalog_of(args.models, settings.conf).model(args.propose)
    if model.kind != "generator":
        raise ConfError(f"--propose {args.propose}: expected a generator, found a model of kind {model.kind}")
    render = prompt_file(settings.conf, PROMPT).renderer()
    endpoints = addresses(cluster_file(args, settings), [model], settings.keys)
    kit = LocalKit(None, engines=None, endpoints=endpoints)
    try:
        chats = [render({"domain": d, "held": _columns(tables)}) for d, tables in HELD.items()]
        replies = await kit.generator(model)(chats, Sampling(16, constraint=Choice(tuple(REFRESH))))
    finally:
        await kit.close()
    said = {}
    for domain, reply in zip(HELD, replies, strict=True):
        if not isinstance(reply, Generated):
            raise ConfError(f"--propose {args.propose}: no proposal for {domain}: {reply.detail}")
        said[domain] = reply.text
    return said


def _columns(tables: tuple[str, ...]) -> str:
    return ", ".join(dict.fromkeys(column for table in tables for column in TABLES[table]))


def with_refresh(path: Path, name: str, periods: Mapping[str, str]) -> str:
    """The text of graphs.yaml with these periods for a graph; comments and all else stay. Raises ConfError
    for an entry that is not written with a line for each field, as it must then be changed by hand."""
    text = path.read_text(encoding="utf-8")
    line = f"refresh: {{{', '.join(f'{d}: {p}' for d, p in periods.items())}}}"
    block = re.compile(rf"^{re.escape(name)}:[ \t]*\n(?:[ \t]+.*\n|\n(?=[ \t]))*", re.MULTILINE)
    old = re.compile(r"^([ \t]+)refresh:[ \t]*\{.*\}[ \t]*$", re.MULTILINE)

    def changed(entry: re.Match[str]) -> str:
        if old.search(entry[0]):
            return old.sub(lambda m: m[1] + line, entry[0])
        if re.search(r"^[ \t]+refresh:", entry[0], re.MULTILINE):  # over several lines
            return entry[0]
        return f"{entry[0]}  {line}\n"

    made = block.sub(changed, text, count=1)
    wanted = {**yaml.safe_load(text)[name], "refresh": dict(periods)}
    try:
        well = yaml.safe_load(made)[name] == wanted
    except yaml.YAMLError:
        well = False
    if not well:
        raise ConfError(
            f"{path}: {name}: expected a line for each field, with refresh in one line, found it written "
            f"otherwise. Write by hand: {line}"
        )
    return made


def _print(path: Path, args: argparse.Namespace, now: Mapping[str, Any], proposed: Mapping[str, str]) -> None:
    shown = grid("domain", "now", "proposed")
    for domain, period in proposed.items():
        shown.add_row(domain, str(now.get(domain, "static")), period)
    console = Console()
    console.print(shown)
    what = f"is written to {path}" if args.accept else f"is not written: --accept puts it into {path}"
    console.print(f"by {args.propose}; it {what}", highlight=False, soft_wrap=True)
