"""Periods of refresh: a model proposes, nothing changes before somebody accepts, and comments stay."""

import json
from pathlib import Path

import pytest
import yaml

from raypipe.api.kg_refresh import HELD, with_refresh
from raypipe.cli.main import main
from raypipe.core.errors import ConfError
from raypipe.kg.language.example_bank import DOMAINS
from raypipe.kg.schema import TABLES

ROOT = Path(__file__).parents[2]
MODELS = str(ROOT / "tests/fake_models.yaml")


@pytest.fixture
def graphs(tmp_path, monkeypatch):
    """A graphs.yaml of its own: the one that ships."""
    monkeypatch.setenv("RAYPIPE_CONF", str(tmp_path))
    path = tmp_path / "graphs.yaml"
    path.write_text((ROOT / "conf/graphs.yaml").read_text())
    return path


def propose(*more, graph="crag-mock", model="llama-3-8b"):
    return main(["kg", "refresh", "--graph", graph, "--propose", model, "--models", MODELS, *more])


def test_a_proposal_is_shown_and_changes_nothing_until_it_is_accepted(graphs, capsys):
    before = graphs.read_text()
    assert propose() == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "it is not written: --accept" in shown and all(d in shown for d in DOMAINS)
    assert graphs.read_text() == before
    assert propose("--json", "--accept") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["now"] == yaml.safe_load(before)["crag-mock"]["refresh"]
    assert said["proposed"].keys() == set(DOMAINS)
    assert set(said["proposed"].values()) <= {"static", "daily", "live"}
    after = graphs.read_text()
    assert yaml.safe_load(after)["crag-mock"]["refresh"] == said["proposed"] != said["now"]
    others = [[line for line in t.splitlines() if "refresh: {" not in line] for t in (before, after)]
    assert others[0] == others[1] and "# Public data" in after


def test_every_table_that_holds_facts_of_a_domain_is_told_to_the_model():
    told = {t for tables in HELD.values() for t in tables}
    assert tuple(sorted(HELD)) == tuple(sorted(DOMAINS)) and told < TABLES.keys()


@pytest.mark.parametrize(
    ("entry", "after"),
    [
        ("  kind: server\n", "  kind: server\n  refresh: {open: live}\n"),
        ("  refresh: {movie: 5}\n  kind: server\n", "  refresh: {open: live}\n  kind: server\n"),
        ("  kind: server\n\n# of b\n", "  kind: server\n  refresh: {open: live}\n\n# of b\n"),
    ],
)
def test_the_line_is_put_where_it_stood_or_at_the_end_of_the_entry(tmp_path, entry, after):
    path = tmp_path / "graphs.yaml"
    path.write_text(f"# first\na:\n{entry}b:\n  kind: folder\n")
    assert with_refresh(path, "a", {"open": "live"}) == f"# first\na:\n{after}b:\n  kind: folder\n"


@pytest.mark.parametrize("entry", ["a: {kind: server}", "a:\n  kind: server\n  refresh:\n    open: daily"])
def test_an_entry_that_is_written_otherwise_is_left_to_a_person(tmp_path, entry):
    path = tmp_path / "graphs.yaml"
    path.write_text(f"# first\n{entry}\n")
    with pytest.raises(ConfError, match=r"Write by hand: refresh: \{open: live\}"):
        with_refresh(path, "a", {"open": "live"})


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
