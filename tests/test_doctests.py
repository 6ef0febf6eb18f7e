"""The examples in docstrings of src are true. Each module is imported when its test runs, none to find it."""

import doctest
import importlib
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
WITH = sorted(file for file in SRC.rglob("*.py") if ">>> " in file.read_text(encoding="utf-8"))


def name_of(file):
    return ".".join(file.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("name", [name_of(file) for file in WITH])
def test_the_examples_of_a_module_are_true(name):
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried and not failed
