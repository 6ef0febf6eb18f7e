"""A recipe written down whole is the same recipe when it is read."""

import json

import pytest
from checkout import ROOT, SUPPORT

from raypipe.api.session import load_recipe
from raypipe.core.conf import Conf
from raypipe.core.errors import ConfError
from raypipe.recipes.serialize import classes, from_plain, to_plain
from raypipe.recipes.wiring import STEPS

CONF = Conf((ROOT / "conf",))
RECIPES = [SUPPORT / "fakes.yaml", *sorted((ROOT / "conf" / "recipes").glob("*.yaml"))]


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_a_recipe_comes_back_from_json_with_the_same_digest_and_values(path):
    # adapters of the tuned ones are to be made, models of onewo's to be pinned
    fakes = path.stem.endswith("-tuned") or path.stem.startswith("onewo-")
    recipe = load_recipe(str(path), str(SUPPORT / "fake_models.yaml") if fakes else None, CONF)
    again = from_plain(json.loads(json.dumps(to_plain(recipe))))
    assert again == recipe and again.digest() == recipe.digest()


def test_every_step_and_whatever_its_fields_hold_can_be_written_down():
    assert {c.__name__ for c in STEPS.values()} <= set(classes())
    assert {"Model", "Fitted", "FittedOn"} <= set(classes())


def test_only_classes_of_recipes_are_ever_made_and_another_digest_is_refused():
    tree = to_plain(load_recipe(str(SUPPORT / "fakes.yaml"), None, CONF))
    with pytest.raises(ConfError, match="another raypipe"):
        from_plain(
            {**tree, "corpus": [{"name": "x", "step": {"is": "Popen", "args": "true"}, "when": {"map": []}}]}
        )
    with pytest.raises(ConfError, match="version was raised"):
        from_plain({**tree, "digest": "0" * 32})
