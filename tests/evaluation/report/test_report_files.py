"""The files and tables of a report, from real records with hostile texts in them."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from small_run import small_run

from raypipe.core.errors import DataError
from raypipe.core.records import Citation, Gold, Hit, Question, chunk_id, source_id
from raypipe.evaluation.report.console import print_crag, print_means, print_run, print_run_tables
from raypipe.evaluation.report.plot import WIDTH, segments
from raypipe.metrics.verdict_rules import mark, pair
from raypipe.runs.record import Run, read
from raypipe.runs.run_parts import FaultCount, RunFolder, StepLine

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


def made(questions: list[Question]) -> Run:
    golds = {
        q.id: Gold(q.id, ("ann", f"an {SCRIPT}"), {"domain": "movie" if i % 2 else "open", "type": SCRIPT})
        for i, q in enumerate(questions)
    }
    rows, without = pair(questions, golds, {})
    marks = mark(rows, "official")
    return small_run(
        recipe={"name": f"local {SCRIPT}"},
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
        by_rule=marks.total(),
        answers={"right": 1, "wrong": 1, "i don't know": 1, "not scored": 2},
    )


QUESTIONS = [
    question(1, "Ann", "answered"),
    question(2, "i don't know", "abstained"),
    question(3, f"bob {SCRIPT} \ud800", "answered", url="javascript:alert(1)"),
    question(4, "", "fault"),
    question(5, "an invalid question", "false_premise", url='https://example.org/"onmouseover="alert(1)'),
]


FOLDER = RunFolder(Path("/runs/local"))


def test_a_record_is_the_same_after_it_was_written_and_read(tmp_path: Path) -> None:
    record = made(QUESTIONS)
    RunFolder(tmp_path).record.write_text(record.text())
    assert read(tmp_path) == record and record.failed_rows == 3
    tree = json.loads(record.text())
    assert (tree["questions"], tree["citations"], tree["by_rule"]["score"]["n_unscored"]) == (5, 15, 2)
    assert tree["by_rule"]["bounds"] == [pytest.approx(-0.4), pytest.approx(0.4)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 2}, r"record of format 2, this raypipe reads 1"),
        ({"questions": "many"}, r"run\.json: questions: expected a valid integer, .*found 'many'"),
        ({"more": 1}, r"run\.json: more: Extra inputs are not permitted, found 1"),
    ],
)
def test_a_record_of_another_raypipe_is_refused_with_its_field(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    tree = json.loads(made(QUESTIONS).text())
    RunFolder(tmp_path).record.write_text(json.dumps(tree | change))
    with pytest.raises(DataError, match=said):
        read(tmp_path)


def test_the_stacked_bar_fills_its_width_and_counts_every_question() -> None:
    parts = segments(made(QUESTIONS).answers)
    assert [name for name, *_ in parts] == ["right", "wrong", "i don't know", "not scored"]
    assert sum(count for _, count, *_ in parts) == 5
    assert sum(parts[-1][2:]) == pytest.approx(WIDTH)


def console() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=80), out


def test_a_run_stands_on_one_screen_with_the_words_of_its_kind_first() -> None:
    screen, out = console()
    named = made(QUESTIONS).model_copy(update={"recipe": {"name": "local"}})
    print_run(screen, named, str(FOLDER.path), 2)
    lines = out.getvalue().splitlines()
    assert len(lines) <= 15 and max(map(len, lines)) <= 80
    assert lines[0].endswith("1 right, 1 wrong, 1 i don't know, 2 not scored")
    text = " ".join(out.getvalue().split())
    assert "score: +0.000, rule official" in text and "score: score" not in text
    assert "calls: at most 7 planned, 2 computed, 4 cached" in text
    assert "3 new, 2 reused" in text and "1 rows failed in parse: too_large" in text
    assert "2 answers are not scored: --judge MODEL decides them" in text
    assert lines[-2:] == ["report: /runs/local/report.html", "next: raypipe view /runs/local"]


def test_the_tables_of_a_run_fit_a_log_and_name_the_files() -> None:
    screen, out = console()
    print_run_tables(screen, made(QUESTIONS), FOLDER)
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    for word in ("always", "invalid question", "[red]recall", "rule official", "/runs/local/run.json"):
        assert word in text
    assert "1 correct (1 exactly), 1 missing, 1 hallucinated, 2 unscored" in text
    assert "domain:" not in text, "five questions are too few for slices"


def test_what_an_earlier_attempt_did_is_said_on_the_console() -> None:
    record = made(QUESTIONS)
    steps = (replace(record.steps[0], resumed=2), record.steps[1])
    record = record.model_copy(update={"resumed": 3, "steps": steps, "faults": ()})
    screen, out = console()
    print_run(screen, record, "s3://bucket/runs/x", 0)
    assert "report: s3://bucket/runs/x/report.html\nnext: raypipe view s3://bucket/runs/x\n" in out.getvalue()
    assert "finished 3 tasks; they computed: parse 2" in " ".join(out.getvalue().split())


def test_scores_of_files_are_printed_with_what_was_left_out() -> None:
    screen, out = console()
    record = made(QUESTIONS)
    assert record.by_rule is not None
    print_crag(screen, record.by_rule, record.normalized, "", None, 0)
    means = {m: 0.5 for m in ("map", "map_cut_20", "map_cut_20_min", "ndcg_cut_10", "recip_rank")}
    means |= {"recall_5": 0.25, "recall_20": 0.5, "recall_100": 1.0}
    said = "mean of 3 judged queries; 1 had no ranking and count 0"
    print_means(screen, means, said, 0, {"[bold]7": means})
    text = out.getvalue()
    assert "normalized input: answer_number 2" in text
    assert "recall_5" in text and "0.2500" in text and "[bold]7" in text and said in text
