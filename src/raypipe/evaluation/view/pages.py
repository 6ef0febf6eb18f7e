"""Pages of runs: the report file, and the viewer's pages of one run and of two.

All pages share one template. The report file has tables, plots and a line for each of the first MOST_ROWS
questions, but no script. If a line is opened on a page of the viewer, the page fetches its details.
`evaluation.compare` and `paired` compare two runs; answers are scored elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from raypipe.core.errors import DataError, RaypipeError
from raypipe.evaluation.compare import compare, open_text, same_question
from raypipe.evaluation.judged_run import PersonLabels
from raypipe.evaluation.report import formatting, plot
from raypipe.evaluation.report.formatting import calibration_line, cost_rows, told_apart
from raypipe.evaluation.scored_run import scored_run
from raypipe.evaluation.view.rows import (
    QuestionLine,
    RunTable,
    changed_first,
    facts,
    line_of,
    matrix,
    paired_line,
)
from raypipe.metrics.kinds import group_of, grouped, recorded_kind
from raypipe.metrics.losses import funnel, steps_of
from raypipe.metrics.paired_tests import PairedDifference, paired
from raypipe.runs.record import Run
from raypipe.runs.run_parts import RunFolder
from raypipe.runs.stage_records import recipe_lines, recipe_text
from raypipe.text import web_page

MOST_ROWS = 10_000  # most lines in the report file: 4 MB of text
GROUP_ROWS = 50  # lines that a browser lays out together: about two windows
STYLES = ("base.css", "run.css")
SCRIPTS = ("dom.js", "evidence.js", "detail.js", "run.js")
FORMATTERS = ("signed", "share", "seconds", "measured", "fit_lines", "label_text", "ann_line", "listed")
"""Functions of `formatting` that are filters of the templates."""
FILTERS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(formatting, name) for name in FORMATTERS},
    "steps_of": steps_of,
    "expected": lambda calls: formatting.between(calls, str, "-"),
}


def page(template: str, scripts: Sequence[str], own_host: bool, values: Mapping[str, Any]) -> tuple[str, str]:
    """Renders a template with the reports' styles, filters and plots. Also returns its security policy."""
    shown = {**values, "plot": plot}
    return web_page.page("raypipe.evaluation.report", template, STYLES, scripts, own_host, shown, FILTERS)


def report_page(folder: RunFolder, record: Run, earlier: Run | None) -> str:
    """Renders the report file. `earlier` is a run to compare with. Raises DataError if a table is missing."""
    return page("run.html", (), False, _values(folder, record, earlier, None))[0]


def run_page(folder: RunFolder, record: Run, earlier: Run | None, labels: PersonLabels) -> tuple[str, str]:
    """Renders the viewer's page of a run, and its security policy. Raises DataError without a table."""
    return page("run.html", SCRIPTS, True, _values(folder, record, earlier, labels))


def _values(
    folder: RunFolder, record: Run, earlier: Run | None, labels: PersonLabels | None
) -> dict[str, Any]:
    """Returns a run's values for the template. `labels` None is for the report file, which has no labels."""
    with closing(RunTable(folder.results, record.run)) as run:
        ids = run.ids if labels else run.ids[:MOST_ROWS]
        lines = [line_of(run.line(id), record.lead or "score", labels) for id in ids]
        known = facts(lines, [record.run[:8]], record.lead, labels.file) if labels else None
        values = _questions(lines, len(run.ids), known)
    origin, recipe = record.origin, record.recipe
    lineage = {
        "run": record.run,
        "finished": f"{moment(record.finished)} UTC",
        "store": record.store,
        "recipe": f"{recipe['name']} {' '.join(recipe.get('sets', ()))}".strip(),
        "recipe digest": record.digest,
        "data": f"{record.questions} questions, kind {record.kind}",
        "what was searched": f"snapshot {record.snapshot}",
        "scored by": f"{record.rule}{f', judge {record.judged_by}' if record.judge else ''}",
        "models": ", ".join(f"{m.name} ({m.weights[:19]})" for m in record.models),
        "adopted": "; ".join(m.adopted for m in record.models if m.adopted),
        "code": origin.commit,
        "packages": ", ".join(f"{name} {version}" for name, version in origin.packages.items()),
        "device": f"{record.backend} on {record.device} {origin.chip}".strip(),
    }
    lead = record.measure(record.lead)
    slices, omitted = told_apart(record.by_rule.slices if record.by_rule else ())
    changed = None
    if earlier is not None:
        when = moment(earlier.finished)
        said = f"Against run {earlier.run[:8]} of recipe {earlier.title}, finished {when} UTC"
        changed = {"against": said, "lines": recipe_lines(earlier.recipe, record.recipe)}
    return values | {
        "title": f"{record.title} - run {record.run}",
        "when": moment(record.finished),
        "r": record,
        "rule": record.by_rule,
        "lead": lead,
        "measure_slices": told_apart(record.measure_slices)[0],
        "slices": slices,
        "omitted": omitted,
        "segments": plot.segments(record.answers),
        "bins": plot.histogram([x.numbers["value"] for x in lines if "value" in x.numbers], lead),
        "changed": changed,
        "funnel": funnel(record.losses) if record.losses else [],
        "calibration": calibration_line("Confidence", record.calibration) if record.calibration else "",
        "cost": cost_rows(record.cost) if record.cost else [],
        "lineage": [(name, said) for name, said in lineage.items() if said],
        "recipe_text": recipe_text(record.recipe),
    }


