"""Every step in the table keeps every law: rows, batches, what it declares to read and write, its bound."""

from dataclasses import replace
from types import SimpleNamespace

import golden
import pytest

from raypipe.core.errors import LawBroken
from raypipe.recipes.laws import CORPUS_LAWS, QUESTION_LAWS
from raypipe.recipes.step_contract import is_bounded
from raypipe.recipes.wiring import CORPUS_STEPS, QUESTION_STEPS, STEPS


@pytest.fixture(scope="module")
def links():
    return golden.chain()


@pytest.mark.parametrize("law", QUESTION_LAWS)
@pytest.mark.parametrize("verb", QUESTION_STEPS)
def test_every_question_step_keeps_every_law(links, verb, law):
    QUESTION_LAWS[law](links[verb])


@pytest.mark.parametrize(
    "verb, writes, found",
    [
        ("dense", {"hits.dense"}, "hits"),
        ("dense", {"hits"}, "hits.dense"),
        ("rerank", {"order"}, "hits.rerank"),
        ("rerank", {"hits.rerank"}, "order"),
        ("generate", set(), "replies.web"),
    ],
)
def test_a_step_that_changes_hits_scores_or_replies_without_declaring_them_is_told(
    links, verb, writes, found
):
    silent = replace(links[verb], step=SimpleNamespace(writes=lambda: frozenset(writes)))
    with pytest.raises(LawBroken, match=rf"it writes {found}, which"):
        QUESTION_LAWS["writes"](silent)


@pytest.mark.parametrize("verb", QUESTION_STEPS)
def test_a_question_step_changes_some_of_the_golden_rows_and_so_the_lock_can_see_it_move(links, verb):
    link = links[verb]
    assert link.out != link.given


def test_the_golden_rows_meet_both_rules_of_demote_and_one_answer_that_it_leaves(links):
    labels = [q.replies["said"].label for q in links["demote"].out]
    assert labels == ["abstained", "invalid", "answered", "skipped", "skipped"]


@pytest.mark.parametrize("law", CORPUS_LAWS)
@pytest.mark.parametrize("verb", CORPUS_STEPS)
def test_every_corpus_step_keeps_every_law(links, verb, law):
    CORPUS_LAWS[law](links[verb])


@pytest.mark.parametrize("verb", STEPS)
def test_every_shipped_step_says_what_it_costs_at_most(links, verb):
    assert is_bounded(links[verb].step)
