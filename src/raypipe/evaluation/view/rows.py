"""Questions on a page: as lines, which have facets to filter by and numbers to sort by, or as full rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from raypipe.core.errors import RaypipeError
from raypipe.core.records import Block, parse_chunk_id
from raypipe.evaluation.judged_run import PersonLabel, PersonLabels
from raypipe.evaluation.result_table import open_table, verdict_of
from raypipe.recipes.serialize import description
from raypipe.runs.record import Run
from raypipe.store import Store
from raypipe.text.context import lined

SOURCE_CHARS = 16  # shown of a source's id: 64 bits distinguish the sources of a run
STATES = {"exact": True, "correct": True, "missing": False, "hallucination": False}
"""Verdict of a rule -> whether the answer is right. `unscored` is no key, since it is neither."""
LABELS: tuple[PersonLabel, ...] = ("right", "wrong", "unclear")


@dataclass(frozen=True, slots=True)
class QuestionLine:
    """Line of a question on a page of one run, or of two compared runs."""

    id: str
    question: str
    answers: tuple[str | None, ...]  # answer of each run; None: it failed
    expected: str
    states: tuple[str, ...]  # verdict on each answer, a word of `verdict_of`; "": not an answer but a ranking
    scored: str  # reason of the verdict, or measures, for people
    direction: float | None = None  # second run's value less the first's; None: 0, not known, or one run
    facets: Mapping[str, str] = field(default_factory=dict)  # name -> value, to filter by
    numbers: Mapping[str, float] = field(default_factory=dict)  # name -> value, to sort by
    sources: tuple[str, ...] = ()  # shortened ids of the sources that the answer rests on

    @property
    def link(self) -> str:
        """URL fragment of the question on its page, without the #."""
        return urlencode({"q": self.id})


def line_of(row: Mapping[str, Any], lead: str, labels: PersonLabels | None) -> QuestionLine:
    """Returns a question's line for a page of one run. `lead` is the measure of the line's value. `labels` is
    None if the page takes no labels."""
    measures, state = row["measures"] or {}, state_of(row)
    scored = ", ".join(f"{k} {v:.2f}" for k, v in list(measures.items())[:3])
    scored = row["reason"].replace("_", " ") if row["reason"] else scored
    facets = {"verdict": state, "outcome": row["outcome"], "from": row["origin"], "lost": _lost(row)}
    facets |= row["labels"]
    if row["verdict"] and state != "not scored" and "contains" in measures:
        same = (state == "right") == bool(measures["contains"])  # contains: the answer has the truth's words
        facets["measures"] = "agree" if same else "disagree"
    if row["faults"]:
        facets["fault"] = row["faults"][0]["step"]
    if row["kept"]:
        facets["kept"] = f"of run {row['kept'][:8]}"
    if labels is not None:
        key = row["id"], (row["answer"] or "").strip()
        label = labels.by_answer.get(key)
        facets["person"] = label.label if label else "to be labelled" if key in labels.open else ""
    took = sum(row["seconds"].values()) if row["seconds"] else None
    known = (("value", measures.get(lead)), ("confidence", row["confidence"]), ("seconds", took))
    facets = {name: value for name, value in facets.items() if value}
    numbers = {name: value for name, value in known if value is not None}
    shown = (row["answer"],), expected(row), (state,), scored
    return QuestionLine(row["id"], row["query"], *shown, None, facets, numbers, sources_of(row))


def state_of(row: Mapping[str, Any]) -> str:
    """Returns an answer's verdict in the words of `verdict_of`; "" if documents are ranked instead."""
    if row["grades"] and not row["golds"]:
        return ""
    right = STATES.get(row["verdict"])
    if row["verdict"] is None and row["measures"]:
        right = row["lost"] is None
    return verdict_of(row["answer"], None if row["answer"] is None else right)


