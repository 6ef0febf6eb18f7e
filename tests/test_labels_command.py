"""`raypipe labels`: what is refused before anything is asked, its plan, and a run from files to labels."""

import json
from pathlib import Path

import jsonschema
import pytest

from raypipe.api.outputs import schemas
from raypipe.cli.main import main
from raypipe.evaluation.label_files import read_labels
from raypipe.synth import write

HERE = Path(__file__).parent
MODELS = ["--models", str(HERE / "fake_models.yaml")]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labels")
    write(folder / "world", 12, pages=2, seed=3, page_chars=1200)
    assert main(["ingest", str(folder / "world"), "--store", str(folder / "store")]) == 0
    return folder


def labels(world, *args, recipe="db3-task1-700"):
    return main(["labels", recipe, *MODELS, "--store", str(world / "store"), *args])


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--step", "wed"], 2, "no generate step of that reply; did you mean 'web'"),
        (["--held-out", "1"], 2, "--held-out: expected a share from 0 up to"),
        (["--idk-share", "-0.1"], 2, "--idk-share: expected a share"),
        (["--judge", "nobody"], 4, "--judge nobody: "),
        (["--judge", "bge-base-en-v1.5"], 2, "expected a generator, found a model of kind embedder"),
        (["--where", "domain"], 2, "expected LABEL=V1,V2"),
        (["--where", "domain=moovie"], 3, "expected questions of that domain, found"),
        (["--where", "split=7"], 3, "expected questions of that split, found"),
        (["--against", "WORLD"], 3, "training questions that are not evaluated on, found 12 of 12 in both"),
        (
            ["--against", "domain=nowhere"],
            3,
            "--against domain=nowhere: expected stored questions, found none",
        ),
        (["--import", "MISSING"], 3, "expected a readable file"),
    ],
)
def test_what_cannot_be_labelled_is_refused_before_anything_is_asked(world, capsys, args, code, said):
    places = {"WORLD": str(world / "world"), "MISSING": str(world / "nowhere.jsonl")}
    assert labels(world, *(places.get(a, a) for a in args)) == code
    assert said in capsys.readouterr().err


def test_labels_of_calls_need_a_person(world, capsys):
    kg = ["--graph", str(world / "world/kg"), "--step", "calls"]
    assert labels(world, *kg, recipe="db3-task3") == 2
    assert "labels of calls are drafts until a person has looked at them" in capsys.readouterr().err
    first, *_ = sorted((world / "world").glob("questions*.jsonl"))
    ids = json.loads(first.read_text().splitlines()[0])["interaction_id"]
    file = world / "calls.jsonl"
    for line, said in [
        ({"id": ids, "label": "get_movie(", "use": True}, "expected calls that can be parsed"),
        ({"id": "another", "label": "None", "use": True}, "the id of a training question"),
    ]:
        file.write_text(json.dumps(line))
        assert labels(world, *kg, "--import", str(file), recipe="db3-task3") == 3
        assert said in capsys.readouterr().err


def test_a_dry_run_prints_the_calls_of_each_stage(world, capsys):
    assert labels(world, "--judge", "words", "--dry-run", "--json", "--where", "domain=movie,music") == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, dict(schemas())["labels"])
    steps = {s["step"]: s["max_calls"] for s in found["steps"]}
    assert steps["truths"] == steps["words"] == 0 < steps["generate:web"] < 12


@pytest.mark.ray
@pytest.mark.drill
def test_labels_are_made_from_files_and_made_again_without_a_call(world, tmp_path, capsys):
    data = ["--data", str(world / "world"), "--judge", "words", "--json"]
    assert labels(world, *data, "--out", str(tmp_path / "one")) == 0
    first = json.loads(capsys.readouterr().out)
    jsonschema.validate(first, dict(schemas())["labels"])
    assert first["labels"] == len(read_labels(tmp_path / "one").labels) > 2 and first["computed"] > 0
    assert "Label mix" in (tmp_path / "one/labels.html").read_text()
    assert labels(world, *data, "--out", str(tmp_path / "two")) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["digest"] == first["digest"] and (again["planned"], again["computed"]) == (0, 0)
