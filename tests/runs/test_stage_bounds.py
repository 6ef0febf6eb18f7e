"""No text has more chunks than its bound, and every step has one."""

import math
from collections import Counter
from dataclasses import replace

import golden
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raypipe.core.arrow import id_texts
from raypipe.core.protocols import Model, Reach
from raypipe.models.fake import whitespace
from raypipe.recipes.recipe import Recipe, Stage
from raypipe.recipes.wiring import CORPUS_STEPS, QUESTION_STEPS
from raypipe.runs.plan.records import stage_bounds
from raypipe.steps.split import Split
from raypipe.text import words as cuts

SPACES = Model("whitespace", "tokenizer", "whitespace", "", "", "", "whitespace@1")
TEXTS = st.lists(st.integers(1, 40), max_size=60).map(lambda sizes: " ".join("x" * n for n in sizes))


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.integers(1, 60), st.integers(0, 59), st.integers(1, 30), st.integers(0, 29))
def test_no_text_has_more_or_longer_passages_than_its_bound(text, size, overlap, inner, inside):
    overlap, inner = min(overlap, size - 1), min(inner, size)
    inside = min(inside, inner - 1)
    flat = cuts.character_windows(text, size, overlap)
    nested = cuts.nested_windows(text, size, overlap, inner, inside)
    tokens = cuts.token_windows(whitespace(text), size, overlap)
    steps = (
        (Split(child_chars=size, child_overlap=overlap), flat, flat),
        (
            Split(child_chars=inner, child_overlap=inside, parent_chars=size, parent_overlap=overlap),
            nested,
            [parent for _, parent in nested],
        ),
        (Split(tokens=size, overlap=overlap, tokenizer=SPACES), tokens, tokens),
        (Split(by="sentence"), cuts.sentence_windows(text, 1000), cuts.sentence_windows(text, 1000)),
    )
    for step, chunks, passages in steps:
        bound = step.bound(len(text))
        assert len(chunks) <= bound.rows, step
        assert max((b - a for a, b in passages), default=0) <= bound.chars, step


@pytest.fixture(scope="module")
def links():
    return golden.chain()


@pytest.mark.parametrize("verb", QUESTION_STEPS)
def test_every_step_has_a_bound_on_its_calls_and_on_the_ranking_behind_it(links, verb):
    link = links[verb]
    reach = Reach(hits=1000, order=1000, passage_chars=1000)
    for before, after in zip(link.given, link.out, strict=True):
        assert 0 <= link.step.bound(before, reach).calls < math.inf
        grown = link.step.bound(before, Reach(len(before.hits), len(before.order), 1000)).reach
        assert len(after.hits) <= grown.hits and len(after.order) <= max(grown.order, len(before.order))


def test_behind_a_gate_the_ranking_is_as_long_as_for_questions_that_the_stage_leaves_alone(links):
    short = Stage(
        "rerank", replace(links["rerank"].step, top=2, candidates=None), when={"llm": ("answered",)}
    )
    recipe = Recipe("gated", "", (), (short, Stage("after", links["rerank"].step)))
    reach = Reach(hits=50, order=50, passage_chars=1000)
    for stage, left in ((short, 50), (replace(short, when={}), 2)):
        recipe = replace(recipe, question=(stage, recipe.question[1]))
        _, (_, after) = stage_bounds(recipe, links["rerank"].given, reach)
        assert {b.reach.order for b in after.values()} == {min(left, links["rerank"].step.top)}


@pytest.mark.parametrize("verb", CORPUS_STEPS)
def test_every_corpus_step_has_a_bound_on_the_rows_that_it_makes_of_a_source(links, verb):
    link = links[verb]
    column = next(c for c in ("content", "text", "chunk_text") if c in link.given.column_names)
    chars = pc.max(pc.utf8_length(link.given[column])).as_py()
    given, out = (Counter(id_texts(t["source"])) for t in (link.given, link.out))
    bound = link.step.bound(chars)
    assert bound.calls < math.inf and out.keys() <= given.keys()
    assert all(rows <= given[source] * bound.rows for source, rows in out.items())
