"""Compression: sentences that matter, within a budget of tokens, as exact spans of their sources."""

import asyncio
import json
import random

import hostile
import pytest
from shelf import HASH, Shelf, asked, chunk, holds_laws, question

from raypipe.core.protocols import Model, Reach
from raypipe.core.records import Block, Fault, Question, Reply, parse_chunk_id
from raypipe.models.fake import Scripted, whitespace
from raypipe.models.kit import LocalKit
from raypipe.recipes.laws import run
from raypipe.steps.compress import Compress
from raypipe.steps.generate import Generate
from raypipe.text.context import pack
from raypipe.text.evidence import Fitted, FittedOn
from raypipe.text.page_parser import to_text
from raypipe.text.sanitize import escape_markup
from raypipe.text.template import ByLabel, Prompt

WORDS = Model("w", "tokenizer", "whitespace", "", "", "", "whitespace@1")
MODEL = Model("m", "generator", "scripted", "", "", "", "scripted@1", max_model_len=4096)
ABSENT = Model("none", "generator", "none", "", "", "", "none@1", max_model_len=4096)
PROMPT = Prompt("{{ sentences }}\n{{ text }}", "", ("sentences", "text"))
FILM = "Velora is a film of 1994. It was shot in Brask. Anna Lind directed Velora. The music is loud."
TOWN = "Brask lies on the Tarn. It has a mill. Owls sleep there by day."


class Kit(LocalKit):
    """A kit whose language model is a script."""

    def __init__(self, shelf, script):
        super().__init__(shelf)
        self.scripted = Scripted(script)

    def generator(self, model):
        return self.scripted.generate


def ranker(**fields):
    return Compress(**{"tokens": 20, "tokenizer": WORDS, "embedder": HASH, **fields})


def chooser(**fields):
    return Compress(**{"tokens": 20, "tokenizer": WORDS, "model": MODEL, "prompt": PROMPT, **fields})


@pytest.fixture
def shelf():
    return Shelf({"film": FILM, "town": TOWN})


def of(shelf, text="who directed velora?", **fields):
    order = tuple(chunk(shelf, s) for s in shelf.of)
    return question(text, *shelf.of, order=order, **fields)


def texts(shelf, q):
    return [shelf.of[s][slice(*span)] for s, span in map(parse_chunk_id, q.order)]


def shown(shelf, q):
    """What a prompt shows of the ranking."""
    return pack([escape_markup(t) for t in texts(shelf, q)], "docs", None, whitespace).text


def test_the_best_sentences_stay_in_the_order_of_their_passages_and_places(shelf):
    (out,) = asked(ranker(tokens=14), shelf, of(shelf))
    assert texts(shelf, out) == ["Velora is a film of 1994.", "Anna Lind directed Velora."]
    assert json.loads(out.replies["compress"].text) == {"sentences": 2, "of": 7, "tokens": 14}
    scores = {shelf.of[h.source][slice(*h.span)]: h.scores["compress"] for h in out.hits}
    assert scores == {"Anna Lind directed Velora.": 0.0, "Velora is a film of 1994.": -1.0}


def test_sentences_next_to_one_another_are_one_piece_and_a_block_ends_it(shelf):
    (out,) = asked(ranker(tokens=99), shelf, of(shelf))
    assert texts(shelf, out) == [FILM, TOWN]
    shelf.parts["film"] = (Block(0, 47, "paragraph"), Block(48, len(FILM), "paragraph"))
    (out,) = asked(ranker(tokens=99), shelf, of(shelf))
    assert texts(shelf, out) == [FILM[:47], FILM[48:], TOWN]


def test_the_query_may_have_what_a_model_searched_for(shelf):
    searched = of(shelf, "where was velora shot?", replies={"more": Reply("mill of Brask", "answered")})
    (plain,) = asked(ranker(tokens=8), shelf, searched)
    (more,) = asked(ranker(tokens=8, query="{{ replies.more }}"), shelf, searched)
    assert texts(shelf, plain) != texts(shelf, more) == ["It has a mill."]


def test_the_budget_is_never_passed_and_nothing_that_is_no_span_stays():
    rng = random.Random(5)
    words = ["velora", "anna", "brask", "tarn", "mill", "owl", "<DOC>", "née", "№7", "a"]
    for _ in range(40):
        pages = {
            str(i): " ".join(
                " ".join(rng.choices(words, k=rng.randint(1, 12))).capitalize() + "."
                for _ in range(rng.randint(1, 9))
            )
            for i in range(4)
        }
        shelf, tokens = Shelf(pages), rng.randint(1, 60)
        for made, kit in (
            (ranker(tokens=tokens), LocalKit(shelf)),
            (chooser(tokens=tokens), Kit(shelf, lambda *_: "1, 2, 3, 4, 5, 6, 7, 8, 9, 10")),
        ):
            [out] = run(made, kit, [of(shelf, "anna velora mill")])
            used = len(whitespace(shown(shelf, out)))
            assert used == json.loads(out.replies["compress"].text)["tokens"] <= tokens
            assert all(
                text in pages[parse_chunk_id(c)[0]]
                for c, text in zip(out.order, texts(shelf, out), strict=True)
            )


def test_a_budget_that_holds_no_sentence_leaves_nothing_and_a_long_one_is_passed_over(shelf):
    (out,) = asked(ranker(tokens=2), shelf, of(shelf))
    assert out.order == () and json.loads(out.replies["compress"].text)["sentences"] == 0
    (out,) = asked(ranker(tokens=6), shelf, of(shelf, "velora film of 1994"))
    assert texts(shelf, out) == ["Anna Lind directed Velora."], "the best has seven tokens with its marks"


