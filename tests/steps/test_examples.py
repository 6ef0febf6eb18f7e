"""The step `examples`: rows of a pool by chance or by nearness, and the calls of a bank."""

import asyncio
import dataclasses

import pytest

from raypipe.core.digests import stable
from raypipe.core.errors import ConfError, DataError
from raypipe.core.protocols import Reach
from raypipe.core.records import Citation, Question
from raypipe.models.kit import LocalKit
from raypipe.readers.example_pool import ExampleRow, PoolRef, write_pool
from raypipe.recipes.check import HASH, WHITESPACE
from raypipe.steps.examples import Examples

ROWS = tuple(
    ExampleRow(f"Which corpus number {n} is used?", f"Corpus {n}", f"paper-{n % 4}", f"Section {n} says it.")
    for n in range(12)
)


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    path = tmp_path_factory.mktemp("pool") / "pool.jsonl.gz"
    write_pool(path, ROWS)
    return PoolRef.of_file("train", path)


def asked(step, *texts, paper="paper-0"):
    cited = (Citation("q", 0, paper, "", "source", None, None),)
    rows = [Question(str(n), text, citations=cited) for n, text in enumerate(texts)]
    return [q.replies["examples"] for q in asyncio.run(step.open(LocalKit(None))(rows))]


def drawn(pool, **fields):
    return Examples(pool=pool, choose="random", top=6, **fields)


def test_a_seed_and_a_question_always_draw_the_same_examples(pool):
    first, other = asked(drawn(pool), "Which metric?", "Which baseline?")
    assert first.text.count("Question: ") == 6 and first.label == "answered"
    assert first.text != other.text
    assert asked(drawn(pool), "Which metric?") == [first]
    assert asked(drawn(pool, seed=1), "Which metric?") != [first]


def test_no_example_is_of_the_paper_that_is_asked_about(pool):
    for n in range(4):
        [said] = asked(Examples(pool=pool, choose="random", top=12), "Which metric?", paper=f"paper-{n}")
        shown = [r for r in ROWS if f"{r.question}\n" in said.text]
        assert len(shown) == 9 and not any(r.document == f"paper-{n}" for r in shown)


def test_the_examples_that_came_last_go_first_where_the_budget_is_short(pool):
    [whole] = asked(drawn(pool), "Which metric?")
    each = whole.text.split("\n\n")
    words = sum(len(e.split()) for e in each[:4]) + 3
    [cut] = asked(drawn(pool, tokens=words, tokenizer=WHITESPACE), "Which metric?")
    assert cut.text.split("\n\n") == each[:4]
    [none] = asked(drawn(pool, tokens=1, tokenizer=WHITESPACE), "Which metric?")
    assert (none.text, none.label) == ("", "skipped")


def test_the_nearest_example_stands_last_and_the_farthest_goes_first(pool):
    nearest = Examples(pool=pool, embedder=HASH, top=3)
    text = "Which corpus number 5 is used?"
    [said] = asked(nearest, text)
    each = said.text.split("\n\n")
    assert len(each) == 3 and each[-1] == f"Question: {text}\nAnswer: Corpus 5"
    short = dataclasses.replace(nearest, tokens=10, tokenizer=WHITESPACE)
    assert asked(short, text)[0].text == each[-1]
    assert nearest.bound(Question("q", text), Reach()).calls == len(ROWS) + 1


def test_a_pool_smaller_than_top_gives_all_that_it_has(tmp_path):
    write_pool(tmp_path / "p.jsonl", ROWS[:2])
    step = drawn(PoolRef.of_file("small", tmp_path / "p.jsonl"))
    assert asked(step, "Which metric?", paper="other")[0].text.count("Answer: ") == 2
    assert asked(step, "Which metric?", paper="paper-1")[0].text.count("Answer: ") == 1


def test_equal_questions_of_one_paper_are_one_example(tmp_path):
    rows = (ROWS[0], dataclasses.replace(ROWS[0], answer="another annotator's"), ROWS[1])
    write_pool(tmp_path / "p.jsonl", rows)
    [said] = asked(drawn(PoolRef.of_file("twice", tmp_path / "p.jsonl")), "Which metric?", paper="other")
    assert said.text.count("Answer: ") == 2


def test_what_is_shown_of_a_row_is_the_recipes_to_say(pool):
    shown = "Q: {{ question }}\nBecause: {{ explanation }}\nA: {{ answer }}"
    [said] = asked(drawn(pool, shown=shown), "Which metric?")
    assert said.text.count("Because: Section") == 6
    with pytest.raises(ValueError, match="shown: it uses 'document'"):
        drawn(pool, shown="{{ document }}")


def test_the_pools_bytes_are_identity_and_its_place_is_not(tmp_path, pool):
    write_pool(tmp_path / "copy.jsonl.gz", ROWS)
    copy = PoolRef.of_file("elsewhere", tmp_path / "copy.jsonl.gz")
    assert stable(drawn(copy)) == stable(drawn(pool)) and copy != pool
    write_pool(tmp_path / "copy.jsonl.gz", ROWS[1:])
    with pytest.raises(ConfError, match="is not what the recipe was resolved with"):
        LocalKit(None).data(copy)


def test_only_a_newline_ends_a_row_of_a_pool(tmp_path):
    rows = tuple(ExampleRow(f"Which{mark}corpus?", f"A{mark}B") for mark in "\u2028\u0085\u2029\x0c")
    write_pool(tmp_path / "p.jsonl", rows)
    assert LocalKit(None).data(PoolRef.of_file("odd", tmp_path / "p.jsonl")) == rows


def test_a_question_that_cites_nothing_is_shown_examples_of_any_document(pool):
    [q] = asyncio.run(
        Examples(pool=pool, choose="random", top=12).open(LocalKit(None))([Question("q", "Which metric?")])
    )
    assert q.replies["examples"].text.count("Question: ") == len(ROWS)


def test_a_pool_that_is_none_says_which_line_is_not_an_example(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"question": "a?", "answer": "b"}\n{"question": "c?"}\n')
    with pytest.raises(DataError, match=r"bad\.jsonl:2: answer: expected text"):
        PoolRef.of_file("bad", path)
    with pytest.raises(ConfError, match="--graph nowhere=FILE"):
        LocalKit(None).data(PoolRef("nowhere", "", "nowhere", 0))


def test_a_step_names_a_bank_or_a_pool_and_an_embedder_where_it_compares(pool):
    with pytest.raises(ValueError, match="one of bank and pool"):
        Examples(embedder=HASH)
    with pytest.raises(ValueError, match="embedder: expected"):
        Examples(pool=pool)
    with pytest.raises(ValueError, match="both or neither"):
        drawn(pool, tokens=100)
