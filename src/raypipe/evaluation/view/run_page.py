"""The page of one run, from the files of its folder: results.parquet, report.json, and its manifest.

As one file every detail is in it, as far as it stays small; served, details are fetched. One template, one
script.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raypipe.core.errors import DataError
from raypipe.evaluation.labels import PersonLabels
from raypipe.evaluation.view.details import BLOCK, Kept, Part, RunTable, block, packed
from raypipe.evaluation.view.rows import QuestionLine, facts, line_of
from raypipe.metrics.losses import funnel
from raypipe.metrics.textfile import write_text
from raypipe.report import plot, web_page
from raypipe.report.costs import cost_rows
from raypipe.report.report import RunFolder
from raypipe.report.wording import calibration_line, told_apart
from raypipe.runs.manifest import Manifest
from raypipe.runs.stage_records import recipe_lines, recipe_text

MOST_BYTES = 30_000_000  # of a file: what the page and docs/view.md say
MOST_ROWS = 10_000  # in one file: 4 MB of text; sorted in .6 s
GROUP_ROWS = 50  # that a browser lays out together: some two windows
STYLES = ("base.css", "run.css")
SCRIPTS = ("dom.js", "evidence.js", "detail.js", "paired.js", "run.js")

_TEN = "passages beyond the first ten"
_LESS: tuple[tuple[str, tuple[Part, ...], Kept], ...] = (
    ("", (), "all"),
    ("passages that are neither ranked, cited nor among the first ten", (), "best"),
    (f"{_TEN}, and texts that the answer does not rest on", (), "used"),
    (f"{_TEN}, texts that the answer does not rest on, and prompts", ("prompts",), "used"),
    (f"{_TEN}, prompts and texts of pages", ("prompts", "pages"), "used"),
)
"""What a file leaves out to stay under MOST_BYTES, step by step."""


@dataclass(frozen=True, slots=True)
class ShownParts:
    """How a page is shown."""

    served: bool = False  # details are fetched from the server that the page came from
    without: tuple[Part, ...] = ()  # left out on purpose
    labels: PersonLabels | None = None  # what people said; None: the page takes no labels
    most_bytes: int = MOST_BYTES  # of a file


IN_ONE_FILE = ShownParts()


def write_page(folder: RunFolder, manifest: Manifest, earlier: Manifest | None) -> None:
    """Writes report.html of a run whose table and report are there. `earlier`: the run that it is held
    against; None: there is none."""
    page, _ = run_page(folder, manifest, earlier, IN_ONE_FILE)
    write_text(folder.page, page)


def run_page(
    folder: RunFolder, manifest: Manifest, earlier: Manifest | None, shown: ShownParts
) -> tuple[str, str]:
    """The page and its content security policy. Raises DataError for a folder without table or report."""
    report, run = read_report(folder), RunTable(folder.results)
    try:
        ids = run.ids if shown.served else run.ids[:MOST_ROWS]
        lines = [line_of(run.row(id), report["lead"] or "score", shown.labels) for id in ids]
        values = page_values([run], lines, shown, [manifest.run[:8]])
        values |= _head(report, manifest, earlier, shown)
        values["facts"] |= {"pair": False, "lead": report["lead"], "span": 1}
        return fitted_page([run], values, shown)
    finally:
        run.close()


def read_report(folder: RunFolder) -> dict[str, Any]:
    """report.json of a run. Raises DataError."""
    return {**_ADDED, **stored_report(folder)}


def stored_report(folder: RunFolder) -> dict[str, Any]:
    """The same as it was written, with the keys that there were then. Raises DataError."""
    try:
        found: dict[str, Any] = json.loads(folder.report.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise DataError(
            f"{folder.path}: expected the --out folder of a finished eval with its report.json ({e})"
        ) from e
    return found


_ADDED = {"cost": None, "losses": None, "calibration": None, "blocks": ["measures", "verdicts"]}
"""Keys that reports of earlier versions lack, and what stands for them."""


def page_values(
    runs: Sequence[RunTable], lines: Sequence[QuestionLine], shown: ShownParts, names: Sequence[str]
) -> dict[str, Any]:
    """What the part of the page about questions shows, of one run or two."""
    columns = ["question", "answer", "expected", "scored"]
    labelled, labels = shown.labels is not None, shown.labels.file if shown.labels else ""
    about = {"run": "-".join(names), "runs": names, "block": BLOCK, "served": shown.served}
    return {
        "served": shown.served,
        "rows": lines,
        "group_rows": GROUP_ROWS,
        "questions": len(runs[0].ids),
        "columns": columns if len(runs) == 1 else ["question", "A", "B", "expected", "scored"],
        "facts": facts(lines, **about, labelled=labelled, labels=labels),
    }


def fitted_page(runs: Sequence[RunTable], values: Mapping[str, Any], shown: ShownParts) -> tuple[str, str]:
    """The page of these values, and its policy. A file gets as many details of its questions as fit."""

    def made(blocks: Sequence[str], discloses: str) -> tuple[str, str]:
        more = {"blocks": blocks, "discloses": discloses}
        return web_page.page("run.html", STYLES, SCRIPTS, shown.served, {**values, **more})

    if shown.served:
        return made([], _discloses(shown.without, "", True))
    ids = [line.id for line in values["rows"]]
    for said, less, kept in _LESS:
        without = (*shown.without, *less)
        if (blocks := _blocks(runs, ids, without, kept, shown.most_bytes)) is None:
            continue
        page = made(blocks, _discloses(shown.without, said, True, less))
        if len(page[0].encode()) <= shown.most_bytes:
            return page
    return made([], _discloses(shown.without, "all details of questions", False))


def _blocks(
    runs: Sequence[RunTable], ids: Sequence[str], without: Sequence[Part], kept: Kept, most: int
) -> list[str] | None:
    """All blocks packed; None where they alone take more than `most` bytes."""
    made, size = [], 0
    for i in range(0, len(ids), BLOCK):
        made.append(packed(block(runs, ids[i : i + BLOCK], without, kept)))
        if (size := size + len(made[-1])) > most:
            return None
    return made


def _discloses(on_purpose: Sequence[Part], fit: str, details: bool, less: Sequence[Part] = ()) -> str:
    """What someone who gets the page can read in it. `fit`: what it leaves out to stay small; `details`: it
    has those of its questions; `less`: parts that went with `fit`."""
    without = (*on_purpose, *less)
    held = ["questions", "answers", "what was expected"]
    held += ["replies of models"] if details else []
    held += ["texts of pages"] if details and "pages" not in without else []
    held += ["prompts"] if details and not without else []
    held += ["addresses of pages"] if details else []
    said = f"This page holds {', '.join(held[:-1])}, and {held[-1]}."
    if "pages" in without:
        said += f" {'Replies and answers' if details else 'Answers'} may quote pages."
    if on_purpose:
        said += f" Left out on purpose: {', '.join(on_purpose)}"
        said += ", and with pages the prompts, which hold them." if on_purpose == ("pages",) else "."
    if fit:
        said += f" To stay under 30 MB it leaves out {fit}. raypipe view RUN shows all."
    return said


def changed_lines(
    before: Mapping[str, Any], after: Mapping[str, Any], against: str, without: Sequence[Part]
) -> dict[str, Any]:
    """What differs between two recipes, for the page."""
    return {"against": against, "lines": recipe_lines(before, after, "prompts" not in without)}


def _head(
    report: Mapping[str, Any], manifest: Manifest, earlier: Manifest | None, shown: ShownParts
) -> dict[str, Any]:
    slices, omitted = told_apart(report["slices"])
    cost, changed = report["cost"], None
    if earlier is not None:
        when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(earlier.finished))
        said = f"Against run {earlier.run[:8]} of recipe {earlier.recipe['name']}, finished {when} UTC"
        changed = changed_lines(earlier.recipe, manifest.recipe, said, shown.without)
    return {
        "title": f"{report['recipe']} - run {report['run']}",
        "pair": False,
        "r": report,
        "blocks_shown": report["blocks"],
        "lead": next((m for m in report["measures"] if m["measure"] == report["lead"]), None),
        "measure_slices": told_apart(report["measure_slices"])[0],
        "slices": slices,
        "omitted": omitted,
        "segments": plot.segments(report),
        "dots": plot.dots(report, slices),
        "bars": plot.bars(report["steps"]),
        "changed": changed,
        "funnel": funnel(report["losses"]) if report["losses"] else [],
        "calibration": calibration_line("Confidence", report["calibration"]) if report["calibration"] else "",
        "cost": cost_rows(cost) if cost else [],
        "lineage": _lineage(report, manifest),
        "recipe_text": recipe_text(manifest.recipe, "prompts" not in shown.without),
    }


def _lineage(report: Mapping[str, Any], manifest: Manifest) -> list[tuple[str, str]]:
    origin, recipe = manifest.origin, manifest.recipe
    found = {
        "finished": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(manifest.finished)),
        "recipe": f"{recipe['name']} {' '.join(recipe.get('sets', ()))}".strip(),
        "recipe digest": manifest.digest,
        "data": f"{manifest.questions} questions, kind {manifest.kind or 'crag'}",
        "what was searched": f"snapshot {manifest.snapshot}",
        "scored by": f"{report['rule']}{f', judge {manifest.judge}' if manifest.judge else ''}",
        "models": ", ".join(f"{m.name} ({m.weights[:19]})" for m in manifest.models),
        "code": origin.commit,
        "packages": ", ".join(f"{name} {version}" for name, version in origin.packages.items()),
        "device": f"{manifest.backend} on {manifest.device} {origin.chip}".strip(),
    }
    return [(name, said) for name, said in found.items() if said]
