"""Questions on a page: the line of each, by what it is searched and sorted, and the row behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from raypipe.core.records import parse_chunk_id
from raypipe.evaluation.judged_run import PersonLabel, PersonLabels
from raypipe.evaluation.result_table import open_table

SOURCE_CHARS = 16  # of a source's id, in the list of what answers rest on: 64 bits tell a run's sources apart
STATES = {
    "exact": "right", "correct": "right", "missing": "missing", "hallucination": "wrong",
    "unscored": "not scored",
}  # fmt: skip
"""Verdict -> what it says of an answer, in the words of transitions."""
LABELS: tuple[PersonLabel, ...] = ("right", "wrong", "unclear")


@dataclass(frozen=True, slots=True)
class QuestionLine:
    """A question of a run, or of two that are compared."""

    id: str
    question: str
    answers: tuple[str | None, ...]  # of each run; None: it failed
    expected: str
    verdicts: tuple[str, ...]  # of each run that has one
    scored: str  # verdict and reason, or the measures, for people
    direction: float | None = None  # of two runs: the second's value less the first's; None: one, or equal
    facets: Mapping[str, str] = field(default_factory=dict)  # name -> value, to filter by
    numbers: Mapping[str, float] = field(default_factory=dict)  # name -> value, to sort by
    sources: tuple[str, ...] = ()  # ids, shortened, of the sources that the answer rests on

    @property
    def link(self) -> str:
        """The address of the question within its page, without the #."""
        return urlencode({"q": self.id})


def line_of(row: Mapping[str, Any], lead: str, labels: PersonLabels | None) -> QuestionLine:
    """Returns one question of one run. `lead`: the measure that its value is; `labels`: what people said,
    where the page takes labels; None: it takes none."""
    verdict, measures = row["verdict"], row["measures"] or {}
    said = [] if verdict is None else [verdict, *([row["reason"].replace("_", " ")] if row["reason"] else [])]
    said += [] if verdict is not None else [f"{k} {v:.2f}" for k, v in list(measures.items())[:3]]
    facets = {"verdict": verdict or ("" if measures else "no gold"), "outcome": row["outcome"]}
    facets |= {"from": row["origin"], "lost": _lost(row), **row["labels"]}
    state = STATES.get(verdict or "")
    if state in ("right", "wrong") and "contains" in measures:  # the truth's words in the answer say it, too
        facets["measures"] = "disagree" if (state == "right") != bool(measures["contains"]) else "agree"
    if row["faults"]:
        facets["fault"] = row["faults"][0]["step"]
    if labels is not None:
        key = row["id"], (row["answer"] or "").strip()
        label = labels.by_answer.get(key)
        facets["person"] = label.label if label else "to be labelled" if key in labels.open else ""
    took = row["seconds"]
    numbers = {"value": measures.get(lead), "confidence": row["confidence"]}
    numbers["seconds"] = sum(took.values()) if took else None
    verdicts, text = () if verdict is None else (verdict,), ": ".join(said) if said else "not scored"
    facets, numbers = _filled(facets), {k: v for k, v in numbers.items() if v is not None}
    return QuestionLine(
        row["id"], row["query"], (row["answer"],), expected(row), verdicts, text, facets=facets,
        numbers=numbers, sources=sources_of(row),
    )  # fmt: skip


def _filled(facets: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in facets.items() if value}


def paired_line(a: Mapping[str, Any], b: Mapping[str, Any], measure: str) -> QuestionLine:
    """Returns one question of two runs; values are those of `measure`."""
    one, two = ((r["measures"] or {}).get(measure) for r in (a, b))
    gain = None if one is None or two is None else two - one
    states = [STATES.get(r["verdict"] or "", "") for r in (a, b)]
    moved = "" if gain is None else "higher" if gain > 0 else "lower" if gain < 0 else "equal"
    if all(states):
        moved = f"{states[0]} to {states[1]}" if states[0] != states[1] else f"both {states[0]}"
    facets = {"A": states[0], "B": states[1], "change": moved}
    facets |= {"answer": "the same" if a["answer"] == b["answer"] else "another"}
    facets |= {"lost in A": _lost(a), "lost in B": _lost(b), **a["labels"]}
    said = f"{states[0]} to {states[1]}" if all(states) and states[0] != states[1] else states[0]
    if not any(states):
        said = "not scored" if gain is None else f"{measure} {one:.2f} to {two:.2f}"
    numbers = {k: v for k, v in (("before", one), ("after", two), ("value", gain)) if v is not None}
    verdicts = tuple(r["verdict"] for r in (a, b) if r["verdict"])
    sources = tuple(dict.fromkeys((*sources_of(a), *sources_of(b))))
    return QuestionLine(
        a["id"], a["query"], (a["answer"], b["answer"]), expected(a), verdicts, said, gain or None,
        _filled(facets), numbers, sources,
    )  # fmt: skip


def expected(row: Mapping[str, Any]) -> str:
    """Returns what is right: answers, or relevant documents with their grades, the best first."""
    best = sorted((row["grades"] or {}).items(), key=lambda d: (-d[1], d[0]))
    return " / ".join(row["golds"] or [f"{document} ({grade})" for document, grade in best if grade > 0])


def _lost(row: Mapping[str, Any]) -> str:
    """Returns where the gold was lost."""
    if row["lost"]:
        return str(row["lost"])
    scored = STATES[row["verdict"]] != "not scored" if row["verdict"] else bool(row["measures"])
    return "right" if scored else "not scored"


