"""The report file and the viewer's page of a run as texts: escaped, closed to the network, honest."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hostile_run import hostile_run

from raypipe.evaluation.judged_run import PersonLabels
from raypipe.evaluation.result_table import each
from raypipe.evaluation.view.pages import report_page, run_page
from raypipe.metrics.calibration import stated_calibration
from raypipe.runs.record import read
from raypipe.runs.run_parts import RunFolder
from raypipe.runs.stage_records import recipe_lines
from raypipe.text.web_page import script_json


class Tags(HTMLParser):
    """Every tag and attribute that a browser would see, and the text outside of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        self._open = tag

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        self.text += data if self._open not in ("script", "style") else ""


@pytest.fixture(scope="module")
def folder(ran: Any) -> RunFolder:
    return RunFolder(ran.folder / "out")


@pytest.fixture(scope="module")
def page(folder: RunFolder) -> str:
    return folder.page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_question_with_its_answer_stands_in_the_file_as_text(folder: RunFolder, page: str) -> None:
    tags = Tags(page)
    for row in each(folder.results):
        assert row["query"] in tags.text and (row["answer"] or "failed") in tags.text
    rows = list(each(folder.results))
    assert sum(1 for t, a in tags.seen if t == "li" and a.get("class") == "row") == len(rows)
    assert "This page holds the recipe, questions, answers and what was expected" in tags.text
    passages = [h["text"] for row in rows for h in row["hits"] if h["text"]]
    assert passages and not any(text in tags.text for text in passages)
    for plot in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(plot)


def test_the_confidence_of_enough_answers_is_held_against_what_came(
    folder: RunFolder, tmp_path: Path
) -> None:
    stated = {f"q{i}": i / 60 for i in range(60)}
    right = {q: p > 0.5 for q, p in stated.items()}
    found = stated_calibration(stated, right)
    assert found is not None and found.n == 60 and found.risk_area < 0.5
    assert stated_calibration({**stated, "q0": None}, right) is None  # an answer that states none
    assert stated_calibration(dict(list(stated.items())[:49]), right) is None  # too few
    assert stated_calibration(stated, {**right, "q0": None}).n == 59  # type: ignore[union-attr]
    other = RunFolder(Path(shutil.copytree(folder.path, tmp_path / "other")))
    record = read(folder.path)
    assert record.calibration is None
    page = report_page(other, record.model_copy(update={"calibration": found}), None)
    assert "How well the stated confidence holds" in page and 'aria-label="Risk and coverage"' in page
    tags = Tags(page)
    assert not any("style" in attributes for _, attributes in tags.seen)


def test_the_file_asks_no_host_and_has_no_script(page: str) -> None:
    tags = Tags(page)
    assert not {t for t, _ in tags.seen} & {"img", "iframe", "object", "embed", "form", "base", "script"}
    assert "url(" not in page and "@import" not in page and "innerHTML" not in page
    for tag, attributes in tags.seen:
        assert not any(a.startswith("on") or a in ("src", "style") for a in attributes), (tag, attributes)
        if "href" in attributes:
            assert attributes["href"] == "data:," or (attributes["href"] or "").startswith("#"), attributes
    [policy] = [a["content"] for t, a in tags.seen if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None and "unsafe" not in policy and "connect-src" not in policy
    assert "default-src 'none'; style-src 'sha256-" in policy and "script-src" not in policy
    assert "require-trusted-types-for 'script'; trusted-types 'none'" in policy


def test_no_text_of_the_data_is_markup_in_any_field(ran: Any, tmp_path: Any) -> None:
    run, record = hostile_run(ran.folder / "out", tmp_path / "hostile")
    unmarked, clean = PersonLabels("labels.jsonl", {}, {}), read(ran.folder / "out")
    for scripts, page, own in (
        (0, report_page(run, record, record), (ran.folder / "out/report.html").read_text()),
        (
            2,
            *(
                run_page(*of, None, unmarked)[0]
                for of in ((run, record), (RunFolder(ran.folder / "out"), clean))
            ),
        ),
    ):
        page.encode()  # no half character is left
        tags = Tags(page)
        kinds = {t for t, _ in Tags(own).seen} | {"pre", "span"}
        assert {t for t, _ in tags.seen} - kinds <= {"b"}, "only tags of the template"
        assert "onerror" not in {k for _, a in tags.seen for k in a} and 'href="javascript' not in page
        assert page.count("<script") == page.count("</script>") == scripts
    assert "</script" not in script_json({"a": "</script>"})


def test_what_differs_from_the_run_before_comes_first_field_by_field(folder: RunFolder) -> None:
    record = read(folder.path)
    before = json.loads(folder.record.read_text())["recipe"]
    rerank = next(s for s in before["question"] if s["name"] == "rerank")
    rerank["step"]["top"] = 77
    page = report_page(folder, record, record.model_copy(update={"recipe": before}))
    assert page.index("rerank.top was 77") < page.index("Questions</h2>")
    assert not recipe_lines(record.recipe, record.recipe)
    before["question"].remove(rerank)
    assert recipe_lines(record.recipe, before) == ("rerank: removed",)
