"""Steps from outside: named in a recipe by path, kept in records, never imported to be read about."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import own_step
import pytest
from checkout import SUPPORT
from reruns import CONF, Bench

from raypipe.api.cli.main import main
from raypipe.api.session import load_recipe
from raypipe.core.errors import ConfError
from raypipe.core.plugins import load
from raypipe.evaluation.evaluate import evaluate
from raypipe.evaluation.options import EvalOptions
from raypipe.recipes.serialize import description, from_plain, to_plain
from raypipe.runs.explain import why
from raypipe.runs.record import read
from raypipe.runs.release import live, promote


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The step of docs/extend.md in the current folder, importable for this test alone."""
    own_step.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield tmp_path
    forget()


def forget():
    for name in [n for n in sys.modules if n.partition(".")[0] == "mypkg"]:
        del sys.modules[name]


def shout(text=""):
    if text:
        Path("shout.yaml").write_text(text)
    return load_recipe("shout.yaml", None, CONF)


def edit(old, new):
    file = Path("mypkg/steps.py")
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    forget()


def test_the_identity_of_a_step_from_outside_is_its_path_version_fields_and_source(folder):
    text = Path("shout.yaml").read_text()
    base, others = shout(), []
    assert shout().digest() == base.digest()
    assert [s.name for s in base.question] == ["Shout:shout", "decide"]
    others.append(shout(text.replace("into: shout", "into: cry").replace("[shout]", "[cry]")))
    edit("Shouting:", "Crying:")
    others.append(shout(text))
    edit("ClassVar[int] = 1", "ClassVar[int] = 2")
    others.append(shout())
    Path("other").mkdir()
    Path("other/steps.py").write_text(Path("mypkg/steps.py").read_text())
    others.append(shout(text.replace("mypkg", "other")))
    del sys.modules["other.steps"], sys.modules["other"]
    assert len({base.digest(), *(o.digest() for o in others)}) == 5


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("mypkg.steps:Shuot", r"shout.yaml: question\[0\]: .* has no 'Shuot'; did you mean 'Shout'"),
        ("mypkg.stepz:Shout", "found no module 'mypkg.stepz'. Run raypipe in the folder that holds it"),
        ("mypkg.steps:replace", "expected a step, a frozen dataclass; found <function replace"),
        ("mypkg.steps:Reply", "expected `version: ClassVar"),
        ("mypkg.broken:Shout", "its module raises on import: ZeroDivisionError"),
        ("mypkg.lacking:Shout", "its module imports 'no_such_package', which is not installed"),
    ],
)
def test_a_path_that_leads_to_no_step_is_named_with_its_place_and_what_was_expected(folder, verb, said):
    Path("mypkg/broken.py").write_text("1 / 0")
    Path("mypkg/lacking.py").write_text("import no_such_package")
    with pytest.raises(ConfError, match=said):
        shout(Path("shout.yaml").read_text().replace("mypkg.steps:Shout", verb))


def test_the_identity_of_own_code_covers_all_that_it_imports_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    files = {
        "mypkg/__init__.py": "",
        "mypkg/steps.py": "from . import rules\nimport json, numpy.linalg\nclass S: ...",
        "mypkg/rules.py": "def later():\n    from mypkg.deep.words import WORDS",
        "mypkg/deep/__init__.py": "",
        "mypkg/deep/words.py": "import mypkg_words",
        "mypkg_words.py": "",
        "mypkg/other.py": "",
    }
    seen = set()
    changed = [
        "",
        "mypkg/steps.py",
        "mypkg/rules.py",
        "mypkg/deep/words.py",
        "mypkg/deep/__init__.py",
        "mypkg_words.py",
    ]
    for name in [*changed, "mypkg/other.py", "mypkg/deep/unused.py"]:
        files[name or "mypkg/steps.py"] = (
            files.get(name, "") + "\n# changed" if name else files["mypkg/steps.py"]
        )
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        forget()
        seen.add(load("mypkg.steps:S", "a step")[1].source)
    assert len(seen) == len(changed)  # what is not imported changes nothing
    (tmp_path / "mypkg/rules.py").write_text("def later(): ...")
    with pytest.raises(ConfError, match=r"rules.py changed after this process imported it"):
        load("mypkg.steps:S", "a step")
    forget()