def sources_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns what an answer rests on: sources of its final ranking and of its quotes."""
    found = [parse_chunk_id(h["chunk"])[0] for h in row["hits"] if h["ranked"]]
    found += [q["source"] for q in row["quotes"]]
    return tuple(dict.fromkeys(s[:SOURCE_CHARS] for s in found))


def facts(lines: Sequence[QuestionLine], runs: Sequence[str], lead: str, labels: str = "") -> dict[str, Any]:
    """Returns the lines in columns, as the page's script reads them; values of facets and sources are
    numbered. `lead`: the measure that a line's value is; `labels`: the file that people's marks are written
    to; "": the page takes none."""
    names = list(dict.fromkeys(name for line in lines for name in line.facets))
    if labels:
        names = [*(n for n in names if n != "person"), "person"]
    numbers = dict.fromkeys(name for line in lines for name in line.numbers)
    sources = {s: i for i, s in enumerate(dict.fromkeys(s for line in lines for s in line.sources))}
    facets = [_facet(name, lines) for name in names]
    return {
        "run": "-".join(runs),
        "runs": runs,
        "pair": len(runs) > 1,
        "lead": lead,
        "labels": labels,
        "ids": [line.id for line in lines],
        "facets": [f for f in facets if f["name"] in LINKED or 1 < len(f["values"]) <= MOST_VALUES],
        "numbers": [{"name": n, "of": [line.numbers.get(n) for line in lines]} for n in numbers],
        "sources": {"names": list(sources), "of": [[sources[s] for s in line.sources] for line in lines]},
    }


MOST_VALUES = 40  # of a facet: more is what search is for
OWN = (
    "verdict", "outcome", "from", "lost", "measures", "fault", "person", "A", "B", "change", "answer",
    "lost in A", "lost in B",
)  # fmt: skip
"""Facets that are no labels of the data: the page shows their menus first."""
LINKED = ("person", "lost", "A", "B", "lost in A", "lost in B")
"""Facets that are there with one value, too: the page links to their values, or sets them."""


def _facet(name: str, lines: Sequence[QuestionLine]) -> dict[str, Any]:
    found = {line.facets[name] for line in lines if name in line.facets}
    listed = dict.fromkeys([*(LABELS if name == "person" else ()), *sorted(found)])
    values = {value: i for i, value in enumerate(listed)}
    of = [values.get(line.facets.get(name, ""), -1) for line in lines]
    return {"name": name, "label": name not in OWN, "values": list(values), "of": of}


@dataclass(frozen=True, slots=True)
class Matrix:
    """Questions by what became of them in two runs."""

    title: str
    columns: list[str]
    lines: list[tuple[str, list[tuple[int, str]]]]  # row, for each column: n, address of its filter


def matrix(title: str, lines: Iterable[QuestionLine], before: str, after: str) -> Matrix | None:
    """Questions counted by two facets; None where they have none."""
    both = (line.facets for line in lines if {before, after} <= line.facets.keys())
    counts = Counter((facets[before], facets[after]) for facets in both)
    if not counts:
        return None
    names = sorted({name for key in counts for name in key})

    def cell(a: str, b: str) -> tuple[int, str]:
        return counts[a, b], urlencode([("f", f"{before}:{a}"), ("f", f"{after}:{b}")])

    return Matrix(title, names, [(a, [cell(a, b) for b in names]) for a in names])


GROUPS = 3  # row groups kept in memory, of a hundred questions each
OF_LINES = (
    "id", "query", "labels", "golds", "grades", "answer", "outcome", "origin", "confidence", "verdict",
    "reason", "hits.list.element.chunk", "hits.list.element.ranked", "quotes.list.element.source",
    "faults.list.element.step", "seconds", "measures", "lost",
)  # fmt: skip
"""Columns that the line of a question is made of. Whole rows have texts and prompts: reading 2,706 of them
took 7 s more."""


class RunTable:
    """The results of a finished run, its rows by id. Reads a row group at a time."""

    def __init__(self, path: Path, run: str) -> None:
        """Raises DataError for a file that is not the table of this run."""
        self._file = open_table(path, ["id"], run)
        self._place: dict[str, tuple[int, int]] = {}
        for group in range(self._file.num_row_groups):
            ids = self._file.read_row_group(group, ["id"])["id"].to_pylist()
            self._place |= {id: (group, i) for i, id in enumerate(ids)}
        self._group = lru_cache(GROUPS)(self._read)

    def _read(self, group: int, columns: tuple[str, ...] | None) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._file.read_row_group(group, columns and list(columns)).to_pylist(
            maps_as_pydicts="strict"
        )
        return rows

    @property
    def ids(self) -> list[str]:
        return list(self._place)

    def __contains__(self, id: str) -> bool:
        return id in self._place

    def row(self, id: str) -> dict[str, Any]:
        """Returns a whole row. Raises KeyError for an id that the run does not have."""
        group, at = self._place[id]
        return self._group(group, None)[at]

    def line(self, id: str) -> dict[str, Any]:
        """Returns the columns OF_LINES of a row; KeyError as for `row`."""
        group, at = self._place[id]
        return self._group(group, OF_LINES)[at]

    def close(self) -> None:
        self._file.close()
