"""The web page in a real browser: ask, watch, read the marked evidence, with keys and a screen reader.

Skipped where Debian's Chromium or playwright is not installed: `apt-get install chromium`, and the extra
`test`.
"""

import asyncio
import json
from dataclasses import replace

import pytest
from browser_page import opened, shot
from http_app import OPEN, listening, served

from raypipe.models.kit import LocalKit
from raypipe.serving.access import ApiKeys, KeyFilter
from raypipe.serving.answerer import Answerer
from raypipe.text.filters import Filters

KEY = "a-key-with-length"


class Odd(Answerer):
    """Answers slowly, so that there is something to watch and to stop, or with another outcome, where the
    question says so."""

    async def answer(self, request, listener=None):
        if "slowly" in request.question.text:
            listener.on_stage("dense", None)
            listener.on_draft("a draft <b>not the answer</b>")
            await asyncio.sleep(30)
        result = await super().answer(request, listener)
        outcome = request.question.text.partition("end as ")[2]
        return replace(result, question=replace(result.question, outcome=outcome)) if outcome else result


@pytest.fixture(scope="module")
def address(filled):
    with listening(served(Odd(filled.recipe, LocalKit(None, "transformers"), filled.store.uri))) as url:
        yield url


@pytest.fixture
def page(browser, address):
    page = opened(browser, address, 900)
    yield page
    others = [url for url in page.asked if not url.startswith((address, "data:"))]
    assert others == [], "the page called another host"
    page.close()


@pytest.fixture(scope="module")
def job(filled):
    return next(q for q in filled.answers if q.outcome == "answered")


def test_an_answer_has_its_evidence_marked_in_the_text_of_the_page(page, job, filled):
    page.get_by_label("Question").fill(job.text)
    page.get_by_role("button", name="Ask", exact=True).click()
    page.locator("#result").wait_for()
    assert page.locator("#answer").inner_text() == job.answer
    [quote] = job.replies[job.origin].quotes
    [text] = filled.texts(quote.source)
    start, end = quote.span
    assert page.locator("#quotes mark").text_content() == text[start:end]
    around = page.locator("#quotes blockquote").text_content()
    assert around.replace("\n", " ") in text and text[start:end] in around
    assert page.locator("#progress").is_hidden()
    stages = page.locator("#stages li").all_inner_texts()
    assert [s.split()[0] for s in stages] == [s.name for s in filled.recipe.question]
    assert all(s.endswith("ms") for s in stages)
    shot(page, "endpoint-answer")
    page.get_by_text("Passages and scores").click()
    assert page.locator("#passages blockquote").count() > 1
    page.get_by_text("Timings and versions").click()
    assert page.locator("#timings tr").count() > len(stages)
    assert filled.recipe.digest() in page.locator("#versions").inner_text()
    assert page.wrong == []


def test_everything_works_with_the_keyboard_and_is_announced_to_a_screen_reader(page, job):
    page.wait_for_function("document.activeElement.id === 'query'")
    page.keyboard.type(job.text)
    page.keyboard.press("Enter")
    page.locator("#result").wait_for()
    assert page.evaluate("document.activeElement.id") == "answer", "the answer is read out at once"
    assert page.get_by_role("status").inner_text() == "Answered."
    for field in page.locator("input:visible").all():
        assert field.evaluate("e => e.labels.length") == 1
    assert page.get_by_role("main").count() == 1 and page.locator("html").get_attribute("lang") == "en"
    assert page.locator("th[scope]").count() > 2
    seen = set()
    for _ in range(12):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.tagName"))
    assert {"SUMMARY", "A"} <= seen


@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        ("abstained", "No answer was found."),
        ("false_premise", "The question assumes something that is not so."),
        ("fault", "Answering failed."),
    ],
)
def test_what_is_no_answer_is_not_announced_as_one(page, outcome, says):
    page.get_by_label("Question").fill(f"end as {outcome}")
    page.keyboard.press("Enter")
    page.locator("#result").wait_for()
    assert page.get_by_role("status").inner_text() == says
    assert page.locator("#about").inner_text().startswith(outcome.replace("_", " "))
    assert page.wrong == []


