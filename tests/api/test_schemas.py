"""JSON Schemas: they say what `core.config.build` takes, and stand next to the files that they describe."""

import json
from functools import cache

import pytest
import yaml
from checkout import ROOT
from jsonschema import Draft7Validator

from raypipe.api.schemas import schema, schema_names

CONF = ROOT / "conf"
CONTRIB = ROOT / "src/raypipe/contrib"
FILES = {
    "recipe": sorted((CONF / "recipes").glob("*.yaml")),
    "finetune": sorted((CONTRIB / "finetune/conf/finetune").glob("*.yaml")),
    "examples": sorted((CONTRIB / "crag/conf/examples").glob("*.yaml")),
    "cluster": sorted((CONF / "clusters").glob("*.yaml")),
    "models": sorted(CONF.glob("models*.yaml")),
    "graphs": [CONF / "graphs.yaml"],
}
SHIPPED = [(name, file) for name, files in FILES.items() for file in files]


@cache
def validator(name):
    return Draft7Validator(schema(name))


def structure(tree):
    """A schema without its descriptions, which are comments."""
    if isinstance(tree, dict):
        return {k: structure(v) for k, v in tree.items() if k != "description" or not isinstance(v, str)}
    return [structure(v) for v in tree] if isinstance(tree, list) else tree


@pytest.mark.parametrize(("name", "file"), SHIPPED, ids=lambda x: getattr(x, "name", x))
def test_a_shipped_file_is_valid_and_names_its_schema(name, file):
    assert not [e.message for e in validator(name).iter_errors(yaml.safe_load(file.read_text()))]
    first = file.read_text().splitlines()[0]
    place = first.removeprefix("# yaml-language-server: $schema=")
    assert place != first and (file.parent / place).resolve() == CONF / "schemas" / f"{name}.json"


@pytest.mark.parametrize("name", schema_names())
def test_the_shipped_schema_is_that_of_the_code(name):
    shipped = json.loads((CONF / "schemas" / f"{name}.json").read_text())
    assert structure(shipped) == structure(schema(name)), "run `raypipe check --schemas conf/schemas`"
    Draft7Validator.check_schema(shipped)


@pytest.mark.parametrize(
    ("name", "file", "right", "wrong"),
    [
        ("recipe", "recipes/local.yaml", "  - dense:", "  - dence:"),
        ("recipe", "recipes/local.yaml", "top: 50}", "topp: 50}"),
        ("recipe", "recipes/local.yaml", "missing: zero", "missing: none"),
        ("recipe", "recipes/local.yaml", "question:", "questions:"),
        ("cluster", "clusters/two-gpus.yaml", "device: cuda", "divice: cuda"),
        ("cluster", "clusters/two-gpus.yaml", "gpu_memory_utilization: 0.75", "gpu_memory_utilization: much"),
        ("models", "models.yaml", "kind: embedder", "kind: embeder"),
        ("models", "models.yaml", "pooling: mean", "poling: mean"),
        ("graphs", "graphs.yaml", "kind: server", "kind: servers"),
    ],
)
def test_a_typo_is_found(name, file, right, wrong):
    text = (CONF / file).read_text()
    assert right in text
    assert not validator(name).is_valid(yaml.safe_load(text.replace(right, wrong, 1)))


def test_a_field_has_its_comment_as_description():
    assert (
        schema("models")["additionalProperties"]["properties"]["dim"]["description"]
        == "of an embedder's vectors"
    )