def paired_line(a: Mapping[str, Any], b: Mapping[str, Any], measure: str) -> QuestionLine:
    """Returns a question's line for a page of two runs. Its numbers are values of `measure`."""
    one, two = ((r["measures"] or {}).get(measure) for r in (a, b))
    gain = None if one is None or two is None else two - one
    states = state_of(a), state_of(b)
    moved = "" if gain is None else "higher" if gain > 0 else "lower" if gain < 0 else "equal"
    if all(states):
        moved = f"both {states[0]}" if states[0] == states[1] else f"{states[0]} to {states[1]}"
    same = "the same" if a["answer"] == b["answer"] else "another"
    facets = {"A": states[0], "B": states[1], "change": moved, "answer": same}
    facets |= {"lost in A": _lost(a), "lost in B": _lost(b), **a["labels"]}
    said = moved if all(states) else "not scored" if gain is None else f"{measure} {one:.2f}, {moved}"
    numbers = {k: v for k, v in (("before", one), ("after", two), ("value", gain)) if v is not None}
    shown, sources = (a["answer"], b["answer"]), tuple(dict.fromkeys(sources_of(a) + sources_of(b)))
    named = {k: v for k, v in facets.items() if v}
    of = a["id"], a["query"], shown, expected(a), states, said
    return QuestionLine(*of, gain or None, named, numbers, sources)


def changed_first(line: QuestionLine) -> tuple[float, bool]:
    """Returns a sort key for lines of two runs: largest change of value first, then changed answers."""
    return -abs(line.direction or 0), len({*line.answers}) == 1


def expected(row: Mapping[str, Any]) -> str:
    """Returns in one text the gold answers, or else the relevant documents with their grades, best first."""
    best = sorted((row["grades"] or {}).items(), key=lambda d: (-d[1], d[0]))
    return " / ".join(row["golds"] or [f"{document} ({grade})" for document, grade in best if grade > 0])


def _lost(row: Mapping[str, Any]) -> str:
    """Returns the place where the gold was lost, else "right" or "not scored"."""
    if row["lost"]:
        return str(row["lost"])
    state = state_of(row)
    return "right" if state == "right" or (row["measures"] and not state) else "not scored"


def sources_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns shortened ids of the sources that an answer rests on: its final ranking and quotes."""
    found = [parse_chunk_id(h["chunk"])[0] for h in row["hits"] if h["ranked"]]
    found += [q["source"] for q in row["quotes"]]
    return tuple(dict.fromkeys(s[:SOURCE_CHARS] for s in found))


def facts(lines: Sequence[QuestionLine], runs: Sequence[str], lead: str, labels: str = "") -> dict[str, Any]:
    """Returns the lines as columns for the page's script. `runs` are the names of one run or of two. `lead`
    is the measure of the lines' values. `labels` is the file for people's labels; "" if the page takes none.
    Leaves out facets with one value, or with over MOST_VALUES values, except those in LINKED."""
    names = list(dict.fromkeys(name for line in lines for name in line.facets))
    if labels:
        names = [*(n for n in names if n != "person"), "person"]
    numbers = dict.fromkeys(name for line in lines for name in line.numbers)
    sources = {s: i for i, s in enumerate(dict.fromkeys(s for line in lines for s in line.sources))}
    facets = list[dict[str, Any]]()
    for name in names:
        given = {line.facets[name] for line in lines if name in line.facets}
        listed = dict.fromkeys([*(LABELS if name == "person" else ()), *sorted(given)])
        values = {value: i for i, value in enumerate(listed)}
        of = [values.get(line.facets.get(name, ""), -1) for line in lines]
        facets.append({"name": name, "label": name not in OWN, "values": list(values), "of": of})
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


MOST_VALUES = 40  # limit of a facet's menu; the search field serves facets with more
OF_RUN = ("verdict", "outcome", "from", "lost", "measures", "fault", "kept", "person")
OF_PAIR = ("A", "B", "change", "answer", "lost in A", "lost in B")
OWN = (*OF_RUN, *OF_PAIR)
"""Facets that do not come from labels of the data. The page shows their menus first."""
LINKED = ("verdict", "person", "lost", "A", "B", "lost in A", "lost in B")
"""Facets that the page keeps even with one value, since it links to their values or sets them."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Counts of questions by a facet of one run and a facet of the other, such as their verdicts."""

    title: str
    columns: list[str]
    lines: list[tuple[str, list[tuple[int, str]]]]  # row name; for each column count, query of its filter