def test_what_is_being_written_is_shown_as_a_draft_and_can_be_stopped(page):
    page.get_by_label("Question").fill("answer slowly")
    page.keyboard.press("Enter")
    page.locator("#stages li.on").wait_for()
    page.wait_for_function("document.getElementById('draft').textContent !== ''")
    assert page.locator("#draft").text_content() == "a draft <b>not the answer</b>"  # text, no markup
    assert page.locator("#draft b").count() == 0 and page.locator("#result").is_hidden()
    shot(page, "endpoint-stages")
    page.keyboard.press("Escape")
    page.wait_for_function("document.getElementById('status').textContent === 'Stopped.'")
    assert page.get_by_role("button", name="Ask", exact=True).is_enabled()


def test_a_text_of_ones_own_is_searched_and_the_address_holds_the_question(page, address, job):
    page.get_by_text("Searches").wait_for()
    assert page.locator("#examples button").count() > 0
    page.get_by_text("Ask about a text or files of your own").click()
    page.locator("#pasted").fill("Velora <b>opened</b> in 1931.\n\nAnna Lind designed the harbour of Velora.")
    page.get_by_label("Question").fill("who designed the harbour of velora?")
    page.get_by_role("button", name="Ask", exact=True).click()
    page.locator("#result").wait_for()
    page.get_by_text("Passages and scores").click()
    assert "Anna Lind designed the harbour" in page.locator("#passages").inner_text()
    assert page.locator("#examples").is_hidden(), "the answer stands where it is seen"
    file = b"<p>Velora <i>opened</i> in 1931.</p><p>Otto Brahm designed the harbour of Velora.</p>"
    page.locator("#pasted").fill("")
    page.locator("#files").set_input_files({"name": "a.html", "mimeType": "text/html", "buffer": file})
    page.get_by_role("button", name="Ask", exact=True).click()
    page.locator("#passages", has_text="Otto Brahm").wait_for()
    assert "Anna Lind" not in page.locator("#passages").inner_text()
    assert page.locator("#link").get_attribute("href") == page.url and "q=who+designed" in page.url
    again = page.context.browser.new_page()
    again.goto(page.url)
    assert again.get_by_label("Question").input_value() == "who designed the harbour of velora?"
    again.close()
    assert page.wrong == []


HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


def test_what_a_page_says_is_text_and_its_address_is_no_script(page):
    said = {
        "answer": HOSTILE,
        "outcome": "answered",
        "degraded": ["rerank"],
        "confidence": 0.5,
        "citations": [
            {
                "quote": HOSTILE,
                "before": "<b>",
                "after": "</script><script>document.title='owned'</script>",
                "url": "javascript:document.title='owned'",
                "source": "s",
                "span": [0, 3],
                "scores": {},
            },
        ],
        "passages": [
            {"chunk": "s:0-9", "span": [0, 9], "text": HOSTILE, "url": "https://e/?<b>", "scores": {}},
        ],
        "timings_ms": {"total": 3.0},
        "versions": {"recipe": HOSTILE, "release": None},
    }
    body = f"event: answer\ndata: {json.dumps(said)}\n\n"
    page.route("**/v1/answer", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    page.get_by_label("Question").fill("x")
    page.keyboard.press("Enter")
    page.locator("#result").wait_for()
    assert page.title() == "raypipe" and page.locator("main img, main b").count() == 0
    assert page.locator("#answer").inner_text() == HOSTILE
    assert page.locator("#quotes a").get_attribute("href") == "#passage-1"
    assert "omitted: rerank" in page.locator("#about").inner_text()


def test_an_endpoint_with_keys_asks_for_one(browser, filled, job):
    part = KeyFilter("acme", ApiKeys.of([KEY + "-of-a-part"]), Filters(("a.example",)))
    config = replace(OPEN, keys=ApiKeys.of([KEY]), key_filters=(part,))
    with listening(
        served(Answerer(filled.recipe, LocalKit(None, "transformers"), filled.store.uri), config)
    ) as url:
        page = browser.new_page()
        page.goto(url)
        page.get_by_label("Key of this endpoint").wait_for()
        page.get_by_label("Question").fill(job.text)
        page.keyboard.press("Enter")
        page.get_by_text("Expected a key").wait_for()
        assert "authorization" in page.get_by_role("alert").inner_text()
        page.keyboard.type(KEY)
        page.keyboard.press("Enter")
        page.locator("#result").wait_for()
        assert page.locator("#answer").inner_text() == job.answer
        assert page.evaluate("Object.keys(localStorage).length + Object.keys(sessionStorage).length") == 0
        page.get_by_label("Key of this endpoint").fill(KEY + "-of-a-part")
        page.keyboard.press("Tab")
        page.get_by_text("Searches the texts of this key, by recipe fakes.").wait_for()
        page.close()
