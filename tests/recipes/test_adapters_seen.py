"""The questions that an adapter was trained on are those of a fit: marked wherever a score stands."""

import pytest
import yaml
from checkout import ROOT

from raypipe.api.session import load_recipe
from raypipe.core.conf import Conf
from raypipe.core.digests import seen_rows
from raypipe.core.errors import ConfError
from raypipe.recipes.serialize import description, to_plain
from raypipe.recipes.wiring import fits_of, has_seen

CONF = Conf((ROOT / "conf",))
MODELS = "tiny: {kind: generator, loader: scripted, adapters: {small: small, other: other}}\n"
RECIPE = """
corpus: [{parse: {kinds: [name]}}, {split: {child_chars: 200}}]
question:
  - generate: {model: tiny, prompt: crag/vanilla, into: llm, max_tokens: 5%s}
  - decide: {prefer: [llm]}
"""
MADE = {"labels": {"digest": "d1", "rows": 2, "held_out": 1}, "seen": seen_rows(["who sang it?", "who won?"])}


@pytest.fixture
def loaded(tmp_path):
    def load(adapter=None, **recipes):
        for name, made in recipes.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "recipe.yaml").write_text(yaml.safe_dump(made))
        (tmp_path / "models.yaml").write_text(MODELS)
        (tmp_path / "r.yaml").write_text(RECIPE % (f", adapter: {adapter}" if adapter else ""))
        return load_recipe(str(tmp_path / "r.yaml"), str(tmp_path / "models.yaml"), CONF)

    return load


def test_a_recipe_has_seen_what_its_adapter_was_trained_on_and_so_has_its_record(loaded):
    recipe = loaded("small", small=MADE)
    for r in (recipe, description(to_plain(recipe))):
        [(name, on)] = fits_of(r).items()
        assert name == "adapter small of generate:llm" and (on.data, on.n) == ("labels d1", 3)
        assert has_seen([on], "who sang it?") and not has_seen([on], "who wrote it?")


def test_an_adapter_that_no_step_asks_or_another_tool_made_marks_nothing(loaded):
    assert fits_of(loaded(None, small=MADE)) == {}
    assert fits_of(loaded("other", other={"base_model": "x"})) == {}


def test_an_adapter_whose_labels_kept_no_questions_is_a_fit_of_unknown_ones(loaded):
    [on] = fits_of(loaded("small", small={"labels": MADE["labels"]})).values()
    assert on.seen == "" and not has_seen([on], "who sang it?")


def test_a_recipe_of_an_adapter_that_cannot_be_read_is_named(loaded, tmp_path):
    recipe = loaded("small", small=MADE)
    (tmp_path / "small" / "recipe.yaml").write_text("{")
    with pytest.raises(ConfError, match=r"small/recipe\.yaml: is not valid YAML"):
        fits_of(recipe)
