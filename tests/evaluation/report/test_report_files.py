"""The files and tables of a report, from real records with hostile texts in them."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from raypipe.core.records import Citation, Gold, Hit, Question, chunk_id, source_id
from raypipe.evaluation.report.console import print_crag, print_ranking, print_report
from raypipe.evaluation.report.plot import CLASSES, WIDTH, dots, segments
from raypipe.evaluation.report.wording import told_apart
from raypipe.metrics.crag import Prediction, mark, pair
from raypipe.runs.report import (
    EvalReport,
    FaultCount,
    RunFolder,
    StepLine,
    to_json,
    write_report,
)

SCRIPT = "<script>alert('x')</script>"
PAGE, OTHER = source_id("page", "<p>one</p>"), source_id("page", "<p>two</p>")


def question(number: int, answer: str, outcome: Any, url: str = "https://example.org/a?b=1&c=2") -> Question:
    cited = (
        Citation(f"q{number}", 2, "https://example.org/late", "", PAGE, None, None),
        Citation(f"q{number}", 0, url, "", PAGE, None, None),
        Citation(f"q{number}", 1, "", "", OTHER, None, None),
    )
    first, second = (Hit(chunk_id(s, (3, 9)), s, (3, 9), {"bm25": 1.5}) for s in (OTHER, PAGE))
    return Question(
        f"q{number}",
        f"who is {number}? {SCRIPT}",
        citations=cited,
        hits=(first, second),
        order=(second.chunk,),
        answer=answer,
        outcome=outcome,
        origin="web",
    )


def made(questions: list[Question]) -> tuple[EvalReport, list[Prediction]]:
    golds = {
        q.id: Gold(q.id, ("ann", f"an {SCRIPT}"), {"domain": "movie" if i % 2 else "open", "type": SCRIPT})
        for i, q in enumerate(questions)
    }
    rows, without = pair(questions, golds, {})
    report = EvalReport(
        run="r1",
        recipe=f"local {SCRIPT}",
        digest="abc",
        seconds=75.0,
        clock={"computing": 60.0, "rest": 15.0},
        questions=len(questions),
        citations=3 * len(questions),
        distinct_pages=2,
        empty_pages=1,
        chunks=8,
        pages_compared=1,
        parser_fallbacks=1,
        normalized={"answer_number": 2},
        without_truth=len(without),
        faults=(
            FaultCount("parse", f"too_large {SCRIPT}", False, 1),
            FaultCount("dense", "timeout", True, 2),
        ),
        steps=(
            StepLine("parse", 3, 3, 2, 0, 0, 1, 4.5),
            StepLine(f"[red]recall {SCRIPT}", 4, 4, 0, 4, 0, 2, 0.5),
        ),
        marks=mark(rows, "official"),
    )
    return report, rows


def written_to(folder: Path, report: EvalReport) -> RunFolder:
    """All files of a report."""
    outputs = RunFolder(folder)
    write_report(outputs, report)
    return outputs


QUESTIONS = [
    question(1, "Ann", "answered"),
    question(2, "i don't know", "abstained"),
    question(3, f"bob {SCRIPT} \ud800", "answered", url="javascript:alert(1)"),
    question(4, "", "fault"),
    question(5, "an invalid question", "false_premise", url='https://example.org/"onmouseover="alert(1)'),
]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[EvalReport, RunFolder]:
    report, _ = made(QUESTIONS)
    return report, written_to(tmp_path_factory.mktemp("out") / "deep", report)


def test_the_json_report_holds_what_programs_may_rely_on(written: tuple[EvalReport, RunFolder]) -> None:
    report, outputs = written
    found = json.loads(outputs.report.read_text())
    assert found == json.loads(json.dumps(to_json(report)))
    promised = (
        "run recipe digest questions citations distinct_pages chunks faults score accuracy hallucination"
    )
    assert {*promised.split(), "missing", "unscored", "seconds", "steps"} <= set(found)
    counts = ["step", "rows", "planned", "computed", "cached", "skipped", "faults", "seconds"]
    assert list(found["steps"][0]) == [
        *counts,
        "prompt_tokens",
        "cached_tokens",
        "generated_tokens",
        "resumed",
        "loading",
        "thought_tokens",
        "expected",
    ]
    assert (found["questions"], found["citations"], found["faults"]) == (5, 15, 3)
    assert (found["score"], found["accuracy"], found["unscored"]) == (0, 1 / 3, 2)
    assert found["bounds"] == [pytest.approx(-0.4), pytest.approx(0.4)]


def test_the_stacked_bar_fills_its_width_and_counts_every_question() -> None:
    parts = segments(to_json(made(QUESTIONS)[0]))
    assert [name for name, *_ in parts] == [c for c in CLASSES if c != "judged"]
    assert sum(count for _, count, *_ in parts) == 5
    assert sum(parts[-1][2:]) == pytest.approx(WIDTH)


def test_slices_stand_one_below_the_other_with_the_interval_round_the_dot() -> None:
    report = to_json(made(QUESTIONS)[0])
    found = dots(report, told_apart(report["slices"])[0])
    assert [d.label for d in found] == ["all questions", "domain: open", "domain: movie"]
    assert all(a.y < b.y for a, b in pairwise(found))
    assert all(d.x is not None and d.low <= d.x <= d.high for d in found if d.text != "not scored")


def console() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=80), out


def test_the_console_table_fits_a_log_and_names_the_files(written: tuple[EvalReport, RunFolder]) -> None:
    report, outputs = written
    screen, out = console()
    print_report(screen, to_json(report), outputs)
    text = out.getvalue()
    for path in (outputs.report, outputs.predictions, outputs.page):
        assert str(path) in text
        text = text.replace(str(path), "")
    assert max(map(len, text.splitlines())) <= 80
    for word in ("always", "invalid question", "[red]recall", "too_large", "rule official"):
        assert word in text
    assert "1 correct (1 exactly), 1 missing, 1 hallucinated, 2 unscored" in text
    assert "domain:" not in text, "five questions are too few for slices"


def test_what_an_earlier_attempt_did_is_said_on_the_console(tmp_path: Path) -> None:
    report, _ = made(QUESTIONS)
    steps = (replace(report.steps[0], resumed=2), report.steps[1])
    report = replace(report, resumed=3, steps=steps)
    screen, out = console()
    print_report(screen, to_json(report), written_to(tmp_path, report))
    assert "finished 3 tasks; they computed: parse 2" in " ".join(out.getvalue().split())


def test_scores_of_files_are_printed_with_what_was_left_out() -> None:
    screen, out = console()
    report, _ = made(QUESTIONS)
    print_crag(screen, to_json(report))
    found = {m: 0.5 for m in ("map", "map_cut_20", "map_cut_20_min", "ndcg_cut_10", "recip_rank")}
    found |= {"recall_5": 0.25, "recall_20": 0.5, "recall_100": 1.0}
    each = {"per_query": {"[bold]7": dict(found)}}
    print_ranking(screen, {**found, "queries": 3, "unranked": ["1"], "unjudged": [], **each})
    text = out.getvalue()
    assert "normalized input: answer_number 2" in text
    assert "recall_5" in text and "0.2500" in text and "[bold]7" in text
    assert "mean of 3 judged queries; 1 had no ranking and count 0" in text
