"""`raypipe eval` and `--changes` as a person sees them: plan first, calls last, what changed."""

import json

import jsonschema
from outputs import schemas
from reruns import FAKES

from raypipe.api.cli.main import main

SURE = FAKES.replace("threshold: 0.5\n", "threshold: 0.0\n")


def test_reprocess_prints_the_plan_first_the_calls_and_which_answers_changed(
    world, tmp_path, capsys, local_ray
):
    store = ["--data", str(world), "--store", str(tmp_path / "store")]
    for name, text in (("before", FAKES), ("after", SURE)):
        (tmp_path / f"{name}.yaml").write_text(text)
    assert main(["eval", str(tmp_path / "before.yaml"), *store, "--out", str(tmp_path / "one")]) == 0
    said = capsys.readouterr().out
    assert said.index(" calls, at most ") < said.index("\nscore: ") < said.index("\ncalls: ")
    again = ["eval", str(tmp_path / "after.yaml"), "--changes", *store, "--out", str(tmp_path / "two")]
    assert main(again) == 0
    said = capsys.readouterr().out
    assert "extract.threshold was" in said and ", 0 computed, " in said, (
        "a threshold behind all models asks nothing"
    )
    assert "first changed step: extract, because extract.threshold was" in said
    changed = json.loads((tmp_path / "two" / "changes.json").read_text())
    assert changed["common"] == 6 and {c["step"] for c in changed["changed"]} == {"extract"}
    assert main([*again, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, dict(schemas())["eval"])
    assert {s["planned"] for s in found["run"]["steps"]} == {0}
    assert main(["plan", str(tmp_path / "after.yaml"), "--store", str(tmp_path / "store"), "--json"]) == 0
    planned = {s["step"]: s["max_calls"] for s in json.loads(capsys.readouterr().out)["steps"]}
    assert planned == {s["step"]: s["planned"] for s in found["run"]["steps"]}
