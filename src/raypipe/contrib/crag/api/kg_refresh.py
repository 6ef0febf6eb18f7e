"""Refresh periods of a graph's replies, by domain: proposed from a model's opinion or from observed changes.

In WeKnow, a language model that watches changes decides how often each domain is requested again. Here the
model's opinion and the observed changes each only propose periods. Nothing changes before a person accepts.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from raypipe.api.results import Result, outside_loop
from raypipe.api.served_models import generator_of, replies
from raypipe.api.session import Place, Session
from raypipe.contrib.crag.references import REFRESH
from raypipe.contrib.crag.schema import TABLES
from raypipe.core import config
from raypipe.core.config import did_you_mean
from raypipe.core.errors import ConfError
from raypipe.core.llm import Choice, Generated, Sampling
from raypipe.recipes.resolve import prompt_file
from raypipe.store.memo.memo import period_of, request_replies_of
from raypipe.text.thoughts import split_thoughts

LEAST_SEEN: Final = 20  # fewest pairs of replies from which a period is derived
STALE: Final = 0.05  # share of replies that may be out of date when their period ends
LIVE_S: Final = 60.0  # a shorter period is "live": replies are not stored
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
    proposed = asyncio.run(_model_periods(session, model))
    return RefreshProposal(graph, path, entry.get("refresh", {}), proposed, {})


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
    now = entry.get("refresh", {})
    shown = {d: {"pairs": r.pairs, "changed": r.changed} for d, r in seen.items()}
    return RefreshProposal(graph, path, now, {**now, **derived}, shown)


def _server(session: Session, graph: str) -> tuple[Path, dict[str, Any]]:
    """Returns the path of graphs.yaml and a server's entry in it. Raises ConfError if there is none."""
    path = session.settings.conf.file("graphs.yaml")
    entries = config.read_yaml(path)
    if graph not in entries or entries[graph].get("kind") != "server":
        servers = [n for n, e in entries.items() if e.get("kind") == "server"]
        raise ConfError(f"{path}: no server {graph!r}; {did_you_mean(graph, servers)}")
    return path, entries[graph]


async def _model_periods(session: Session, name: str) -> dict[str, str | int]:
    """Asks the model to choose a word of REFRESH for each domain. Raises ConfError if a request fails."""
    model = generator_of(session, "--propose", name)
    render = prompt_file(session.settings.conf, PROMPT).renderer()
    held = {d: dict.fromkeys(column for t in tables for column in TABLES[t]) for d, tables in HELD.items()}
    chats = [render({"domain": d, "held": ", ".join(columns)}) for d, columns in held.items()]
    written = await replies(session, model, chats, Sampling(16, constraint=Choice(tuple(REFRESH))))
    periods: dict[str, str | int] = {}
    for domain, reply in zip(HELD, written, strict=True):
        if not isinstance(reply, Generated):
            raise ConfError(f"--propose {name}: no proposal for {domain}: {reply.detail}")
        periods[domain] = split_thoughts(reply.text).answer
    return periods


# ---------------------------------------------------------------- observed changes


@dataclass(frozen=True, slots=True)
class ChangeRate:
    pairs: int
    changed: int
    period: str | int | None  # "live", or seconds; None: too few pairs to tell


def change_rates(texts: Mapping[tuple[str, str, float], Mapping[int, str]]) -> dict[str, ChangeRate]:
    """Derives a refresh period for each domain from how often its replies changed between fetched periods.

    By the end of a refresh period, at most the share `STALE` of the replies has changed. Estimator of Cho
    and Garcia-Molina, "Estimating frequency of change" (2003): if X of n visits found a page changed, the
    rate per interval is -log((n - X + .5) / (n + .5)).

    `texts`: (request, domain, period in seconds) -> number of the period -> its reply.
    """
    pairs: dict[str, list[tuple[float, bool]]] = {}  # domain -> seconds apart, and whether the reply changed
    for (_, domain, period), by_number in texts.items():
        for a, b in itertools.pairwise(sorted(by_number)):
            pairs.setdefault(domain, []).append(((b - a) * period, by_number[a] != by_number[b]))
    return {domain: _rate(pairs[domain]) for domain in sorted(pairs)}


def _rate(pairs: Sequence[tuple[float, bool]]) -> ChangeRate:
    n, changed = len(pairs), sum(differs for _, differs in pairs)
    if n < LEAST_SEEN:
        return ChangeRate(n, changed, None)
    apart = math.fsum(apart_s for apart_s, _ in pairs) / n
    # Without a change the rate is at most 3/n with a certainty of .95 (the rule of three).
    per_interval = -math.log((n - changed + 0.5) / (n + 0.5)) if changed else 3 / n
    seconds = -math.log(1 - STALE) * apart / per_interval
    return ChangeRate(n, changed, "live" if seconds < LIVE_S else round(seconds))
