"""The files and tables of a report, from real records with hostile texts in them."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from raypipe.core.records import Citation, Gold, Hit, Question, Quote, chunk_id, source_id
from raypipe.metrics.crag import Prediction, mark, pair
from raypipe.report.console import print_crag, print_ranking, print_report
from raypipe.report.page import MOST, SHOWN, ReportPassage, ShownQuestion, linkable, told_apart
from raypipe.report.plot import CLASSES, WIDTH, bars, dots, segments
from raypipe.report.report import (
    EvalReport,
    FaultCount,
    RunFolder,
    StepLine,
    answer_of,
    ranking,
    to_json,
    urls,
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


def shown(q: Question) -> ShownQuestion:
    """A question as it is on the page, its best passage with a quote in it."""
    url, best = urls(q), ranking(q)[0]
    quote = Quote(best.source, (4, 6))
    passage = ReportPassage.of(best, url.get(best.source), f"a<b {SCRIPT}", [quote])
    return ShownQuestion(q.id, q.text, answer_of(q), q.origin, len(q.hits), (passage,), (SCRIPT,))


def written_to(
    folder: Path, report: EvalReport, questions: list[Question], rows: list[Prediction]
) -> RunFolder:
    """All files of a report."""
    outputs = RunFolder(folder)
    write_report(outputs, report, [shown(q) for q in questions], {r.question: r.truths for r in rows})
    return outputs


QUESTIONS = [
    question(1, "Ann", "answered"),
    question(2, "i don't know", "abstained"),
    question(3, f"bob {SCRIPT} \ud800", "answered", url="javascript:alert(1)"),
    question(4, "", "fault"),
    question(5, "an invalid question", "false_premise", url='https://example.org/"onmouseover="alert(1)'),
]


class Tags(HTMLParser):
    """Every tag and attribute that a browser would see."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[EvalReport, RunFolder]:
    report, rows = made(QUESTIONS)
    return report, written_to(tmp_path_factory.mktemp("out") / "deep", report, QUESTIONS, rows)


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
    ]
    assert (found["questions"], found["citations"], found["faults"]) == (5, 15, 3)
    assert (found["score"], found["accuracy"], found["unscored"]) == (0, 1 / 3, 2)
    assert found["bounds"] == [pytest.approx(-0.4), pytest.approx(0.4)]


def test_the_page_asks_nothing_of_the_network_and_runs_nothing(written: tuple[EvalReport, RunFolder]) -> None:
    page = written[1].page.read_text()
    tags = Tags()
    tags.feed(page)
    names = {t for t, _ in tags.seen}
    assert not names & {"script", "link", "img", "iframe", "object", "embed", "form", "base"}
    assert "url(" not in page and "@import" not in page
    for tag, attributes in tags.seen:
        assert not any(a.startswith("on") or a == "src" for a in attributes), (tag, attributes)
        if "href" in attributes:
            assert tag == "a" and linkable(attributes["href"])
    assert ("meta", "default-src 'none'; style-src 'unsafe-inline'") in [
        (t, a.get("content")) for t, a in tags.seen
    ]


def test_what_came_from_data_is_escaped_on_the_page(written: tuple[EvalReport, RunFolder]) -> None:
    page = written[1].page.read_text()
    assert SCRIPT not in page
    assert page.count("&lt;script&gt;") >= 5 + 5 + 4  # questions, truths; name, slice, step, fault
    assert 'href="javascript' not in page and "javascript:alert(1)" in page


def test_a_passage_on_the_page_has_its_text_with_the_cited_quote_marked(
    written: tuple[EvalReport, RunFolder],
) -> None:
    page = written[1].page.read_text()
    assert "<blockquote>a<mark>&lt;b</mark> &lt;script&gt;" in page
    hit = Hit("s:0-4", "s", (0, 4))
    elsewhere = [Quote("t", (0, 2)), Quote("s", (3, 6))]
    assert ReportPassage.of(hit, None, "abcd", elsewhere) == ReportPassage(None, (0, 4), {}, "abcd", "", "")


