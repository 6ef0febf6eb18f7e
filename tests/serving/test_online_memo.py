"""What a gateway remembers of its store: bounded, of one release, and nothing of a request's own pages."""

import pytest
from checkout import ROOT, SUPPORT
from http_app import ask, served

from raypipe.api.session import load_recipe
from raypipe.core.conf import Conf
from raypipe.models.kit import LocalKit
from raypipe.serving.answerer import Answerer
from raypipe.serving.release_follower import bounded_memo

pytestmark = pytest.mark.slow


def asked(reply):
    usage = reply.json()["usage"]
    return usage["embedded"] + usage["scored"] + usage["chats"]


def test_the_same_stored_question_again_asks_no_model_and_gives_the_same_answer(filled):
    app = served(
        Answerer(filled.recipe, LocalKit(None, "transformers"), filled.store.uri, bounded_memo(1 << 20))
    )
    job = next(q for q in filled.answers if q.outcome == "answered")
    first, second = (ask(app, {"query": job.text, "include": ["hits"]}) for _ in range(2))
    assert asked(first) > 0 and asked(second) == 0
    for field in ("answer", "outcome", "citations", "hits"):
        assert first.json()[field] == second.json()[field]


def test_who_asks_for_the_prompts_gets_them_also_of_an_answer_that_is_remembered(filled, tmp_path):
    file = tmp_path / "asks.yaml"
    file.write_text(
        (SUPPORT / "fakes.yaml").read_text().partition("  - extract:")[0]
        + "  - generate: {model: scripted, prompt: rag/answer, into: a, context_chars: 900, max_tokens: 50}\n"
        + "  - decide: {prefer: [a]}\n"
    )
    recipe = load_recipe(str(file), None, Conf((ROOT / "conf",)))
    memo = bounded_memo(1 << 20)
    app = served(Answerer(recipe, LocalKit(None, "transformers"), filled.store.uri, memo))
    query = filled.answers[0].text
    first, told = (ask(app, {"query": query, "include": some}).json() for some in ([], ["prompts"]))
    assert told["answer"] == first["answer"] and first["usage"]["chats"] == 1
    assert asked(ask(app, {"query": query})) == 0, "it is remembered"
    [[_, user]] = told["prompts"]
    assert query in user["content"]


def test_pages_of_a_request_are_not_remembered_and_a_full_memo_forgets(filled):
    pages = filled.lines[filled.answers[0].id]["search_results"]
    for memo, body in (
        (bounded_memo(1 << 20), {"query": filled.answers[0].text, "documents": pages}),
        (bounded_memo(1), {"query": filled.answers[0].text}),
        (bounded_memo(0), {"query": filled.answers[0].text}),
    ):
        app = served(Answerer(filled.recipe, LocalKit(None, "transformers"), filled.store.uri, memo))
        assert asked(ask(app, body)) == asked(ask(app, body)) > 0
