"""Periods of refresh: a model proposes, and a person accepts."""

import json

import pytest
import yaml
from checkout import ROOT, SUPPORT

from raypipe.api.cli.main import main
from raypipe.contrib.crag.api.kg_refresh import HELD
from raypipe.contrib.crag.language.example_bank import DOMAINS
from raypipe.contrib.crag.schema import TABLES

MODELS = str(SUPPORT / "fake_models.yaml")


@pytest.fixture
def graphs(tmp_path, monkeypatch):
    """A graphs.yaml of its own: the one that ships."""
    monkeypatch.setenv("RAYPIPE_CONF", str(tmp_path))
    path = tmp_path / "graphs.yaml"
    path.write_text((ROOT / "conf/graphs.yaml").read_text())
    return path


def propose(*more, graph="crag-mock", model="llama-3-8b"):
    return main(["kg", "refresh", "--graph", graph, "--propose", model, "--models", MODELS, *more])


def test_a_proposal_is_shown_as_the_line_to_put_in_and_changes_nothing(graphs, capsys):
    before = graphs.read_text()
    assert propose() == 0
    shown = capsys.readouterr().out
    assert "to accept it, put into" in shown and all(d in shown for d in DOMAINS)
    assert propose("--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["now"] == yaml.safe_load(before)["crag-mock"]["refresh"] != said["proposed"]
    assert said["proposed"].keys() == set(DOMAINS)
    assert set(said["proposed"].values()) <= {"static", "daily", "live"}
    assert yaml.safe_load(shown.splitlines()[-1]) == {"refresh": said["proposed"]}
    assert graphs.read_text() == before


def test_every_table_that_holds_facts_of_a_domain_is_told_to_the_model():
    told = {t for tables in HELD.values() for t in tables}
    assert tuple(sorted(HELD)) == tuple(sorted(DOMAINS)) and told < TABLES.keys()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"graph": "world"}, "no server 'world'"),
        ({"graph": "crag-mok"}, "did you mean 'crag-mock'?"),
        ({"model": "bge-base-en-v1.5"}, "expected a generator"),
    ],
)
def test_what_cannot_propose_or_be_asked_is_refused(graphs, capsys, other, said):
    assert propose(**other) == 2
    assert said in capsys.readouterr().err
