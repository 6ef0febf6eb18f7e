"""The pages of the invented dataset: sizes, repeats, what they say; and the files they are in."""

from __future__ import annotations

import bz2
import json
import os
import re
import statistics
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from bs4 import BeautifulSoup

from raypipe.contrib.world import write as synth
from raypipe.contrib.world.ask.questions import pose, templates
from raypipe.contrib.world.pages import Pages
from raypipe.contrib.world.styles import styles
from raypipe.contrib.world.world.world import World
from raypipe.contrib.world.write import VERSION
from raypipe.core.errors import ConfError

pytestmark = pytest.mark.slow

Small = tuple[Path, synth.SynthSummary]
Rows = list[dict[str, Any]]


def digests(folder: Path) -> dict[str, str]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): sha256(p.read_bytes()).hexdigest() for p in files}


def distinct(row: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(r["page_result"] for r in row["search_results"] if r["page_result"]))


def text_of(html: str) -> str:
    return " ".join(BeautifulSoup(html, "lxml").get_text(" ", strip=True).split()).lower()


def test_every_row_has_the_fields_of_the_benchmark_and_its_own(rows: Rows) -> None:
    assert len(rows) == 120
    phrasings = {t.id: len(t.phrasings) for t in templates()}
    for row in rows:
        assert set(row) == {
            "interaction_id",
            "query_time",
            "domain",
            "question_type",
            "static_or_dynamic",
            "query",
            "answer",
            "alt_ans",
            "split",
            "popularity",
            "kg_answerable",
            "premise_false",
            "answer_on_pages",
            "template",
            "kg_program",
            "kg_rule",
            "search_results",
        }
        assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", row["interaction_id"])
        assert re.fullmatch(r"0[23]/\d\d/2024, \d\d:\d\d:\d\d PT", row["query_time"])
        assert row["split"] in (0, 1) and row["popularity"] in ("head", "torso", "tail")
        assert isinstance(row["alt_ans"], list)
        assert row["premise_false"] == (row["answer"] == "invalid question")
        assert bool(row["kg_program"]) or not row["kg_answerable"]
        name, _, phrasing = row["template"].rpartition("/")
        assert int(phrasing) < phrasings[name]
        assert len(row["search_results"]) == 20
        for result in row["search_results"]:
            assert set(result) == {
                "page_name",
                "page_url",
                "page_snippet",
                "page_result",
                "page_last_modified",
            }
            assert re.fullmatch(r"|\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", result["page_last_modified"])
    assert len({r["interaction_id"] for r in rows}) == len(rows)


def test_the_summary_and_the_manifest_count_what_is_there(small: Small, rows: Rows) -> None:
    folder, summary = small
    manifest = json.loads((folder / "synth.json").read_text())
    assert summary.questions == manifest["questions"] == len(rows)
    assert summary.citations == sum(len(r["search_results"]) for r in rows)
    assert summary.pages == manifest["distinct_pages"] == len({p for r in rows for p in distinct(r)})
    assert summary.empty == sum(not x["page_result"] for r in rows for x in r["search_results"])
    assert summary.bytes == sum(p.stat().st_size for p in folder.glob("*.jsonl"))
    assert summary.seconds > 0


def test_the_same_seed_gives_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    synth.write(here, 5, pages=8, seed=3, page_chars=2_000)
    code = "import sys; from pathlib import Path; from raypipe.contrib.world import write as synth\n"
    code += "synth.write(Path(sys.argv[1]), 5, pages=8, seed=3, page_chars=2_000)"
    env = {**os.environ, "PYTHONHASHSEED": "77", "LC_ALL": "C"}
    subprocess.run([sys.executable, "-c", code, str(there)], check=True, env=env)
    assert digests(here) == digests(there)


def test_the_files_of_a_seed_change_with_the_version_alone(small: Small) -> None:
    """Fitted values, measurements and examples in the docs rest on them."""
    made = {1: "0e165b54ddb9be9fce3bd77e5ba57f499b9e21d0ce855a77928d785af2c5aec9"}
    lines = b"".join(p.read_bytes() for p in sorted(small[0].glob("*.jsonl")))
    assert sha256(lines).hexdigest() == made[VERSION]


@pytest.mark.drill
def test_the_first_questions_do_not_depend_on_how_many_follow(
    load: Any, small: Small, tmp_path: Path
) -> None:
    synth.write(tmp_path / "few", 7, pages=20, seed=1, page_chars=2_000)
    assert load(tmp_path / "few") == load(small[0])[:7]


def test_page_size_and_number_change_pages_but_no_question(load: Any, rows: Rows, tmp_path: Path) -> None:
    synth.write(tmp_path / "other", 7, pages=3, seed=1, page_chars=4_000)
    for a, b in zip(load(tmp_path / "other"), rows, strict=False):
        assert all(a[k] == b[k] for k in a if k not in ("search_results",))


def test_a_quarter_of_the_citations_repeat_and_few_are_empty(rows: Rows) -> None:
    results = [r for row in rows for r in row["search_results"]]
    urls = sum(len({r["page_url"] for r in row["search_results"]}) for row in rows)
    assert 0.20 < 1 - urls / len(results) < 0.30
    assert 0.005 < sum(not r["page_result"] for r in results) / len(results) < 0.05
    assert 0.3 < sum(not r["page_last_modified"] for r in results) / len(results) < 0.7
    shared = [{p for p in distinct(row)} for row in rows]
    assert sum(map(len, shared)) > len(set().union(*shared)), "some pages are cited by several questions"


