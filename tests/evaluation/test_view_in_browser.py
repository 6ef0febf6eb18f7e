"""The viewer's pages and the report file in a real browser; hostile data run nothing."""

import csv
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from browser_page import opened, shot
from hostile_run import hostile_run
from reruns import rename_run

from raypipe.core.records import parse_chunk_id
from raypipe.evaluation.judged_run import read_labels
from raypipe.evaluation.result_table import each
from raypipe.evaluation.view.pages import report_page
from raypipe.evaluation.view.run_list import RunList
from raypipe.evaluation.view.viewer import Viewer, ViewServer
from raypipe.runs.record import read


def visible(page):
    return page.locator(".row:visible")


def right_of(page, selector):
    """Where the widest of these elements ends, in pixels."""
    ends = "e => Math.max(...[...document.querySelectorAll(e)].map(e => e.getBoundingClientRect().right))"
    return page.evaluate(ends, selector)


@pytest.fixture(scope="module")
def rows(ran):
    return list(each(ran.folder / "out/results.parquet"))


@pytest.fixture(scope="module")
def two(ran, tmp_path_factory):
    """A run, and its copy under another id."""
    home = tmp_path_factory.mktemp("two")
    folders = [shutil.copytree(ran.folder / "out", home / name) for name in ("one", "two")]
    rename_run(folders[1], "f" * 32)
    return folders