def _questions(
    lines: Sequence[QuestionLine], questions: int, known: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the list of questions for the template. `known` is data for a script; None: no script."""
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


def moment(seconds: float) -> str:
    """Formats a time in UTC. `seconds` counts from the epoch."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


@dataclass(frozen=True, slots=True)
class OpenPair:
    """Two runs, joined by the ids of their questions."""

    folders: tuple[RunFolder, RunFolder]
    records: tuple[Run, Run]
    tables: tuple[RunTable, RunTable]
    lines: tuple[QuestionLine, ...]  # questions in both runs, the most changed first
    measure: str  # measure of the lines' values
    span: float  # width of the measure's range
    group: str | None  # label that groups dependent questions; None: each by itself

    def difference(self, rows: Sequence[int]) -> PairedDifference:
        """Compares the runs over the lines at these indexes. Raises DataError if none of them has a value."""
        chosen = [self.lines[i] for i in rows if 0 <= i < len(self.lines)]
        chosen = [line for line in chosen if "value" in line.numbers]
        if not chosen:
            raise DataError("expected questions that both runs score, found none")
        before, after = ([line.numbers[name] for line in chosen] for name in ("before", "after"))
        return paired(before, after, self.span, grouped(self.group, {c.id: c.facets for c in chosen}))


def open_pair(one: tuple[RunFolder, Run], two: tuple[RunFolder, Run]) -> OpenPair:
    """Joins two runs by question id. Raises DataError for a missing table, or without a common question."""
    folders, records = (one[0], two[0]), (one[1], two[1])
    lead = records[0].lead or "score"
    spans = {m.measure: m.high - m.low for m in records[0].measures}
    a, b = (RunTable(f.results, m.run) for f, m in (one, two))
    common = [id for id in a.ids if id in b and same_question(a.line(id)["query"], b.line(id)["query"])]
    if not common:
        first = [next(iter(t.ids), "none") for t in (a, b)]
        raise DataError(
            f"{folders[0].path} and {folders[1].path}: expected questions that both have, found none (first "
            f"ids: {first[0]}, {first[1]}). View runs of the same data"
        )
    lines = tuple(sorted((paired_line(a.line(id), b.line(id), lead) for id in common), key=changed_first))
    group = group_of(recorded_kind(records[0].kind))
    return OpenPair(folders, records, (a, b), lines, lead, spans.get(lead, 2.0), group)


def pair_page(pair: OpenPair) -> tuple[str, str]:
    """Renders the viewer's page of two runs. If `compare` refuses them, the page has the reason."""
    lines, (before, after), (a, b) = pair.lines, pair.records, pair.tables
    names, runs = [m.title for m in pair.records], [m.run[:8] for m in pair.records]
    values = _questions(lines, len(lines), facts(lines, runs, pair.measure))
    found, refused = None, ""
    try:
        both = [scored_run(folder.path, "official") for folder in pair.folders]
        named = [replace(scored, name=f"run {run}") for scored, run in zip(both, runs, strict=True)]
        (found,) = compare(named, measure=pair.measure)
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
        "open_text": open_text,
        "refused": refused,
        "slices": told_apart(found.slices if found else ())[0],
        "unmatched": [
            ("are only in A", [i for i in a.ids if i not in b]),
            ("are only in B", [i for i in b.ids if i not in a]),
            ("are in both, but scored in only one or in none", found.unscored if found else ()),
            ("have the same id, but another text in each", found.other_questions if found else ()),
            ("have an answer that one run kept from an earlier run", found.kept if found else ()),
        ],
        "matrices": [m for m in (became, lost) if m is not None],
    }
    return page("run.html", SCRIPTS, True, values)
