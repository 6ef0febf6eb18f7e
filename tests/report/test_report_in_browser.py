"""report.html in a real browser: opened from disk, it is whole, asks nobody and runs nothing."""

import json

import pytest


@pytest.fixture
def shown(browser, ran):
    """The report's page, and what the browser asked for or complained about."""
    page, asked, wrong = browser.new_page(viewport={"width": 900, "height": 820}), [], []
    page.on("request", lambda r: asked.append(r.url))
    page.on("pageerror", lambda e: wrong.append(str(e)))
    page.on("console", lambda m: wrong.append(m.text) if m.type in ("error", "warning") else None)
    url = (ran.folder / "out" / "report.html").as_uri()
    page.goto(url)
    yield page
    assert (asked, wrong) == ([url], [])
    page.close()


def test_a_report_opened_from_disk_shows_every_question_with_its_answer_and_asks_nobody(shown, ran):
    report = json.loads((ran.folder / "out" / "report.json").read_text())
    lines = (ran.folder / "out" / "predictions.jsonl").read_text().splitlines()
    assert report["run"] in shown.title() and shown.get_by_role("heading", level=1).is_visible()
    rows = shown.locator("table.questions tbody tr")
    assert rows.count() == report["questions"] == len(lines)
    for line in map(json.loads, lines):
        row = rows.filter(has_text=line["query"])
        assert row.count() == 1 and line["prediction"] in row.locator("td").nth(1).inner_text()
    steps = shown.locator("table", has_text="computed").locator("tbody th").all_inner_texts()
    assert steps == [s["step"] for s in report["steps"]]
    assert shown.evaluate("document.scripts.length") == 0


def test_passages_open_by_click_and_by_key_and_the_page_is_as_wide_as_its_window(shown):
    first = shown.locator("table.questions details").first
    passages = first.locator("blockquote").first
    assert not passages.is_visible()
    first.locator("summary").click()
    assert passages.is_visible()
    first.locator("summary").press("Enter")
    assert not passages.is_visible()
    assert shown.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
