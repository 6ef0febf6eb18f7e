"""`raypipe labels`: what is refused before anything is asked, its plan, and a run from files to labels."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys

import jsonschema
import pytest
import yaml
from checkout import ROOT, SUPPORT
from label_script import NAMES, QUESTION, asked
from outputs import schemas

from raypipe.api.cli.main import main
from raypipe.contrib.finetune.label_files import read_labels
from raypipe.contrib.world.write import write

MODELS = ["--models", str(SUPPORT / "fake_models.yaml")]

pytestmark = [pytest.mark.slow, pytest.mark.drill]


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
        (
            ["--held-out", "0.999"],
            3,
            "--held-out 0.999: expected questions to train on, found all 12 held out",
        ),
        (["--review", "WORLD"], 2, "--review: expected the name of a file to write, found the folder"),
        (["--review", "HERE"], 2, "expected no file there, since it may hold corrections"),
        (["--out", "HERE"], 2, "--out: "),
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
    places = {"WORLD": str(world / "world"), "MISSING": str(world / "nowhere.jsonl"), "HERE": __file__}
    assert labels(world, *(places.get(a, a) for a in args), "--dry-run") == code
    assert said in capsys.readouterr().err


def test_a_run_refuses_what_its_dry_run_does(world, capsys):
    assert labels(world, "--held-out", "0.999") == 3
    assert "found all 12 held out" in capsys.readouterr().err


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
def test_labels_are_made_from_files_and_made_again_without_a_call(world, tmp_path, capsys):
    data = ["--data", str(world / "world"), "--judge", "words", "--json"]
    assert labels(world, *data, "--out", str(tmp_path / "one")) == 0
    first = json.loads(capsys.readouterr().out)
    jsonschema.validate(first, dict(schemas())["labels"])
    assert first["labels"] == len(read_labels(tmp_path / "one").labels) > 2 and first["computed"] > 0
    assert labels(world, *data, "--out", str(tmp_path / "two")) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["digest"] == first["digest"] and (again["planned"], again["computed"]) == (0, 0)


RECIPE = """
corpus: [{parse: {kinds: [document]}}, {tokenize: {words: stems}}, {split: {child_chars: 200}}]
question:
  - bm25: {words: stems, top: 2}
  - fuse: {weights: {bm25: 1.0}, top: 2}
  - generate:
      {model: teller, prompt: db3/p_basic, fill: {words: 70}, into: web, context_chars: 300, max_tokens: 75}
  - decide: {prefer: [web]}
"""
LABELLED = set(NAMES) - {"Hove", "Isen"}  # whose judgements can be read


def drill_files(folder, copies=5):
    """Questions of each path of the rules, several times, in tasks of three; and a conf of their own."""
    lines = [
        {
            "id": f"{name}-{n}",
            "query": f"{QUESTION.format(name)} ({n})",
            "answer": NAMES[name][0],
            "documents": [f"Page {n}. The lantern of {name} is old. It shines."],
        }
        for name in sorted(LABELLED)
        for n in range(copies)
    ]
    (folder / "data.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    (folder / "recipe.yaml").write_text(RECIPE)
    teller = {"kind": "generator", "loader": "label_script:open_drilled", "max_model_len": 8192}
    (folder / "models.yaml").write_text(yaml.safe_dump({"teller": teller}))
    shutil.copytree(ROOT / "conf", folder / "conf")
    cluster = yaml.safe_load((folder / "conf/clusters/laptop.yaml").read_text())
    (folder / "cluster.yaml").write_text(yaml.safe_dump({**cluster, "questions_per_task": 3}))


def labelled(files, place, *more):
    """`raypipe labels` in a process group and a Ray of its own: its exit code, and what it printed."""
    place.mkdir(exist_ok=True)
    paths = os.pathsep.join((str(SUPPORT), str(ROOT / "src")))
    env = {**os.environ, "PYTHONPATH": paths, "RAY_ADDRESS": "local", "LABEL_DRILL": str(place)}
    env |= {"RAYPIPE_CONF": str(files / "conf"), "RAYPIPE_HOME": str(files / "home")}
    given = ["--data", "data.jsonl", "--models", "models.yaml", "--cluster", "cluster.yaml"]
    command = [sys.executable, "-m", "raypipe", "labels", "recipe.yaml", *given, "--json"]
    command += ["--store", str(place / "store"), "--out", str(place / "labels"), *more]
    said = place / "said"
    with (
        said.open("w") as out,
        subprocess.Popen(command, env=env, cwd=files, stdout=out, start_new_session=True) as driver,
    ):
        (place / "driver").write_text(str(driver.pid))
        code = driver.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)  # what a killed driver's Ray has left
    return code, said.read_text()


@pytest.mark.ray
@pytest.mark.timeout(1200)
def test_labels_survive_three_kills_and_a_changed_prompt_asks_what_its_plan_said(tmp_path):
    drill_files(tmp_path)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    code, said = labelled(tmp_path, whole)
    assert code == 0 and len(asked(whole)) == 75, "30 answers, 20 judged, 25 contexts looked into"
    killed.mkdir()
    for count in (8, 30, 60):
        (killed / "kill").write_text(str(count))
        code, _ = labelled(tmp_path, killed)
        assert code == -signal.SIGKILL
    (killed / "kill").unlink()
    code, _ = labelled(tmp_path, killed)
    assert code == 0
    assert read_labels(killed / "labels").digest == read_labels(whole / "labels").digest
    assert len(asked(killed)) == len(set(asked(killed))), "a stored reply is not asked for again"
    assert set(asked(killed)) == set(asked(whole))
    prompt, before = tmp_path / "conf/prompts/db3/p_context.yaml", len(asked(killed))
    prompt.write_text(prompt.read_text() + "  Be strict.\n")
    code, said = labelled(tmp_path, killed, "--dry-run")
    planned = {s["step"]: s["max_calls"] for s in json.loads(said)["steps"] if s["max_calls"]}
    assert code == 0 and list(planned) == ["generate:mentioned"]
    code, said = labelled(tmp_path, killed)
    again = [line.split()[0] for line in asked(killed)[before:]]
    assert code == 0 and set(again) == {"context"}
    assert len(again) == json.loads(said)["computed"] <= json.loads(said)["planned"]
    assert json.loads(said)["planned"] == planned["generate:mentioned"]
    assert read_labels(killed / "labels").labels == read_labels(whole / "labels").labels
