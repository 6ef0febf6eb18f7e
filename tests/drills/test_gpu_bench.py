"""The bench of a GPU runs with the few packages that a lent machine has, here on a CPU and on tiny shapes."""

import os
import subprocess
import sys

import pytest
from checkout import BENCH

THERE = ("torch", "transformers", "sentence-transformers", "pyarrow", "pyyaml")
ABSENT = ("ray", "vllm", "lancedb", "lance", "FlagEmbedding", "pydantic", "datasets", "turbohtml", "fastapi")

ONLY = '''
import importlib.metadata as md
import re
import sys
from importlib.machinery import PathFinder


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def needs(names):
    found, todo = set(), list(map(plain, names))
    while todo:
        if (name := todo.pop()) in found:
            continue
        found.add(name)
        try:
            wanted = md.requires(name) or ()
        except md.PackageNotFoundError:
            continue
        todo += [plain(re.match(r"[\\w.-]+", r)[0]) for r in wanted if "extra ==" not in r]
    return found


there = needs(THERE) - {"pydantic", "pydantic-core"}
tops = {top for top, of in md.packages_distributions().items() if there & set(map(plain, of))}
tops |= {"raypipe", "gpu", "gpu_models", "gpu_table", *sys.stdlib_module_names}


class Only(PathFinder):
    """What is installed, but for all that is not there."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        top = name.partition(".")[0]
        hidden = path is None and top not in tops and not top.startswith("_sysconfigdata")
        return None if hidden else super().find_spec(name, path, target)

    @classmethod
    def find_distributions(cls, *context):
        return [d for d in super().find_distributions(*context) if plain(d.name) in there]


sys.meta_path[sys.meta_path.index(PathFinder)] = Only
'''


@pytest.fixture
def bare(tmp_path):
    """A function: runs Python where only THERE and what these need can be imported."""
    (tmp_path / "sitecustomize.py").write_text(f"THERE = {THERE!r}\n{ONLY}")
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    env |= {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

    def run(*arguments):
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, env=env, capture_output=True, text=True, cwd=tmp_path)

    return run


@pytest.mark.drill
@pytest.mark.parametrize("parts", [["pool"], ["embed", "rerank"]])
def test_embed_rerank_and_pool_run_without_ray_vllm_and_lancedb(bare, parts):
    hidden = f"import importlib.util as u; print([n for n in {ABSENT!r} if u.find_spec(n)])"
    assert bare("-c", hidden).stdout == "[]\n", "the check hides what it should"
    done = bare(BENCH / "gpu.py", "--size", "toy", "--device", "cpu", "--parts", *parts)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][2:]
    assert [row[0] for row in rows] == [f"| {part}" for part in parts]
    for row in rows:
        assert "tokens/s" in row[2] and "sentence-transformers" in row[3] and float(row[4]) > 0
        assert float(row[7].strip(" |")) < 1e-5, "ours and the library's are equal"


def test_the_engine_part_says_that_it_needs_vllm_before_anything_is_measured(bare):
    done = bare(BENCH / "gpu.py", "--parts", "engine")
    assert done.returncode == 2 and "engine needs the package vllm, which is not installed" in done.stderr


def test_a_library_that_is_not_installed_has_no_numbers(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    from gpu_table import Line, Timing, table

    line = Line("embed", "m", "texts", 10, 1000, 4e12, Timing(2.0, 3 << 30), "sentence-transformers")
    chip = {"chip": "NVIDIA H100 PCIe", "dtype": "float16", "flop_per_s": 5e14, "bytes_per_s": 1e12}
    text = table(chip, [line], ["pool: stopped after 480 s"])
    assert "limit 756,500 GFLOP/s" in text and "NVIDIA's H100 data sheet" in text
    assert "| 5 texts/s, 500 tokens/s | sentence-transformers: not installed |  | 0.3% | 3.0 GiB |" in text
    assert text.endswith("pool: stopped after 480 s\n")