@contextmanager
def served(folders):
    """The address of a viewer of these folders."""
    with ViewServer(Viewer(RunList(folders, None), None), 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.address
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def url(ran):
    with served([ran.folder / "out"]) as address:
        yield f"{address}/run/{read(ran.folder / 'out').run}/"


@pytest.fixture
def page(browser, url):
    page = opened(browser, url)
    yield page
    others = [asked for asked in page.asked if not asked.startswith(("data:", "blob:", url))]
    assert (others, page.wrong) == ([], [])
    page.close()


def test_search_filter_and_order_stand_in_the_address_and_come_back_from_it(page, rows):
    assert visible(page).count() == len(rows)
    page.keyboard.press("/")
    page.keyboard.type(rows[0]["query"])
    assert visible(page).count() == 1 and "t=" in page.url
    page.keyboard.press("Escape")
    domains = [r["labels"]["domain"] for r in rows]
    page.locator("#more summary").click()
    page.locator("#labels select[name=domain]").select_option(domains[0])
    assert visible(page).count() == domains.count(domains[0])
    assert "picked after looking" in page.locator("#count").inner_text()
    values = {r["query"]: r["measures"]["f1"] for r in rows if "f1" in (r["measures"] or {})}
    page.locator("#clear").click()
    page.locator("#sort").select_option("-value")
    order = [q for q in page.locator(".row a.q").all_inner_texts() if q in values]
    assert [values[q] for q in order] == sorted(values.values(), reverse=True)
    state = page.url
    page.goto("about:blank")
    page.goto(state)
    assert page.locator("#sort").input_value() == "-value"


def test_a_link_to_a_question_opens_it_with_its_evidence_marked(page, browser, rows, url):
    chosen = next(r for r in rows if r["quotes"] and r["outcome"] == "answered")
    page.locator(".row a.q", has_text=chosen["query"]).click()
    detail = page.locator(".detail")
    detail.locator(".passage").first.wait_for()
    quote = chosen["quotes"][0]["text"]
    assert quote in "".join(detail.locator("mark").all_text_contents())  # golds part it
    ranked = [h for h in chosen["hits"] if h["ranked"]]
    assert f"{len(ranked)} of {len(chosen['hits'])} passages" in detail.inner_text()
    ranker = next(iter(chosen["hits"][0]["scores"]))
    detail.locator("select").select_option(f"order of {ranker}")
    assert f"{ranker} #1 " in detail.locator(".passage").first.inner_text()
    detail.get_by_text("answers that rest on this source").first.click()
    page.locator("#source").wait_for()  # the page reads its address after the click has returned
    source = parse_qs(urlsplit(page.url).fragment)["src"][0]
    resting = {
        r["query"]
        for r in rows
        if any(h["ranked"] and parse_chunk_id(h["chunk"])[0] == source for h in r["hits"])
        or any(c["source"] == source for c in r["quotes"])
    }
    assert resting and set(page.locator(".row:visible a.q").all_inner_texts()) == resting
    link = page.evaluate("location.href")
    other = opened(browser, url + "#q=" + chosen["id"])
    other.locator(".detail .passage").first.wait_for()
    shot(other, "view-question")
    assert link and other.wrong == []
    other.close()


def test_a_passage_of_a_document_names_its_file_and_leads_to_no_path_of_this_machine(page):
    there = "link('a%20b.pdf#page=3', 'file:///docs/a%20b.pdf')"
    assert page.evaluate(f"[{there}.tagName, {there}.textContent, {there}.title]") == [
        "SPAN",
        "a b.pdf, p. 3",
        "file:///docs/a%20b.pdf",
    ]
    assert page.evaluate("link('javascript:1').tagName") == "SPAN"
    web = "https://example.org/a"
    assert page.evaluate(f"[link('{web}').href, link('{web}', '', 'two-way words').href]") == [
        web,
        f"{web}#:~:text=two%2Dway%20words",
    ]


def test_markdown_is_shown_by_elements_and_never_as_markup(page):
    text = "## Fees\n---\nFee: **42** *euro* of `a_b`, [list](https://e.org/x), 2 * 3 * 4, <b>so</b>"
    shown = page.evaluate("t => { const d = box('p', marked(t, markdown(t))); return d.innerHTML; }", text)
    assert shown == (
        "<strong>Fees</strong>\nFee: <strong>42</strong> <em>euro</em> of <code>a_b</code>, "
        "<u>list</u>, 2 * 3 * 4, &lt;b&gt;so&lt;/b&gt;"
    )


def test_keys_go_through_the_questions_and_the_page_is_as_wide_as_a_phone(page, rows):
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    assert page.evaluate("document.activeElement.textContent") == rows[0]["query"]
    page.keyboard.press("Enter")
    page.locator(".detail .passage").first.wait_for()
    page.keyboard.press("Escape")
    assert page.locator(".detail").count() == 0
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert right_of(page, ".answers *, .bins *") <= 390
    page.locator(".row a.q").first.click()
    page.locator(".detail .passage").first.wait_for()
    assert right_of(page, ".passage *") <= 390


def test_the_filtered_rows_are_a_file_of_their_own(page, rows):
    page.locator("#search").fill(rows[1]["query"])
    with page.expect_download() as download:
        page.locator("#csv").click()
    [line] = csv.DictReader(Path(download.value.path()).read_text().splitlines())
    assert (line["id"], line["question"]) == (rows[1]["id"], rows[1]["query"])


def test_two_runs_are_compared_question_by_question_and_marks_are_taken(browser, two, rows):
    with served([p.parent for p in two]) as address:
        page = opened(browser, address)
        runs = [read(p).run for p in two]
        page.locator(f"input[name=a][value='{runs[0]}']").check()
        page.locator(f"input[name=b][value='{runs[1]}']").check()
        page.get_by_role("button", name="Compare A with B").click()
        assert visible(page).count() == len(rows)
        page.locator("table a").first.click()  # a cell of the matrix
        assert 0 < visible(page).count() <= len(rows) and "f=A" in page.url
        page.locator(".row:visible a.q").first.click()
        page.locator(".detail .passage").first.wait_for()
        assert page.locator(".detail h3", has_text="A:").count() == 1
        shot(page, "view-pair")
        page.locator("#clear").click()
        page.locator("#search").fill(rows[0]["query"])
        page.get_by_text("picked after looking").wait_for()
        page.goto(f"{address}/run/{runs[0]}/")
        chosen = next(r for r in rows if r["answer"] is not None)
        page.locator(".row a.q", has_text=chosen["query"]).click()
        page.get_by_role("button", name="wrong", exact=True).click()
        page.get_by_text(f"written to {two[0] / 'labels.jsonl'}", exact=True).wait_for()
        said = read_labels(two[0] / "labels.jsonl").by_answer[chosen["id"], chosen["answer"].strip()]
        assert said.label == "wrong"
        assert page.wrong == [] and all(u.startswith((address, "data:")) for u in page.asked)
        said = page.evaluate("question(999).catch(e => e.message)")
        assert said.startswith("question 999: expected") and not page.evaluate("fetched.has(999)")
        page.close()


def test_hostile_data_run_nothing_and_become_no_element(browser, ran, tmp_path):
    run, record = hostile_run(ran.folder / "out", tmp_path / "hostile")
    run.page.write_text(report_page(run, record, record))
    page = opened(browser, run.page.as_uri())
    assert "onerror" in page.locator("main").inner_text() and page.locator("main img, .line b").count() == 0
    assert page.evaluate("window.owned") is None and page.wrong == []
    page.close()
    with served([run.path]) as address:
        _opens_hostile_questions(opened(browser, f"{address}/run/{record.run}/"))


def _opens_hostile_questions(page):
    for i in range(3):
        page.locator(".row a.q").nth(i).click()
        page.locator(".detail .passage").first.wait_for()
        for fold in page.locator(".detail summary").all():
            fold.click()
    assert "onerror" in page.locator(".detail").inner_text()
    assert page.locator("main img, .line b, blockquote b").count() == 0
    assert page.evaluate("window.owned") is None and page.locator("a[href^=javascript]").count() == 0
    assert page.evaluate("document.scripts.length") == 2
    assert page.wrong == []
    # Were there a mistake in the page's own script, the browser would refuse it.
    for code in ("innerHTML = '<b>x'", "outerHTML = '<b>x'", "insertAdjacentHTML('beforeend', '<b>x')"):
        tried = f"() => {{ try {{ document.body.{code}; return 'taken' }} catch (e) {{ return e.name }} }}"
        assert page.evaluate(tried) == "TypeError"
    assert page.wrong and page.locator("body > b").count() == 0
    page.close()


def test_the_report_file_is_read_from_disk_in_the_dark_and_on_a_phone(browser, ran, rows):
    file = (ran.folder / "out/report.html").as_uri()
    context = browser.new_context(java_script_enabled=False, color_scheme="dark")
    page = opened(context, file)
    text = page.locator("main").text_content()
    assert all(r["query"] in text for r in rows) and page.locator("#bar").count() == 0
    assert "right" in page.locator(".tiles").inner_text()
    assert page.locator(".jumps a").first.get_attribute("href") == "#questions"
    page.set_viewport_size({"width": 390, "height": 800})
    assert right_of(page, ".answers *, .bins *") <= 390
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    shot(page, "view-phone")
    assert [u for u in page.asked if u != "data:,"] == [file] and page.wrong == []
    context.close()


def test_the_viewer_s_page_is_read_without_script(browser, url, rows):
    context = browser.new_context(java_script_enabled=False)
    page = opened(context, url)
    text = page.locator("main").text_content()
    assert all(r["query"] in text for r in rows) and "Without script all questions stand here" in text
    assert page.locator("#bar").is_hidden()
    context.close()
