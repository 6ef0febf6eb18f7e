"""Every constant of every recipe is its paper's, and no recipe has one that the table lacks."""

import dataclasses
from collections.abc import Mapping

import pytest
from checkout import ROOT, SUPPORT
from published import PUBLISHED

from raypipe.api.session import load_recipe
from raypipe.contrib.crag.references import FactsRef
from raypipe.contrib.crag.steps.facts import FactsRule
from raypipe.core import config
from raypipe.core.conf import Conf
from raypipe.core.errors import ConfError
from raypipe.core.protocols import Model
from raypipe.readers.example_pool import PoolRef
from raypipe.text.template import ByLabel

CONF = Conf((ROOT / "conf",))
RECIPES = sorted(p.stem for p in (ROOT / "conf/recipes").glob("*.yaml"))
WIRING = {
    "into",
    "when",
    "calls",
    "rule",
    "answer",
    "domain",
    "trace",
    "entities",
    "facts",  # names of replies
    "prompt",
    "schema",
    "grammar",
    "bank",
    "graph",
    "fitted",  # files that have tests of their own
}
"""Fields that are no constants."""


def stages(name):
    """Stage -> its step, and the fields that its file gives it."""
    recipe = load_recipe(name, str(SUPPORT / "fake_models.yaml"), CONF)
    tree = config.read_yaml(CONF.find("recipes", name))
    tree = config.read_yaml(CONF.find("recipes", tree.get("like", name)))
    steps = [*recipe.corpus, *recipe.question]
    given = [next(iter(item.values())) for item in (*tree.get("corpus", []), *tree["question"])]
    return {s.name: (s.step, set(fields)) for s, fields in zip(steps, given, strict=True)}


def said(value):
    """A value as the table writes it."""
    if isinstance(value, Model | FactsRef | PoolRef):
        return value.name
    if isinstance(value, FactsRule):
        fields = {f.name: (getattr(value, f.name), f.default) for f in dataclasses.fields(value)}
        return {n: said(v) for n, (v, default) in fields.items() if v != default}
    if isinstance(value, ByLabel):
        table = {label: said(v) for label, v in value.table.items()}
        return {"by": value.by, **table, "else": said(value.default)} if value.by else said(value.default)
    return {k: said(v) for k, v in value.items()} if isinstance(value, Mapping) else value


@pytest.mark.parametrize("name", RECIPES)
def test_every_constant_is_the_published_one(name):
    found = stages(name)
    for place, (value, source) in PUBLISHED[name].items():
        stage, _, field = place.rpartition(".")
        assert said(getattr(found[stage][0], field)) == value, f"{place}: {source}"


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_no_constant_that_the_table_does_not_hold(name):
    given = {f"{stage}.{f}" for stage, (_, fields) in stages(name).items() for f in fields - WIRING}
    named = {"function_calls.reply", "demote.reply"}  # of an earlier reply
    assert not given - named - PUBLISHED[name].keys()


def test_the_table_names_no_recipe_that_does_not_ship():
    assert sorted(PUBLISHED) == RECIPES


@pytest.mark.parametrize("stage", ["generate:domain", "generate:functions", "generate:web"])
def test_weknows_replies_are_held_to_a_schema(stage):
    step, _ = stages("weknow")[stage]
    assert step.schema is not None


def test_weknow_has_both_models_that_its_paper_names():
    """The text's is pinned; of the table's no commit is known: refused with the command that pins one."""
    entries = config.read_yaml(CONF.file("models.yaml"))
    both = [entries[n] for n in ("llama-3.1-70b-awq", "llama-3-70b-awq")]
    assert [e["dtype"] for e in both] == ["float16"] * 2 and [bool(e["revision"]) for e in both] == [
        True,
        False,
    ]
    recipe = load_recipe("weknow-70b", None, CONF)
    asked = {s.step.model.name for s in recipe.question if s.name.startswith("generate")}
    assert asked == {"llama-3.1-70b-awq"}
    with pytest.raises(ConfError, match=r"llama-3-70b-awq\.revision: expected the 40 hex digits"):
        load_recipe("weknow-70b", None, CONF, sets=["generate:web.model=llama-3-70b-awq"])