def test_quotes_of_a_later_reply_are_exact_spans_of_the_source(shelf):
    docs = Prompt("{{ context }}Question: {{ text }}", "", ("context", "text"))
    (out,) = asked(ranker(tokens=14), shelf, of(shelf))
    answer = Generate(
        model=MODEL, prompt=ByLabel(docs), into="web", max_tokens=20, context_tokens=99, tokenizer=WORDS
    )
    [said] = run(answer, Kit(shelf, lambda *_: "Anna Lind"), [out])
    quoted = [(x.source, shelf.of[x.source][slice(*x.span)]) for x in said.replies["web"].quotes]
    assert (
        quoted[0] == ("film", "Anna Lind directed Velora.")
        and ("film", "Velora is a film of 1994.") in quoted
    )


def test_hidden_text_and_passages_beyond_the_first_are_no_candidates(shelf):
    shelf.hides["film"] = ((48, 74),)  # Anna Lind directed Velora.
    (out,) = asked(ranker(tokens=99, passages=1), shelf, of(shelf))
    assert texts(shelf, out) == [FILM[:47], FILM[75:]]


def test_a_generator_chooses_by_number_and_only_what_it_chose_stays(shelf):
    seen = []

    def script(chat, sampling, adapter):
        seen.append(chat[-1].content)
        return "[5], [3], 99"

    [out] = run(chooser(), Kit(shelf, script), [of(shelf)])
    assert seen[0].splitlines()[2] == "[3] Anna Lind directed Velora."
    assert texts(shelf, out) == ["Anna Lind directed Velora.", "Brask lies on the Tarn."]
    [out] = run(chooser(), Kit(shelf, lambda *_: "None."), [of(shelf)])
    assert out.order == () and out.replies["compress"].label == "answered"


def test_where_the_generators_reply_cannot_be_read_words_decide_and_the_fault_is_kept(shelf):
    [out] = run(chooser(tokens=14), Kit(shelf, lambda *_: "the third one"), [of(shelf)])
    reply = out.replies["compress"]
    assert (reply.label, reply.fault.reason, reply.text) == ("fault", "unreadable", "the third one")
    assert "Anna Lind directed Velora." in texts(shelf, out) and out.faults == ()
    down = Fault("generate", "connection", "the engine is down", transient=True)
    [out] = run(chooser(), Kit(shelf, lambda *_: down), [of(shelf)])
    assert [f.step for f in out.faults] == ["compress:compress"] and out.order


def test_where_the_generator_is_absent_the_question_stays_as_it_is(shelf):
    made, q = chooser(model=ABSENT), of(shelf)
    (out,) = asked(made, shelf, q)
    assert (out.order, out.hits, out.replies["compress"].label) == (q.order, (), "skipped")
    assert made.bound(q, Reach(2, 2, 90)).calls == 0


def test_rows_and_batches_hold(shelf):
    rows = [of(shelf, t, name=t) for t in ("who directed velora?", "what has a mill?", "who?")]
    rows.append(Question("none", "nothing is here", citations=()))
    out = holds_laws(ranker(), shelf, rows)
    assert out[-1].order == () and json.loads(out[-1].replies["compress"].text)["of"] == 0
    kit = Kit(shelf, lambda chat, *_: "2" if "mill" in chat[-1].content.splitlines()[-1] else "1")
    together = run(chooser(), kit, rows)
    assert [run(chooser(), kit, [q])[0] for q in rows] == together and len(kit.scripted.asked) == 6


@pytest.mark.parametrize("name", hostile.PAGES)
def test_a_hostile_page_is_harmless_before_a_generator_and_stays_its_own_text(name):
    page = to_text(hostile.PAGES[name])
    shelf, seen = Shelf({"a": page.text}), []
    shelf.hides["a"], shelf.parts["a"] = page.hidden, page.blocks

    def script(chat, *_):
        seen.append(chat[-1].content)
        return "1"

    [out] = run(chooser(tokens=500), Kit(shelf, script), [of(shelf)])
    assert not any(mark in "".join(seen) for mark in ("</DOC", "<|", "[/INST]", "<s>"))
    assert all(t in page.text for t in texts(shelf, out))


FITTED = Fitted("sha256:other", 0.0, {"overlap": 1.0}, 0.5, FittedOn("d", "s", "m"))


@pytest.mark.parametrize(
    ("make", "fields", "says"),
    [
        (ranker, {"tokens": 0}, "tokens: expected at least 1"),
        (ranker, {"model": MODEL, "prompt": PROMPT}, "found both or neither"),
        (chooser, {"prompt": None}, "model and prompt: expected both or neither"),
        (chooser, {"prompt": Prompt("{{ context }}", "", ("context",))}, "it uses 'context'"),
        (chooser, {"fitted": FITTED}, "only with embedder"),
        (ranker, {"query": "{{ gold }}"}, "no query template|uses gold"),
    ],
)
def test_what_cannot_work_is_refused_with_what_was_expected(make, fields, says):
    with pytest.raises(ValueError, match=says):
        make(**fields)


def test_numbers_of_another_embedder_are_refused():
    other = Model("mini", "embedder", "hash", "", "", "/somewhere", "sha256:mini", dim=64)
    with pytest.raises(ValueError, match="expected numbers fitted with mini"):
        ranker(embedder=other, fitted=FITTED)
    assert asyncio.run(ranker().open(LocalKit(Shelf({})))([])) == []
