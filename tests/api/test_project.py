"""`raypipe init`: the files of a project of one's own, as they are written, run and guarded."""

import os
import subprocess
import sys

import pytest
from checkout import ROOT

from raypipe.api.cli.main import main
from raypipe.api.session import load_recipe
from raypipe.api.starting_points import FILES
from raypipe.core import config
from raypipe.core.conf import Conf


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The folder of a project that was just begun."""
    folder = tmp_path_factory.mktemp("own") / "project"
    assert main(["init", str(folder)]) == 0
    return folder


def ran(project, *words, home):
    """What a command says in the folder of a project."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "RAYPIPE_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, *words], cwd=project, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_tests_of_a_new_project_pass(project, tmp_path):
    assert "Ran 3 tests" in ran(project, "-m", "unittest", home=tmp_path)


@pytest.mark.slow
def test_a_new_project_s_step_is_checked_and_locked_and_its_recipe_planned(project, world, tmp_path):
    fields = "{words: {PTO: paid time off}}"
    check = ("check", "mysteps:SpellOut", "--fields", fields)
    data = ("--data", str(world), "--store", str(tmp_path / "store"), "--cluster", "mine")
    commands = ((*check, "--lock"), check, ("plan", "mine", *data))
    code = f"from raypipe.api.cli.main import main\nassert not any(map(main, {commands}))"
    said = ran(project, "-c", code, home=tmp_path)
    assert "locked in" in said and "lock: its output matches" in said
    assert "spelled" in said and "embed" in said


def test_a_new_project_differs_from_rag_by_its_step_alone(project):
    own = config.read_yaml(project / "conf/recipes/mine.yaml")
    rag = config.read_yaml(ROOT / "conf/recipes/rag.yaml")
    assert own["corpus"] == rag["corpus"]
    assert list(own["question"].pop(1)) == ["mysteps:SpellOut"]
    for mine, theirs in zip(own["question"], rag["question"], strict=True):
        [(verb, fields)], [(shipped, values)] = mine.items(), theirs.items()
        assert fields.pop("query", "{{ replies.spelled }}") == "{{ replies.spelled }}"
        values = {**values, "prompt": "mine/answer"} if verb == "generate" else values
        assert (verb, fields) == (shipped, values)
    prompt = (project / "conf/prompts/mine/answer.yaml").read_text()
    assert prompt == (ROOT / "conf/prompts/rag/answer.yaml").read_text()


def test_own_entries_of_models_lie_over_the_shipped_ones(project, monkeypatch):
    monkeypatch.syspath_prepend(str(project))
    edited = (project / "conf/recipes/mine.yaml").read_text().replace("model: optional-llm", "model: my-llm")
    (project / "conf/recipes/served.yaml").write_text(edited)
    conf = Conf((project / "conf", ROOT / "conf"))
    served = load_recipe("served", conf=conf)
    assert {m.name for m in served.models()} == {"all-MiniLM-L6-v2", "minilm-maxsim", "my-llm"}
    assert {m.name for m in load_recipe("mine", conf=conf).models()} == {"all-MiniLM-L6-v2", "minilm-maxsim"}


@pytest.mark.parametrize("name", FILES)
def test_no_file_is_replaced_and_then_none_is_written(name, tmp_path, capsys):
    own = tmp_path / name
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text("mine")
    assert main(["init", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert name in said and "Nothing was written" in said
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [own] and own.read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["init", str(tmp_path / "file" / "inside")]) == 2
    assert "is a file" in capsys.readouterr().err
