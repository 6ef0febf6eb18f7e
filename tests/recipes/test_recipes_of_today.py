"""The recipes hyde, listwise, verify, contextual and long-context: what they ask, what they plan, and what
they do with each reply; without a language model they are `rag`."""

import asyncio
from collections import Counter

import pytest
import yaml
from checkout import ROOT
from reruns import CONF, Bench

from raypipe.api.session import load_recipe
from raypipe.contrib.world.write import write
from raypipe.core import arrow
from raypipe.core.digests import model_identity
from raypipe.core.llm import TokenPrice
from raypipe.core.protocols import ForwardingKit, Reach
from raypipe.core.records import Citation, Fault, Question, Source, source_id
from raypipe.models.fake import Scripted
from raypipe.models.kit import LocalKit
from raypipe.recipes.executor import CorpusExecutor, QuestionExecutor
from raypipe.runs.plan.records import stage_bounds
from raypipe.store.index import MemoryIndex

FAKE = """
all-MiniLM-L6-v2: {kind: embedder, loader: hash, dim: 64}
minilm-maxsim: {kind: reranker, loader: overlap}
told: {kind: generator, loader: scripted, max_model_len: 8192}
"""
ALL_MODELS = yaml.safe_dump(
    yaml.safe_load((ROOT / "conf/models.yaml").read_text()) | yaml.safe_load(FAKE), sort_keys=False
)
NAMES = ("hyde", "listwise", "verify", "contextual", "long-context")
DRILL = pytest.mark.drill
QUESTION = "who directed velora?"
PAGES = (
    "<p>Velora is a film of 1994. Velora was directed by Anna Lindqvist.</p>",
    "<p>Owls sleep by day. The owl of mount Brenn is white.</p>",
    "<p>Brask lies on the Tarn, and Velora was shown there.</p>",
)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    file = tmp_path_factory.mktemp("models") / "models.yaml"
    file.write_text(FAKE)
    return str(file)


def recipe(name, models, llm="told"):
    return load_recipe(name, models, CONF, llm=llm)


def kind_of(chat):
    """Which prompt a chat is of, by its last words."""
    ends = {"Passage:": "hyde", "Numbers:": "listwise", "Unsupported:": "check", "The passage:": "place"}
    last = chat[-1].content.rstrip()
    return next((kind for end, kind in ends.items() if last.endswith(end)), "llm")


class ScriptedKit(ForwardingKit):
    """A kit whose language model says what a test gives for each kind of prompt, and counts."""

    def __init__(self, kit, said):
        super().__init__(kit)
        self.asked = Counter()
        self.chats = []
        self._model = Scripted(self._reply, max_model_len=8192)
        self._said = said

    def _reply(self, chat, sampling, adapter):
        kind = kind_of(chat)
        self.asked[kind] += 1
        self.chats.append(chat)
        said = self._said[kind]
        return said(chat) if callable(said) else said

    def generator(self, model):
        return self._model.generate


def taken(name, models, said, llm="told", pages=PAGES):
    """A question through both halves of a recipe: it, the kit, and the vectors' rows."""
    found = recipe(name, models, llm)
    sources = [Source(source_id("page", p), "page", p) for p in pages]
    cited = tuple(Citation("q", i, f"https://e.org/{i}", "", s.id, None, None) for i, s in enumerate(sources))
    kit = ScriptedKit(LocalKit(None, "transformers"), said)

    async def run():
        corpus = await CorpusExecutor(found, kit)(arrow.corpus_table(sources))
        vectors = {model_identity(m): corpus.vectors[m.name] for m in found.embedders()}
        kit._kit = kit._kit.with_index(MemoryIndex(corpus.texts, corpus.passages, vectors))
        [out] = await QuestionExecutor(found, kit)([Question("q", QUESTION, citations=cited)])
        return out, corpus

    return (*asyncio.run(run()), kit)


SAID = {
    "hyde": "A film is directed by Anna Lindqvist.",
    "listwise": "none",
    "check": "Supported",
    "place": "It is from a page on films.",
    "llm": "Anna Lindqvist directed Velora.",
}


def test_hyde_searches_with_the_passage_that_the_model_made_up(models):
    out, _, kit = taken("hyde", models, {**SAID, "hyde": "the owl of mount brenn is white"})
    assert kit.asked == {"hyde": 1, "llm": 1}
    near = {h.chunk: h.scores["dense"] for h in out.hits}
    rag, _, _ = taken("rag", models, SAID)
    before = {h.chunk: h.scores["dense"] for h in rag.hits}
    owls = next(c for c in near if c.startswith(source_id("page", PAGES[1])))
    assert near[owls] == max(near.values()) > before[owls]
    assert {h.chunk: h.scores["bm25"] for h in out.hits if "bm25" in h.scores} == {
        h.chunk: h.scores["bm25"] for h in rag.hits if "bm25" in h.scores
    }, "words are those of the question"


