"""Refresh periods of a graph's replies, by domain: proposed from a model's opinion or from observed changes.

In WeKnow, a change detection controlled by a language model decides how often each domain is requested again.
Here its two halves only propose: the model gives an opinion, and stored replies show how often they differed
from one period to the next. Nothing changes before a person accepts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from raypipe.api.results import Result, outside_loop
from raypipe.api.served_models import generator_of, replies
from raypipe.api.session import Place, Session
from raypipe.contrib.crag.change_rate import ChangeRate, change_rates
from raypipe.contrib.crag.references import REFRESH
from raypipe.contrib.crag.schema import TABLES
from raypipe.core import config
from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError
from raypipe.core.llm import Choice, Generated, Sampling
from raypipe.recipes.resolve import prompt_file
from raypipe.store.memo.memo import period_of, request_replies_of
from raypipe.text.thoughts import split_thoughts

PROMPT: Final = "weknow/refresh"
HELD: Final[Mapping[str, tuple[str, ...]]] = {
    "movie": ("movie", "person", "cast", "crew", "oscar"),
    "finance": ("company", "price", "price_detail", "dividend"),
    "music": ("artist", "song", "grammy", "billboard"),
    "sports": ("nba_game", "soccer_game"),
    "open": ("entity",),
}
"""Domain -> its tables. Their columns show the model which values may change."""


@dataclass(frozen=True, slots=True, repr=False)
class RefreshProposal(Result):
    """Proposed refresh periods of a graph, one row for each domain: current and proposed period."""

    graph: str
    file: Path  # graphs.yaml
    now: Mapping[str, str | int]  # domain -> period
    proposed: Mapping[str, str | int]  # domain -> period
    seen: Mapping[str, Mapping[str, int]]  # domain -> counts: pairs of stored replies, changed pairs

    @property
    def line(self) -> str:
        """The proposal, as a line for the graph's entry in the file."""
        return f"refresh: {{{', '.join(f'{d}: {p}' for d, p in self.proposed.items())}}}"

    def rows(self) -> Sequence[Mapping[str, Any]]:
        now = {domain: str(self.now.get(domain, "static")) for domain in self.proposed}
        return [{"domain": d, "now": now[d], "proposed": str(period)} for d, period in self.proposed.items()]


@outside_loop
def propose_refresh(graph: str, model: str, session: Session | None = None) -> RefreshProposal:
    """Asks a model how long a graph's replies stay valid, by domain.

    Raises ConfError if `graph` is no server in graphs.yaml, and if `model` is no generator.
    """
    session = session or Session()
    path, entry = _server(session, graph)
    return _proposal(path, graph, entry, asyncio.run(_model_periods(session, model)))


def observed_refresh(graph: str, store: Place = None, session: Session | None = None) -> RefreshProposal:
    """Derives refresh periods from how often the replies in a store changed from period to period.

    A domain with too few replies keeps its period. This includes static replies, which are never requested
    again, and live replies, which are not stored. Raises ConfError if `graph` is no server in graphs.yaml.
    """
    session = session or Session()
    path, entry = _server(session, graph)
    opened, table = session.store(store), request_replies_of(entry["version"]).name
    texts: dict[tuple[str, str, float], dict[int, str]] = {}
    if opened.has(table):
        kept = opened.scan(table, columns=["key", "text"], filter="key LIKE '%@%'")
        for key, text in zip(kept["key"].to_pylist(), kept["text"].to_pylist(), strict=True):
            if (found := period_of(key)) is not None:
                request, domain, period, number = found
                texts.setdefault((request, domain, period), {})[number] = text
    seen = {d: rate for d, rate in change_rates(texts).items() if d in HELD}
    derived = {d: rate.period for d, rate in seen.items() if rate.period is not None}
    return _proposal(path, graph, entry, {**entry.get("refresh", {}), **derived}, seen)


def _server(session: Session, graph: str) -> tuple[Path, dict[str, Any]]:
    """Returns the path of graphs.yaml and a server's entry in it. Raises ConfError if there is none."""
    path = session.settings.conf.file("graphs.yaml")
    entries = config.read_yaml(path)
    if graph not in entries or entries[graph].get("kind") != "server":
        servers = [n for n, e in entries.items() if e.get("kind") == "server"]
        raise ConfError(f"{path}: no server {graph!r}; {did_you_mean(graph, servers)}")
    return path, entries[graph]


def _proposal(
    path: Path,
    graph: str,
    entry: Mapping[str, Any],
    proposed: Mapping[str, str | int],
    seen: Mapping[str, ChangeRate] = MappingProxyType({}),
) -> RefreshProposal:
    shown = {d: {"pairs": r.pairs, "changed": r.changed} for d, r in seen.items()}
    return RefreshProposal(graph, path, entry.get("refresh", {}), proposed, shown)


async def _model_periods(session: Session, name: str) -> dict[str, str | int]:
    """Asks the model to choose a word of REFRESH for each domain. Raises ConfError if a request fails."""
    model = generator_of(session, "--propose", name)
    render = prompt_file(session.settings.conf, PROMPT).renderer()
    held = {d: dict.fromkeys(column for t in tables for column in TABLES[t]) for d, tables in HELD.items()}
    chats = [render({"domain": d, "held": ", ".join(columns)}) for d, columns in held.items()]
    found = await replies(session, model, chats, Sampling(16, constraint=Choice(tuple(REFRESH))))
    said: dict[str, str | int] = {}
    for domain, reply in zip(HELD, found, strict=True):
        if not isinstance(reply, Generated):
            raise ConfError(f"--propose {name}: no proposal for {domain}: {reply.detail}")
        said[domain] = split_thoughts(reply.text).answer
    return said
