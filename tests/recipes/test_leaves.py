"""A recipe's values by path, for people: of a table by label, of models, of lists."""

from checkout import ROOT, SUPPORT

from raypipe.api.session import load_recipe
from raypipe.core.conf import Conf
from raypipe.recipes.serialize import leaves, to_plain


def step(recipe, name):
    made = load_recipe(recipe, str(SUPPORT / "fake_models.yaml"), Conf((ROOT / "conf",)))
    return next(s["step"] for s in to_plain(made)["question"] if s["name"] == name)


def test_the_labels_of_a_table_stand_in_the_path_and_else_for_the_others():
    found = dict(leaves(step("db3-task1-700-public", "facts:films")["table"]))
    assert found["by",] == "domain" and found["movie", "by"] == "name" and found["else",] == "null"


def test_a_prompt_for_all_has_no_label_in_its_path():
    found = dict(leaves(step("vanilla", "generate:llm")["prompt"]))
    assert set(found) == {("user",), ("system",), ("variables",)}


def test_a_model_has_its_name_then_what_its_identity_is_made_of_and_no_place():
    found = dict(leaves(step("vanilla", "generate:llm")["model"]))
    assert (
        found[()] == "llama-3-8b" and found["weights",] == "scripted@1" and found["max_model_len",] == "8192"
    )
    assert not {("name",), ("path",), ("repo",)} & set(found)
