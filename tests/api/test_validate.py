"""`raypipe check` lists every problem of a file at once, each at its line."""

import json

import pytest
from checkout import ROOT

from raypipe.api.check import check, line_of
from raypipe.api.cli.main import main
from raypipe.api.session import Session, from_environment

SESSION = Session(from_environment({"RAYPIPE_CONF": str(ROOT / "conf")}))


def found(tmp_path, text, name="made.yaml"):
    (tmp_path / name).write_text(text)
    return [(p.line, p.path, p.message) for p in check(tmp_path / name, session=SESSION).problems]


def test_every_problem_of_a_recipe_is_found_at_once(tmp_path):
    text = """about: wrong in many ways
corpus:
  - parse: {kinds: [page]}
  - splitt: {child_chars: 200}
question:
  - dense: {model: no-such-model, top: many}
  - rerank:
      model: overlap-reranker
      topp: 5
  - decide: {when: {kg: answered}}
colour: red
"""
    problems = found(tmp_path, text)
    assert [(line, path) for line, path, _ in problems] == [
        (11, "colour"),
        (4, "corpus[1]"),
        (6, "question[0].dense.model"),
        (6, "question[0].dense.top"),
        (9, "question[1].rerank.topp"),
        (7, "question[1].rerank"),
        (10, "question[2].decide.when.kg"),
        (10, "question[2].decide"),
    ]
    said = [message for _, _, message in problems]
    assert "did you mean 'split'?" in said[1] and "expected a whole number, found text ('many')" in said[3]
    assert "did you mean 'top'?" in said[4] and "field 'prefer' is missing" in said[7]


def test_steps_that_do_not_fit_are_all_named(tmp_path):
    text = """question:
  - fuse: {weights: {dense: 1.0, web: 1.0}, missing: zero, top: 5}
  - rerank: {model: overlap-reranker, candidates: 5, top: 5}
"""
    said = [m for _, _, m in found(tmp_path, text)]
    reads = [m.partition(",")[0] for m in said]
    assert {"fuse reads hits.dense", "fuse reads hits.web"} <= set(reads) and len(reads) > 3
    assert not any("decide" in m for m in said), "a recipe may end in a ranking"


def test_a_combination_of_fields_that_is_refused_is_a_problem_at_its_step(tmp_path):
    text = """corpus:
  - parse: {}
  - split: {child_chars: 900, parent_chars: 500}
question:
  - decide: {prefer: []}
"""
    problems = found(tmp_path, text)
    assert problems[0][:2] == (3, "corpus[1].split")
    assert "child_chars: expected at most parent_chars (500), found 900" in problems[0][2]


def test_models_cluster_and_graph_files_and_prompts_are_told_by_what_they_hold(tmp_path):
    models = "a: {kind: embedder, loader: hash}\nb: {kind: reranker, loader: hash}\n"
    models += "c: {kind: embedder, lodaer: x}\n"
    assert [(line, path) for line, path, _ in found(tmp_path, models)] == [
        (1, "a"),
        (2, "b"),
        (3, "c.lodaer"),
        (3, "c"),
    ]
    laptop = (ROOT / "conf/clusters/laptop.yaml").read_text()
    assert found(tmp_path, laptop) == []
    wrong = laptop.replace("machines:", "machnes:")
    assert {p for _, p, _ in found(tmp_path, wrong)} == {"machnes", ""}
    assert found(tmp_path, "g: {kind: foldr}\n")[0][:2] == (1, "g.kind")
    prompt = (ROOT / "conf/prompts/crag/vanilla.yaml").read_text()
    assert found(tmp_path, prompt) == []
    assert found(tmp_path, "x: 1\n")[0][2].startswith("expected a recipe, a models, cluster or graphs file")


def test_a_file_that_is_no_yaml_names_the_line(tmp_path):
    assert found(tmp_path, "question:\n  - dense: {top: 5\n  - b\n")[0][0] == 4  # where YAML notices
    assert found(tmp_path, "a: 1\nb: 2\na: 3\n")[0][0] == 3


def test_a_problem_of_a_variant_has_the_line_that_sets_it(tmp_path):
    text = "about: a variant\nlike: local\nset:\n  rerank.topp: 5\n  fuse:final.top: x\n"
    assert [(line, path) for line, path, _ in found(tmp_path, text)] == [
        (4, "question[4].rerank.topp"),
        (5, "question[5].fuse.top"),
    ]


def test_a_price_below_nothing_is_a_problem(tmp_path):
    text = "a: {kind: generator, loader: scripted, usd_per_mtok: {prompt: -1, reply: 2}}\n"
    assert found(tmp_path, text) == [(1, "a.usd_per_mtok", "usd_per_mtok: expected no price below 0")]


@pytest.mark.parametrize("name", ["local", "vanilla", "crag-baseline"])
def test_shipped_recipes_have_no_problem_but_models_that_are_not_here(name):
    assert all(
        "Get it" in p.message or "no folder" in p.message for p in check(name, session=SESSION).problems
    )


def test_the_command_prints_each_problem_with_its_line_and_ends_with_2(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    (tmp_path / "wrong.yaml").write_text("question:\n  - decide: {prefer: [], colour: red}\n")
    assert main(["check", "local", str(tmp_path / "wrong.yaml")]) == 2
    said = capsys.readouterr().out
    assert f"{tmp_path}/wrong.yaml:2: question[0].decide.colour: unknown field; known: " in said
    assert "local.yaml: no problem (recipe)" in said
    assert main(["check", "local", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == []
    assert main(["check", "locall"]) == 2
    assert "no 'locall' under recipes/; did you mean 'local'?" in capsys.readouterr().err


def test_the_line_of_a_path_is_that_of_its_innermost_part_that_is_there():
    text = "a:\n  - b: {c: 1}\n  - d:\n      e.f: 2\n"
    assert [line_of(text, p) for p in ("a", "a[0].b.c", "a[1].d.e.f", "a[1].d.x", "a[7]", "z", "")] == [
        1,
        2,
        4,
        3,
        1,
        None,
        None,
    ]