def matrix(title: str, lines: Iterable[QuestionLine], before: str, after: str) -> Matrix | None:
    """Counts questions by the values of two facets. Returns None if no question has both facets."""
    both = (line.facets for line in lines if {before, after} <= line.facets.keys())
    counts = Counter((facets[before], facets[after]) for facets in both)
    if not counts:
        return None
    names = sorted({name for key in counts for name in key})

    def cell(a: str, b: str) -> tuple[int, str]:
        return counts[a, b], urlencode([("f", f"{before}:{a}"), ("f", f"{after}:{b}")])

    return Matrix(title, names, [(a, [cell(a, b) for b in names]) for a in names])


def with_lines(row: dict[str, Any], record: Run) -> dict[str, Any]:
    """Breaks the texts of a row's passages into lines. Returns `row` itself if its store cannot be read."""
    hits = [h for h in row["hits"] if h["text"] is not None]
    try:
        table = description(record.recipe).texts_table
        sources = sorted({parse_chunk_id(h["chunk"])[0] for h in hits})
        found = Store.open(record.store).rows(table, "source", sources, ["source", "blocks"]).to_pylist()
    except RaypipeError:
        return row
    blocks = {r["source"].hex(): [Block(**b) for b in r["blocks"] or ()] for r in found}
    of = [(h, blocks.get(parse_chunk_id(h["chunk"])[0], ())) for h in row["hits"]]
    return {**row, "hits": [{**h, "text": h["text"] and lined(h["text"], b, h["start"])} for h, b in of]}


GROUPS = 3  # row groups kept in memory, of a hundred questions each
OF_LINES = (
    "id",
    "query",
    "labels",
    "golds",
    "grades",
    "answer",
    "outcome",
    "origin",
    "confidence",
    "verdict",
    "kept",
    "reason",
    "hits.list.element.chunk",
    "hits.list.element.ranked",
    "quotes.list.element.source",
    "faults.list.element.step",
    "seconds",
    "measures",
    "lost",
)
"""Columns that a line needs. Whole rows also have texts and prompts: reading 2,706 of them took 7 s more."""


class RunTable:
    """Access to the rows of a finished run's table by question id. It reads one row group at a time."""

    def __init__(self, path: Path, run: str) -> None:
        """Opens the table and reads its ids. Raises DataError if the file is not the table of this run."""
        self._file = open_table(path, ["id"], run)
        self._place: dict[str, tuple[int, int]] = {}
        for group in range(self._file.num_row_groups):
            ids = self._file.read_row_group(group, ["id"])["id"].to_pylist()
            self._place |= {id: (group, i) for i, id in enumerate(ids)}
        self._group = lru_cache(GROUPS)(self._read)

    def _read(self, group: int, columns: tuple[str, ...] | None) -> list[dict[str, Any]]:
        table = self._file.read_row_group(group, columns and list(columns))
        rows: list[dict[str, Any]] = table.to_pylist(maps_as_pydicts="strict")
        return rows

    @property
    def ids(self) -> list[str]:
        return list(self._place)

    def __contains__(self, id: str) -> bool:
        return id in self._place

    def row(self, id: str) -> dict[str, Any]:
        """Returns a whole row. Raises KeyError if the run lacks the id."""
        group, at = self._place[id]
        return self._group(group, None)[at]

    def line(self, id: str) -> dict[str, Any]:
        """Returns the columns OF_LINES of a row. Raises KeyError if the run lacks the id."""
        group, at = self._place[id]
        return self._group(group, OF_LINES)[at]

    def close(self) -> None:
        self._file.close()
