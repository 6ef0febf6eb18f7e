"""Pages of runs, from the files of their folders: the report file, and the viewer's of one run and of two.

The report file has tables, plots and a line for each question, and no script. The viewer's pages fetch what
stands behind a line. One template. The verdict on two runs is that of `evaluation.compare`; nothing is
scored here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raypipe.core.errors import DataError, RaypipeError
from raypipe.evaluation.compare import compare, same_question
from raypipe.evaluation.judged_run import PersonLabels
from raypipe.evaluation.report import plot, web_page
from raypipe.evaluation.report.wording import calibration_line, cost_rows, told_apart
from raypipe.evaluation.scored_run import scored_run
from raypipe.evaluation.view.rows import QuestionLine, RunTable, facts, line_of, matrix, paired_line
from raypipe.metrics.certainty import PairedDifference, paired
from raypipe.metrics.losses import funnel
from raypipe.metrics.textfile import write_text
from raypipe.runs.manifest import Manifest
from raypipe.runs.report import EVAL_AGAIN, RunFolder
from raypipe.runs.stage_records import recipe_lines, recipe_text

MOST_ROWS = 10_000  # lines of the report file: 4 MB of text
GROUP_ROWS = 50  # that a browser lays out together: some two windows
STYLES = ("base.css", "run.css")
SCRIPTS = ("dom.js", "evidence.js", "detail.js", "run.js")


def write_page(folder: RunFolder, manifest: Manifest, earlier: Manifest | None) -> None:
    """Writes report.html of a run whose table and report are there. `earlier`: the run that it is held
    against; None: there is none."""
    write_text(folder.page, report_page(folder, manifest, earlier))


def report_page(folder: RunFolder, manifest: Manifest, earlier: Manifest | None) -> str:
    """Renders the report file. Raises DataError for a folder without table or report."""
    report, run = read_report(folder, manifest.run), RunTable(folder.results, manifest.run)
    try:
        lines = [line_of(run.line(id), report["lead"] or "score", None) for id in run.ids[:MOST_ROWS]]
        values = _questions(lines, len(run.ids)) | _head(report, manifest, earlier)
        return web_page.page("run.html", STYLES, (), False, values)[0]
    finally:
        run.close()


def run_page(
    folder: RunFolder, manifest: Manifest, earlier: Manifest | None, labels: PersonLabels
) -> tuple[str, str]:
    """Renders the viewer's page of a run; returns it with its content security policy. Raises DataError for
    a folder without table or report."""
    report, run = read_report(folder, manifest.run), RunTable(folder.results, manifest.run)
    try:
        lines = [line_of(run.line(id), report["lead"] or "score", labels) for id in run.ids]
        known = facts(lines, [manifest.run[:8]], report["lead"], labels.file)
        return _served(_questions(lines, len(lines), known) | _head(report, manifest, earlier))
    finally:
        run.close()


def _served(values: Mapping[str, Any]) -> tuple[str, str]:
    return web_page.page("run.html", STYLES, SCRIPTS, True, values)


def _questions(
    lines: Sequence[QuestionLine], questions: int, known: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Values of the page's part about questions. `questions`: of the run; `known`: facts for the script of a
    page that the viewer serves; None: the page has no script."""
    pair = known is not None and known["pair"]
    return {
        "served": known is not None,
        "pair": pair,
        "rows": lines,
        "group_rows": GROUP_ROWS,
        "questions": questions,
        "columns": ["question", *(["A", "B"] if pair else ["answer"]), "expected", "scored"],
        "facts": known,
    }


def read_report(folder: RunFolder, run: str) -> dict[str, Any]:
    """report.json of a run. Raises DataError, also for that of another run."""
    try:
        found: dict[str, Any] = json.loads(folder.report.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        what = "none" if isinstance(e, FileNotFoundError) else e
        raise DataError(
            f"{folder.report}: expected the report of a finished eval, found: {what}. {EVAL_AGAIN}"
        ) from e
    if found["run"] != run:
        raise DataError(
            f"{folder.report}: expected the report of run {run[:8]}, found that of run {found['run'][:8]}: "
            f"another eval into this folder has begun or was killed. {EVAL_AGAIN}"
        )
    return found


def _head(report: Mapping[str, Any], manifest: Manifest, earlier: Manifest | None) -> dict[str, Any]:
    slices, omitted = told_apart(report["slices"])
    cost, changed = report["cost"], None
    if earlier is not None:
        when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(earlier.finished))
        said = f"Against run {earlier.run[:8]} of recipe {earlier.title}, finished {when} UTC"
        lines = recipe_lines(earlier.recipe, manifest.recipe)
        changed = {"against": said, "lines": lines}
    return {
        "title": f"{report['recipe']} - run {report['run']}",
        "r": report,
        "blocks_shown": report["blocks"],
        "lead": next((m for m in report["measures"] if m["measure"] == report["lead"]), None),
        "measure_slices": told_apart(report["measure_slices"])[0],
        "slices": slices,
        "omitted": omitted,
        "segments": plot.segments(report),
        "dots": plot.dots(report, slices),
        "changed": changed,
        "funnel": funnel(report["losses"]) if report["losses"] else [],
        "calibration": calibration_line("Confidence", report["calibration"]) if report["calibration"] else "",
        "cost": cost_rows(cost) if cost else [],
        "lineage": _lineage(report, manifest),
        "recipe_text": recipe_text(manifest.recipe),
    }


