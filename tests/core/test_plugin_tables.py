"""The tables of the plugin folders that ship with raypipe. A stranger's is that of tests/docs."""

import tomllib
from dataclasses import is_dataclass
from importlib import import_module

import pytest
from checkout import ROOT

from raypipe.api.cli.command import Declared
from raypipe.core.plugins import GROUP, registered, tables
from raypipe.core.references import Reference
from raypipe.evaluation.loss_paths import EvidencePath
from raypipe.readers.formats import LineFormat

FORMS = {
    "corpus_steps": is_dataclass,
    "question_steps": is_dataclass,
    "entries": lambda x: issubclass(x, Reference),
    "files": is_dataclass,
    "readers": lambda x: isinstance(x, LineFormat),
    "loss_stages": lambda x: issubclass(x, EvidencePath),
    "datasets": callable,
    "forgets": lambda x: callable(x.take_out),
}
NAMES = [(kind, name) for kind in FORMS for name in registered(kind)]


def test_a_checkout_has_the_plugins_of_its_project_file_whatever_is_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(project["entry-points"][GROUP]) == {"crag", "finetune", "world"} <= set(tables())


@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_a_name_stands_for_what_its_kind_is(kind, name):
    assert FORMS[kind](registered(kind)[name].load("what its kind is"))


@pytest.mark.parametrize("name", registered("entries"))
def test_a_kind_of_entry_is_one_of_its_reference(name):
    assert name in registered("entries")[name].load("a reference").kinds


@pytest.mark.parametrize("name", registered("commands"))
def test_a_command_is_declared_by_its_module(name):
    command = registered("commands")[name].value
    declared = [
        d.words.split()[0] for d in vars(import_module(command.module)).values() if isinstance(d, Declared)
    ]
    assert name in declared


def test_stages_that_lose_golds_have_places():
    assert registered("loss_stages").keys() <= registered("question_steps").keys()
    assert list(registered("loss_places")) == ["program", "linking", "rows", "rule"]