@pytest.mark.parametrize(("said", "first"), [("3, 1", 2), ("none", 0), ("I like owls", 0), ("9, 2", 1)])
def test_listwise_puts_first_what_the_model_names(models, said, first):
    rag, _, _ = taken("rag", models, SAID)
    out, _, kit = taken("listwise", models, {**SAID, "listwise": said})
    assert kit.asked == {"listwise": 1, "llm": 1}
    assert out.order[0] == rag.order[first] and sorted(out.order) == sorted(rag.order)
    assert {h.scores["listwise"] for h in out.hits} == {1.0, 1 / 2, 1 / 3}
    assert (out.replies["listwise"].label == "fault") == (said == "I like owls")
    assert out.answer == SAID["llm"], "an order that cannot be read costs no answer"


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("Supported", SAID["llm"]),
        ("Unsupported.", "i don't know"),
        ("It is not supported", "i don't know"),
        ("Perhaps", SAID["llm"]),
    ],
)
def test_verify_turns_an_answer_that_the_passages_do_not_hold_up_into_i_dont_know(models, said, answer):
    out, _, kit = taken("verify", models, {**SAID, "check": said})
    assert kit.asked == {"llm": 1, "check": 1} and out.answer == answer
    assert out.outcome == ("abstained" if answer == "i don't know" else "answered")
    assert SAID["llm"] in kit.chats[-1][-1].content


def test_verify_checks_no_abstention_and_nothing_but_answers_of_the_model(models):
    out, _, kit = taken("verify", models, {**SAID, "llm": "I don't know"})
    assert kit.asked == {"llm": 1} and out.answer == "i don't know"


def test_contextual_embeds_each_chunk_behind_its_place_and_shows_the_chunk_alone(models):
    out, corpus, kit = taken("contextual", models, {**SAID, "place": "Zanzibar."})
    assert kit.asked == {"place": len(PAGES), "llm": 1}
    assert "Zanzibar" not in kit.chats[-1][-1].content
    plain, other, _ = taken("rag", models, SAID)
    assert corpus.passages == other.passages and [q.chunk for q in out.hits] == [q.chunk for q in plain.hits]
    near = {h.chunk: h.scores["dense"] for h in out.hits}
    assert near != {h.chunk: h.scores["dense"] for h in plain.hits}


def test_a_place_that_cannot_be_read_leaves_the_chunk_and_one_that_does_not_come_is_asked_again(models):
    _, corpus, _ = taken("contextual", models, {**SAID, "place": " "})
    _, other, _ = taken("rag", models, SAID)
    name = "all-MiniLM-L6-v2"
    assert corpus.vectors[name]["vector"].to_pylist() == other.vectors[name]["vector"].to_pylist()
    down = Fault("generate", "unavailable", "down", transient=True)
    _, corpus, _ = taken("contextual", models, {**SAID, "place": lambda chat: down})
    assert corpus.vectors[name].num_rows == 0
    assert [f["transient"] for f in corpus.faults["fault"].to_pylist()] == [True] * len(PAGES)


def test_long_context_shows_all_pages_whole_in_the_order_of_citation(models):
    out, _, kit = taken("long-context", models, SAID)
    assert kit.asked == {"llm": 1} and out.answer == SAID["llm"]
    shown = kit.chats[0][-1].content
    texts = ("Velora is a film of 1994.", "Owls sleep by day.", "Brask lies on the Tarn")
    assert sorted(texts, key=shown.index) == list(texts)
    assert [h.scores["read_all"] for h in out.hits] == [1.0, 1 / 2, 1 / 3]
    assert out.replies["llm"].quotes[0].source == out.hits[0].source


def test_a_plan_expects_the_budget_of_pages_and_nothing_where_there_are_none(models):
    found = recipe("long-context", models)
    cited = (Citation("q", 0, "https://e.org", "", source_id("page", PAGES[0]), None, None),)
    for citations, least, most in ((cited, 6000, 6300), ((), 0, 300), (None, 0, 300)):
        asked = Question("q", QUESTION, citations=citations)
        [_, (_, answer), _] = stage_bounds(found, [asked], Reach())
        assert least <= answer["q"].prompt_tokens < most


@pytest.mark.parametrize("name", NAMES)
def test_without_a_language_model_it_is_rag_or_knows_nothing(models, name):
    out, _, kit = taken(name, models, SAID, llm=None)
    assert not kit.asked
    if name == "long-context":
        assert out.answer == "i don't know"
        return
    plain, _, _ = taken("rag", models, SAID, llm=None)
    assert (out.answer, out.order) == (plain.answer, plain.order)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("today")
    write(folder / "world", 6, pages=3, seed=5, page_chars=3000)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=DRILL if n != "listwise" else ()) for n in NAMES])
def test_a_run_makes_no_more_calls_than_planned_and_the_second_none(world, tmp_path, name):
    text = (ROOT / f"conf/recipes/{name}.yaml").read_text().replace("optional-llm", "told")
    bench = Bench(tmp_path, world / "world", models=ALL_MODELS)
    steps, plans = bench.run(text)  # which holds the run to its plan
    asked = {"embed_contextual", "generate:hyde", "listwise", "generate:llm", "generate:check"} & steps.keys()
    assert all(steps[s][1] for s in asked - {"generate:check"})
    for step in asked - {"generate:check"}:
        low, high = plans[step].cost.tokens
        assert high > 0 and low <= high
    again, _ = bench.run(text)
    assert {s: n for s, (_, n) in again.items() if n} == {}


@pytest.mark.slow
def test_contextual_is_priced_before_anything_runs_within_a_fifth_of_what_it_asks(world, tmp_path):
    text = (ROOT / "conf/recipes/contextual.yaml").read_text().replace("optional-llm", "told")
    bench = Bench(tmp_path, world / "world", models=ALL_MODELS)
    steps, plans = bench.run(text)
    plan, (_, made) = plans["embed_contextual"], steps["embed_contextual"]
    assert plan.expected is not None and plan.expected[0] == plan.expected[1]
    assert abs(plan.expected[1] - made) <= 0.2 * made
    price = TokenPrice(1.0, 4.0)
    assert plan.cost.usd(price)[1] > 0
