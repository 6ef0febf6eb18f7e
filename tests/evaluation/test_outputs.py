"""What programs rely on: the schemas in docs are those of the classes, and what commands print validates."""

import json
from pathlib import Path

import jsonschema
import pytest

from raypipe.cli.main import main
from raypipe.evaluation.outputs import schemas
from raypipe.report.report import JSON_FORMAT

ROOT = Path(__file__).parents[2]
SCHEMAS = dict(schemas())


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_published_schema_is_the_one_that_is_made_from_the_classes(name):
    published = json.loads((ROOT / f"docs/schemas/{name}.json").read_text())
    assert published == SCHEMAS[name], "`make schemas` writes docs/schemas"
    jsonschema.Draft202012Validator.check_schema(published)


def checked(name, tree):
    jsonschema.validate(tree, SCHEMAS[name], cls=jsonschema.Draft202012Validator)
    assert tree["format"] == JSON_FORMAT
    return tree


def test_what_eval_plan_why_and_releases_print_validates_against_their_schemas(bench, capsys):
    bench.run(out="run")
    run, store = str(bench.folder / "run"), ["--store", str(bench.folder / "store")]
    report = checked("eval", json.loads((bench.folder / "run" / "report.json").read_text()))
    assert report["steps"] and report["slices"]

    def printed(*words):
        capsys.readouterr()
        assert main([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    planned = checked("plan", printed("plan", str(ROOT / "tests/fakes.yaml"), *store))
    assert planned["placement"]["pools"] and planned["steps"][0]["cached"] == planned["steps"][0]["rows"]
    assert checked("why", printed("why", run, bench.lines()[0]["interaction_id"]))["state"] == "reused"
    assert main(["promote", run]) == 0
    assert [r["live"] for r in checked("releases", printed("releases", *store))["releases"]] == [True]


def test_a_key_that_no_schema_has_is_refused():
    with pytest.raises(jsonschema.ValidationError, match="more"):
        checked("releases", {"format": JSON_FORMAT, "releases": [], "more": 1})
