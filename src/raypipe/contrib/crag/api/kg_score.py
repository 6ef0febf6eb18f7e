"""Accuracy of written calls: programs of any system against gold programs, by text and by result."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from raypipe.api.results import Result, outside_loop
from raypipe.api.session import Session
from raypipe.contrib.crag.api.graphs import calls_parser, open_backend
from raypipe.contrib.crag.execute import run
from raypipe.contrib.crag.graph import GraphBackend
from raypipe.contrib.crag.language.answer_rules import RULES, apply_rule, operands, plain
from raypipe.contrib.crag.language.parser import Parse
from raypipe.contrib.crag.language.program import Bad, Empty, Program, print_program
from raypipe.contrib.crag.records import CallResult
from raypipe.core.errors import ConfError, DataError
from raypipe.core.records import ABSTAINED
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
class CallMatch:
    """Comparison of a written program with its gold program."""

    parsed: bool  # it has lines, and all of them can be parsed
    exact: bool  # equal canonical text
    result: bool | None  # equal values; None: the gold program gives none on this graph
    answer: bool | None  # equal answers by the gold's rule; None: the gold has no answer


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
        matches = [s.match for s in self.scored if not label or s.gold.labels.get(label) == value]
        rates = []
        for measure in MEASURES:
            values = [v for s in matches if (v := getattr(s, measure)) is not None]
            right, n = sum(values), len(values)
            rate, interval = (right / n, rate_interval(right, n)) if n else (None, None)
            rates.append(CallRate(measure, right, n, rate, interval))
        return rates

    def rows(self) -> Sequence[Mapping[str, Any]]:
        return [
            {"id": s.gold.id, "query": s.gold.query, "gold": s.gold.calls, "calls": s.written, "why": s.why}
            | asdict(s.match)
            for s in self.scored
        ]

    def record(self) -> Mapping[str, Any]:
        slices = [
            {"label": label, "value": value, "measures": self.rates(label, value)}
            for label in SLICES
            for value in sorted({s.gold.labels[label] for s in self.scored if label in s.gold.labels})
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

    `gold` is a file of JSON lines, or a folder of such files. A line has `query`, `query_time` and `calls`
    (or `kg_program`), and may have `id`, `rule` (or `kg_rule`), `domain` and `question_type`. Empty
    calls, or "None", mean that no call fits. `predictions` is a file of JSON lines with `calls` and `id` or
    `query`, or the folder of a run with the reply `reply`. A gold without a prediction is wrong in every
    measure. `graph` is the mock API's address, or a folder of tables. Raises ConfError for a wrong address or
    an unknown reply, and DataError for an invalid line.
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
    ran_written = await ran(written)
    why = [r.fault.detail for r in ran_written.results if r.fault is not None][:1]
    why += [f"not in the graph: {name}" for r in ran_written.results for name in r.unknown]
    return ScoredCalls(gold, written, match_of(right, ran_written, gold.rule, now.day), "; ".join(why))


def _golds(path: Path) -> list[GoldCalls]:
    files = sorted(path.glob("*.jsonl*")) if path.is_dir() else [path]
    golds: dict[str, GoldCalls] = {}
    for line in (x for file in files for x in filled(file)):
        tree = _object(line)
        if "calls" not in tree or not tree.get("query") or not tree.get("asked_at"):
            raise line.error("query, query_time and calls (or kg_program) of a gold", sorted(tree))
        rule = tree.get("rule", "")
        if rule and rule not in RULES:
            raise line.error(f"a rule of {', '.join(RULES)}", rule)
        labels = {n: tree[n] for n in SLICES if tree.get(n)}
        name = tree.get("id") or tree["query"]
        if name in golds:
            raise line.error("each question once", name)
        golds[name] = GoldCalls(name, tree["query"], tree["asked_at"], tree["calls"] or "None", rule, labels)
    if not golds:
        raise DataError(f"{path}: expected JSON lines of golds, found none")
    return list(golds.values())


def _predictions(path: Path, reply: str) -> dict[str, str]:
    """Reads predictions as id -> calls. The question stands in for a missing id."""
    if path.is_dir():
        return _of_run(path, reply)
    predictions: dict[str, str] = {}
    for line in filled(path):
        tree = _object(line)
        name = tree.get("id") or tree.get("query")
        if not name or "calls" not in tree:
            raise line.error("calls, and id or query", sorted(tree))
        if name in predictions:
            raise line.error("each question once", name)
        predictions[name] = tree["calls"]
    return predictions


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


# ---------------------------------------------------------------- one question


@dataclass(frozen=True, slots=True)
class RunProgram:
    program: Program
    results: Sequence[CallResult]


def match_of(gold: RunProgram, written: RunProgram, rule: str, today: date) -> CallMatch:
    """Compares a written program with the gold program.

    - `exact`: both have the same canonical text, ignoring case and white space.
    - `result`: both give the same values, call by call; independent calls may come in any order. Values that
      another call uses are ignored. Calls without values must be about the same names. A failed line or an
      unknown name never matches, unless the programs are equal. A program without calls ("None") matches a
      gold without calls.
    - `answer`: the gold's rule makes the same answer of both results. This checks whose value it is, if the
      rule answers with a name, and forgives differences that the rule ignores. None: the rule makes no answer
      of the gold's results.

    A gold program that fails on this graph has neither result nor answer. The same holds if it gives no
    values, except under the rule `premise`. Raises KeyError for an unknown rule.
    """
    parsed = bool(written.program.lines) and not any(isinstance(x, Bad) for x in written.program.lines)
    exact = parsed and _folded(gold.program) == _folded(written.program)
    if not _sound(gold.results):
        return CallMatch(parsed, exact, None, None)
    if calls(gold.program) and rule != "premise" and not any(r.values for r in gold.results):
        return CallMatch(parsed, exact, None, None)
    if not calls(gold.program) or not calls(written.program):
        same = parsed and calls(gold.program) == calls(written.program)
        return CallMatch(parsed, same, same, same if rule else None)
    result = exact or (parsed and _sound(written.results) and _values(gold) == _values(written))
    if not rule or (wanted := apply_rule(rule, gold.results, today)).label == ABSTAINED:
        return CallMatch(parsed, exact, result, None)
    answer = apply_rule(rule, written.results, today)
    same = (answer.label, answer.text.lower()) == (wanted.label, wanted.text.lower())
    return CallMatch(parsed, exact, result, exact or (parsed and same))


def calls(program: Program) -> bool:
    return any(not isinstance(line, Empty) for line in program.lines)


def _folded(program: Program) -> str:
    """Returns the canonical text in lower case, with single spaces within a line."""
    return re.sub(r"[^\S\n]+", " ", print_program(program).lower())


def _sound(results: Sequence[CallResult]) -> bool:
    return bool(results) and not any(r.fault is not None or r.unknown for r in results)


def _values(run: RunProgram) -> list[tuple[str, ...]]:
    """Returns the values of each call that no other call uses, sorted, since calls have no order. A call
    without values is represented by the keys of its names."""
    return sorted(
        tuple(plain(v).lower() for v in r.values) or ("", *sorted(link.key for link in r.links))
        for r in operands(run.results)
    )
