"""The Dockerfile, read: no container runtime is at hand to build it."""

import re
import shlex
import tomllib

from checkout import ROOT

LINES = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text()).splitlines()
STEPS = [
    (s[0], s[1]) for line in LINES if line and line[0] not in "# " and len(s := line.split(None, 1)) == 2
]


def test_the_base_is_pinned_and_a_python_that_the_project_takes():
    [(_, base)] = [s for s in STEPS if s[0] == "FROM"]
    assert re.fullmatch(r"python:3\.1[123]\.\d+-slim-\w+", base)


def test_it_runs_as_the_user_of_the_manifests():
    assert [words for step, words in STEPS if step == "USER"] == ["1000:1000"]
    last = max(i for i, (step, _) in enumerate(STEPS) if step == "USER")
    assert not [words for step, words in STEPS[last:] if re.search("apt-get|useradd|sudo", words)]


def test_what_is_copied_is_here_and_setup_is_a_target():
    copied = [shlex.split(words) for step, words in STEPS if step == "COPY"]
    for words in copied:
        *sources, _ = [w for w in words if not w.startswith("--")]
        assert all((ROOT / s).exists() for s in sources)
        assert "--chown=1000:1000" in words
    assert any("make setup PROFILE=$PROFILE" in words for _, words in STEPS)
    assert re.search(r"^setup:", (ROOT / "Makefile").read_text(), re.M)


def test_what_builds_the_package_is_copied_before_it_is_installed():
    """`make setup` builds it: hatchling reads the readme and the build script next to pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "custom" in project["tool"]["hatch"]["build"]["hooks"]
    setup = next(i for i, (_, words) in enumerate(STEPS) if "make setup" in words)
    copied = {
        source for step, words in STEPS[:setup] if step == "COPY" for source in shlex.split(words)[1:-1]
    }
    assert {"pyproject.toml", "hatch_build.py", project["project"]["readme"], "src", "conf"} <= copied


def test_no_secret_and_no_address_stands_in_it():
    text = (ROOT / "Dockerfile").read_text()
    assert not re.search(r"https?://|token|password|secret|API_KEY", text, re.I)


def test_what_is_left_out_of_the_image_is_what_a_checkout_builds():
    ignored = set((ROOT / ".dockerignore").read_text().split())
    assert {".git", ".venv", "out", "dist"} <= ignored and not ignored & {"conf", "jobs", "serve", "src"}
