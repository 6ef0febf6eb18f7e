"""The page of a run as a text: escaped, closed to the network, whole without script, small, honest."""

from __future__ import annotations

import base64
import json
import re
import shutil
import zlib
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hostile_run import hostile_run

from raypipe.evaluation.report.report import RunFolder
from raypipe.evaluation.report.web_page import script_json
from raypipe.evaluation.result_table import each
from raypipe.evaluation.view.pages import IN_ONE_FILE, MOST_BYTES, ShownParts, run_page
from raypipe.evaluation.view.rows import TOP, RunTable, block
from raypipe.metrics.calibration import stated_calibration
from raypipe.runs.manifest import read
from raypipe.runs.stage_records import recipe_lines


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


def details(page: str) -> list[Any]:
    """The rows of all blocks, as the page's script reads them."""
    packed = re.findall(r'<script type="text/plain" id="b\d+">(.*?)</script>', page)
    blocks = [json.loads(zlib.decompress(base64.b64decode(p))) for p in packed]
    return [
        {"rows": [q["rows"] for q in b], "texts": {c: t for q in b for c, t in q["texts"].items()}}
        for b in blocks
    ]


@pytest.mark.slow
def test_every_question_with_its_answer_stands_in_the_file_as_text(folder: RunFolder, page: str) -> None:
    tags = Tags(page)
    for row in each(folder.results):
        assert row["query"] in tags.text and (row["answer"] or "failed") in tags.text
    assert sum(1 for t, a in tags.seen if t == "li" and a.get("class") == "row") == len(
        list(each(folder.results))
    )
    assert "This page holds questions, answers" in tags.text
    for plot in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(plot)


def test_the_blocks_have_all_that_the_table_knows_and_each_text_once(folder: RunFolder, page: str) -> None:
    blocks = details(page)
    rows = [q for b in blocks for [q] in b["rows"]]
    assert [q["id"] for q in rows] == [r["id"] for r in each(folder.results)]
    for held in blocks:
        shown = {h["chunk"] for [q] in held["rows"] for h in q["hits"] if h["ranked"]}
        assert shown <= held["texts"].keys() and all(
            h["text"] is None for [q] in held["rows"] for h in q["hits"]
        )


def test_a_page_without_all_candidates_keeps_those_that_are_ranked_cited_gold_or_among_the_first(
    folder: RunFolder,
) -> None:
    run = RunTable(folder.results, read(folder.path).run)
    for id in run.ids:
        row = run.row(id)
        whole, used = (block([run], [id], brief=b)["rows"][0][0] for b in (False, True))
        assert [h["chunk"] for h in whole["hits"]] == [h["chunk"] for h in row["hits"]]
        left = {h["chunk"] for h in used["hits"]}
        assert left >= {h["chunk"] for i, h in enumerate(row["hits"]) if h["ranked"] or i < TOP}
        assert [h["chunk"] for h in used["hits"]] == [h["chunk"] for h in row["hits"] if h["chunk"] in left]
        texts = block([run], [id], brief=True)["texts"]
        assert {h["chunk"] for h in row["hits"] if h["ranked"]} <= texts.keys() <= left
        for quote in used["quotes"]:
            source = quote["source"]
            within = any(c.startswith(source) for c in texts)
            assert (quote["text"] is None) == within or quote["text"]
    run.close()


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
    report = json.loads(other.report.read_text())
    assert report["calibration"] is None
    other.report.write_text(json.dumps(report | {"calibration": asdict(found)}))
    page, _ = run_page(other, read(folder.path), None, IN_ONE_FILE)
    assert "How well the stated confidence holds" in page and 'aria-label="Risk and coverage"' in page
    tags = Tags(page)
    assert not any("style" in attributes for _, attributes in tags.seen)