def test_short_pages_are_about_as_long_as_asked(rows: Rows) -> None:
    sizes = [len(p) for row in rows for p in distinct(row)]
    assert max(sizes) <= 1.3 * 2_000 and min(sizes) > 0.5 * 2_000
    assert statistics.mean(sizes) == pytest.approx(2_000, rel=0.1)


def test_pages_state_the_answer_where_the_row_says_so(rows: Rows) -> None:
    shares = []
    for row in rows:
        if row["premise_false"] or not row["answer_on_pages"]:
            continue
        golds = [row["answer"], *row["alt_ans"]]
        told = [any(g in text_of(p) for g in golds) for p in distinct(row)]
        assert any(told), row["query"]
        shares.append(sum(told) / len(told))
    assert len(shares) > 80
    assert 0.35 < statistics.mean(shares) < 0.75


def test_withheld_answers_are_on_no_page_and_in_no_snippet(world: World) -> None:
    pages, checked = Pages(world, 2_000), 0
    for posed in (pose(world, i) for i in range(400)):
        golds = [
            a for a in (posed.asked.answer, *posed.asked.alternatives) if len(a) > 7 and a not in posed.text
        ]
        if not posed.withheld or posed.premise_false or not golds:
            continue
        results = pages.results(posed, 12)
        assert not any(r.states for r in results)
        for r in results:
            shown = f"{r.page_name} {r.page_snippet} {text_of(r.page_result)}".lower()
            assert not any(g in shown for g in golds), (posed.text, golds, r.page_name)
        checked += 1
    assert checked > 8


def test_snippets_quote_their_pages(rows: Rows) -> None:
    quoted = [
        " ".join(r["page_snippet"].lower().split()[:4]) in text_of(r["page_result"])
        for row in rows[:30]
        for r in row["search_results"]
        if r["page_result"] and r["page_snippet"]
    ]
    assert sum(quoted) / len(quoted) > 0.75


def test_markup_is_as_varied_as_the_styles(rows: Rows) -> None:
    html = "\n".join(p for row in rows for p in distinct(row))
    for mark in (
        "infobox",
        "<blockquote>",
        '<div class="post">',
        "application/ld+json",
        "noscript",
        "<dl><dt>",
        "<details>",
        "<FONT size=5>",
        "<ol class=entries>",
        "display:none",
        "<span hidden>",
        "<template>",
        "&amp;",
        "&#",
        "\N{SPARKLES}",
        'lang="zh"',
        'lang="ar"',
    ):
        assert mark in html, mark
    assert len(styles()) >= 10


@pytest.mark.drill
def test_real_size_pages_are_distributed_like_the_given_ones(world: World) -> None:
    if "RAYPIPE_DATA" not in os.environ:
        pytest.skip("RAYPIPE_DATA is not set: no real pages to compare with")
    with bz2.open(Path(os.environ["RAYPIPE_DATA"]) / "crag" / "dev_data.jsonl.bz2") as lines:
        real = {r["page_result"] for line in lines for r in json.loads(line)["search_results"]} - {""}
    pages = Pages(world, None)
    cited = [r.page_result for i in range(4) for r in pages.results(pose(world, i), 50)]
    made = [p for p in dict.fromkeys(cited) if p]
    ours, theirs = sorted(map(len, made)), sorted(map(len, real))
    assert 0.5 < statistics.median(ours) / statistics.median(theirs) < 2
    assert 0.5 < statistics.mean(ours) / statistics.mean(theirs) < 2
    assert 2_500 < ours[0] < 60_000 and 700_000 < ours[-1] < 1_700_000
    sample = made[::3]
    share = sum(len(text_of(p)) for p in sample) / sum(map(len, sample))
    assert 0.03 < share < 0.15  # 22 of 319 KB in the real ones


@pytest.mark.drill
def test_writing_again_replaces_an_earlier_data_set_whole(load: Any, tmp_path: Path) -> None:
    synth.write(tmp_path / "d", 6, pages=4, page_chars=2_000)
    synth.write(tmp_path / "d", 2, pages=4, page_chars=2_000)
    assert len(load(tmp_path / "d")) == 2


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ConfError, match=r"'thesis\.txt'"):
        synth.write(tmp_path, 1)
    assert (tmp_path / "thesis.txt").read_text() == "precious"


@pytest.mark.parametrize(("questions", "pages", "chars"), [(0, 5, None), (1, 0, None), (1, 5, 300)])
def test_sizes_that_make_no_sense_are_refused(
    tmp_path: Path, questions: int, pages: int, chars: int | None
) -> None:
    with pytest.raises(ConfError, match="expected"):
        synth.write(tmp_path, questions, pages=pages, page_chars=chars)


@pytest.mark.drill
def test_progress_is_told_after_each_question(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    synth.write(
        tmp_path / "d", 3, pages=2, page_chars=2_000, progress=lambda done, all_: told.append((done, all_))
    )
    assert told == [(1, 3), (2, 3), (3, 3)]
