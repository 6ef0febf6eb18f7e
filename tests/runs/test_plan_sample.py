"""The sample of a first plan: sources parsed and split by the recipe's own steps, and no model asked."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from checkout import ROOT, SUPPORT

from raypipe.api.session import load_recipe
from raypipe.core.conf import Conf
from raypipe.core.errors import ModelMissing
from raypipe.core.plugins import Plugin
from raypipe.core.records import Source, source_id
from raypipe.models.kit import LocalKit
from raypipe.recipes.recipe import Stage
from raypipe.runs.plan.sample import CHARS, Sampler, look

KIT = LocalKit(None, "transformers")


def made(text):
    return Source(source_id("snippet", text), "snippet", text)


def words(count, at=0):
    return " ".join(f"word{at + n}" for n in range(count))


SOURCES = [made(words(20 + 7 * n, 1000 * n)) for n in range(60)]


@pytest.fixture(scope="module")
def recipe():
    """One whose split counts tokens of a language model."""
    return load_recipe("db3-task3", str(SUPPORT / "fake_models.yaml"), Conf((ROOT / "conf",)))


class Bare(LocalKit):
    """A kit of a machine without the tokenizer."""

    def tokenizer(self, model):
        raise ModelMissing(f"{model.name} is not here")


def test_a_tokenizer_that_is_not_here_is_stood_in_for_and_the_sample_says_so(recipe):
    real, rough = look(recipe, KIT, SOURCES), look(recipe, Bare(None, "transformers"), SOURCES)
    assert real.exact and sum(real.each.values()) == real.chunks.num_rows > len(SOURCES)
    assert not rough.exact and rough.known
    assert real.chunks.num_rows / 2 < rough.chunks.num_rows < 2 * real.chunks.num_rows


def test_half_of_the_sources_say_about_how_many_chunks_the_others_have(recipe):
    half, rest = look(recipe, KIT, SOURCES[::2]), look(recipe, KIT, SOURCES[1::2])
    told = half.expected(np.array([len(s.content) for s in SOURCES[1::2]])).sum()
    assert rest.chunks.num_rows / 1.3 < told < 1.3 * rest.chunks.num_rows


def test_of_many_sources_the_smallest_ids_are_kept_whatever_their_order():
    large = [made(f"{n} " + "x" * (CHARS // 10)) for n in range(30)]
    samplers = Sampler(), Sampler()
    for sampler, sources in zip(samplers, (large, large[::-1]), strict=True):
        for source in sources:
            sampler.add(source)
    one, two = (set(s.kept) for s in samplers)
    assert one == two == set(sorted(s.id for s in large)[:9])


@dataclass(frozen=True, slots=True)
class Broken:
    """A corpus step that breaks on a text."""

    version: ClassVar[int] = 1

    def reads(self):
        return frozenset({"text"})

    def writes(self):
        return frozenset({"text"})

    def open(self, kit):
        async def build(table):
            raise RuntimeError("a defect")

        return build


def test_a_source_that_breaks_the_code_leaves_a_plan_to_bounds(recipe):
    first, *rest = recipe.corpus
    broken = Stage("broken", Broken(), plugin=Plugin("mypkg.steps:Broken", "0" * 32))
    assert not look(replace(recipe, corpus=(first, broken, *rest)), KIT, SOURCES[:2]).known
