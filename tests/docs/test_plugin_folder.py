"""The plugin folder of docs/extend.md: a stranger's package, as complete as those that raypipe ships."""

import re
import shlex
import sys
from dataclasses import replace

import pytest
from checkout import ROOT
from reruns import CONF, Bench

from raypipe.api.check import check
from raypipe.api.cli.main import main
from raypipe.api.machine import check_environment
from raypipe.api.schemas import schema
from raypipe.api.session import load_recipe
from raypipe.core import plugins
from raypipe.core.errors import ConfError
from raypipe.core.plugins import registered, tables
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.metrics.losses import places
from raypipe.recipes import serialize
from raypipe.recipes.serialize import description, from_plain, to_plain

PAGE = (ROOT / "docs/extend.md").read_text(encoding="utf-8")
SECTION = PAGE[PAGE.index("## A plugin folder") :]
FILES = re.findall(r"`([a-z/]+\.(?:py|toml|yaml))`:\n\n```\w+\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE)
TERMS = "lease,a sign of who holds a store\nmemo,values cached by key\n"
QUIZ = "what is a lease?\ta sign of who holds a store\nwhat is a memo?\ta letter\nwhat is a tag?\ta name\n"


def forget():
    for cached in (tables, registered, serialize.classes):
        cached.cache_clear()
    for name in [n for n in sys.modules if n.partition(".")[0] == "glossary"]:
        del sys.modules[name]


def install(folder, name="glossary", path="glossary.plugin:TABLE"):
    """What an installer leaves of a package's entry points."""
    made = folder / f"{name}-1.dist-info"
    made.mkdir()
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (made / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{name} = {path}\n")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The package installed, for this test alone."""
    for name, text in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    install(tmp_path)
    (tmp_path / "terms.csv").write_text(TERMS)
    (tmp_path / "quiz.txt").write_text(QUIZ)
    (tmp_path / "graphs.yaml").write_text("terms: {kind: glossary}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYPIPE_CONF", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    forget()
    yield tmp_path
    forget()


def commands():
    [block] = re.findall(r"^```sh\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE)
    return [shlex.split(line)[1:] for line in block.splitlines()]


def test_the_page_has_every_file_of_the_package(folder):
    names = ("plugin", "references", "steps", "losses", "readers", "commands")
    assert [n for n, _ in FILES] == [
        "pyproject.toml",
        *(f"glossary/{n}.py" for n in names),
        "glossary/conf/recipes/define.yaml",
    ]


def test_its_command_is_listed_run_and_completed(folder, capsys):
    look, check, *_ = commands()
    assert main(look) == 0 and capsys.readouterr().out == "a sign of who holds a store\n"
    assert main(["--help"]) == 0
    assert re.search("(?m)^  glossary    Look up a term in a glossary.$", capsys.readouterr().out)
    assert main(["completion", "bash"]) == 0 and "glossary" in capsys.readouterr().out
    assert main(check) == 0, capsys.readouterr().out


def test_its_recipe_is_evaluated_on_its_format_and_says_where_answers_were_lost(folder, capsys):
    *_, run, losses = commands()
    recipe = load_recipe("define", None, None, {"terms": "terms.csv"})
    pipe = replace(Bench(folder, folder).pipeline(), recipe=recipe)
    assert (run[:2], run[3], run[5]) == (["eval", "define"], "quiz.txt", "quiz")
    evaluate(pipe, [folder / "quiz.txt"], folder / "out", EvalOptions("quiz"))
    assert list(places())[-3:] == ["undefined", "decision", "verdict"]
    capsys.readouterr()
    assert main(losses) == 0
    shown = capsys.readouterr().out
    assert "what is a tag?" in shown and "in no entry of the glossary" in shown and "memo" not in shown


def test_a_record_of_its_recipe_is_read_without_its_code_and_run_with_it(folder):
    recipe = load_recipe("define", None, None, {"terms": "terms.csv"})
    tree = to_plain(recipe)
    assert tree["question"][0]["plugin"]["path"] == "glossary.steps:Define"
    (folder / "terms.csv").write_text(TERMS + "tag,a name\n")
    assert load_recipe("define", None, None, {"terms": "terms.csv"}).digest() != recipe.digest()
    forget()
    assert description(tree).digest() == recipe.digest() and "glossary" not in sys.modules
    assert from_plain(tree).digest() == recipe.digest()
    with pytest.raises(ConfError, match=r"glossary 'terms': .* is not what the recipe was resolved with"):
        from_plain(tree).question[0].step.glossary.require()


def test_its_kind_of_entry_is_in_the_schema_and_validated(folder):
    kinds = [e["properties"]["kind"]["enum"] for e in schema("graphs")["additionalProperties"]["anyOf"]]
    assert ["glossary"] in kinds and ["folder", "server"] in kinds
    (folder / "graphs.yaml").write_text("terms: {kind: glossary, were: x}\nothers: {kind: glosary}\n")
    first, second = check("graphs.yaml").problems
    assert "did you mean 'where'?" in str(first) and "glossary, found text ('glosary')" in str(second)


def test_names_alone_import_the_table_and_nothing_else(folder):
    assert "define" in registered("question_steps") and "quiz" in registered("readers")
    assert {n for n in sys.modules if n.startswith("glossary.")} == {"glossary.plugin"}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nowhere.plugin:TABLE", "plugin 'other' of other: nowhere.plugin:TABLE: expected a PluginTable"),
        ("glossary.plugin:Path", "plugin 'other' of other: expected a PluginTable, found"),
        ("glossary.plugin:TABLE", "plugins 'glossary' and 'other' both add question_steps 'define'"),
    ],
)
def test_a_plugin_that_cannot_be_is_named_with_its_package(folder, path, said):
    install(folder, "other", path)
    forget()
    with pytest.raises(ConfError, match=re.escape(said)):
        registered("question_steps")


def test_doctor_names_the_plugins_and_the_one_that_cannot_be_read(folder):
    def plugins():
        return next(f for f in check_environment().findings if f.what == "plugins")

    assert (plugins().state, plugins().found) == ("fine", "crag, finetune, world, glossary")
    (folder / "glossary/plugin.py").write_text("raise OSError")
    forget()
    assert plugins().state == "missing" and "plugin 'glossary' of glossary" in plugins().mend


def test_a_verb_that_raypipe_has_is_refused(folder):
    file = folder / "glossary/plugin.py"
    file.write_text(file.read_text().replace('{"define": "glossary.steps', '{"rerank": "glossary.steps'))
    forget()
    with pytest.raises(ConfError, match="adds question_steps 'rerank', which raypipe has: rename it"):
        load_recipe("define", None, CONF)
