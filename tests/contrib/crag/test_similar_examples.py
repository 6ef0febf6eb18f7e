"""The recipe `db3-task2-similar`: calls are asked for after the bank entries nearest to the question."""

import asyncio

import pytest
from checkout import ROOT, SUPPORT

from raypipe.api.session import load_recipe
from raypipe.core.conf import Conf
from raypipe.core.llm import Grammar
from raypipe.core.records import Question
from raypipe.models.fake import Scripted
from raypipe.models.kit import LocalKit
from raypipe.steps.generate import Generate

CONF = Conf((ROOT / "conf",))
CALLS = 'get_movie_person_crew("velora", None, eq(job, "Director"))["name"]'


class Kit(LocalKit):
    """Names every domain movie, and writes one program."""

    def __init__(self):
        super().__init__(None, "transformers")
        self.scripted = Scripted(
            lambda chat, sampling, _: CALLS if isinstance(sampling.constraint, Grammar) else "movie", (), 8192
        )

    def generator(self, model):
        return self.scripted.generate


@pytest.fixture(scope="module")
def recipe():
    return load_recipe(
        "db3-task2-similar", str(SUPPORT / "fake_models.yaml"), CONF, {"crag-mock": "http://127.0.0.1:9"}
    )


def test_the_prompt_for_calls_shows_the_nearest_bank_entries_the_nearest_last(recipe):
    kit, row = Kit(), Question("q", "who directed velora?", asked_at="03/05/2024, 23:18:31 PT", citations=())
    for stage in recipe.question[:3]:
        [row] = asyncio.run(stage.step.open(kit)([row]))
    prompt = kit.scripted.asked[-1].chat[-1].content
    shown = prompt.split("Query: ")[1:-1]
    assert len(shown) == 8 and shown[-1].startswith("who directed movie?\nCalls:\nget_movie_person_crew(")
    assert prompt.rstrip().endswith("Query: who directed velora?\nCalls:")
    assert (row.replies["calls"].text, row.replies["calls"].label) == (CALLS, "answered")


def test_but_for_its_examples_it_is_db3_task2(recipe):
    other = load_recipe(
        "db3-task2", str(SUPPORT / "fake_models.yaml"), CONF, {"crag-mock": "http://127.0.0.1:9"}
    )
    changed = ("examples", "generate:calls")
    ours, theirs = ([s.digest() for s in r.question if s.name not in changed] for r in (recipe, other))
    assert ours == theirs and recipe.vectors_table(recipe.embedders()[0]) == other.vectors_table(
        other.embedders()[0]
    )
    [calls] = [s.step for s in recipe.question if s.name == "generate:calls"]
    assert isinstance(calls, Generate) and calls.grammar is not None
