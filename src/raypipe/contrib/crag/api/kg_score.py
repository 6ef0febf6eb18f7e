"""Accuracy of written calls: programs of any system against gold programs, by text and by result.

Golds are JSON lines, such as those of `raypipe synth`; predictions are JSON lines or the folder of a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raypipe.api.results import Result, outside_loop
from raypipe.api.session import Session
from raypipe.contrib.crag.api.graphs import calls_parser, open_backend
from raypipe.contrib.crag.call_accuracy import CallMatch, RunProgram, match_of
from raypipe.contrib.crag.execute import run
from raypipe.contrib.crag.graph import GraphBackend
from raypipe.contrib.crag.language.answer_rules import RULES
from raypipe.contrib.crag.language.parser import Parse
from raypipe.contrib.crag.language.program import Program
from raypipe.core.errors import ConfError, DataError
from raypipe.core.textfile import TextLine, filled
from raypipe.evaluation.result_table import read_table
from raypipe.metrics.paired_tests import Interval, rate_interval
from raypipe.runs.run_parts import RunFolder
from raypipe.text.moments import moment

MEASURES = ("parsed", "exact", "result", "answer")
SLICES = ("domain", "question_type")
_NAMES: Mapping[str, tuple[str, ...]] = {
    "id": ("id", "interaction_id"),
    "query": ("query", "question"),
    "calls": ("calls", "kg_program"),
    "rule": ("rule", "kg_rule"),
    "asked_at": ("asked_at", "query_time"),
    "domain": ("domain",),
    "question_type": ("question_type",),
}
"""Value of a line -> the fields that may hold it; the first field present counts."""


@dataclass(frozen=True, slots=True)
class GoldCalls:
    """A question with the program that answers it."""

    id: str
    query: str
    asked_at: str
    calls: str  # None: no call fits
    rule: str  # of answer_rules.RULES; "": no rule
    labels: Mapping[str, str]  # domain, question_type


@dataclass(frozen=True, slots=True)
class ScoredCalls:
    """Gold question with the program written for it."""

    gold: GoldCalls
    written: str | None  # None: no prediction; it counts as wrong
    match: CallMatch
    why: str  # the first fault, and names that the graph lacks; "": neither


@dataclass(frozen=True, slots=True)
class CallRate:
    """Share of questions that are right by one measure."""

    measure: str  # of MEASURES
    right: int
    of: int  # questions for which the measure is defined
    rate: float | None  # right / of; None if `of` is 0
    interval: Interval | None  # of the rate, 95 %


@dataclass(frozen=True, slots=True, repr=False)
class KgScoreResult(Result):
    """Accuracy of written calls, one row for each question: both programs, matches, reasons of failures."""

    scored: tuple[ScoredCalls, ...]
    extra: int  # predictions without a gold

    def rates(self, label: str = "", value: str = "") -> list[CallRate]:
        """Computes each measure over all questions, or over those with this value of a label."""
        some = [s.match for s in self.scored if not label or s.gold.labels.get(label) == value]
        found = []
        for measure in MEASURES:
            values = [v for s in some if (v := getattr(s, measure)) is not None]
            right, n = sum(values), len(values)
            rate, interval = (right / n, rate_interval(right, n)) if n else (None, None)
            found.append(CallRate(measure, right, n, rate, interval))
        return found

    def rows(self) -> Sequence[Mapping[str, Any]]:
        return [
            {"id": s.gold.id, "query": s.gold.query, "gold": s.gold.calls, "calls": s.written, "why": s.why}
            | asdict(s.match)
            for s in self.scored
        ]

    def record(self) -> Mapping[str, Any]:
        values = {n: sorted({v for s in self.scored if (v := s.gold.labels.get(n))}) for n in SLICES}
        slices = [
            {"label": n, "value": v, "measures": self.rates(n, v)}
            for n, found in values.items()
            for v in found
        ]
        missing = sum(s.written is None for s in self.scored)
        counts = {"questions": len(self.scored), "missing": missing, "extra": self.extra}
        return {**counts, "measures": self.rates(), "slices": slices}


@outside_loop
def score_calls(
    gold: str | Path,
    predictions: str | Path,
    graph: str | Path,
    reply: str = "calls",
    session: Session | None = None,
) -> KgScoreResult:
    """Compares written calls with gold programs: by their text, and by their results over a graph.

    `gold` is a file of JSON lines, or a folder of such files, as `raypipe synth` writes it. A line has
    `query`, `query_time` and `calls` (or `kg_program`), and may have `id`, `rule` (or `kg_rule`), `domain`
    and `question_type`. Empty calls, or "None", mean that no call fits. `predictions` is a file of JSON lines
    with `calls` and `id` or `query`, or the folder of a run, whose reply `reply` has the calls. `graph` is
    the mock API's address, or a folder of tables. A gold without a prediction is wrong in every measure.
    Raises ConfError for a wrong address or an unknown reply, and DataError for an invalid line.
    """
    _, parse = calls_parser(session or Session())
    golds = _golds(Path(gold))
    written = _predictions(Path(predictions), reply)
    keys = {g.id: g.id if g.id in written else g.query for g in golds}

    async def scored() -> list[ScoredCalls]:
        async with open_backend(str(graph)) as opened:
            return [await _scored(g, written.get(keys[g.id]), opened, parse) for g in golds]

    return KgScoreResult(tuple(asyncio.run(scored())), len(written.keys() - set(keys.values())))


async def _scored(gold: GoldCalls, written: str | None, graph: GraphBackend, parse: Parse) -> ScoredCalls:
    now, domain = moment(gold.asked_at), gold.labels.get("domain", "")

    async def ran(text: str) -> RunProgram:
        program = parse(text)
        return RunProgram(program, await run(program, graph, now, domain))

    right = await ran(gold.calls)
    if written is None:
        nothing = RunProgram(Program(()), ())
        return ScoredCalls(gold, None, match_of(right, nothing, gold.rule, now.day), "nothing was written")
    said = await ran(written)
    why = [r.fault.detail for r in said.results if r.fault is not None][:1]
    why += [f"not in the graph: {name}" for r in said.results for name in r.unknown]
    return ScoredCalls(gold, written, match_of(right, said, gold.rule, now.day), "; ".join(why))


def _golds(path: Path) -> list[GoldCalls]:
    files = sorted(path.glob("*.jsonl*")) if path.is_dir() else [path]
    found: dict[str, GoldCalls] = {}
    for line in (x for file in files for x in filled(file)):
        tree = _object(line)
        if "calls" not in tree or not tree.get("query") or not tree.get("asked_at"):
            raise line.error("query, query_time and calls (or kg_program) of a gold", sorted(tree))
        rule = tree.get("rule", "")
        if rule and rule not in RULES:
            raise line.error(f"a rule of {', '.join(RULES)}", rule)
        labels = {n: tree[n] for n in SLICES if tree.get(n)}
        name = tree.get("id") or tree["query"]
        if name in found:
            raise line.error("each question once", name)
        found[name] = GoldCalls(name, tree["query"], tree["asked_at"], tree["calls"] or "None", rule, labels)
    if not found:
        raise DataError(f"{path}: expected JSON lines of golds, found none")
    return list(found.values())


def _predictions(path: Path, reply: str) -> dict[str, str]:
    """Reads predictions as id -> calls. The question stands in for a missing id."""
    if path.is_dir():
        return _of_run(path, reply)
    found: dict[str, str] = {}
    for line in filled(path):
        tree = _object(line)
        name = tree.get("id") or tree.get("query")
        if not name or "calls" not in tree:
            raise line.error("calls, and id or query", sorted(tree))
        if name in found:
            raise line.error("each question once", name)
        found[name] = tree["calls"]
    return found


def _of_run(folder: Path, reply: str) -> dict[str, str]:
    file = RunFolder(folder).results
    if not file.is_file():
        raise DataError(f"{folder}: expected a file of JSON lines, or the folder of a run with {file.name}")
    rows = read_table(file, ["id", "replies"]).to_pylist()
    names = {r["step"] for row in rows for r in row["replies"]}
    if rows and reply not in names:
        raise ConfError(f"--reply {reply}: the run has the replies {', '.join(sorted(names)) or 'none'}")
    return {row["id"]: r["text"] for row in rows for r in row["replies"] if r["step"] == reply and r["text"]}


def _object(line: TextLine) -> dict[str, str]:
    """Returns the values of a line as texts, under the names of `_NAMES`."""
    tree = line.object()
    out: dict[str, str] = {}
    for name, fields in _NAMES.items():
        given = next((tree[f] for f in fields if tree.get(f) is not None), None)
        if given is not None and not isinstance(given, str):
            raise line.error(f"text as {name!r}", given)
        if given is not None:
            out[name] = given.strip()
    return out
