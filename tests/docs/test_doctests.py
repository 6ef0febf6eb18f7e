"""The examples in docstrings are true. Each module is imported when its test runs, none to find it."""

import doctest
import importlib

import pytest
from checkout import TESTS

SRC = TESTS.parent / "src"
PROMPT = ">" * 3 + " "
SLOW = {"raypipe.models.encoder"}  # imports torch and transformers
WITH = [f for at in (SRC, TESTS) for f in sorted(at.rglob("*.py")) if PROMPT in f.read_text(encoding="utf-8")]


def name_of(file):
    """As it is imported: a module of src from there, one of the tests from its own folder."""
    parts = file.relative_to(SRC if SRC in file.parents else file.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def case(name):
    return pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])


@pytest.mark.parametrize("name", [case(name_of(file)) for file in WITH])
def test_the_examples_of_a_module_are_true(name):
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried and not failed
