"""docs/tutorial.md and docs/finetune.md, word for word: their commands in a folder of their own."""

import os
import re
import shlex
import subprocess
import sys

import pytest
from checkout import ROOT
from pages import commands, indented, page, script

pytestmark = [pytest.mark.ray, pytest.mark.drill]


COMMANDS = [c.text.removeprefix("raypipe ") for c in commands(script(page("docs/tutorial.md")))]
WITH_MODEL = [
    c.text.removeprefix("raypipe ")
    for block in indented(page("docs/tutorial.md"))
    for c in commands(block)
    if c.text.startswith("raypipe ")
]


def live(releases):
    """The release that is live, in what `raypipe releases` prints."""
    return re.search(r"^(r\d\S+) +live ", releases, re.MULTILINE)[1]


def environment(folder):
    """Of commands in a folder: the conf and code of this checkout, a home and a Ray of their own."""
    env = {**os.environ, "RAY_ADDRESS": "local", "RAYPIPE_HOME": str(folder / "home")}
    return {**env, "RAYPIPE_CONF": str(ROOT / "conf"), "PYTHONPATH": str(ROOT / "src")}


def test_every_command_of_the_tutorial_ends_as_it_says(tmp_path):
    env, said = environment(tmp_path), []
    for command in COMMANDS:
        words = [sys.executable, "-m", "raypipe", *shlex.split(command)]
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
        said.append(done.stdout)
    assert "better: score" in said[COMMANDS.index("compare runs/careful runs/first")]
    promoted, back = [out for c, out in zip(COMMANDS, said, strict=True) if c.startswith("releases")]
    assert live(promoted).startswith("r0002-") and live(back).startswith("r0001-")


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_the_part_with_a_language_model_names_it_in_the_plan_and_as_the_first_changed_step(tmp_path):
    env, said = environment(tmp_path) | {"RAYPIPE_HOME": str(ROOT / "out")}, {}
    first = next(i for i, command in enumerate(COMMANDS) if "--out" in command)
    for command in (*COMMANDS[: first + 1], *WITH_MODEL):
        words = [sys.executable, "-m", "raypipe", *shlex.split(command)]
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=500)
        if command.startswith("models fetch") and done.returncode in (4, 69):
            pytest.skip(f"no weights of a real language model: {done.stderr}")
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
        said[command.split()[0]] = done.stdout
    assert "generate:llm" in said["plan"] and "generate:llm" in said["compare"]
    assert "flip rate" in said["eval"]


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_the_whole_way_of_an_adapter_runs_as_its_page_has_it(tmp_path):
    bash = f'set -eu\nraypipe() {{ "{sys.executable}" -m raypipe "$@"; }}\n{script(page("docs/finetune.md"))}'
    done = subprocess.run(
        ["bash", "-c", bash], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True
    )
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:])
    assert "better: score" in done.stdout and live(done.stdout).startswith("r0002-")
