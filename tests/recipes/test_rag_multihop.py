"""The recipe `rag-multihop`: it searches again where a model asks for it, and without one it is `local`."""

import json

import pytest
from chat_server import serving
from checkout import ROOT, SUPPORT

from raypipe.api.questions import ask
from raypipe.api.session import Session, from_environment, load_recipe
from raypipe.core.conf import Conf

FAKES = str(SUPPORT / "fake_models.yaml")
QUESTION = "on which river does the birthplace of velora's director lie?"
TEXTS = {
    "velora": "<p>Velora is a film of 1994. Velora was directed by Anna Lindqvist.</p>",
    "anna": "<p>Anna Lindqvist was born in Brask. She has made nine films about whales.</p>",
    "brask": "<p>The town of Brask lies on the Tarn. Its mill is a museum.</p>",
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A file of one line: three pages of the chain, and twelve that only share words with the question."""
    texts = {
        **TEXTS,
        **{f"river {i}": f"<p>On which river does the town {i} lie? On river {i}.</p>" for i in range(12)},
    }
    results = [
        {
            "page_name": name,
            "page_url": f"https://example.org/{name}",
            "page_snippet": "",
            "page_last_modified": "",
            "page_result": text,
        }
        for name, text in texts.items()
    ]
    line = {
        "interaction_id": "q",
        "query": QUESTION,
        "query_time": "",
        "answer": "x",
        "search_results": results,
    }
    file = tmp_path_factory.mktemp("pages") / "pages.jsonl"
    file.write_text(json.dumps(line))
    return file


def session(home, llm=None):
    settings = from_environment({"RAYPIPE_CONF": str(ROOT / "conf"), "RAYPIPE_HOME": str(home)})
    return Session(settings, models=FAKES, llm=llm)


@pytest.mark.slow
def test_what_later_searches_found_is_shown_within_the_budget_and_quoted(pages, tmp_path):
    bodies = []

    def reply(request, body):
        bodies.append(body)
        text = body["messages"][-1]["content"]
        if not text.rstrip().endswith("Enough, or Search:"):
            return request.reply("On the Tarn.")
        for name, query in (
            ("Lindqvist", "velora director"),
            ("in Brask", "Anna Lindqvist born"),
            ("Tarn", "Brask lies"),
        ):
            if name not in text:
                return request.reply(f"Search: {query}")
        return request.reply("Enough")

    with serving(reply) as server:
        found = ask("rag-multihop", QUESTION, pages, session=session(tmp_path, f"{server.url}#m")).result
    question = found.question
    assert question.replies["stop"].label in ("enough", "rounds")
    assert json.loads(question.replies["stop"].text)["rounds"] <= 3
    assert (question.answer, question.origin) == ("On the Tarn.", "llm")
    assert found.evidence[0].quote == "The town of Brask lies on the Tarn."
    assert json.loads(question.replies["compress"].text)["tokens"] <= 1000
    last = bodies[-1]["messages"][-1]["content"]
    assert last.count("<DOC>") == last.count("</DOC>") and "The town of Brask lies on the Tarn." in last


@pytest.mark.slow
def test_without_a_language_model_it_is_the_recipe_local(pages, tmp_path):
    ours, local = (
        ask(n, QUESTION, pages, session=session(tmp_path)).result for n in ("rag-multihop", "local")
    )
    assert {ours.question.replies[n].label for n in ("more", "stop", "compress", "llm")} == {"skipped"}
    assert ours.question.replies["extract"] == local.question.replies["extract"]
    assert (ours.question.answer, ours.question.order) == (local.question.answer, local.question.order)


def test_it_searches_the_tables_of_rag():
    conf = Conf((ROOT / "conf",))
    ours, rag = (load_recipe(name, FAKES, conf) for name in ("rag-multihop", "rag"))
    assert ours.vectors_table(ours.embedders()[0]) == rag.vectors_table(rag.embedders()[0])
