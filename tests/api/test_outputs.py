"""What programs rely on: the schemas in docs are those of the classes, and what commands print validates."""

import argparse
import json

import jsonschema
import pytest
from checkout import ROOT, SUPPORT
from outputs import file_of, schemas

from raypipe.api.cli.main import main, parser
from raypipe.contrib.crag.api.kg_refresh import RefreshProposal
from raypipe.contrib.world.api import StandinsResult
from raypipe.contrib.world.standins import Standins
from raypipe.runs.run_parts import JSON_FORMAT

FAKES = str(SUPPORT / "fakes.yaml")
SCHEMAS = dict(schemas())


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_published_schema_is_the_one_that_is_made_from_the_classes(name):
    published = json.loads((ROOT / "docs/schemas" / file_of(name)).read_text())
    assert published == SCHEMAS[name], "`make schemas` writes docs/schemas"
    jsonschema.Draft202012Validator.check_schema(published)


def with_json(made, words=()):
    """The commands that have --json."""
    if "--json" in made._option_string_actions:
        yield " ".join(words)
    for action in made._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield from with_json(command, (*words, name))


def test_every_command_with_json_has_a_schema_and_no_other_file_lies_there():
    assert set(with_json(parser())) == set(SCHEMAS)
    assert {f.name for f in (ROOT / "docs/schemas").iterdir()} == {file_of(name) for name in SCHEMAS}


def checked(name, tree):
    jsonschema.validate(tree, SCHEMAS[name], cls=jsonschema.Draft202012Validator)
    assert tree["format"] == JSON_FORMAT
    return tree


@pytest.fixture
def printed(capsys, monkeypatch, tmp_path):
    """Runs a command with --json: what it printed, held to its schema."""
    monkeypatch.setenv("RAYPIPE_CONF", str(ROOT / "conf"))
    monkeypatch.setenv("RAYPIPE_HOME", str(tmp_path / "home"))

    def run(*words, code=0):
        capsys.readouterr()
        words = [str(word) for word in words]
        assert main([*words, "--json"]) == code
        name = " ".join(words[:2]) if " ".join(words[:2]) in SCHEMAS else words[0]
        lines = [checked(name, json.loads(line)) for line in capsys.readouterr().out.splitlines()]
        return lines[0] if len(lines) == 1 else lines

    return run


@pytest.mark.slow
def test_what_commands_print_about_a_run_validates(bench, printed):
    bench.run(out="run")
    run, store = bench.folder / "run", ("--store", bench.folder / "store")
    report = checked("eval", json.loads((run / "run.json").read_text()))
    assert report["steps"] and report["by_rule"]["slices"]
    planned = printed("plan", FAKES, *store)
    first = planned["steps"][0]
    assert planned["placement"]["pools"] and first["cached"] == first["rows"]
    again = printed(
        "eval", FAKES, "--data", bench.world, *store, "--format", "crag", "--out", run.parent / "b"
    )
    assert again["questions"] == 6
    done = printed(
        "eval",
        FAKES,
        "--changes",
        "--data",
        bench.world,
        *store,
        "--format",
        "crag",
        "--out",
        run.parent / "c",
    )
    assert done["changes"]["same"] == 6
    assert printed("inspect", run, bench.lines()[0]["interaction_id"])["state"] == "reused"
    assert [r["kind"] for r in printed("inspect", run, "--faults")["rows"]] == ["sources", "questions"]
    bench.pipeline().index(None)  # words of the whole store: no eval of questions with pages makes them
    for half in ("index", "answer"):
        assert printed("eval", FAKES, "--until", half, *store)["recipe"] == "fakes"
    first = printed("promote", run)
    printed("promote", run.parent / "b")
    assert [r["live"] for r in printed("releases", *store)["releases"]] == [False, True]
    assert printed("rollback", *store)["id"] == first["id"]
    assert printed("prune", "--dry-run", *store)["dry_run"]


@pytest.mark.slow
def test_what_commands_print_about_data_validates(printed, tmp_path):
    world, store = tmp_path / "world", tmp_path / "store"
    made = printed("synth", world, "--questions", 2, "--pages", 2, "--page-chars", 1000)
    assert made["questions"] == 2
    assert printed("ingest", world, "--store", store)["rows"] == 2
    (tmp_path / "a.html").write_text("<p>one</p>")
    (tmp_path / "b.html").write_bytes(b"%PDF-1.7\n\x00\x01")
    good, bad = printed("parse", tmp_path / "a.html", tmp_path / "b.html", code=3)
    assert good["text"] == "one" and bad["fault"]["reason"] == "not_html"
    line = next(world.glob("questions*.jsonl")).read_text().splitlines()[0]
    (tmp_path / "one.jsonl").write_text(line)
    said = printed("ask", FAKES, json.loads(line)["query"], "--pages", tmp_path / "one.jsonl")
    assert said["outcome"] in ("answered", "abstained")
    time = ("--time", "03/05/2024, 23:18:31 PT")
    calls = printed("kg", "run", "get_movie(zzz)\nget_nothing()", "--graph", world / "kg", *time, code=3)
    assert calls["results"][1]["fault"]["reason"] == "bad_call"


def test_what_commands_print_about_files_validates(printed, tmp_path):
    line = {"query": "q", "answer": "paris", "prediction": "Paris"}
    (tmp_path / "p.jsonl").write_text(json.dumps(line) + "\n")
    assert printed("score", "crag", tmp_path / "p.jsonl")["by_rule"]["score"]["n_correct"] == 1
    (tmp_path / "r.trec").write_text("q1 Q0 c 1 2.0 run\n")
    (tmp_path / "q.trec").write_text("q1 0 c 1\n")
    found = printed(
        "score", "ranking", "--run", tmp_path / "r.trec", "--qrels", tmp_path / "q.trec", "--per-query"
    )
    assert found["means"]["recip_rank"] == 1.0 and set(found["per_query"]) == {"q1"}
    (tmp_path / "o.csv").write_text(
        "year_film,year_ceremony,ceremony,category,name,film,winner\n2011,2012,84,ACTOR,A,Film,True\n"
    )
    built = printed(
        "facts", "build", tmp_path / "o.csv", "--source", "oscar", "--out", tmp_path / "o.parquet"
    )
    assert built["summary"]["facts"] == 1


def test_what_commands_print_about_this_machine_validates(printed, tmp_path):
    assert printed("doctor")["fine"]
    assert [m["state"] for m in printed("models", "local")["models"]] == ["here", "here"]
    step = ("raypipe.steps.fuse:Fuse", "--fields", "{weights: {dense: 1.0}, top: 3}")
    assert printed("check", *step)["steps"][0]["holds"]
    assert "conf/recipes/mine.yaml" in printed("init", tmp_path / "project")["files"]


def test_results_that_take_a_model_to_make_validate(tmp_path):
    names = ("embedder", "reranker", "instructor", "decoder")
    made = Standins(tmp_path / "chat", (("a", tmp_path / "a"),), *(tmp_path / n for n in names))
    checked("standins", StandinsResult(made).to_dict())
    seen = {"movie": {"pairs": 9, "changed": 3}}
    now, proposed = {"movie": "static"}, {"movie": 3600}
    checked("kg refresh", RefreshProposal("g", tmp_path, now, proposed, seen).to_dict())


def test_a_key_that_no_schema_has_is_refused():
    with pytest.raises(jsonschema.ValidationError, match="more"):
        checked("releases", {"format": JSON_FORMAT, "releases": [], "more": 1})