def test_the_plots_on_the_page_are_well_formed(written: tuple[EvalReport, RunFolder]) -> None:
    plots = re.findall(r"<svg.*?</svg>", written[1].page.read_text(), re.DOTALL)
    assert len(plots) == 3
    for plot in plots:
        ElementTree.fromstring(plot)


def test_the_stacked_bar_fills_its_width_and_counts_every_question() -> None:
    parts = segments(to_json(made(QUESTIONS)[0]))
    assert [p.name for p in parts] == [c for c in CLASSES if c != "judged"]
    assert sum(p.count for p in parts) == 5
    assert parts[-1].x + parts[-1].width == pytest.approx(WIDTH)


def test_slices_stand_one_below_the_other_with_the_interval_round_the_dot() -> None:
    report = to_json(made(QUESTIONS)[0])
    found = dots(report, told_apart(report["slices"])[0])
    assert [d.label for d in found] == ["all questions", "domain: open", "domain: movie"]
    assert all(a.y < b.y for a, b in pairwise(found))
    assert all(d.x is not None and d.low <= d.x <= d.high for d in found if d.text != "not scored")


def test_labels_of_one_value_and_of_very_many_are_left_to_the_json(tmp_path: Path) -> None:
    questions = [question(i, "ann", "answered") for i in range(MOST + 1)]
    report, rows = made(questions)
    rows = [replace(r, labels={"one": "x", "two": f"v{i % 2}", "many": str(i)}) for i, r in enumerate(rows)]
    report = replace(report, marks=mark(rows, "official"))
    page = written_to(tmp_path, report, questions, rows).page.read_text()
    assert "two: v0" in page and "many: " not in page and "one: " not in page
    assert "<code>many</code> has 13 values" in page and "<code>one</code> has 1 value and" in page
    assert {s["label"] for s in to_json(report)["slices"]} == {"one", "two", "many"}


def test_the_page_says_how_many_are_scored_and_how_to_get_a_judge(
    written: tuple[EvalReport, RunFolder],
) -> None:
    page = written[1].page.read_text()
    assert "score of the 3 of 5 scored" in page
    assert "No judge ran. Repeat the eval with <code>--judge MODEL</code>" in page
    assert page.count("needs a judge: --judge MODEL") == 1


@pytest.mark.parametrize("questions", [[], [question(1, "bob", "answered")]])
def test_a_report_without_a_score_says_so_and_shows_no_zero(
    tmp_path: Path, questions: list[Question]
) -> None:
    report, rows = made(questions)
    page = written_to(tmp_path, report, questions, rows).page.read_text()
    assert "<b>not scored</b>" in page
    assert to_json(report)["score"] is None
    assert not bars([])


def test_the_page_shows_a_part_of_a_big_run_and_says_so(tmp_path: Path) -> None:
    questions = [question(i, "ann", "answered") for i in range(SHOWN + 5)]
    report, rows = made(questions)
    outputs = written_to(tmp_path, report, questions, rows)
    assert f"The first {SHOWN} of {SHOWN + 5}" in outputs.page.read_text()


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
    for word in ("always", "invalid question", "domain: movie", "[red]recall", "too_large", "rule official"):
        assert word in text
    assert "1 correct (1 exactly), 1 missing, 1 hallucinated, 2 unscored" in text


def test_what_an_earlier_attempt_did_is_said_on_the_console_and_on_the_page(tmp_path: Path) -> None:
    report, rows = made(QUESTIONS)
    steps = (replace(report.steps[0], resumed=2), report.steps[1])
    report = replace(report, resumed=3, steps=steps)
    screen, out = console()
    print_report(screen, to_json(report), written_to(tmp_path, report, QUESTIONS, rows))
    assert "finished 3 tasks; they computed: parse 2" in " ".join(out.getvalue().split())
    page = " ".join((tmp_path / "report.html").read_text().split())
    assert "finished 3 tasks. They computed parse 2." in page


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
