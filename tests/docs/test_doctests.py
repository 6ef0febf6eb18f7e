"""The examples in docstrings are true. Each module is imported when its test runs, none to find it."""

import doctest
import importlib

import pytest
from checkout import TESTS

SRC = TESTS.parent / "src"
PROMPT = ">" * 3 + " "
SLOW = {"raypipe.models.encoder"}  # imports torch and transformers
WITH = [f for at in (SRC, TESTS) for f in sorted(at.rglob("*.py")) if PROMPT in f.read_text(encoding="utf-8")]


def root_of(file):
    """Where its import starts: a module of src from there, one of the tests from its own folder."""
    return SRC if SRC in file.parents else file.parent


def case(file):
    name = ".".join(file.relative_to(root_of(file)).with_suffix("").parts).removesuffix(".__init__")
    return pytest.param(name, root_of(file), marks=[pytest.mark.slow] if name in SLOW else [], id=name)


@pytest.mark.parametrize(("name", "root"), [case(file) for file in WITH])
def test_the_examples_of_a_module_are_true(name, root, monkeypatch):
    monkeypatch.syspath_prepend(root)
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried and not failed
