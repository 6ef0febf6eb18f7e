"""README.md: its commands run in order as they stand, and print what it shows."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from checkout import ROOT
from pages import commands, indented, page, ran

from raypipe.api.starting_points import DEMO
from raypipe.contrib.world.write import write

TEXT = page("README.md")
COMMANDS = [command for block in indented(TEXT) if "$ " in block for command in commands(block)]
NOT_RUN = {"export", "pip", "ray"}
"""First words that this file does not run: test_install.py and test_first_hour.py do."""
SMALL = {"questions": 40, "pages": 4, "page_chars": 1000}
"""In place of the demo: enough questions for `compare` to tell."""


def shown(line, numbers=True):
    """A pattern of a line of README: white space of any width, and any text for `...`. Where numbers are of
    other data, any word for one with a number in it, and up to three words more between two."""

    def word(text):
        return re.escape(text) if numbers or not re.search(r"\d", text) else r"\S+"

    between = r"\s+" if numbers else r"\s+(?:\S+\s+){0,3}"
    return re.compile(r".*?".join(between.join(map(word, part.split())) for part in line.split("...")))


def test_the_readme_is_short():
    prose = [line for line in TEXT.splitlines() if not line.startswith("    ")]
    assert len(" ".join(prose).split()) <= 700


def test_make_eval_is_the_demo_and_the_extra_that_pip_is_told_is_there():
    assert re.search(r"^eval:.*\n\t.* jobs/eval\.py", (ROOT / "Makefile").read_text(), re.MULTILINE)
    [extra] = [re.search(r"\[(\w+)\]", c)[1] for c, _ in COMMANDS if c.startswith("pip ")]
    assert extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.ray
@pytest.mark.parametrize("small", [True, pytest.param(False, marks=pytest.mark.drill)])
def test_every_command_prints_what_the_readme_shows(small, tmp_path, local_ray, capsys, monkeypatch):
    """The first, `make eval`, in a process with a Ray of its own; those after it in this one, on its Ray.
    Most seconds go to the thousand pages of the demo; with few in their place, numbers are other ones."""
    (tmp_path / "manuals").mkdir()
    (tmp_path / "manuals/pump.md").write_text(
        "# Foo pump\n\nIt moves water from wells of up to 40 m.\n\n## Warranty\n\n"
        "The warranty of the Foo pump is 24 months from delivery. Seals are not covered.\n"
    )
    home = {"RAYPIPE_HOME": str(tmp_path / "home"), "RAYPIPE_CONF": str(ROOT / "conf"), "COLUMNS": "120"}
    for name, value in home.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    if small:
        folder = tmp_path / "home/data" / "-".join(["demo", *map(str, DEMO.values())])
        write(folder, **DEMO | SMALL)
    for command, lines in COMMANDS:
        name, *words = shlex.split(command)
        if name in NOT_RUN or words[0] in (
            "serve",
            "eval-llm",
        ):  # tests/recipes: test_rag_served, test_language_model
            continue
        printed = " ".join((made(tmp_path) if name == "make" else ran(words, capsys)).split())
        missing = [line for line in lines if not shown(line, not small).search(printed)]
        assert not missing, (command, missing, printed[-3000:])


def made(folder):
    """Returns what `make eval` prints."""
    env = {**os.environ, "RAY_ADDRESS": "local", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(ROOT / "jobs/eval.py")]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr + done.stdout


def test_a_shown_line_may_leave_out_text_and_no_word():
    line = shown("live in ...: r0001-..., +0.750 on 16 of 20")
    assert line.search("live in /tmp/x: r0001-abc, recipe local, +0.750   on 16 of 20")
    assert not line.search("live in /tmp/x: r0002-abc, recipe local, +0.750 on 16 of 20")


def test_every_block_with_commands_is_taken():
    assert [c.split()[0] for c, _ in COMMANDS].count("raypipe") >= 9
    assert {Path(c.split()[0]).name for c, _ in COMMANDS} == {"make", "raypipe", *NOT_RUN}