def _lineage(report: Mapping[str, Any], manifest: Manifest) -> list[tuple[str, str]]:
    origin, recipe = manifest.origin, manifest.recipe
    found = {
        "finished": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(manifest.finished)),
        "recipe": f"{recipe['name']} {' '.join(recipe.get('sets', ()))}".strip(),
        "recipe digest": manifest.digest,
        "data": f"{manifest.questions} questions, kind {manifest.kind}",
        "what was searched": f"snapshot {manifest.snapshot}",
        "scored by": f"{report['rule']}{f', judge {manifest.judge}' if manifest.judge else ''}",
        "models": ", ".join(f"{m.name} ({m.weights[:19]})" for m in manifest.models),
        "code": origin.commit,
        "packages": ", ".join(f"{name} {version}" for name, version in origin.packages.items()),
        "device": f"{manifest.backend} on {manifest.device} {origin.chip}".strip(),
    }
    return [(name, said) for name, said in found.items() if said]


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
    report = read_report(folders[0], manifests[0].run)
    lead = report["lead"] or "score"
    spans = {m["measure"]: m["high"] - m["low"] for m in report["measures"]}
    a, b = (RunTable(f.results, m.run) for f, m in (one, two))
    common = [id for id in a.ids if id in b and same_question(a.line(id)["query"], b.line(id)["query"])]
    if not common:
        first = [next(iter(t.ids), "none") for t in (a, b)]
        raise DataError(
            f"{folders[0].path} and {folders[1].path}: expected questions that both have, found none (first "
            f"ids: {first[0]}, {first[1]}). View runs of the same data"
        )
    lines = tuple(paired_line(a.line(id), b.line(id), lead) for id in common)
    return OpenPair(folders, manifests, (a, b), lines, lead, spans.get(lead, 2.0))


def pair_page(pair: OpenPair) -> tuple[str, str]:
    """Renders the viewer's page of two runs; returns it with its policy. Where `compare` refuses them it says
    why: runs of other kinds or judges, a store that is not here."""
    lines, (before, after), (a, b) = pair.lines, pair.manifests, pair.tables
    names, runs = [m.title for m in pair.manifests], [m.run[:8] for m in pair.manifests]
    values = _questions(lines, len(lines), facts(lines, runs, pair.measure))
    found, refused, slices = None, "", list[dict[str, Any]]()
    try:
        both = [scored_run(folder.path, "official") for folder in pair.folders]
        named = [replace(scored, name=f"run {run}") for scored, run in zip(both, runs, strict=True)]
        (found,) = compare(named, measure=pair.measure)
        slices = [
            {n: getattr(s, n) for n in ("label", "value", "found", "p", "verdict")} for s in found.slices
        ]
    except RaypipeError as e:
        refused = str(e)
    became = matrix("What became of each question", lines, "A", "B")
    lost = matrix("Where each question was lost", lines, "lost in A", "lost in B")
    changed = recipe_lines(before.recipe, after.recipe)
    values |= {
        "title": f"{names[0]} {runs[0]} and {names[1]} {runs[1]}",
        "names": names,
        "runs": runs,
        "changed": {"against": "Recipe of B against A", "lines": changed},
        "c": found,
        "refused": refused,
        "slices": told_apart(slices)[0],
        "unmatched": [
            ("are only in A", [i for i in a.ids if i not in b]),
            ("are only in B", [i for i in b.ids if i not in a]),
            ("are in both and not scored in one", found.unscored if found else ()),
            ("have an id that names another question in each", found.other_questions if found else ()),
        ],
        "matrices": [m for m in (became, lost) if m is not None],
    }
    return _served(values)