def test_a_source_that_changes_under_a_running_process_is_refused(folder):
    shout()
    file = Path("mypkg/steps.py")
    file.write_text(file.read_text() + "# another\n")
    with pytest.raises(ConfError, match=r"steps.py changed after this process imported it"):
        shout()


def test_a_recipe_with_a_step_from_outside_comes_back_whole_and_is_read_about_without_its_code(folder):
    recipe = shout()
    tree = json.loads(json.dumps(to_plain(recipe)))
    assert from_plain(tree) == recipe
    forget()
    Path("mypkg/steps.py").unlink()
    read_about = description(tree)
    assert "mypkg" not in sys.modules and read_about.digest() == recipe.digest()
    assert read_about.question[0].step.writes() == recipe.question[0].step.writes()
    with pytest.raises(ConfError, match="cannot be run"):
        read_about.question[0].step.open(None)
    with pytest.raises(ConfError, match=r"found no module 'mypkg.steps'"):
        from_plain(tree)


def test_a_release_is_not_run_with_another_source_than_it_was_made_with(folder):
    tree = to_plain(shout())
    edit("upper()", "lower()")
    with pytest.raises(ConfError, match=r"the source of mypkg.steps:Shout is not what it was"):
        from_plain(tree)


NESTED = """
from dataclasses import dataclass
from typing import ClassVar

from raypipe.core.protocols import Model


@dataclass(frozen=True)
class Rule:
    word: str
    model: Model


@dataclass(frozen=True)
class Keep:
    rules: tuple[Rule, ...]

    version: ClassVar[int] = 1

    def reads(self):
        return frozenset({"order"})

    def writes(self):
        return frozenset({"order"})

    def open(self, kit):
        async def ask(questions):
            return questions

        return ask
"""


def test_fields_may_hold_classes_of_their_own_and_the_models_in_them_are_the_recipes(folder):
    Path("mypkg/keep.py").write_text(NESTED)
    step = "  - mypkg.keep:Keep: {rules: [{word: a, model: hash-embedder}]}\n"
    fakes = (SUPPORT / "fakes.yaml").read_text()
    recipe = shout(fakes.replace("  - extract", step + "  - extract"))
    tree = json.loads(json.dumps(to_plain(recipe)))
    assert from_plain(tree) == recipe
    forget()
    assert [m.name for m in description(tree).models()] == [m.name for m in recipe.models()]
    assert "mypkg" not in sys.modules


@pytest.mark.slow
def test_reading_a_run_its_rows_and_its_release_imports_nothing_from_outside(folder, world, capsys):
    bench = Bench(folder, world)
    recipe = shout()
    pipe = replace(bench.pipeline(), recipe=recipe)
    plans = []
    done = evaluate(pipe, [world], folder / "out", EvalOptions("crag", rule="official", on_plan=plans.append))
    assert plans[0].planned()["Shout:shout"] == 0 and plans[0].steps[2].exact
    record = read(folder / "out")
    assert done.record.questions == 6
    assert record.stage("Shout:shout").step == "mypkg.steps:Shout"
    promote(pipe.store, record, [])
    forget()
    Path("mypkg/steps.py").unlink()
    row = json.loads((folder / "out" / "predictions.jsonl").read_text().splitlines()[0])
    assert row["prediction"] == row["query"].upper()
    told = why(pipe.store, record, row["id"])
    steps = {s.step: (s.requests, s.computed, s.cached) for s in told.steps}
    assert steps == {"Shout:shout": (0, 0, 0), "decide": (0, 0, 0)}
    assert told.answer == row["prediction"] and live(pipe.store).run == record.run
    store = ["--store", pipe.store.uri]
    for command in (
        ["inspect", "out", row["id"]],
        ["inspect", "out", "--faults"],
        ["releases", *store],
        ["prune", "--dry-run", *store],
    ):
        assert main(command) == 0
    capsys.readouterr()
    assert not [n for n in sys.modules if n.startswith("mypkg")]
