"""The page of two runs over the same questions: what changed, the difference, each question.

Joins by id. The verdict is that of `evaluation.compare`; nothing is scored here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from raypipe.core.errors import DataError, RaypipeError
from raypipe.evaluation.compare import RunComparison, compare, same_question
from raypipe.evaluation.scored_run import scored_run
from raypipe.evaluation.view import run_page
from raypipe.evaluation.view.rows import QuestionLine, RunTable, matrix, paired_line
from raypipe.metrics.paired import PairedDifference, paired
from raypipe.report.report import RunFolder
from raypipe.report.wording import told_apart
from raypipe.runs.manifest import Manifest


@dataclass(frozen=True, slots=True)
class OpenPair:
    """Two runs, joined."""

    folders: tuple[RunFolder, RunFolder]
    manifests: tuple[Manifest, Manifest]
    tables: tuple[RunTable, RunTable]
    lines: tuple[QuestionLine, ...]  # of the questions in both, in the order of the first
    measure: str  # what their values are
    span: float  # how far apart two values of it can lie

    def difference(self, rows: Sequence[int]) -> PairedDifference:
        """The difference over some of the lines, by number; those without a value are left out. Raises
        DataError where none has one."""
        chosen = [self.lines[i].numbers for i in rows if 0 <= i < len(self.lines)]
        scored = [n for n in chosen if "value" in n]
        if not scored:
            raise DataError("expected questions that both runs score, found none")
        return paired([n["before"] for n in scored], [n["after"] for n in scored], self.span)

    def close(self) -> None:
        for table in self.tables:
            table.close()


def open_pair(one: tuple[RunFolder, Manifest], two: tuple[RunFolder, Manifest]) -> OpenPair:
    """Joins two runs. Raises DataError for folders without a table and for runs without a common question."""
    folders, manifests = (one[0], two[0]), (one[1], two[1])
    report = run_page.read_report(folders[0])
    lead = report["lead"] or "score"
    spans = {m["measure"]: m["high"] - m["low"] for m in report["measures"]}
    a, b = (RunTable(f.results) for f in folders)
    common = [id for id in a.ids if id in b and same_question(a.row(id)["query"], b.row(id)["query"])]
    if not common:
        first = [next(iter(t.ids), "none") for t in (a, b)]
        raise DataError(
            f"{folders[0].path} and {folders[1].path}: expected questions that both have, found none (first "
            f"ids: {first[0]}, {first[1]}). View runs of the same data"
        )
    lines = tuple(paired_line(a.row(id), b.row(id), lead) for id in common)
    return OpenPair(folders, manifests, (a, b), lines, lead, spans.get(lead, 2.0))


def pair_page(pair: OpenPair, shown: run_page.ShownParts) -> tuple[str, str]:
    lines = pair.lines if shown.served else pair.lines[: run_page.MOST_ROWS]
    names, runs = [m.recipe["name"] for m in pair.manifests], [m.run[:8] for m in pair.manifests]
    values = run_page.page_values(pair.tables, lines, shown, runs)
    values["facts"] |= {"pair": True, "lead": pair.measure, "span": pair.span}
    found, refused = _compared(pair)
    before, after = pair.manifests
    a, b = pair.tables
    matrices = [
        matrix("What became of each question", lines, "A", "B"),
        matrix("Where each question was lost", lines, "lost in A", "lost in B"),
    ]
    slices = [{n: getattr(s, n) for n in _SLICE} for s in found.slices] if found else []
    values |= {
        "title": f"{names[0]} {runs[0]} and {names[1]} {runs[1]}",
        "pair": True,
        "questions": len(pair.lines),
        "names": names,
        "runs": runs,
        "changed": run_page.changed_lines(
            before.recipe, after.recipe, "Recipe of B against A", shown.without
        ),
        "c": found,
        "refused": refused,
        "slices": told_apart(slices)[0],
        "unmatched": [
            ("are only in A", [i for i in a.ids if i not in b]),
            ("are only in B", [i for i in b.ids if i not in a]),
            ("are in both and not scored in one", found.unscored if found else ()),
            ("have an id that names another question in each", found.other_questions if found else ()),
        ],
        "matrices": [m for m in matrices if m is not None],
    }
    return run_page.fitted_page(pair.tables, values, shown)


_SLICE = ("label", "value", "found", "p", "verdict")


def _compared(pair: OpenPair) -> tuple[RunComparison | None, str]:
    """The comparison, or why there is none: runs of other kinds or judges, a store that is not here."""
    try:
        scored = [
            replace(scored_run(folder.path, "official"), name=f"run {m.run[:8]}")
            for folder, m in zip(pair.folders, pair.manifests, strict=True)
        ]
        return compare(scored, measure=pair.measure)[0], ""
    except RaypipeError as e:
        return None, str(e)
