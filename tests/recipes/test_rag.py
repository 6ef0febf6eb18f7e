"""The recipe `rag`: the answer of any language model with quotes, or its abstention; else a sentence."""

import json
from pathlib import Path

import pytest
import yaml
from chat_server import serving
from checkout import ROOT, SUPPORT

from raypipe.api.questions import ask
from raypipe.api.session import Session, from_environment, load_recipe
from raypipe.core.conf import Conf

CONF = Conf((ROOT / "conf",))
FAKES = str(SUPPORT / "fake_models.yaml")
QUESTION = "who directed velora?"
TEXTS = {
    "velora": "<p>Velora is a film of 1994. Velora was directed by Anna Lindqvist in Oslo.</p>",
    "owls": "<p>Owls sleep by day. The owl of mount Brenn is white.</p>",
}


@pytest.fixture
def pages(tmp_path):
    """A file of one line with two pages."""
    results = [
        {
            "page_name": name,
            "page_url": f"https://example.org/{name}",
            "page_snippet": "",
            "page_last_modified": "",
            "page_result": text,
        }
        for name, text in TEXTS.items()
    ]
    line = {
        "interaction_id": "q",
        "query": QUESTION,
        "query_time": "",
        "answer": "x",
        "search_results": results,
    }
    file = tmp_path / "pages.jsonl"
    file.write_text(json.dumps(line))
    return file


@pytest.fixture
def asked(tmp_path, pages):
    """Asks `rag` a language model that replies with `text` to every chat, or to those alone of one word: the
    result, and the chats."""

    def run(text, status=200, takes="ready"):
        bodies = []

        def reply(request, body):
            bodies.append(body)
            if status == 200 or body["messages"] == [{"role": "user", "content": takes}]:
                request.reply(text)
            else:
                request.send("{}", status)

        with serving(reply) as server:
            server.lists = json.dumps({"data": [{"id": "m"}]})
            session = Session(
                from_environment({"RAYPIPE_CONF": str(ROOT / "conf"), "RAYPIPE_HOME": str(tmp_path)}),
                models=FAKES,
                llm=f"{server.url}#m",
            )
            return ask("rag", QUESTION, pages, session=session).result, bodies

    return run


def test_a_language_model_answers_from_the_passages_and_is_quoted(asked):
    found, [*_, body] = asked("Anna Lindqvist directed Velora.")
    assert (found.question.answer, found.question.origin) == ("Anna Lindqvist directed Velora.", "llm")
    first = found.evidence[0]
    assert first.quote == "Velora was directed by Anna Lindqvist in Oslo."
    assert first.url == "https://example.org/velora"
    system, user = body["messages"]
    assert "I don't know" in system["content"] and "Anna Lindqvist in Oslo" in user["content"]
    assert "asked at" not in user["content"], "the question has no time"


def test_where_the_language_model_abstains_no_sentence_takes_its_place(asked):
    found, _ = asked("I don't know.")
    assert (found.question.answer, found.question.outcome) == ("i don't know", "abstained")
    assert found.question.replies["extract"].label == "skipped"
    [closest] = found.evidence
    assert closest.chunk == found.question.order[0] and closest.url, "the first passage, with its place"


def test_where_the_language_model_fails_the_sentence_answers_and_says_so(asked):
    found, _ = asked("yes", status=400)
    assert found.question.replies["llm"].label == "fault"
    assert found.question.replies["extract"].quotes and found.question.origin in ("extract", "")


def test_where_the_language_model_refuses_every_chat_no_other_step_answers(asked):
    found, _ = asked("yes", status=400, takes="")
    [fault] = found.question.faults
    assert (found.question.origin, fault.reason, fault.transient) == ("", "refused", True)
    assert found.question.replies["extract"].label == "skipped"
    assert "correct the model's entry" in fault.detail


def test_without_a_language_model_it_is_the_recipe_local(pages, tmp_path):
    session = Session(
        from_environment({"RAYPIPE_CONF": str(ROOT / "conf"), "RAYPIPE_HOME": str(tmp_path)}), models=FAKES
    )
    ours, local = (ask(name, QUESTION, pages, session=session).result for name in ("rag", "local"))
    assert ours.question.replies["llm"].label == "skipped"
    assert ours.question.replies["extract"] == local.question.replies["extract"]
    assert (ours.question.answer, ours.question.order) == (local.question.answer, local.question.order)
    assert ours.evidence == local.evidence


def test_the_absent_model_asks_nothing_and_is_no_model_of_the_recipe():
    found = load_recipe("rag", FAKES, CONF)
    assert {m.kind for m in found.models()} == {"embedder", "reranker"}
    served = yaml.safe_load(Path(FAKES).read_text())["llama-3-8b"]
    assert served["loader"] == "scripted"
    [stage] = [s for s in found.question if s.name == "generate:llm"]
    assert stage.step.model.absent
    assert found.digest() != load_recipe("local", FAKES, CONF).digest()


def test_rag_searches_as_local_does():
    rag, local = load_recipe("rag", FAKES, CONF), load_recipe("local", FAKES, CONF)
    assert rag.vectors_table(rag.embedders()[0]) == local.vectors_table(local.embedders()[0])
    ranking = [s.digest() for s in local.question[1:6]]
    assert [s.digest() for s in rag.question[1:6]] == ranking