def test_the_file_asks_nobody_and_its_policy_runs_its_own_script_alone(page: str) -> None:
    tags = Tags(page)
    assert not {t for t, _ in tags.seen} & {"img", "iframe", "object", "embed", "form", "base"}
    assert "url(" not in page and "@import" not in page and "innerHTML" not in page
    for tag, attributes in tags.seen:
        assert not any(a.startswith("on") or a in ("src", "style") for a in attributes), (tag, attributes)
        if "href" in attributes:
            assert (attributes["href"] or "").startswith(("#", "data:,")), attributes
    [policy] = [a["content"] for t, a in tags.seen if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None and "unsafe" not in policy and "connect-src" not in policy
    assert "default-src 'none'; script-src 'sha256-" in policy
    assert "require-trusted-types-for 'script'; trusted-types 'none'" in policy


def test_no_text_of_the_data_is_markup_in_any_field(ran: Any, tmp_path: Any) -> None:
    run, manifest = hostile_run(ran.folder / "out", tmp_path / "hostile")
    page, _ = run_page(run, manifest, manifest, IN_ONE_FILE)
    page.encode()  # no half character is left
    tags = Tags(page)
    own = Tags((ran.folder / "out/report.html").read_text())
    kinds = {t for t, _ in own.seen} | {"pre", "span"}
    assert {t for t, _ in tags.seen} - kinds <= {"b"}, "only tags of the template"
    assert "onerror" not in {k for _, a in tags.seen for k in a} and 'href="javascript' not in page
    assert page.count("<script") == page.count("</script>") == 2 + len(details(page))
    assert "</script" not in script_json({"a": "</script>"})


def test_what_differs_from_the_run_before_comes_first_field_by_field(folder: RunFolder) -> None:
    manifest = read(folder.path)
    before = json.loads(folder.manifest.read_text())["recipe"]
    rerank = next(s for s in before["question"] if s["name"] == "rerank")
    rerank["step"]["top"] = 77
    page, _ = run_page(folder, manifest, replace(manifest, recipe=before), IN_ONE_FILE)
    assert page.index("rerank.top was 77") < page.index("Questions</h2>")
    assert recipe_lines(before, manifest.recipe) == recipe_lines(before, manifest.recipe, prompts=False)
    assert not recipe_lines(manifest.recipe, manifest.recipe)
    before["question"].remove(rerank)
    assert recipe_lines(manifest.recipe, before) == ("rerank: removed",)


def test_a_file_to_share_has_no_page_text_and_no_prompt_and_says_so(folder: RunFolder) -> None:
    page, _ = run_page(folder, read(folder.path), None, ShownParts(without=("prompts", "pages")))
    assert "Left out on purpose: prompts, pages" in page
    for held in details(page):
        assert not held["texts"]
        assert all(r["prompt"] is None for [q] in held["rows"] for r in q["replies"])
        assert all(c["text"] is None for [q] in held["rows"] for c in q["quotes"])
    pages, _ = run_page(folder, read(folder.path), None, ShownParts(without=("pages",)))
    assert all(r["prompt"] is None for block in details(pages) for [q] in block["rows"] for r in q["replies"])
    assert "Replies and answers may quote pages" in pages
    assert "Left out on purpose" not in run_page(folder, read(folder.path), None, IN_ONE_FILE)[0]


@pytest.mark.slow
def test_a_file_that_would_grow_too_big_leaves_out_details_and_says_which(folder: RunFolder) -> None:
    page, pages = run_page(folder, read(folder.path), None, IN_ONE_FILE)[0], 0
    while blocks := details(page):
        held = re.findall(r"This page holds (.*?)\.", page)[0]
        gone = " ".join(re.findall(r"it leaves out (.*?)\.", page))
        assert ("prompts" in held) != ("prompts" in gone)
        assert ("texts of pages" in held) == any(b["texts"] for b in blocks)
        most, pages = len(page.encode()) - 1, pages + 1
        page, _ = run_page(folder, read(folder.path), None, ShownParts(most_bytes=most))
        assert "To stay under 30 MB it leaves out" in page
        assert not details(page) or len(page.encode()) <= most
    assert pages > 1
    none, _ = run_page(folder, read(folder.path), None, ShownParts(most_bytes=1))
    assert "all details of questions" in none and not details(none)
    assert ShownParts().most_bytes == MOST_BYTES == 30_000_000
    assert "replies of models" not in none
