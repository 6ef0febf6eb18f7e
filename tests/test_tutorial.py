"""docs/tutorial.md, word for word: its commands in a folder of their own, one after the other."""

import os
import re
import shlex
import subprocess
import sys

import pytest
from prose import ROOT

pytestmark = [pytest.mark.ray, pytest.mark.drill]

COMMANDS = re.findall(
    r"^raypipe (.*)$",
    "\n".join(
        re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs/tutorial.md").read_text(), re.DOTALL | re.MULTILINE)
    ),
    re.MULTILINE,
)


def live(releases):
    """The release that is live, in what `raypipe releases` prints."""
    return re.search(r"^(\S+) +live ", releases, re.MULTILINE)[1]


def test_every_command_of_the_tutorial_ends_as_it_says(tmp_path):
    env = {**os.environ, "RAY_ADDRESS": "local", "RAYPIPE_HOME": str(tmp_path / "home")}
    env["RAYPIPE_CONF"] = str(ROOT / "conf")
    said = []
    for command in COMMANDS:
        words = [sys.executable, "-m", "raypipe", *shlex.split(command)]
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
        said.append(done.stdout)
    assert "better: score" in said[COMMANDS.index("compare runs/careful runs/first")]
    promoted, back = [out for c, out in zip(COMMANDS, said, strict=True) if c.startswith("releases")]
    assert live(promoted).startswith("r0002-") and live(back).startswith("r0001-")
